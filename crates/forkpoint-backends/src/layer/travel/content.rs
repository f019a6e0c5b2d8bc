//! What is in a file, piece by piece: a large one is never in memory as a whole.

use std::{
    fs::File,
    io,
    os::{fd::OwnedFd, unix::fs::FileExt as _},
    path::PathBuf,
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use forkpoint_core::part::Extent;
use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use rustix::{
    fs::{Mode, OFlags, ResolveFlags, SeekFrom, Stat, fstat, openat2, seek},
    io::Errno,
};

use super::super::{cursor::FileId, site::file_id};

const CHUNK: u64 = 1 << 20;

/// A regular file of a layer. It is opened when somebody asks for it, since whoever reads a tree may
/// keep more entries than there can be open files.
pub(super) struct Content {
    tree: Arc<OwnedFd>,
    path: PathBuf,
    id: FileId,
    len: u64,
    open: Option<File>,
    /// How far it was read, and where the data ends that is there.
    at: u64,
    until: u64,
}

impl Content {
    /// `path` is one from the root of a layer's tree.
    pub(super) fn new(tree: &Arc<OwnedFd>, path: PathBuf, stat: &Stat) -> Self {
        let len = u64::try_from(stat.st_size).unwrap_or_default();
        let (id, tree) = (file_id(stat), Arc::clone(tree));
        Self { tree, path, id, len, open: None, at: 0, until: 0 }
    }

    pub(super) fn stream(self) -> BoxStream<'static, io::Result<Extent>> {
        stream::try_unfold(self, |mut content| async {
            let next = move || Ok(content.next()?.map(|extent| (extent, content)));
            tokio::task::spawn_blocking(next).await.map_err(io::Error::other)?
        })
        .boxed()
    }

    pub(super) fn next(&mut self) -> io::Result<Option<Extent>> {
        let file = match self.open.take() {
            Some(file) => file,
            None => self.open()?,
        };
        if self.at == self.until && !self.find(&file)? {
            return Ok(self.end());
        }
        let offset = self.at;
        let len = (self.until - offset).min(CHUNK);
        let mut buffer = BytesMut::zeroed(usize::try_from(len).unwrap_or_default());
        file.read_exact_at(&mut buffer, offset)?;
        self.at += len;
        self.open = Some(file);
        Ok(Some(Extent { offset, bytes: buffer.freeze() }))
    }

    /// Says that there is nothing more, where data do not: once, and at the end.
    fn end(&mut self) -> Option<Extent> {
        let is_hole = self.at < self.len;
        (self.at, self.until) = (self.len, self.len);
        is_hole.then(|| Extent { offset: self.len, bytes: Bytes::new() })
    }

    fn open(&self) -> io::Result<File> {
        // The layer may be going away, and something else may be in its place: nobody waits for a fifo.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let open = |flags| openat2(&*self.tree, &self.path, flags, Mode::empty(), resolve);
        let file = match open(flags | OFlags::NOATIME) {
            Err(Errno::PERM) => open(flags)?,
            opened => opened?,
        };
        let stat = fstat(&file)?;
        if file_id(&stat) != self.id || u64::try_from(stat.st_size) != Ok(self.len) {
            return Err(io::Error::other(format!("`{}` has changed", self.path.display())));
        }
        Ok(File::from(file))
    }

    /// Goes to the next data behind a hole.
    fn find(&mut self, file: &File) -> io::Result<bool> {
        if self.at == self.len {
            return Ok(false);
        }
        self.at = match seek(file, SeekFrom::Data(self.at)) {
            Ok(start) if start < self.len => start,
            Ok(_) | Err(Errno::NXIO) => return Ok(false),
            // Not every file system tells where its holes are.
            Err(Errno::INVAL) => {
                self.until = self.len;
                return Ok(true);
            }
            Err(err) => return Err(err.into()),
        };
        self.until = seek(file, SeekFrom::Hole(self.at))?.min(self.len);
        Ok(true)
    }
}

/// The whole of a file without holes.
pub(super) fn whole(bytes: Bytes) -> BoxStream<'static, io::Result<Extent>> {
    let extent = (!bytes.is_empty()).then_some(Ok(Extent { offset: 0, bytes }));
    stream::iter(extent).boxed()
}
