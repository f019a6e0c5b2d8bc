//! Making the files that are still in bundles.

use std::{
    ffi::{CStr, CString},
    fs::File,
    io::{self, BufReader, Read as _, Write as _},
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
};

use rustix::{
    fs::{
        AtFlags, FlockOperation, Gid, Mode, OFlags, Timespec, Timestamps, Uid, fchmod, fchown,
        flock, futimens, openat, renameat, syncfs, unlinkat,
    },
    io::Errno,
};

use super::{
    Layer, LayerError, LayerName, LayerRecord, LayerResult, LayerStore, Marks,
    bundle::{BLOCK, DIRECTORY, END, FILE, FILE_MAX, MADE, MAGIC, PACKED, PATH_MAX, PREFIX},
    cursor::{id_of, names, open_below, open_directory},
    error::{At as _, During as _, Fault},
    lookup::form_of,
    stage::TREE,
};

impl LayerStore {
    /// Makes what is still in bundles. One does so at a time, and what is thrown away meanwhile is deleted later.
    pub(super) fn unpack(&self, name: &LayerName) -> LayerResult<Layer> {
        let path = || self.path_of(name);
        let (directory, _) = self.directory_of(name)?;
        flock(&directory, FlockOperation::LockExclusive).during("lock").at(path)?;
        let (there, packed) = self.directory_of(name)?;
        let ids = id_of(&there).and_then(|there| Ok((there, id_of(&directory)?)));
        let (there, ours) = ids.during("inspect").at(path)?;
        if there != ours {
            return Err(LayerError::Missing { name: name.to_string() });
        }
        let record = LayerRecord::read(&directory, name)?;
        if packed {
            finish(&directory, &record).map_err(|fault| damage(fault, name, path()))?;
        }
        if let Err(err) = self.directory_of(name) {
            // Somebody threw it away, and whoever empties the trash may have come by while it was locked.
            drop(directory);
            let _ = self.reap();
            return Err(err);
        }
        Ok(self.found(record, false))
    }
}

/// Bundles go when everything was made, and before the layer is whole: nobody looks for them afterwards.
fn finish(layer: &OwnedFd, record: &LayerRecord) -> Result<(), Fault> {
    let bundles = bundles(layer)?;
    if form_of(layer).during("inspect")? == Some(PACKED) {
        make_files(layer, &bundles, record.marks)?;
        if record.synced {
            syncfs(layer).during("write to disk")?;
        }
        renameat(layer, PACKED, layer, MADE).during("name")?;
    }
    for name in &bundles {
        unlinkat(layer, name, AtFlags::empty()).during("clear")?;
    }
    renameat(layer, MADE, layer, TREE).during("name")
}

/// Bundles that are not what they should be are told as such.
fn damage(fault: Fault, name: &LayerName, path: PathBuf) -> LayerError {
    use io::ErrorKind::{InvalidData, UnexpectedEof};
    match fault {
        Fault::Io { source, .. } if matches!(source.kind(), InvalidData | UnexpectedEof) => {
            LayerError::Damaged { name: name.to_string(), reason: source.to_string() }
        }
        fault => fault.at(path),
    }
}

/// Makes every file that is in a bundle. What somebody made who died at it is made again.
fn make_files(layer: &OwnedFd, bundles: &[CString], marks: Marks) -> Result<(), Fault> {
    let root = open_directory(layer, PACKED).during("open")?;
    for name in bundles {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(layer, name, flags, Mode::empty()).during("read")?;
        let reader = BufReader::with_capacity(BLOCK, File::from(file));
        Unpacking { reader, root: &root, marks, folder: None, files: 0 }.run().during("unpack")?;
    }
    Ok(())
}

fn bundles(layer: &OwnedFd) -> Result<Vec<CString>, Fault> {
    let listed = names(layer.as_fd())?.into_iter().map(|(name, _)| name);
    Ok(listed.filter(|name| name.to_bytes().starts_with(PREFIX.as_bytes())).collect())
}

