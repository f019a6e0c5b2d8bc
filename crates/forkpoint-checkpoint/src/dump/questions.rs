//! What only a task knows of itself, and is made to tell.

use std::io;

use super::task::Draft;
use crate::{
    coverage::{Findings, Whose},
    error::{Doing as _, Error, Result},
    freeze::{Frozen, Held},
    hand::Reins,
    image::{Alive, Thread},
    script::{self, Call, Outcome, Script},
    sys::memory::USERFAULTFD_FLAGS,
    track::Tracker,
};

/// Has every task tell what only it knows, all of them at once.
pub(super) fn ask(
    frozen: &mut Frozen,
    drafts: &mut [Draft],
    mut tracker: Option<&mut Tracker>,
    findings: &mut Findings,
) -> Result<()> {
    let mut asked = Vec::new();
    for (held, draft) in frozen.processes.iter_mut().zip(&*drafts) {
        let reins = draft.reins.clone().ok_or(Error::Ended { pid: held.pid })?;
        let is_known = |tracker: &Tracker| tracker.tracked(held.pid, draft.started).is_some();
        let uffd = tracker.as_deref().is_some_and(|tracker| !is_known(tracker));
        let all = open_and_start(held, draft, reins, uffd);
        asked.push(all.doing("lead the steps", held.pid)?);
    }
    for ((held, draft), questions) in frozen.processes.iter_mut().zip(drafts).zip(&asked) {
        let uffd = hear(held, draft, questions, findings).doing("hear the answers", held.pid)?;
        if let Some(tracker) = tracker.as_deref_mut() {
            match uffd {
                Asked::Made(number) => {
                    tracker.adopt(held, number).doing("track the memory", held.pid)?;
                }
                Asked::NoRoom => tracker.leave(held.pid),
                Asked::Nothing => {}
            }
        }
    }
    Ok(())
}

fn open_and_start(
    held: &mut Held,
    draft: &Draft,
    reins: Reins,
    uffd: bool,
) -> io::Result<Vec<Questions>> {
    held.open(reins)?;
    let mut all = Vec::with_capacity(held.tasks.len());
    for index in 0..held.tasks.len() {
        let questions = Questions::new(held, index, draft, uffd && index == 0)?;
        held.start(index, questions.script())?;
        all.push(questions);
    }
    Ok(all)
}

fn hear(
    held: &mut Held,
    draft: &mut Draft,
    questions: &[Questions],
    findings: &mut Findings,
) -> io::Result<Asked> {
    let mut uffd = Asked::Nothing;
    for (index, questions) in questions.iter().enumerate() {
        let outcome = held.finish(index, questions.script())?;
        questions.answer_thread(&outcome, &mut draft.alive.threads[index])?;
        if index == 0 {
            let Draft { whose, alive, .. } = draft;
            uffd = questions.answer_process(&outcome, alive, whose, findings)?;
        }
    }
    Ok(uffd)
}

/// What came of asking for a userfaultfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Nothing,
    /// The descriptor.
    Made(i32),
    /// The process has as many descriptors as it may have: it is captured all the same, but in full each time.
    NoRoom,
}

impl Asked {
    pub(super) fn of(made: io::Result<u64>) -> io::Result<Self> {
        match made {
            Ok(number) => Ok(Self::Made(number as i32)),
            Err(err) if matches!(err.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                Ok(Self::NoRoom)
            }
            Err(err) => Err(err),
        }
    }
}

/// What a task is asked, and where its answers will be.
#[derive(Debug)]
pub(super) struct Questions {
    script: Script,
    stack: u64,
    clear_tid: u64,
    death_signal: u64,
    securebits: usize,
    timer_slack: usize,
    process: Option<ProcessQuestions>,
}

