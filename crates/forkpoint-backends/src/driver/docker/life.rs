//! Sandboxes from their beginning to their end, and the switches between.

use std::{sync::Arc, time::Duration};

use forkpoint_core::{
    driver::{
        Adopted, Artifact, Command, DriverError, DriverResult, SandboxState, SandboxStatus,
        SandboxUsage,
    },
    id::{SandboxId, SnapshotId},
    path::SandboxPath,
    spec::{Network, Resources, SandboxSpec},
};
use serde_json::{Value, json};

use super::{
    DRIVER,
    container::{Container, NEXT, name_of},
    engine::{failed, invalid, query},
    host::Host,
    http::{HttpResult, LONG, Request},
    label,
    layered::layers_of,
    make::Making,
    seal::Data,
    shape::{self, Purpose, Shape},
    still::PAUSES,
};
use crate::layer::LayerName;

/// How long a container has to end by itself.
const GRACE: &str = "10";

impl Host {
    /// The image is got here, so that nothing is slow or fails for want of it later.
    pub(super) async fn complete(&self, spec: &SandboxSpec) -> DriverResult<SandboxSpec> {
        shape::fresh(spec, true)?;
        let template = spec.template.as_str();
        if self.inspect_image(template).await?.is_none() {
            self.pull(template).await?;
        }
        Ok(spec.clone())
    }

    pub(super) async fn create(&self, id: SandboxId, spec: &SandboxSpec) -> DriverResult<()> {
        self.expect_none(id).await?;
        let made = self.create_as(id, spec, true).await;
        let made = match made {
            // No shell to wait in: then what the image itself runs.
            Err(err) if has_no_shell(&err) => self.create_as(id, spec, false).await,
            made => made,
        };
        match made {
            Ok(()) => Ok(()),
            Err(err) => Err(self.clear(id, err).await),
        }
    }

    async fn create_as(&self, id: SandboxId, spec: &SandboxSpec, idle: bool) -> DriverResult<()> {
        let image = self.inspect_image(spec.template.as_str()).await?;
        let mut shape = shape::fresh(spec, idle)?;
        self.sign(id, None, image.as_ref().map_or(0, layers_of), &mut shape)?;
        let container = self.bring_up(id, spec, shape, (None, Vec::new())).await?;
        match self.inspect(&container).await? {
            Some(container) if container.state() == SandboxState::Running => Ok(()),
            _ => invalid(format!(
                "the command of image `{}` ended at once, and nothing can run without it",
                spec.template
            )),
        }
    }

    pub(super) async fn restore(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        from: &Artifact,
    ) -> DriverResult<()> {
        let data = Data::read(from)?;
        self.expect_none(id).await?;
        self.expect_image(from.snapshot, &data).await?;
        let mut shape = shape::like(&data.container(), spec, Purpose::Copy);
        shape.body["Image"] = json!(label::tag(from.snapshot));
        self.sign(id, Some(from.snapshot), data.origin, &mut shape)?;
        let restored = async {
            let choice = spec.attachments.volumes;
            let sends = self.give_volumes(id, &data.volumes, choice, &mut shape).await?;
            let container = self.bring_up(id, spec, shape, (data.processes(), sends)).await?;
            self.fill_volatile(id, &container, &data).await?;
            self.write_edits(&container, &data).await
        };
        match restored.await {
            Ok(()) => Ok(()),
            Err(err) => Err(self.clear(id, err).await),
        }
    }

    async fn bring_up(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        shape: Shape,
        (processes, sends): (Option<LayerName>, Vec<(String, LayerName)>),
    ) -> DriverResult<String> {
        let own = format!("forkpoint-{id}");
        let name = spec.attachments.native_name.as_deref().unwrap_or(&own);
        let asked = shape.host_ports();
        let mut making = Making { sandbox: id, name, shape, instead_of: None, processes, sends };
        let container = self.prepare(&mut making).await?;
        let container = self.launch(&mut making, container).await?;
        self.tell_ports(id, &asked, &container).await?;
        Ok(container)
    }

