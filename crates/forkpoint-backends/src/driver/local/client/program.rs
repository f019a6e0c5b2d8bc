//! Our program as a file that cannot be changed through.
//!
//! A process that becomes a command reaches what it ran before by `/proc/self/exe`. Where users are not mapped,
//! and without root, it is the owner of that file: it could open it to others, or write to it when nobody
//! runs it any more.

use std::{
    ffi::CString,
    fs::{self, File},
    io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::{ffi::OsStringExt as _, fs::MetadataExt as _},
    },
    path::Path,
};

use rustix::{
    fs::{CWD, MemfdFlags, SealFlags, fcntl_add_seals, memfd_create},
    process::{Pid, WaitOptions, waitpid},
};

use super::super::{mount::clone_tree, sys};

/// To be started from its descriptor.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) file: OwnedFd,
    /// Who made it and has ended, or is about to.
    _maker: Option<Maker>,
}

impl Program {
    /// A view of the file if there can be one, else a copy in memory: it takes as long as the file is large.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        if let Ok(file) = view(path) {
            return Ok(Self { file, _maker: None });
        }
        match view_of_ones_own(path) {
            Ok((file, maker)) => Ok(Self { file, _maker: Some(maker) }),
            Err(_) => Ok(Self { file: copy(path)?, _maker: None }),
        }
    }
}

#[derive(Debug)]
struct Maker(Pid);

impl Drop for Maker {
    fn drop(&mut self) {
        let _ = waitpid(Some(self.0), WaitOptions::from_bits_retain(libc::__WALL as u32));
    }
}

fn view(path: &Path) -> io::Result<OwnedFd> {
    let view = clone_tree(CWD, path)?;
    sys::set_mount_flags(&view, libc::MOUNT_ATTR_RDONLY)?;
    Ok(view)
}

/// The same by somebody who may: root of a user namespace that lasts no longer than it takes.
fn view_of_ones_own(path: &Path) -> io::Result<(OwnedFd, Maker)> {
    let wanted = fs::metadata(path)?;
    // A link of `/proc` leads to a mount that is not one of theirs.
    let name = fs::canonicalize(path)?;
    let name = CString::new(name.into_os_string().into_vec())?;
    let place = OwnedFd::from(File::open("/dev/null")?);
    let maker = Maker(sys::view_inside(&name, &place)?);
    // Another file may have that name by now, and if it failed, it is still what it was.
    let found = File::from(place.try_clone()?).metadata()?;
    match (found.dev(), found.ino()) == (wanted.dev(), wanted.ino()) {
        true => Ok((place, maker)),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

fn copy(path: &Path) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::EXEC;
    let copy = memfd_create("forkpoint", flags)?;
    io::copy(&mut File::open(path)?, &mut File::from(copy.try_clone()?))?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::EXEC;
    fcntl_add_seals(&copy, seals | SealFlags::SEAL)?;
    // What is open for writing cannot be run.
    Ok(File::open(format!("/proc/self/fd/{}", copy.as_raw_fd()))?.into())
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write as _,
        os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    };

    use super::*;

    const TRUE: &str = "/bin/true";

    fn runs(program: &OwnedFd) -> bool {
        let path = format!("/proc/self/fd/{}", program.as_raw_fd());
        std::process::Command::new(path).arg0("true").status().unwrap().success()
    }

    /// Tries with what is there already.
    fn is_writable(program: &OwnedFd) -> bool {
        let path = format!("/proc/self/fd/{}", program.as_raw_fd());
        let file = File::options().write(true).open(path);
        file.is_ok_and(|mut file| file.write_all(b"\x7f").is_ok())
    }

    #[test]
    fn every_kind_runs_and_cannot_be_written_to() {
        let (inside, _maker) = view_of_ones_own(TRUE.as_ref()).unwrap();
        let both = [inside, copy(TRUE.as_ref()).unwrap()];
        let outside = rustix::process::geteuid().is_root().then(|| view(TRUE.as_ref()).unwrap());
        for program in both.iter().chain(&outside) {
            assert!(runs(program));
            assert!(!is_writable(program), "{program:?}");
        }
        let bits = fs::Permissions::from_mode(0o600);
        assert!(File::from(both[1].try_clone().unwrap()).set_permissions(bits).is_err());
    }

    #[test]
    fn a_program_without_a_name_is_copied() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (directory.path().join("program"), directory.path().join("other"));
        fs::copy(TRUE, &path).unwrap();
        let open = File::open(&path).unwrap();
        let link = format!("/proc/self/fd/{}", open.as_raw_fd());
        assert!(view_of_ones_own(link.as_ref()).is_ok());
        fs::write(&other, "another").unwrap();
        fs::rename(&other, &path).unwrap();
        assert!(view_of_ones_own(link.as_ref()).is_err());
        assert!(runs(&Program::open(link.as_ref()).unwrap().file));
    }
}
