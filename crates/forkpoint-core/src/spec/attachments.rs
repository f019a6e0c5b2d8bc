//! What only platforms with networks, volumes and ports of their own can give a sandbox.
//!
//! They say how a sandbox is made, not what it is: a copy of it gets what is asked for the copy.

use std::{fmt, net::IpAddr, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::error::Error;

const MAX_NAME_BYTES: usize = 128;

/// The default is: as the source had it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachments {
    /// What the platform shall call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native_name: Option<String>,
    /// Whether it joins the networks that its source was in.
    #[serde(default = "yes")]
    pub networks: bool,
    #[serde(default)]
    pub volumes: VolumeChoice,
    /// In place of the source's ports, unless empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub publish: Vec<Publish>,
}

const fn yes() -> bool {
    true
}

impl Default for Attachments {
    fn default() -> Self {
        Self {
            native_name: None,
            networks: true,
            volumes: VolumeChoice::default(),
            publish: Vec::new(),
        }
    }
}

impl Attachments {
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Refuses what no platform could give.
    pub fn check(&self) -> Result<(), Error> {
        if let Some(name) = &self.native_name
            && (name.is_empty()
                || name.len() > MAX_NAME_BYTES
                || name.chars().any(char::is_control))
        {
            return Err(Error::invalid(format!("{name:?} cannot be the name of anything")));
        }
        for (index, one) in self.publish.iter().enumerate() {
            let clashes = |other: &Publish| one.host_port.is_some() && one.host() == other.host();
            if let Some(other) = self.publish[..index].iter().find(|other| clashes(other)) {
                return Err(Error::invalid(format!(
                    "`{other}` and `{one}` cannot both be published: that is one port of the host"
                )));
            }
        }
        Ok(())
    }
}

/// What a copy gets where its source had a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeChoice {
    /// A volume of its own, with what the snapshot holds.
    #[default]
    Copy,
    /// The source's own volume, as it is now.
    Share,
    /// Nothing: what the image has there.
    None,
}

impl VolumeChoice {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Share => "share",
            Self::None => "none",
        }
    }
}

