//! What would have to be done on the host, step by step.

use std::{
    collections::{BTreeMap, HashSet},
    path::{Path, PathBuf},
};

use forkpoint_core::driver::{
    AppliedStep, ApplyConflict, ApplySkip, ApplyStep, ChangeKind, FileFacts, FileKind,
};
use rustix::fs::Stat;

use super::{
    ApplySpec, earlier,
    error::{WorkspaceError, WorkspaceResult},
    host::{HostDir, Way, is_dir, is_file, is_link},
    ledger::Ledger,
    stage::is_ours,
};
use crate::layer::{DiffSpec, ViewChange, diff, same_bytes};

pub(super) type Changes = BTreeMap<PathBuf, ViewChange>;

#[derive(Debug, Default)]
pub(super) struct Plan {
    /// In order of path.
    pub(super) steps: Vec<Step>,
    pub(super) skipped: Vec<ApplySkip>,
    /// What cannot be done, whoever wants it.
    pub(super) blocked: Vec<ApplyConflict>,
    /// Files that the sandbox moved there.
    pub(super) moved: HashSet<PathBuf>,
    /// Whether the sandbox sees what is brought home.
    pub(super) is_live: bool,
    /// Whether it deleted others, which it may as well have moved and then changed.
    pub(super) has_deleted: bool,
    /// Where it had a file and has something else: that one, changed, or another in its place.
    pub(super) changed: Vec<PathBuf>,
}

#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) path: PathBuf,
    pub(super) want: Want,
    /// What the host has there.
    pub(super) host: Option<Stat>,
    /// What the sandbox began with there.
    pub(super) before: Option<FileFacts>,
    /// What the sandbox has there is the very file that it began with.
    pub(super) is_as_begun: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Want {
    File(FileFacts),
    Link(FileFacts),
    Directory(FileFacts),
    /// What is there, with another mode.
    Mode(u32),
    Nothing,
}

impl Step {
    pub(super) fn told(&self) -> AppliedStep {
        let there = self.host.is_some();
        let (step, len_bytes) = match self.want {
            Want::File(facts) if there => (ApplyStep::Change, facts.len_bytes),
            Want::File(facts) => (ApplyStep::Create, facts.len_bytes),
            Want::Link(_) => (ApplyStep::Link, 0),
            Want::Directory(_) => (ApplyStep::MakeDirectory, 0),
            Want::Mode(_) => (ApplyStep::Mode, 0),
            Want::Nothing if self.is_over_directory() => (ApplyStep::RemoveDirectory, 0),
            Want::Nothing => (ApplyStep::Delete, 0),
        };
        AppliedStep { path: self.path.clone(), step, len_bytes }
    }

    pub(super) fn is_over_directory(&self) -> bool {
        self.host.as_ref().is_some_and(is_dir)
    }

    /// Of a file that is put there. Rights that a program gets from its file are for what the host had in
    /// it, and for nothing that the sandbox wrote.
    pub(super) fn file_mode(&self, facts: &FileFacts) -> u32 {
        match self.is_as_begun {
            true => facts.mode & 0o7777,
            false => home_mode(facts, None),
        }
    }

    /// Whether something is put there.
    pub(super) fn is_put(&self) -> bool {
        matches!(self.want, Want::File(_) | Want::Link(_) | Want::Directory(_))
    }

    fn is_put_over_directory(&self) -> bool {
        matches!(self.want, Want::File(_) | Want::Link(_)) && self.is_over_directory()
    }
}

