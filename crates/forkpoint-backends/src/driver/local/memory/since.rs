//! What is known of the last full snapshot of a sandbox, so that the next holds only what was written
//! since.
//!
//! The kernel notes what is written as long as somebody has certain descriptors open. No process of ours
//! lives as long as the sandbox but its init: so init holds them from one snapshot to the next.

use std::{io, os::fd::AsFd as _};

use forkpoint_checkpoint::{
    self as checkpoint, CaptureSpec, Captured, Chain, Files, Handle, ImageId, Moment, RolledBack,
    Tracker, Tree,
    image::{Image, Process},
};
use forkpoint_core::id::SnapshotId;
use serde::{Deserialize, Serialize};

use super::KeptMemory;
use crate::driver::local::{
    cgroup::Cgroup,
    connection::Line,
    host::Host,
    init::{Reply, Request},
    record::Record,
    wire::FDS_MAX,
};

/// Chains that could not be made shorter begin anew.
const IMAGES_MAX: usize = 64;

/// Up to so much memory, all of it is kept each time: that takes no longer than to find out what was written, and a
/// restore has one image to look into. Above, the first snapshot copies while the processes run, and once more
/// what they write meanwhile.
pub(super) const SMALL: u64 = 16 << 20;

/// What a new image can lie over.
#[derive(Debug, Default)]
pub(super) struct Since {
    /// None where the kernel cannot, and where it is not worth it.
    tracker: Option<Tracker>,
    /// The lowest first.
    pub(super) below: Vec<KeptMemory>,
    /// What it lies over above these, if nobody's snapshot has that yet.
    pub(super) merged: Option<Image>,
    /// To init, of whom it was had.
    line: Option<Line>,
}

/// What init is told of the descriptors that it holds.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    snapshot: SnapshotId,
    image: String,
    below: Vec<KeptMemory>,
    /// Number and start of the process of each descriptor.
    processes: Vec<(i32, u64)>,
}

impl Since {
    pub(super) fn capture(
        &mut self,
        tree: &Tree,
        spec: &CaptureSpec,
        moment: impl Moment,
    ) -> checkpoint::Result<Captured> {
        let Some(tracker) = &mut self.tracker else {
            return checkpoint::capture(tree, spec, moment);
        };
        if self.below.is_empty() && self.merged.is_none() {
            tracker.prepare(tree, spec)?;
        }
        tracker.capture(tree, spec, moment)
    }

    pub(super) fn rollback(
        &mut self,
        tree: &Tree,
        chain: &Chain,
        spec: &CaptureSpec,
        files: impl Files,
    ) -> checkpoint::Result<RolledBack> {
        match &mut self.tracker {
            Some(tracker) => tracker.rollback(tree, chain, spec, files),
            None => checkpoint::rollback(tree, chain, spec, files),
        }
    }
}

impl Host {
    /// Takes it over from init, which holds nothing from then on. Where it does not fit, or anything fails,
    /// nothing is known.
    pub(super) fn since(&self, record: &Record) -> Since {
        if !Tracker::is_supported() {
            return Since::default();
        }
        let memory = record.cgroup.as_ref().and_then(|cgroup| Cgroup::usage(cgroup).memory_bytes);
        let line = Line::open(&self.place(record.id), record).ok();
        let found = line.as_ref().and_then(|line| self.take_tracker(record, line).ok().flatten());
        if memory.is_some_and(|bytes| bytes <= SMALL) {
            return Since::default();
        }
        let since =
            found.unwrap_or_else(|| Since { tracker: Some(Tracker::new()), ..Since::default() });
        Since { line, ..since }
    }

    fn take_tracker(&self, record: &Record, line: &Line) -> io::Result<Option<Since>> {
        let Some((note, handles)) = take_handles(record, line)? else { return Ok(None) };
        if let Some((image, below)) = self.find_merged(record, note.snapshot, &note.below) {
            let tracker = Some(Tracker::from_handles(&image, handles));
            return Ok(Some(Since { tracker, below, merged: Some(image), ..Since::default() }));
        }
        if note.below.len() >= IMAGES_MAX {
            return Ok(None);
        }
        let image = Image::open(self.image(note.snapshot)).map_err(io::Error::other)?;
        let is_it = image.id.to_string() == note.image;
        let tracker = Some(Tracker::from_handles(&image, handles));
        Ok(is_it.then_some(Since { tracker, below: note.below, ..Since::default() }))
    }

