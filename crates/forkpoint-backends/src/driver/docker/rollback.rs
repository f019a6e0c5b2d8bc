//! A container goes back, under its own name.
//!
//! ```text
//!   note ─► make NEXT ─► stop ─► volumes ─► start NEXT ─► rename old to PREVIOUS ─► rename NEXT ─► remove
//!                                                                                      the moment
//! ```
//!
//! The old container stays until the new one has its name. Before that moment everything is undone, by
//! us or by whoever finds the note; after it, what is left is only to be cleared away. One that would be
//! gone when it stops (`--rm`) is not stopped: it stands still, outside of its networks, so that the
//! new one can have its addresses and ports.

use forkpoint_core::{
    driver::{Artifact, DriverResult, SandboxState},
    id::SandboxId,
    spec::SandboxSpec,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    container::{Container, NEXT, PREVIOUS, name_of},
    engine::{escape, failed, query},
    host::Host,
    http::Request,
    label,
    make::Making,
    seal::Data,
    shape::{self, Purpose, Shape},
};

const NOTES: &str = "rollbacks";

/// How things were.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    /// The container that was there, if there was one, and its name.
    old: Option<String>,
    name: String,
    was_running: bool,
    was_paused: bool,
    /// Volumes whose content is exchanged.
    #[serde(default)]
    volumes: Vec<String>,
    /// Volumes that were made for the new one.
    #[serde(default)]
    made: Vec<String>,
    /// Volumes of the old one that nobody named: they go with it, unless the new one has them.
    #[serde(default)]
    nameless: Vec<String>,
    /// The old one was not stopped, and these are the networks that it was in.
    #[serde(default)]
    aside: Option<Vec<(String, Value)>>,
}

/// Whether a container is better not stopped, because it would be gone. In the network of the host or of
/// another it would keep its ports.
pub(super) fn stands_aside(container: &Container) -> bool {
    let host = container.host_config();
    let mode = host["NetworkMode"].as_str().unwrap_or_default();
    host["AutoRemove"] == true
        && container.state() != SandboxState::Stopped
        && mode != "host"
        && !mode.starts_with("container:")
}

impl Host {
    pub(super) async fn rollback(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        to: &Artifact,
    ) -> DriverResult<()> {
        let data = Data::read(to)?;
        self.settle_rollback(id).await?;
        self.expect_image(to.snapshot, &data).await?;
        let old = self.find(id).await?;
        let mut note = self.note(id, spec, old.as_ref(), &data);
        self.write_down(id, &note)?;
        match self.replace(id, spec, to, &data, old.as_ref(), &mut note).await {
            Ok(container) => {
                self.settle_rollback(id).await?;
                self.write_edits(&container, &data).await
            }
            Err(err) => {
                // If this fails too, the note stays, and `status` tells where it stands.
                let undone = self.settle_rollback(id).await;
                undone.and(Err(err))
            }
        }
    }

    fn write_down(&self, id: SandboxId, note: &Note) -> DriverResult<()> {
        let text = serde_json::to_vec(note).unwrap_or_default();
        self.write_note(NOTES, &id.to_string(), &text)
    }

    fn note(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        old: Option<&Container>,
        data: &Data,
    ) -> Note {
        // Only the container that was sealed may come back under its name.
        let lost = || match self.is_of(id, data) {
            true => data.container().name().to_owned(),
            false => {
                let asked = spec.attachments.native_name.clone();
                asked.unwrap_or_else(|| format!("forkpoint-{id}"))
            }
        };
        Note {
            old: old.map(|old| old.id().to_owned()),
            name: old.map_or_else(lost, |old| old.name().to_owned()),
            was_running: old.is_some_and(|old| old.state() != SandboxState::Stopped),
            was_paused: old.is_some_and(|old| old.state() == SandboxState::Paused),
            volumes: Vec::new(),
            made: Vec::new(),
            nameless: old.map(nameless_of).unwrap_or_default(),
            aside: None,
        }
    }

    /// Whether a snapshot was taken of this sandbox itself.
    pub(super) fn is_of(&self, id: SandboxId, data: &Data) -> bool {
        let container = data.container();
        label::adopted_id(container.id()) == id
            || container.label(label::SANDBOX) == Some(id.to_string().as_str())
    }