impl Plan {
    pub(super) fn new(spec: &ApplySpec, host: &HostDir, ledger: &Ledger) -> WorkspaceResult<Self> {
        let found = diff(&DiffSpec { from: spec.from, to: spec.to, under: &[] })?;
        if found.too_deep > 0 {
            check_depth(spec, host)?;
        }
        let mut plan = Self { is_live: spec.is_live(), ..Self::default() };
        let mut changes = plan.apart(found.changes);
        earlier::add(spec, host, ledger, &mut changes)?;
        check_paths(spec, host, &changes)?;
        for change in changes.values().filter(|change| spec.is_wanted(&change.path)) {
            plan.add(spec, host, ledger, &changes, change)?;
        }
        plan.add_ways(spec, host, ledger, &changes)?;
        plan.steps.sort_by(|one, other| one.path.cmp(&other.path));
        plan.steps.dedup_by(|one, other| one.path == other.path);
        plan.leave_git_notes();
        let over = plan.steps.iter().filter(|step| step.is_put_over_directory());
        for other in plan.left_in(host, over)? {
            let reason = "a directory of the host holds it where the sandbox has a file";
            plan.blocked.push(ApplyConflict { path: other, reason });
        }
        Ok(plan)
    }

    /// Whoever asks git for the state of a repository makes it write down the dates of files, on either
    /// side, and both would seem to have changed the same thing. What was added or committed shows
    /// elsewhere in the repository as well.
    fn leave_git_notes(&mut self) {
        let is_index = |path: &Path| path.ends_with(".git/index");
        let others = self.steps.iter().filter(|step| !is_index(&step.path));
        let busy: HashSet<PathBuf> =
            others.flat_map(|step| step.path.ancestors().map(Path::to_owned)).collect();
        let (left, kept) = std::mem::take(&mut self.steps).into_iter().partition(|step| {
            is_index(&step.path)
                && step.host.is_some()
                && step.path.parent().is_some_and(|repository| !busy.contains(repository))
        });
        self.steps = kept;
        let left: Vec<Step> = left;
        self.skipped.extend(left.into_iter().map(|step| ApplySkip {
            path: step.path,
            reason: "git's own notes on files; nothing was staged",
        }));
    }

