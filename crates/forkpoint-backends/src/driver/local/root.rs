//! The file system that a sandbox sees, from inside its new namespaces.

use std::{
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags, accessat,
        fstatfs, mkdirat, openat, openat2, statx, symlinkat,
    },
    mount::{
        FsPickFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags,
        fsconfig_reconfigure, fsconfig_set_string, fspick, mount_change, move_mount, unmount,
    },
    process::{chroot, fchdir, pivot_root},
};

use super::{
    mount::{attach, clone_all, clone_tree, open_place, pseudo},
    sys,
    wire::{Doing as _, Failure},
};

const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
    ("pts/ptmx", "ptmx"),
];

/// File systems of the sandbox's own that are in no layer.
pub(super) const IN_MEMORY: &[&str] = &["/dev", "/dev/shm"];

/// Files that tell of the host or reach into it.
const HIDDEN_FILES: [&str; 6] = [
    "proc/kcore",
    "proc/keys",
    "proc/latency_stats",
    "proc/sched_debug",
    "proc/timer_list",
    "proc/timer_stats",
];

const HIDDEN_DIRECTORIES: [&str; 8] = [
    "proc/acpi",
    "proc/asound",
    "proc/scsi",
    "sys/devices/virtual/powercap",
    "sys/firmware",
    "sys/fs/cgroup",
    "sys/kernel/debug",
    "sys/kernel/security",
];

const READ_ONLY: [&str; 5] = ["proc/bus", "proc/fs", "proc/irq", "proc/sys", "proc/sysrq-trigger"];

/// What is mounted before anything of the sandbox runs.
#[derive(Debug)]
pub(super) struct Furniture {
    /// The root first, then what is mounted in it.
    pub(super) overlays: Vec<(PathBuf, OwnedFd)>,
    /// A view of the host's, where a new one would show the wrong network or is not allowed.
    pub(super) sys: Option<OwnedFd>,
    pub(super) own_network: bool,
    /// How large `/dev/shm` is.
    pub(super) shared_memory_bytes: u64,
    /// What is put over files of the sandbox that are there: where, and what it says.
    pub(super) files: Vec<(PathBuf, String)>,
}

/// A process that stands in the sandbox's root.
#[derive(Debug)]
pub(super) struct Entered {
    /// What lies below all roots that the sandbox will have ([`exchange`]).
    pub(super) floor: OwnedFd,
    /// Of no more use, and takes a while to let go of.
    pub(super) used: OwnedFd,
}

/// Makes this process's root what the sandbox sees. The host is out of reach afterwards.
pub(super) fn enter(furniture: &Furniture) -> Result<Entered, Failure> {
    make_private()?;
    let Some(((_, root), others)) = furniture.overlays.split_first() else {
        return Err(Failure::new("enter the root", &std::io::Error::other("there is none")));
    };
    let floor = make_floor()?;
    cover_root(&floor)?;
    cover_root(root)?;
    for (at, overlay) in others {
        attach(overlay.as_fd(), root.as_fd(), at)?;
    }
    furnish(root.as_fd(), furniture)?;
    show_processes(root.as_fd())?;
    let used = make_covers()?;
    cover_files(root.as_fd(), &used, &furniture.files);
    leave_old_root(&floor)?;
    stand_on(root)?;
    Ok(Entered { floor, used })
}

fn make_private() -> Result<(), Failure> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).doing("make mounts private")
}

/// One that nobody sees, with what a sandbox has that knows nothing of its processes.
#[derive(Debug)]
pub(super) struct Floor {
    pub(super) root: OwnedFd,
    /// How large `/dev/shm` is in it.
    pub(super) shared_memory_bytes: u64,
}

/// The root of a [`Floor`]: by a process in mounts and a network of its own, which it is of no more use to.
pub(super) fn make_furnished_floor(shared_memory_bytes: u64) -> Result<OwnedFd, Failure> {
    make_private()?;
    let floor = make_floor()?;
    cover_root(&floor)?;
    let (overlays, files) = Default::default();
    let furniture =
        Furniture { overlays, sys: None, own_network: true, shared_memory_bytes, files };
    furnish(floor.as_fd(), &furniture)?;
    clone_all(CWD, ".").doing("take the floor")
}

