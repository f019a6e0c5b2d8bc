//! Archives of every kind, unpacked into a directory beside which nothing may appear.

use std::{
    ffi::OsStr,
    fs,
    io::BufReader,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use forkpoint_testkit::image::{TarEntry, tar};
use rustix::fs::{Mode, OFlags, lgetxattr, open};
use tempfile::TempDir;

use super::{
    ImageError, Limits, Unpacked,
    error::ImageResult,
    unpack::{Owners, unpack},
};
use crate::layer::{LayerStore, Marks};

mod forms;
mod hostile;
mod property;

/// A place to unpack into, with something beside it that must stay as it is.
struct Ground {
    directory: TempDir,
    marks: Marks,
}

impl Ground {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        fs::create_dir(directory.path().join("root")).unwrap();
        fs::write(directory.path().join("secret"), "untouched").unwrap();
        let marks = LayerStore::open(&directory.path().join("store")).unwrap().marks();
        Self { directory, marks }
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    fn unpack(&self, archive: &[u8]) -> ImageResult<Unpacked> {
        self.unpack_within(archive, Limits::default())
    }

    fn unpack_within(&self, archive: &[u8], limits: Limits) -> ImageResult<Unpacked> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(self.root(), flags, Mode::empty()).unwrap();
        let owners = match rustix::process::geteuid().is_root() {
            true => Owners::Kept,
            false => Owners::Own,
        };
        let archive = BufReader::with_capacity(700, archive);
        unpack(archive, "the test", root, self.marks, owners, limits)
    }

    fn unpacked(&self, entries: impl IntoIterator<Item = TarEntry>) -> Unpacked {
        self.unpack(&tar(entries)).unwrap()
    }

    /// Everything is where it was, and nothing else is there.
    fn check_outside(&self) {
        let mut names: Vec<_> = fs::read_dir(self.directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort_unstable();
        assert_eq!(names, ["root", "secret", "store"].map(OsStr::new));
        let secret = self.directory.path().join("secret");
        assert_eq!(fs::read_to_string(&secret).unwrap(), "untouched");
        assert_eq!(fs::metadata(secret).unwrap().nlink(), 1);
    }

    fn is_whiteout(&self, name: &str) -> bool {
        let metadata = fs::symlink_metadata(self.path(name)).unwrap();
        metadata.mode() & 0o170_000 == 0o020_000 && metadata.rdev() == 0
    }

    fn is_opaque(&self, name: &str) -> bool {
        let attribute = format!("{}.overlay.opaque", self.marks.as_str());
        let mut value = [0; 8];
        let read = lgetxattr(self.path(name), attribute.as_str(), &mut value[..]);
        read.is_ok_and(|len| value[..len] == *b"y")
    }
}

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

fn refused(result: ImageResult<Unpacked>) -> String {
    match result {
        Err(err @ (ImageError::Refused { .. } | ImageError::Damaged { .. })) => err.to_string(),
        other => panic!("not refused: {other:?}"),
    }
}

fn name(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}
