//! Images of a registry, over its HTTP interface: manifests and blobs, nothing else.
//!
//! Only a registry on this machine itself is spoken to without TLS. Passwords go to the registry that
//! they are for, or to where it sends for tokens, and to nobody whom it sends on to.

use std::{
    io::{self, Read},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use ureq::{Agent, Body, BodyReader, http::Response};

use super::{
    digest::Digest,
    error::{ImageError, ImageResult, carry},
    files::{Blob, Blobs},
    limits::DOCUMENT_MAX,
    manifest::{self, Descriptor},
    read::{self, Image},
};

mod auth;
mod reference;

use auth::Credentials;
use reference::Reference;

const ANSWER: Duration = Duration::from_secs(60);

/// Whoever sends nothing for so long in the middle of a layer will not send the rest.
const SILENCE: Duration = Duration::from_secs(120);

pub(super) fn read(name: &str) -> ImageResult<Image> {
    let reference = Reference::parse(name)?;
    let what = format!("`registry:{name}`");
    let credentials = Credentials::find(&reference.credentials_key())?;
    let registry = Registry::new(reference, credentials)?;
    let (first, bytes) = registry.first_manifest()?;
    // The bytes are at hand; what they lead to is asked for.
    let document = |blob: &Blob| match blob.digest.as_ref() == Some(&first.digest) {
        true => Ok(bytes.clone()),
        false => registry.manifest(blob),
    };
    let (digest, manifest) = read::descend(&first, &what, &document)?;
    let blob = |descriptor: &Descriptor| Blob {
        name: descriptor.digest.to_string(),
        digest: Some(descriptor.digest.clone()),
        len_bytes: Some(descriptor.size),
    };
    read::assemble(digest, &manifest, blob, Box::new(registry), &what)
}

#[derive(Debug)]
struct Registry {
    reference: Reference,
    agent: Agent,
    credentials: Option<Credentials>,
    /// What goes into the header `Authorization`.
    pass: Mutex<Option<String>>,
}

impl Registry {
    fn new(reference: Reference, credentials: Option<Credentials>) -> ImageResult<Self> {
        let agent = agent(reference.is_here(), SILENCE)?;
        Ok(Self { reference, agent, credentials, pass: Mutex::default() })
    }

    /// What a name or a digest stands for.
    fn first_manifest(&self) -> ImageResult<(Descriptor, Vec<u8>)> {
        let wanted = self.reference.wanted();
        let response = self.get(&format!("manifests/{wanted}"))?;
        let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok());
        let media_type = kind.unwrap_or_default().to_owned();
        let bytes = self.whole(response)?;
        let digest = Digest::of(&bytes);
        if let Some(expected) = self.reference.digest.as_ref().filter(|told| **told != digest) {
            return Err(ImageError::Mismatch {
                what: format!("the manifest of `{}`", self.reference),
                found: digest.to_string(),
                expected: expected.to_string(),
            });
        }
        let size = bytes.len() as u64;
        let first = Descriptor { media_type, digest, size, platform: None, annotations: None };
        Ok((first, bytes))
    }

    fn manifest(&self, blob: &Blob) -> ImageResult<Vec<u8>> {
        let Some(digest) = &blob.digest else {
            return Err(ImageError::Missing { what: format!("`{}`", blob.name) });
        };
        let bytes = self.whole(self.get(&format!("manifests/{digest}"))?)?;
        let found = Digest::of(&bytes);
        match found == *digest {
            true => Ok(bytes),
            false => Err(ImageError::Mismatch {
                what: format!("a manifest of `{}`", self.reference),
                found: found.to_string(),
                expected: digest.to_string(),
            }),
        }
    }

    fn whole(&self, response: Response<Body>) -> ImageResult<Vec<u8>> {
        let read = response.into_body().into_with_config().limit(DOCUMENT_MAX).read_to_vec();
        read.map_err(|err| self.unreachable(err))
    }

    /// Asks, and if need be asks for leave and asks again.
    fn get(&self, path: &str) -> ImageResult<Response<Body>> {
        let url = format!("{}/{path}", self.reference.url());
        let response = self.ask(&url)?;
        let response = match response.status().as_u16() {
            401 => {
                let told = response.headers().get("www-authenticate");
                let told = told.and_then(|told| told.to_str().ok()).unwrap_or_default().to_owned();
                let pass = self.log_in(&told)?;
                *self.pass.lock().unwrap_or_else(PoisonError::into_inner) = Some(pass);
                self.ask(&url)?
            }
            _ => response,
        };
        let what = || format!("`{}`", self.reference);
        match response.status().as_u16() {
            200 => Ok(response),
            404 => Err(ImageError::Missing { what: format!("image {}", what()) }),
            401 | 403 => Err(ImageError::Denied { what: what(), reason: self.who() }),
            status => {
                let source = io::Error::other(format!("it answers {status}"));
                Err(ImageError::Unreachable { what: self.shown(), source })
            }
        }
    }

    fn who(&self) -> String {
        match self.credentials.is_some() {
            true => "the registry does not accept what Docker's configuration says".to_owned(),
            false => "it may not exist, or want a login: `docker login` writes one down".to_owned(),
        }
    }

    fn ask(&self, url: &str) -> ImageResult<Response<Body>> {
        let pass = self.pass.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut request = self.agent.get(url).header("Accept", manifest::accepted());
        if let Some(pass) = pass {
            request = request.header("Authorization", pass);
        }
        request.call().map_err(|err| self.unreachable(err))
    }

    fn shown(&self) -> String {
        format!("registry `{}`", self.reference.host)
    }

    fn unreachable(&self, err: ureq::Error) -> ImageError {
        ImageError::Unreachable { what: self.shown(), source: io::Error::other(err) }
    }

    /// Does what the registry asks of those whom it does not know.
    fn log_in(&self, told: &str) -> ImageResult<String> {
        let odd = |reason: &str| ImageError::Unreachable {
            what: self.shown(),
            source: io::Error::other(reason.to_owned()),
        };
        let challenge = auth::Challenge::parse(told).ok_or_else(|| odd("it wants an odd login"))?;
        let Some(realm) = &challenge.realm_for_tokens else {
            let credentials = self.credentials.as_ref();
            return credentials.map(Credentials::basic).ok_or_else(|| ImageError::Denied {
                what: format!("`{}`", self.reference),
                reason: self.who(),
            });
        };
        let is_safe = realm.starts_with("https://") || self.reference.is_here();
        if !is_safe {
            return Err(odd("it sends for a token without TLS"));
        }
        let scope = format!("repository:{}:pull", self.reference.path);
        let mut request = self.agent.get(realm).query("scope", scope);
        if let Some(service) = &challenge.service {
            request = request.query("service", service);
        }
        if let Some(credentials) = &self.credentials {
            request = request.header("Authorization", credentials.basic());
        }
        let response = request.call().map_err(|err| self.unreachable(err))?;
        match response.status().as_u16() {
            200 => auth::token(&self.whole(response)?).ok_or_else(|| odd("it gave no token")),
            _ => Err(ImageError::Denied {
                what: format!("`{}`", self.reference),
                reason: self.who(),
            }),
        }
    }
}

