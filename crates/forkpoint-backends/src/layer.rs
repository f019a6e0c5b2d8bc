//! Layers: immutable directories of changes, one lying on another, in the form of overlayfs.
//!
//! A [`LayerStore`] is a directory. `layers/<name>/` is a layer: `tree/` is what overlayfs takes as a
//! lower directory, `layer.json` tells what it lies on. What is being made is in `staging/`, what is
//! being deleted in `trash/`. A layer comes and goes by one `rename`, so that nobody ever sees half of
//! one, and whatever a killed process leaves in the other two is taken away at the next start.
//!
//! Small files of a busy sandbox may be in bundles beside the tree for a while, which is named `packed/` then.
//! Whoever asks for the layer has them made first.
//!
//! Nothing in a layer is ever changed but `layer.json`: files are shared between layers by hard links.
//!
//! Everything here blocks; call it from a thread that may.

mod attributes;
mod back;
mod board;
mod bundle;
mod capture;
mod changed;
mod copy;
mod crew;
mod cursor;
mod diff;
mod dress;
mod error;
mod fill;
mod first;
mod flatten;
mod lookup;
mod manifest;
mod marks;
mod measure;
mod merged;
mod name;
mod pin;
mod plan;
mod record;
mod replace;
mod seen;
mod share;
mod site;
mod stage;
mod store;
mod trash;
mod travel;
mod tree;
mod unchanged;
mod unpack;
mod view;
mod whole;

use std::{
    ffi::CString,
    io,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
};

pub(crate) use attributes::{OF_THE_MACHINE, all_attributes};
pub use back::{Back, BackSpec};
pub use capture::{CaptureSpec, UpperState, describe_upper, root_print};
pub use changed::{Moment, changed_since};
pub(crate) use copy::copy_bytes;
pub(crate) use cursor::{open_below, open_directory as open_child};
pub(crate) use diff::same_bytes;
pub use diff::{DiffSpec, ViewChange, ViewDiff, diff};
pub(crate) use dress::dress;
pub(crate) use error::Fault;
pub use error::{LayerError, LayerResult};
pub use flatten::Below;
pub use manifest::Manifest;
pub use marks::Marks;
pub(crate) use marks::{Fate, is_whiteout, put_whiteout};
pub use name::LayerName;
pub use record::{LayerRecord, LayerSize};
pub(crate) use replace::{exchange, replace, write_spare};
pub use stage::{PromisedLayer, Stage};
pub(crate) use store::open_path;
pub use store::{LayerStore, SweepStats};
pub use trash::{Leftover, ReapStats};
pub(crate) use trash::{empty_trash, remove_tree};
pub use travel::{Arrival, Departure};
pub use view::{LayerView, ViewFacts, ViewLevel, ViewMount};
pub use whole::{Whole, WholeSpec, describe_tree, is_as_described};

/// A file name that nobody else comes up with.
pub(crate) fn unique_name(what: &str) -> String {
    store::unique(what).to_string_lossy().into_owned()
}

/// Every name in a directory but `.` and `..`.
pub(crate) fn list_names(directory: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    match cursor::names(directory) {
        Ok(names) => Ok(names.into_iter().map(|(name, _)| name).collect()),
        Err(Fault::Io { source, .. }) => Err(source),
        Err(_) => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Counts what lies below a directory, as a layer of it would.
pub fn measure_tree(path: &Path) -> LayerResult<LayerSize> {
    measure::measure(cursor::DirCursor::new(path.to_owned(), open_path(path)?, cursor::KEEP))
}

/// A layer that was complete when it was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    path: PathBuf,
    record: LayerRecord,
    /// Small files of it are still in bundles.
    packed: bool,
}

impl Layer {
    fn new(directories: &store::Directories, record: LayerRecord, packed: bool) -> Self {
        Self { path: directories.layers_path().join(record.name.as_str()), record, packed }
    }

    #[must_use]
    pub fn name(&self) -> &LayerName {
        &self.record.name
    }

    #[must_use]
    pub fn record(&self) -> &LayerRecord {
        &self.record
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether small files of it were still in bundles when it was looked at.
    #[must_use]
    pub fn is_packed(&self) -> bool {
        self.packed
    }

    /// The root of its tree as it was when it was looked at, with or without small files.
    pub(crate) fn root_path(&self) -> PathBuf {
        self.path.join(if self.packed { "packed" } else { "tree" })
    }

    /// For overlayfs as a lower directory.
    #[must_use]
    pub fn tree_path(&self) -> PathBuf {
        self.path.join("tree")
    }
}
