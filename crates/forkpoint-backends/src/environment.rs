//! The time, randomness and tasks of a real process.

use std::time::Duration;

use forkpoint_core::{Environment, Timestamp};
use futures::future::{BoxFuture, FutureExt as _};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Handle;

/// Needs a tokio runtime: tasks are spawned on the one that it was made on.
#[derive(Clone, Debug)]
pub struct SystemEnvironment {
    runtime: Handle,
}

impl SystemEnvironment {
    #[must_use]
    pub fn new(runtime: Handle) -> Self {
        Self { runtime }
    }
}

impl Environment for SystemEnvironment {
    #[expect(clippy::disallowed_methods, reason = "this is where the time comes from")]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn random(&self) -> u128 {
        let mut bytes = [0; 16];
        let mut filled = 0;
        while filled < bytes.len() {
            // Fails only when a signal interrupts the wait for the first seed after boot.
            let flags = rustix::rand::GetRandomFlags::empty();
            filled += rustix::rand::getrandom(&mut bytes[filled..], flags).unwrap_or(0);
        }
        u128::from_le_bytes(bytes)
    }

    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        tokio::time::sleep(time).boxed()
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.runtime.spawn(task);
    }
}

/// Waits a few milliseconds for a moment that lies after everything that was written before, and not
/// after anything that is written from now on, as files are dated: with the time of the last tick,
/// or with a finer one, as the kernel likes.
pub async fn next_tick() -> Timestamp {
    let read = |clock: ClockId| {
        let now = clock_gettime(clock);
        let nanoseconds = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
        Timestamp::from_nanosecond(nanoseconds).unwrap_or(Timestamp::UNIX_EPOCH)
    };
    let begun = read(ClockId::Realtime);
    loop {
        let tick = read(ClockId::RealtimeCoarse);
        // A clock that was set back gives no better answer.
        if tick > begun || read(ClockId::Realtime) < begun {
            return tick;
        }
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
}
