//! Files as `--json` and `ls -l` show them.

use std::{os::unix::ffi::OsStrExt as _, path::Path};

use forkpoint_core::{
    Timestamp,
    driver::{FileFacts, FileKind},
};
use serde::{Serialize, Serializer};

/// Text where it is text, else a list of bytes: JSON has no other way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathJson<'a>(pub(crate) &'a Path);

impl Serialize for PathJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.to_str() {
            Some(text) => serializer.serialize_str(text),
            None => serializer.collect_seq(self.0.as_os_str().as_bytes()),
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct FactsJson {
    kind: FileKind,
    mode: String,
    uid: u32,
    gid: u32,
    len_bytes: u64,
    modified: Timestamp,
}

impl From<&FileFacts> for FactsJson {
    fn from(facts: &FileFacts) -> Self {
        Self {
            kind: facts.kind,
            mode: format!("{:04o}", facts.mode),
            uid: facts.uid,
            gid: facts.gid,
            len_bytes: facts.len_bytes,
            modified: facts.modified,
        }
    }
}

pub(crate) const fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice | FileKind::BlockDevice => "device",
    }
}

/// `drwxr-xr-x`
pub(crate) fn mode_string(facts: &FileFacts) -> String {
    let kind = match facts.kind {
        FileKind::File => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
    };
    let mut text = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = facts.mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (facts.mode & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_written_as_ls_writes_them() {
        for (kind, mode, text) in [
            (FileKind::File, 0o644, "-rw-r--r--"),
            (FileKind::Directory, 0o1777, "drwxrwxrwt"),
            (FileKind::File, 0o4755, "-rwsr-xr-x"),
            (FileKind::File, 0o6640, "-rwSr-S---"),
            (FileKind::Symlink, 0o777, "lrwxrwxrwx"),
        ] {
            let facts = FileFacts {
                kind,
                mode,
                uid: 0,
                gid: 0,
                len_bytes: 0,
                modified: Timestamp::UNIX_EPOCH,
                device: 0,
            };
            assert_eq!(mode_string(&facts), text);
        }
    }
}
