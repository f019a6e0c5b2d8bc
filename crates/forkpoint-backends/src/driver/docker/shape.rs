//! What a container is made with: from a spec, or from what another was.
//!
//! Everything that `inspect` told goes back as it came, but for what must differ: labels, names that
//! nobody chose, addresses and volumes of a copy.

use std::collections::BTreeMap;

use forkpoint_core::{
    driver::DriverResult,
    spec::{Network, Publish, SandboxSpec},
};
use serde_json::{Map, Value, json};

use super::{container::Container, engine::invalid, label};

/// The first process of a sandbox that runs nothing of its own: it waits, and reaps.
const WAIT: &str = "trap 'exit 0' TERM INT; while :; do sleep 2147483 & wait $!; done";

/// What the engine is asked to create, and the networks that it then joins besides the first.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shape {
    pub(super) body: Value,
    pub(super) networks: Vec<(String, Value)>,
}

/// Whether another container goes on beside this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Copy,
    InPlace,
}

/// For a new sandbox. `idle` if its first process shall be ours.
pub(super) fn fresh(spec: &SandboxSpec, idle: bool) -> DriverResult<Shape> {
    if !spec.workspaces.is_empty() {
        return invalid("it has no workspaces: use a volume or a bind mount, or driver `local`");
    }
    let mode = match spec.network {
        _ if !spec.attachments.publish.is_empty() => "bridge",
        Network::None => "none",
        Network::Host => "host",
    };
    let mut body = json!({
        "Image": spec.template.as_str(),
        "Labels": {},
        "HostConfig": { "NetworkMode": mode },
    });
    if idle {
        body["Entrypoint"] = json!(["/bin/sh", "-c", WAIT]);
        body["Cmd"] = json!([]);
        body["Labels"][label::IDLE] = json!("true");
    }
    let env: Vec<String> = spec.env.iter().map(|(key, value)| format!("{key}={value}")).collect();
    body["Env"] = json!(env);
    let mut shape = Shape { body, networks: Vec::new() };
    shape.apply(spec);
    Ok(shape)
}

/// For a container like another. Volumes are the caller's business.
pub(super) fn like(from: &Container, spec: &SandboxSpec, purpose: Purpose) -> Shape {
    let mut body = from.config().clone();
    body["HostConfig"] = from.host_config().clone();
    body["HostConfig"]["ContainerIDFile"] = json!("");
    body["HostConfig"]["VolumesFrom"] = Value::Null;
    keep_labels_of_others(&mut body["Labels"]);
    let hostname = from.config()["Hostname"].as_str().unwrap_or_default().to_owned();
    match (from.has_own_hostname(), purpose) {
        (true, Purpose::Copy) => remove(&mut body, "Hostname"),
        (true, Purpose::InPlace) => body["Labels"][label::HOSTNAME] = json!(hostname),
        (false, _) => {}
    }
    if purpose == Purpose::Copy {
        remove(&mut body, "MacAddress");
    }
    let mut shape = Shape { body, networks: Vec::new() };
    shape.set_networks(from, spec.attachments.networks);
    shape.set_env(&spec.env);
    shape.apply(spec);
    shape
}

