//! Images that others made as snapshots of a container.
//!
//! Theirs stays as it is. Ours is another image of the same layers, which costs nothing, and outlives
//! theirs. What they wrote down beside it says how the container was made; what they left out is taken
//! from the container, if it is still there.

use forkpoint_core::{
    driver::{
        Artifact, Claimed, DriverError, DriverResult, NativeState, Piece, PieceName, SnapshotKind,
    },
    id::{SandboxId, SnapshotId},
};
use serde_json::{Map, Value, json};

use super::{
    DRIVER,
    container::Container,
    host::Host,
    image::Marked,
    kept::volumes_of,
    label,
    layered::layers_of,
    life::spec_of,
    seal::{Data, VERSION},
};

impl Host {
    pub(super) async fn claim(
        &self,
        snapshot: SnapshotId,
        what: &NativeState,
    ) -> DriverResult<Claimed> {
        let missing = || DriverError::NativeMissing { driver: DRIVER, name: what.name.clone() };
        let theirs = match is_image(&what.name) {
            true => self.inspect_image(&what.name).await?.ok_or_else(missing)?,
            false => return Err(missing()),
        };
        let alive = match &what.of {
            Some(of) => self.inspect(of).await?.filter(|container| container.id() == of),
            None => None,
        };
        let sandbox = label::adopted_id(what.of.as_deref().unwrap_or(&what.name));
        let container = Container(inspected(what, &theirs, alive.as_ref()));
        let spec = spec_of(&container)?;
        let origin = layers_of(&theirs);
        let marked = self.claim_marks(snapshot, sandbox, origin)?;
        let image = self.relabel(&theirs, &marked).await?;
        if alive.is_none() {
            self.tell_binds(sandbox, &container);
        }
        let volumes = volumes_of(&container);
        let data = Data { volumes, ..Data::of_image(image, origin, container) };
        let artifact = self.claimed(snapshot, &data, theirs["Size"].as_u64().unwrap_or(0))?;
        Ok(Claimed { artifact, sandbox, spec })
    }

    fn tell_binds(&self, sandbox: SandboxId, container: &Container) {
        for mount in container.mounts().iter().filter(|mount| mount["Type"] == "bind") {
            let text = |key: &str| mount[key].as_str().unwrap_or_default();
            let (source, place) = (text("Source"), text("Destination"));
            self.notice(sandbox, format!("`{place}` was `{source}` of the host, and is left out"));
        }
    }

    fn claim_marks(
        &self,
        snapshot: SnapshotId,
        sandbox: SandboxId,
        origin: usize,
    ) -> DriverResult<Marked> {
        let labels = vec![
            (label::DATA, self.data()?.0.clone()),
            (label::SNAPSHOT, snapshot.to_string()),
            (label::OF, sandbox.to_string()),
            (label::ORIGIN, origin.to_string()),
            (label::SANDBOX, String::new()),
            (label::ADOPTED, String::new()),
            (label::HOSTNAME, String::new()),
        ];
        Ok(Marked { snapshot, sequence: 0, labels })
    }

    /// All of it is shared with theirs: of its own it has nothing.
    fn claimed(&self, snapshot: SnapshotId, data: &Data, size: u64) -> DriverResult<Artifact> {
        let damaged =
            |err: serde_json::Error| DriverError::Damaged { snapshot, reason: err.to_string() };
        let name = PieceName(label::piece(self.data()?, snapshot));
        Ok(Artifact {
            snapshot,
            kind: SnapshotKind::Files,
            version: VERSION,
            data: serde_json::to_value(data).map_err(damaged)?,
            pieces: vec![Piece { name, over: None, bytes: 0 }],
            own_bytes: 0,
            total_bytes: size,
            file_count: 0,
            counted: true,
            durable: false,
        })
    }
}

/// Whatever somebody wrote there becomes part of a path.
fn is_image(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte);
    !name.is_empty() && name.bytes().all(good) && !name.contains("..") && !name.starts_with('/')
}

