//! How much an image may be, before it is taken for an attack or for a mistake.

use std::{fs, io, path::Path};

use rustix::fs::statvfs;

use super::error::{ImageError, ImageResult};

/// Names of directories that are remembered until a layer is complete.
pub(super) const REMEMBERED_MAX: usize = 256 << 20;

/// The kernel itself takes a few hundred layers; images have tens.
pub(super) const LAYERS_MAX: usize = 128;

/// Of a manifest, an index or a configuration.
pub(super) const DOCUMENT_MAX: u64 = 8 << 20;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Entries of one layer.
    pub entries: u64,
    /// Of one layer, uncompressed, with what describes its entries.
    pub bytes: u64,
    /// How many times larger a layer may get by being uncompressed, once it is large at all. What
    /// gzip can do ends at 1032.
    pub ratio: u64,
    /// From where on the ratio counts.
    pub ratio_from: u64,
    /// What stays free on the disk.
    pub reserve: u64,
    /// What may be used of the disk.
    pub room: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            entries: 2_000_000,
            bytes: 64 << 30,
            ratio: 1200,
            ratio_from: 256 << 20,
            reserve: 64 << 20,
            room: u64::MAX,
        }
    }
}

impl Limits {
    /// Of something that is `len` bytes by now, of which `came` were sent.
    pub(super) fn check(&self, what: &str, len: u64, came: u64) -> ImageResult<()> {
        let too_large = |limit| Err(ImageError::TooLarge { what: what.to_owned(), limit });
        if len > self.bytes {
            return too_large(format!("{} bytes", self.bytes));
        }
        if len > self.room {
            return Err(ImageError::NoRoom { what: what.to_owned(), room: self.room });
        }
        if len > self.ratio_from && len / self.ratio > came {
            return too_large(format!("{} times what it is compressed", self.ratio));
        }
        Ok(())
    }

    /// As far as the disk goes that `directory` is on.
    pub(super) fn on(self, directory: &Path) -> io::Result<Self> {
        let stat = statvfs(fs::canonicalize(directory)?)?;
        let room = stat.f_bavail.saturating_mul(stat.f_frsize).saturating_sub(self.reserve);
        Ok(Self { room, ..self })
    }
}

#[cfg(test)]
mod tests {
    use forkpoint_core::ErrorKind;

    use super::*;

    #[test]
    fn a_full_disk_is_another_matter_than_a_limit() {
        let limits = Limits { bytes: 1000, room: 100, ratio_from: 50, ..Limits::default() };
        let kind = |len, came| limits.check("it", len, came).map_err(|err| err.kind());
        assert_eq!(kind(100, 100), Ok(()));
        assert_eq!(kind(101, 101), Err(ErrorKind::Unavailable));
        assert_eq!(kind(1001, 1001), Err(ErrorKind::Invalid));
        let ratio = Limits { ratio: 10, ..limits }.check("it", 90, 8).unwrap_err();
        assert!(ratio.to_string().contains("10 times"), "{ratio}");
    }

    #[test]
    fn room_is_what_the_disk_has() {
        let limits = Limits::default().on(Path::new("/")).unwrap();
        assert!(limits.room < u64::MAX && limits.bytes == Limits::default().bytes);
    }
}
