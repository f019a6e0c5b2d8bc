//! Containers of a Docker engine.

pub mod volume;
