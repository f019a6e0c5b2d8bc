//! Where cgroups are mounted, and which are our own.

use std::{
    ffi::OsString,
    os::unix::ffi::OsStringExt as _,
    path::{Component, Path, PathBuf},
};

use super::limit::Controller;

#[derive(Debug, Default)]
pub(super) struct Hierarchies {
    pub(super) unified: Option<Hierarchy>,
    v1: Vec<(Controller, Hierarchy)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub(super) mount: PathBuf,
    /// The directory of the cgroup that we are in.
    pub(super) own: PathBuf,
}

impl Hierarchies {
    /// From the texts of `/proc/self/mountinfo` and `/proc/self/cgroup`.
    pub(super) fn parse(mounts: &str, own: &str) -> Self {
        let mut found = Self::default();
        for mount in mounts.lines().filter_map(Mount::parse) {
            if mount.is_unified {
                found.unified.get_or_insert_with(|| mount.hierarchy(own, ""));
            }
            for controller in mount.controllers() {
                if found.v1(controller).is_none() {
                    found.v1.push((controller, mount.hierarchy(own, controller.name())));
                }
            }
        }
        found
    }

    pub(super) fn v1(&self, controller: Controller) -> Option<&Hierarchy> {
        self.v1.iter().find(|(known, _)| *known == controller).map(|(_, hierarchy)| hierarchy)
    }
}

/// The directory of a cgroup that somebody else is in, from the texts of `/proc/self/mountinfo` and of their
/// `/proc/PID/cgroup`; without a controller, that of cgroup2. `None` where it is not mounted here.
pub(in crate::driver) fn place_of(mounts: &str, groups: &str, controller: &str) -> Option<PathBuf> {
    let path = own_path(groups, controller)?;
    let is_it = |mount: &Mount<'_>| match controller {
        "" => mount.is_unified,
        _ => !mount.is_unified && mount.options.split(',').any(|option| option == controller),
    };
    let place = |mount: Mount<'_>| {
        let below = path.strip_prefix(&mount.root).ok()?;
        let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
        is_plain.then(|| mount.point.join(below))
    };
    mounts.lines().filter_map(Mount::parse).filter(is_it).find_map(place)
}

struct Mount<'a> {
    /// Which part of the hierarchy is mounted.
    root: PathBuf,
    point: PathBuf,
    is_unified: bool,
    options: &'a str,
}

impl<'a> Mount<'a> {
    /// `36 31 0:33 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory`
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, kind) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (unescape(mount.next()?), unescape(mount.next()?));
        let mut kind = kind.split(' ');
        let is_unified = match kind.next()? {
            "cgroup2" => true,
            "cgroup" => false,
            _ => return None,
        };
        Some(Self { root, point, is_unified, options: kind.nth(1)? })
    }

    fn controllers(&self) -> impl Iterator<Item = Controller> {
        let is_here = |controller: &Controller| {
            !self.is_unified && self.options.split(',').any(|option| option == controller.name())
        };
        Controller::ALL.into_iter().filter(is_here)
    }

    /// Our own cgroup may be outside of what is mounted, in a container for example. Then the
    /// mount's own is the nearest to it.
    fn hierarchy(&self, own: &str, controller: &str) -> Hierarchy {
        let path = own_path(own, controller).unwrap_or(Path::new("/"));
        let below = path.strip_prefix(&self.root).unwrap_or(Path::new(""));
        let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
        let own = self.point.components().chain(below.components().filter(|_| is_plain)).collect();
        Hierarchy { mount: self.point.clone(), own }
    }
}

/// Of `4:memory:/path`, and `0::/path` for cgroup2.
fn own_path<'a>(own: &'a str, controller: &str) -> Option<&'a Path> {
    own.lines().find_map(|line| {
        let (_, line) = line.split_once(':')?;
        let (controllers, path) = line.split_once(':')?;
        controllers.split(',').any(|name| name == controller).then(|| Path::new(path))
    })
}

/// Spaces and the like are written as `\040`.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let code = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = &after[3..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}
