//! The moment at which the host changes: names, one after the other.

use std::{
    collections::{BTreeSet, HashSet},
    ffi::CString,
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use forkpoint_core::driver::ApplySkip;
use rustix::{
    fs::{
        Access, AtFlags, Mode, OFlags, RenameFlags, Stat, StatxAttributes, StatxFlags, accessat,
        chmod, fstat, openat, renameat, renameat_with, statat, statx, unlinkat,
    },
    io::Errno,
    path::Arg,
};

use super::{
    error::{Doing as _, WorkspaceError, WorkspaceResult},
    host::{HostDir, Way, is_dir},
    ledger::Ledger,
    plan::{Plan, Step, Want, home_mode},
    shown,
    stage::{Staged, Staging},
};

#[cfg(test)]
mod tests;

/// What would be refused half-way is refused now.
pub(super) fn check_rights(host: &HostDir, plan: &Plan) -> WorkspaceResult<()> {
    let me = rustix::process::geteuid();
    let mut places = BTreeSet::new();
    for step in &plan.steps {
        if step.host.is_some() {
            let held = host.hold(&step.path);
            check_fixed(&held.doing("open", || shown(&host.path, &step.path))?, host, &step.path)?;
        }
        match (&step.want, &step.host) {
            (Want::Mode(_), Some(there)) if !me.is_root() && there.st_uid != me.as_raw() => {
                let path = || shown(&host.path, &step.path);
                return Err(Errno::PERM).doing("set the mode of", path);
            }
            (Want::Mode(_), _) => {}
            _ => places.extend(step.path.parent().map(Path::to_owned)),
        }
    }
    for place in places {
        // One that is still to be made is made by us.
        let Ok((directory, _)) = host.parent(&place.join("x")) else { continue };
        check_fixed(&directory, host, &place)?;
        let path = || shown(&host.path, &place);
        let rights = Access::WRITE_OK | Access::EXEC_OK;
        accessat(&directory, ".", rights, AtFlags::EACCESS).doing("write to", path)?;
        let stat = fstat(&directory).doing("inspect", path)?;
        if stat.st_dev != host.device {
            let reason = "it is on another file system than the workspace's root".to_owned();
            return Err(WorkspaceError::Refused { path: path(), reason });
        }
    }
    Ok(())
}

/// Not even root can rename or change what is marked so.
fn check_fixed(file: &OwnedFd, host: &HostDir, path: &Path) -> WorkspaceResult<()> {
    let found = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::empty());
    let found = found.doing("inspect", || shown(&host.path, path))?;
    if !found.stx_attributes.intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND) {
        return Ok(());
    }
    let reason = "it is marked as immutable or append-only: take that away with `chattr -i -a`";
    Err(WorkspaceError::Refused { path: shown(&host.path, path), reason: reason.to_owned() })
}

/// Writing took a while; from here on it is renames.
pub(super) fn check_unchanged(host: &HostDir, plan: &Plan) -> WorkspaceResult<()> {
    for step in &plan.steps {
        let same = match (host.look(&step.path)?, &step.host) {
            (Way::There(now), Some(then)) => is_same(&now, then),
            // What is in the way is a step of its own.
            (Way::Open | Way::Blocked, None) => true,
            _ => false,
        };
        if !same {
            return Err(WorkspaceError::Changed { path: shown(&host.path, &step.path) });
        }
    }
    Ok(())
}

/// The dates of a directory change with what is in it.
fn is_same(now: &Stat, then: &Stat) -> bool {
    let print = |stat: &Stat| (stat.st_ino, stat.st_mode, stat.st_uid);
    let dates = |stat: &Stat| (stat.st_size, stat.st_ctime, stat.st_ctime_nsec);
    print(now) == print(then) && (is_dir(now) || dates(now) == dates(then))
}

/// Directories that are about to change, and that nobody but us has changed since the sandbox began: those
/// that are there, and those that we make.
pub(super) fn untouched(
    host: &HostDir,
    plan: &Plan,
    ledger: &Ledger,
) -> WorkspaceResult<BTreeSet<PathBuf>> {
    let mut places = BTreeSet::new();
    for step in &plan.steps {
        places.extend(step.path.parent().map(Path::to_owned));
        if matches!(step.want, Want::Directory(_) | Want::Mode(_)) {
            places.insert(step.path.clone());
        }
    }
    let mut found = BTreeSet::new();
    if ledger.is_untouched(Path::new(""), &host.begun) {
        found.insert(PathBuf::new());
    }
    for place in places.into_iter().filter(|place| !place.as_os_str().is_empty()) {
        let is_ours = match host.look(&place)? {
            Way::There(stat) if is_dir(&stat) => ledger.is_untouched(&place, &stat),
            _ => true,
        };
        if is_ours {
            found.insert(place);
        }
    }
    Ok(found)
}

