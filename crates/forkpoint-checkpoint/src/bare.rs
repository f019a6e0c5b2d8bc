//! A bare sandbox: namespaces, a process 1 that reaps, and nothing to protect anybody. It is what this
//! crate's tests and benchmarks run in; the product's sandboxes are the local driver's.
//!
//! ```text
//!   who starts it ──exec──► launcher, one thread ──clone3──► process 1 ──► command, or a restored tree
//! ```
//!
//! Inside, `/mnt` is a directory of the caller's, and the rest is the host's. All of it ends with whoever
//! started it.

use std::{
    ffi::OsStr,
    fs,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    os::unix::{ffi::OsStrExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change},
    process::{
        Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, setsid, wait,
    },
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};
use serde::{Deserialize, Serialize};

mod mortal;

pub use self::mortal::die_after;

use self::mortal::Work;
use crate::{
    error::with_causes,
    image::Chain,
    pager::{self, Guard, Memory, Pager},
    restore::{Plan, Steps},
    sys::{self, task},
};

const ASKED: &str = "forkpoint-bare-sandbox";
const OUTSIDE: u32 = 100_000;
const PATIENCE: Duration = Duration::from_secs(20);

/// What to start.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BareSpec {
    /// What is `/mnt` inside.
    pub work: PathBuf,
    /// What runs, unless images are restored.
    pub command: Vec<String>,
    /// The lowest first.
    pub images: Vec<PathBuf>,
    /// Whether the program may gain no rights, and is under a filter that forbids `mount`.
    pub confined: bool,
    /// Whether restored processes run before all their memory is there, if they are large.
    #[serde(default)]
    pub lazy: bool,
    /// Whether restored processes share memory that they do not write to.
    #[serde(default)]
    pub shares: bool,
    /// Whether memory that nobody waits for comes slowly, in a build with debug assertions.
    #[serde(default)]
    pub slow: bool,
    /// Whether process 1 does not know that memory may come later.
    #[serde(default)]
    pub unguarded: bool,
    /// After how many steps whoever starts it is killed, in a build with debug assertions.
    #[serde(default)]
    pub dies_after: Option<u64>,
}

/// A sandbox that runs. Dropping it ends everything in it.
#[derive(Debug)]
pub struct Bare {
    launcher: Child,
    /// The number of its process 1, from here.
    pub init: i32,
    /// How long it took from the images to running.
    pub took: Duration,
    /// The number of the process that brings memory, if there was one.
    pub pager: Option<i32>,
}

impl Bare {
    /// Starts one; `program` calls [`run_if_asked`] first of all.
    pub fn start(program: &Path, spec: &BareSpec) -> io::Result<Self> {
        rustix::fs::chown(
            &spec.work,
            Some(rustix::fs::Uid::from_raw(OUTSIDE)),
            Some(rustix::fs::Gid::from_raw(OUTSIDE)),
        )?;
        let mut launcher = Command::new(program)
            .args([ASKED, &serde_json::to_string(spec)?])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(output) = launcher.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        let mut words = line.split_whitespace();
        let word = words.next().map(str::to_owned);
        let number = |word: Option<&str>| word.and_then(|word| word.parse::<u64>().ok());
        let mut next = || number(words.next());
        match (word.as_deref(), next(), next(), next()) {
            (Some("ready"), Some(init), Some(took), Some(pager)) => {
                let took = Duration::from_micros(took);
                let pager = Some(pager as i32).filter(|pager| *pager != 0);
                Ok(Self { launcher, init: init as i32, took, pager })
            }
            _ => {
                let _ = launcher.wait();
                Err(io::Error::other(line.trim().to_owned()))
            }
        }
    }

    /// Whether all memory of its processes is there.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        pager::is_whole(self.init)
    }

    /// A path inside, as seen from here.
    #[must_use]
    pub fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{inside}", self.init))
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        if let Some(init) = Pid::from_raw(self.init) {
            // It may have ended by itself.
            let _ = kill_process(init, Signal::KILL);
        }
        let _ = self.launcher.wait();
    }
}

/// Becomes a launcher if that is what this process was started for. To be called first in `main`.
pub fn run_if_asked() {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some(ASKED) => {}
        Some(word) => match Work::asked_for(word) {
            Some(work) => mortal::run(work, args),
            None => return,
        },
        None => return,
    }
    let spec = args.next().and_then(|text| serde_json::from_str::<BareSpec>(&text).ok());
    let result = spec.ok_or(io::ErrorKind::InvalidInput.into()).and_then(|spec| launch(&spec));
    if let Err(err) = &result {
        println!("{}", with_causes(err));
    }
    std::process::exit(i32::from(result.is_err()));
}

