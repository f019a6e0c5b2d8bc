//! File systems that nobody sees until they are attached.
//!
//! Everything here answers with a descriptor of a detached mount. It goes when the descriptor is
//! closed, so that a crash leaves nothing on the host.

use std::{
    cell::RefCell,
    fs::File,
    io::{self, Read as _},
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, mkdirat, openat2},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
        fsconfig_set_fd, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
        open_tree,
    },
};
use serde::{Deserialize, Serialize};

use super::{
    sys,
    wire::{self, Doing as _, Failure},
};
use crate::layer::Marks;

/// One overlay of a sandbox: its root, or a directory of the host that it sees through one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OverlaySpec {
    /// Where it goes, from the sandbox's root; empty for the root itself.
    #[serde(with = "wire::path")]
    pub(super) at: PathBuf,
    #[serde(with = "wire::path")]
    pub(super) upper: PathBuf,
    pub(super) work: PathBuf,
    /// The top first.
    #[serde(with = "wire::paths")]
    pub(super) lowers: Vec<PathBuf>,
}

/// Where layers are opened from.
#[derive(Debug)]
pub(super) struct Layers {
    /// The directory of everything that is ours, as seen by the sandbox's users.
    data: OwnedFd,
    data_path: PathBuf,
    owners: Option<OwnedFd>,
    marks: Marks,
    /// Views of directories elsewhere, as long as this lives.
    views: RefCell<Vec<OwnedFd>>,
}

impl Layers {
    /// With `owners`, a user namespace, files on disk belong to the ids inside it.
    pub(super) fn open(
        data: &Path,
        marks: Marks,
        owners: Option<OwnedFd>,
    ) -> Result<Self, Failure> {
        let opened = open_mapped(data, owners.as_ref())?;
        let views = RefCell::default();
        Ok(Self { data: opened, data_path: data.to_owned(), owners, marks, views })
    }

    /// Layers are opened one by one and no symbolic link is followed inside ours: what is in them
    /// was written by sandboxes.
    fn open_layer(&self, path: &Path) -> Result<OwnedFd, Failure> {
        let Ok(relative) = path.strip_prefix(&self.data_path) else {
            return open_mapped(path, self.owners.as_ref());
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
        openat2(&self.data, relative, flags, Mode::empty(), resolve)
            .doing(format!("open layer `{}`", path.display()))
    }

    pub(super) fn overlay(&self, spec: &OverlaySpec) -> Result<OwnedFd, Failure> {
        let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).doing("open overlayfs")?;
        let configured = self.configure(&context, spec);
        configured.map_err(|failure| explained(failure, context.as_fd()))?;
        let mount =
            fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NODEV)
                .doing("mount overlayfs")?;
        self.check_writable(&mount, &spec.work)?;
        Ok(mount)
    }

    /// When overlayfs cannot use its work directory it mounts all the same, without writing, and
    /// does not say why. Most often there is no room for a directory.
    fn check_writable(&self, mount: &OwnedFd, work: &Path) -> Result<(), Failure> {
        let stat = rustix::fs::fstatvfs(mount).doing("inspect the overlay")?;
        if !stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
            return Ok(());
        }
        let work = self.open_layer(work)?;
        mkdirat(&work, "probe", Mode::RWXU).doing("make a directory in the work directory")?;
        Err(Failure::new("mount the overlay for writing", &Errno::ROFS.into()))
    }

    fn configure(&self, context: &OwnedFd, spec: &OverlaySpec) -> Result<(), Failure> {
        let mut lowers = Vec::with_capacity(spec.lowers.len());
        for lower in &spec.lowers {
            lowers.push(self.open_layer(lower)?);
        }
        let (upper, work) = (self.open_layer(&spec.upper)?, self.open_layer(&spec.work)?);
        for lower in &lowers {
            set_layer(context, "lowerdir+", lower.as_fd()).doing("add a layer to overlayfs")?;
        }
        set_layer(context, "upperdir", upper.as_fd()).doing("add the upper directory")?;
        set_layer(context, "workdir", work.as_fd()).doing("add the work directory")?;
        let lowers = lowers.into_iter().zip(&spec.lowers);
        let views = lowers.filter(|(_, path)| !path.starts_with(&self.data_path));
        self.views.borrow_mut().extend(views.map(|(view, _)| view));
        let redirects = match self.marks {
            Marks::Trusted => "off",
            // The one word for it that goes with `userxattr`.
            Marks::User | Marks::Plain => "nofollow",
        };
        for (key, value) in [("index", "off"), ("redirect_dir", redirects), ("metacopy", "off")] {
            fsconfig_set_string(context, key, value).doing("configure overlayfs")?;
        }
        // Without it, every unmount writes the whole disk.
        fsconfig_set_flag(context, "volatile").doing("configure overlayfs")?;
        if self.marks == Marks::User {
            fsconfig_set_flag(context, "userxattr").doing("configure overlayfs")?;
        }
        fsconfig_create(context).doing("create the overlay")
    }
}

