//! Directories of the host that a sandbox sees through an overlay, as the `host` template's `/usr`.
//!
//! The directory itself is the lowest layer, so that entering costs the same however large it is, and
//! nothing is ever written to it. What leads to the place where it is mounted is part of the base and not
//! of what the sandbox changes: so the sandbox can neither move it nor put a link in its way.

use std::{
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use forkpoint_core::{
    Timestamp,
    driver::{DriverError, DriverResult},
    spec::{SandboxSpec, Workspace, WorkspaceMode},
};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, ResolveFlags, accessat, openat2};

use super::{
    DRIVER,
    host::{ArtifactData, Host, io_error},
    record::Record,
    template::{Base, Bottom, make_dir, make_once},
};

mod apply;
mod drift;
mod pin;

impl Record {
    /// What lies below all layers, place by place: the template's, then workspaces.
    pub(super) fn bottoms(&self) -> Vec<Bottom> {
        bottoms(&self.base, &self.spec.workspaces)
    }
}

pub(super) fn bottoms(base: &Base, workspaces: &[Workspace]) -> Vec<Bottom> {
    let live = live(workspaces).map(|workspace| Bottom {
        at: place(workspace).to_owned(),
        lowers: vec![workspace.source.as_path().to_owned()],
    });
    base.0.iter().cloned().chain(live).collect()
}

fn live(workspaces: &[Workspace]) -> impl Iterator<Item = &Workspace> {
    workspaces.iter().filter(|workspace| workspace.mode == WorkspaceMode::Live)
}

/// For what comes before what in a sandbox's work, wherever it is done.
#[expect(clippy::disallowed_methods, reason = "no driver is told the time")]
pub(super) fn now() -> Timestamp {
    Timestamp::now()
}

/// From the sandbox's root.
pub(super) fn place(workspace: &Workspace) -> &Path {
    let at = workspace.at.as_path();
    at.strip_prefix("/").unwrap_or(at)
}

impl Host {
    /// Refuses workspaces that cannot be shown, before anything is made. The content of a copy was
    /// taken when the sandbox began, so its source is looked at only then.
    pub(super) fn check_workspaces(&self, spec: &SandboxSpec, is_new: bool) -> DriverResult<()> {
        let looked_at = |workspace: &&Workspace| is_new || workspace.mode == WorkspaceMode::Live;
        spec.workspaces.iter().filter(looked_at).try_for_each(|each| self.check_source(each))
    }

    fn check_source(&self, workspace: &Workspace) -> DriverResult<()> {
        match self.objection(workspace.source.as_path()) {
            Some(why) => Err(invalid(format!("workspace `{}` {why}", workspace.source))),
            None => Ok(()),
        }
    }

    /// What a sandbox changed in one directory makes no sense over another.
    pub(super) fn check_same_workspaces(
        &self,
        spec: &SandboxSpec,
        to: &ArtifactData,
    ) -> DriverResult<()> {
        let what = |list: &[Workspace]| -> Vec<_> {
            let what = |each: &Workspace| (each.source.clone(), each.at.clone(), each.mode);
            list.iter().map(what).collect()
        };
        match what(&spec.workspaces) == what(&to.workspaces) {
            true => Ok(()),
            false => Err(invalid(
                "the snapshot has another workspace than the sandbox: `forkpoint restore` makes a \
                 new sandbox of it"
                    .to_owned(),
            )),
        }
    }

