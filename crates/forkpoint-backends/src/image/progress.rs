//! How far bytes have come, those of an image or others, for somebody else to look at or to stop.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use super::error::{ImageError, ImageResult};

/// Clones are one.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    passed: AtomicU64,
    total: AtomicU64,
    stop: AtomicBool,
}

impl Progress {
    /// Bytes that have come, as they are stored or sent.
    #[must_use]
    pub fn passed_bytes(&self) -> u64 {
        self.0.passed.load(Ordering::Relaxed)
    }

    /// Bytes that are to come in all; 0 while nobody knows.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.0.total.load(Ordering::Relaxed)
    }

    /// Makes the work end soon with [`ImageError::Interrupted`], and leave nothing.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }

    /// So many more are to come.
    pub fn expect(&self, bytes: u64) {
        self.0.total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So many more have come.
    pub fn pass(&self, bytes: u64) {
        self.0.passed.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn passed(&self, bytes: u64) -> ImageResult<()> {
        self.pass(bytes);
        self.check()
    }

    pub(super) fn check(&self) -> ImageResult<()> {
        match self.0.stop.load(Ordering::Relaxed) {
            true => Err(ImageError::Interrupted),
            false => Ok(()),
        }
    }
}
