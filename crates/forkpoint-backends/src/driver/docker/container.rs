//! Containers: what an engine tells of one, and which of them is a sandbox.
//!
//! Of one sandbox there are several containers only while it is rolled back. The one that will be has
//! a name that begins with [`NEXT`], the one that was, with [`PREVIOUS`]; names decide which of them
//! the sandbox is.

use std::path::PathBuf;

use forkpoint_core::{
    driver::{DriverError, DriverResult, SandboxState},
    id::{SandboxId, SnapshotId},
};
use serde_json::Value;

use super::{
    DRIVER,
    engine::{escape, failed, query},
    host::Host,
    http::Request,
    label,
};

pub(super) const NEXT: &str = "forkpoint-next-";
pub(super) const PREVIOUS: &str = "forkpoint-previous-";

/// What `inspect` says, as it came.
#[derive(Clone, Debug)]
pub(super) struct Container(pub(super) Value);

impl Container {
    pub(super) fn id(&self) -> &str {
        self.0["Id"].as_str().unwrap_or_default()
    }

    /// Without the slash.
    pub(super) fn name(&self) -> &str {
        self.0["Name"].as_str().unwrap_or_default().trim_start_matches('/')
    }

    /// The id of its image.
    pub(super) fn image(&self) -> &str {
        self.0["Image"].as_str().unwrap_or_default()
    }

    pub(super) fn config(&self) -> &Value {
        &self.0["Config"]
    }

    pub(super) fn host_config(&self) -> &Value {
        &self.0["HostConfig"]
    }

    pub(super) fn label(&self, key: &str) -> Option<&str> {
        label::of(&self.config()["Labels"], key)
    }

    pub(super) fn state(&self) -> SandboxState {
        match self.0["State"]["Status"].as_str().unwrap_or_default() {
            "running" | "restarting" => SandboxState::Running,
            "paused" => SandboxState::Paused,
            _ => SandboxState::Stopped,
        }
    }

    pub(super) fn mounts(&self) -> &[Value] {
        self.0["Mounts"].as_array().map_or(&[], Vec::as_slice)
    }

    pub(super) fn networks(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.0["NetworkSettings"]["Networks"].as_object().into_iter().flatten()
    }

    /// What was restored or rolled back to.
    pub(super) fn base(&self) -> Option<SnapshotId> {
        self.label(label::SNAPSHOT)?.parse().ok()
    }

    /// Whether it was there before us, or stands in the place of one that was.
    pub(super) fn is_adopted(&self, data: &label::DataId) -> bool {
        !self.is_labelled(data) || self.label(label::ADOPTED).is_some()
    }

    pub(super) fn is_labelled(&self, data: &label::DataId) -> bool {
        self.label(label::SANDBOX).is_some() && self.label(label::DATA) == Some(data.0.as_str())
    }

    /// Not one that will be or was, in the course of a rollback.
    pub(super) fn has_its_name(&self) -> bool {
        is_a_name(self.name())
    }

    /// Nobody chose its host name.
    pub(super) fn has_own_hostname(&self) -> bool {
        let hostname = self.config()["Hostname"].as_str().unwrap_or_default();
        hostname.is_empty()
            || self.id().starts_with(hostname)
            || self.label(label::HOSTNAME) == Some(hostname)
    }

    pub(super) fn graph(&self) -> Graph {
        Graph::of(&self.0["GraphDriver"])
    }
}

/// Where an engine keeps the files of a container or an image, if it says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Graph {
    pub(super) upper: Option<PathBuf>,
    /// The top first, without what the engine itself puts between.
    pub(super) lowers: Vec<PathBuf>,
}

impl Graph {
    pub(super) fn of(value: &Value) -> Self {
        let overlay = value["Name"].as_str().is_some_and(|name| name.starts_with("overlay"));
        if !overlay {
            return Self::default();
        }
        let data = &value["Data"];
        let lowers = data["LowerDir"].as_str().unwrap_or_default().split(':');
        let lowers = lowers.filter(|path| !path.is_empty() && !path.ends_with("-init/diff"));
        Self {
            upper: data["UpperDir"].as_str().map(PathBuf::from),
            lowers: lowers.map(PathBuf::from).collect(),
        }
    }
}

impl Host {
    /// The container that a sandbox is now.
    pub(super) async fn find(&self, id: SandboxId) -> DriverResult<Option<Container>> {
        let Some(chosen) = choose(&self.candidates(id).await?) else { return Ok(None) };
        self.inspect(&chosen).await
    }

    pub(super) async fn container(&self, id: SandboxId) -> DriverResult<Container> {
        let found = self.find(id).await?;
        found.ok_or(DriverError::SandboxMissing { driver: DRIVER, id })
    }

