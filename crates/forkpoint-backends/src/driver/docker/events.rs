//! What happens to a container, as the engine tells it.
//!
//! Events of all containers are listened to: a rollback puts another container in the place of one, and
//! nothing that happens to that one may be missed.

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
    container::PREVIOUS,
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
    /// The container that the sandbox is.
    current: String,
    body: Body,
    bytes: BytesMut,
    asked: bool,
    ready: VecDeque<SandboxEvent>,
}

impl Host {
    pub(super) async fn events(self: &Arc<Self>, sandbox: SandboxId) -> DriverResult<EventStream> {
        let listening = Listening {
            // Before it is looked at, so that nothing falls between.
            body: self.listen().await?,
            current: self.container(sandbox).await?.id().to_owned(),
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

    async fn listen(&self) -> DriverResult<Body> {
        let events = ["start", "kill", "die", "rename", "destroy"];
        let filters = json!({ "type": ["container"], "event": events }).to_string();
        let request = Request::new("GET", format!("/events{}", query(&[("filters", &filters)])));
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
        let action = told["Action"].as_str().or(told["status"].as_str()).unwrap_or_default();
        if action == "rename" {
            return self.look_again().await;
        }
        let actor = &told["Actor"];
        if actor["ID"].as_str().or(told["id"].as_str()) != Some(self.current.as_str()) {
            return Ok(());
        }
        let attribute = |key: &str| actor["Attributes"][key].as_str().unwrap_or_default();
        match action {
            "start" => {
                self.asked = false;
                self.ready.push_back(SandboxEvent::Started);
            }
            "kill" => self.asked |= ENDING.contains(&attribute("signal")),
            "die" => {
                let code = attribute("exitCode").parse().unwrap_or(-1);
                let asked = std::mem::take(&mut self.asked);
                self.ready.push_back(SandboxEvent::Ended { code, asked });
            }
            "destroy" => {
                self.look_again().await?;
                if actor["ID"] == self.current.as_str() {
                    self.ready.push_back(SandboxEvent::Removed);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A rollback puts another container in the place of one; what was there before is not it.
    async fn look_again(&mut self) -> DriverResult<()> {
        let found = self.host.find(self.sandbox).await?;
        if let Some(found) = found.filter(|found| !found.name().starts_with(PREVIOUS))
            && found.id() != self.current
        {
            self.asked = false;
            found.id().clone_into(&mut self.current);
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

fn broken(err: io::Error) -> DriverError {
    DriverError::Unreachable { driver: DRIVER, source: err.into() }
}