    /// What directories of the host hold that no step removes.
    pub(super) fn left_in<'a>(
        &self,
        host: &HostDir,
        directories: impl Iterator<Item = &'a Step>,
    ) -> WorkspaceResult<Vec<PathBuf>> {
        let gone = self.steps.iter().filter(|step| matches!(step.want, Want::Nothing));
        let gone: HashSet<&Path> = gone.map(|step| step.path.as_path()).collect();
        let mut left = Vec::new();
        for step in directories.filter(|step| step.is_over_directory()) {
            let entries = host.names(&step.path)?.into_iter().map(|name| step.path.join(name));
            left.extend(entries.filter(|path| !gone.contains(path.as_path())));
        }
        Ok(left)
    }

    /// By path, and with a rename as the two things that it is on the host.
    fn apart(&mut self, changes: Vec<ViewChange>) -> Changes {
        let mut all = Changes::new();
        for mut change in changes {
            if let ChangeKind::Renamed { from } = change.kind {
                let (kind, before) = (ChangeKind::Deleted, change.before);
                let gone = ViewChange { kind, path: from.clone(), before, after: None };
                all.insert(from, gone);
                self.moved.insert(change.path.clone());
                (change.kind, change.before) = (ChangeKind::Added, None);
            } else if change.before.is_some_and(|facts| facts.facts.kind == FileKind::File) {
                match change.kind {
                    ChangeKind::Deleted => self.has_deleted = true,
                    _ => self.changed.push(change.path.clone()),
                }
            }
            all.insert(change.path.clone(), change);
        }
        all
    }

    fn add(
        &mut self,
        spec: &ApplySpec,
        host: &HostDir,
        ledger: &Ledger,
        changes: &Changes,
        change: &ViewChange,
    ) -> WorkspaceResult<()> {
        let path = &change.path;
        let after = change.after.map(|facts| facts.facts);
        if path.as_os_str().is_empty() {
            return Ok(());
        }
        if let Some(reason) = why_not(path, after.as_ref()) {
            self.skipped.push(ApplySkip { path: path.clone(), reason });
            return Ok(());
        }
        let there = match host.look(path)? {
            Way::There(stat) => Some(stat),
            Way::Open => None,
            Way::Blocked if after.is_none() || is_cleared(host, changes, path)? => None,
            way => {
                let reason = match way {
                    Way::Mounted => "something is mounted there on the host, or on the way",
                    _ => "a symbolic link of the host is in the way",
                };
                self.blocked.push(ApplyConflict { path: path.clone(), reason });
                return Ok(());
            }
        };
        let want = want(change, after, there.as_ref());
        let step = Step {
            path: path.clone(),
            want,
            host: there,
            before: change.before.map(|facts| facts.facts),
            is_as_begun: match (change.before, change.after) {
                (Some(before), Some(after)) => before.inode == after.inode,
                _ => false,
            },
        };
        if is_home(spec, host, &step)? {
            return Ok(());
        }
        // Whatever happens in a directory changes its dates, so that nobody can tell whose mode is newer.
        let touched = |stat: &Stat| is_dir(stat) && !ledger.is_untouched(&step.path, stat);
        let is_mode = matches!(step.want, Want::Mode(_));
        if is_mode && spec.is_live() && step.host.as_ref().is_some_and(touched) {
            let reason = "a directory whose mode differs, and that the host changed as well";
            self.skipped.push(ApplySkip { path: step.path, reason });
            return Ok(());
        }
        self.steps.push(step);
        Ok(())
    }

    /// Directories that lead to what is put somewhere, where the host lacks them.
    fn add_ways(
        &mut self,
        spec: &ApplySpec,
        host: &HostDir,
        ledger: &Ledger,
        changes: &Changes,
    ) -> WorkspaceResult<()> {
        let puts = self.steps.iter().filter(|step| step.is_put());
        let mut ways: Vec<PathBuf> =
            puts.filter_map(|step| Some(step.path.parent()?.to_owned())).collect();
        let mut seen: HashSet<PathBuf> = HashSet::from([PathBuf::new()]);
        let planned = self.steps.iter().filter(|step| matches!(step.want, Want::Directory(_)));
        seen.extend(planned.map(|step| step.path.clone()));
        while let Some(way) = ways.pop() {
            if !seen.insert(way.clone()) {
                continue;
            }
            let there = host.look(&way)?;
            if matches!(there, Way::There(stat) if is_dir(&stat)) {
                continue;
            }
            ways.extend(way.parent().map(Path::to_owned));
            match (changes.get(&way), there) {
                (Some(change), _) => self.add(spec, host, ledger, changes, change)?,
                (None, Way::Open) => self.add_lost(spec, way)?,
                (None, _) => {
                    let reason = "it is no directory on the host";
                    self.blocked.push(ApplyConflict { path: way, reason });
                }
            }
        }
        Ok(())
    }

    /// A directory that both sides of the sandbox have, and the host no longer.
    fn add_lost(&mut self, spec: &ApplySpec, path: PathBuf) -> WorkspaceResult<()> {
        let before = spec.from.entry(&path)?.map(|facts| facts.facts);
        if let Some(after) = spec.to.entry(&path)? {
            let want = Want::Directory(after.facts);
            self.steps.push(Step { path, want, host: None, before, is_as_begun: false });
        }
        Ok(())
    }
}

/// Among what is asked for, nothing may lie deeper than can be told.
fn check_depth(spec: &ApplySpec, host: &HostDir) -> WorkspaceResult<()> {
    let under = &spec.request.paths;
    let found = diff(&DiffSpec { from: spec.from, to: spec.to, under })?;
    if found.too_deep == 0 {
        return Ok(());
    }
    let reason = format!(
        "{} directories in it lie deeper than a path of 4096 bytes can tell: apply other paths by name",
        found.too_deep
    );
    Err(WorkspaceError::Refused { path: host.path.clone(), reason })
}

