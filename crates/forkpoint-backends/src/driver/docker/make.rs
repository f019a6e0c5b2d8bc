//! Bringing a container up: created, joined to its networks, started.
//!
//! What is free on the engine is looked at before, and what was taken nevertheless shows when it
//! starts. An address or a port that another has is replaced by one that the engine chooses, and told.

use forkpoint_core::{
    driver::{DriverError, DriverResult},
    id::SandboxId,
};
use serde_json::{Value, json};

use super::{
    engine::{escape, failed, found, invalid, query},
    host::Host,
    http::{HttpError, HttpResult, LONG, Request},
    shape::Shape,
};
use crate::layer::LayerName;

/// How often a container is made again because a port turned out to be taken.
const TRIES: usize = 16;

/// A container to be made.
pub(super) struct Making<'a> {
    pub(super) sandbox: SandboxId,
    pub(super) name: &'a str,
    pub(super) shape: Shape,
    /// A container whose addresses and ports are as good as free.
    pub(super) instead_of: Option<&'a str>,
    /// What it goes on with, instead of its command.
    pub(super) processes: Option<LayerName>,
    /// What goes into volumes that only the engine can reach, by their place.
    pub(super) sends: Vec<(String, LayerName)>,
}

impl Host {
    /// Makes a container that does not run yet.
    pub(super) async fn create_container(&self, name: &str, shape: &Shape) -> DriverResult<String> {
        let path = format!("/containers/create{}", query(&[("name", name)]));
        let request = Request::new("POST", path).json(shape.body.clone()).patience(Some(LONG));
        let made = self.engine.ask(request).await.map_err(|err| refusal(err, name, shape))?;
        let id = made["Id"].as_str().unwrap_or_default().to_owned();
        for (network, endpoint) in &shape.networks {
            let path = format!("/networks/{}/connect", escape(network));
            let body = json!({ "Container": id, "EndpointConfig": endpoint });
            let joined = self.engine.post(path, body).await;
            if let Err(err) = joined {
                self.remove_container(&id, true).await?;
                return Err(failed("join a network")(err));
            }
        }
        Ok(id)
    }

    pub(super) async fn start_container(&self, id: &str) -> HttpResult<()> {
        let path = format!("/containers/{id}/start");
        let request = Request::new("POST", path).patience(Some(LONG));
        self.engine.send(request).await.map(drop)
    }

    /// Makes a container with what is free now, and does not start it.
    pub(super) async fn prepare(&self, making: &mut Making<'_>) -> DriverResult<String> {
        self.check_networks(&making.shape).await?;
        self.yield_addresses(making).await?;
        self.yield_ports(making).await?;
        let id = self.create_container(making.name, &making.shape).await?;
        for (place, layer) in &making.sends {
            self.send_volume(&id, place, layer).await?;
        }
        Ok(id)
    }

    /// Starts it. If a port is taken, it is made anew with another: the answer is the container that
    /// runs, and after an error there is none.
    pub(super) async fn launch(&self, making: &mut Making<'_>, id: String) -> DriverResult<String> {
        let mut id = id;
        for _ in 0..TRIES {
            let err = match self.start_making(making, &id).await? {
                Ok(()) => return Ok(id),
                Err(err) => err,
            };
            self.remove_container(&id, true).await?;
            let Some(port) = taken_port(&err) else { return Err(failed("start a container")(err)) };
            let before = making.shape.host_ports();
            making.shape.free_ports(|_, _, asked| port.is_none_or(|port| asked == port));
            if making.shape.host_ports() == before {
                return Err(failed("start a container")(err));
            }
            id = self.create_container(making.name, &making.shape).await?;
        }
        self.remove_container(&id, true).await?;
        invalid("one port after another turned out to be taken")
    }

    async fn start_making(&self, making: &Making<'_>, id: &str) -> DriverResult<HttpResult<()>> {
        let Some(layer) = &making.processes else { return Ok(self.start_container(id).await) };
        let laid = self.lay_processes(id, layer).await;
        if let Err(err) = laid {
            self.remove_container(id, true).await?;
            return Err(err);
        }
        let started = self.start_processes(id).await;
        if started.is_ok() {
            self.clear_processes(id).await?;
        }
        Ok(started)
    }

