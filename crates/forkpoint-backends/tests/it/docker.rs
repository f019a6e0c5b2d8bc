//! Containers: their volumes, and the engine that runs them.

mod exchange;
mod volumes;
