//! What a command says and is told, over one connection.

use std::io;

use bytes::{Buf as _, Bytes, BytesMut};
use forkpoint_core::{driver::ByteSink, part::ByteStream};
use futures::{StreamExt as _, stream};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf},
    sync::{mpsc, watch},
};

use super::super::http::Wire;

/// Of one piece of output.
const FRAME_MAX: usize = 16 << 20;

/// Reads what both streams say from one connection.
pub(super) struct Pump {
    pub(super) reader: ReadHalf<Wire>,
    pub(super) buffer: BytesMut,
    pub(super) stdout: mpsc::Sender<Bytes>,
    pub(super) stderr: mpsc::Sender<Bytes>,
    pub(super) tty: bool,
}

impl Pump {
    pub(super) async fn run(mut self) -> io::Result<()> {
        loop {
            if self.tty && !self.buffer.is_empty() {
                let bytes = self.buffer.split().freeze();
                // Nobody listens any more: what comes is read all the same, so that it can go on.
                let _ = self.stdout.send(bytes).await;
            }
            while !self.tty
                && let Some((is_error, bytes)) = self.frame()?
            {
                let to = if is_error { &self.stderr } else { &self.stdout };
                let _ = to.send(bytes).await;
            }
            self.buffer.reserve(64 << 10);
            if self.reader.read_buf(&mut self.buffer).await? == 0 {
                return Ok(());
            }
        }
    }

    /// Eight bytes before each piece: which stream, and how long.
    fn frame(&mut self) -> io::Result<Option<(bool, Bytes)>> {
        let Some(head) = self.buffer.first_chunk::<8>() else { return Ok(None) };
        let [kind, _, _, _, len @ ..] = *head;
        let len = u32::from_be_bytes(len) as usize;
        if kind > 3 || len > FRAME_MAX {
            return Err(io::Error::other("the engine's streams are out of step"));
        }
        if self.buffer.len() < 8 + len {
            return Ok(None);
        }
        self.buffer.advance(8);
        Ok(Some((kind >= 2, self.buffer.split_to(len).freeze())))
    }
}

/// One of the streams, and what of it was read to learn whether the command ran.
pub(super) struct Buffered {
    early: Option<Bytes>,
    from: mpsc::Receiver<Bytes>,
}

impl Buffered {
    pub(super) fn new(from: mpsc::Receiver<Bytes>) -> Self {
        Self { early: None, from }
    }

    /// What it says first, which is said again later.
    pub(super) async fn peek(&mut self) -> Option<String> {
        self.early = self.from.recv().await;
        self.early.as_ref().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    pub(super) async fn drain(&mut self) -> String {
        let mut said = Vec::new();
        while let Some(bytes) = self.from.recv().await {
            said.extend_from_slice(&bytes);
        }
        String::from_utf8_lossy(&said).into_owned()
    }

    pub(super) fn stream(self) -> ByteStream {
        let rest = stream::unfold(self.from, |mut from| async move {
            let bytes = from.recv().await?;
            Some((Ok(bytes), from))
        });
        stream::iter(self.early.map(Ok)).chain(rest).boxed()
    }
}

/// Its end is the end of the command's input.
pub(super) fn sink(writer: WriteHalf<Wire>) -> ByteSink {
    let (to, mut from) = mpsc::channel::<Bytes>(1);
    let (fail, failed) = watch::channel(None::<String>);
    tokio::spawn(async move {
        let mut writer = writer;
        while let Some(bytes) = from.recv().await {
            if let Err(err) = writer.write_all(&bytes).await {
                fail.send_replace(Some(err.to_string()));
                return;
            }
        }
        let _ = writer.shutdown().await;
    });
    Box::pin(futures::sink::unfold((to, failed), |(to, failed), bytes: Bytes| async move {
        let sent = to.send(bytes).await;
        let failure = failed.borrow().clone();
        match (sent, failure) {
            (Ok(()), None) => Ok((to, failed)),
            (_, reason) => {
                let reason = reason.unwrap_or_else(|| "the command is gone".to_owned());
                Err(io::Error::new(io::ErrorKind::BrokenPipe, reason))
            }
        }
    }))
}
