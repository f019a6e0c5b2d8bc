//! What happens to a container, as the engine tells it.

use std::{collections::VecDeque, io, sync::Arc};

use bytes::{Buf as _, BytesMut};
use forkpoint_core::{
    driver::{DriverError, DriverResult, EventStream, SandboxEvent},
    id::SandboxId,
};
use futures::{StreamExt as _, stream};
use serde_json::{Value, json};

use super::{
    DRIVER,
    engine::{failed, query},
    host::Host,
    http::{Body, Request},
};

/// Longer than an engine tells of anything.
const LINE_MAX: usize = 1 << 20;

/// Signals that are meant to end: whoever sent one asked for it.
const ENDING: [&str; 8] = ["2", "3", "9", "15", "SIGINT", "SIGQUIT", "SIGKILL", "SIGTERM"];

struct Listening {
    host: Arc<Host>,
    sandbox: SandboxId,
    body: Body,
    bytes: BytesMut,
    asked: bool,
    ready: VecDeque<SandboxEvent>,
}

impl Host {
    pub(super) async fn events(self: &Arc<Self>, sandbox: SandboxId) -> DriverResult<EventStream> {
        let listening = Listening {
            body: self.listen(sandbox, None).await?,
            host: Arc::clone(self),
            sandbox,
            bytes: BytesMut::new(),
            asked: false,
            ready: VecDeque::new(),
        };
        let events = stream::unfold(Some(listening), |listening| async {
            let mut listening = listening?;
            match listening.next().await {
                Ok(Some(event)) => Some((Ok(event), Some(listening))),
                Ok(None) => None,
                Err(err) => Some((Err(err), None)),
            }
        });
        Ok(events.boxed())
    }

    /// From then on, or from now on, of the container that the sandbox is now.
    async fn listen(&self, sandbox: SandboxId, since: Option<String>) -> DriverResult<Body> {
        let container = self.container(sandbox).await?;
        let filters = json!({ "type": ["container"], "container": [container.id()] }).to_string();
        let mut pairs = vec![("filters", filters.as_str())];
        pairs.extend(since.as_deref().map(|since| ("since", since)));
        let request = Request::new("GET", format!("/events{}", query(&pairs)));
        let answer = self.engine.send(request.patience(None)).await;
        Ok(answer.map_err(failed("listen for events"))?.body.patient())
    }
}

impl Listening {
    async fn next(&mut self) -> DriverResult<Option<SandboxEvent>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            match self.line().await? {
                Some(told) => self.understand(&told).await?,
                None => return Ok(None),
            }
        }
    }

    async fn understand(&mut self, told: &Value) -> DriverResult<()> {
        let attributes = &told["Actor"]["Attributes"];
        match told["Action"].as_str().or(told["status"].as_str()).unwrap_or_default() {
            "start" => {
                self.asked = false;
                self.ready.push_back(SandboxEvent::Started);
            }
            "kill" => {
                let signal = attributes["signal"].as_str().unwrap_or_default();
                self.asked |= ENDING.contains(&signal);
            }
            "die" => {
                let code = attributes["exitCode"].as_str().and_then(|code| code.parse().ok());
                let (code, asked) = (code.unwrap_or(-1), std::mem::take(&mut self.asked));
                self.ready.push_back(SandboxEvent::Ended { code, asked });
            }
            // A rollback puts another container in its place.
            "destroy" => match self.host.find(self.sandbox).await? {
                Some(_) => {
                    // What happened to the new one meanwhile is told too.
                    let since = told["timeNano"].as_u64().map(moment);
                    self.body = self.host.listen(self.sandbox, since).await?;
                    self.bytes.clear();
                }
                None => self.ready.push_back(SandboxEvent::Removed),
            },
            _ => {}
        }
        Ok(())
    }

    /// One document; `None` when the engine has no more to say.
    async fn line(&mut self) -> DriverResult<Option<Value>> {
        loop {
            if let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
                let line = self.bytes.split_to(end);
                self.bytes.advance(1);
                match serde_json::from_slice(&line) {
                    Ok(told) => return Ok(Some(told)),
                    // What is none is not about the container.
                    Err(_) => continue,
                }
            }
            if self.bytes.len() > LINE_MAX {
                return Err(broken(io::Error::other("a line of its events has no end")));
            }
            match self.body.next().await.map_err(broken)? {
                Some(bytes) => self.bytes.extend_from_slice(&bytes),
                None => return Ok(None),
            }
        }
    }
}

/// As an engine reads it.
fn moment(nanoseconds: u64) -> String {
    const SECOND: u64 = 1_000_000_000;
    format!("{}.{:09}", nanoseconds / SECOND, nanoseconds % SECOND)
}

fn broken(err: io::Error) -> DriverError {
    DriverError::Unreachable { driver: DRIVER, source: err.into() }
}