pub(super) fn note_left(
    host: &HostDir,
    untouched: &BTreeSet<PathBuf>,
    ledger: &mut Ledger,
) -> WorkspaceResult<()> {
    for place in untouched {
        if let Way::There(stat) = host.look(place)?
            && is_dir(&stat)
        {
            ledger.note_left(place, &stat);
        }
    }
    Ok(())
}

/// Answers with what had to stay after all.
pub(super) fn write(
    host: &HostDir,
    staging: &Staging,
    plan: &Plan,
    staged: &[Staged],
    ledger: &mut Ledger,
) -> WorkspaceResult<Vec<ApplySkip>> {
    let mut writer = Writer {
        host,
        staging,
        ledger,
        removed: BTreeSet::new(),
        stayed: Vec::new(),
        set: HashSet::new(),
        done: 0,
    };
    match (writer.write(plan, staged), writer.done) {
        (Ok(()), _) => Ok(writer.stayed),
        (Err(err), 0) => Err(err),
        (Err(err), done) => {
            let (of, source) = (plan.steps.len(), Box::new(err));
            Err(WorkspaceError::Partial { done, of, source })
        }
    }
}

struct Writer<'a> {
    host: &'a HostDir,
    staging: &'a Staging<'a>,
    ledger: &'a mut Ledger,
    removed: BTreeSet<PathBuf>,
    stayed: Vec<ApplySkip>,
    /// Inodes whose mode we have set: they may have other names.
    set: HashSet<u64>,
    done: usize,
}

