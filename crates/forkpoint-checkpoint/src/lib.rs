//! Running processes as an image on disk, and back: a tree below process 1 of a pid namespace, as the
//! embedded runtime makes them. Nothing is installed, nothing is patched, and the processes know
//! nothing of it.
//!
//! | to do | with |
//! |---|---|
//! | capture a tree while it runs | [`capture`], or [`Tracker::capture`] for what changed since the last time |
//! | write it down | [`Captured::write`] |
//! | read it back, checked | [`Chain::open`] |
//! | bring it back in a new sandbox | [`restore::Steps`], and a [`restore::Plan`] for each |
//! | let large processes run before all their memory is there | [`pager`] |
//! | have a captured tree use other mounts from its moment on | [`Still::relocate`] |
//! | go back to it in place | [`Tracker::rollback`], or [`rollback()`] for a small tree |
//!
//! It needs the rights to trace the tree: root's, or those over the tree's user namespace.

mod arch;
pub mod bare;
mod coverage;
mod databases;
mod dump;
mod error;
mod freeze;
mod hand;
pub mod image;
mod mounts;
pub mod pager;
mod ranges;
mod relocate;
pub mod restore;
mod rollback;
mod script;
mod segments;
pub mod soon;
mod sys;
mod track;

pub use self::{
    dump::{CaptureSpec, Captured, Connections, capture, examine},
    error::{Error, Refusal, Refusals, Result},
    freeze::Tree,
    image::{Chain, ImageError, ImageId},
    relocate::{Exchange, Moment, Still, Switch},
    rollback::{Files, RolledBack, rollback},
    track::{Handle, Tracker},
};