/// As `inspect` would have told of the container.
fn inspected(what: &NativeState, image: &Value, alive: Option<&Container>) -> Value {
    let kept = &what.told["agent_metadata"];
    let object = |value: &Value| value.as_object().filter(|map| !map.is_empty()).is_some();
    let config = match (&kept["original_config"], alive) {
        (config, _) if object(config) => config.clone(),
        (_, Some(alive)) => alive.config().clone(),
        (_, None) => image["Config"].clone(),
    };
    let mounts = match (&kept["original_mounts"], alive) {
        (mounts @ Value::Array(_), _) => mounts.clone(),
        (_, Some(alive)) => alive.0["Mounts"].clone(),
        _ => json!([]),
    };
    let network = match (&kept["original_network_settings"], alive) {
        (network, _) if object(network) => network.clone(),
        (_, Some(alive)) => alive.0["NetworkSettings"].clone(),
        _ => json!({}),
    };
    let host = match alive {
        Some(alive) => alive.host_config().clone(),
        None => host_config(&network),
    };
    let name = what.told["container_name"].as_str().unwrap_or_default().trim_start_matches('/');
    json!({
        "Id": what.of, "Name": format!("/{name}"), "Image": image["Id"], "Config": config,
        "HostConfig": host, "Mounts": mounts, "NetworkSettings": network,
        "State": { "Status": "exited" },
    })
}

/// As far as it follows from what was written down. Directories of the host do not: whoever could
/// write a document would choose what a copy can reach.
fn host_config(network: &Value) -> Value {
    let networks = network["Networks"].as_object();
    let first = networks.and_then(|networks| networks.keys().next().cloned());
    let mut host = json!({ "PortBindings": ports(&network["Ports"]) });
    if let Some(first) = first {
        host["NetworkMode"] = json!(first);
    }
    host
}

fn ports(told: &Value) -> Value {
    let bound = told.as_object().into_iter().flatten().filter(|(_, list)| list.is_array());
    Value::Object(bound.map(|(key, list)| (key.clone(), list.clone())).collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_image_is_never_asked_for() {
        for good in ["sha256:0123ab", "cua-snapshot/web:manual-1", "a@sha256:00", "host:5000/a_b"] {
            assert!(is_image(good), "{good}");
        }
        for bad in ["", "a b", "x?force=1", "../containers/json", "/x", "a#b", "a%2e"] {
            assert!(!is_image(bad), "{bad}");
        }
    }

    #[test]
    fn a_container_is_made_of_what_was_written_down() {
        let told = json!({ "container_name": "webapp", "agent_metadata": {
            "original_config": { "Image": "nginx", "Env": ["A=1"] },
            "original_mounts": [
                { "Type": "bind", "Source": "/srv", "Destination": "/data", "RW": false },
                { "Type": "volume", "Name": "db", "Destination": "/db", "RW": true },
                { "Type": "tmpfs", "Destination": "/tmp" }, 7 ],
            "original_network_settings": { "Networks": { "front": {} },
                "Ports": { "80/tcp": [{ "HostIp": "", "HostPort": "8080" }], "81/tcp": null } } } });
        let what = NativeState { name: "sha256:0".into(), of: Some("c0ffee".into()), told };
        let made = inspected(&what, &json!({ "Id": "sha256:0" }), None);
        assert_eq!(made["Name"], "/webapp");
        assert_eq!(made["HostConfig"]["Binds"], Value::Null, "no directory of the host");
        assert_eq!(made["HostConfig"]["NetworkMode"], "front");
        let ports = json!({ "80/tcp": [{ "HostIp": "", "HostPort": "8080" }] });
        assert_eq!(made["HostConfig"]["PortBindings"], ports);
        assert_eq!(volumes_of(&Container(made)).len(), 1);
        let odd = NativeState { name: "x".into(), of: None, told: json!([1, "x"]) };
        let made = inspected(&odd, &json!({ "Config": { "Image": "busybox" } }), None);
        assert_eq!(made["Config"]["Image"], "busybox");
    }
}