/// An empty root, with places to put mounts aside.
fn make_floor() -> Result<OwnedFd, Failure> {
    let options = [("mode", "755"), ("size", "65536")];
    let floor = pseudo("tmpfs", &options, MountAttrFlags::MOUNT_ATTR_NOSUID)?;
    for name in STAGED {
        mkdirat(&floor, name, Mode::from_raw_mode(0o755)).doing("make a root")?;
    }
    Ok(floor)
}

/// With what lies below it left where it is: nothing leads there from here.
fn stand_on(root: &OwnedFd) -> Result<(), Failure> {
    let stand = fchdir(root).and_then(|()| chroot(".")).and_then(|()| fchdir(root));
    stand.doing("enter the root")
}

/// A root with nothing in it but what every sandbox has, for one that is still to come.
#[derive(Debug)]
pub(super) struct Stage {
    root: OwnedFd,
    covers: OwnedFd,
    shared_memory_bytes: u64,
}

/// What is mounted in it, and moves to the sandbox's own root.
const STAGED: [&str; 3] = ["proc", "sys", "dev"];

impl Stage {
    /// Makes this process's root such a one, on this floor if there is one that fits. The host is out of reach afterwards.
    pub(super) fn enter(furniture: &Furniture, floor: Option<Floor>) -> Result<Self, Failure> {
        make_private()?;
        let furnished = floor.filter(|floor| cover_root(&floor.root).is_ok());
        let new = || {
            let root = make_floor()?;
            cover_root(&root)?;
            furnish(root.as_fd(), furniture)?;
            Ok(Floor { root, shared_memory_bytes: furniture.shared_memory_bytes })
        };
        let Floor { root, shared_memory_bytes } = furnished.map_or_else(new, Ok)?;
        show_processes(root.as_fd())?;
        let covers = make_covers()?;
        leave_old_root(&root)?;
        Ok(Self { root, covers, shared_memory_bytes })
    }

    /// From here to the sandbox's own root. `furniture` is what [`Stage::enter`] did not know.
    pub(super) fn leave(self, furniture: &Furniture) -> Result<Entered, Failure> {
        let Some(((_, root), others)) = furniture.overlays.split_first() else {
            return Err(Failure::new("enter the root", &std::io::Error::other("there is none")));
        };
        if furniture.shared_memory_bytes != self.shared_memory_bytes {
            let size = furniture.shared_memory_bytes.to_string();
            resize(self.root.as_fd(), "dev/shm", &size).doing("resize /dev/shm")?;
        }
        cover_root(root)?;
        for (at, overlay) in others {
            attach(overlay.as_fd(), root.as_fd(), at)?;
        }
        for name in STAGED {
            let mount = open_place(self.root.as_fd(), Path::new(name)).doing("leave the stage")?;
            attach(mount.as_fd(), root.as_fd(), Path::new(name))?;
        }
        cover_files(root.as_fd(), &self.covers, &furniture.files);
        stand_on(root)?;
        Ok(Entered { floor: self.root, used: self.covers })
    }
}

fn resize(root: BorrowedFd<'_>, at: &str, size: &str) -> rustix::io::Result<()> {
    let context = fspick(root, at, FsPickFlags::FSPICK_CLOEXEC)?;
    fsconfig_set_string(&context, "size", size)?;
    fsconfig_reconfigure(&context)
}

/// On top of the host's root: so no mount point is needed there.
fn cover_root(root: &OwnedFd) -> Result<(), Failure> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(root, "", CWD, "/", flags).doing("attach the root")?;
    fchdir(root).doing("enter the root")
}

fn leave_old_root(root: &OwnedFd) -> Result<(), Failure> {
    fchdir(root).doing("enter the root")?;
    pivot_root(".", ".").doing("change the root")?;
    unmount(".", UnmountFlags::DETACH).doing("leave the old root")?;
    rustix::process::chdir("/").doing("enter the root")
}

