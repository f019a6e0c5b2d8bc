//! Which sandboxes' work a sandbox or a snapshot comes from.
//!
//! Two forks of one sandbox began with the same files, and each may bring home what the other knows nothing
//! of. So it is kept who worked on something, and until when: what was brought home in that time is known.

use forkpoint_core::{Timestamp, id::SandboxId};
use serde::{Deserialize, Serialize};

/// The oldest first. Empty for what was made by a release that kept none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Line(Vec<Stretch>);

/// From the beginning of a sandbox, or a rollback of it, to a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stretch {
    sandbox: SandboxId,
    from: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
}

/// Whose work was brought home, and as it was when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Maker {
    sandbox: SandboxId,
    at: Timestamp,
}

impl Line {
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A sandbox goes on from there.
    pub(crate) fn begun(mut self, sandbox: SandboxId, from: Timestamp) -> Self {
        self.0.push(Stretch { sandbox, from, until: None });
        self
    }

    /// A snapshot is taken there.
    pub(crate) fn ended(mut self, at: Timestamp) -> Self {
        if let Some(last) = self.0.last_mut() {
            last.until = Some(at);
        }
        self
    }

    /// A snapshot's files are those that its sandbox had then, whenever they are brought home.
    pub(super) fn maker(&self, now: Timestamp) -> Option<Maker> {
        self.0.last().map(|last| Maker { sandbox: last.sandbox, at: last.until.unwrap_or(now) })
    }

    /// Whether it was there when that was brought home.
    pub(super) fn had(&self, maker: &Maker) -> bool {
        self.0.iter().any(|stretch| {
            stretch.sandbox == maker.sandbox
                && stretch.from <= maker.at
                && stretch.until.is_none_or(|until| maker.at <= until)
        })
    }

    /// Also what the same sandbox brought home before it was rolled back.
    pub(super) fn knows(&self, maker: &Maker) -> bool {
        self.0.last().is_some_and(|last| last.sandbox == maker.sandbox) || self.had(maker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_knows_what_was_brought_home_before_it_and_not_what_came_after() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let (parent, fork) = (SandboxId::from_u128(1), SandboxId::from_u128(2));
        let began = Line::default().begun(parent, at(10));
        let taken = began.clone().ended(at(20));
        let forked = taken.clone().begun(fork, at(30));
        let back = taken.clone().begun(parent, at(40));
        let (early, late) = (began.maker(at(15)).unwrap(), began.maker(at(25)).unwrap());
        let (by_fork, by_snapshot) = (forked.maker(at(35)).unwrap(), taken.maker(at(90)).unwrap());
        assert_eq!(
            [early, late, by_fork, by_snapshot].map(|maker| forked.knows(&maker)),
            [true, false, true, true]
        );
        assert_eq!(
            [early, late, by_fork, by_snapshot].map(|maker| began.knows(&maker)),
            [true, true, false, true]
        );
        assert_eq!(
            [early, late].map(|maker| (back.knows(&maker), back.had(&maker))),
            [(true, true), (true, false)]
        );
        assert!(!Line::default().knows(&early) && Line::default().maker(at(1)).is_none());
    }
}
