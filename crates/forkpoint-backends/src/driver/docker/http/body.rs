//! What follows the head of an answer.

use std::{io, time::Duration};

use bytes::{Buf as _, Bytes, BytesMut};
use forkpoint_core::part::ByteStream;
use futures::{StreamExt as _, stream};
use serde_json::Value;
use tokio::{io::AsyncReadExt as _, time::timeout};

use super::{DOCUMENT_MAX, Framing, Wire};

const CHUNK: usize = 64 << 10;

/// Of the line before a piece.
const LINE_MAX: usize = 4 << 10;

/// How long a body may pause. What lasts as long as it lasts has none.
const PAUSE: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(in super::super) struct Body {
    wire: Wire,
    /// Read, and not yet given out.
    buffer: BytesMut,
    framing: Framing,
    /// Of the current piece, if it comes in pieces.
    left: u64,
    ended: bool,
    pause: Option<Duration>,
}

impl Body {
    pub(super) fn new(wire: Wire, buffer: BytesMut, framing: Framing) -> Self {
        let left = if let Framing::Length(length) = framing { length } else { 0 };
        let ended = framing == Framing::Length(0);
        Self { wire, buffer, framing, left, ended, pause: Some(PAUSE) }
    }

    /// For what may be silent for days, as events are.
    pub(in super::super) fn patient(self) -> Self {
        Self { pause: None, ..self }
    }

    /// The next bytes; `None` at the end.
    pub(in super::super) async fn next(&mut self) -> io::Result<Option<Bytes>> {
        match self.pause {
            None => self.read_next().await,
            Some(pause) => match timeout(pause, self.read_next()).await {
                Ok(result) => result,
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            },
        }
    }

    async fn read_next(&mut self) -> io::Result<Option<Bytes>> {
        if self.ended {
            return Ok(None);
        }
        if self.framing == Framing::Chunked && self.left == 0 && !self.next_piece().await? {
            self.ended = true;
            return Ok(None);
        }
        if self.buffer.is_empty() && self.fill().await? == 0 {
            self.ended = true;
            return match self.framing {
                Framing::ToTheEnd => Ok(None),
                _ => Err(cut_short()),
            };
        }
        let len = match self.framing {
            Framing::ToTheEnd => self.buffer.len(),
            _ => self.buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX)),
        };
        let bytes = self.buffer.split_to(len).freeze();
        if self.framing != Framing::ToTheEnd {
            self.left -= len as u64;
            self.finish_piece().await?;
        }
        Ok(Some(bytes))
    }

    async fn fill(&mut self) -> io::Result<usize> {
        self.buffer.reserve(CHUNK);
        self.wire.read_buf(&mut self.buffer).await
    }

    async fn finish_piece(&mut self) -> io::Result<()> {
        if self.left > 0 {
            return Ok(());
        }
        match self.framing {
            Framing::Chunked => {
                while self.buffer.len() < 2 {
                    if self.fill().await? == 0 {
                        return Err(cut_short());
                    }
                }
                self.buffer.advance(2);
            }
            _ => self.ended = true,
        }
        Ok(())
    }

    /// Whether there is one more.
    async fn next_piece(&mut self) -> io::Result<bool> {
        let odd = || io::Error::other("a piece of the answer is malformed");
        let end = loop {
            if let Some(at) = self.buffer.windows(2).position(|two| two == b"\r\n") {
                break at;
            }
            if self.buffer.len() > LINE_MAX {
                return Err(odd());
            }
            if self.fill().await? == 0 {
                return Err(cut_short());
            }
        };
        let line = self.buffer.split_to(end + 2);
        let line = std::str::from_utf8(&line[..end]).map_err(|_| odd())?;
        let length = line.split(';').next().unwrap_or_default().trim();
        self.left = u64::from_str_radix(length, 16).map_err(|_| odd())?;
        Ok(self.left > 0)
    }

    /// As much as there is of it, up to a limit.
    pub(super) async fn some(mut self, max: usize) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        while all.len() < max
            && let Some(bytes) = self.next().await?
        {
            all.extend_from_slice(&bytes[..bytes.len().min(max - all.len())]);
        }
        Ok(all)
    }

    pub(in super::super) async fn all(mut self) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        while let Some(bytes) = self.next().await? {
            if all.len() + bytes.len() > DOCUMENT_MAX {
                return Err(io::Error::other("a document that is too long"));
            }
            all.extend_from_slice(&bytes);
        }
        Ok(all)
    }

    /// A document; nothing is `null`.
    pub(in super::super) async fn json(self) -> io::Result<Value> {
        let all = self.all().await?;
        // Podman ends a line also where there is none.
        match all.trim_ascii().is_empty() {
            true => Ok(Value::Null),
            false => serde_json::from_slice(&all).map_err(io::Error::other),
        }
    }

    pub(in super::super) fn stream(self) -> ByteStream {
        stream::try_unfold(self, |mut body| async move {
            Ok(body.next().await?.map(|bytes| (bytes, body)))
        })
        .boxed()
    }

    /// The connection itself, and what was read of it already.
    pub(in super::super) fn into_wire(self) -> (Wire, BytesMut) {
        (self.wire, self.buffer)
    }
}

fn cut_short() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the answer is cut short")
}
