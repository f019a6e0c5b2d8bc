//! The catalogs of this crate, against what every catalog must do and against what happens to
//! files.

#![expect(clippy::unwrap_used, reason = "in a test, what cannot be unwrapped is a failure")]

mod docker;
mod layer;
mod local;
mod sqlite;
mod unprivileged;
