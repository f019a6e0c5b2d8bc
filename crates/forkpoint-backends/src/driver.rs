//! Drivers: what runs sandboxes.

#[cfg(feature = "local")]
pub mod docker;
#[cfg(feature = "local")]
pub mod local;
