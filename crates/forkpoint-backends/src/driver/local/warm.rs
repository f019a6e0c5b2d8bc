//! Sandboxes that are ready before anybody wants them.
//!
//! A thread has blanks made when nobody has launched anything for a moment. Each knows its keeper by a
//! socket, and the keeper ends it when that closes: with the driver, or with its process, whatever killed it.
//! What is kept ready is what was asked for last: as many of each shape as there were among the last launches.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use forkpoint_core::spec::{Network, Resources};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::Errno,
};

use super::{
    cgroup::{Cgroup, Cgroups},
    client::Client,
    launch::{
        Isolation,
        blank::{BlankSpec, Shape},
    },
    record::InitRecord,
    spawner::{Order, Outcome},
    wire,
};

/// More are of no use to anybody, and each is two processes.
pub const WARM_MAX: usize = 64;

/// Who has launched something may launch more.
const QUIET: Duration = Duration::from_millis(10);
/// What cannot be made now is tried again, and each time later.
const GIVES_UP_AT: u32 = 10;

/// How often it is tried to remove a cgroup, as long as nothing else happens every 10 ms.
const TRIES: u32 = 100;

/// How much use the sandboxes were that were kept ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warmth {
    /// Of what was asked for last.
    pub ready: usize,
    /// Launches that took one.
    pub used: u64,
    /// Launches that found none of their kind.
    pub missed: u64,
    /// Of those that were made, how many ended before anybody took them.
    pub lost: u64,
}

/// One that is ready.
#[derive(Debug)]
pub(super) struct Blank {
    shape: Shape,
    /// What it was born in.
    pub(super) cgroup: Cgroup,
    /// To its keeper.
    pub(super) socket: Arc<OwnedFd>,
}

impl Blank {
    fn is_alive(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Its keeper says nothing until it is asked; it can only go.
        poll(&mut fds, Some(&now)).is_ok_and(|heard| heard == 0)
    }
}

#[derive(Debug)]
pub(super) struct Pool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    most: usize,
    client: Arc<Client>,
    cgroups: Cgroups,
    /// Something changed.
    bell: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    ready: Vec<Blank>,
    /// The shapes of the last launches, as many as may be ready.
    last: VecDeque<Shape>,
    /// How many launches are under way: what they need is not taken from them.
    launching: usize,
    /// Of blanks that ended, and how often it is still tried to remove them.
    left: Vec<(Cgroup, u32)>,
    warmth: Warmth,
    is_started: bool,
    is_over: bool,
    made: u64,
}

/// While it lives, no blank is made.
#[derive(Debug)]
pub(super) struct Launching<'a>(&'a Inner);

impl Launching<'_> {
    /// Whether it is the only one.
    pub(super) fn is_alone(&self) -> bool {
        self.0.state().launching == 1
    }
}

impl Drop for Launching<'_> {
    fn drop(&mut self) {
        self.0.state().launching -= 1;
        self.0.ring();
    }
}

