//! What Forkpoint does: it saves, rewinds and forks the sandboxes that agents work in.
//!
//! This crate holds the operations ([`Engine`]), the roles that somebody must fill for them
//! ([`Driver`](driver::Driver), [`Catalog`](catalog::Catalog), [`BlobStore`](store::BlobStore),
//! [`Environment`]) and the rules (retention, naming, lineage). It names no vendor and touches no
//! file, socket, clock or random source.

#![forbid(unsafe_code)]

pub mod catalog;
pub mod driver;
pub mod engine;
mod environment;
pub mod error;
pub mod id;
pub mod label;
pub mod lineage;
pub mod naming;
pub mod part;
pub mod path;
pub mod retention;
pub mod spec;
pub mod store;
pub mod trigger;

pub use engine::{Engine, EngineConfig};
pub use environment::Environment;
pub use error::{Error, ErrorKind, Result};
pub use jiff::Timestamp;
