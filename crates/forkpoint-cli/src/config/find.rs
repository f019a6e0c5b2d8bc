//! Which files are read, and whether they can be believed.
//!
//! A file says where data is kept, what is deleted and what sandboxes may reach, so it must belong to the
//! user who runs this or to root, and nobody else may be able to write it. One that was merely found in the
//! working directory may come with somebody's project, or from an agent that worked there: in it only
//! what can do no harm is taken. Hooks can be: they run inside sandboxes.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use forkpoint_core::{Error, ErrorKind};

use crate::args::GlobalArgs;

const NAME: &str = "forkpoint.toml";
const SYSTEM: &str = "/etc/forkpoint";

/// What `--config` takes for no file at all.
const NOTHING: &str = "none";

/// More than anybody writes by hand.
const MAX_BYTES: u64 = 1 << 20;

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// By `--config` or `FORKPOINT_CONFIG`.
    Named,
    WorkingDirectory,
    User,
    System,
}

/// Where to look, the first before the others.
pub(crate) fn candidates(args: &GlobalArgs) -> Vec<(Place, PathBuf)> {
    match args.config.as_deref().filter(|path| !path.as_os_str().is_empty()) {
        Some(path) if path == Path::new(NOTHING) => Vec::new(),
        Some(path) => vec![(Place::Named, path.to_owned())],
        None => {
            let here = Some((Place::WorkingDirectory, Path::new(".").join(NAME)));
            let user = user_dir().map(|dir| (Place::User, dir.join("forkpoint").join(NAME)));
            let system = Some((Place::System, Path::new(SYSTEM).join(NAME)));
            [here, user, system].into_iter().flatten().collect()
        }
    }
}

fn user_dir() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")))
}

/// `None` where there is none. Only one that was named must be there.
pub(super) fn read(place: Place, path: &Path) -> Result<Option<String>, Error> {
    let failed = |err: io::Error| {
        let kind = match err.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            _ => ErrorKind::Invalid,
        };
        let message = format!("failed to read the configuration `{}`", path.display());
        Error::new(kind, message).with_source(err)
    };
    let file = match open(path) {
        Ok(file) => file,
        Err(err) if place != Place::Named && is_absent(&err) => return Ok(None),
        Err(err) => return Err(failed(err)),
    };
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(failed(io::Error::other("it is not a file")));
    }
    if let Some(reason) = why_not(found.uid(), found.gid(), found.mode()) {
        return Err(Error::new(
            ErrorKind::Denied,
            format!("the configuration `{}` is not to be trusted: {reason}", path.display()),
        ));
    }
    let mut text = String::new();
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    match text.len() as u64 > MAX_BYTES {
        true => Err(failed(io::Error::other(format!("it is larger than {MAX_BYTES} bytes")))),
        false => Ok(Some(text)),
    }
}

/// Without waiting for somebody at the other end of a fifo.
fn open(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    File::options().read(true).custom_flags(flags).open(path)
}

fn is_absent(err: &io::Error) -> bool {
    matches!(err.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn why_not(uid: u32, gid: u32, mode: u32) -> Option<String> {
    let us = rustix::process::geteuid().as_raw();
    if uid != 0 && uid != us {
        return Some(format!("it belongs to user {uid}"));
    }
    // Many users have a group of their own, in which files are writable by default.
    let own_group = gid == rustix::process::getegid().as_raw();
    if mode & OTHERS_WRITE != 0 || (mode & GROUP_WRITES != 0 && !own_group) {
        return Some("others can write it".to_owned());
    }
    None
}

pub(super) fn too_far(at: &str, key: &str, path: &str) -> Error {
    Error::new(
        ErrorKind::Denied,
        format!(
            "{at}: `{key}` is not taken from a file that was found in the working directory: say `--config {path}` if you mean it"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_others_and_files_that_others_write_are_refused() {
        let us = rustix::process::geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        for (uid, gid, mode, good) in [
            (us, group, 0o644, true),
            (0, 0, 0o644, true),
            (us, group, 0o664, true),
            (us, group + 1, 0o664, false),
            (us, group, 0o646, false),
            (us + 1, group, 0o600, false),
        ] {
            assert_eq!(why_not(uid, gid, mode).is_none(), good, "{uid} {gid} {mode:o}");
        }
    }
}
