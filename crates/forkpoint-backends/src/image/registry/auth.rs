//! Who we are for a registry, and whom this machine trusts.

use std::{
    env, fs,
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Deserialize;
use ureq::tls::{PemItem, RootCerts, parse_pem};

use super::super::error::{ImageError, ImageResult, io_error};

/// Where systems keep whom they trust.
const TRUSTED: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

pub(super) fn trusted() -> ImageResult<RootCerts> {
    let told = env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let path = told.or_else(|| TRUSTED.map(PathBuf::from).into_iter().find(|path| path.exists()));
    let Some(path) = path else {
        let what = "file of trusted certificates: install `ca-certificates`".to_owned();
        return Err(ImageError::Missing { what });
    };
    let bytes = fs::read(&path).map_err(io_error("read", path))?;
    let certificates = parse_pem(&bytes).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    Ok(RootCerts::from(certificates))
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    user: String,
    password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// The file that `docker login` writes.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    auths: std::collections::BTreeMap<String, Filed>,
    creds_store: Option<String>,
    cred_helpers: std::collections::BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Filed {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answered {
    username: String,
    secret: String,
}

impl Credentials {
    /// As Docker does: a helper for this registry, the helper for all, or the file itself.
    pub(super) fn find(registry: &str) -> ImageResult<Option<Self>> {
        let directory = env::var_os("DOCKER_CONFIG").map(PathBuf::from);
        let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".docker"));
        let Some(path) = directory.or_else(home).map(|path| path.join("config.json")) else {
            return Ok(None);
        };
        let Ok(bytes) = fs::read(&path) else { return Ok(None) };
        let config: Config = serde_json::from_slice(&bytes)
            .map_err(|err| ImageError::damaged(format!("`{}`", path.display()), err))?;
        let helper = config.cred_helpers.get(registry).or(config.creds_store.as_ref());
        if let Some(helper) = helper
            && let Some(found) = ask_helper(helper, registry)?
        {
            return Ok(Some(found));
        }
        let filed =
            config.auths.get(registry).or_else(|| config.auths.get(&format!("https://{registry}")));
        Ok(filed.and_then(Filed::credentials))
    }

    pub(super) fn basic(&self) -> String {
        let Self { user, password } = self;
        format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}")))
    }
}

impl Filed {
    fn credentials(&self) -> Option<Credentials> {
        if let Some(auth) = self.auth.as_deref().filter(|auth| !auth.is_empty()) {
            let text = String::from_utf8(BASE64_STANDARD.decode(auth.trim()).ok()?).ok()?;
            let (user, password) = text.split_once(':')?;
            let password = password.trim_end_matches('\0').to_owned();
            return Some(Credentials { user: user.to_owned(), password });
        }
        Some(Credentials { user: self.username.clone()?, password: self.password.clone()? })
    }
}

/// `None` when the helper knows nothing of the registry.
fn ask_helper(helper: &str, registry: &str) -> ImageResult<Option<Credentials>> {
    let program = format!("docker-credential-{helper}");
    let failed = |reason: String| ImageError::Denied { what: format!("`{program}`"), reason };
    if helper.contains('/') {
        return Err(failed("that is no name of a program".to_owned()));
    }
    let ask = || -> std::io::Result<std::process::Output> {
        let mut child = Command::new(&program)
            .arg("get")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(registry.as_bytes())?;
        }
        child.wait_with_output()
    };
    let output = ask().map_err(|err| failed(err.to_string()))?;
    if !output.status.success() {
        return Ok(None);
    }
    let Answered { username, secret } =
        serde_json::from_slice(&output.stdout).map_err(|err| failed(err.to_string()))?;
    match username == "<token>" {
        true => Err(failed("it gives an identity token, which is not taken yet".to_owned())),
        false => Ok(Some(Credentials { user: username, password: secret })),
    }
}

/// What a registry wants of those whom it does not know.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Challenge {
    /// Where tokens are had; `None` when it wants the password itself.
    pub(super) realm_for_tokens: Option<String>,
    pub(super) service: Option<String>,
}

impl Challenge {
    /// `Bearer realm="…",service="…"` or `Basic …`
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once(' ').unwrap_or((text, ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self { realm_for_tokens: None, service: None });
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let value = |key: &str| {
            let after = rest.split(&format!("{key}=\"")).nth(1)?;
            after.split('"').next().map(str::to_owned)
        };
        Some(Self { realm_for_tokens: Some(value("realm")?), service: value("service") })
    }
}

pub(super) fn token(answer: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Given {
        token: Option<String>,
        access_token: Option<String>,
    }
    let given: Given = serde_json::from_slice(answer).ok()?;
    Some(format!("Bearer {}", given.token.or(given.access_token)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_says_where_tokens_are_had() {
        let bearer = r#"Bearer realm="https://auth.example.com/token",service="example.com""#;
        let challenge = Challenge::parse(bearer).unwrap();
        assert_eq!(challenge.realm_for_tokens.as_deref(), Some("https://auth.example.com/token"));
        assert_eq!(challenge.service.as_deref(), Some("example.com"));
        let basic = Challenge::parse("Basic realm=\"x\"").unwrap();
        assert_eq!(basic.realm_for_tokens, None);
        assert_eq!(Challenge::parse("Negotiate"), None);
        assert_eq!(Challenge::parse("Bearer"), None);
    }

    #[test]
    fn a_filed_login_is_user_and_password() {
        let filed = Filed { auth: Some(BASE64_STANDARD.encode("me:a:b")), ..Filed::default() };
        let found = filed.credentials().unwrap();
        assert_eq!((&*found.user, &*found.password), ("me", "a:b"));
        assert!(!format!("{found:?}").contains("a:b"), "a password is not shown");
        assert!(Filed::default().credentials().is_none());
    }
}
