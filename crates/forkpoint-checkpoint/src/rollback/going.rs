//! One process on its way back: looked at before anything is touched, then led.

use std::{io, ops::Range};

use super::{
    files,
    memory::{MemoryPlan, is_mapped_as, lost_file},
    not_in_place,
    state::{
        action_at_bell, forks, from_outside, gave_up_limits, registers, room, state, thread_state,
        wanted,
    },
};
use crate::{
    coverage::{Findings, Whose},
    dump::{Draft, maps::Maps},
    error::{Doing as _, Error, Result},
    freeze::Held,
    image::{Alive, Chain, Mapping},
    mounts::Names,
    restore,
    script::Script,
    sys::{PAGE, ptrace, task},
    track::Tracker,
};

#[derive(Debug)]
pub(super) struct Going<'a> {
    draft: Draft,
    alive: &'a Alive,
    /// Children of it that are ended.
    ended: Vec<i32>,
    limits: Vec<(u64, u64)>,
    /// Where its scripts are to be: where nothing is now, nor when it is what it was.
    room: u64,
    /// None where something is mapped otherwise than it was: the heap goes back first, and then it is looked at.
    memory: Option<MemoryPlan>,
}

/// What a process is at.
#[derive(Debug)]
pub(super) struct Steps {
    /// One for each task.
    scripts: Vec<Script>,
    children: Range<usize>,
    memory: Range<usize>,
    /// The call that tells where the heap ended.
    heap_end: usize,
}

impl<'a> Going<'a> {
    /// Touches nothing. `new` are those that are ended, and their parents.
    pub(super) fn new(
        held: &Held,
        draft: Draft,
        alive: &'a Alive,
        new: &[(i32, i32)],
        tracker: Option<&Tracker>,
    ) -> Result<Self> {
        if tracker.is_some_and(|tracker| tracker.tracked(held.pid, draft.started).is_none()) {
            return Err(not_in_place("its memory is not tracked any more"));
        }
        let (was, now) = (&alive.mappings, &draft.alive.mappings);
        if let Some(why) = lost_file(was, now) {
            return Err(not_in_place(why));
        }
        let Whose { pid, name } = &draft.whose;
        let limits = task::limits(held.pid).doing("read the limits", *pid)?;
        if gave_up_limits(&alive.limits, &limits) {
            let why = "has given up limits, which only a new process can have again";
            return Err(not_in_place(format!("process {pid} (`{name}`) {why}")));
        }
        let taken: Vec<_> = now.iter().map(restore::around).collect();
        let room = restore::hole(held.area_len(), alive, &taken);
        let room = room.ok_or_else(|| not_in_place("there is no room to lead it"))?;
        let pid = *pid;
        let memory = match is_mapped_as(was, now) {
            true => Some(look_at_memory(held, pid, alive, now, tracker.is_some())?),
            false => None,
        };
        let children = new.iter().filter(|(_, parent)| *parent == pid);
        let ended = children.map(|(child, _)| *child).collect();
        Ok(Self { draft, alive, ended, limits, room, memory })
    }

    pub(super) fn pid(&self) -> i32 {
        self.draft.whose.pid
    }

    pub(super) fn begin_to_open(&self, held: &mut Held) -> Result<()> {
        let reins = self.draft.reins.clone().ok_or(Error::Ended { pid: self.pid() })?;
        held.begin_to_open(reins, Some(self.room)).doing("lead the steps", self.pid())
    }

    /// Starts all that it can do by itself.
    pub(super) fn start(
        &mut self,
        held: &mut Held,
        names: &Names,
        is_tracked: bool,
    ) -> Result<Steps> {
        let pid = self.pid();
        let memory = match self.memory.take() {
            Some(memory) => memory,
            None => {
                let mut script = held.script(0, 0);
                script.call(libc::SYS_brk, &[self.heap_end()]);
                held.run(0, &script).doing("lead the steps", pid)?;
                self.look_again(held, names, is_tracked)?
            }
        };
        let steps = self.assemble(held, &memory).doing("assemble the steps", pid)?;
        self.memory = Some(memory);
        for (index, script) in steps.scripts.iter().enumerate() {
            held.start(index, script).doing("lead the steps", pid)?;
        }
        Ok(steps)
    }

    /// Children that were not there are asked for, signals that came since are taken away, and the heap ends where it
    /// did; then all the rest.
    fn assemble(&self, held: &Held, memory: &MemoryPlan) -> io::Result<Steps> {
        const ANY_KIND: u64 = libc::__WALL as u64;
        let (alive, draft) = (self.alive, &self.draft);
        let mut script = held.script(0, room(alive));
        for child in &self.ended {
            script.call(libc::SYS_wait4, &[*child as u64, 0, ANY_KIND, 0]);
        }
        let children = 0..script.calls().len();
        let bell = self.bell();
        let all = script.put_words(&[!(1 << (bell - 1))])?;
        let at_once = script.put_words(&[0, 0])?;
        for _ in 0..=ptrace::pending(held.pid, true)?.len() + self.ended.len() {
            script.call(libc::SYS_rt_sigtimedwait, &[all, 0, at_once, 8]);
        }
        let heap_end = script.call(libc::SYS_brk, &[0]);
        script.call(libc::SYS_brk, &[self.heap_end()]);
        let first = script.calls().len();
        memory.steps(&mut script);
        let memory = first..script.calls().len();
        forks(&mut script, alive);
        let others = held.tasks.len() > 1;
        state(&mut script, alive, others.then_some(bell))?;
        files::steps(&mut script, draft, alive)?;
        thread_state(&mut script, wanted(draft, alive, 0)?, &draft.alive.threads[0])?;
        let mut scripts = vec![script];
        for index in 1..held.tasks.len() {
            let mut script = held.script(index, 512);
            thread_state(&mut script, wanted(draft, alive, index)?, &draft.alive.threads[index])?;
            scripts.push(script);
        }
        Ok(Steps { scripts, children, memory, heap_end })
    }

