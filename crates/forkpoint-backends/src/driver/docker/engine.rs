//! An engine, as it is spoken to: which version of its API, and what its answers mean.
//!
//! Documents stay [`Value`]s: what an engine tells of a container is kept and given back as it came,
//! also what we know nothing of.

use forkpoint_core::driver::{DriverError, DriverResult};
use serde_json::Value;
use tokio::sync::OnceCell;

use super::{
    DRIVER,
    endpoint::Endpoint,
    http::{Answer, Client, HttpError, HttpResult, Request},
};

/// The newest that this was written for. An engine that is newer speaks it too.
const NEWEST: Version = (1, 47);
const OLDEST: Version = (1, 40);

pub(super) type Version = (u32, u32);

#[derive(Debug)]
pub(super) struct Engine {
    client: Client,
    facts: OnceCell<Facts>,
}

/// What an engine says of itself.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) version: Version,
    pub(super) is_podman: bool,
}

impl Engine {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self { client: Client::new(endpoint), facts: OnceCell::new() }
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        self.client.endpoint()
    }

    /// Asked once; an engine that could not be reached is asked again.
    pub(super) async fn facts(&self) -> HttpResult<&Facts> {
        self.facts.get_or_try_init(|| self.negotiate()).await
    }

    /// It speaks as Docker does, but not in everything.
    pub(super) async fn is_podman(&self) -> HttpResult<bool> {
        Ok(self.facts().await?.is_podman)
    }

    async fn negotiate(&self) -> HttpResult<Facts> {
        let answer = self.client.send(Request::new("GET", "/version")).await?;
        let told = self.read(answer).await?;
        let found = told["ApiVersion"].as_str().unwrap_or_default().to_owned();
        let version = parse_version(&found).unwrap_or_default();
        if version < OLDEST {
            return Err(HttpError::TooOld { endpoint: self.endpoint().to_string(), found });
        }
        let components = told["Components"].as_array().into_iter().flatten();
        let is_podman =
            components.filter_map(|part| part["Name"].as_str()).any(|name| name.contains("Podman"));
        Ok(Facts { version: version.min(NEWEST), is_podman })
    }

    pub(super) async fn send(&self, mut request: Request) -> HttpResult<Answer> {
        let (major, minor) = self.facts().await?.version;
        request.path = format!("/v{major}.{minor}{}", request.path);
        self.client.send(request).await
    }

    /// The document that is answered with; `null` where there is none.
    pub(super) async fn ask(&self, request: Request) -> HttpResult<Value> {
        let answer = self.send(request).await?;
        self.read(answer).await
    }

    pub(super) async fn get(&self, path: impl Into<String>) -> HttpResult<Value> {
        self.ask(Request::new("GET", path)).await
    }

    pub(super) async fn post(&self, path: impl Into<String>, body: Value) -> HttpResult<Value> {
        self.ask(Request::new("POST", path).json(body)).await
    }

    /// `None` where the engine has no such thing.
    pub(super) async fn find(&self, path: impl Into<String>) -> HttpResult<Option<Value>> {
        found(self.get(path).await)
    }

    async fn read(&self, answer: Answer) -> HttpResult<Value> {
        let endpoint = || self.endpoint().to_string();
        answer
            .body
            .json()
            .await
            .map_err(|source| HttpError::Broken { endpoint: endpoint(), source })
    }
}

/// What is not there is `None`.
pub(super) fn found<T>(result: HttpResult<T>) -> HttpResult<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(err) if err.status() == Some(404) => Ok(None),
        Err(err) => Err(err),
    }
}

/// What is so already is a success (`304`), and what is gone too.
pub(super) fn done<T>(result: HttpResult<T>) -> HttpResult<()> {
    match result {
        Err(err) if err.status() != Some(404) => Err(err),
        _ => Ok(()),
    }
}

/// What went wrong, for a caller of the driver.
pub(super) fn failed(operation: &'static str) -> impl Fn(HttpError) -> DriverError {
    move |err| match err {
        HttpError::Connect { .. }
        | HttpError::Silent { .. }
        | HttpError::Broken { .. }
        | HttpError::TooOld { .. }
        | HttpError::Odd { .. } => DriverError::Unreachable { driver: DRIVER, source: err.into() },
        HttpError::Refused { .. } | HttpError::Source(_) => {
            DriverError::Failed { driver: DRIVER, operation, source: err.into() }
        }
    }
}

pub(super) fn invalid<T>(reason: impl Into<String>) -> DriverResult<T> {
    Err(DriverError::Invalid { driver: DRIVER, reason: reason.into() })
}

fn parse_version(text: &str) -> Option<Version> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}

/// `?a=b&c=d`, with whatever is odd in a value written out.
pub(super) fn query(pairs: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (index, (key, value)) in pairs.iter().enumerate() {
        text.push(if index == 0 { '?' } else { '&' });
        text.push_str(key);
        text.push('=');
        escape_into(&mut text, value.as_bytes());
    }
    text
}

pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::new();
    escape_into(&mut escaped, text.as_bytes());
    escaped
}

pub(super) fn escape_into(text: &mut String, bytes: &[u8]) {
    for &byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                text.push(byte as char);
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers() {
        assert_eq!(parse_version("1.41"), Some((1, 41)));
        assert_eq!(parse_version("1.9"), Some((1, 9)));
        assert!(parse_version("1.9") < parse_version("1.40"));
        assert_eq!(parse_version(""), None);
    }

    #[test]
    fn whatever_is_odd_is_escaped() {
        assert_eq!(query(&[("a", "b c"), ("d", "/&=\u{e9}")]), "?a=b%20c&d=%2F%26%3D%C3%A9");
    }
}
