//! Where an engine listens, found as the docker command finds it.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

const DEFAULT: &str = "/var/run/docker.sock";
const PODMAN: &str = "/run/podman/podman.sock";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Unix(PathBuf),
    Tcp { host: String, port: u16 },
    Tls { host: String, port: u16, files: TlsFiles },
}

/// `ca.pem`, and if the engine wants to know who asks, `cert.pem` and `key.pem`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    pub directory: PathBuf,
    /// Whether the engine must be whom it says it is.
    pub verify: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    #[error("`{text}` is not where an engine can listen: {reason}")]
    Host { text: String, reason: &'static str },
    #[error("there is no docker context `{name}` in `{}`", .directory.display())]
    ContextMissing { name: String, directory: PathBuf },
    #[error("`{}` cannot be understood: {reason}", .path.display())]
    File { path: PathBuf, reason: String },
}

impl Endpoint {
    /// Asks `env` for DOCKER_HOST, then DOCKER_CONTEXT, then the context that is in use, and then
    /// looks where engines usually listen.
    pub fn find(env: impl Fn(&str) -> Option<String>) -> Result<Self, EndpointError> {
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        let home = env("HOME").map(PathBuf::from);
        let config = env("DOCKER_CONFIG")
            .map(PathBuf::from)
            .or_else(|| home.as_ref().map(|home| home.join(".docker")));
        if let Some(host) = env("DOCKER_HOST") {
            let directory = env("DOCKER_CERT_PATH").map(PathBuf::from).or(config);
            let verify = env("DOCKER_TLS_VERIFY").is_some();
            let wants = verify || env("DOCKER_TLS").is_some();
            let files = directory.filter(|_| wants);
            return Self::parse(&host, files.map(|directory| TlsFiles { directory, verify }));
        }
        let name = match env("DOCKER_CONTEXT") {
            Some(name) => Some(name),
            None => config.as_deref().map(current_context).transpose()?.flatten(),
        };
        match (name.filter(|name| name != "default"), config) {
            (Some(name), Some(config)) => context(&name, &config.join("contexts")),
            _ => Ok(Self::usual(env("XDG_RUNTIME_DIR").map(PathBuf::from))),
        }
    }

    /// From `unix://…` or `tcp://…`.
    pub fn parse(text: &str, tls: Option<TlsFiles>) -> Result<Self, EndpointError> {
        let refuse = |reason| EndpointError::Host { text: text.to_owned(), reason };
        if let Some(path) = text.strip_prefix("unix://") {
            return match path.starts_with('/') {
                true => Ok(Self::Unix(path.into())),
                false => Err(refuse("a socket has an absolute path, as in `unix:///run/x.sock`")),
            };
        }
        let tcp = ["tcp://", "http://", "https://"].iter().find_map(|way| text.strip_prefix(way));
        let Some(rest) = tcp else {
            return Err(refuse(match text.starts_with("ssh://") {
                true => {
                    "`ssh://` is not spoken here; forward the socket \
                     (`ssh -L /tmp/docker.sock:/var/run/docker.sock HOST`) and use `unix://`"
                }
                false => "it begins with neither `unix://` nor `tcp://`",
            }));
        };
        let (host, port) = match rest.trim_end_matches('/').rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                let port = port.parse().map_err(|_| refuse("its port is no number"))?;
                (host, port)
            }
            _ => (rest.trim_end_matches('/'), if tls.is_some() { 2376 } else { 2375 }),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(refuse("there is no host in it"));
        }
        Ok(match tls {
            Some(files) => Self::Tls { host, port, files },
            None => Self::Tcp { host, port },
        })
    }

    fn usual(runtime: Option<PathBuf>) -> Self {
        let below = |name: &str| runtime.as_ref().map(|runtime| runtime.join(name));
        let places = [
            Some(DEFAULT.into()),
            below("docker.sock"),
            Some(PODMAN.into()),
            below("podman/podman.sock"),
        ];
        let found = places.into_iter().flatten().find(|path| path.exists());
        Self::Unix(found.unwrap_or_else(|| DEFAULT.into()))
    }

    /// For the header that every request has.
    pub(super) fn host(&self) -> String {
        match self {
            Self::Unix(_) => "docker".to_owned(),
            Self::Tcp { host, port } | Self::Tls { host, port, .. } if host.contains(':') => {
                format!("[{host}]:{port}")
            }
            Self::Tcp { host, port } | Self::Tls { host, port, .. } => format!("{host}:{port}"),
        }
    }

    /// Whether the engine may be on this machine, with its files in reach.
    pub(super) fn is_near(&self) -> bool {
        matches!(self, Self::Unix(_))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            _ => write!(f, "tcp://{}", self.host()),
        }
    }
}

