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
#[cfg(feature = "docker")]
use {
    super::sandbox::read_file,
    bytes::Bytes,
    futures::{StreamExt as _, stream},
};

/// What is larger goes to the disk.
const MEMORY_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(in crate::driver) struct Spool {
    memory: Vec<u8>,
    /// Has no name, and goes with its descriptor.
    disk: Option<File>,
}

impl Spool {
    pub(in crate::driver) async fn take(
        directory: &Path,
        mut bytes: ByteStream,
    ) -> io::Result<Self> {
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

    /// How much it is.
    #[cfg(feature = "docker")]
    pub(in crate::driver) fn len(&self) -> u64 {
        let disk = self.disk.as_ref().and_then(|disk| disk.metadata().ok());
        disk.map_or(0, |disk| disk.len()) + self.memory.len() as u64
    }

    /// All of it, from the beginning.
    #[cfg(feature = "docker")]
    pub(in crate::driver) fn into_stream(self) -> ByteStream {
        let Self { memory, disk } = self;
        let disk = disk.map(|mut disk| match disk.rewind() {
            Ok(()) => read_file(disk),
            Err(err) => stream::iter([Err(err)]).boxed(),
        });
        let memory = stream::once(async move { Ok(Bytes::from(memory)) });
        disk.unwrap_or_else(|| stream::empty().boxed()).chain(memory).boxed()
    }

    /// The same for somebody who may block.
    #[cfg(feature = "docker")]
    pub(in crate::driver) fn into_reader(self) -> io::Result<impl io::Read> {
        let disk: Box<dyn io::Read> = match self.disk {
            Some(mut disk) => {
                disk.rewind()?;
                Box::new(disk)
            }
            None => Box::new(io::empty()),
        };
        Ok(io::Read::chain(disk, io::Cursor::new(self.memory)))
    }
}
