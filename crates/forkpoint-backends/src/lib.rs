//! What Forkpoint works with: drivers, stores and catalogs, one cargo feature for each heavy
//! dependency.

#![deny(unsafe_code)]

pub mod catalog;
pub mod driver;
#[cfg(feature = "local")]
pub mod environment;
#[cfg(feature = "local")]
pub mod image;
#[cfg(feature = "local")]
pub mod layer;
#[cfg(feature = "local")]
mod tar;
#[cfg(feature = "local")]
mod workspace;
