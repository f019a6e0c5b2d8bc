//! Mounts that nobody else sees, and that go with their descriptor.

use std::{
    io::Read as _,
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::mount::{
    FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, fsconfig_create, fsconfig_reconfigure,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, fspick,
};

pub(crate) struct Mounted(OwnedFd);

impl Mounted {
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }

    pub(crate) fn resize(&self, size: &str) {
        let flags = FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH;
        let context = fspick(&self.0, "", flags).unwrap();
        fsconfig_set_string(&context, "size", size).unwrap();
        fsconfig_reconfigure(&context).unwrap();
    }
}

/// The lowers, the top first, with nothing that can be written.
pub(crate) fn read_only(lowers: &[PathBuf]) -> Mounted {
    mount("overlay", |context| {
        for lower in lowers {
            fsconfig_set_string(context, "lowerdir+", lower.as_path())?;
        }
        Ok(())
    })
}

pub(crate) fn writable(lowers: &[PathBuf], upper: &Path, work: &Path) -> Mounted {
    mount("overlay", |context| {
        for lower in lowers {
            fsconfig_set_string(context, "lowerdir+", lower.as_path())?;
        }
        fsconfig_set_string(context, "upperdir", upper)?;
        fsconfig_set_string(context, "workdir", work)?;
        fsconfig_set_string(context, "redirect_dir", "off")?;
        fsconfig_set_string(context, "index", "off")?;
        fsconfig_set_flag(context, "volatile")
    })
}

pub(crate) fn tmpfs(size: &str) -> Mounted {
    mount("tmpfs", |context| fsconfig_set_string(context, "size", size))
}

/// Without room for more than so many files.
pub(crate) fn tmpfs_of(inodes: &str) -> Mounted {
    mount("tmpfs", |context| fsconfig_set_string(context, "nr_inodes", inodes))
}

pub(crate) fn device(kind: &str, device: &str) -> Mounted {
    mount(kind, |context| fsconfig_set_string(context, "source", device))
}

fn mount(kind: &str, configure: impl FnOnce(&OwnedFd) -> rustix::io::Result<()>) -> Mounted {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
    if let Err(err) = configure(&context).and_then(|()| fsconfig_create(&context)) {
        let mut reason = String::new();
        let _ = std::fs::File::from(context).read_to_string(&mut reason);
        panic!("failed to mount {kind}: {err}: {reason}");
    }
    Mounted(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).unwrap())
}