    /// Every container that is this sandbox, was it or will be, as a list tells of it.
    pub(super) async fn candidates(&self, id: SandboxId) -> DriverResult<Vec<Value>> {
        let data = self.data()?;
        let filter = label::filter(&[(label::SANDBOX, &id.to_string()), (label::DATA, &data.0)]);
        let mut listed = self.list_containers(Some(&filter)).await?;
        let all_new = listed.iter().all(|one| name_of(one).starts_with(NEXT));
        if all_new {
            // One that we did not make has no label; its id says whose it is.
            let all = self.list_containers(None).await?.into_iter();
            let is_it =
                |one: &Value| one["Id"].as_str().is_some_and(|it| label::adopted_id(it) == id);
            listed.extend(all.filter(is_it));
        }
        Ok(listed)
    }

    pub(super) async fn list_containers(&self, filter: Option<&str>) -> DriverResult<Vec<Value>> {
        let mut pairs = vec![("all", "1")];
        pairs.extend(filter.map(|filter| ("filters", filter)));
        let path = format!("/containers/json{}", query(&pairs));
        let listed = self.engine.get(path).await.map_err(failed("list containers"))?;
        Ok(match listed {
            Value::Array(list) => list,
            _ => Vec::new(),
        })
    }

    /// By name, id or the beginning of an id.
    pub(super) async fn inspect(&self, name: &str) -> DriverResult<Option<Container>> {
        let path = format!("/containers/{}/json", escape(name));
        let found = self.engine.find(path).await.map_err(failed("look at a container"))?;
        Ok(found.map(Container))
    }

    pub(super) async fn inspect_image(&self, name: &str) -> DriverResult<Option<Value>> {
        // The slashes of a name stay: an engine takes them as part of it.
        let path = format!("/images/{name}/json");
        self.engine.find(path).await.map_err(failed("look at an image"))
    }

    pub(super) async fn remove_container(&self, id: &str, volumes: bool) -> DriverResult<()> {
        let volumes = if volumes { "1" } else { "0" };
        let path = format!("/containers/{id}{}", query(&[("force", "1"), ("v", volumes)]));
        let request = Request::new("DELETE", path).patience(Some(super::http::LONG));
        match self.engine.ask(request).await {
            Ok(_) => Ok(()),
            Err(err) if err.status() == Some(404) => Ok(()),
            // Somebody else is at it already.
            Err(err) if err.status() == Some(409) => self.await_gone(id).await,
            Err(err) => Err(failed("remove a container")(err)),
        }
    }

    async fn await_gone(&self, id: &str) -> DriverResult<()> {
        let path = format!("/containers/{id}/wait{}", query(&[("condition", "removed")]));
        let request = Request::new("POST", path).patience(Some(super::http::SOON));
        super::engine::done(self.engine.ask(request).await).map_err(failed("remove a container"))
    }
}

/// Not one that we give to a container in the course of a rollback.
pub(super) fn is_a_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with(NEXT) && !name.starts_with(PREVIOUS)
}

pub(super) fn name_of(listed: &Value) -> &str {
    let names = listed["Names"].as_array().into_iter().flatten();
    let mut names = names.filter_map(Value::as_str).map(|name| name.trim_start_matches('/'));
    // A link of the old kind shows as a name with a slash in it.
    names.find(|name| !name.contains('/')).unwrap_or_default()
}

/// The one that the sandbox is: never one that will be, and one that was only if there is no other.
fn choose(candidates: &[Value]) -> Option<String> {
    let rank = |one: &&Value| match name_of(one) {
        name if name.starts_with(NEXT) => 2,
        name if name.starts_with(PREVIOUS) => 1,
        _ => 0,
    };
    let best = candidates.iter().min_by_key(rank).filter(|one| rank(one) < 2)?;
    best["Id"].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_decide_which_container_a_sandbox_is() {
        let one = |id: &str, name: &str| json!({ "Id": id, "Names": [format!("/{name}")] });
        let (next, previous, web) =
            (one("n", "forkpoint-next-sbx1"), one("p", "forkpoint-previous-sbx1"), one("w", "web"));
        let chosen = |list: &[&Value]| choose(&list.iter().copied().cloned().collect::<Vec<_>>());
        assert_eq!(chosen(&[]), None);
        assert_eq!(chosen(&[&next]), None);
        assert_eq!(chosen(&[&next, &previous]).as_deref(), Some("p"));
        assert_eq!(chosen(&[&next, &web]).as_deref(), Some("w"));
        assert_eq!(chosen(&[&previous, &web]).as_deref(), Some("w"));
    }

    #[test]
    fn a_graph_is_without_what_the_engine_puts_between() {
        let told = json!({ "Name": "overlay2", "Data": {
            "LowerDir": "/d/x-init/diff:/d/b/diff:/d/a/diff", "UpperDir": "/d/x/diff" } });
        let graph = Graph::of(&told);
        assert_eq!(graph.upper, Some("/d/x/diff".into()));
        assert_eq!(graph.lowers, [PathBuf::from("/d/b/diff"), "/d/a/diff".into()]);
        assert_eq!(Graph::of(&json!({ "Name": "vfs", "Data": null })), Graph::default());
    }
}
