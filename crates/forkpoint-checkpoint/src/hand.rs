//! What we have a stopped process do: errands and scripts.

use std::{io, time::Duration};

use crate::{
    arch::{self, Bell, Registers},
    freeze::Held,
    script::{self, Call, Foothold, Outcome, Script, returned},
    sys::{Deadline, Patience, memory, ptrace},
};

/// Below each script, so that a signal's handler that runs there after our death has a stack.
const HEADROOM: u64 = 16 << 10;
const THREAD_SLOT: u64 = 64 << 10;
const LEADER_SLOT: u64 = 4 << 20;
/// No call of a script waits for anything but a disk.
const SCRIPT_TIME: Duration = Duration::from_secs(10);

/// A process that lets itself be led.
#[derive(Debug)]
pub(crate) struct Hand {
    foothold: Foothold,
    /// Where scripts are; empty until there is room.
    area: (u64, u64),
    bell: i32,
    /// Its numbers as it knows them, one for each task.
    numbers: Vec<i32>,
}

/// What must be known of a process to lead it.
#[derive(Clone, Debug)]
pub(crate) struct Reins {
    pub(crate) vdso: (u64, u64),
    pub(crate) numbers: Vec<i32>,
    pub(crate) bell: i32,
}

impl Held {
    /// Makes room for scripts, one for each task, wherever there is some.
    pub(crate) fn open(&mut self, reins: Reins) -> io::Result<()> {
        self.begin_to_open(reins, None)?;
        self.end_to_open()
    }