    /// After a failure nothing is left; what cannot be removed now is removed by whoever recovers.
    async fn clear(&self, id: SandboxId, err: DriverError) -> DriverError {
        match self.destroy(id).await {
            Ok(()) | Err(_) => err,
        }
    }

    /// Marks what is to be made as ours.
    pub(super) fn sign(
        &self,
        id: SandboxId,
        base: Option<SnapshotId>,
        origin: usize,
        shape: &mut Shape,
    ) -> DriverResult<()> {
        shape.label(label::SANDBOX, &id.to_string());
        shape.label(label::DATA, &self.data()?.0);
        shape.label(label::ORIGIN, &origin.to_string());
        // An image of ours says these of itself; of a container they would be wrong.
        let base = base.map(|base| base.to_string()).unwrap_or_default();
        shape.label(label::SNAPSHOT, &base);
        for key in [label::OF, label::SOURCE, label::SEQUENCE] {
            shape.label(key, "");
        }
        Ok(())
    }

    async fn expect_none(&self, id: SandboxId) -> DriverResult<()> {
        match self.candidates(id).await?.is_empty() {
            true => Ok(()),
            false => Err(DriverError::SandboxExists { driver: DRIVER, id }),
        }
    }

    /// Somebody may have removed it behind our back.
    pub(super) async fn expect_image(&self, snapshot: SnapshotId, data: &Data) -> DriverResult<()> {
        let tag = label::tag(snapshot);
        let found = self.inspect_image(&tag).await?;
        match found.as_ref().and_then(|image| image["Id"].as_str()) {
            Some(id) if id == data.image => Ok(()),
            Some(_) => {
                let reason = format!("somebody gave the name `{tag}` to another image");
                Err(DriverError::Damaged { snapshot, reason })
            }
            None if self.inspect_image(&data.image).await?.is_some() => {
                self.retag(&data.image, snapshot).await
            }
            None => {
                let reason = format!("its image `{tag}` is gone from the engine");
                Err(DriverError::Damaged { snapshot, reason })
            }
        }
    }

    /// Gives an image of ours back its name, which somebody took away.
    pub(super) async fn retag(&self, image: &str, snapshot: SnapshotId) -> DriverResult<()> {
        let repository = label::repository(snapshot);
        let path =
            format!("/images/{image}/tag{}", query(&[("repo", &repository), ("tag", "latest")]));
        let tagged = self.engine.ask(Request::new("POST", path)).await;
        tagged.map(drop).map_err(failed("name an image"))
    }

    pub(super) async fn adopt(&self, name: &str) -> DriverResult<Adopted> {
        let missing = || DriverError::NativeMissing { driver: DRIVER, name: name.to_owned() };
        let container = self.inspect(name).await?.ok_or_else(missing)?;
        if !container.has_its_name() {
            return Err(missing());
        }
        let id = match container.is_labelled(self.data()?) {
            true => container.label(label::SANDBOX).and_then(|text| text.parse().ok()),
            false => None,
        };
        let id = id.unwrap_or_else(|| label::adopted_id(container.id()));
        let (native_name, spec) = (container.name().to_owned(), spec_of(&container)?);
        Ok(Adopted { id, native_name, spec })
    }

    pub(super) async fn status(&self, id: SandboxId) -> DriverResult<Option<SandboxStatus>> {
        let Some(container) = self.find(id).await? else { return Ok(None) };
        let sealed = self.sealed_of(container.id()).await?;
        let base = sealed.first().map(|sealed| sealed.snapshot).or_else(|| container.base());
        Ok(Some(SandboxStatus { state: self.state_of(&container)?, base }))
    }

