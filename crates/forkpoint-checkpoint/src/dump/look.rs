//! Looking at a tree that stands.

use std::{collections::HashMap, fs::File, io};

use super::{
    CaptureSpec,
    advice::Advice,
    files::Files,
    proc::{Stat, Status},
    questions::ask,
    shared,
    task::{self, Common, Depth, Draft},
};
use crate::{
    coverage::{Findings, NOT_TEXT, Whose},
    error::{Doing as _, Error, Result},
    freeze::{Frozen, Tree},
    image::{KeptMount, Life, Memory, OpenFile, Process, Segment},
    mounts::{self, Names},
    segments,
    sys::{self, ipc::Tables},
    track::Tracker,
};

/// What is seen from outside.
#[derive(Debug)]
pub(crate) struct Looked {
    pub(crate) drafts: Vec<Draft>,
    pub(crate) files: Vec<OpenFile>,
    pub(crate) names: Names,
}

/// All that can be seen from outside, of every process.
pub(crate) fn look_at_all(tree: &Tree, spec: &CaptureSpec, frozen: &mut Frozen) -> Result<Looked> {
    let mut findings = Findings::default();
    let (drafts, names) = drafts(tree, spec, frozen, Depth::Outline, &mut findings)?;
    let inside = inside(frozen, &drafts);
    let (drafts, files) = open_files(tree, spec, frozen, drafts, inside, &names, &mut findings)?;
    findings.verdict()?;
    Ok(Looked { drafts, files, names })
}

/// All that is known of a tree before a page is copied. Nothing of it is refused.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) drafts: Vec<Draft>,
    pub(super) files: Vec<OpenFile>,
    /// Numbers inside, by those from here.
    pub(super) inside: HashMap<i32, i32>,
    pub(super) dead: Vec<Process>,
    pub(super) memories: Vec<(Memory, File)>,
    pub(super) mounts: Vec<KeptMount>,
    pub(super) segments: Vec<(Segment, File)>,
}

/// Looks at everything from outside, and has the tasks tell the rest.
pub(super) fn look_at_whole(
    tree: &Tree,
    frozen: &mut Frozen,
    spec: &CaptureSpec,
    (advice, tables): (&mut Advice, &Tables),
    tracker: Option<&mut Tracker>,
) -> Result<Whole> {
    let mut findings = Findings::default();
    let (mut drafts, names) = drafts(tree, spec, frozen, Depth::Whole, &mut findings)?;
    let inside = inside(frozen, &drafts);
    check_sharing(tree, frozen, &drafts, &mut findings)?;
    for (held, draft) in frozen.processes.iter().zip(&mut drafts) {
        advice.note(held.pid, draft, &mut findings).doing("read the mappings", held.pid)?;
    }
    let (mut drafts, files) =
        open_files(tree, spec, frozen, drafts, inside.clone(), &names, &mut findings)?;
    let dead = dead(frozen, &inside)?;
    let doors = shared::doors(frozen, &drafts, &files);
    let memories = shared::look(&doors, &mut findings).system("look at shared memory")?;
    let mounts = mounts::look(tree.init, spec.mounts, &mut findings);
    let mounts = mounts.system("look at files in memory")?;
    let segments = segments::look(tree.init, tables, &drafts, &mut findings);
    let segments = segments.system("look at memory of System V")?;
    findings.verdict()?;

    let mut findings = Findings::default();
    ask(frozen, &mut drafts, tracker, &mut findings)?;
    findings.verdict()?;
    Ok(Whole { drafts, files, inside, dead, memories, mounts, segments })
}

pub(super) fn drafts(
    tree: &Tree,
    spec: &CaptureSpec,
    frozen: &mut Frozen,
    depth: Depth,
    findings: &mut Findings,
) -> Result<(Vec<Draft>, Names)> {
    let common = Common::of(tree.init, spec, depth);
    let common = common.doing("read the namespaces", tree.init)?;
    let mut drafts = Vec::with_capacity(frozen.processes.len());
    for held in &mut frozen.processes {
        match task::look(held, &common, findings) {
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => {
                let why = "somebody who looked at it died, and it is on its way back";
                return Err(Error::restless(held.pid, why));
            }
            draft => drafts.push(known_by_text(draft, held.pid, "read the state")?),
        }
    }
    Ok((drafts, common.names))
}