impl Pool {
    pub(super) fn new(
        most: usize,
        isolation: Isolation,
        client: Arc<Client>,
        cgroups: Cgroups,
    ) -> io::Result<Self> {
        // Without root, a root is made of directories that only the one who waits could look up.
        let most = if isolation == Isolation::Rootless { 0 } else { most.min(WARM_MAX) };
        let shape = Shape { isolation, network: Network::None, images: Vec::new() };
        let state = State {
            ready: Vec::new(),
            last: vec![shape; most].into(),
            launching: 0,
            left: Vec::new(),
            warmth: Warmth::default(),
            is_started: false,
            is_over: false,
            made: 0,
        };
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(Inner { most, client, cgroups, bell, state: Mutex::new(state) })))
    }

    /// Blanks are made from now on, in the background.
    pub(super) fn start(&self) {
        if self.0.most == 0 || std::mem::replace(&mut self.0.state().is_started, true) {
            return;
        }
        let inner = Arc::clone(&self.0);
        // Without it, every sandbox is made when it is wanted.
        let _ = thread::Builder::new().name("forkpoint-warm".to_owned()).spawn(move || inner.run());
    }

    pub(super) fn launching(&self) -> Launching<'_> {
        self.start();
        self.0.state().launching += 1;
        Launching(&self.0)
    }

    /// One of this shape, if one is ready.
    pub(super) fn take(&self, shape: &Shape) -> Option<Blank> {
        if self.0.most == 0 {
            return None;
        }
        let taken = self.0.state().take(shape);
        self.0.ring();
        taken
    }

    /// Whether one of this shape seems to be ready.
    pub(super) fn has(&self, shape: &Shape) -> bool {
        self.0.most > 0 && self.0.state().ready.iter().any(|blank| blank.shape == *shape)
    }

    /// An image is to go: nobody may hold it any longer.
    pub(super) fn forget(&self, image: &Path) {
        self.0.state().forget(image);
        self.0.ring();
    }

    pub(super) fn warmth(&self) -> Warmth {
        let state = self.0.state();
        Warmth { ready: state.last.len() - state.missing().1.len(), ..state.warmth }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_over = true;
        state.ready.clear();
        drop(state);
        self.0.ring();
    }
}

impl State {
    fn take(&mut self, shape: &Shape) -> Option<Blank> {
        self.last.push_back(shape.clone());
        self.last.pop_front();
        self.bury();
        let at = self.ready.iter().position(|blank| blank.shape == *shape);
        match at {
            Some(_) => self.warmth.used += 1,
            None => self.warmth.missed += 1,
        }
        at.map(|at| self.ready.remove(at))
    }

    fn bury(&mut self) {
        for blank in self.ready.extract_if(.., |blank| !blank.is_alive()) {
            self.warmth.lost += 1;
            // Its keeper removes it too, unless it was killed.
            self.left.push((blank.cgroup, TRIES));
        }
    }

    fn forget(&mut self, image: &Path) {
        let has = |shape: &Shape| shape.images.iter().any(|path| path == image);
        self.ready.retain(|blank| !has(&blank.shape));
        for shape in self.last.iter_mut().filter(|shape| has(shape)) {
            shape.images.clear();
        }
    }

    /// What is missing. Nothing while somebody launches.
    fn wanted(&self) -> Option<Shape> {
        if self.launching > 0 {
            return None;
        }
        // The latest is the likeliest to come again.
        self.missing().1.last().map(|shape| (*shape).clone())
    }

    /// For one more: what nobody has asked for lately goes.
    fn make_room(&mut self, most: usize) {
        let (fits, _) = self.missing();
        if let Some(at) = fits.iter().position(|fits| !fits)
            && self.ready.len() >= most
        {
            self.ready.remove(at);
        }
    }

    /// Of each that is ready, whether it is one of those that are wanted; and those that are not there.
    fn missing(&self) -> (Vec<bool>, Vec<&Shape>) {
        let mut missing: Vec<&Shape> = self.last.iter().collect();
        let mut fits = |blank: &Blank| {
            let at = missing.iter().position(|shape| **shape == blank.shape);
            at.map(|at| missing.remove(at)).is_some()
        };
        (self.ready.iter().map(&mut fits).collect(), missing)
    }
}