    /// Up to the moment.
    async fn replace(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        to: &Artifact,
        data: &Data,
        old: Option<&Container>,
        note: &mut Note,
    ) -> DriverResult<String> {
        let mut shape = self.shape_of(id, spec, to, data, old)?;
        let adopted = match old {
            Some(old) => old.is_adopted(self.data()?),
            None => label::adopted_id(data.container().id()) == id,
        };
        if adopted {
            shape.label(label::ADOPTED, "true");
        }
        let missing = self.missing_volumes(id, data, old).await?;
        if !missing.is_empty() {
            note.made = missing;
            self.write_down(id, note)?;
        }
        let volumes = self.plan_volumes(id, data, old, &mut shape).await?;
        let nameless = note.nameless.iter().filter(|name| shape.has_volume(name));
        let nameless: Vec<&str> = nameless.map(String::as_str).collect();
        shape.label(label::NAMELESS, &nameless.join(","));
        let next = format!("{NEXT}{id}");
        let asked = shape.host_ports();
        let instead_of = old.map(Container::id);
        let mut making = Making {
            sandbox: id,
            name: &next,
            shape,
            instead_of,
            processes: data.processes(),
            sends: volumes.sends.clone(),
        };
        let container = self.prepare(&mut making).await?;
        match old {
            Some(old) if stands_aside(old) => self.set_aside(id, old, note).await?,
            Some(old) => self.stop_container(old).await?,
            None => {}
        }
        note.volumes = self.swap_names(&volumes.swaps).await?;
        self.write_down(id, note)?;
        self.exchange_volumes(&volumes.swaps).await?;
        let container = self.launch(&mut making, container).await?;
        self.fill_volatile(id, &container, data).await?;
        self.tell_ports(id, &asked, &container).await?;
        if let Some(old) = old
            && self.inspect(old.id()).await?.is_some()
        {
            self.rename(old.id(), &format!("{PREVIOUS}{id}")).await?;
        }
        self.rename(&container, &note.name).await?;
        Ok(container)
    }

    /// It stands still, and nothing that it had is in the way of another.
    async fn set_aside(&self, id: SandboxId, old: &Container, note: &mut Note) -> DriverResult<()> {
        let networks = old.networks().filter(|(name, _)| *name != "none");
        let networks: Vec<(String, Value)> =
            networks.map(|(name, told)| (name.clone(), shape::endpoint(told, old.id()))).collect();
        note.aside = Some(networks.clone());
        self.write_down(id, note)?;
        if old.state() == SandboxState::Running {
            self.hold_container(old).await?;
        }
        for (name, _) in networks {
            let path = format!("/networks/{}/disconnect", escape(&name));
            let left = self.engine.post(path, json!({ "Container": old.id() })).await;
            left.map_err(failed("leave a network"))?;
        }
        Ok(())
    }

    /// Back among the others.
    async fn bring_in(&self, now: &Container, networks: &[(String, Value)]) -> DriverResult<()> {
        for (name, endpoint) in networks {
            if now.networks().any(|(there, _)| there == name) {
                continue;
            }
            let path = format!("/networks/{}/connect", escape(name));
            let body = json!({ "Container": now.id(), "EndpointConfig": endpoint });
            self.engine.post(path, body).await.map_err(failed("join a network"))?;
        }
        Ok(())
    }

    /// What it was then, with who it is now.
    fn shape_of(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        to: &Artifact,
        data: &Data,
        old: Option<&Container>,
    ) -> DriverResult<Shape> {
        let mut like = data.container();
        if let Some(old) = old {
            take_identity(&mut like.0, &old.0);
        }
        let mut shape = shape::like(&like, spec, Purpose::InPlace);
        if let Some(old) = old {
            shape.keep_ports(old);
        }
        shape.body["Image"] = json!(label::tag(to.snapshot));
        self.sign(id, Some(to.snapshot), data.origin, &mut shape)?;
        Ok(shape)
    }

    async fn rename(&self, id: &str, name: &str) -> DriverResult<()> {
        let path = format!("/containers/{id}/rename{}", query(&[("name", name)]));
        match self.engine.ask(Request::new("POST", path)).await {
            Ok(_) => Ok(()),
            Err(err) if err.status() == Some(409) => {
                let told = self.inspect(id).await?;
                match told.is_some_and(|told| told.name() == name) {
                    true => Ok(()),
                    false => super::engine::invalid(format!(
                        "the name `{name}` was taken by another container meanwhile"
                    )),
                }
            }
            Err(err) => Err(failed("rename a container")(err)),
        }
    }

