//! As much HTTP/1.1 as an engine speaks: one connection for each request.
//!
//! Nothing here trusts the other side with memory: heads, messages and documents have limits. Dropping
//! a future or a body closes the connection, and nothing else is left of it.

use std::{fmt::Write as _, io, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use forkpoint_core::part::ByteStream;
use futures::StreamExt as _;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use super::endpoint::Endpoint;

mod body;
mod wire;

pub(super) use body::Body;
pub(super) use wire::{Tls, Wire};

/// Of the first line and all headers.
const HEAD_MAX: usize = 64 << 10;

/// Of what an engine says when it will not.
const MESSAGE_MAX: usize = 16 << 10;

/// Of a document.
pub(super) const DOCUMENT_MAX: usize = 64 << 20;

const CONNECT: Duration = Duration::from_secs(10);

/// Until the first byte of an answer to a request that does little.
pub(super) const SOON: Duration = Duration::from_secs(60);

/// For what copies files.
pub(super) const LONG: Duration = Duration::from_secs(1800);

#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    #[error("failed to connect to `{endpoint}`{}", way_out(.source))]
    Connect {
        endpoint: String,
        #[source]
        source: io::Error,
    },
    #[error("the connection to `{endpoint}` broke")]
    Broken {
        endpoint: String,
        #[source]
        source: io::Error,
    },
    #[error("`{endpoint}` does not answer in {} s", .after.as_secs())]
    Silent { endpoint: String, after: Duration },
    #[error("`{endpoint}` answers what is not HTTP: {what}")]
    Odd { endpoint: String, what: &'static str },
    #[error(
        "`{endpoint}` speaks version {found} of the API, and 1.40 (Docker 19.03) is the oldest that is understood: update the engine"
    )]
    TooOld { endpoint: String, found: String },
    #[error("{message}")]
    Refused { status: u16, message: String },
    #[error("what was to be sent cannot be read")]
    Source(#[source] io::Error),
}

fn way_out(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => {
            ": only root and members of the group `docker` may (`usermod -aG docker USER`)"
        }
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            ": start the engine, or say with DOCKER_HOST where it listens"
        }
        _ => "",
    }
}

impl HttpError {
    pub(super) fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }
}

pub(super) type HttpResult<T> = Result<T, HttpError>;

/// What goes with a request.
pub(super) enum Content {
    Nothing,
    Json(Value),
    /// An archive of unknown length.
    Stream(ByteStream),
}

pub(super) struct Request {
    pub(super) method: &'static str,
    /// With the query, escaped.
    pub(super) path: String,
    pub(super) content: Content,
    /// How long the engine may be silent before its answer.
    pub(super) patience: Option<Duration>,
    /// Whether the connection is to become a plain one in both directions.
    pub(super) upgrade: bool,
}

impl Request {
    pub(super) fn new(method: &'static str, path: impl Into<String>) -> Self {
        let (path, content) = (path.into(), Content::Nothing);
        Self { method, path, content, patience: Some(SOON), upgrade: false }
    }

    pub(super) fn json(self, value: Value) -> Self {
        Self { content: Content::Json(value), ..self }
    }

    pub(super) fn stream(self, stream: ByteStream) -> Self {
        Self { content: Content::Stream(stream), ..self }
    }

    pub(super) fn patience(self, patience: Option<Duration>) -> Self {
        Self { patience, ..self }
    }

    fn head(&self, host: &str) -> String {
        let mut head = format!("{} {} HTTP/1.1\r\nHost: {host}\r\n", self.method, self.path);
        head.push_str("User-Agent: forkpoint\r\n");
        match &self.content {
            Content::Nothing if self.method == "GET" || self.method == "HEAD" => {}
            Content::Nothing => head.push_str("Content-Length: 0\r\n"),
            Content::Json(_) => head.push_str("Content-Type: application/json\r\n"),
            Content::Stream(_) => {
                head.push_str("Content-Type: application/x-tar\r\nTransfer-Encoding: chunked\r\n");
            }
        }
        head.push_str(match self.upgrade {
            true => "Connection: Upgrade\r\nUpgrade: tcp\r\n",
            false => "Connection: close\r\n",
        });
        head
    }
}

/// The beginning of an answer; the rest is read as it is wanted.
#[derive(Debug)]
pub(super) struct Answer {
    headers: Vec<(String, String)>,
    pub(super) body: Body,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

#[derive(Clone, Debug)]
pub(super) struct Client {
    endpoint: Endpoint,
    tls: Option<Arc<Tls>>,
}

impl Client {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        let tls = Tls::of(&endpoint).map(Arc::new);
        Self { endpoint, tls }
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Answers that say no are errors, with what the engine said.
    pub(super) async fn send(&self, request: Request) -> HttpResult<Answer> {
        let patience = request.patience;
        let upgrade = request.upgrade;
        let has_body = request.method != "HEAD";
        let mut wire = self.connect().await?;
        if let Err(err) = self.write(&mut wire, request).await {
            // An engine that will not have it answers before it has read all, and hangs up.
            if let HttpError::Broken { .. } = err
                && let Ok((head, rest)) = self.read_head(&mut wire, Some(SOON)).await
                && head.status >= 400
            {
                return self.refused(head, rest, wire, has_body).await;
            }
            return Err(err);
        }
        let (head, rest) = self.read_head(&mut wire, patience).await?;
        if head.status >= 400 {
            return self.refused(head, rest, wire, has_body).await;
        }
        let framing = head.framing(has_body, upgrade);
        Ok(Answer { headers: head.headers, body: Body::new(wire, rest, framing) })
    }

