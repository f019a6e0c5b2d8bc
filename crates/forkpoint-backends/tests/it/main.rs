//! The catalogs of this crate, against what every catalog must do and against what happens to
//! files.

#![expect(clippy::unwrap_used, reason = "in a test, what cannot be unwrapped is a failure")]

mod docker;
mod layer;
mod local;
mod sqlite;
mod unprivileged;

/// What a driver is asked about by its id alone.
fn artifact_of(snapshot: forkpoint_core::id::SnapshotId) -> forkpoint_core::driver::Artifact {
    forkpoint_core::driver::Artifact {
        snapshot,
        kind: forkpoint_core::driver::SnapshotKind::Files,
        version: 1,
        data: serde_json::Value::Null,
        pieces: Vec::new(),
        own_bytes: 0,
        total_bytes: 0,
        file_count: 0,
        counted: false,
        durable: false,
    }
}
