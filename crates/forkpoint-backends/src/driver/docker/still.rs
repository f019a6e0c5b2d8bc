//! A container that stands still: for our own sake, or since somebody wanted it so.

use std::time::Duration;

use forkpoint_core::{
    driver::{DriverError, DriverResult, SandboxState, SnapshotKind},
    id::SandboxId,
};

use super::{
    DRIVER,
    container::Container,
    engine::{failed, invalid},
    freeze::Turn,
    host::Host,
};

pub(super) const PAUSES: &str = "pauses";

impl Host {
    pub(super) async fn unpause(&self, container: &Container) -> DriverResult<()> {
        match self.switch(container, "unpause", &[]).await {
            // It was ended, or set going, by somebody else.
            Err(err) if matches!(err.status(), Some(404 | 409 | 500)) => {
                match self.inspect(container.id()).await? {
                    Some(now) if now.state() == SandboxState::Paused => {
                        Err(failed("resume a container")(err))
                    }
                    _ => Ok(()),
                }
            }
            result => result.map_err(failed("resume a container")),
        }
    }

    /// Our own, short pause; whether it is ours is written down first. Without processes to be kept, it
    /// needs no engine where the container's cgroup is in reach.
    pub(super) async fn hold_still(
        &self,
        id: SandboxId,
        seen: Option<&str>,
        kind: SnapshotKind,
    ) -> DriverResult<(Container, Option<Turn>)> {
        let container = match seen {
            Some(seen) => self.inspect(seen).await?.filter(Container::has_its_name),
            None => None,
        };
        let container = match container {
            Some(container) => container,
            None => self.container(id).await?,
        };
        if container.state() != SandboxState::Running {
            return Ok((container, None));
        }
        if runs_inside(&container) {
            return invalid(format!(
                "this runs in container `{}` itself, and would stand still with it: run it outside",
                container.name()
            ));
        }
        if kind == SnapshotKind::Files
            && let Some(turn) = self.freeze(&container).await?
        {
            return Ok((container, Some(turn)));
        }
        self.pause_by_engine(id, container).await.map(|container| (container, None))
    }

    async fn pause_by_engine(
        &self,
        id: SandboxId,
        container: Container,
    ) -> DriverResult<Container> {
        self.write_note(PAUSES, container.id(), id.to_string().as_bytes())?;
        match self.switch(&container, "pause", &[]).await {
            Ok(()) => Ok(container),
            Err(err) => {
                let now = self.inspect(container.id()).await?;
                self.drop_note(PAUSES, container.id())?;
                match now {
                    Some(now) if now.state() != SandboxState::Running => Ok(now),
                    Some(_) => Err(failed("pause a container")(err)),
                    None => Err(DriverError::SandboxMissing { driver: DRIVER, id }),
                }
            }
        }
    }

    /// One that was just made: whoever finds it destroys it. Whether it stands still because of this.
    pub(super) async fn hold_container(&self, container: &Container) -> DriverResult<bool> {
        match self.switch(container, "pause", &[]).await {
            Ok(()) => Ok(true),
            Err(err) if matches!(err.status(), Some(404 | 409)) => Ok(false),
            Err(err) => Err(failed("pause a container")(err)),
        }
    }

    pub(super) async fn release_container(&self, container: &Container) -> DriverResult<()> {
        self.unpause(container).await
    }

    /// Has what our own pause caught in the middle of something stand still somewhere else. What its user paused stays.
    pub(super) async fn move_on(&self, container: &Container) -> DriverResult<()> {
        const MOMENT: Duration = Duration::from_millis(5);
        if self.read_note(PAUSES, container.id())?.is_none() {
            return Ok(());
        }
        self.unpause(container).await?;
        tokio::time::sleep(MOMENT).await;
        self.switch(container, "pause", &[]).await.map_err(failed("pause a container"))
    }

    /// Ends our own pause, if it is one.
    pub(super) async fn let_go(&self, container: &Container) -> DriverResult<()> {
        self.thaw(container.id()).await?;
        if self.read_note(PAUSES, container.id())?.is_none() {
            return Ok(());
        }
        self.unpause(container).await?;
        self.drop_note(PAUSES, container.id())
    }
}

/// As far as can be seen from here.
fn runs_inside(container: &Container) -> bool {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    !container.id().is_empty() && own.contains(container.id())
}
