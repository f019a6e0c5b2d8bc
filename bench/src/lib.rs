//! What the benchmarks share. Each benchmark is a command in `src/bin`.

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

pub mod apart;
pub mod cases;
pub mod containers;
pub mod figures;
pub mod options;
pub mod peers;
pub mod product;
pub mod seed;
