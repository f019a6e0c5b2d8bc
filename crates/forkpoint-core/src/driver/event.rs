//! What happens to a sandbox without our doing.

use futures::stream::BoxStream;

use super::DriverResult;

pub type EventStream = BoxStream<'static, DriverResult<SandboxEvent>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxEvent {
    Started,
    /// Its own command ended.
    Ended {
        code: i64,
        /// Whether somebody had asked it to, so that its code says nothing.
        asked: bool,
    },
    /// The platform has it no longer.
    Removed,
}