struct Unpacking<'a> {
    reader: BufReader<File>,
    root: &'a OwnedFd,
    marks: Marks,
    folder: Option<(OwnedFd, Timestamps)>,
    files: u64,
}

impl Unpacking<'_> {
    fn run(mut self) -> io::Result<()> {
        if self.array()? != MAGIC {
            return Err(odd("it does not begin like one"));
        }
        loop {
            match self.array()? {
                [DIRECTORY] => self.enter()?,
                [FILE] => self.make_file()?,
                [END] => break,
                _ => return Err(odd("a kind of record that is not known")),
            }
        }
        self.leave()?;
        match u64::from_le_bytes(self.array()?) == self.files {
            true => Ok(()),
            false => Err(odd("files are missing")),
        }
    }

    fn enter(&mut self) -> io::Result<()> {
        self.leave()?;
        let times = self.times()?;
        let len = u32::from_le_bytes(self.array()?) as usize;
        let path = self.bytes(len, PATH_MAX)?;
        self.folder = Some((open_below(self.root, &path)?, times));
        Ok(())
    }

    /// What was made in a directory has changed its times.
    fn leave(&mut self) -> io::Result<()> {
        match self.folder.take() {
            Some((directory, times)) => Ok(futimens(directory, &times)?),
            None => Ok(()),
        }
    }

    fn make_file(&mut self) -> io::Result<()> {
        let [mode, owner, group] =
            [self.array()?, self.array()?, self.array()?].map(u32::from_le_bytes);
        let times = self.times()?;
        let copied_up = self.array()? != [0];
        let name = usize::from(u16::from_le_bytes(self.array()?));
        let len = u32::from_le_bytes(self.array()?) as usize;
        let name = self.name(name)?;
        let content = self.bytes(len, FILE_MAX as usize)?;
        let (directory, _) = self.folder.as_ref().ok_or_else(|| odd("a file without a place"))?;
        let mut file = make(directory, &name)?;
        file.write_all(&content)?;
        fchown(&file, Some(Uid::from_raw(owner)), Some(Gid::from_raw(group)))?;
        if copied_up {
            self.marks.set_origin(&file).map_err(Fault::into_io)?;
        }
        fchmod(&file, Mode::from_raw_mode(mode))?;
        futimens(&file, &times)?;
        self.files += 1;
        Ok(())
    }

    fn name(&mut self, len: usize) -> io::Result<CString> {
        let name = self.bytes(len, 255)?;
        if name.is_empty() || matches!(&*name, b"." | b"..") || name.contains(&b'/') {
            return Err(odd("a name that is none"));
        }
        CString::new(name).map_err(|_| odd("a name that is none"))
    }

    fn times(&mut self) -> io::Result<Timestamps> {
        let mut time = || -> io::Result<Timespec> {
            let seconds = i64::from_le_bytes(self.array()?);
            let nanoseconds = u32::from_le_bytes(self.array()?);
            match nanoseconds < 1_000_000_000 {
                true => Ok(Timespec { tv_sec: seconds as _, tv_nsec: nanoseconds as _ }),
                false => Err(odd("a time that is none")),
            }
        };
        Ok(Timestamps { last_access: time()?, last_modification: time()? })
    }

    fn bytes(&mut self, len: usize, max: usize) -> io::Result<Vec<u8>> {
        if len > max {
            return Err(odd("something is longer than it can be"));
        }
        let mut bytes = vec![0; len];
        self.reader.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// One that is there was made by somebody who died. It is not opened: in a directory such as `/tmp` the kernel
/// may refuse that even to root.
fn make(directory: &OwnedFd, name: &CStr) -> rustix::io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let create = || openat(directory, name, flags, Mode::RUSR | Mode::WUSR).map(File::from);
    match create() {
        Err(Errno::EXIST) => {
            unlinkat(directory, name, AtFlags::empty())?;
            create()
        }
        made => made,
    }
}

fn odd(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("a bundle of small files is damaged: {what}"),
    )
}