    /// Brings a rollback to an end, wherever it stands: back before the moment, forward after it.
    pub(super) async fn settle_rollback(&self, id: SandboxId) -> DriverResult<()> {
        let Some(text) = self.read_note(NOTES, &id.to_string())? else { return Ok(()) };
        let Ok(note) = serde_json::from_slice::<Note>(&text) else {
            return self.forget_rollback(id);
        };
        let candidates = self.candidates(id).await?;
        let next = candidates.iter().find(|one| name_of(one).starts_with(NEXT));
        let current = candidates
            .iter()
            .find(|one| !name_of(one).starts_with(NEXT) && !name_of(one).starts_with(PREVIOUS));
        let id_of = |one: &Value| one["Id"].as_str().unwrap_or_default().to_owned();
        let done = next.is_none() && current.is_some_and(|one| Some(id_of(one)) != note.old);
        match done {
            true => {
                self.settle_volumes(note.volumes.clone(), true).await?;
                self.remove_old(id, &note).await?;
                self.remove_unused(&note.nameless).await?;
            }
            false => {
                if let Some(next) = next {
                    self.remove_container(&id_of(next), true).await?;
                }
                self.settle_volumes(note.volumes.clone(), false).await?;
                self.remove_unused(&note.made).await?;
                self.bring_back(&note).await?;
            }
        }
        self.forget_rollback(id)
    }

    /// By its id: one that we did not make carries no label. It goes only under the name that we gave it.
    async fn remove_old(&self, id: SandboxId, note: &Note) -> DriverResult<()> {
        let Some(old) = &note.old else { return Ok(()) };
        match self.inspect(old).await? {
            Some(old) if old.name() == format!("{PREVIOUS}{id}") => {
                self.remove_container(old.id(), true).await
            }
            _ => Ok(()),
        }
    }

    /// The old one, as it was.
    async fn bring_back(&self, note: &Note) -> DriverResult<()> {
        let Some(old) = &note.old else { return Ok(()) };
        let Some(now) = self.inspect(old).await? else { return Ok(()) };
        if now.name() != note.name {
            self.rename(old, &note.name).await?;
        }
        if let Some(networks) = &note.aside
            && now.state() != SandboxState::Stopped
        {
            self.bring_in(&now, networks).await?;
            if now.state() == SandboxState::Paused && !note.was_paused {
                self.release_container(&now).await?;
            }
        }
        if note.was_running && now.state() == SandboxState::Stopped {
            self.start_container(old).await.map_err(failed("start a container"))?;
            if note.was_paused {
                let path = format!("/containers/{old}/pause");
                let paused = self.engine.ask(Request::new("POST", path)).await;
                paused.map_err(failed("pause a container"))?;
            }
        }
        Ok(())
    }

    pub(super) fn forget_rollback(&self, id: SandboxId) -> DriverResult<()> {
        self.drop_note(NOTES, &id.to_string())
    }
}

/// Volumes that the engine made for a container because nobody named one, or that such a one had before
/// it was rolled back: since then the container names them.
fn nameless_of(container: &Container) -> Vec<String> {
    let host = container.host_config();
    let binds = host["Binds"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let binds: Vec<&str> = binds.filter_map(|bind| bind.split(':').next()).collect();
    let mounts = host["Mounts"].as_array().into_iter().flatten();
    let mounts: Vec<&str> = mounts.filter_map(|mount| mount["Source"].as_str()).collect();
    let from_others = host["VolumesFrom"].as_array().is_some_and(|from| !from.is_empty());
    let carried = container.label(label::NAMELESS).unwrap_or_default();
    let carried: Vec<&str> = carried.split(',').collect();
    let volumes = container.mounts().iter().filter(|mount| mount["Type"] == "volume");
    let names = volumes.filter_map(|mount| mount["Name"].as_str());
    let is_nameless = |name: &&str| {
        carried.contains(name)
            // Another container's, which that one names or not.
            || !from_others && !binds.contains(name) && !mounts.contains(name)
    };
    names.filter(is_nameless).map(str::to_owned).collect()
}

/// Whoever it is now, it stays: its name, its place in networks, its ports.
fn take_identity(then: &mut Value, now: &Value) {
    for key in ["Id", "Name", "NetworkSettings"] {
        then[key] = now[key].clone();
    }
    for key in ["Hostname", "Domainname", "MacAddress", "ExposedPorts"] {
        match now["Config"].get(key) {
            Some(value) => then["Config"][key] = value.clone(),
            None => {
                if let Some(config) = then["Config"].as_object_mut() {
                    config.remove(key);
                }
            }
        }
    }
    for key in ["NetworkMode", "PortBindings", "PublishAllPorts", "Links"] {
        then["HostConfig"][key] = now["HostConfig"][key].clone();
    }
    let label = now["Config"]["Labels"][label::HOSTNAME].clone();
    if label.is_string() {
        if !then["Config"]["Labels"].is_object() {
            then["Config"]["Labels"] = json!({});
        }
        then["Config"]["Labels"][label::HOSTNAME] = label;
    }
}
