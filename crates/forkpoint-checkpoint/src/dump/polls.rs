//! What polls watch: which open file, whoever has it now.

use std::io;

use super::{Draft, files::Files};
use crate::{
    coverage::Findings,
    freeze::Frozen,
    image::{Descriptor, FileKind},
    sys::task::is_polled,
};

type Holder = (i32, i32);

impl Files {
    /// Finds what each poll watches. The number that it was watched under may be another file's by now.
    pub(super) fn find_polled(
        &mut self,
        frozen: &Frozen,
        drafts: &[Draft],
        findings: &mut Findings,
    ) -> io::Result<()> {
        for index in 0..self.files.len() {
            let FileKind::Poll { watched, .. } = &self.files[index].kind else { continue };
            let poll = self.holders[index];
            let at = frozen.processes.iter().position(|held| held.pid == poll.0);
            let Some(draft) = at.map(|at| &drafts[at]) else { continue };
            let mut found = Vec::with_capacity(watched.len());
            for (position, (number, ..)) in watched.iter().enumerate() {
                let before = watched[..position].iter().filter(|other| other.0 == *number).count();
                let own = draft.alive.descriptors.iter().find(|own| own.number == *number);
                match self.polled(poll, (*number, before as u32), own)? {
                    Some(file) => found.push(file),
                    None => {
                        let thing = format!("a poll of descriptor {number}, which nobody has");
                        findings.refuse(&draft.whose, thing, "it is closed and still watched");
                    }
                }
            }
            if let FileKind::Poll { targets, .. } = &mut self.files[index].kind {
                *targets = found;
            }
        }
        Ok(())
    }

    fn polled(
        &self,
        poll: Holder,
        (number, index): (i32, u32),
        own: Option<&Descriptor>,
    ) -> io::Result<Option<usize>> {
        if let Some(own) = own
            && is_polled((poll.0, own.number), poll, number, index)?
        {
            return Ok(Some(own.file));
        }
        for (file, holder) in self.holders.iter().enumerate() {
            if is_polled(*holder, poll, number, index)? {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }
}
