//! The engine against fakes: no root, no network, no file.

#![expect(clippy::unwrap_used, reason = "in a test, what cannot be unwrapped is a failure")]

mod adoption;
mod claims;
mod conformance;
mod every_call_fails;
mod expiry;
mod hooks;
mod looks;
mod model;
mod operations;
mod parsers;
mod races;
mod switches;
mod unchanged;
mod watches;
