//! One suite for each trait: every implementation runs the same.

pub mod catalog;
pub mod driver;
pub mod store;
