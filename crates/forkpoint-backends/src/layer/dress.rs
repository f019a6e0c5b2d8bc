//! Extended attributes of a directory that is made to look like another.

use std::{os::fd::AsFd as _, path::Path};

use rustix::{
    fs::{fstat, llistxattr},
    io::Errno,
};

use super::{
    LayerError, LayerResult, LayerStore, Marks,
    attributes::{Attributes, OF_THE_MACHINE, Place, listed, remove, set_times},
    error::{At as _, During as _, Fault},
    store::open_path,
};

impl LayerStore {
    /// Gives a new directory the attributes that a snapshot keeps of the other.
    pub fn copy_extended(&self, from: &Path, to: &Path) -> LayerResult<()> {
        // Most have none, and are not even opened.
        match llistxattr(from, &mut [0u8; 1]) {
            Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(()),
            _ => {}
        }
        match self.copy_listed(from, to) {
            // Without root those of the host cannot all be read or given; those that somebody in a
            // sandbox gave can.
            Err(LayerError::Io { source, .. }) if is_for_root(&source) => Ok(()),
            result => result,
        }
    }

    fn copy_listed(&self, from: &Path, to: &Path) -> LayerResult<()> {
        let (source, target) = (open_path(from)?, open_path(to)?);
        let copy = || -> Result<(), Fault> {
            let stat = fstat(&target).during("inspect")?;
            let mut attributes = Attributes::new(self.marks(), (stat.st_uid, stat.st_gid));
            let (source, target) = (Place::Open(source.as_fd()), Place::Open(target.as_fd()));
            attributes.copy_extended(source, target, false).map(drop)
        };
        copy().at(|| to.to_owned())
    }
}

/// Makes a directory look exactly like another: owner, mode, attributes, times. Not what is in it.
pub(crate) fn dress(from: &Path, to: &Path) -> LayerResult<()> {
    let (source, target) = (open_path(from)?, open_path(to)?);
    let copy = || -> Result<(), Fault> {
        let stat = fstat(&source).during("inspect")?;
        let newborn = fstat(&target).during("inspect")?;
        let (source, target) = (Place::Open(source.as_fd()), Place::Open(target.as_fd()));
        undress(target)?;
        let newborn = (newborn.st_uid, newborn.st_gid);
        Attributes::new(Marks::Plain, newborn).copy(source, &stat, target, false)?;
        set_times(target, &stat)
    };
    copy().at(|| to.to_owned())
}

fn undress(directory: Place) -> Result<(), Fault> {
    for name in listed(directory).during("list attributes of")? {
        match remove(directory, &name) {
            Ok(()) | Err(Errno::NODATA) => {}
            // What the machine's own policy gave.
            Err(_) if OF_THE_MACHINE.contains(&name.to_bytes()) => {}
            Err(err) => return Err(err).during("clear attributes of"),
        }
    }
    Ok(())
}

fn is_for_root(err: &std::io::Error) -> bool {
    err.kind() == std::io::ErrorKind::PermissionDenied && !rustix::process::geteuid().is_root()
}