    async fn refused(
        &self,
        head: Head,
        rest: BytesMut,
        wire: Wire,
        has_body: bool,
    ) -> HttpResult<Answer> {
        let framing = head.framing(has_body, false);
        let told = Body::new(wire, rest, framing).some(MESSAGE_MAX).await.unwrap_or_default();
        let message = match serde_json::from_slice::<Value>(&told) {
            Ok(value) => value["message"]
                .as_str()
                .or_else(|| value["cause"].as_str())
                .map_or_else(|| value.to_string(), str::to_owned),
            Err(_) => String::from_utf8_lossy(&told).trim().to_owned(),
        };
        let message = match message.is_empty() {
            true => format!("the engine answers {}", head.status),
            false => message,
        };
        Err(HttpError::Refused { status: head.status, message })
    }

    async fn connect(&self) -> HttpResult<Wire> {
        let connect_error =
            |source| HttpError::Connect { endpoint: self.endpoint.to_string(), source };
        match timeout(CONNECT, Wire::open(&self.endpoint, self.tls.as_deref())).await {
            Ok(result) => result.map_err(connect_error),
            Err(_) => Err(connect_error(io::ErrorKind::TimedOut.into())),
        }
    }

    fn broken(&self, source: io::Error) -> HttpError {
        HttpError::Broken { endpoint: self.endpoint.to_string(), source }
    }

    async fn write(&self, wire: &mut Wire, request: Request) -> HttpResult<()> {
        let mut head = request.head(&self.endpoint.host());
        let broken = |err| self.broken(err);
        match request.content {
            Content::Nothing => {
                head.push_str("\r\n");
                wire.write_all(head.as_bytes()).await.map_err(broken)?;
            }
            Content::Json(value) => {
                let text = value.to_string();
                let _ = write!(head, "Content-Length: {}\r\n\r\n", text.len());
                head.push_str(&text);
                wire.write_all(head.as_bytes()).await.map_err(broken)?;
            }
            Content::Stream(mut stream) => {
                head.push_str("\r\n");
                wire.write_all(head.as_bytes()).await.map_err(broken)?;
                while let Some(bytes) = stream.next().await {
                    let bytes: Bytes = bytes.map_err(HttpError::Source)?;
                    if bytes.is_empty() {
                        continue;
                    }
                    let size = format!("{:x}\r\n", bytes.len());
                    wire.write_all(size.as_bytes()).await.map_err(broken)?;
                    wire.write_all(&bytes).await.map_err(broken)?;
                    wire.write_all(b"\r\n").await.map_err(broken)?;
                }
                wire.write_all(b"0\r\n\r\n").await.map_err(broken)?;
            }
        }
        wire.flush().await.map_err(broken)
    }

    async fn read_head(
        &self,
        wire: &mut Wire,
        patience: Option<Duration>,
    ) -> HttpResult<(Head, BytesMut)> {
        let mut buffer = BytesMut::with_capacity(4096);
        let read = async {
            loop {
                if let Some(end) = find_end(&buffer) {
                    let head = Head::parse(&buffer[..end]).map_err(|what| self.odd(what))?;
                    let rest = buffer.split_off(end);
                    // Only told that there is more to come.
                    if head.status == 100 {
                        buffer = rest;
                        continue;
                    }
                    return Ok((head, rest));
                }
                if buffer.len() > HEAD_MAX {
                    return Err(self.odd("a head without an end"));
                }
                if wire.read_buf(&mut buffer).await.map_err(|err| self.broken(err))? == 0 {
                    return Err(self.broken(io::ErrorKind::UnexpectedEof.into()));
                }
            }
        };
        match patience {
            None => read.await,
            Some(after) => timeout(after, read).await.unwrap_or_else(|_| {
                Err(HttpError::Silent { endpoint: self.endpoint.to_string(), after })
            }),
        }
    }

    fn odd(&self, what: &'static str) -> HttpError {
        HttpError::Odd { endpoint: self.endpoint.to_string(), what }
    }
}

fn find_end(buffer: &[u8]) -> Option<usize> {
    buffer.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

/// How far a body goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    Length(u64),
    Chunked,
    ToTheEnd,
}

#[derive(Debug)]
struct Head {
    status: u16,
    headers: Vec<(String, String)>,
}

impl Head {
    fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let text = std::str::from_utf8(bytes).map_err(|_| "a head that is no text")?;
        let mut lines = text.split("\r\n");
        let mut words = lines.next().unwrap_or_default().split_ascii_whitespace();
        let is_http = words.next().is_some_and(|word| word.starts_with("HTTP/1."));
        let status = words.next().and_then(|word| word.parse().ok());
        let status = status.filter(|_| is_http).ok_or("a first line of its own kind")?;
        let mut headers = Vec::new();
        for line in lines.take_while(|line| !line.is_empty()) {
            let (key, value) = line.split_once(':').ok_or("a header without a colon")?;
            headers.push((key.trim().to_owned(), value.trim().to_owned()));
        }
        Ok(Self { status, headers })
    }

    fn framing(&self, has_body: bool, upgrade: bool) -> Framing {
        let find = |name: &str| {
            let found = self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.as_str())
        };
        if !has_body || matches!(self.status, 204 | 304) {
            return Framing::Length(0);
        }
        if self.status == 101 || upgrade {
            return Framing::ToTheEnd;
        }
        if find("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            return Framing::Chunked;
        }
        match find("content-length").and_then(|value| value.parse().ok()) {
            Some(length) => Framing::Length(length),
            None => Framing::ToTheEnd,
        }
    }
}

#[cfg(test)]
mod tests;
