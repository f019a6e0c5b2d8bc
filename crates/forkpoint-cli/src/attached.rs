//! A command in a sandbox, connected to our own streams and signals until it ends.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use forkpoint_core::{
    driver::{ByteSink, DriverResult, ExitStatus, Process, ProcessControl},
    part::ByteStream,
};
use futures::{
    SinkExt as _, StreamExt as _,
    future::{Either, join, select},
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::{
    signal::{SIGWINCH, Signals},
    terminal,
};

const CHUNK: usize = 64 * 1024;

/// How long the streams may be silent after the command's end before we leave. What the command
/// wrote is read by then; what it left running in the background may hold them open for ever.
const SILENCE: Duration = Duration::from_millis(200);

/// Runs to the command's end. Signals go to the command; ours is to wait for it.
pub(crate) async fn attend(process: Process, signals: &mut Signals) -> DriverResult<ExitStatus> {
    let Process { stdin, stdout, stderr, control } = process;
    if let Some(stdin) = stdin {
        // Left alone at the end: a read from a terminal cannot be called back.
        tokio::spawn(feed(tokio::io::stdin(), stdin));
    }
    let flow = Arc::new(Flow::default());
    let out = tokio::spawn(copy(stdout, tokio::io::stdout(), Arc::clone(&flow)));
    let err = tokio::spawn(copy(stderr, tokio::io::stderr(), Arc::clone(&flow)));
    let status = wait(control.as_ref(), signals).await?;
    drain(&flow, async {
        let _ = join(out, err).await;
    })
    .await;
    Ok(status)
}

async fn wait(control: &dyn ProcessControl, signals: &mut Signals) -> DriverResult<ExitStatus> {
    let mut end = control.wait();
    loop {
        let signal = match select(&mut end, pin!(signals.next())).await {
            Either::Left((status, _)) => return status,
            Either::Right((signal, _)) => signal,
        };
        let sent = match signal {
            SIGWINCH => control.resize(terminal::size()).await,
            signal => control.signal(signal).await,
        };
        if let Err(err) = sent {
            // It may have ended a moment ago; if not, the next signal tries again.
            tracing::warn!(signal, error = %err, "the command did not get it");
        }
    }
}

/// What the two copies are doing.
#[derive(Debug, Default)]
struct Flow {
    chunks: AtomicU64,
    /// Chunks that our own reader has not taken yet.
    held_up: AtomicU64,
}

async fn drain(flow: &Flow, ends: impl Future<Output = ()>) {
    let mut ends = pin!(ends);
    loop {
        let before = flow.chunks.load(Ordering::Relaxed);
        match select(&mut ends, pin!(tokio::time::sleep(SILENCE))).await {
            Either::Left(_) => return,
            Either::Right(_) => {
                let silent = flow.chunks.load(Ordering::Relaxed) == before;
                if silent && flow.held_up.load(Ordering::Relaxed) == 0 {
                    return;
                }
            }
        }
    }
}

/// Until either side is closed. When nobody reads our stream any more, dropping the command's is
/// how the command hears of it.
async fn copy(mut from: ByteStream, mut to: impl AsyncWrite + Unpin, flow: Arc<Flow>) {
    while let Some(Ok(bytes)) = from.next().await {
        flow.chunks.fetch_add(1, Ordering::Relaxed);
        flow.held_up.fetch_add(1, Ordering::Relaxed);
        let written = async {
            to.write_all(&bytes).await?;
            to.flush().await
        };
        let written = written.await;
        flow.held_up.fetch_sub(1, Ordering::Relaxed);
        if written.is_err() {
            return;
        }
    }
}

/// Until our input ends, or the command no longer wants it.
async fn feed(mut from: impl AsyncRead + Unpin, mut to: ByteSink) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(len @ 1..) = from.read(&mut buffer).await {
        if to.send(Bytes::copy_from_slice(&buffer[..len])).await.is_err() {
            return;
        }
    }
    let _ = to.close().await;
}
