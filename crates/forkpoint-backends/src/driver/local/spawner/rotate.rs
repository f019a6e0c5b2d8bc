//! Another root under the feet of programs that stand.
//!
//! ```text
//!   driver                                     worker
//!   Work::Rotate ────────────────────────────► makes overlays that nobody sees
//!   everything stands; opens files there ◄──── Made, with the overlays
//!   Turn::Go ────────────────────────────────► enters the sandbox, changes the root
//!   processes exchange what they have open ◄── Switched
//!   Turn::Retire ────────────────────────────► nobody writes to the old root any more
//!   record, go on ◄─────────────────────────── Done
//! ```
//!
//! Until it is told to go it has touched nothing, and it ends if it is not.

use std::{
    fs::File,
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
};

use rustix::thread::LinkNameSpaceType;
use serde::{Deserialize, Serialize};

use super::{
    Outcome, Shared,
    switch::{SwitchSpec, enter, make_overlays, stand_where, take_first},
};
use crate::driver::local::{
    root,
    wire::{self, Doing as _, Failure},
};

/// What the driver says next.
#[derive(Debug, Serialize, Deserialize)]
pub(in super::super) enum Turn {
    Go,
    Retire { in_use: Vec<u64> },
}

/// With the sandbox's lock, and what lies below its root.
pub(super) fn rotate(spec: &SwitchSpec, shared: &Shared, driver: &OwnedFd, fds: Vec<OwnedFd>) {
    let _ = dialogue(spec, shared, driver, fds)
        .map_err(|failure| wire::send(driver, &Outcome::Failed(failure), &[]));
}

fn dialogue(
    spec: &SwitchSpec,
    shared: &Shared,
    driver: &OwnedFd,
    mut fds: Vec<OwnedFd>,
) -> Result<(), Failure> {
    let _lock = take_first(&mut fds)?;
    let floor = take_first(&mut fds)?;
    let overlays = make_overlays(spec, shared)?;
    let made: Vec<_> = overlays.iter().map(|(_, overlay)| overlay.as_fd()).collect();
    wire::send(driver, &Outcome::Made, &made).doing("tell of overlays")?;
    let Some((Turn::Go, _)) = wire::receive_soon(driver).doing("wait for an order")? else {
        return Ok(());
    };
    let open = |what| File::open(format!("/proc/{}/{what}", spec.pid)).map(OwnedFd::from);
    let mounts = open("ns/mnt").doing("find the sandbox's init")?;
    let root = open("root").doing("find the sandbox's init")?;
    enter(&mounts, LinkNameSpaceType::Mount)?;
    stand_where(&root)?;
    let old = root::exchange(&overlays, &floor)?;
    wire::send(driver, &Outcome::Switched, &[]).doing("tell of the root")?;
    let Some((Turn::Retire { in_use }, _)) =
        wire::receive_soon(driver).doing("wait for an order")?
    else {
        return Ok(());
    };
    let places: Vec<PathBuf> = overlays.iter().map(|(at, _)| at.clone()).collect();
    root::retire(&old, &places, &floor, &in_use)?;
    wire::send(driver, &Outcome::Done, &[]).doing("tell of the old root")
}
