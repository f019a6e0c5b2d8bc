//! What is compared line by line, and what is too large or no text for that.

use std::{os::unix::ffi::OsStringExt as _, path::Path, time::Duration};

use forkpoint_core::{
    Error, ErrorKind,
    driver::{FileFacts, FileKind},
    engine::Look,
    path::SandboxPath,
};
use futures::TryStreamExt as _;
use similar::{Algorithm, DiffOp};

/// What is larger is compared as a whole.
const TEXT_MAX: u64 = 8 << 20;

/// After this, a coarser answer, which is as true.
const COMPARING_MAX: Duration = Duration::from_secs(2);

/// One side of a change.
#[derive(Debug)]
pub(super) enum Content {
    Missing,
    Text(Vec<u8>),
    /// By its length.
    Binary(u64),
}

impl Content {
    /// Of a file its bytes, of a link its target; of anything else nothing.
    pub(super) async fn read(
        look: &Look,
        path: &Path,
        facts: Option<&FileFacts>,
    ) -> Result<Self, Error> {
        let Some(facts) = facts else { return Ok(Self::Missing) };
        let path = SandboxPath::new(path)?;
        let bytes = match facts.kind {
            FileKind::Symlink => look.read_link(&path).await?.into_os_string().into_vec(),
            FileKind::File if facts.len_bytes > TEXT_MAX => {
                return Ok(Self::Binary(facts.len_bytes));
            }
            FileKind::File => match read(look, &path).await? {
                Some(bytes) => bytes,
                None => return Ok(Self::Binary(facts.len_bytes)),
            },
            _ => return Ok(Self::Missing),
        };
        Ok(match bytes.contains(&0) {
            true => Self::Binary(bytes.len() as u64),
            false => Self::Text(bytes),
        })
    }

    pub(super) fn len_bytes(&self) -> u64 {
        match self {
            Self::Missing => 0,
            Self::Text(bytes) => bytes.len() as u64,
            Self::Binary(len) => *len,
        }
    }

    /// `None` for what has no lines.
    pub(super) fn lines(&self) -> Option<Vec<&[u8]>> {
        match self {
            Self::Missing => Some(Vec::new()),
            Self::Text(bytes) => Some(bytes.split_inclusive(|byte| *byte == b'\n').collect()),
            Self::Binary(_) => None,
        }
    }
}

/// `None` when it grew too large meanwhile.
async fn read(look: &Look, path: &SandboxPath) -> Result<Option<Vec<u8>>, Error> {
    let mut stream = look.read(path).await?;
    let mut bytes = Vec::new();
    let failed = |err| {
        Error::new(ErrorKind::Unavailable, format!("failed to read `{path}`")).with_source(err)
    };
    while let Some(chunk) = stream.try_next().await.map_err(failed)? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() as u64 > TEXT_MAX {
            return Ok(None);
        }
    }
    Ok(Some(bytes))
}

pub(super) fn compare(before: &[&[u8]], after: &[&[u8]]) -> Vec<DiffOp> {
    let deadline = tokio::time::Instant::now() + COMPARING_MAX;
    similar::capture_diff_slices_deadline(
        Algorithm::Myers,
        before,
        after,
        Some(deadline.into_std()),
    )
}

/// Lines that came and that went.
pub(super) fn count(ops: &[DiffOp]) -> (usize, usize) {
    let changed = ops.iter().filter(|op| !matches!(op, DiffOp::Equal { .. }));
    changed.fold((0, 0), |(added, removed), op| {
        (added + op.new_range().len(), removed + op.old_range().len())
    })
}
