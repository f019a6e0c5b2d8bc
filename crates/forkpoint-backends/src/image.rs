//! Images of containers as starting points: read from where they are, checked, unpacked once.
//!
//! ```text
//!   source ─► read: index, manifest, configuration ─► layers that are missing ─► store
//!                                     digest ◄─ blob ─► uncompressed ─► unpacked
//! ```
//!
//! An image is bytes of a stranger. Everything is checked against its digest, everything is bounded
//! (`limits.rs`), no name leads outside (`unpack.rs`), and a layer is there when all of it was right.
//!
//! Everything here blocks; call it from a thread that may.

mod blob;
mod daemon;
mod digest;
mod error;
mod files;
mod limits;
mod manifest;
mod name;
mod progress;
mod read;
#[cfg(feature = "registry")]
mod registry;
mod source;
mod store;
mod unpack;

#[cfg(test)]
mod tests;

pub use digest::Digest;
pub use error::{ImageError, ImageResult};
pub use limits::Limits;
pub use manifest::ImageConfig;
pub use progress::Progress;
pub use source::ImageSource;
pub(crate) use store::{ImageStore, LayerNote};
pub use unpack::Unpacked;
pub(crate) use unpack::unpack_tree;

/// An image whose layers are there.
#[derive(Clone, Debug)]
pub(crate) struct Fetched {
    /// Of its manifest or configuration, or else of its one layer.
    pub(crate) digest: Digest,
    pub(crate) config: ImageConfig,
    /// From the bottom up.
    pub(crate) layers: Vec<LayerNote>,
}

/// The digest that [`fetch`] would answer with, where that is known without fetching anything.
pub(crate) fn known_digest(source: &ImageSource) -> ImageResult<Option<Digest>> {
    match source {
        ImageSource::Daemon(image) => daemon::digest(image),
        _ => Ok(None),
    }
}

/// Brings everything of an image into the store. Whoever calls it is [`ImageStore::busy`].
pub(crate) fn fetch(
    source: &ImageSource,
    store: &ImageStore,
    progress: &Progress,
) -> ImageResult<Fetched> {
    let image = read::read(source, &store.staging(), store.limits()?, progress)?;
    let (digest, config) = (image.digest.clone(), image.config.clone());
    let layers = store.add(image, progress)?;
    let own = layers.first().map(|layer| layer.digest.clone());
    let Some(digest) = digest.or(own) else {
        return Err(ImageError::Missing { what: format!("layer in `{source}`") });
    };
    Ok(Fetched { digest, config, layers })
}
