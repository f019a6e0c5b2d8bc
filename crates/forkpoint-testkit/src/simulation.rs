//! An executor in which everything repeats.
//!
//! Tasks belong to processes. A seed decides which of the ready tasks goes on; time stands still
//! until nobody can go on, and then jumps to the next timer. Killing a process drops its tasks where
//! they stand: no undo runs, as with `kill -9`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use forkpoint_core::Timestamp;
use futures::{FutureExt as _, future::BoxFuture};

/// How long a task may wait for something outside the simulation before it counts as stuck.
const OUTSIDE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u32);

type TaskId = u64;

#[derive(Clone)]
pub struct Simulation {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    woken: Condvar,
}

struct State {
    tasks: BTreeMap<TaskId, Task>,
    ready: BTreeSet<TaskId>,
    timers: BTreeMap<(Timestamp, u64), Waker>,
    now: Timestamp,
    next: u64,
    seed: Option<u64>,
    dead: BTreeSet<ProcessId>,
}

struct Task {
    process: ProcessId,
    /// Taken out while it is polled.
    future: Option<BoxFuture<'static, ()>>,
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation").finish_non_exhaustive()
    }
}

impl Simulation {
    /// Of the ready tasks, the oldest goes on.
    #[must_use]
    pub fn in_order() -> Self {
        Self::with(None)
    }

    /// The seed decides who goes on.
    #[must_use]
    pub fn shuffled(seed: u64) -> Self {
        Self::with(Some(seed))
    }

    fn with(seed: Option<u64>) -> Self {
        let now = Timestamp::from_second(1_767_225_600).unwrap_or(Timestamp::UNIX_EPOCH);
        let state = State {
            tasks: BTreeMap::new(),
            ready: BTreeSet::new(),
            timers: BTreeMap::new(),
            now,
            next: 1,
            seed,
            dead: BTreeSet::new(),
        };
        Self { shared: Arc::new(Shared { state: Mutex::new(state), woken: Condvar::new() }) }
    }

    /// Time goes on a little whenever somebody looks.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let mut state = self.state();
        state.now += Duration::from_millis(1);
        state.now
    }

    pub fn advance(&self, time: Duration) {
        self.state().now += time;
    }

    /// A number that no other call gets, the same in every run.
    #[must_use]
    pub fn unique(&self) -> u128 {
        let number = self.state().take_number();
        u128::from(mix(number)) << 64 | u128::from(mix(number ^ u64::MAX))
    }

    pub fn spawn(&self, process: ProcessId, future: BoxFuture<'static, ()>) {
        let mut state = self.state();
        if state.dead.contains(&process) {
            return;
        }
        let id = state.take_number();
        state.tasks.insert(id, Task { process, future: Some(future) });
        state.ready.insert(id);
    }

    /// Kills a process: none of its tasks goes on, and what they hold is dropped.
    pub fn kill(&self, process: ProcessId) {
        let dropped: Vec<Task> = {
            let mut state = self.state();
            state.dead.insert(process);
            let ids: Vec<TaskId> = state
                .tasks
                .iter()
                .filter(|(_, task)| task.process == process)
                .map(|(id, _)| *id)
                .collect();
            ids.iter().filter_map(|id| state.tasks.remove(id)).collect()
        };
        // Outside the lock: what a task holds may wake others when it goes.
        drop(dropped);
    }

    #[must_use]
    pub fn is_dead(&self, process: ProcessId) -> bool {
        self.state().dead.contains(&process)
    }

    pub fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send + 'static {
        let until = self.state().now + time;
        Sleep { simulation: self.clone(), until }
    }

    /// Runs everything until `future` is done; `None` when its process was killed.
    ///
    /// # Panics
    ///
    /// When nothing can go on any more: a deadlock.
    pub fn run<T: Send + 'static>(
        &self,
        process: ProcessId,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.run_all([(process, future.boxed())]).pop().flatten()
    }

    /// Runs several processes against each other until each is done or dead.
    ///
    /// # Panics
    ///
    /// When nothing can go on any more: a deadlock.
    pub fn run_all<T: Send + 'static>(
        &self,
        futures: impl IntoIterator<Item = (ProcessId, BoxFuture<'static, T>)>,
    ) -> Vec<Option<T>> {
        let mut seats = Vec::new();
        for (process, future) in futures {
            let slot = Arc::new(Mutex::new(None));
            let answer = Arc::clone(&slot);
            let task = future.map(move |result| *lock(&answer) = Some(result));
            self.spawn(process, task.boxed());
            seats.push((process, slot));
        }
        let done = |(process, slot): &(ProcessId, Arc<Mutex<Option<T>>>)| {
            lock(slot).is_some() || self.is_dead(*process)
        };
        while !seats.iter().all(done) {
            assert!(self.step(), "deadlock: tasks wait and nothing can wake them");
        }
        seats.into_iter().map(|(_, slot)| lock(&slot).take()).collect()
    }

    /// Runs what is left, such as operations whose callers went away.
    pub fn settle(&self) {
        while !self.state().tasks.is_empty() {
            assert!(self.step(), "deadlock: tasks wait and nothing can wake them");
        }
    }

    /// Lets one task go on, or the clock. `false` when neither can.
    fn step(&self) -> bool {
        let Some((id, mut future)) = self.next_task() else {
            return self.jump();
        };
        let waker = Waker::from(Arc::new(TaskWaker { simulation: self.clone(), id }));
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        let mut state = self.state();
        match state.tasks.get_mut(&id) {
            Some(task) if polled.is_pending() => task.future = Some(future),
            Some(_) => {
                state.tasks.remove(&id);
            }
            // Killed while it ran: dropped here, where it stands.
            None => {
                drop(state);
                drop(future);
            }
        }
        true
    }

    fn next_task(&self) -> Option<(TaskId, BoxFuture<'static, ()>)> {
        let mut state = self.state();
        loop {
            let choice = match state.seed.as_mut() {
                None => 0,
                Some(seed) => {
                    *seed = mix(*seed);
                    *seed as usize % state.ready.len().max(1)
                }
            };
            let id = state.ready.iter().nth(choice).copied()?;
            state.ready.remove(&id);
            if let Some(future) = state.tasks.get_mut(&id).and_then(|task| task.future.take()) {
                return Some((id, future));
            }
        }
    }

    /// Nobody can go on: what waits for a timer gets its time, and what waits for another thread
    /// gets a while.
    fn jump(&self) -> bool {
        let mut state = self.state();
        if let Some(((until, _), waker)) = state.timers.pop_first() {
            state.now = state.now.max(until);
            drop(state);
            waker.wake();
            return true;
        }
        let (state, _) = self
            .shared
            .woken
            .wait_timeout_while(state, OUTSIDE, |state| state.ready.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        !state.ready.is_empty()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.shared.state)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// Spreads a number over 64 bits; different numbers stay different.
pub(crate) fn mix(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

struct TaskWaker {
    simulation: Simulation,
    id: TaskId,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.simulation.state().ready.insert(self.id);
        self.simulation.shared.woken.notify_all();
    }
}

struct Sleep {
    simulation: Simulation,
    until: Timestamp,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.simulation.state();
        if state.now >= self.until {
            return Poll::Ready(());
        }
        let number = state.take_number();
        state.timers.insert((self.until, number), context.waker().clone());
        Poll::Pending
    }
}

/// Lets the others go first, `count` times.
pub async fn yield_times(count: u64) {
    for _ in 0..count {
        yield_now().await;
    }
}

/// Lets the others go first, once.
pub(crate) async fn yield_now() {
    let mut yielded = false;
    futures::future::poll_fn(move |context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