fn launch(spec: &BareSpec) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if let Some(steps) = spec.dies_after {
        die_after(steps);
    }
    let start = sys::now();
    let mut chain = match spec.images.as_slice() {
        [] => None,
        images => Some(Chain::open(images.iter().cloned()).map_err(io::Error::other)?),
    };
    if let Some(chain) = chain.as_mut().filter(|_| spec.shares) {
        chain.share_memory()?;
    }
    #[cfg(debug_assertions)]
    pager::SLOW.store(spec.slow, std::sync::atomic::Ordering::Relaxed);
    let steps = if spec.lazy { Steps::lazily } else { Steps::new };
    let steps = chain.as_ref().map(steps).transpose().map_err(io::Error::other)?;
    let plan = chain.as_ref().zip(steps.as_ref()).map(|(chain, steps)| Plan::new(chain, steps));
    let plan = plan.transpose().map_err(io::Error::other)?;
    let (reader, writer) = io::pipe()?;
    let (mut started, starting) = io::pipe()?;
    let namespaces = libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS;
    let Some(pid) = task::fork_into(namespaces as u64)? else {
        drop((writer, started));
        let Err(err) = live(spec, plan.as_ref(), reader, starting);
        println!("{}", with_causes(&err));
        std::process::exit(1);
    };
    drop((reader, starting));
    let map = format!("0 {OUTSIDE} 65536");
    fs::write(format!("/proc/{pid}/uid_map"), &map)?;
    fs::write(format!("/proc/{pid}/gid_map"), &map)?;
    (&writer).write_all(b"go")?;
    drop(writer);
    let pager = plan.as_ref().map(|plan| plan.finish_lazily(pid, PATIENCE)).transpose();
    let pager = pager.inspect_err(|_| drop(task::kill(pid, libc::SIGKILL)));
    let pager = pager.map_err(io::Error::other)?.flatten();
    let pager = pager.map(Pager::spawn).transpose()?;
    // Until it has started what it was to start, or failed to.
    let _ = started.read(&mut [0])?;
    println!("ready {pid} {} {}", (sys::now() - start).as_micros(), pager.unwrap_or(0));
    // Whoever started us waits for the end of the line, not of us.
    rustix::stdio::dup2_stdout(fs::File::open("/dev/null")?)?;
    for pid in [Some(pid), pager].into_iter().flatten() {
        rustix::process::waitpid(Pid::from_raw(pid), WaitOptions::empty())?;
    }
    Ok(())
}

/// The child's side: it returns only to fail.
fn live(
    spec: &BareSpec,
    plan: Option<&Plan<'_>>,
    mut launcher: io::PipeReader,
    starting: io::PipeWriter,
) -> io::Result<std::convert::Infallible> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut word = String::new();
    launcher.read_to_string(&mut word)?;
    if word != "go" {
        return Err(io::Error::other("the launcher is gone"));
    }
    set_thread_groups(&[])?;
    set_thread_res_gid(rustix::fs::Gid::ROOT, rustix::fs::Gid::ROOT, rustix::fs::Gid::ROOT)?;
    set_thread_res_uid(rustix::fs::Uid::ROOT, rustix::fs::Uid::ROOT, rustix::fs::Uid::ROOT)?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    setsid()?;
    task::loopback_up()?;
    mounts(&spec.work)?;
    drop(launcher);
    let mut guard = None;
    match plan {
        Some(plan) if spec.unguarded => plan.build().map_err(io::Error::other)?,
        Some(plan) => guard = plan.build_lazily().map_err(io::Error::other)?,
        None => start(spec)?,
    }
    let null = fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    drop(starting);
    loop {
        match wait(watch(&mut guard)) {
            // For whoever wonders where it is.
            Ok(Some((pid, status))) => {
                let text = format!("{} {:#x}\n", pid.as_raw_pid(), status.as_raw());
                let file = fs::File::options().create(true).append(true).open("/mnt/ended");
                let _ = file.and_then(|mut file| file.write_all(text.as_bytes()));
            }
            Ok(None) => {}
            // With no children there is nothing to wait for but time.
            Err(_) => sys::pause(Duration::from_millis(5)),
        }
    }
}

/// Looks after the memory, as long as some of it is missing, and says how to wait for children.
fn watch(guard: &mut Option<Guard>) -> WaitOptions {
    let Some(memory) = guard.take() else { return WaitOptions::empty() };
    let moment = rustix::time::Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
    let _ = poll(&mut [PollFd::new(&memory, PollFlags::IN)], Some(&moment));
    match memory.look() {
        Memory::Coming => *guard = Some(memory),
        Memory::Whole => {}
        Memory::Lost => memory.end_all(),
    }
    WaitOptions::NOHANG
}

fn mounts(work: &Path) -> io::Result<()> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount_bind(work, "/mnt")?;
    let safe = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", "/tmp", "tmpfs", safe, None)?;
    mount("proc", "/proc", "proc", safe | MountFlags::NOEXEC, None)?;
    mount("tmpfs", "/dev/shm", "tmpfs", safe, Some(c"mode=1777,size=64m"))?;
    let options = c"newinstance,ptmxmode=0666,mode=0620";
    mount("devpts", "/dev/pts", "devpts", MountFlags::NOSUID | MountFlags::NOEXEC, Some(options))?;
    mount_bind("/dev/pts/ptmx", "/dev/ptmx")?;
    Ok(())
}

fn start(spec: &BareSpec) -> io::Result<()> {
    let [program, args @ ..] = spec.command.as_slice() else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let log = fs::File::options().create(true).append(true).open("/mnt/log")?;
    let mut command = Command::new(OsStr::from_bytes(program.as_bytes()));
    command.args(args).current_dir("/mnt").stdin(Stdio::null());
    command.stdout(log.try_clone()?).stderr(log);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/mnt").env("LANG", "C.UTF-8");
    let confined = spec.confined;
    #[expect(unsafe_code, reason = "between fork and exec")]
    // SAFETY: only system calls, and there is one thread.
    unsafe {
        command.pre_exec(move || {
            setsid()?;
            // What we inherited is none of the program's business.
            libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
            if confined { confine() } else { Ok(()) }
        })
    };
    // Reaped with all others.
    drop(command.spawn()?);
    Ok(())
}

/// No new rights, and no `mount`: a filter of the simplest kind.
fn confine() -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    let code = [
        libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 },
        libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: libc::SYS_mount as u32 },
        libc::sock_filter {
            code: 0x06,
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        },
        libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
    ];
    let program = libc::sock_fprog { len: 4, filter: code.as_ptr().cast_mut() };
    #[expect(unsafe_code, reason = "no safe interface installs a filter")]
    // SAFETY: `program` points to `code`, of the length it says; the kernel copies it.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