enum Heard {
    Bell,
    /// Somebody is gone.
    End,
    Nothing,
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        // It cannot be full: it is emptied at every turn.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn run(&self) {
        self.sweep();
        let mut failures = 0;
        loop {
            let (wanted, has_left, sockets) = {
                let mut state = self.state();
                if state.is_over {
                    return;
                }
                let wanted = state.wanted().filter(|_| failures < GIVES_UP_AT);
                state.left.retain_mut(|(cgroup, tries)| {
                    *tries -= 1;
                    !cgroup.remove_now() && *tries > 0
                });
                let sockets = state.ready.iter().map(|blank| Arc::clone(&blank.socket)).collect();
                (wanted, !state.left.is_empty(), sockets)
            };
            let wait = (wanted.is_some() || has_left).then_some(QUIET * (1 << failures));
            match self.wait(sockets, wait) {
                Heard::Bell => failures = 0,
                Heard::End => self.state().bury(),
                Heard::Nothing => {
                    let made = wanted.is_none_or(|shape| self.make(shape).is_ok());
                    failures = if made { 0 } else { failures + 1 };
                }
            }
        }
    }

    fn wait(&self, sockets: Vec<Arc<OwnedFd>>, time: Option<Duration>) -> Heard {
        let all = [&self.bell].into_iter().chain(sockets.iter().map(|socket| &**socket));
        let mut fds: Vec<_> = all.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut fds, time.as_ref()) {
            Ok(0) => Heard::Nothing,
            Ok(_) if !fds[0].revents().is_empty() => {
                let _ = rustix::io::read(&self.bell, &mut [0; 8]);
                Heard::Bell
            }
            Ok(_) => Heard::End,
            Err(_) => Heard::Bell,
        }
    }

    /// Waits until it is ready.
    fn make(&self, shape: Shape) -> io::Result<()> {
        let number = {
            let mut state = self.state();
            state.make_room(self.most);
            state.made += 1;
            state.made
        };
        let name = name(&InitRecord::of(rustix::process::getpid())?, number);
        let cgroup = self.cgroups.create(&name, &Resources::default());
        let cgroup = cgroup.map_err(io::Error::other)?;
        let made = self.order(shape, &cgroup);
        match made {
            Ok(blank) => {
                let mut state = self.state();
                if !state.is_over {
                    state.ready.push(blank);
                }
                Ok(())
            }
            Err(err) => {
                let _ = cgroup.remove_now();
                Err(err)
            }
        }
    }

    fn order(&self, shape: Shape, cgroup: &Cgroup) -> io::Result<Blank> {
        let (ours, theirs) = wire::pair()?;
        let into = cgroup.unified_dir()?;
        let into_cgroup = into.is_some();
        let spec = BlankSpec { shape: shape.clone(), cgroup: cgroup.clone(), into_cgroup };
        let fds: Vec<_> = [&theirs].into_iter().chain(&into).map(|fd| fd.as_fd()).collect();
        self.client.tell(&Order::Blank(Box::new(spec)), &fds)?;
        drop(theirs);
        match wire::receive::<Outcome>(&ours)? {
            Some((Outcome::Failed(failure), _)) => Err(io::Error::other(failure)),
            Some(_) => Ok(Blank { shape, cgroup: cgroup.clone(), socket: Arc::new(ours) }),
            None => Err(Errno::PIPE.into()),
        }
    }

    /// Cgroups of blanks whose keeper was killed with its driver. One that somebody lives in stays.
    fn sweep(&self) {
        for cgroup in self.cgroups.find_named(NAME) {
            if cgroup.name().is_some_and(|name| !is_owned(name)) {
                // Somebody may be on its way out of it. Or a sandbox lives in it, which was made of a blank.
                if !cgroup.remove_now() {
                    self.state().left.push((cgroup, TRIES));
                }
            }
        }
    }
}

const NAME: &str = "warm-";

/// It tells whose it is.
fn name(owner: &InitRecord, number: u64) -> String {
    format!("{NAME}{}-{}-{number}", owner.pid, owner.started)
}

/// What has another form is not ours to judge.
fn is_owned(name: &str) -> bool {
    let mut parts = name.trim_start_matches(NAME).split('-');
    let mut number = || parts.next()?.parse::<u64>().ok();
    let (Some(pid), Some(started)) = (number(), number()) else { return true };
    let owner = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    owner.and_then(|pid| InitRecord::of(pid).ok()).is_some_and(|owner| owner.started == started)
}
