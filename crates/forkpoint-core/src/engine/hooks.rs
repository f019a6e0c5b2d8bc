//! Commands that run inside a sandbox, before it is snapshotted and after it was restored.
//!
//! A hook runs while its operation holds the sandbox, so nobody else snapshots what it has half done.
//! It is a guest's command: whatever it prints or however long it takes, it is bounded.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{
    StreamExt as _,
    future::{Either, join, select},
};

use super::Inner;
use crate::{
    catalog::SandboxRecord,
    driver::{Command, Driver, DriverError, ExitStatus, Leaves, Process, Sandbox},
    error::{Error, ErrorKind, Result},
    id::SnapshotId,
    part::ByteStream,
};

/// How much of the end of what a hook printed is told.
const TOLD_BYTES: usize = 500;

/// How much longer than its limit a hook is waited for: the driver kills it at the limit.
const GRACE: Duration = Duration::from_secs(5);

/// How long the output is waited for when the hook has ended: something that it started may hold it
/// open for ever.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Scripts for `sh -c` in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hooks {
    pub before_snapshot: Option<String>,
    /// In what was restored, forked or rolled back.
    pub after_restore: Option<String>,
    /// What runs longer is killed, and has failed.
    pub timeout: Duration,
    pub on_failure: OnFailure,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// No snapshot is taken; what was restored is destroyed. A rollback cannot be taken back: there it
    /// is told.
    #[default]
    Abort,
    /// It is told, and the work goes on.
    Warn,
}

impl Default for Hooks {
    fn default() -> Self {
        Self {
            before_snapshot: None,
            after_restore: None,
            timeout: Duration::from_secs(10),
            on_failure: OnFailure::default(),
        }
    }
}

/// Whom to tell what is no failure, and should not go unseen.
#[derive(Clone, Default)]
pub struct Notices(Option<Arc<Listener>>);

type Listener = dyn Fn(&str) + Send + Sync;

impl Notices {
    pub fn to(listener: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(listener)))
    }

    pub(super) fn tell(&self, text: &str) {
        match &self.0 {
            Some(listener) => listener(text),
            None => tracing::warn!("{text}"),
        }
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Notices").field(&self.0.is_some()).finish()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HookPoint {
    BeforeSnapshot,
    AfterRestore,
    /// As after a restore, but there is no way back.
    AfterRollback,
}

impl HookPoint {
    const fn as_str(self) -> &'static str {
        match self {
            Self::BeforeSnapshot => "before_snapshot",
            Self::AfterRestore | Self::AfterRollback => "after_restore",
        }
    }

    /// A server may be started after a restore. What still runs at a snapshot only makes it slower.
    const fn leaves(self) -> Leaves {
        match self {
            Self::BeforeSnapshot => Leaves::Nothing,
            Self::AfterRestore | Self::AfterRollback => Leaves::AnythingWhenDone,
        }
    }
}

impl Inner {
    /// Tells whoever asked what the driver did otherwise.
    pub(super) fn pass_on(&self, driver: &dyn Driver, about: &SandboxRecord) {
        for notice in driver.notices(about.id) {
            let name =
                about.name.as_ref().map_or_else(|| about.id.to_string(), ToString::to_string);
            self.config.notices.tell(&format!("sandbox `{name}`: {notice}"));
        }
    }

