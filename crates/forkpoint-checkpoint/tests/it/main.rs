//! Real process trees in bare sandboxes: captured, killed, brought back.

#![expect(clippy::unwrap_used, reason = "in a test, what cannot be unwrapped is a failure")]

mod databases;
mod features;
mod hostile;
mod killed;
mod kinds;
mod lazy;
mod locks;
mod memory;
mod mounts;
mod place;
mod programs;
mod refusals;
mod rollbacks;
mod rounds;
mod shared;
mod shells;
mod sockets;
mod terminals;
mod threads;
mod tracking;