#[derive(Debug)]
struct ProcessQuestions {
    actions: u64,
    timers: u64,
    subreaper: u64,
    posix_timers: u64,
    heap_end: usize,
    dumpable: usize,
    /// That must be 0.
    zeros: [(usize, &'static str); 2],
    /// By index of its descriptors.
    close_on_exec: Vec<(usize, usize)>,
    userfaultfd: Option<usize>,
}

const ACTIONS: usize = 64;
const PR_GET_TID_ADDRESS: u64 = 40;
const PR_GET_THP_DISABLE: u64 = 42;
const PR_GET_MDWE: u64 = 66;

impl Questions {
    /// For the task with this index; the first is asked for the whole process.
    pub(super) fn new(
        held: &Held,
        index: usize,
        draft: &Draft,
        userfaultfd: bool,
    ) -> io::Result<Self> {
        let alive = &draft.alive;
        let data = if index == 0 { (8 << 10) + 64 * alive.posix_timers.len() } else { 512 };
        let mut script = held.script(index, data);
        let prctl = |script: &mut Script, args: &[u64]| script.call(libc::SYS_prctl, args);
        let stack = script.room(24)?;
        script.call(libc::SYS_sigaltstack, &[0, stack]);
        let clear_tid = script.room(8)?;
        prctl(&mut script, &[PR_GET_TID_ADDRESS, clear_tid]);
        let death_signal = script.room(8)?;
        prctl(&mut script, &[libc::PR_GET_PDEATHSIG as u64, death_signal]);
        let securebits = prctl(&mut script, &[libc::PR_GET_SECUREBITS as u64]);
        let timer_slack = prctl(&mut script, &[libc::PR_GET_TIMERSLACK as u64]);
        let process = match index {
            0 => {
                for number in &draft.left {
                    script.call(libc::SYS_close, &[*number as u64]);
                }
                Some(ProcessQuestions::add(&mut script, draft, userfaultfd)?)
            }
            _ => None,
        };
        // For the way back, should we die.
        let frame = script::stack_in_frame(&script, script.calls().len() + 1);
        script.call(libc::SYS_sigaltstack, &[0, frame]);
        Ok(Self { script, stack, clear_tid, death_signal, securebits, timer_slack, process })
    }

    pub(super) fn script(&self) -> &Script {
        &self.script
    }

    pub(super) fn answer_thread(&self, outcome: &Outcome, thread: &mut Thread) -> io::Result<()> {
        thread.signal_stack = outcome.words(self.stack);
        thread.signal_stack[1] &= 0xffff_ffff;
        [thread.clear_tid] = outcome.words(self.clear_tid);
        let [signal] = outcome.words(self.death_signal);
        thread.death_signal = signal as i32;
        thread.credentials.securebits = outcome.result(self.securebits)? as u32;
        thread.timer_slack = outcome.result(self.timer_slack)?;
        Ok(())
    }

    pub(super) fn answer_process(
        &self,
        outcome: &Outcome,
        alive: &mut Alive,
        whose: &Whose,
        findings: &mut Findings,
    ) -> io::Result<Asked> {
        let Some(asked) = &self.process else { return Ok(Asked::Nothing) };
        let words = |at: u64, index: usize| outcome.words(at + 32 * index as u64);
        alive.actions = (0..ACTIONS).map(|index| words(asked.actions, index)).collect();
        alive.timers = (0..3).map(|index| whole_timer(words(asked.timers, index))).collect();
        for (index, timer) in alive.posix_timers.iter_mut().enumerate() {
            timer.time = words(asked.posix_timers, index);
        }
        let [subreaper] = outcome.words(asked.subreaper);
        alive.subreaper = subreaper as i32 != 0;
        alive.dumpable = outcome.result(asked.dumpable)? as u32;
        alive.space.fields[5] = outcome.result(asked.heap_end)?;
        for (index, call) in &asked.close_on_exec {
            let is_set = outcome.result(*call)? & libc::FD_CLOEXEC as u64 != 0;
            alive.descriptors[*index].close_on_exec = is_set;
        }
        for (call, thing) in asked.zeros {
            // A kernel that does not know the question has none.
            if outcome.result(call).is_ok_and(|value| value != 0) {
                findings.refuse(whose, thing, "it cannot be brought back; run it without");
            }
        }
        asked.userfaultfd.map_or(Ok(Asked::Nothing), |call| Asked::of(outcome.result(call)))
    }
}

/// A timer that rings again and again stands while its signal waits to be taken, and looks like none.
pub(super) fn whole_timer(timer: [u64; 4]) -> [u64; 4] {
    match timer {
        [seconds, rest, 0, 0] => [seconds, rest, seconds, rest],
        timer => timer,
    }
}

/// Nobody is ever asked through it, so it does not matter whose faults would be answered.
pub(super) fn make_userfaultfd() -> Call {
    Call::new(libc::SYS_userfaultfd, &[USERFAULTFD_FLAGS as u64])
}

impl ProcessQuestions {
    fn add(script: &mut Script, draft: &Draft, userfaultfd: bool) -> io::Result<Self> {
        let alive = &draft.alive;
        let actions = script.room(32 * ACTIONS)?;
        for index in 0..ACTIONS as u64 {
            script.call(libc::SYS_rt_sigaction, &[index + 1, 0, actions + 32 * index, 8]);
        }
        let timers = script.room(32 * 3)?;
        for index in 0..3 {
            script.call(libc::SYS_getitimer, &[index, timers + 32 * index]);
        }
        let posix_timers = script.room(32 * alive.posix_timers.len())?;
        for (index, timer) in alive.posix_timers.iter().enumerate() {
            let at = posix_timers + 32 * index as u64;
            script.call(libc::SYS_timer_gettime, &[timer.id as u64, at]);
        }
        let subreaper = script.room(8)?;
        script.call(libc::SYS_prctl, &[libc::PR_GET_CHILD_SUBREAPER as u64, subreaper]);
        let dumpable = script.call(libc::SYS_prctl, &[libc::PR_GET_DUMPABLE as u64]);
        let zeros = [
            (script.call(libc::SYS_prctl, &[PR_GET_THP_DISABLE]), "huge pages switched off"),
            (script.call(libc::SYS_prctl, &[PR_GET_MDWE]), "memory that denies being executable"),
        ];
        let heap_end = script.call(libc::SYS_brk, &[0]);
        let ask = |index: &usize| {
            let number = alive.descriptors[*index].number as u64;
            (*index, script.call(libc::SYS_fcntl, &[number, libc::F_GETFD as u64]))
        };
        let close_on_exec = draft.unsure.iter().map(ask).collect();
        let userfaultfd = userfaultfd.then(|| script.push(make_userfaultfd()));
        Ok(Self {
            actions,
            timers,
            subreaper,
            posix_timers,
            heap_end,
            dumpable,
            zeros,
            close_on_exec,
            userfaultfd,
        })
    }
}

const _: () = assert!(size_of::<libc::itimerval>() == 32, "as the kernel has it");
