//! Drivers: what runs sandboxes.

#[cfg(feature = "local")]
pub mod local;