    /// Says which ports were given in the place of those that were asked for.
    pub(super) async fn tell_ports(
        &self,
        about: SandboxId,
        asked: &[(String, String, u16)],
        id: &str,
    ) -> DriverResult<()> {
        let Some(container) = self.inspect(id).await? else { return Ok(()) };
        let now = &container.0["NetworkSettings"]["Ports"];
        for (key, _, wanted) in asked {
            let given = now[key.as_str()].as_array().into_iter().flatten();
            // An address of the other kind may have got by chance what was asked for.
            let plain = |one: &&Value| !one["HostIp"].as_str().is_some_and(|ip| ip.contains(':'));
            let (first, others): (Vec<_>, Vec<_>) = given.partition(plain);
            let given = if first.is_empty() { others } else { first };
            let given = given.into_iter().filter_map(|one| one["HostPort"].as_str());
            let given: Vec<&str> = given.collect();
            if !given.is_empty() && !given.contains(&wanted.to_string().as_str()) {
                let text = format!(
                    "port {wanted} of the host is taken: {key} is published as {}",
                    given[0]
                );
                self.notice(about, text);
            }
        }
        Ok(())
    }

    async fn check_networks(&self, shape: &Shape) -> DriverResult<()> {
        for (name, _) in shape.endpoints() {
            let path = format!("/networks/{}", escape(&name));
            let there = self.engine.find(path).await.map_err(failed("look at a network"))?;
            if there.is_none() {
                return invalid(format!(
                    "network `{name}` is gone: `docker network create {name}` makes it again, and without the source's networks it is not needed"
                ));
            }
        }
        let mode = shape.body["HostConfig"]["NetworkMode"].as_str().unwrap_or_default();
        if let Some(other) = mode.strip_prefix("container:")
            && self.inspect(other).await?.is_none()
        {
            return invalid(format!(
                "it lives in the network of container `{other}`, which is gone: start that one again, or leave the source's networks out"
            ));
        }
        Ok(())
    }

    /// An address that somebody has, or has a right to, is not taken away from them.
    async fn yield_addresses(&self, making: &mut Making<'_>) -> DriverResult<()> {
        let chosen = |endpoint: &Value| {
            endpoint["IPAMConfig"]["IPv4Address"]
                .as_str()
                .filter(|ip| !ip.is_empty())
                .map(str::to_owned)
        };
        let endpoints = making.shape.endpoints();
        if !endpoints.iter().any(|(_, endpoint)| chosen(endpoint).is_some()) {
            return Ok(());
        }
        let others = self.list_containers(None).await?;
        let others: Vec<&Value> =
            others.iter().filter(|one| one["Id"].as_str() != making.instead_of).collect();
        for (network, endpoint) in endpoints {
            let Some(address) = chosen(&endpoint) else { continue };
            let has_it = |one: &&&Value| {
                let there = &one["NetworkSettings"]["Networks"][network.as_str()];
                there["IPAddress"] == address.as_str() || chosen(there).as_ref() == Some(&address)
            };
            if others.iter().find(has_it).is_some() {
                making.shape.forget_address(&network);
                let text = format!(
                    "address {address} of network `{network}` is taken: the engine chose another"
                );
                self.notice(making.sandbox, text);
            }
        }
        Ok(())
    }

    async fn yield_ports(&self, making: &mut Making<'_>) -> DriverResult<()> {
        if making.shape.host_ports().is_empty() {
            return Ok(());
        }
        let others = self.list_containers(None).await?;
        let others = others.iter().filter(|one| one["Id"].as_str() != making.instead_of);
        let used: Vec<(String, String, u64)> = others
            .flat_map(|one| one["Ports"].as_array().into_iter().flatten())
            .filter_map(|port| {
                let text = |key: &str| port[key].as_str().unwrap_or_default().to_owned();
                Some((text("IP"), text("Type"), port["PublicPort"].as_u64()?))
            })
            .collect();
        making.shape.free_ports(|key, ip, port| {
            let protocol = key.split('/').nth(1).unwrap_or("tcp");
            used.iter().any(|(used_ip, used_protocol, used_port)| {
                *used_port == u64::from(port) && used_protocol == protocol && overlap(used_ip, ip)
            })
        });
        Ok(())
    }

