//! Who stands by for a launch before it is asked for.
//!
//! The engine says what it is about to ask for, writes that down, and then asks. Meanwhile the spawner can be woken and
//! copied, and can read the images. Whoever stands by for nothing ends by itself.

use std::{
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use forkpoint_core::{
    driver::Artifact,
    spec::{Network, SandboxSpec},
};
use rustix::time::{ClockId, clock_gettime};

use super::{
    client::Worker,
    host::{Host, parse_artifact},
    launch::blank::Shape,
    spawner::Readiness,
    templates::is_built_in,
};

/// Who was expected for longer may be about to end.
const FRESH: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(super) struct Expected(Mutex<Option<StandsBy>>);

/// For what, and since when.
type StandsBy = (Shape, Duration, Worker);

/// Since the machine started.
fn now() -> Duration {
    clock_gettime(ClockId::Monotonic).try_into().unwrap_or_default()
}

impl Expected {
    fn get(&self) -> MutexGuard<'_, Option<StandsBy>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An image is to go: nobody may hold it any longer.
    pub(super) fn forget(&self, image: &Path) {
        self.get().take_if(|(shape, ..)| shape.images.iter().any(|path| path == image));
    }
}

impl Host {
    /// Best effort: what does not come of it is done when it is asked for, and fails then.
    pub(super) fn expect(&self, spec: &SandboxSpec, from: Option<&Artifact>) {
        let images = match from {
            Some(artifact) => parse_artifact(artifact).ok().map(|data| self.memory_images(&data)),
            // Which images another one has is in files, and nobody here may wait for those.
            None => is_built_in(&spec.template).then(Vec::new),
        };
        let Some(images) = images else { return };
        let shape = Shape { isolation: self.isolation(), network: spec.network, images };
        if self.pool.has(&shape) {
            return;
        }
        if let Some(worker) = self.client.stand_by_at_once(readiness(&shape, true)) {
            *self.expected.get() = Some((shape, now(), worker));
        }
    }

    /// Whoever was told to expect something is woken meanwhile.
    pub(super) fn make_way_for_expected(&self) {
        if self.expected.get().is_some() {
            self.client.step_aside();
        }
    }

    /// Whoever was expected for such a launch.
    pub(super) fn take_expected(&self, wanted: &Shape) -> Option<Worker> {
        let expected = self.expected.get().take_if(|(shape, ..)| shape == wanted);
        let fresh = expected.filter(|(_, since, _)| now() - *since < FRESH);
        fresh.map(|(.., worker)| worker).filter(Worker::waits)
    }
}

pub(super) fn readiness(shape: &Shape, perhaps: bool) -> Readiness {
    let (isolation, images) = (shape.isolation, shape.images.clone());
    let own_network = shape.network == Network::None;
    Readiness { isolation, own_network, images, store: None, perhaps }
}