fn current_context(config: &Path) -> Result<Option<String>, EndpointError> {
    let path = config.join("config.json");
    if !path.exists() {
        return Ok(None);
    }
    let value = read(&path)?;
    let name = value["currentContext"].as_str().filter(|name| !name.is_empty());
    Ok(name.map(str::to_owned))
}

fn context(name: &str, directory: &Path) -> Result<Endpoint, EndpointError> {
    let key: String = Sha256::digest(name).iter().map(|byte| format!("{byte:02x}")).collect();
    let path = directory.join("meta").join(&key).join("meta.json");
    if !path.exists() {
        let (name, directory) = (name.to_owned(), directory.to_owned());
        return Err(EndpointError::ContextMissing { name, directory });
    }
    let meta = read(&path)?;
    let endpoint = &meta["Endpoints"]["docker"];
    let Some(host) = endpoint["Host"].as_str() else {
        let reason = "it names no `Host` for docker".to_owned();
        return Err(EndpointError::File { path, reason });
    };
    let tls = directory.join("tls").join(&key).join("docker");
    let verify = endpoint["SkipTLSVerify"].as_bool() != Some(true);
    let files = tls.exists().then_some(TlsFiles { directory: tls, verify });
    Endpoint::parse(host, files)
}

fn read(path: &Path) -> Result<Value, EndpointError> {
    let wrong = |reason: String| EndpointError::File { path: path.to_owned(), reason };
    let text = fs::read(path).map_err(|err| wrong(err.to_string()))?;
    serde_json::from_slice(&text).map_err(|err| wrong(err.to_string()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn find(vars: &[(&str, &str)]) -> Result<Endpoint, EndpointError> {
        let vars: BTreeMap<&str, &str> = vars.iter().copied().collect();
        Endpoint::find(|name| vars.get(name).map(|value| (*value).to_owned()))
    }

    #[test]
    fn hosts_are_read_as_docker_reads_them() {
        for (text, shown) in [
            ("unix:///run/x.sock", "unix:///run/x.sock"),
            ("tcp://box:1234", "tcp://box:1234"),
            ("tcp://box", "tcp://box:2375"),
            ("tcp://[::1]:99/", "tcp://[::1]:99"),
        ] {
            assert_eq!(Endpoint::parse(text, None).unwrap().to_string(), shown);
        }
        for text in ["", "box", "unix://x", "tcp://box:x", "tcp://:1", "ssh://box", "npipe:////x"] {
            let err = Endpoint::parse(text, None).unwrap_err().to_string();
            assert!(err.contains(&format!("`{text}`")), "{err}");
        }
    }

    #[test]
    fn the_environment_comes_before_contexts() {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().to_str().unwrap();
        let hash: String = Sha256::digest("far").iter().map(|byte| format!("{byte:02x}")).collect();
        let meta = directory.path().join("contexts/meta").join(&hash);
        fs::create_dir_all(&meta).unwrap();
        let told =
            r#"{"Name":"far","Endpoints":{"docker":{"Host":"tcp://far:5","SkipTLSVerify":true}}}"#;
        fs::write(meta.join("meta.json"), told).unwrap();
        let tls = directory.path().join("contexts/tls").join(&hash).join("docker");

        let named = find(&[("DOCKER_CONFIG", config), ("DOCKER_CONTEXT", "far")]).unwrap();
        assert_eq!(named, Endpoint::Tcp { host: "far".into(), port: 5 });
        fs::create_dir_all(&tls).unwrap();
        fs::write(directory.path().join("config.json"), r#"{"currentContext":"far"}"#).unwrap();
        let files = TlsFiles { directory: tls, verify: false };
        let current = find(&[("DOCKER_CONFIG", config)]).unwrap();
        assert_eq!(current, Endpoint::Tls { host: "far".into(), port: 5, files });
        let host = find(&[("DOCKER_CONFIG", config), ("DOCKER_HOST", "unix:///a")]).unwrap();
        assert_eq!(host, Endpoint::Unix("/a".into()));
        let verified = find(&[
            ("DOCKER_CONFIG", config),
            ("DOCKER_HOST", "tcp://a:1"),
            ("DOCKER_TLS_VERIFY", "1"),
            ("DOCKER_CERT_PATH", "/certs"),
        ]);
        let files = TlsFiles { directory: "/certs".into(), verify: true };
        assert_eq!(verified.unwrap(), Endpoint::Tls { host: "a".into(), port: 1, files });
        let missing = find(&[("DOCKER_CONFIG", config), ("DOCKER_CONTEXT", "none")]);
        assert!(missing.unwrap_err().to_string().contains("`none`"));
        fs::write(directory.path().join("config.json"), "{").unwrap();
        assert!(
            find(&[("DOCKER_CONFIG", config)]).unwrap_err().to_string().contains("config.json")
        );
    }
}