fn keep_labels_of_others(labels: &mut Value) {
    let others = labels.as_object().into_iter().flatten();
    let keeps = |key: &str| !key.starts_with("forkpoint.") || key == label::IDLE;
    let kept: Map<String, Value> = others
        .filter(|(key, _)| keeps(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    *labels = Value::Object(kept);
}

fn remove(value: &mut Value, key: &str) {
    if let Some(map) = value.as_object_mut() {
        map.remove(key);
    }
}

impl Shape {
    pub(super) fn label(&mut self, key: &str, value: &str) {
        self.body["Labels"][key] = json!(value);
    }

    fn host(&mut self) -> &mut Value {
        &mut self.body["HostConfig"]
    }

    /// What a spec asks for itself.
    fn apply(&mut self, spec: &SandboxSpec) {
        if let Some(workdir) = &spec.workdir {
            self.body["WorkingDir"] = json!(workdir.to_string());
        }
        if let Some(user) = &spec.user {
            self.body["User"] = json!(user);
        }
        let resources = spec.resources;
        if let Some(bytes) = resources.memory_bytes {
            let host = self.host();
            // More memory than memory with swap is refused.
            if host["MemorySwap"]
                .as_i64()
                .is_some_and(|swap| swap > 0 && swap < bytes.cast_signed())
            {
                remove(host, "MemorySwap");
            }
            host["Memory"] = json!(bytes);
        }
        if let Some(millis) = resources.cpu_millis {
            let nano = u64::from(millis) * 1_000_000;
            let host = self.host();
            // An engine takes one way of saying it.
            let quota = host["CpuQuota"].as_i64().filter(|&quota| quota > 0);
            let period = host["CpuPeriod"].as_i64().filter(|&period| period > 0).unwrap_or(100_000);
            let same = quota.is_some_and(|quota| quota * 1000 / period == i64::from(millis));
            if !same {
                remove(host, "CpuQuota");
                remove(host, "CpuPeriod");
                host["NanoCpus"] = json!(nano);
            }
        }
        if let Some(pids) = resources.pids {
            self.host()["PidsLimit"] = json!(pids);
        }
        if !spec.attachments.publish.is_empty() {
            self.publish(&spec.attachments.publish);
        }
    }

    fn set_env(&mut self, wanted: &BTreeMap<String, String>) {
        let old = self.body["Env"].as_array().cloned().unwrap_or_default();
        let mut left = wanted.clone();
        let mut env = Vec::new();
        for entry in old.iter().filter_map(Value::as_str) {
            let key = entry.split('=').next().unwrap_or_default();
            match left.remove(key) {
                Some(value) => env.push(format!("{key}={value}")),
                None => env.push(entry.to_owned()),
            }
        }
        env.extend(left.iter().map(|(key, value)| format!("{key}={value}")));
        self.body["Env"] = json!(env);
    }

    fn publish(&mut self, ports: &[Publish]) {
        let mut bindings = Map::new();
        for one in ports {
            let key = format!("{}/{}", one.port, one.protocol);
            if !self.body["ExposedPorts"].is_object() {
                self.body["ExposedPorts"] = json!({});
            }
            self.body["ExposedPorts"][key.as_str()] = json!({});
            let ip = one.host_ip.map(|ip| ip.to_string()).unwrap_or_default();
            let port = one.host_port.map(|port| port.to_string()).unwrap_or_default();
            let list = bindings.entry(key).or_insert_with(|| json!([]));
            if let Some(list) = list.as_array_mut() {
                list.push(json!({ "HostIp": ip, "HostPort": port }));
            }
        }
        self.host()["PortBindings"] = Value::Object(bindings);
    }

    fn set_networks(&mut self, from: &Container, preserve: bool) {
        let mode = from.host_config()["NetworkMode"].as_str().unwrap_or_default().to_owned();
        if !preserve {
            self.host()["NetworkMode"] = json!("default");
            return;
        }
        if mode.starts_with("container:") {
            // Its names and ports are the other's.
            for key in ["Hostname", "Domainname", "ExposedPorts", "MacAddress"] {
                remove(&mut self.body, key);
            }
            self.host()["PortBindings"] = json!({});
            return;
        }
        if matches!(mode.as_str(), "host" | "none") {
            return;
        }
        let first = first_network(from, &mode);
        for (name, told) in from.networks() {
            let endpoint = endpoint(told, from.id());
            if Some(name) == first.as_ref() {
                self.body["NetworkingConfig"] = json!({ "EndpointsConfig": { name: endpoint } });
            } else {
                self.networks.push((name.clone(), endpoint));
            }
        }
    }

    /// Every network that it is to join, with how.
    pub(super) fn endpoints(&self) -> Vec<(String, Value)> {
        let first = self.body["NetworkingConfig"]["EndpointsConfig"].as_object();
        let first = first.into_iter().flatten().map(|(name, value)| (name.clone(), value.clone()));
        first.chain(self.networks.iter().cloned()).collect()
    }

    /// Lets the engine choose the address in a network.
    pub(super) fn forget_address(&mut self, network: &str) {
        let first = &mut self.body["NetworkingConfig"]["EndpointsConfig"];
        if first[network].is_object() {
            first[network]["IPAMConfig"] = Value::Null;
        }
        for (name, endpoint) in &mut self.networks {
            if name == network {
                endpoint["IPAMConfig"] = Value::Null;
            }
        }
    }

    /// Ports of the host that it asks for by number: the container's own port, address, number.
    pub(super) fn host_ports(&self) -> Vec<(String, String, u16)> {
        let bindings = self.body["HostConfig"]["PortBindings"].as_object().into_iter().flatten();
        bindings
            .flat_map(|(key, list)| {
                list.as_array().into_iter().flatten().map(move |one| (key, one))
            })
            .filter_map(|(key, one)| {
                let port = one["HostPort"].as_str()?.parse().ok().filter(|&port| port > 0)?;
                Some((key.clone(), one["HostIp"].as_str().unwrap_or_default().to_owned(), port))
            })
            .collect()
    }

    /// Lets the engine choose, where `taken` says so.
    pub(super) fn free_ports(&mut self, taken: impl Fn(&str, &str, u16) -> bool) {
        let bindings = self.host()["PortBindings"].as_object_mut().into_iter().flatten();
        for (key, list) in bindings {
            for one in list.as_array_mut().into_iter().flatten() {
                let ip = one["HostIp"].as_str().unwrap_or_default().to_owned();
                let port = one["HostPort"].as_str().and_then(|port| port.parse().ok()).unwrap_or(0);
                if port > 0 && taken(key, &ip, port) {
                    one["HostPort"] = json!("");
                }
            }
        }
    }

    /// Asks for the ports that `from` has now, where it had let the engine choose.
    pub(super) fn keep_ports(&mut self, from: &Container) {
        let now = from.0["NetworkSettings"]["Ports"].clone();
        let bindings = self.host()["PortBindings"].as_object_mut().into_iter().flatten();
        for (key, list) in bindings {
            for (index, one) in list.as_array_mut().into_iter().flatten().enumerate() {
                let chosen =
                    one["HostPort"].as_str().is_none_or(|port| port.is_empty() || port == "0");
                if let Some(port) = now[key.as_str()][index]["HostPort"].as_str().filter(|_| chosen)
                {
                    one["HostPort"] = json!(port);
                }
            }
        }
    }
}

impl Shape {
    /// Puts a volume at places where the source had another, or none there.
    pub(super) fn mount(&mut self, places: &[String], volume: Option<&str>) {
        for place in places {
            let mode = self.unmount(place);
            match volume {
                Some(volume) => self.bind(volume, place, mode.as_deref()),
                None => remove(&mut self.body["Volumes"], place),
            }
        }
    }

    /// Whether a volume is mounted anywhere.
    pub(super) fn has_volume(&self, name: &str) -> bool {
        let binds = self.body["HostConfig"]["Binds"].as_array().into_iter().flatten();
        binds.filter_map(Value::as_str).any(|bind| bind.split(':').next() == Some(name))
    }

    /// An engine fills a volume that holds nothing from the image, unless it is told not to.
    pub(super) fn keep_empty(&mut self, places: &[String]) {
        let Some(binds) = self.host()["Binds"].as_array_mut() else { return };
        for bind in binds {
            let text = bind.as_str().unwrap_or_default();
            let mut parts = text.split(':').skip(1);
            let is_one = parts.next().is_some_and(|at| places.iter().any(|place| place == at));
            match parts.next() {
                _ if !is_one => {}
                Some(mode) if mode.split(',').any(|word| word == "nocopy") => {}
                Some(_) => *bind = json!(format!("{text},nocopy")),
                None => *bind = json!(format!("{text}:nocopy")),
            }
        }
    }

    /// The mode that it was mounted with, if it had one.
    fn unmount(&mut self, place: &str) -> Option<String> {
        let mut mode = None;
        if let Some(binds) = self.host()["Binds"].as_array_mut() {
            binds.retain(|bind| {
                let mut parts = bind.as_str().unwrap_or_default().split(':');
                let is_it = parts.nth(1) == Some(place);
                if is_it {
                    mode = parts.next().map(str::to_owned);
                }
                !is_it
            });
        }
        if let Some(mounts) = self.host()["Mounts"].as_array_mut() {
            mounts.retain(|mount| {
                let is_it = mount["Type"] == "volume" && mount["Target"] == place;
                if is_it && mount["ReadOnly"] == true {
                    mode = Some("ro".to_owned());
                }
                !is_it
            });
        }
        mode
    }

    fn bind(&mut self, volume: &str, place: &str, mode: Option<&str>) {
        let mode = mode.map(|mode| format!(":{mode}")).unwrap_or_default();
        let bind = json!(format!("{volume}:{place}{mode}"));
        match self.host()["Binds"].as_array_mut() {
            Some(binds) => binds.push(bind),
            None => self.host()["Binds"] = json!([bind]),
        }
    }
}

fn first_network(from: &Container, mode: &str) -> Option<String> {
    let wanted = if mode == "default" { "bridge" } else { mode };
    let by_name = from.networks().find(|(name, _)| *name == wanted);
    let by_id = || {
        from.networks().find(|(_, told)| {
            told["NetworkID"].as_str().is_some_and(|id| !id.is_empty() && id.starts_with(wanted))
        })
    };
    by_name.or_else(by_id).map(|(name, _)| name.clone())
}

/// What was asked for, without what the engine gave.
pub(super) fn endpoint(told: &Value, container: &str) -> Value {
    let aliases = told["Aliases"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let aliases: Vec<&str> =
        aliases.filter(|alias| !(alias.len() >= 12 && container.starts_with(alias))).collect();
    let mut endpoint = json!({
        "IPAMConfig": told["IPAMConfig"],
        "Links": told["Links"],
        "DriverOpts": told["DriverOpts"],
    });
    if !aliases.is_empty() {
        endpoint["Aliases"] = json!(aliases);
    }
    endpoint
}

#[cfg(test)]
mod tests;