    fn objection(&self, source: &Path) -> Option<String> {
        match fs::symlink_metadata(source) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                return Some("is gone: put it back, or start from another directory".to_owned());
            }
            Err(err) => return Some(format!("cannot be used: {err}")),
            Ok(metadata) if !metadata.is_dir() => return Some("is not a directory".to_owned()),
            Ok(_) => {}
        }
        match fs::canonicalize(source) {
            Err(err) => return Some(format!("cannot be used: {err}")),
            Ok(real) if real != source => {
                return Some(format!("has become a link to `{}`", real.display()));
            }
            Ok(_) => {}
        }
        if source.starts_with(&self.root) {
            return Some(format!("lies in our own data directory `{}`", self.root.display()));
        }
        if self.root.starts_with(source) {
            return Some(format!(
                "holds our own data directory `{}`: give another with `--data-dir`",
                self.root.display()
            ));
        }
        let rights = Access::READ_OK | Access::EXEC_OK;
        match accessat(CWD, source, rights, AtFlags::EACCESS) {
            Err(err) => Some(format!("cannot be read: {}", io::Error::from(err))),
            Ok(()) => None,
        }
    }

    /// A base in which every workspace has a place to be mounted at.
    pub(super) fn make_room(&self, mut base: Base, spec: &SandboxSpec) -> DriverResult<Base> {
        for workspace in &spec.workspaces {
            let at = place(workspace);
            if let Some(bottom) = base.0.iter().find(|bottom| bottom.at.starts_with(at)) {
                return Err(invalid(format!(
                    "workspace `{}` cannot be at `{}`: template `{}` has `/{}` there",
                    workspace.source,
                    workspace.at,
                    spec.template,
                    bottom.at.display()
                )));
            }
            if is_there(&base, spec, workspace)? {
                continue;
            }
            let points = self.points(at).map_err(io_error("make a mount point in", &self.root))?;
            for bottom in base.0.iter_mut().filter(|bottom| at.starts_with(&bottom.at)) {
                bottom.lowers.push(points.join(&bottom.at));
            }
        }
        Ok(base)
    }

    /// A tree with nothing but the directories that lead to `at`.
    fn points(&self, at: &Path) -> io::Result<PathBuf> {
        let mut hasher = DefaultHasher::new();
        at.hash(&mut hasher);
        let path = self.root.join("base").join(format!("at-{:016x}", hasher.finish()));
        make_once(&path, |new| {
            let mut ways: Vec<&Path> = at.ancestors().collect();
            ways.retain(|way| !way.as_os_str().is_empty());
            ways.iter().rev().try_for_each(|way| make_dir(new, way, 0o755))
        })?;
        Ok(path)
    }
}

/// Whether the template has a directory where the workspace goes.
fn is_there(base: &Base, spec: &SandboxSpec, workspace: &Workspace) -> DriverResult<bool> {
    let at = place(workspace);
    let mut ways: Vec<&Path> = at.ancestors().collect();
    ways.retain(|way| !way.as_os_str().is_empty());
    for way in ways.into_iter().rev() {
        match find(&base.0, way) {
            None => return Ok(false),
            Some((_, metadata)) if metadata.is_dir() => {}
            Some(_) => {
                return Err(invalid(format!(
                    "workspace `{}` cannot be at `{}`: in template `{}` there is no directory \
                     `/{}`, but a link or a file",
                    workspace.source,
                    workspace.at,
                    spec.template,
                    way.display()
                )));
            }
        }
    }
    Ok(true)
}

/// What the lowest layers show at a path, of which all above the last name are directories there.
fn find(bottoms: &[Bottom], path: &Path) -> Option<(PathBuf, fs::Metadata)> {
    let below = bottoms.iter().filter(|bottom| path.starts_with(&bottom.at));
    let bottom = below.max_by_key(|bottom| bottom.at.as_os_str().len())?;
    let rest = path.strip_prefix(&bottom.at).ok()?;
    let found = bottom.lowers.iter().find_map(|lower| {
        let path = lower.join(rest);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // A template may be of a stranger's making: no link on the way is followed.
        let fd = openat2(CWD, &path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).ok()?;
        let metadata = fs::File::from(fd).metadata().ok()?;
        Some((path, metadata))
    });
    // A name that overlayfs is told to hide is not there.
    found.filter(|(_, it)| !(it.file_type().is_char_device() && it.rdev() == 0))
}

/// A directory, with no symbolic link on its way: sandboxes write what is below these names.
pub(super) fn is_plain_dir(path: &Path) -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).is_ok()
}

fn invalid(reason: String) -> DriverError {
    DriverError::Invalid { driver: DRIVER, reason }
}