const STRICT: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// All but the processes.
fn furnish(root: BorrowedFd<'_>, furniture: &Furniture) -> Result<(), Failure> {
    let sys = match &furniture.sys {
        Some(host) => Some(host.try_clone().doing("open /sys")?),
        None if furniture.own_network => {
            Some(pseudo("sysfs", &[], STRICT | MountAttrFlags::MOUNT_ATTR_RDONLY)?)
        }
        None => None,
    };
    if let Some(sys) = sys {
        attach(sys.as_fd(), root, Path::new("sys"))?;
    }
    make_dev(root, furniture.shared_memory_bytes)?;
    hide(root, "sys/")
}

fn show_processes(root: BorrowedFd<'_>) -> Result<(), Failure> {
    let proc = pseudo("proc", &[], STRICT)?;
    attach(proc.as_fd(), root, Path::new("proc"))?;
    hide(root, "proc/")
}

fn make_covers() -> Result<OwnedFd, Failure> {
    let options = [("mode", "755"), ("size", "65536")];
    pseudo("tmpfs", &options, MountAttrFlags::MOUNT_ATTR_NOSUID)
}

fn cover_files(root: BorrowedFd<'_>, covers: &OwnedFd, files: &[(PathBuf, String)]) {
    for (number, (at, content)) in files.iter().enumerate() {
        cover(root, covers, &number.to_string(), (at, content));
    }
}

fn make_dev(root: BorrowedFd<'_>, shared_memory_bytes: u64) -> Result<(), Failure> {
    let no_setuid = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let dev = pseudo("tmpfs", &[("mode", "755"), ("size", "65536")], no_setuid)?;
    let make = || {
        for name in DEVICES {
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
            openat(&dev, name, flags, Mode::from_raw_mode(0o666))?;
        }
        for (target, name) in LINKS {
            symlinkat(target, &dev, name)?;
        }
        mkdirat(&dev, "pts", Mode::from_raw_mode(0o755))?;
        mkdirat(&dev, "shm", Mode::from_raw_mode(0o755))
    };
    make().doing("fill /dev")?;
    attach(dev.as_fd(), root, Path::new("dev"))?;
    for name in DEVICES {
        attach(host_device(name)?.as_fd(), dev.as_fd(), Path::new(name))?;
    }
    let pts = devpts(no_setuid)?;
    attach(pts.as_fd(), dev.as_fd(), Path::new("pts"))?;
    let size = shared_memory_bytes.to_string();
    let options = [("mode", "1777"), ("size", &*size)];
    let no_devices = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let shm = pseudo("tmpfs", &options, no_devices)?;
    attach(shm.as_fd(), dev.as_fd(), Path::new("shm"))
}

/// One of the machine's own. Its mode, owner and times are not the sandbox's to change; what a device
/// does with what is written to it is no matter of the mount.
fn host_device(name: &str) -> Result<OwnedFd, Failure> {
    let doing = || format!("open /dev/{name}");
    let device = clone_tree(CWD, format!("/dev/{name}")).doing(doing())?;
    sys::set_mount_flags(&device, libc::MOUNT_ATTR_RDONLY).doing(doing())?;
    Ok(device)
}

fn devpts(flags: MountAttrFlags) -> Result<OwnedFd, Failure> {
    let options = [("ptmxmode", "666"), ("mode", "620"), ("gid", "5")];
    // Where only one group exists inside, there is no group of terminals.
    pseudo("devpts", &options, flags).or_else(|_| pseudo("devpts", &options[..2], flags))
}

/// What begins so.
fn hide(root: BorrowedFd<'_>, start: &str) -> Result<(), Failure> {
    let exists = |path: &&str| {
        let access = || accessat(root, *path, rustix::fs::Access::EXISTS, AtFlags::empty());
        path.starts_with(start) && access().is_ok()
    };
    for file in HIDDEN_FILES.into_iter().filter(exists) {
        attach(host_device("null")?.as_fd(), root, Path::new(file))?;
    }
    let read_only = STRICT | MountAttrFlags::MOUNT_ATTR_RDONLY;
    let empty = pseudo("tmpfs", &[("mode", "755"), ("size", "4096")], read_only)?;
    let mut hidden = HIDDEN_DIRECTORIES.into_iter().filter(exists);
    let last = hidden.next_back();
    for directory in hidden {
        let nothing = clone_tree(empty.as_fd(), "").doing("copy an empty directory")?;
        attach(nothing.as_fd(), root, Path::new(directory))?;
    }
    // The first of its kind too: what is attached nowhere takes a while to let go of.
    if let Some(directory) = last {
        attach(empty.as_fd(), root, Path::new(directory))?;
    }
    for path in READ_ONLY.into_iter().filter(exists) {
        let view = clone_tree(root, path).doing(format!("open /{path}"))?;
        sys::set_mount_flags(&view, u64::from(read_only.bits()))
            .doing(format!("make /{path} read-only"))?;
        attach(view.as_fd(), root, Path::new(path))?;
    }
    Ok(())
}