/// Whoever asks for something that is nowhere has mistyped it.
fn check_paths(spec: &ApplySpec, host: &HostDir, changes: &Changes) -> WorkspaceResult<()> {
    for path in spec.request.paths.iter().filter(|path| !path.as_os_str().is_empty()) {
        let is_known = changes.contains_key(path)
            || spec.to.entry(path)?.is_some()
            || spec.from.entry(path)?.is_some()
            || !matches!(host.look(path)?, Way::Open);
        if !is_known {
            return Err(WorkspaceError::Missing { path: path.clone() });
        }
    }
    Ok(())
}

/// Whether what is in the way makes room for a directory of the sandbox's.
fn is_cleared(host: &HostDir, changes: &Changes, path: &Path) -> WorkspaceResult<bool> {
    for way in path.ancestors().skip(1) {
        let after = changes.get(way).and_then(|change| change.after);
        if after.is_some_and(|facts| facts.facts.kind == FileKind::Directory)
            && matches!(host.look(way)?, Way::There(stat) if !is_dir(&stat))
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What has no place in a directory of files.
fn why_not(path: &Path, after: Option<&FileFacts>) -> Option<&'static str> {
    match after.map(|facts| facts.kind) {
        _ if is_ours(path) => Some("the name is kept for apply itself"),
        Some(FileKind::Fifo) => Some("a fifo"),
        Some(FileKind::Socket) => Some("a socket"),
        Some(FileKind::CharDevice | FileKind::BlockDevice) => Some("a device"),
        _ => None,
    }
}

fn want(change: &ViewChange, after: Option<FileFacts>, there: Option<&Stat>) -> Want {
    let Some(after) = after else { return Want::Nothing };
    let same_kind = match after.kind {
        FileKind::File => there.is_some_and(is_file),
        FileKind::Directory => there.is_some_and(is_dir),
        _ => false,
    };
    match after.kind {
        // One that is there needs nothing but its mode.
        FileKind::Directory if same_kind => Want::Mode(home_mode(&after, there)),
        FileKind::Directory => Want::Directory(after),
        // Of one with several names, the others would get the mode too.
        FileKind::File
            if same_kind
                && change.kind == ChangeKind::Attributes
                && there.is_some_and(|stat| stat.st_nlink == 1) =>
        {
            Want::Mode(home_mode(&after, there))
        }
        FileKind::Symlink => Want::Link(after),
        _ => Want::File(after),
    }
}

/// Rights that a program gets from its file are brought home only to a file that gave them before, and
/// keeps its content.
pub(super) fn home_mode(after: &FileFacts, there: Option<&Stat>) -> u32 {
    const SET_ID: u32 = 0o6000;
    let had = there.map_or(0, |stat| stat.st_mode);
    after.mode & 0o7777 & (!SET_ID | had)
}

/// Whether the host has it already.
fn is_home(spec: &ApplySpec, host: &HostDir, step: &Step) -> WorkspaceResult<bool> {
    let Some(there) = &step.host else { return Ok(matches!(step.want, Want::Nothing)) };
    match &step.want {
        Want::Mode(mode) => Ok(there.st_mode & 0o7777 == *mode),
        Want::File(after) => Ok(there.st_mode & 0o7777 == home_mode(after, Some(there))
            && same_file(spec.to, host, &step.path, after, there)?),
        Want::Link(_) if is_link(there) => {
            Ok(host.read_link(&step.path)? == spec.to.read_link(&step.path)?)
        }
        _ => Ok(false),
    }
}

/// Whether the host's file has the content that a view shows.
pub(super) fn same_file(
    view: &crate::layer::LayerView,
    host: &HostDir,
    path: &Path,
    facts: &FileFacts,
    there: &Stat,
) -> WorkspaceResult<bool> {
    if !is_file(there) || u64::try_from(there.st_size) != Ok(facts.len_bytes) {
        return Ok(false);
    }
    let (one, other) = (view.open_file(path)?, host.open_file(path)?);
    // What cannot be compared is not the same.
    Ok(same_bytes(one, other).unwrap_or(false))
}
