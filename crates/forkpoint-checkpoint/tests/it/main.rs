//! Real process trees in bare sandboxes: captured, killed, brought back.

#![expect(clippy::unwrap_used, reason = "in a test, what cannot be unwrapped is a failure")]

mod place;
mod shells;
