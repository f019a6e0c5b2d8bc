//! How we know again what we made.
//!
//! A container of ours carries [`SANDBOX`] and [`DATA`]; an image of ours carries [`SNAPSHOT`] and
//! [`DATA`]. A container that somebody starts from an image of ours gets the image's labels, and is
//! not ours: so an image never carries a sandbox.

use std::fmt;

use forkpoint_core::id::{SandboxId, SnapshotId};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

pub(super) const SANDBOX: &str = "forkpoint.sandbox";
/// Which data directory it belongs to.
pub(super) const DATA: &str = "forkpoint.data";
/// Of a container what it was made from, of an image what it is.
pub(super) const SNAPSHOT: &str = "forkpoint.snapshot";
/// That the first of these containers was not made by us.
pub(super) const ADOPTED: &str = "forkpoint.adopted";
/// The host name that nobody chose.
pub(super) const HOSTNAME: &str = "forkpoint.hostname";
/// How many layers there were before anything was written.
pub(super) const ORIGIN: &str = "forkpoint.origin";
/// Of an image, the container that was sealed, and the how-manieth of it this is.
pub(super) const SOURCE: &str = "forkpoint.source";
pub(super) const SEQUENCE: &str = "forkpoint.sequence";
/// Of an image, the sandbox that was sealed.
pub(super) const OF: &str = "forkpoint.of";
/// That its first process only waits.
pub(super) const IDLE: &str = "forkpoint.idle";
/// Of a container, volumes that nobody named, and that it names only because it was rolled back.
pub(super) const NAMELESS: &str = "forkpoint.nameless";
/// Of a volume, where it is mounted.
pub(super) const VOLUME: &str = "forkpoint.volume";

/// Which of an engine's things belong to one data directory.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct DataId(pub(super) String);

impl fmt::Debug for DataId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

pub(super) fn of<'a>(labels: &'a Value, key: &str) -> Option<&'a str> {
    labels[key].as_str().filter(|value| !value.is_empty())
}

/// For the query of a list.
pub(super) fn filter(labels: &[(&str, &str)]) -> String {
    let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    json!({ "label": labels }).to_string()
}

/// The id of a sandbox that we did not make.
pub(super) fn adopted_id(container: &str) -> SandboxId {
    let digest = Sha256::digest(format!("docker container {container}"));
    let mut bits = [0; 16];
    bits.copy_from_slice(&digest[..16]);
    SandboxId::from_u128(u128::from_be_bytes(bits))
}

/// The name of a snapshot's image.
pub(super) fn repository(snapshot: SnapshotId) -> String {
    format!("forkpoint/{snapshot}")
}

pub(super) fn tag(snapshot: SnapshotId) -> String {
    format!("forkpoint/{snapshot}:latest")
}

/// Without the registry that Podman writes in front of every name.
pub(super) fn plain(tag: &str) -> &str {
    let local = ["docker.io/", "localhost/"].iter().find_map(|prefix| tag.strip_prefix(prefix));
    local.unwrap_or(tag)
}

/// Which snapshots an image of ours is: those that it is named after, or if somebody took the names
/// away, the one that it was made as.
pub(super) fn snapshots_of(tags: &Value, labels: &Value) -> Vec<SnapshotId> {
    let tags = tags.as_array().into_iter().flatten().filter_map(Value::as_str);
    let named =
        |tag: &str| plain(tag).strip_prefix("forkpoint/")?.strip_suffix(":latest")?.parse().ok();
    let named: Vec<SnapshotId> = tags.filter_map(named).collect();
    match named.is_empty() {
        true => of(labels, SNAPSHOT).and_then(|text| text.parse().ok()).into_iter().collect(),
        false => named,
    }
}

/// A piece is an image, or whatever else was kept for one snapshot.
pub(super) fn piece(data: &DataId, snapshot: SnapshotId) -> String {
    format!("docker:{}:{snapshot}", data.0)
}

pub(super) fn parse_piece(data: &DataId, piece: &str) -> Option<SnapshotId> {
    let rest = piece.strip_prefix("docker:")?.strip_prefix(data.0.as_str())?;
    rest.strip_prefix(':')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pieces_of_ours_are_understood() {
        let data = DataId("0123".to_owned());
        let snapshot = SnapshotId::from_u128(7);
        let name = piece(&data, snapshot);
        assert_eq!(parse_piece(&data, &name), Some(snapshot));
        assert_eq!(parse_piece(&DataId("012".to_owned()), &name), None);
        for odd in ["", "docker:", "docker:0123:", "docker:0123:snp", "sha256:00", "busybox"] {
            assert_eq!(parse_piece(&data, odd), None, "{odd}");
        }
    }

    #[test]
    fn an_adopted_id_follows_from_the_container() {
        assert_eq!(adopted_id("a"), adopted_id("a"));
        assert_ne!(adopted_id("a"), adopted_id("b"));
    }
}
