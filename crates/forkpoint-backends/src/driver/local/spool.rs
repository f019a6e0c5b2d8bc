//! What is to be written into a sandbox, until all of it is there.
//!
//! Whoever sends it may be slow, and nobody should wait for them with a lock in hand.

use std::{
    fs::File,
    io::{self, Seek as _, Write as _},
    path::Path,
};

use forkpoint_core::part::ByteStream;
use futures::TryStreamExt as _;
use rustix::fs::{CWD, Mode, OFlags, openat};

/// What is larger goes to the disk.
const MEMORY_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Spool {
    memory: Vec<u8>,
    /// Has no name, and goes with its descriptor.
    disk: Option<File>,
}

impl Spool {
    pub(super) async fn take(directory: &Path, mut bytes: ByteStream) -> io::Result<Self> {
        let mut spool = Self { memory: Vec::new(), disk: None };
        while let Some(chunk) = bytes.try_next().await? {
            spool.memory.extend_from_slice(&chunk);
            if spool.memory.len() > MEMORY_MAX {
                let directory = directory.to_owned();
                let spilled = tokio::task::spawn_blocking(move || spool.spill(&directory));
                spool = spilled.await.map_err(io::Error::other)??;
            }
        }
        Ok(spool)
    }

    fn spill(mut self, directory: &Path) -> io::Result<Self> {
        let file = match &mut self.disk {
            Some(file) => file,
            none => {
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                let file = openat(CWD, directory, flags, Mode::RUSR | Mode::WUSR)?;
                none.insert(File::from(file))
            }
        };
        file.write_all(&self.memory)?;
        self.memory.clear();
        Ok(self)
    }

    pub(super) fn copy_to(self, mut file: File) -> io::Result<()> {
        if let Some(mut disk) = self.disk {
            disk.rewind()?;
            io::copy(&mut disk, &mut file)?;
        }
        file.write_all(&self.memory)
    }
}
