//! A layer as an archive, for an engine to unpack.

use std::{
    collections::HashMap,
    ffi::{CStr, CString},
    fs::File,
    io::{self, Read as _, Write},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, fstat, major, minor, openat, readlinkat, statat,
};

use super::{VolumeStore, notes};
use crate::{
    layer::{LayerName, LayerResult, all_attributes, list_names, open_child, open_path},
    tar::{
        Entry, EntryKind, Node,
        write::{END, fill, header},
    },
};

/// What was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    pub entries: u64,
    /// Left out, since an archive cannot say them.
    pub sockets: u64,
}

impl VolumeStore {
    /// Writes what `PUT /containers/{id}/archive` takes to make a directory what the volume was. Names
    /// are told from the directory.
    pub fn send(&self, layer: &LayerName, to: impl Write) -> LayerResult<Sent> {
        let path = self.layer(layer)?.tree_path();
        let mut sender =
            Sender { to, sent: Sent::default(), first: HashMap::new(), buffer: vec![0; 1 << 16] };
        let root = open_path(&path)?;
        let sent = sender.directory(&root, b".").and_then(|()| sender.to.write_all(&END));
        sent.map_err(notes::io("send", &path))?;
        Ok(sender.sent)
    }
}

struct Sender<W> {
    to: W,
    sent: Sent,
    /// The first name of what has several in this tree or in other layers.
    first: HashMap<u64, Vec<u8>>,
    buffer: Vec<u8>,
}

impl<W: Write> Sender<W> {
    fn directory(&mut self, root: &OwnedFd, path: &[u8]) -> io::Result<()> {
        // Deeper than any path that an archive can name is nothing that came from one, or can go there.
        let mut pending = vec![(root.try_clone()?, path.to_vec())];
        while let Some((directory, path)) = pending.pop() {
            let stat = fstat(&directory)?;
            let mut entry = described([&*path, b"/"].concat(), EntryKind::Directory, &stat);
            entry.attributes = attributes(directory.as_fd(), None)?;
            self.begin(&entry)?;
            for name in list_names(directory.as_fd())? {
                let below = [&*path, b"/", name.to_bytes()].concat();
                let stat = statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW)?;
                match FileType::from_raw_mode(stat.st_mode) {
                    FileType::Directory => pending.push((open_child(&directory, &name)?, below)),
                    FileType::Socket => self.sent.sockets += 1,
                    kind => self.other(directory.as_fd(), &name, below, kind, &stat)?,
                }
            }
        }
        Ok(())
    }

    fn other(
        &mut self,
        directory: BorrowedFd,
        name: &CStr,
        path: Vec<u8>,
        kind: FileType,
        stat: &Stat,
    ) -> io::Result<()> {
        if stat.st_nlink > 1 {
            if let Some(first) = self.first.get(&stat.st_ino) {
                let mut entry = described(path, EntryKind::HardLink, stat);
                entry.link = first.clone();
                return self.begin(&entry);
            }
            self.first.insert(stat.st_ino, path.clone());
        }
        if kind == FileType::RegularFile {
            return self.file(directory, name, path, stat);
        }
        let (kind, block) = match kind {
            FileType::Symlink => (EntryKind::Symlink, false),
            FileType::Fifo => (EntryKind::Fifo, false),
            kind => (EntryKind::Device, kind == FileType::BlockDevice),
        };
        let mut entry = described(path, kind, stat);
        match kind {
            EntryKind::Symlink => {
                entry.link = readlinkat(directory, name, Vec::new())?.into_bytes();
            }
            EntryKind::Device => {
                let (major, minor) = (major(stat.st_rdev), minor(stat.st_rdev));
                entry.node = Some(Node { block, major, minor });
            }
            _ => {}
        }
        entry.attributes = attributes(directory, Some(name))?;
        self.begin(&entry)
    }

    fn file(
        &mut self,
        directory: BorrowedFd,
        name: &CStr,
        path: Vec<u8>,
        stat: &Stat,
    ) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(directory, name, flags, Mode::empty())?);
        let mut entry = described(path, EntryKind::File, stat);
        entry.len_bytes = stat.st_size as u64;
        entry.attributes = attributes(file.as_fd(), None)?;
        self.begin(&entry)?;
        let mut content = file.take(entry.len_bytes);
        loop {
            let len = content.read(&mut self.buffer)?;
            if len == 0 {
                break;
            }
            self.to.write_all(&self.buffer[..len])?;
        }
        if content.limit() > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.to.write_all(&END[..fill(entry.len_bytes)])
    }

    fn begin(&mut self, entry: &Entry) -> io::Result<()> {
        self.sent.entries += 1;
        self.to.write_all(&header(entry))
    }
}

fn described(path: Vec<u8>, kind: EntryKind, stat: &Stat) -> Entry {
    let mut entry = Entry::new(path, kind);
    entry.mode = stat.st_mode & 0o7777;
    (entry.uid, entry.gid) = (stat.st_uid, stat.st_gid);
    entry.modified = (stat.st_mtime, stat.st_mtime_nsec as u32);
    entry
}

fn attributes(at: BorrowedFd, name: Option<&CStr>) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let all = all_attributes(at, name)?.into_iter();
    Ok(all.map(|(name, value): (CString, _)| (name.into_bytes(), value)).collect())
}