    /// Has it made. Several processes may be at it at once.
    pub(crate) fn begin_to_open(&mut self, reins: Reins, at: Option<u64>) -> io::Result<()> {
        self.lead(reins, (0, 0))?;
        let len = self.area_len();
        let fixed = at.map_or(0, |_| libc::MAP_FIXED_NOREPLACE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
        let (start, access) = (at.unwrap_or(0), libc::PROT_READ | libc::PROT_WRITE);
        let args = [start, len, access as u64, flags as u64, u64::MAX, 0];
        self.send_on_errand(&Call::new(libc::SYS_mmap, &args))
    }

    pub(crate) fn end_to_open(&mut self) -> io::Result<()> {
        let start = self.return_from_errand()?;
        self.hand_mut()?.area = (start, start + self.area_len());
        Ok(())
    }

    pub(crate) fn area_len(&self) -> u64 {
        LEADER_SLOT + THREAD_SLOT * self.tasks.len() as u64
    }

    /// Leads a process whose scripts are in `area` already.
    pub(crate) fn lead(&mut self, reins: Reins, area: (u64, u64)) -> io::Result<()> {
        let Reins { vdso, numbers, bell } = reins;
        let foothold = Foothold::take(self.pid, vdso)?;
        self.hand = Some(Hand { foothold, area, bell, numbers });
        Ok(())
    }

    /// Where the process's memory is that is ours.
    pub(crate) fn area(&self) -> (u64, u64) {
        self.hand.as_ref().map_or((0, 0), |hand| hand.area)
    }

    /// Has the room taken away. Several processes may be at it at once. The tasks stand elsewhere until they are put back.
    pub(crate) fn begin_to_close(&mut self) -> io::Result<()> {
        let (start, end) = self.area();
        if start != end {
            // The others must not stand in what is taken away.
            for task in self.tasks.iter_mut().skip(1) {
                task.put_back()?;
            }
            self.send_on_errand(&Call::new(libc::SYS_munmap, &[start, end - start]))?;
        }
        Ok(())
    }

    pub(crate) fn end_to_close(&mut self) -> io::Result<()> {
        let (start, end) = self.area();
        if start != end {
            self.return_from_errand()?;
        }
        let hand = self.hand.take();
        if let Some(leader) = self.tasks.first_mut() {
            leader.put_back()?;
        }
        hand.map_or(Ok(()), |hand| hand.foothold.leave())
    }

    /// An empty script for the task with this index.
    pub(crate) fn script(&self, task: usize, data: usize) -> Script {
        let start = self.area().0 + THREAD_SLOT * task as u64;
        let start = if task == 0 { start + THREAD_SLOT * self.tasks.len() as u64 } else { start };
        Script::new(start + HEADROOM, data)
    }

    pub(crate) fn run(&mut self, task: usize, script: &Script) -> io::Result<Outcome> {
        self.start(task, script)?;
        self.finish(task, script)
    }

    /// Starts a script; several tasks may run theirs at once.
    pub(crate) fn start(&mut self, task: usize, script: &Script) -> io::Result<()> {
        let (bell, stub) = (self.bell(task)?, self.hand_mut()?.foothold.stub());
        let Task { tid, regs, mask } = self.task(task)?;
        let tail = script::ending(script, bell, &regs, mask, &arch::extended(tid)?);
        let bytes = script.bytes(&tail);
        let slot = if task == 0 { LEADER_SLOT } else { THREAD_SLOT };
        if bytes.len() as u64 > slot - HEADROOM {
            return Err(io::Error::other("a script is too long"));
        }
        let base = self.script(task, 0).start();
        memory::write(self.pid, base, &bytes)?;
        self.send(task, &regs.running(stub, script.start()))
    }

    pub(crate) fn finish(&mut self, task: usize, script: &Script) -> io::Result<Outcome> {
        self.hear(task)?;
        Outcome::read(self.pid, script)
    }

    /// One call of the leader, with everything in registers.
    pub(crate) fn errand(&mut self, call: &Call) -> io::Result<u64> {
        self.send_on_errand(call)?;
        self.return_from_errand()
    }

    fn send_on_errand(&mut self, call: &Call) -> io::Result<()> {
        let bell = self.bell(0)?;
        let Task { regs, mask, .. } = self.task(0)?;
        let code = arch::errand(bell, mask, &regs);
        let at = self.hand_mut()?.foothold.put_errand(&code)?;
        self.send(0, &regs.on_errand(at, call))
    }

    fn return_from_errand(&mut self) -> io::Result<u64> {
        self.hear(0)?;
        returned(Registers::of(self.task(0)?.tid)?.errand_result())
    }

    /// Registers before the mask: from then on, whoever lets go of it, it finds back by itself.
    fn send(&mut self, index: usize, regs: &Registers) -> io::Result<()> {
        let bell = self.hand_mut()?.bell;
        let task = &mut self.tasks[index];
        regs.set(task.tid)?;
        task.moved = true;
        ptrace::set_mask(task.tid, !(1 << (bell - 1)))?;
        ptrace::go_on(task.tid)
    }

    /// Waits for the bell.
    fn hear(&mut self, index: usize) -> io::Result<()> {
        let bell = self.hand_mut()?.bell;
        let limit = Deadline::after(SCRIPT_TIME);
        let mut patience = Patience::default();
        let task = &mut self.tasks[index];
        loop {
            match ptrace::look(task.tid)? {
                Some(ptrace::Event::Signal(signal)) if signal == bell => return Ok(()),
                Some(ptrace::Event::Signal(signal)) if is_fault(signal) => {
                    return Err(io::Error::other("the program's memory is not what it seemed"));
                }
                Some(ptrace::Event::Signal(signal)) => {
                    task.owed.push(signal);
                    ptrace::go_on(task.tid)?;
                }
                Some(ptrace::Event::Interrupted(_)) => ptrace::go_on(task.tid)?,
                Some(ptrace::Event::Ended) => {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
                None if limit.passed() => {
                    let _ = ptrace::interrupt(task.tid);
                    return Err(io::ErrorKind::TimedOut.into());
                }
                None => patience.wait(),
            }
        }
    }

    fn hand_mut(&mut self) -> io::Result<&mut Hand> {
        self.hand.as_mut().ok_or_else(|| io::Error::other("the process is not led"))
    }

    fn bell(&mut self, task: usize) -> io::Result<Bell> {
        let hand = self.hand_mut()?;
        let number = |index: usize| hand.numbers.get(index).copied().unwrap_or_default();
        Ok(Bell { process: number(0), thread: number(task), signal: hand.bell })
    }

    fn task(&self, index: usize) -> io::Result<Task> {
        let task = self.tasks.get(index).ok_or(io::ErrorKind::NotFound)?;
        Ok(Task { tid: task.tid, regs: task.regs, mask: task.mask })
    }
}

struct Task {
    tid: i32,
    regs: Registers,
    mask: u64,
}

fn is_fault(signal: i32) -> bool {
    matches!(signal, libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGTRAP | libc::SIGFPE)
}

/// A signal that nobody notices unless it is traced: not caught, not waiting, and of no effect.
pub(crate) fn quiet_signal(caught: u64, ignored: u64, waiting: u64) -> Option<i32> {
    let free = |signal: &i32| {
        let bit = 1 << (signal - 1);
        caught & bit == 0 && waiting & bit == 0
    };
    let harmless = [libc::SIGURG, libc::SIGWINCH];
    // To go on is nothing to who does not stand and is not about to.
    let go_on = (waiting & STOPS == 0).then_some(libc::SIGCONT);
    // Job control signals end a stop, or begin one for others.
    let ignorable =
        (1..32).filter(|signal| ignored & (1 << (signal - 1)) != 0 && !(17..=22).contains(signal));
    harmless.into_iter().chain(ignorable).chain(go_on).find(free)
}

/// Signals that stop a process.
const STOPS: u64 = 0b1111 << (libc::SIGSTOP - 1);

const _: () = assert!(libc::SIGSTOP + 3 == libc::SIGTTOU, "four in a row");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bell_is_a_signal_that_nobody_hears() {
        let bit = |signal: i32| 1u64 << (signal - 1);
        assert_eq!(quiet_signal(0, 0, 0), Some(libc::SIGURG));
        assert_eq!(quiet_signal(bit(libc::SIGURG), 0, 0), Some(libc::SIGWINCH));
        assert_eq!(quiet_signal(0, 0, bit(libc::SIGURG)), Some(libc::SIGWINCH));
        let both = bit(libc::SIGURG) | bit(libc::SIGWINCH);
        assert_eq!(quiet_signal(both, bit(libc::SIGPIPE), 0), Some(libc::SIGPIPE));
        assert_eq!(quiet_signal(both, bit(libc::SIGCHLD), 0), Some(libc::SIGCONT));
        assert_eq!(quiet_signal(both, 0, bit(libc::SIGTSTP)), None);
        assert_eq!(quiet_signal(u64::MAX, 0, 0), None);
    }
}