    /// Runs a hook where there is one. An error where its failure is to stop what it belongs to.
    pub(super) async fn run_hook(
        &self,
        point: HookPoint,
        sandbox: &dyn Sandbox,
        snapshot: SnapshotId,
    ) -> Result<()> {
        let hooks = &self.config.hooks;
        let script = match point {
            HookPoint::BeforeSnapshot => &hooks.before_snapshot,
            HookPoint::AfterRestore | HookPoint::AfterRollback => &hooks.after_restore,
        };
        let Some(script) = script else { return Ok(()) };
        let (name, id) = (point.as_str(), sandbox.id());
        let err = match self.hook(point, script, sandbox, snapshot).await {
            Ok(()) => return Ok(()),
            Err(Missed::NotRunning(state)) => {
                let text = format!("hook `{name}` was skipped: sandbox `{id}` is {state}");
                self.config.notices.tell(&text);
                return Ok(());
            }
            Err(Missed::Failed(err)) => err.context(format!("hook `{name}` failed")),
        };
        if hooks.on_failure == OnFailure::Abort && point != HookPoint::AfterRollback {
            return Err(err);
        }
        self.config.notices.tell(&format!("in sandbox `{id}`: {}", err.chain()));
        Ok(())
    }

    async fn hook(
        &self,
        point: HookPoint,
        script: &str,
        sandbox: &dyn Sandbox,
        snapshot: SnapshotId,
    ) -> Result<(), Missed> {
        let timeout = self.config.hooks.timeout;
        let env = [
            ("FORKPOINT_HOOK", point.as_str().to_owned()),
            ("FORKPOINT_SANDBOX", sandbox.id().to_string()),
            ("FORKPOINT_SNAPSHOT", snapshot.to_string()),
        ];
        let command = Command {
            env: env.into_iter().map(|(key, value)| (key.into(), value.into())).collect(),
            timeout: Some(timeout),
            leaves: point.leaves(),
            ..Command::new(["sh", "-c", script])
        };
        let process = sandbox.exec(&command).await?;
        let tail = Tail::default();
        let status = self.attend(process, timeout, &tail).await?;
        let ending = match status {
            ExitStatus::Code(0) => return Ok(()),
            ExitStatus::Code(code) => format!("it ended with code {code}"),
            ExitStatus::Signal(signal) => format!("signal {signal} killed it"),
            ExitStatus::TimedOut => format!("it took longer than {timeout:?}, and was killed"),
        };
        // A rule of whoever configured it says no.
        Err(Missed::Failed(Error::new(ErrorKind::Denied, tail.told(&ending))))
    }

    /// Waits for the end of a hook, and takes down the end of what it prints.
    async fn attend(
        &self,
        process: Process,
        timeout: Duration,
        tail: &Tail,
    ) -> Result<ExitStatus, DriverError> {
        let Process { stdin, stdout, stderr, control } = process;
        drop(stdin);
        let output = Box::pin(join(tail.take(stdout), tail.take(stderr)));
        let patience = self.environment.sleep(timeout.saturating_add(GRACE));
        let ended = select(control.wait(), patience);
        let (ended, output) = match select(ended, output).await {
            Either::Left((ended, output)) => (ended, Some(output)),
            Either::Right((_, ended)) => (ended.await, None),
        };
        let status = match ended {
            Either::Left((status, _)) => status?,
            Either::Right(_) => ExitStatus::TimedOut,
        };
        if let Some(output) = output {
            select(output, self.environment.sleep(LAST_WORDS)).await;
        }
        Ok(status)
    }
}

/// Why a hook did not do its work.
enum Missed {
    NotRunning(crate::driver::SandboxState),
    Failed(Error),
}

impl From<DriverError> for Missed {
    fn from(err: DriverError) -> Self {
        match err {
            DriverError::NotRunning { state, .. } => Self::NotRunning(state),
            err => Self::Failed(err.into()),
        }
    }
}

/// The end of what a hook printed.
#[derive(Debug, Default)]
struct Tail(Mutex<Vec<u8>>);

impl Tail {
    async fn take(&self, mut stream: ByteStream) {
        while let Some(Ok(bytes)) = stream.next().await {
            let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            held.extend_from_slice(&bytes);
            let spare = held.len().saturating_sub(TOLD_BYTES);
            held.drain(..spare);
        }
    }

    fn told(&self, ending: &str) -> String {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&held);
        match text.trim() {
            "" => ending.to_owned(),
            text => format!("{ending}, and said: {text}"),
        }
    }
}
