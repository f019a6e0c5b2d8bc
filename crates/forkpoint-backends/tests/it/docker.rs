//! Containers: their volumes, and the engine that runs them.

mod archives;
mod exchange;
mod volumes;