/// Linux before 6.13 takes a layer by name only.
fn set_layer(context: &OwnedFd, key: &str, layer: BorrowedFd<'_>) -> rustix::io::Result<()> {
    match fsconfig_set_fd(context, key, layer) {
        Err(Errno::INVAL) => {
            fsconfig_set_string(context, key, format!("/proc/self/fd/{}", layer.as_raw_fd()))
        }
        result => result,
    }
}

/// The kernel says in words why it refused.
fn explained(failure: Failure, context: BorrowedFd<'_>) -> Failure {
    let mut reasons = Vec::new();
    if let Ok(mut file) = context.try_clone_to_owned().map(File::from) {
        let mut line = [0; 512];
        while let Ok(len @ 1..) = file.read(&mut line) {
            reasons.push(String::from_utf8_lossy(&line[..len]).trim().to_owned());
        }
    }
    match reasons.is_empty() {
        true => failure,
        false => {
            Failure { doing: format!("{} ({})", failure.doing, reasons.join("; ")), ..failure }
        }
    }
}

/// How a failure begins for which another file system is the way out.
pub(super) const MAP_OWNERS: &str = "map the owners of files";

/// A private view of a directory, with owners as `owners` maps them.
fn open_mapped(path: &Path, owners: Option<&OwnedFd>) -> Result<OwnedFd, Failure> {
    let doing = || format!("open directory `{}`", path.display());
    let Some(owners) = owners else {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // In a copy of the mount, the names that `/proc/mounts` tells begin here, not at the host's
        // root. Where it cannot be copied, they tell more.
        return match clone_tree(CWD, path) {
            Ok(tree) if is_directory(&tree) => Ok(tree),
            _ => rustix::fs::openat(CWD, path, flags, Mode::empty()).doing(doing()),
        };
    };
    let tree = clone_tree(CWD, path).doing(doing())?;
    sys::map_owners(&tree, owners).doing(format!(
        "{MAP_OWNERS} in `{}`, which not every file system can (ext4, XFS, btrfs and tmpfs do; for a \
         workspace, `--workspace-mode copy` does without)",
        path.display()
    ))?;
    Ok(tree)
}

fn is_directory(file: &OwnedFd) -> bool {
    let stat = rustix::fs::fstat(file);
    stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// A copy of the mount at a path, from there down, without what is mounted below.
pub(super) fn clone_tree(at: BorrowedFd<'_>, path: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(open_tree(at, path, flags)?)
}

/// The same, with what is mounted below.
pub(super) fn clone_all(at: BorrowedFd<'_>, path: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    Ok(open_tree(at, path, flags)?)
}

/// A file system that comes from no device.
pub(super) fn pseudo(
    kind: &str,
    options: &[(&str, &str)],
    flags: MountAttrFlags,
) -> Result<OwnedFd, Failure> {
    let mount = || {
        let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in options {
            fsconfig_set_string(&context, *key, *value)?;
        }
        fsconfig_create(&context)?;
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)
    };
    mount().doing(format!("mount {kind}"))
}

/// Puts a mount where `at` is, below the open directory `root`. A symbolic link on the way is an
/// error: it would lead out.
pub(super) fn attach(
    mount: BorrowedFd<'_>,
    root: BorrowedFd<'_>,
    at: &Path,
) -> Result<(), Failure> {
    let doing = || format!("mount at `/{}`", at.display());
    let target = open_place(root, at).doing(doing())?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", &target, "", flags).doing(doing())
}

pub(super) fn open_place(root: BorrowedFd<'_>, at: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
    Ok(openat2(root, at, flags, Mode::empty(), resolve)?)
}
