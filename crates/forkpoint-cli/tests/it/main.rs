//! What a person or a script sees of the binary, and whether the documents tell the truth.

mod at_once;
mod care;
mod commands;
mod completions;
mod config;
mod demo;
mod docker;
mod documents;
mod errors;
mod guides;
mod harness;
mod help;
mod hooks;
mod killed;
mod looks;
mod notes;
mod sandboxes;
mod servers;
mod snapshots;
mod system;
mod templates;
mod terminal;
mod unchanged;
mod workspace;