/// A name that is not text leads no further, and is refused alone.
fn known_by_text<T>(looked: io::Result<T>, pid: i32, doing: &'static str) -> Result<T> {
    match looked {
        Err(err) if err.kind() == io::ErrorKind::InvalidData => {
            let mut findings = Findings::default();
            let whose = Whose::of(pid).doing(doing, pid)?;
            findings.refuse(&whose, NOT_TEXT.0, NOT_TEXT.1);
            findings.verdict()?;
            Err(err).doing(doing, pid)
        }
        looked => looked.doing(doing, pid),
    }
}

/// Numbers inside, by those from here.
fn inside(frozen: &Frozen, drafts: &[Draft]) -> HashMap<i32, i32> {
    let numbers = frozen.processes.iter().zip(drafts);
    numbers.map(|(held, draft)| (held.pid, draft.whose.pid)).collect()
}

fn open_files(
    tree: &Tree,
    spec: &CaptureSpec,
    frozen: &Frozen,
    mut drafts: Vec<Draft>,
    inside: HashMap<i32, i32>,
    names: &Names,
    findings: &mut Findings,
) -> Result<(Vec<Draft>, Vec<OpenFile>)> {
    let mapped = shared::mapped(&drafts);
    let files = Files::new(tree, inside, mapped, names.clone(), spec.connections);
    let mut files = files.doing("open the root", tree.init)?;
    for (held, draft) in frozen.processes.iter().zip(&mut drafts) {
        known_by_text(files.add(held, draft, findings), held.pid, "read open files")?;
    }
    files.check_pipes(findings).system("look at pipes")?;
    files.add_masters(&drafts).system("look at terminals")?;
    files.check_terminals(&drafts, findings);
    files.check_pairs(&drafts, findings);
    files.join_connections(&drafts, findings).system("look at connections")?;
    files.find_polled(frozen, &drafts, findings).system("look at polls")?;
    files.check_processes(&drafts, &dead(frozen, &files.inside)?, findings);
    Ok((drafts, files.files))
}

fn check_sharing(
    tree: &Tree,
    frozen: &Frozen,
    drafts: &[Draft],
    findings: &mut Findings,
) -> Result<()> {
    for (held, draft) in frozen.processes.iter().zip(drafts) {
        let Some((first, others)) = held.tasks.split_first() else { continue };
        for task in others {
            let own = sys::task::keeps_to_itself(first.tid, task.tid);
            if let Some(what) = own.doing("compare the parts", held.pid)? {
                let thing = format!("a thread with {what} of its own");
                findings.refuse(&draft.whose, thing, "threads share what they have");
            }
        }
        if draft.parent_outside == tree.init {
            continue;
        }
        match sys::task::shares(held.pid, draft.parent_outside) {
            Ok(None) => {}
            Ok(Some(what)) => {
                let thing = format!("{what} in common with its parent");
                findings.refuse(&draft.whose, thing, "only threads may share it");
            }
            Err(err) if err.raw_os_error() == Some(libc::ESRCH) => {}
            Err(err) => return Err(err).doing("compare the parts", held.pid),
        }
    }
    Ok(())
}

fn dead(frozen: &Frozen, inside: &HashMap<i32, i32>) -> Result<Vec<Process>> {
    const EXIT_STATUS: usize = 52;
    let mut all = Vec::new();
    for (pid, parent) in &frozen.dead {
        let stat = match Stat::of(*pid) {
            Ok(stat) if stat.state() == 'Z' => stat,
            // It ended between two looks; who waits for it is told by its parent's next look.
            _ => return Err(Error::Ended { pid: *pid }),
        };
        let status = Status::of(*pid).doing("read the state", *pid)?;
        let number = |key| status.last(key).doing("read the numbers", *pid);
        all.push(Process {
            pid: number("NSpid")?,
            parent: inside.get(parent).copied().unwrap_or(1),
            group: number("NSpgid")?,
            session: number("NSsid")?,
            name: status.text("Name").to_owned(),
            life: Life::Dead { status: stat.number(EXIT_STATUS) as i32 },
        });
    }
    Ok(all)
}
