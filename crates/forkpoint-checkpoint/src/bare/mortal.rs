//! An engine that is killed after so many steps, if it takes as many: for tests of what its death leaves.

use std::path::{Path, PathBuf};

use crate::{
    CaptureSpec, Result, Tracker, Tree, capture, error::with_causes, image::Chain, rollback,
};

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Captures once.
    Capture,
    /// Captures in advance, all, and what was written since; or all twice, where the kernel notes nothing.
    Track,
    /// Goes back in place.
    Back,
}

impl Work {
    pub(super) fn asked_for(word: &str) -> Option<Self> {
        match word {
            "forkpoint-bare-capture" => Some(Self::Capture),
            "forkpoint-bare-track" => Some(Self::Track),
            "forkpoint-bare-back" => Some(Self::Back),
            _ => None,
        }
    }
}

/// For the tree below the process that the first argument names; the second says how many steps, the rest are images.
pub(super) fn run(work: Work, mut args: impl Iterator<Item = String>) -> ! {
    let mut number = || args.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    let tree = Tree::below(number() as i32).with_clients();
    let steps = number();
    let images: Vec<PathBuf> = args.map(PathBuf::from).collect();
    die_after(steps);
    let result = match work {
        Work::Capture => captured(&tree, images.first()),
        Work::Track => tracked(&tree, &images),
        Work::Back => went_back(&tree, images),
    };
    if let Err(err) = &result {
        println!("{}", with_causes(err));
    }
    std::process::exit(i32::from(result.is_err()));
}

/// From now on, this process is killed when it has made so many steps that others see; where debug assertions are on.
#[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "steps are not counted"))]
pub fn die_after(steps: u64) {
    #[cfg(debug_assertions)]
    crate::sys::STEPS_LEFT.store(steps, std::sync::atomic::Ordering::Relaxed);
}

fn captured(tree: &Tree, image: Option<&PathBuf>) -> Result<()> {
    let captured = capture(tree, &CaptureSpec::default(), || Ok(()))?;
    image.map_or(Ok(()), |path| captured.write(path, false).map(drop))
}

fn tracked(tree: &Tree, images: &[PathBuf]) -> Result<()> {
    let spec = CaptureSpec::default();
    if !Tracker::is_supported() {
        println!("nothing is noted");
        return images.iter().try_for_each(|path| captured(tree, Some(path)));
    }
    let mut tracker = Tracker::new();
    tracker.prepare(tree, &spec)?;
    for path in images {
        let captured = tracker.capture(tree, &spec, || Ok(()))?;
        tracker.note(captured.write(Path::new(path), false)?);
    }
    Ok(())
}

fn went_back(tree: &Tree, images: Vec<PathBuf>) -> Result<()> {
    let chain = Chain::open(images)?;
    rollback(tree, &chain, &CaptureSpec::default(), || Ok(())).map(drop)
}
