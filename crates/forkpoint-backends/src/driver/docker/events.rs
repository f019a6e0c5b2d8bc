//! What happens to a container, as its engine tells it.

use std::io;

use bytes::BytesMut;
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

/// One event is no longer than this.
const LINE_MAX: usize = 1 << 20;

impl Host {
    pub(super) async fn events(&self, id: SandboxId) -> DriverResult<EventStream> {
        let container = self.container(id).await?;
        let filter = json!({
            "type": ["container"],
            "container": [container.id()],
            "event": ["start", "kill", "die", "destroy"],
        });
        let path = format!("/events{}", query(&[("filters", &filter.to_string())]));
        let answer = self.engine.send(Request::new("GET", path)).await;
        let body = answer.map_err(failed("listen to the engine"))?.body.patient();
        let listener = Listener { body, buffer: BytesMut::new(), asked: false };
        let events = stream::try_unfold(listener, |mut listener| async move {
            let next = listener.next().await.map_err(broken)?;
            Ok(next.map(|event| (event, listener)))
        });
        Ok(events.boxed())
    }
}

fn broken(source: io::Error) -> DriverError {
    DriverError::Unreachable { driver: DRIVER, source: source.into() }
}

struct Listener {
    body: Body,
    buffer: BytesMut,
    /// Whether somebody sent it a signal since it started.
    asked: bool,
}

impl Listener {
    async fn next(&mut self) -> io::Result<Option<SandboxEvent>> {
        loop {
            while let Some(line) = self.line() {
                if let Some(event) = self.understand(&line) {
                    return Ok(Some(event));
                }
            }
            if self.buffer.len() > LINE_MAX {
                return Err(io::Error::other("an event without an end"));
            }
            match self.body.next().await? {
                Some(bytes) => self.buffer.extend_from_slice(&bytes),
                // It never says that it is over: the engine went away.
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }

    fn line(&mut self) -> Option<Value> {
        let end = self.buffer.iter().position(|byte| *byte == b'\n')?;
        let line = self.buffer.split_to(end + 1);
        Some(serde_json::from_slice(&line).unwrap_or_default())
    }

    fn understand(&mut self, told: &Value) -> Option<SandboxEvent> {
        match told["Action"].as_str().or_else(|| told["status"].as_str())? {
            "start" => {
                self.asked = false;
                Some(SandboxEvent::Started)
            }
            "kill" => {
                self.asked = true;
                None
            }
            "die" => {
                let code = &told["Actor"]["Attributes"]["exitCode"];
                let code = code.as_str().and_then(|text| text.parse().ok()).unwrap_or(-1);
                Some(SandboxEvent::Ended { code, asked: self.asked })
            }
            "destroy" => Some(SandboxEvent::Removed),
            _ => None,
        }
    }
}