    pub(super) async fn list(&self) -> DriverResult<Vec<SandboxId>> {
        let filter = label::filter(&[(label::DATA, &self.data()?.0)]);
        let listed = self.list_containers(Some(&filter)).await?;
        let ours = listed.iter().filter(|one| label::of(&one["Labels"], label::ADOPTED).is_none());
        let ours = ours.filter_map(|one| label::of(&one["Labels"], label::SANDBOX)?.parse().ok());
        let mut ids: Vec<SandboxId> = ours.collect();
        ids.sort();
        ids.dedup();
        Ok(ids)
    }

    pub(super) async fn destroy(&self, id: SandboxId) -> DriverResult<()> {
        let data = self.data()?;
        for listed in self.candidates(id).await? {
            let labels = &listed["Labels"];
            let ours = label::of(labels, label::SANDBOX) == Some(id.to_string().as_str())
                && label::of(labels, label::DATA) == Some(data.0.as_str());
            let is_next = name_of(&listed).starts_with(NEXT);
            if !ours || label::of(labels, label::ADOPTED).is_some() && !is_next {
                return Err(DriverError::Foreign { what: name_of(&listed).to_owned() });
            }
        }
        for listed in self.candidates(id).await? {
            let Some(container) = listed["Id"].as_str() else { continue };
            self.thaw(container).await?;
            self.remove_container(container, true).await?;
            self.drop_note(PAUSES, container)?;
            let nameless = label::of(&listed["Labels"], label::NAMELESS).unwrap_or_default();
            let nameless = nameless.split(',').filter(|name| !name.is_empty()).map(str::to_owned);
            self.remove_unused(&nameless.collect::<Vec<_>>()).await?;
        }
        self.forget_rollback(id)?;
        self.remove_volumes(id).await
    }

    pub(super) async fn switch(
        &self,
        container: &Container,
        verb: &str,
        pairs: &[(&str, &str)],
    ) -> HttpResult<()> {
        let path = format!("/containers/{}/{verb}{}", container.id(), query(pairs));
        let request = Request::new("POST", path).patience(Some(LONG));
        self.engine.send(request).await.map(drop)
    }

    pub(super) async fn stop(&self, id: SandboxId) -> DriverResult<()> {
        let container = self.container(id).await?;
        self.thaw(container.id()).await?;
        self.stop_container(&container).await?;
        self.drop_note(PAUSES, container.id())
    }

    pub(super) async fn stop_container(&self, container: &Container) -> DriverResult<()> {
        let stop = || self.switch(container, "stop", &[("t", GRACE)]);
        let mut stopped = stop().await;
        // Podman stops nothing that is paused.
        if stopped.as_ref().is_err_and(|err| err.status() == Some(500))
            && self.engine.is_podman().await.is_ok_and(|it| it)
        {
            self.unpause(container).await?;
            stopped = stop().await;
        }
        super::engine::done(stopped).map_err(failed("stop a container"))
    }

    pub(super) async fn start(&self, id: SandboxId) -> DriverResult<()> {
        let container = self.container(id).await?;
        match container.state() {
            SandboxState::Running => Ok(()),
            SandboxState::Paused => {
                Err(DriverError::NotRunning { id, state: SandboxState::Paused })
            }
            SandboxState::Stopped => {
                let started = self.start_container(container.id()).await;
                started.map_err(failed("start a container"))
            }
        }
    }

    pub(super) async fn pause(&self, id: SandboxId) -> DriverResult<()> {
        let container = self.container(id).await?;
        self.thaw(container.id()).await?;
        match container.state() {
            // A pause of ours that nobody ended becomes theirs.
            SandboxState::Paused => self.drop_note(PAUSES, container.id()),
            SandboxState::Stopped => {
                Err(DriverError::NotRunning { id, state: SandboxState::Stopped })
            }
            SandboxState::Running => {
                self.switch(&container, "pause", &[]).await.map_err(failed("pause a container"))
            }
        }
    }

    pub(super) async fn resume(&self, id: SandboxId) -> DriverResult<()> {
        let container = self.container(id).await?;
        match container.state() {
            SandboxState::Running => self.thaw(container.id()).await,
            SandboxState::Stopped => {
                Err(DriverError::NotRunning { id, state: SandboxState::Stopped })
            }
            SandboxState::Paused => {
                self.unpause(&container).await?;
                self.drop_note(PAUSES, container.id())
            }
        }
    }

