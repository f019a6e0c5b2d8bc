//! `layer.json`: what a layer says of itself.

use std::{
    ffi::CStr,
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::{AsFd, BorrowedFd},
};

use rustix::fs::{Mode, OFlags, fsync, openat, renameat};
use serde::{Deserialize, Serialize};

use super::{LayerError, LayerName, LayerResult, Marks};

pub(super) const FILE: &CStr = c"layer.json";
const NEW: &CStr = c"layer.json.new";

pub(super) const FORMAT: u32 = 1;

/// Nobody's `layer.json` is longer; what is longer is not one.
const LEN_MAX: u64 = 64 << 10;

/// What a layer holds of its own. Whiteouts and directories are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerSize {
    /// Allocated on disk; what is shared with other layers by links counts in each.
    pub bytes: u64,
    pub files: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerRecord {
    pub format: u32,
    pub name: LayerName,
    /// The layer that this one was made to lie on.
    pub over: Option<LayerName>,
    pub marks: Marks,
    /// Unknown for an upper directory that was taken as it was, until it is measured.
    pub size: Option<LayerSize>,
    /// Survives a power cut.
    pub synced: bool,
}

#[derive(Deserialize)]
struct Version {
    format: u32,
}

impl LayerRecord {
    /// Replaces what is there at once.
    pub(super) fn write(&self, directory: BorrowedFd, sync: bool) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let mut file = File::from(openat(directory, NEW, flags, Mode::RUSR | Mode::WUSR)?);
        file.write_all(&serde_json::to_vec(self)?)?;
        if sync {
            file.sync_all()?;
        }
        renameat(directory, NEW, directory, FILE)?;
        if sync { Ok(fsync(directory)?) } else { Ok(()) }
    }

    pub(super) fn read(directory: impl AsFd, name: &LayerName) -> LayerResult<Self> {
        let damaged = |reason: String| LayerError::Damaged { name: name.to_string(), reason };
        let text = read_text(directory).map_err(|err| damaged(format!("`layer.json`: {err}")))?;
        let read = serde_json::from_str::<Self>(&text);
        // What a later release wrote may not be readable.
        let format = read.as_ref().map_or_else(|_| version_of(&text), |record| record.format);
        if format > FORMAT {
            let name = name.to_string();
            return Err(LayerError::TooNew { name, format, newest: FORMAT });
        }
        let record = read.map_err(|err| damaged(format!("`layer.json`: {err}")))?;
        if record.name != *name {
            return Err(damaged(format!("it says that it is `{}`", record.name)));
        }
        Ok(record)
    }
}

fn version_of(text: &str) -> u32 {
    serde_json::from_str(text).map_or(0, |Version { format }| format)
}

fn read_text(directory: impl AsFd) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    // Nearly all fit: a buffer that grows by itself is filled in many small steps.
    let mut text = String::with_capacity(1024);
    let file = File::from(openat(directory, FILE, flags, Mode::empty())?);
    file.take(LEN_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// The layer that a directory describes, if it describes one.
pub(super) fn name_in(directory: impl AsFd) -> io::Result<Option<LayerName>> {
    match read_text(directory) {
        Ok(text) => Ok(serde_json::from_str(&text).ok().map(|record: LayerRecord| record.name)),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(err),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_1_stays_what_it_is() {
        let text = r#"{"format":1,"name":"lyrsnp00000000000000000000000002","over":"lyrsnp00000000000000000000000001","marks":"trusted","size":{"bytes":4096,"files":1},"synced":false}"#;
        let record: LayerRecord = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&record).unwrap(), text);
        assert_eq!(record.size, Some(LayerSize { bytes: 4096, files: 1 }));
    }
}
