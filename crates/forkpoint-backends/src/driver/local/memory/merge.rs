//! Chains of images that became long are made short, while everything runs.
//!
//! `merged/<snapshot>.<sandbox>` is the image of a sandbox's last full snapshot once more, in which several of its chain
//! are one. The next snapshot lies over it, and takes it over as its own. Until then it is nobody's, and can be lost: then
//! the chain grows on.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use forkpoint_checkpoint::{
    Chain,
    image::{Image, ImageError},
};
use forkpoint_core::{
    driver::DriverResult,
    id::{SandboxId, SnapshotId},
};
use serde::{Deserialize, Serialize};

use super::KeptMemory;
use crate::driver::local::{
    host::{Host, io_error},
    record::Record,
    spawner::Order,
};

/// A restore looks into each image. From so many on they are merged by somebody for whom nobody waits; if the next
/// snapshots come before that is done, the one with [`TOO_LONG`] waits for it.
const LONG: usize = 16;
const TOO_LONG: usize = 32;

/// Images that are to be one.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::driver::local) struct MergeWork {
    /// The lowest first.
    images: Vec<PathBuf>,
    /// Those below stay as they are.
    from: usize,
    into: PathBuf,
    /// Of the sandbox that it is for.
    place: PathBuf,
}

impl MergeWork {
    pub(in crate::driver::local) fn run(&self) -> Result<(), ImageError> {
        Chain::open(self.images.clone())?.merge(self.from, &self.into)?;
        // Whoever took the sandbox or the snapshot away meanwhile may have looked for this before it was there.
        if !self.place.exists() || self.images.last().is_some_and(|newest| !newest.exists()) {
            let _ = fs::remove_dir_all(&self.into);
        }
        Ok(())
    }
}

/// What is merged: the lowest has all of the memory, and stays until as much was written since.
fn first_to_merge(memory: &[KeptMemory]) -> usize {
    let Some((lowest, others)) = memory.split_first() else { return 0 };
    usize::from(others.iter().map(|memory| memory.bytes).sum::<u64>() < lowest.bytes)
}

impl Host {
    fn merged(&self) -> PathBuf {
        self.root.join("merged")
    }

    fn merged_of(&self, snapshot: SnapshotId, sandbox: SandboxId) -> PathBuf {
        self.merged().join(format!("{snapshot}.{sandbox}"))
    }

    /// After a full snapshot with these images. Best effort: it is tried again after the next.
    pub(super) fn shorten_memory(
        &self,
        record: &Record,
        snapshot: SnapshotId,
        memory: &[KeptMemory],
    ) {
        self.forget_merged_of(record.id);
        if memory.len() < LONG {
            return;
        }
        // Memory holds secrets.
        let _ = fs::DirBuilder::new().mode(0o700).create(self.merged());
        let work = MergeWork {
            images: memory.iter().map(|memory| self.image_place(memory)).collect(),
            from: first_to_merge(memory),
            into: self.merged_of(snapshot, record.id),
            place: self.place(record.id).directory().to_owned(),
        };
        if memory.len() >= TOO_LONG {
            let _ = work.run();
        } else {
            let _ = self.client.tell(&Order::Merge(work), &[]);
        }
    }

    /// What the next image can lie over instead of the last one of `memory`, and what is below that.
    pub(super) fn find_merged(
        &self,
        record: &Record,
        snapshot: SnapshotId,
        memory: &[KeptMemory],
    ) -> Option<(Image, Vec<KeptMemory>)> {
        let image = Image::open(self.merged_of(snapshot, record.id)).ok()?;
        let below = memory.get(..usize::from(image.parent().is_some()))?;
        for kept in below {
            let lowest = Image::open(self.image_place(kept)).ok()?;
            if image.parent() != Some(lowest.id.to_string().as_str()) {
                return None;
            }
        }
        Some((image, below.to_vec()))
    }

    /// It is the snapshot's from now on.
    pub(super) fn take_over(
        &self,
        merged: &Image,
        snapshot: SnapshotId,
    ) -> DriverResult<KeptMemory> {
        let kept = KeptMemory { image: snapshot, number: Some(0), bytes: merged.pages_len_bytes };
        let to = self.image_place(&kept);
        fs::rename(&merged.path, &to).map_err(io_error("keep", &to))?;
        Ok(kept)
    }

    /// Nobody knows any more what its processes wrote since.
    pub(in crate::driver::local) fn forget_merged_of(&self, id: SandboxId) {
        self.forget_merged(|_, sandbox| sandbox == id.to_string());
    }

    /// Takes away those whose snapshot and sandbox are such, also what is half made: whoever makes it gives up.
    pub(super) fn forget_merged(&self, is_such: impl Fn(&str, &str) -> bool) {
        for path in listed(&self.merged()).unwrap_or_default() {
            let mut parts = name_of(&path).split('.');
            if let (Some(snapshot), Some(sandbox)) = (parts.next(), parts.next())
                && is_such(snapshot, sandbox)
            {
                // What stays wastes room until the next time.
                let _ = self.store.throw_away(&path);
            }
        }
    }
}

fn listed(directory: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path())).collect()
}

fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}
