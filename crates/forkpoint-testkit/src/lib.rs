//! Fakes that are stricter than reality, a harness that fails every call, and suites that every
//! implementation of a trait must pass.
//!
//! - [`FakeDriver`], [`MemoryCatalog`], [`MemoryBlobStore`] and [`FixedEnvironment`] fill the roles
//!   of `forkpoint-core` in memory. The fake platform notes whatever no driver should ever be asked
//!   to do.
//! - [`Simulation`] runs several "processes" on one thread in an order that a seed decides, and can
//!   kill one of them between any two calls.
//! - [`World`] puts these together; [`faults`] decides which call goes wrong, and how; [`harness`]
//!   tries every fault on every operation.
//! - [`conformance`] holds one suite for each trait.
//! - [`docker`] has a real engine for tests, and ends it.

#![forbid(unsafe_code)]

mod catalog;
pub mod conformance;
pub mod docker;
mod environment;
mod fake;
pub mod faults;
pub mod harness;
pub mod image;
mod simulation;
mod store;
mod world;

pub use catalog::{MemoryCatalog, SharedTables};
pub use environment::FixedEnvironment;
pub use fake::{FakeDriver, FakePlatform, Files};
pub use simulation::{ProcessId, Simulation, yield_times};
pub use store::MemoryBlobStore;
pub use world::{CatalogOpener, Seat, Visible, World};
