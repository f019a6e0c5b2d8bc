//! The engine behind HTTP: the native interface, the protocols that other systems' clients speak,
//! and the web page.
//!
//! Knows `forkpoint-core` and no backend. Empty so far: it keeps the place that ARCHITECTURE.md
//! gives it.

#![forbid(unsafe_code)]
