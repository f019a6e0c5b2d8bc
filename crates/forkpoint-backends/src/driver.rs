//! Drivers: what runs sandboxes.

#[cfg(feature = "docker")]
pub mod docker;
#[cfg(feature = "local")]
pub mod local;
#[cfg(feature = "local")]
mod view;