impl fmt::Display for VolumeChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A port of a sandbox that the host answers on. As text: `[[IP:][HOST]:]PORT[/PROTOCOL]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Publish {
    /// All of the host's addresses if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_ip: Option<IpAddr>,
    /// Any that is free if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_port: Option<u16>,
    pub port: u16,
    #[serde(default)]
    pub protocol: Protocol,
}

impl Publish {
    fn host(&self) -> (Option<IpAddr>, Option<u16>, Protocol) {
        (self.host_ip, self.host_port, self.protocol)
    }
}

#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    #[default]
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Protocol {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.to_ascii_lowercase().as_str() {
            "tcp" => Ok(Self::Tcp),
            "udp" => Ok(Self::Udp),
            "sctp" => Ok(Self::Sctp),
            _ => Err(Error::invalid(format!(
                "`{text}` is no protocol: there is `tcp`, `udp` and `sctp`"
            ))),
        }
    }
}

impl FromStr for Publish {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (rest, protocol) = match text.split_once('/') {
            Some((rest, protocol)) => (rest, protocol.parse()?),
            None => (text, Protocol::default()),
        };
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) => (Some(host), port),
            None => (None, rest),
        };
        let (host_ip, host_port) = match host.and_then(|host| host.rsplit_once(':')) {
            Some((ip, host_port)) => (Some(ip), host_port),
            None => (None, host.unwrap_or_default()),
        };
        Ok(Self {
            host_ip: host_ip.filter(|ip| !ip.is_empty()).map(|ip| address(ip, text)).transpose()?,
            host_port: (!host_port.is_empty()).then(|| number(host_port, text)).transpose()?,
            port: number(port, text)?,
            protocol,
        })
    }
}

/// Of the sixth version, an address stands in brackets: it has colons of its own.
fn address(ip: &str, whole: &str) -> Result<IpAddr, Error> {
    let parsed = match ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')) {
        Some(inner) => inner.parse().ok().map(IpAddr::V6),
        None => ip.parse().ok().map(IpAddr::V4),
    };
    parsed.ok_or_else(|| {
        Error::invalid(format!(
            "`{ip}` in `{whole}` is no address: `127.0.0.1:8080:80` and `[::1]:8080:80` have one"
        ))
    })
}

fn number(port: &str, whole: &str) -> Result<u16, Error> {
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    port.parse().ok().filter(|&port| digits && port > 0).ok_or_else(|| {
        Error::invalid(format!(
            "`{port}` in `{whole}` is no port from 1 to 65535: `8080:80` publishes port 80 as 8080"
        ))
    })
}

impl fmt::Display for Publish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host_ip {
            Some(IpAddr::V4(ip)) => write!(f, "{ip}:")?,
            Some(IpAddr::V6(ip)) => write!(f, "[{ip}]:")?,
            None => {}
        }
        match self.host_port {
            Some(port) => write!(f, "{port}:")?,
            None if self.host_ip.is_some() => f.write_str(":")?,
            None => {}
        }
        write!(f, "{}", self.port)?;
        match self.protocol {
            Protocol::Tcp => Ok(()),
            other => write!(f, "/{other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_as_docker_reads_them() {
        for (text, ip, host, port, protocol) in [
            ("80", None, None, 80, Protocol::Tcp),
            ("8080:80", None, Some(8080), 80, Protocol::Tcp),
            (":80", None, None, 80, Protocol::Tcp),
            ("53:53/udp", None, Some(53), 53, Protocol::Udp),
            ("9/SCTP", None, None, 9, Protocol::Sctp),
            ("127.0.0.1:8080:80", Some("127.0.0.1"), Some(8080), 80, Protocol::Tcp),
            ("127.0.0.1::80", Some("127.0.0.1"), None, 80, Protocol::Tcp),
            ("[::1]:8080:80/tcp", Some("::1"), Some(8080), 80, Protocol::Tcp),
            ("[fe80::2]::80", Some("fe80::2"), None, 80, Protocol::Tcp),
        ] {
            let read: Publish = text.parse().unwrap();
            let host_ip = ip.map(|ip| ip.parse().unwrap());
            assert_eq!(read, Publish { host_ip, host_port: host, port, protocol }, "{text}");
            assert_eq!(read.to_string().parse::<Publish>().unwrap(), read, "{text}");
        }
    }

    #[test]
    fn what_is_no_port_is_told() {
        for (text, why) in [
            ("", "no port"),
            ("0", "no port"),
            ("65536", "no port"),
            ("+80", "no port"),
            ("80:", "no port"),
            ("x:80", "`x`"),
            ("80/icmp", "`icmp`"),
            ("localhost:80:80", "`localhost`"),
            ("::1:80:80", "no address"),
            ("[127.0.0.1]:80:80", "no address"),
            ("80-90:80-90", "`80-90`"),
        ] {
            let err = text.parse::<Publish>().unwrap_err().to_string();
            assert!(err.contains(why), "{text}: {err}");
        }
    }

    #[test]
    fn a_port_of_the_host_is_given_once() {
        let publish = |texts: &[&str]| Attachments {
            publish: texts.iter().map(|text| text.parse().unwrap()).collect(),
            ..Attachments::default()
        };
        publish(&["80", "80", "1:80", "1:80/udp", "127.0.0.1:1:80"]).check().unwrap();
        let err = publish(&["1:80", "2:81", "1:82"]).check().unwrap_err().to_string();
        assert!(err.contains("`1:80` and `1:82`"), "{err}");
        for name in ["", "a\nb", &"x".repeat(200)] {
            let native_name = Some(name.to_owned());
            assert!(Attachments { native_name, ..Attachments::default() }.check().is_err());
        }
    }

    #[test]
    fn what_was_written_before_is_the_default() {
        let read: Attachments = serde_json::from_str("{}").unwrap();
        assert!(read.is_default());
        let all = Attachments {
            native_name: Some("web".into()),
            networks: false,
            volumes: VolumeChoice::Share,
            publish: vec!["[::1]:8080:80/udp".parse().unwrap(), "80".parse().unwrap()],
        };
        let text = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<Attachments>(&text).unwrap(), all);
    }
}