    /// What is known since the snapshot that the sandbox stands on, whose newest image this is. Where nothing is, all of
    /// its memory counts as written: `None` where that is much.
    pub(super) fn since_image(&self, record: &Record, image: &Image) -> Option<Since> {
        let line = Line::open(&self.place(record.id), record).ok();
        let found = line.as_ref().and_then(|line| take_handles(record, line).ok().flatten());
        if let Some((note, handles)) = found
            && note.image == image.id.to_string()
        {
            let tracker = Some(Tracker::to_go_back(image.id, handles));
            return Some(Since { tracker, below: note.below, merged: None, line });
        }
        let alive = image.snapshot.processes.iter().filter_map(Process::alive);
        let pages = alive.flat_map(|alive| &alive.mappings).flat_map(|mapping| &mapping.pages);
        let bytes: u64 = pages.map(|(start, end)| end - start).sum();
        (bytes <= SMALL).then(Since::default)
    }

    pub(super) fn keep_tracking(
        &self,
        record: &Record,
        since: Since,
        snapshot: SnapshotId,
        image: ImageId,
    ) -> io::Result<()> {
        self.begin_to_keep(record, since, snapshot, image)?.wait()
    }

    /// Gives it to init, which takes it while something else is done.
    pub(super) fn begin_to_keep(
        &self,
        record: &Record,
        since: Since,
        snapshot: SnapshotId,
        image: ImageId,
    ) -> io::Result<Keeping> {
        let Some(tracker) = since.tracker else { return Ok(Keeping::default()) };
        let line = match since.line {
            Some(line) => line,
            None => Line::open(&self.place(record.id), record)?,
        };
        let mut answers = 0;
        for handles in tracker.into_handles().chunks(FDS_MAX - 1) {
            let note = Note {
                snapshot,
                image: image.to_string(),
                below: since.below.clone(),
                processes: handles.iter().map(|handle| (handle.pid, handle.started)).collect(),
            };
            let about = serde_json::to_string(&note)?;
            let fds: Vec<_> = handles.iter().map(|handle| handle.uffd.as_fd()).collect();
            line.send(&Request::Keep { about }, &fds)?;
            answers += 1;
        }
        Ok(Keeping { line: Some(line), answers })
    }
}

/// What init was given, and has not said that it has.
#[derive(Debug, Default)]
pub(super) struct Keeping {
    line: Option<Line>,
    answers: usize,
}

impl Keeping {
    pub(super) fn wait(self) -> io::Result<()> {
        let Some(line) = self.line else { return Ok(()) };
        (0..self.answers).try_for_each(|_| line.receive().map(drop))
    }
}

/// All that init holds.
fn take_handles(record: &Record, line: &Line) -> io::Result<Option<(Note, Vec<Handle>)>> {
    let (mut note, mut handles) = (None, Vec::new());
    // There is rarely more than one, and that there is no more is told by the next: both are asked for at once.
    line.send(&Request::Take, &[])?;
    loop {
        line.send(&Request::Take, &[])?;
        let (reply, fds) = line.receive()?;
        let Reply::Kept { about: Some(about) } = reply else { break };
        let told: Note = serde_json::from_str(&about)?;
        let whose = told.processes.iter().zip(fds);
        let handle = |((pid, started), uffd): (&(i32, u64), _)| Handle {
            pid: *pid,
            started: *started,
            uffd,
        };
        handles.extend(whose.map(handle));
        note = Some(told);
    }
    // To the one question too many.
    line.receive()?;
    let of_this = |note: &Note| record.snapshot == Some(note.snapshot);
    Ok(note.filter(of_this).map(|note| (note, handles)))
}
