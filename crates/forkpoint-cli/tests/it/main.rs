//! What a person or a script sees of the binary, and whether the documents tell the truth.

mod at_once;
mod commands;
mod demo;
mod documents;
mod errors;
mod harness;
mod help;
mod killed;
mod sandboxes;
mod snapshots;
mod terminal;
