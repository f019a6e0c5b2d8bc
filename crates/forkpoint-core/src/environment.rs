//! Everything that would make a run of the engine unrepeatable.

use std::{fmt::Debug, time::Duration};

use futures::future::BoxFuture;
use jiff::Timestamp;

/// Where time, randomness and tasks come from. Tests pass one in which all three repeat.
pub trait Environment: Debug + Send + Sync {
    fn now(&self) -> Timestamp;

    /// 128 bits that no other call returns, in any process.
    fn random(&self) -> u128;

    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()>;

    /// Runs `task` to its end, whether or not anybody waits for it.
    ///
    /// The engine does all work of an operation in such a task: a request that goes away cancels
    /// the waiting, not the operation.
    fn spawn(&self, task: BoxFuture<'static, ()>);
}