impl Writer<'_> {
    fn write(&mut self, plan: &Plan, staged: &[Staged]) -> WorkspaceResult<()> {
        let steps = plan.steps.iter().filter(|step| step.is_put());
        let puts: Vec<_> = steps.zip(staged).collect();
        for &(step, new) in &puts {
            if step.is_over_directory() && !matches!(step.want, Want::Directory(_)) {
                self.clear(plan, &step.path)?;
            }
            if new.is_top {
                self.put(step, new)?;
            }
            self.note(new)?;
            self.done += 1;
        }
        for (step, new) in puts.into_iter().rev() {
            self.finish_directory(step, new)?;
        }
        let modes = |dirs: bool| {
            let wanted = move |step: &&Step| step.is_over_directory() == dirs;
            plan.steps.iter().rev().filter(wanted)
        };
        for step in modes(false) {
            let there = self.set_mode(step)?;
            self.note_mode(step, there.as_ref());
        }
        self.remove(plan.steps.iter().rev())?;
        for step in modes(true) {
            let there = self.set_mode(step)?;
            // One that is noted counts as made by us, and only a copy tells what it was before.
            self.note_mode(step, there.as_ref().filter(|_| !plan.is_live));
        }
        Ok(())
    }

    /// Whether it is what the plan was made for. Its own dates change when another of its names does.
    fn is_still(&self, now: &Stat, then: &Stat) -> bool {
        let same_mode = now.st_mode == then.st_mode || self.set.contains(&now.st_ino);
        let print = |stat: &Stat| (stat.st_ino, is_dir(stat), stat.st_uid);
        let content = |stat: &Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
        same_mode && print(now) == print(then) && (is_dir(now) || content(now) == content(then))
    }

    fn changed(&self, step: &Step) -> WorkspaceError {
        WorkspaceError::Changed { path: shown(&self.host.path, &step.path) }
    }

    fn put(&mut self, step: &Step, new: &Staged) -> WorkspaceResult<()> {
        let doing = || shown(&self.host.path, &step.path);
        let (directory, name) = self.host.parent(&step.path).doing("open", doing)?;
        if let Some(then) = step.host.as_ref().filter(|stat| !is_dir(stat)) {
            return match self.host.look(&step.path)? {
                Way::There(now) if self.is_still(&now, then) => {
                    self.swap((&directory, &name), step, then, new)
                }
                _ => Err(self.changed(step)),
            };
        }
        let put = |how| renameat_with(&self.staging.fd, &new.at, &directory, &name, how);
        match put(RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => Err(self.changed(step)),
            // Not every file system can.
            Err(Errno::INVAL | Errno::NOSYS) => match self.host.look(&step.path)? {
                Way::Open => put(RenameFlags::empty()).doing("put in its place", doing),
                _ => Err(self.changed(step)),
            },
            result => result.doing("put in its place", doing),
        }
    }

    /// Puts it where something else is. What comes out tells whether somebody else was faster.
    fn swap(
        &mut self,
        (directory, name): (&OwnedFd, &CString),
        step: &Step,
        then: &Stat,
        new: &Staged,
    ) -> WorkspaceResult<()> {
        let doing = || shown(&self.host.path, &step.path);
        let staging = &self.staging.fd;
        let swap = || {
            let how = RenameFlags::EXCHANGE;
            renameat_with(staging, &new.at, directory, name, how)
        };
        let out = || statat(staging, &new.at, AtFlags::SYMLINK_NOFOLLOW);
        match swap() {
            // Not every file system can.
            Err(Errno::INVAL | Errno::NOSYS) => {
                return self.replace((directory, name), step, then, new);
            }
            Err(Errno::NOENT) => return Err(self.changed(step)),
            result => result.doing("put in its place", doing)?,
        }
        let old = out().doing("inspect", doing)?;
        if self.is_still(&old, then) {
            return self.let_go(&new.at, step, &old);
        }
        swap().doing("put back", doing)?;
        // If that is not ours either, it was put there last.
        if out().doing("inspect", doing)?.st_ino != new.stat.st_ino {
            swap().doing("put back", doing)?;
        }
        Err(self.changed(step))
    }

    fn replace(
        &mut self,
        (directory, name): (&OwnedFd, &CString),
        step: &Step,
        then: &Stat,
        new: &Staged,
    ) -> WorkspaceResult<()> {
        let staging = &self.staging.fd;
        let replace = || {
            if matches!(step.want, Want::Directory(_)) {
                unlinkat(directory, name, AtFlags::empty())?;
            }
            renameat(staging, &new.at, directory, name)
        };
        let replaced = match then.st_nlink {
            0 | 1 => replace(),
            _ => self.taking_name(directory, name.as_c_str(), step, replace),
        };
        replaced.doing("put in its place", || shown(&self.host.path, &step.path))
    }

    /// Of a file that was put aside: one that has other names goes at once, so that its last date is known.
    fn let_go(&mut self, aside: &Path, step: &Step, out: &Stat) -> WorkspaceResult<()> {
        if is_dir(out) || out.st_nlink < 2 {
            return Ok(());
        }
        let staging = &self.staging.fd;
        let remove = || unlinkat(staging, aside, AtFlags::empty());
        let removed = self.taking_name(staging, aside, step, remove);
        removed.doing("remove", || shown(&self.host.path, &step.path))
    }

    /// Does what takes a name from a file that has others, and notes what the file is after that.
    fn taking_name(
        &mut self,
        directory: &OwnedFd,
        name: impl Arg,
        step: &Step,
        take: impl FnOnce() -> rustix::io::Result<()>,
    ) -> rustix::io::Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let held = openat(directory, name, flags, Mode::empty())?;
        take()?;
        let now = fstat(&held)?;
        // What somebody else wrote to it meanwhile is not ours.
        if let Some(then) = step.host.as_ref().filter(|then| self.is_still(&now, then)) {
            self.ledger.note_shared(&step.path, then, &now);
        }
        Ok(())
    }

    /// Gives a directory of ours the mode with which it could not have been moved.
    fn finish_directory(&self, step: &Step, new: &Staged) -> WorkspaceResult<()> {
        let Want::Directory(facts) = &step.want else { return Ok(()) };
        let mode = home_mode(facts, None);
        if mode & 0o700 == 0o700 {
            return Ok(());
        }
        let held = self.host.hold(&step.path);
        let held = held.doing("open", || shown(&self.host.path, &step.path))?;
        let there = fstat(&held).doing("inspect", || shown(&self.host.path, &step.path))?;
        if there.st_ino != new.stat.st_ino {
            return Err(self.changed(step));
        }
        set(&held, mode).doing("set the mode of", || shown(&self.host.path, &step.path))
    }

    fn note(&mut self, new: &Staged) -> WorkspaceResult<()> {
        let there = self
            .host
            .parent(&new.path)
            .and_then(|(directory, name)| statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW));
        let there = there.doing("inspect", || shown(&self.host.path, &new.path))?;
        self.ledger.note_written(&new.path, &there);
        Ok(())
    }

    fn note_mode(&mut self, step: &Step, there: Option<&Stat>) {
        if let Some(there) = there {
            self.ledger.note_written(&step.path, there);
        }
    }

    fn set_mode(&mut self, step: &Step) -> WorkspaceResult<Option<Stat>> {
        let (Want::Mode(mode), Some(then)) = (&step.want, &step.host) else { return Ok(None) };
        let doing = || shown(&self.host.path, &step.path);
        let held = match self.host.hold(&step.path) {
            Err(Errno::NOENT) => return Err(self.changed(step)),
            result => result.doing("open", doing)?,
        };
        if !self.is_still(&fstat(&held).doing("inspect", doing)?, then) {
            return Err(self.changed(step));
        }
        set(&held, *mode).doing("set the mode of", doing)?;
        let there = fstat(&held).doing("inspect", doing)?;
        self.set.insert(there.st_ino);
        self.done += 1;
        Ok(Some(there))
    }

    /// Makes room for a file where a directory is.
    fn clear(&mut self, plan: &Plan, directory: &Path) -> WorkspaceResult<()> {
        let inside = |step: &&Step| step.path.starts_with(directory) && step.path != directory;
        self.remove(plan.steps.iter().rev().filter(inside))?;
        let (parent, name) =
            self.host.parent(directory).doing("open", || shown(&self.host.path, directory))?;
        unlinkat(&parent, &name, AtFlags::REMOVEDIR)
            .doing("remove", || shown(&self.host.path, directory))
    }

    /// The deepest first. A directory into which something was put meanwhile stays.
    fn remove<'s>(&mut self, steps: impl Iterator<Item = &'s Step>) -> WorkspaceResult<()> {
        for step in steps.filter(|step| matches!(step.want, Want::Nothing)) {
            if !self.removed.insert(step.path.clone()) {
                continue;
            }
            let gone = match step.is_over_directory() {
                true => self
                    .host
                    .parent(&step.path)
                    .and_then(|(directory, name)| unlinkat(&directory, &name, AtFlags::REMOVEDIR)),
                false => self.take_away(step)?,
            };
            match gone {
                Ok(()) | Err(Errno::NOENT) => {
                    self.ledger.note_deleted(&step.path);
                    self.done += 1;
                }
                Err(Errno::NOTEMPTY | Errno::EXIST) => self.stayed.push(ApplySkip {
                    path: step.path.clone(),
                    reason: "a directory with something in it that is not the sandbox's",
                }),
                Err(err) => {
                    return Err(err).doing("remove", || shown(&self.host.path, &step.path));
                }
            }
        }
        Ok(())
    }

    /// Into the staging directory, where it can be seen whether somebody else was faster.
    fn take_away(&mut self, step: &Step) -> WorkspaceResult<rustix::io::Result<()>> {
        let (directory, name) = match self.host.parent(&step.path) {
            Ok(found) => found,
            Err(err) => return Ok(Err(err)),
        };
        let (aside, staging) = (format!("gone-{}", self.removed.len()), &self.staging.fd);
        if let Err(err) = renameat(&directory, &name, staging, &aside) {
            return Ok(Err(err));
        }
        let doing = || shown(&self.host.path, &step.path);
        let out = statat(staging, &aside, AtFlags::SYMLINK_NOFOLLOW).doing("inspect", doing)?;
        if step.host.as_ref().is_some_and(|then| self.is_still(&out, then)) {
            self.let_go(Path::new(&aside), step, &out)?;
            return Ok(Ok(()));
        }
        match renameat_with(staging, &aside, &directory, &name, RenameFlags::NOREPLACE) {
            // Something newer is there again.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(Errno::INVAL | Errno::NOSYS) => {
                renameat(staging, &aside, &directory, &name).doing("put back", doing)?;
            }
            Err(err) => return Err(err).doing("put back", doing),
        }
        Err(self.changed(step))
    }
}

/// Of what is held: no name leads elsewhere.
fn set(held: &OwnedFd, mode: u32) -> rustix::io::Result<()> {
    chmod(format!("/proc/self/fd/{}", held.as_raw_fd()), Mode::from_raw_mode(mode))
}
