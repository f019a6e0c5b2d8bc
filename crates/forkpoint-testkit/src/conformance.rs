//! One suite for each trait: every implementation runs the same.

#![expect(clippy::unwrap_used, reason = "in a suite, what cannot be unwrapped is a failure")]

pub mod catalog;
pub mod driver;
pub mod store;