/// Covers a file with a few bytes of ours, which are part of no snapshot. Where there is no such file
/// there is nothing to cover. The bytes are in a file system that is mounted nowhere else, under a
/// name: what has none cannot be attached, now or to the next root.
fn cover(root: BorrowedFd<'_>, covers: &OwnedFd, name: &str, (at, content): (&Path, &str)) {
    let change = || -> std::io::Result<()> {
        let target = open_place(root, at)?;
        let stat = rustix::fs::fstat(&target)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(());
        }
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(covers, name, flags, Mode::from_raw_mode(0o444))?;
        rustix::io::write(&file, content.as_bytes())?;
        drop(file);
        let view = clone_tree(covers.as_fd(), name)?;
        attach(view.as_fd(), root, at).map_err(|failure| failure.to_io())
    };
    // A sandbox without it works.
    let _ = change();
}

/// Says something else in a cover that is there: `root` is the sandbox's. Nothing inside leads elsewhere.
pub(super) fn say_anew(root: BorrowedFd<'_>, at: &str, content: &str) -> std::io::Result<()> {
    let confined = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat2(root, at, flags, Mode::empty(), confined)?;
    const TMPFS: i64 = 0x0102_1994;
    if fstatfs(&file)?.f_type != TMPFS {
        return Err(std::io::Error::other("nothing of ours lies there"));
    }
    rustix::io::write(&file, content.as_bytes()).map(drop)?;
    Ok(())
}

/// What is carried over from an old root to the new one, where it is mounted.
const KEPT: [&str; 5] = ["proc", "sys", "dev", MACHINE_ID, RESOLVER];

pub(super) const MACHINE_ID: &str = "etc/machine-id";
pub(super) const RESOLVER: &str = "etc/resolv.conf";
pub(super) const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";

