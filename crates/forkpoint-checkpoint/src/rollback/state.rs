//! What a process and its threads have besides memory and descriptors.

use std::io;

use crate::{
    arch,
    dump::{Draft, oom_score_adj},
    freeze::{Held, Task},
    image::{Alive, Thread},
    script::Script,
    sys::task,
};

/// What a thread was that is now `index` of those that stand.
pub(super) fn wanted<'a>(draft: &Draft, alive: &'a Alive, index: usize) -> io::Result<&'a Thread> {
    let number = draft.alive.threads.get(index).map(|thread| thread.tid);
    let thread = alive.threads.iter().find(|thread| Some(thread.tid) == number);
    thread.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// What only the thread itself can set. `now` is what it is.
pub(super) fn thread_state(script: &mut Script, thread: &Thread, now: &Thread) -> io::Result<()> {
    let prctl = |script: &mut Script, args: &[u64]| script.call(libc::SYS_prctl, args);
    if thread.name != now.name {
        let mut name = thread.name.as_bytes().to_vec();
        name.push(0);
        let name = script.put(&name)?;
        prctl(script, &[libc::PR_SET_NAME as u64, name]);
    }
    prctl(script, &[libc::PR_SET_PDEATHSIG as u64, thread.death_signal as u64]);
    prctl(script, &[libc::PR_SET_TIMERSLACK as u64, thread.timer_slack]);
    script.call(libc::SYS_set_tid_address, &[thread.clear_tid]);
    script.call(libc::SYS_set_robust_list, &[thread.robust_list.0, 24]);
    let stack = script.put_words(&thread.signal_stack)?;
    script.call(libc::SYS_sigaltstack, &[stack, 0]);
    Ok(())
}

/// Where each goes on.
pub(super) fn registers(held: &mut Held, draft: &Draft, alive: &Alive) -> io::Result<()> {
    for index in 0..held.tasks.len() {
        let thread = wanted(draft, alive, index)?;
        let task = &mut held.tasks[index];
        arch::set_extended(task.tid, &thread.extended.0)?;
        task.regs = thread.registers.harmless();
        task.mask = thread.mask;
        task.moved = true;
    }
    Ok(())
}

/// Which memory a child has, whatever was told meanwhile: asking what was told would take longer. The kernel walks over
/// gaps, but not over its own pages.
pub(super) fn forks(script: &mut Script, alive: &Alive) {
    const KEEP_ON_FORK: i32 = 19;
    let kernels = alive.space.vdso.unwrap_or(0);
    for (no, yes) in
        [(libc::MADV_DONTFORK, libc::MADV_DOFORK), (libc::MADV_WIPEONFORK, KEEP_ON_FORK)]
    {
        let mut runs: Vec<(u64, u64, i32)> = Vec::new();
        for mapping in &alive.mappings {
            let advice = if mapping.advice.contains(&no) { no } else { yes };
            match runs.last_mut() {
                Some((_, end, last))
                    if *last == advice && !(*end..=mapping.start).contains(&kernels) =>
                {
                    *end = mapping.end;
                }
                _ => runs.push((mapping.start, mapping.end, advice)),
            }
        }
        for (start, end, advice) in runs {
            script.call(libc::SYS_madvise, &[start, end - start, advice as u64]);
        }
    }
}

/// What a process has once. Where other threads ring a `bell` meanwhile, not what it does at that: to set it takes away
/// what another has just rung.
pub(super) fn state(script: &mut Script, alive: &Alive, bell: Option<i32>) -> io::Result<()> {
    let actions = script.put_words(alive.actions.as_flattened())?;
    for (signal, at) in (1..).zip((actions..).step_by(32)).take(alive.actions.len()) {
        if !matches!(signal, libc::SIGKILL | libc::SIGSTOP) && bell != Some(signal) {
            script.call(libc::SYS_rt_sigaction, &[signal as u64, at, 0, 8]);
        }
    }
    for (kind, timer) in alive.timers.iter().enumerate() {
        let timer = script.put_words(timer)?;
        script.call(libc::SYS_setitimer, &[kind as u64, timer, 0]);
    }
    for timer in &alive.posix_timers {
        let time = script.put_words(&timer.time)?;
        script.call(libc::SYS_timer_settime, &[timer.id as u64, 0, time, 0]);
    }
    let mut cwd = alive.cwd.as_bytes().to_vec();
    cwd.push(0);
    let cwd = script.put(&cwd)?;
    script.call(libc::SYS_chdir, &[cwd]);
    script.call(libc::SYS_umask, &[alive.umask.into()]);
    let subreaper = libc::PR_SET_CHILD_SUBREAPER as u64;
    script.call(libc::SYS_prctl, &[subreaper, alive.subreaper.into()]);
    // What else there is only the kernel can set.
    if alive.dumpable <= 1 {
        script.call(libc::SYS_prctl, &[libc::PR_SET_DUMPABLE as u64, alive.dumpable.into()]);
    }
    Ok(())
}

/// Whether it has given up what it could have. Not every engine may raise that.
pub(super) fn gave_up_limits(was: &[(u64, u64)], is: &[(u64, u64)]) -> bool {
    was.iter().zip(is).any(|((_, was), (_, is))| was > is)
}

/// What the program itself may not be allowed to set. `limits` are those that it has.
pub(super) fn from_outside(
    held: &Held,
    draft: &Draft,
    alive: &Alive,
    limits: &[(u64, u64)],
) -> io::Result<()> {
    let pid = held.pid;
    for (kind, (was, is)) in alive.limits.iter().zip(limits).enumerate() {
        if was != is {
            task::set_limit(pid, kind, *was)?;
        }
    }
    for (index, Task { tid, .. }) in held.tasks.iter().enumerate() {
        let thread = wanted(draft, alive, index)?;
        if task::scheduling(*tid)? != thread.scheduling {
            task::set_scheduling(*tid, thread.scheduling)?;
        }
        if task::affinity(*tid)? != thread.affinity.0 {
            task::set_affinity(*tid, &thread.affinity.0)?;
        }
    }
    if oom_score_adj(&draft.proc)? != alive.oom_score_adj {
        std::fs::write(format!("/proc/{pid}/oom_score_adj"), alive.oom_score_adj.to_string())?;
    }
    Ok(())
}

/// What a process does at the bell, when none of its threads is about to ring it.
pub(super) fn action_at_bell(script: &mut Script, alive: &Alive, bell: i32) -> io::Result<()> {
    let action = alive.actions.get(bell as usize - 1).ok_or(io::ErrorKind::NotFound)?;
    let at = script.put_words(action)?;
    script.call(libc::SYS_rt_sigaction, &[bell as u64, at, 0, 8]);
    Ok(())
}

/// At least as much as the data of all steps takes: all of it is written into the process.
pub(super) fn room(alive: &Alive) -> usize {
    const EACH: usize = 64;
    let things = alive.actions.len() + alive.timers.len() + alive.posix_timers.len();
    EACH * (things + alive.locks.len() + 7) + alive.cwd.len()
}