impl Blobs for Registry {
    fn open(&self, blob: &Blob) -> ImageResult<Box<dyn Read + Send + '_>> {
        let response = self.get(&format!("blobs/{}", blob.name))?;
        Ok(Box::new(Sent { body: response.into_body().into_reader(), registry: self }))
    }
}

/// A connection that breaks is no damage of the image.
struct Sent<'a> {
    body: BodyReader<'static>,
    registry: &'a Registry,
}

impl Read for Sent<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.body.read(buffer).map_err(|source| {
            carry(ImageError::Unreachable { what: self.registry.shown(), source })
        })
    }
}

/// Trusts whom this machine trusts.
fn agent(is_here: bool, silence: Duration) -> ImageResult<Agent> {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .user_agent(concat!("forkpoint/", env!("CARGO_PKG_VERSION")))
        .https_only(!is_here)
        .max_redirects(5)
        .timeout_connect(Some(ANSWER))
        .timeout_recv_response(Some(ANSWER))
        .timeout_per_read(Some(silence));
    if is_here {
        return Ok(config.proxy(None).build().into());
    }
    let tls = ureq::tls::TlsConfig::builder()
        .provider(ureq::tls::TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(std::sync::Arc::new(
            rustls::crypto::ring::default_provider(),
        ))
        .root_certs(auth::trusted()?)
        .build();
    Ok(config.tls_config(tls).build().into())
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, net::TcpListener, thread};

    use super::*;

    #[test]
    fn a_registry_that_falls_silent_in_a_blob_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nthe first").unwrap();
            // Until the other side has had enough.
            let _ = io::copy(&mut stream, &mut io::sink());
        });
        let agent = agent(true, Duration::from_secs(2)).unwrap();
        let response = agent.get(format!("http://{address}/")).call().unwrap();
        let mut got = Vec::new();
        let err = response.into_body().into_reader().read_to_end(&mut got).unwrap_err();
        assert_eq!(got, b"the first");
        assert!(err.to_string().contains("time"), "{err}");
        drop(agent);
        server.join().unwrap();
    }
}
