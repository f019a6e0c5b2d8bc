//! Images: processes written down, on a disk.
//!
//! An image is a directory: `image.json` tells everything but memory, `pages` holds pages. It is made
//! under another name and renamed when it is complete. One that was taken later may lie over an
//! earlier one and hold only what was written since.
//!
//! **An image is bytes of a stranger.** Every byte of it is under a checksum, every number is looked at
//! before it is used, and what does not fit is refused by name.

mod chain;
mod check;
mod file;
mod merge;
mod model;
mod mount;
mod open;
mod seen;
#[cfg(test)]
mod tests;

pub use chain::Chain;
pub(crate) use chain::Piece;
pub(crate) use file::write;
pub use file::{FILES, Image, ImageId, LastMachine, machine, sync};
pub use model::*;
pub use mount::*;
pub use open::*;

use std::{io, path::PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("failed to {doing} `{path}`")]
    File { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("`{path}` is no image of processes: {why}")]
    Foreign { path: PathBuf, why: &'static str },
    #[error("`{path}` is of format {format}; this version reads up to {}", file::FORMAT)]
    Newer { path: PathBuf, format: u32 },
    #[error("`{path}` is damaged: {why}")]
    Damaged { path: PathBuf, why: String },
    #[error("`{path}` lies over image `{wanted}`, and that is not what is below it")]
    OtherParent { path: PathBuf, wanted: String },
}