fn is_mounted(root: &OwnedFd, name: &str) -> bool {
    let stat = statx(root, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE);
    stat.is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// From inside a sandbox's mount namespace, with the root that its init has: everything in it stands on the new root from now on.
/// The answer keeps the old one alive, since letting go of it takes time.
pub(super) fn replace(overlays: &[(PathBuf, OwnedFd)]) -> Result<OwnedFd, Failure> {
    let Some(((_, root), others)) = overlays.split_first() else {
        return Err(Failure::new("replace the root", &std::io::Error::other("there is none")));
    };
    let old = open_at(CWD, "/").doing("open the old root")?;
    let on_top = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(root, "", CWD, "/", on_top).doing("attach the new root")?;
    for (at, overlay) in others {
        attach(overlay.as_fd(), root.as_fd(), at)?;
    }
    for name in KEPT.into_iter().filter(|name| is_mounted(&old, name)) {
        // Copied, not moved: if we die before the last step, nothing is missing in the old root.
        let copy = clone_all(old.as_fd(), name).doing(format!("keep /{name}"))?;
        attach(copy.as_fd(), root.as_fd(), Path::new(name))?;
    }
    leave_old_root(root)?;
    Ok(old)
}

/// From inside a sandbox's mount namespace, with the root that its init has, while everything in it stands: it stands on the new
/// root from now on, and what is mounted in the old one besides overlays is in the new one. The old root lies between the floor
/// and the new one: programs that are mapped from it keep their names there, and nothing leads to it. If it fails, nothing
/// happened, or the root was changed and the old one is out of reach.
pub(super) fn exchange(
    overlays: &[(PathBuf, OwnedFd)],
    floor: &OwnedFd,
) -> Result<OwnedFd, Failure> {
    let Some(((_, root), others)) = overlays.split_first() else {
        return Err(Failure::new("replace the root", &std::io::Error::other("there is none")));
    };
    let old = open_at(CWD, "/").doing("open the old root")?;
    let aside = |name| open_place(floor.as_fd(), Path::new(name)).doing("find the floor");
    let aside = [aside(STAGED[0])?, aside(STAGED[2])?];
    let on_top = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(root, "", CWD, "/", on_top).doing("attach the new root")?;
    let enter = || {
        for (at, overlay) in others {
            attach(overlay.as_fd(), root.as_fd(), at)?;
        }
        move_kept(&old, root)?;
        fchdir(root).and_then(|()| pivot_root(".", ".")).doing("change the root")
    };
    enter().inspect_err(|_| {
        // What was moved already goes back; the new root goes with what is left in it.
        let _ = move_kept(root, &old);
        let _ = fchdir(root).and_then(|()| unmount(".", UnmountFlags::DETACH));
    })?;
    // It lies on top of the new one now, where `/..` would lead to it.
    put_below(&old, root, floor, &aside).inspect_err(|_| {
        let _ = fchdir(&old).and_then(|()| unmount(".", UnmountFlags::DETACH));
    })?;
    Ok(old)
}

fn move_kept(from: &OwnedFd, to: &OwnedFd) -> Result<(), Failure> {
    for name in KEPT.into_iter().filter(|name| is_mounted(from, name)) {
        let mount = open_place(from.as_fd(), Path::new(name)).doing(format!("keep /{name}"))?;
        attach(mount.as_fd(), to.as_fd(), Path::new(name))?;
    }
    Ok(())
}

/// By way of two places on the floor, since no mount can be moved onto one that lies on it.
fn put_below(
    old: &OwnedFd,
    new: &OwnedFd,
    floor: &OwnedFd,
    [one, other]: &[OwnedFd; 2],
) -> Result<(), Failure> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    for (mount, to) in [(old, one), (new, other), (old, floor), (new, old)] {
        move_mount(mount, "", to, "", flags).doing("put the old root below the new one")?;
    }
    Ok(())
}

/// Nobody can write to an old root any more; with `in_use`, numbers of mounts, it goes unless one of its is among them. So do
/// older ones that lie right below it.
pub(super) fn retire(
    old: &OwnedFd,
    places: &[PathBuf],
    floor: &OwnedFd,
    in_use: &[u64],
) -> Result<(), Failure> {
    for place in places {
        let mount = open_mount(old, place).doing("open an old mount")?;
        sys::set_mount_flags(&mount, libc::MOUNT_ATTR_RDONLY)
            .doing(format!("make the old `/{}` read-only", place.display()))?;
    }
    // Whether it goes is only about memory.
    let _ = remove_unused(places, floor, in_use);
    Ok(())
}

fn open_mount(root: &OwnedFd, at: &Path) -> std::io::Result<OwnedFd> {
    match at.as_os_str().is_empty() {
        true => root.try_clone(),
        false => open_place(root.as_fd(), at),
    }
}

/// With the newest root aside, `/..` leads from the floor to what lies on top of it.
fn remove_unused(places: &[PathBuf], floor: &OwnedFd, in_use: &[u64]) -> std::io::Result<()> {
    let new = open_at(CWD, "/")?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    let aside = open_place(floor.as_fd(), Path::new(STAGED[0]))?;
    move_mount(&new, "", &aside, "", flags)?;
    let remove = || -> std::io::Result<()> {
        fchdir(floor).and_then(|()| chroot("."))?;
        loop {
            let top = open_at(CWD, "/..")?;
            if mount_id(&top)? == mount_id(floor)? {
                return Ok(());
            }
            for place in places {
                let mount = open_mount(&top, place)?;
                if in_use.contains(&mount_id(&mount)?) {
                    return Ok(());
                }
            }
            drop(top);
            unmount("/..", UnmountFlags::DETACH)?;
        }
    };
    let removed = remove();
    move_mount(&new, "", floor, "", flags)?;
    removed
}

fn open_at(directory: BorrowedFd<'_>, path: &str) -> std::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(directory, path, flags, Mode::empty())?)
}

fn mount_id(mount: &OwnedFd) -> std::io::Result<u64> {
    Ok(statx(mount, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id)
}
