//! Layers that were looked at before.
//!
//! Who restores or goes back looks at every layer of a chain. A complete one stays as it is until its directory goes as a
//! whole, so one look at its `layer.json` tells whether it is still the same.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustix::fs::{AtFlags, Stat, statat};

use super::{LayerName, LayerRecord, record};

/// When there are more, all are forgotten: each is as long as its names.
const MOST: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct SeenLayers(Mutex<HashMap<LayerName, (Print, LayerRecord)>>);

/// By what a file is known that is only ever replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Print {
    inode: (u64, u64),
    len: i64,
    changed: (i64, i64),
}

impl Print {
    fn of(stat: &Stat) -> Self {
        Self {
            inode: (stat.st_dev, stat.st_ino),
            len: stat.st_size,
            changed: (stat.st_ctime as _, stat.st_ctime_nsec as _),
        }
    }

    /// Of a layer in the directory of all, by its name. To be taken before the file is read.
    pub(super) fn in_layers(layers: &OwnedFd, name: &LayerName) -> Option<Self> {
        let path = format!("{name}/{}", record::FILE.to_string_lossy());
        statat(layers, path, AtFlags::SYMLINK_NOFOLLOW).ok().map(|stat| Self::of(&stat))
    }
}

impl SeenLayers {
    fn all(&self) -> MutexGuard<'_, HashMap<LayerName, (Print, LayerRecord)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it says of itself, if it is as it was.
    pub(super) fn get(&self, name: &LayerName, print: Print) -> Option<LayerRecord> {
        let all = self.all();
        all.get(name).filter(|(seen, _)| *seen == print).map(|(_, record)| record.clone())
    }

    /// One that has all its files.
    pub(super) fn add(&self, print: Print, record: &LayerRecord) {
        let mut all = self.all();
        if all.len() == MOST {
            all.clear();
        }
        all.insert(record.name.clone(), (print, record.clone()));
    }
}
