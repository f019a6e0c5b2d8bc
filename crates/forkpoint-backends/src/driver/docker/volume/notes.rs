//! What volumes looked like when they were the same as a layer.
//!
//! `notes/<digest of the volume's identity>/<layer>`: a line of JSON, then the manifest. A note is an
//! optimisation and nothing else: without it, or with one that cannot be relied on, a capture copies
//! everything.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::layer::{LayerError, LayerName, LayerResult, Manifest, replace, unique_name};

const FORMAT: u32 = 1;

#[derive(Clone, Debug)]
pub(super) struct Notes {
    directory: PathBuf,
}

#[derive(Debug)]
pub(super) struct Note {
    head: Head,
    pub(super) manifest: Manifest,
}

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    format: u32,
    /// Of the volume: numbers of inodes mean nothing on another one.
    device: u64,
    /// During which run of the machine it was written. A layer that is not on the disk for sure cannot
    /// be relied on in another.
    boot: String,
}

impl Note {
    pub(super) fn new(volume: &Path, manifest: Manifest) -> LayerResult<Self> {
        let device = device_of(volume).map_err(io("inspect", volume))?;
        Ok(Self { head: Head { format: FORMAT, device, boot: boot() }, manifest })
    }

    pub(super) fn fits(&self, volume: &Path, synced: bool) -> bool {
        let same_run = !self.head.boot.is_empty() && self.head.boot == boot();
        device_of(volume).is_ok_and(|device| device == self.head.device) && (synced || same_run)
    }

    pub(super) fn write(&self, path: &Path) -> LayerResult<()> {
        fs::write(path, self.encode()?).map_err(io("write", path))
    }

    fn encode(&self) -> LayerResult<Vec<u8>> {
        let damaged = |_| LayerError::Manifest { reason: "it cannot be written" };
        let mut bytes = serde_json::to_vec(&self.head).map_err(damaged)?;
        bytes.push(b'\n');
        bytes.extend(self.manifest.encode());
        Ok(bytes)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let head: Head = serde_json::from_slice(&bytes[..end]).ok()?;
        let manifest = Manifest::decode(&bytes[end + 1..]).ok()?;
        (head.format == FORMAT).then_some(Self { head, manifest })
    }
}

impl Notes {
    pub(super) fn open(directory: &Path) -> LayerResult<Self> {
        fs::create_dir_all(directory).map_err(io("create", directory))?;
        Ok(Self { directory: directory.to_owned() })
    }

    fn place(&self, volume: &str) -> PathBuf {
        self.directory.join(digest(volume))
    }

    pub(super) fn write(&self, volume: &str, layer: &LayerName, note: &Note) -> LayerResult<()> {
        let place = self.place(volume);
        fs::create_dir_all(&place).map_err(io("create", &place))?;
        let path = place.join(layer.as_str());
        let spare = place.join(unique_name(".new"));
        let written = replace(&path, &spare, &note.encode()?);
        // What was there before has changed places with it.
        let _ = fs::remove_file(&spare);
        written.map_err(io("write", &path))
    }

    /// Takes over a note that was written elsewhere, if it was.
    pub(super) fn take(&self, volume: &str, layer: &LayerName, from: &Path) -> LayerResult<()> {
        let place = self.place(volume);
        fs::create_dir_all(&place).map_err(io("create", &place))?;
        match fs::rename(from, place.join(layer.as_str())) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => Err(io("move", from)(err)),
            _ => Ok(()),
        }
    }

    /// `None` when there is none that this release can read.
    pub(super) fn read(&self, volume: &str, layer: &LayerName) -> LayerResult<Option<Note>> {
        let path = self.place(volume).join(layer.as_str());
        match fs::read(&path) {
            Ok(bytes) => Ok(Note::decode(&bytes)),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(err) => Err(io("read", &path)(err)),
        }
    }

    pub(super) fn newest_first(&self, volume: &str) -> LayerResult<Vec<LayerName>> {
        let place = self.place(volume);
        let entries = match fs::read_dir(&place) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(io("list", &place))?,
        };
        let dated = |entry: fs::DirEntry| {
            let name: LayerName = entry.file_name().to_str()?.parse().ok()?;
            let written = entry.metadata().and_then(|meta| meta.modified());
            Some((written.unwrap_or(SystemTime::UNIX_EPOCH), name))
        };
        let mut names: Vec<_> = entries.flatten().filter_map(dated).collect();
        names.sort_unstable();
        Ok(names.into_iter().rev().map(|(_, name)| name).collect())
    }

    pub(super) fn remove(&self, volume: &str, layer: &LayerName) -> LayerResult<()> {
        remove(&self.place(volume).join(layer.as_str()))
    }

    pub(super) fn remove_everywhere(&self, layer: &LayerName) -> LayerResult<()> {
        let volumes = fs::read_dir(&self.directory).map_err(io("list", &self.directory))?;
        for volume in volumes.flatten() {
            remove(&volume.path().join(layer.as_str()))?;
            // One without any note.
            let _ = fs::remove_dir(volume.path());
        }
        Ok(())
    }

    pub(super) fn forget(&self, volume: &str) -> LayerResult<()> {
        let place = self.place(volume);
        match fs::remove_dir_all(&place) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => Err(io("remove", &place)(err)),
            _ => Ok(()),
        }
    }
}

/// A file name for a volume, whatever it is called.
pub(super) fn digest(volume: &str) -> String {
    Sha256::digest(volume.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn remove(path: &Path) -> LayerResult<()> {
    match fs::remove_file(path) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => Err(io("remove", path)(err)),
        _ => Ok(()),
    }
}

fn device_of(path: &Path) -> io::Result<u64> {
    Ok(fs::metadata(path)?.dev())
}

fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

pub(super) fn io(operation: &'static str, path: &Path) -> impl Fn(io::Error) -> LayerError {
    move |source| LayerError::Io { operation, path: path.to_owned(), source }
}
