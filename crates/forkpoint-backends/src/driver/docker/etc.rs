//! `/etc/hosts`, `/etc/hostname` and `/etc/resolv.conf`: the engine makes them for each container, a
//! commit leaves them out, and what somebody wrote there must not be lost.

use std::fs;

use forkpoint_core::driver::DriverResult;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{container::Container, host::Host, seal::Data};

/// A longer one is no such file.
const LEN_MAX: u64 = 1 << 20;

/// What engines write into every `/etc/hosts`.
const USUAL: [&str; 7] = [
    "127.0.0.1\tlocalhost",
    "::1\tlocalhost ip6-localhost ip6-loopback",
    "::1 localhost ip6-localhost ip6-loopback",
    "fe00::0\tip6-localnet",
    "ff00::0\tip6-mcastprefix",
    "ff02::1\tip6-allnodes",
    "ff02::2\tip6-allrouters",
];

impl Host {
    /// What was written into the three files: lines of the first, the whole of the others.
    pub(super) fn edited(
        &self,
        container: &Container,
    ) -> (Option<String>, Option<String>, Option<String>) {
        let read = |key: &str| self.engines_file(container, key);
        let hosts = read("HostsPath").map(|text| own_lines(&text, container));
        let resolv = read("ResolvConfPath").filter(|text| {
            // Beside it is the digest of what the engine wrote.
            let path = container.0["ResolvConfPath"].as_str().unwrap_or_default();
            let made = fs::read_to_string(format!("{path}.hash")).unwrap_or_default();
            let digest: String =
                Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
            !made.is_empty() && made.trim().trim_start_matches("sha256:") != digest
        });
        let hostname = read("HostnamePath").filter(|text| {
            let config = container.config();
            text.trim() != config["Hostname"].as_str().unwrap_or_default()
                && text.trim() != full_name(config)
        });
        (hosts.filter(|lines| !lines.is_empty()), resolv, hostname)
    }

    fn engines_file(&self, container: &Container, key: &str) -> Option<String> {
        let path = container.0[key].as_str().filter(|path| !path.is_empty())?;
        if !self.engine.endpoint().is_near() || fs::metadata(path).ok()?.len() > LEN_MAX {
            return None;
        }
        fs::read_to_string(path).ok()
    }

    /// Into a container that runs: each time it starts, the engine makes them anew.
    pub(super) async fn write_edits(&self, id: &str, data: &Data) -> DriverResult<()> {
        if data.hosts.is_none() && data.resolv.is_none() && data.hostname.is_none() {
            return Ok(());
        }
        let Some(container) = self.inspect(id).await? else { return Ok(()) };
        if let Some(lines) = &data.hosts {
            let there = self.engines_file(&container, "HostsPath").unwrap_or_default();
            let missing: Vec<&str> =
                lines.lines().filter(|line| !there.lines().any(|known| known == *line)).collect();
            self.put_file(&container, "HostsPath", &format!("{there}{}\n", missing.join("\n")))?;
        }
        if let Some(text) = &data.resolv {
            self.put_file(&container, "ResolvConfPath", text)?;
        }
        if let Some(text) = &data.hostname {
            self.put_file(&container, "HostnamePath", text)?;
        }
        Ok(())
    }

    /// The same inode: it is mounted into the container.
    fn put_file(&self, container: &Container, key: &str, text: &str) -> DriverResult<()> {
        let Some(path) = container.0[key].as_str().filter(|path| !path.is_empty()) else {
            return Ok(());
        };
        let path = std::path::Path::new(path);
        fs::write(path, text).map_err(super::host::io_error("write", path))
    }
}

fn full_name(config: &Value) -> String {
    let part = |key: &str| config[key].as_str().unwrap_or_default();
    format!("{}.{}", part("Hostname"), part("Domainname"))
}

/// Lines that the engine did not write: neither the usual ones, nor the container's own addresses, nor
/// hosts that it was created with.
fn own_lines(text: &str, container: &Container) -> String {
    let extra: Vec<&str> = container.host_config()["ExtraHosts"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let addresses: Vec<&str> = container
        .networks()
        .flat_map(|(_, told)| [told["IPAddress"].as_str(), told["GlobalIPv6Address"].as_str()])
        .flatten()
        .filter(|address| !address.is_empty())
        .collect();
    let hostname = container.config()["Hostname"].as_str().unwrap_or_default();
    let is_own = |line: &&str| {
        let mut words = line.split_whitespace();
        let address = words.next().unwrap_or_default();
        let names: Vec<&str> = words.collect();
        let given = extra.iter().any(|entry| {
            entry.split_once(':').is_some_and(|(name, ip)| ip == address && names.contains(&name))
        });
        // A container that does not run has no address, and the file still has its last one.
        let itself =
            addresses.contains(&address) || !hostname.is_empty() && names.contains(&hostname);
        !line.trim().is_empty() && !USUAL.contains(line) && !itself && !given
    };
    text.lines().filter(is_own).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_somebody_wrote_is_kept_of_hosts() {
        let container = Container(json!({
            "Config": { "Hostname": "box" },
            "HostConfig": { "ExtraHosts": ["db:10.9.9.9"] },
            "NetworkSettings": { "Networks": { "a": { "IPAddress": "172.17.0.2" } } },
        }));
        let text = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n10.9.9.9\tdb\n\
                    172.17.0.2\tbox\n10.1.1.1 api # ours\n\n172.18.0.9\tbox\n";
        assert_eq!(own_lines(text, &container), "10.1.1.1 api # ours");
    }
}