    /// Gets an image that is not here.
    pub(super) async fn pull(&self, image: &str) -> DriverResult<()> {
        let last = image.rsplit('/').next().unwrap_or_default();
        let tagged = last.contains(':') || last.contains('@');
        let name = if tagged { image.to_owned() } else { format!("{image}:latest") };
        let path = format!("/images/create{}", query(&[("fromImage", &name)]));
        let request = Request::new("POST", path).patience(Some(LONG));
        let missing = |reason: String| DriverError::Invalid {
            driver: super::DRIVER,
            reason: format!("there is no image `{image}` here, and it cannot be pulled: {reason}"),
        };
        let answer = match found(self.engine.send(request).await) {
            Ok(Some(answer)) => answer,
            Ok(None) => return Err(missing("no registry has it".to_owned())),
            Err(err @ HttpError::Refused { .. }) => return Err(missing(err.to_string())),
            Err(err) => return Err(failed("pull an image")(err)),
        };
        let told = answer.body.all().await.map_err(|err| missing(err.to_string()))?;
        match told_error(&told) {
            Some(reason) => Err(missing(reason)),
            None => Ok(()),
        }
    }
}

/// What went wrong, in an answer that reports as it goes: one document after another.
pub(super) fn told_error(told: &[u8]) -> Option<String> {
    let lines = serde_json::Deserializer::from_slice(told).into_iter::<Value>();
    lines.flatten().find_map(|line| line["error"].as_str().map(str::to_owned))
}

fn overlap(one: &str, other: &str) -> bool {
    let any = |ip: &str| matches!(ip, "" | "0.0.0.0" | "::");
    any(one) || any(other) || one == other
}

fn refusal(err: HttpError, name: &str, shape: &Shape) -> DriverError {
    let reason = match err.status() {
        Some(409) => format!("the name `{name}` is taken by another container: choose another one"),
        Some(404) => {
            let image = shape.body["Image"].as_str().unwrap_or_default();
            format!("there is no image `{image}`: {err}")
        }
        Some(400) => err.to_string(),
        _ => return failed("create a container")(err),
    };
    DriverError::Invalid { driver: super::DRIVER, reason }
}

/// Whether it was not started for want of a port, and which one if that can be told.
fn taken_port(err: &HttpError) -> Option<Option<u16>> {
    let HttpError::Refused { message, .. } = err else { return None };
    let says = ["port is already allocated", "address already in use", "ports are not available"];
    says.iter().any(|text| message.contains(text)).then(|| port_in(message))
}

/// As in `Bind for 0.0.0.0:8080 failed` and `listen tcp4 0.0.0.0:8080: bind`.
fn port_in(message: &str) -> Option<u16> {
    let after = ["Bind for ", "listen "].iter().find_map(|text| message.split(text).nth(1))?;
    let words = after.split([' ', ',']);
    words.filter_map(|word| word.trim_end_matches(':').rsplit(':').next()?.parse().ok()).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_found_in_what_is_said() {
        for (message, port) in [
            (
                "driver failed programming external connectivity on endpoint x (0f): Bind for 0.0.0.0:8080 failed: port is already allocated",
                8080,
            ),
            (
                "Error starting userland proxy: listen tcp4 127.0.0.1:81: bind: address already in use",
                81,
            ),
            ("failed to bind host port: listen tcp [::]:9: bind: address already in use", 9),
        ] {
            let err = HttpError::Refused { status: 500, message: message.to_owned() };
            assert_eq!(taken_port(&err), Some(Some(port)), "{message}");
        }
        let other = HttpError::Refused { status: 500, message: "no space left".to_owned() };
        assert_eq!(taken_port(&other), None);
    }

    #[test]
    fn an_error_among_reports_is_found() {
        assert_eq!(told_error(b"{\"status\":\"a\"}\r\n{\"error\":\"no\"}"), Some("no".to_owned()));
        assert_eq!(told_error(b"{\"status\":\"a\"}"), None);
    }

    #[test]
    fn addresses_overlap_with_all_of_them() {
        assert!(
            overlap("0.0.0.0", "127.0.0.1") && overlap("", "::") && overlap("1.1.1.1", "1.1.1.1")
        );
        assert!(!overlap("127.0.0.1", "10.0.0.1"));
    }
}