    /// Waits for it, and does what it cannot do itself. Returns how much memory was touched.
    pub(super) fn finish(
        &mut self,
        held: &mut Held,
        steps: &Steps,
        names: &Names,
        chain: &Chain,
        tracker: Option<&Tracker>,
    ) -> Result<u64> {
        let (pid, alive) = (self.pid(), self.alive);
        let mut outcomes = Vec::with_capacity(steps.scripts.len());
        for (index, script) in steps.scripts.iter().enumerate() {
            outcomes.push(held.finish(index, script).doing("lead the steps", pid)?);
        }
        if held.tasks.len() > 1 {
            self.act_at_bell(held).doing("lead the steps", pid)?;
        }
        let outcome = outcomes.first().ok_or(Error::Ended { pid })?;
        let mut children = steps.children.clone();
        children
            .try_for_each(|call| outcome.result(call).map(drop))
            .doing("forget the children", pid)?;
        for call in steps.memory.clone() {
            outcome.result(call).map_err(|source| Error::Step {
                pid,
                step: format!("step {call}"),
                source,
            })?;
        }
        let heap_end = outcome.result(steps.heap_end).doing("ask for the heap", pid)?;
        if heap_end.div_ceil(PAGE) != self.heap_end().div_ceil(PAGE) {
            // It went back over what was mapped as it was, and was no heap then.
            self.memory = Some(self.settle(held, names, tracker.is_some())?);
        }
        let memory = self.memory.take().ok_or(Error::Ended { pid })?;
        let touched = memory.write(held, chain, alive, pid).doing("write the memory", pid)?;
        let snapshot = &chain.top().snapshot;
        files::positions(held, alive, snapshot).doing("set places in files", pid)?;
        let outside = from_outside(held, &self.draft, alive, &self.limits);
        outside.doing("set the limits", pid)?;
        if let Some(tracker) = tracker {
            let tracked = tracker.tracked(held.pid, self.draft.started);
            let tracked = tracked.ok_or_else(|| not_in_place("it is not tracked"))?;
            memory.track(tracked, alive).doing("track the memory", pid)?;
        }
        registers(held, &self.draft, alive).doing("set the registers", pid)?;
        Ok(touched)
    }

    fn heap_end(&self) -> u64 {
        self.alive.space.fields[5]
    }

    fn bell(&self) -> i32 {
        self.draft.reins.as_ref().map_or(libc::SIGURG, |reins| reins.bell)
    }

    /// To be called when nobody is about to ring.
    fn act_at_bell(&self, held: &mut Held) -> io::Result<()> {
        let mut script = held.script(0, 32);
        action_at_bell(&mut script, self.alive, self.bell())?;
        held.run(0, &script)?.failure().map_or(Ok(()), |(_, err)| Err(err))
    }

    /// Looks once more when the heap ends where it did, and has everything else mapped as it was.
    fn settle(&self, held: &mut Held, names: &Names, is_tracked: bool) -> Result<MemoryPlan> {
        let pid = self.pid();
        let memory = self.look_again(held, names, is_tracked)?;
        let mut script = held.script(0, 0);
        memory.steps(&mut script);
        let outcome = held.run(0, &script).doing("lead the steps", pid)?;
        match outcome.failure() {
            Some((call, source)) => Err(Error::Step { pid, step: format!("step {call}"), source }),
            None => Ok(memory),
        }
    }

    fn look_again(&self, held: &Held, names: &Names, is_tracked: bool) -> Result<MemoryPlan> {
        let (pid, area) = (self.pid(), held.area());
        let whose = Whose { pid, name: String::new() };
        let mut findings = Findings::default();
        let maps = Maps::of(&self.draft.proc, names, &whose, &mut findings);
        let mut maps = maps.doing("read the mappings", pid)?;
        // What is not understood would stay mapped. Names may be new to us here, and their files are being put back.
        findings.verdict()?;
        maps.mappings.retain(|mapping| mapping.end <= area.0 || area.1 <= mapping.start);
        look_at_memory(held, pid, self.alive, &maps.mappings, is_tracked)
    }
}

fn look_at_memory(
    held: &Held,
    pid: i32,
    was: &Alive,
    now: &[Mapping],
    is_tracked: bool,
) -> Result<MemoryPlan> {
    let plan = MemoryPlan::new(held, was, now, is_tracked);
    let mut plan = plan.doing("look at the memory", pid)?;
    match plan.unfit.take() {
        Some(why) => Err(not_in_place(why)),
        None => Ok(plan),
    }
}
