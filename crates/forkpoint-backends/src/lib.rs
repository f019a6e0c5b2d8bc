//! What Forkpoint works with: drivers, stores and catalogs, one cargo feature for each heavy
//! dependency.

#![deny(unsafe_code)]

pub mod catalog;
#[cfg(feature = "local")]
pub mod layer;