    pub(super) async fn settle(&self, id: SandboxId) -> DriverResult<()> {
        self.settle_rollback(id).await?;
        match self.find(id).await? {
            Some(container) => self.let_go(&container).await,
            None => Ok(()),
        }
    }

    /// By a process inside that waits: nobody else may be there when the time is over.
    pub(super) async fn end_in(
        self: &Arc<Self>,
        id: SandboxId,
        time: Duration,
    ) -> DriverResult<()> {
        let container = self.container(id).await?;
        if container.label(label::IDLE).is_none() || container.state() != SandboxState::Running {
            return Ok(());
        }
        let script = format!("sleep {}; kill -TERM 1", time.as_secs_f64());
        let mut command = Command::new(["/bin/sh", "-c"]);
        command.argv.push(script.into());
        self.exec(id, &command).await.map(drop)
    }

    pub(super) async fn usage(&self, id: SandboxId) -> DriverResult<SandboxUsage> {
        let container = self.container(id).await?;
        let path = format!("/containers/{}/json?size=1", container.id());
        let sized = self.engine.get(path).await.map_err(failed("look at a container"))?;
        let mut usage =
            SandboxUsage { disk_bytes: sized["SizeRw"].as_u64(), ..SandboxUsage::default() };
        if container.state() != SandboxState::Stopped {
            let path = format!("/containers/{}/stats?stream=0&one-shot=1", container.id());
            let stats = self.engine.get(path).await.map_err(failed("count what it uses"))?;
            usage.memory_bytes = stats["memory_stats"]["usage"].as_u64();
            usage.processes = stats["pids_stats"]["current"].as_u64();
            let nanoseconds = stats["cpu_stats"]["cpu_usage"]["total_usage"].as_u64();
            usage.cpu_ms = nanoseconds.map(|nanoseconds| nanoseconds / 1_000_000);
        }
        Ok(usage)
    }
}

fn has_no_shell(err: &DriverError) -> bool {
    let DriverError::Failed { source, .. } = err else { return false };
    let said = source.to_string();
    said.contains("/bin/sh") && (said.contains("no such file") || said.contains("not found"))
}

/// What somebody else's container amounts to.
pub(super) fn spec_of(container: &Container) -> DriverResult<SandboxSpec> {
    let config = container.config();
    let image = config["Image"].as_str().unwrap_or_default();
    let template = image.parse().map_err(|err: forkpoint_core::Error| DriverError::Invalid {
        driver: DRIVER,
        reason: err.to_string(),
    })?;
    let mut spec = SandboxSpec::new(template);
    let text = |key: &str| config[key].as_str().filter(|text| !text.is_empty());
    spec.workdir = text("WorkingDir").and_then(|path| SandboxPath::new(path).ok());
    spec.user = text("User").map(str::to_owned);
    let env = config["Env"].as_array().into_iter().flatten().filter_map(Value::as_str);
    spec.env = env
        .filter_map(|entry| entry.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    let host = container.host_config();
    spec.network = match host["NetworkMode"].as_str() {
        Some("none") => Network::None,
        _ => Network::Host,
    };
    let number = |key: &str| host[key].as_u64().filter(|number| *number > 0);
    let quota =
        number("CpuQuota").map(|quota| quota * 1000 / number("CpuPeriod").unwrap_or(100_000));
    let cpus = number("NanoCpus").map(|nano| nano / 1_000_000).or(quota);
    spec.resources = Resources {
        memory_bytes: number("Memory"),
        cpu_millis: cpus.and_then(|millis| u32::try_from(millis).ok()).filter(|millis| *millis > 0),
        pids: number("PidsLimit").and_then(|pids| u32::try_from(pids).ok()),
    };
    Ok(spec)
}
