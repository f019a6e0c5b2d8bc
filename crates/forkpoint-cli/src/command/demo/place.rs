//! A directory of its own for the tour.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use forkpoint_backends::environment::SystemEnvironment;
use forkpoint_core::{Environment as _, Error, ErrorKind};
use rustix::fs::statfs;
use tokio::runtime::Handle;

/// An overlay cannot lie over another one for writing.
const OVERLAYFS: i64 = 0x794c_7630;

const TRIES: usize = 200;
const PAUSE: Duration = Duration::from_millis(10);

/// Gone when dropped, whatever happened.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
}

impl Place {
    pub(super) fn make() -> Result<Self, Error> {
        let parent = parent();
        let random = SystemEnvironment::new(Handle::current()).random();
        let path = parent.join(format!("forkpoint-demo-{:08x}", random as u32));
        DirBuilder::new().mode(0o700).create(&path).map_err(|err| {
            let message = format!("failed to make `{}`", path.display());
            Error::new(ErrorKind::Unavailable, message).with_source(err)
        })?;
        Ok(Self { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What dropping does, with patience and an answer. A thread of the driver may be about to
    /// clear up in there as well, and then the two get in each other's way.
    pub(super) async fn remove(self) -> io::Result<()> {
        let mut tries = 0;
        loop {
            tries += 1;
            match fs::remove_dir_all(&self.path) {
                Err(_) if !self.path.exists() => return Ok(()),
                Err(err) if tries >= TRIES => return Err(err),
                Err(_) => tokio::time::sleep(PAUSE).await,
                Ok(()) => return Ok(()),
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The usual place for such things; in a container, where that is an overlay itself, memory.
fn parent() -> PathBuf {
    let usual = std::env::temp_dir();
    let is_overlay = |dir: &Path| statfs(dir).is_ok_and(|found| found.f_type == OVERLAYFS);
    let memory = PathBuf::from("/dev/shm");
    match is_overlay(&usual) && memory.is_dir() {
        true => memory,
        false => usual,
    }
}
