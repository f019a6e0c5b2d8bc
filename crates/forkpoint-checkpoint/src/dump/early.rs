//! Copying before anything is captured.

use std::{io, time::Duration};

use super::{CaptureSpec, advice::Advice, look::drafts, questions, task::Depth, tries};
use crate::{
    coverage::Findings,
    error::{Doing as _, Error, Result},
    freeze::{Frozen, Held, Tree},
    hand::Reins,
    track::Tracker,
};

impl Tracker {
    /// Copies memory while the tree runs, so that the first capture has to copy only what is written
    /// meanwhile. The tree stands still for as long as it takes to begin tracking, which is returned.
    pub fn prepare(&mut self, tree: &Tree, spec: &CaptureSpec) -> Result<Duration> {
        let begun = tries::until_done(tree, spec, |frozen, advice, _| {
            self.forget();
            self.begin_all(tree, spec, frozen, advice)
        });
        match begun {
            Ok(_) => self.copy_early(),
            Err(_) => self.forget(),
        }
        begun.map(|((), pause)| pause)
    }

    fn begin_all(
        &mut self,
        tree: &Tree,
        spec: &CaptureSpec,
        frozen: &mut Frozen,
        advice: &mut Advice,
    ) -> Result<()> {
        let mut findings = Findings::default();
        let (mut drafts, _) = drafts(tree, spec, frozen, Depth::Outline, &mut findings)?;
        for (held, draft) in frozen.processes.iter().zip(&mut drafts) {
            advice.note(held.pid, draft, &mut findings).doing("read the mappings", held.pid)?;
        }
        findings.verdict()?;
        for (held, draft) in frozen.processes.iter_mut().zip(drafts) {
            let pid = held.pid;
            let reins = draft.reins.ok_or(Error::Ended { pid })?;
            if self.make_tracked(held, reins).doing("track the memory", pid)? {
                self.begin(held, draft.alive.mappings).doing("track the memory", pid)?;
            }
        }
        Ok(())
    }

    /// `false` is a process that has no room for what that takes.
    fn make_tracked(&mut self, held: &mut Held, reins: Reins) -> io::Result<bool> {
        held.open(reins)?;
        let mut script = held.script(0, 0);
        script.push(questions::make_userfaultfd());
        match questions::Asked::of(held.run(0, &script)?.result(0))? {
            questions::Asked::Made(number) => self.adopt(held, number).map(|()| true),
            _ => Ok(false),
        }
    }
}
