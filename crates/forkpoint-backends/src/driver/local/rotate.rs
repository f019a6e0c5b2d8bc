//! What a busy sandbox has written becomes a layer as it is, while its programs run.
//!
//! In the moment of a full snapshot everything stands and can be asked: so its programs can be given the same files of another
//! root, whose lowest change is a new directory, and what they wrote until then needs no copy. The cost follows what is open, not
//! what was written. Where that cannot be done, or would not be worth it, what was written is copied ([`super::capture`]).

use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    time::SystemTime,
};

use forkpoint_checkpoint::{Exchange, Still, Switch};
use forkpoint_core::{driver::DriverResult, id::SnapshotId};

use rustix::{
    fs::{
        AtFlags, Dir, FileType, Mode, OFlags, Stat, Timestamps, UTIME_OMIT, lgetxattr, llistxattr,
        lstat, open, openat, statat, utimensat,
    },
    io::Errno,
    time::Timespec,
};

use super::{
    client::Worker,
    host::{Host, failed, launch_error, layer_error},
    init::{Reply, Request},
    launch::Isolation,
    mount::OverlaySpec,
    record::{Record, Sealing},
    seal::Rotated,
    spawner::{Outcome, Turn, Work},
    wire::FDS_MAX,
};
use crate::layer::{CaptureSpec, Layer, LayerName, describe_upper};

/// What takes about as long to copy as to exchange a root.
const ENTRIES_MIN: usize = 2_000;
const BYTES_MIN: u64 = 8 << 20;

const CHANGE_ROOT: &str = "give its programs another root, and stopped the sandbox: its files are as they were; \
                           start it, or roll back to the snapshot before";

/// A root that is being made, while everything runs.
#[derive(Debug)]
pub(super) struct NextRoot {
    worker: Worker,
    /// What the new one lies on below what was written.
    chain: Vec<Layer>,
    overlays: Vec<OverlaySpec>,
}

impl Host {
    /// Has the next root of a busy sandbox made, if much was written to this one. That it could not be made is no failure.
    pub(super) fn begin_next_root(&self, lock: &OwnedFd, record: &Record) -> Option<NextRoot> {
        let is_asked = self.live_rotation && record.isolation != Isolation::Rootless;
        let is_much = || self.has_written_much(record).unwrap_or(false);
        (is_asked && is_much()).then(|| self.make_next_root(lock, record).ok()).flatten()
    }

    fn make_next_root(&self, lock: &OwnedFd, record: &Record) -> DriverResult<NextRoot> {
        let (Reply::Opened, floor) = self.ask(record, &Request::Floor)? else {
            return Err(failed("find what lies below the root")("its init is of an older release"));
        };
        let place = self.place(record.id);
        let (upper, next) = (place.upper(record.generation), record.generation + 1);
        let chain = self.chain(self.lies_on(record).as_ref())?;
        self.clear_generation(&place, next)?;
        let overlays = self.overlays_on(record, next, Some(&upper), &chain);
        if overlays.len() > FDS_MAX {
            return Err(failed("make another root")("it has too many parts"));
        }
        self.make_generation(&overlays)?;
        let worker = self.stand_by(record.isolation)?;
        let spec = self.switch_spec(record, overlays.clone());
        let fds: Vec<_> = [lock].into_iter().chain(&floor).map(|fd| fd.as_fd()).collect();
        worker.begin(&Work::Rotate(spec), &fds).map_err(launch_error("make another root"))?;
        Ok(NextRoot { worker, chain, overlays })
    }

    /// One that was not wanted after all, for there was no moment. What stays of it is in nobody's way.
    pub(super) fn forget_next_root(&self, record: &Record, next: NextRoot) {
        drop(next);
        let _ = self.store.throw_away(&self.place(record.id).generation(record.generation + 1));
    }

    /// The sandbox stands, and goes on writing to the next generation. The inner error says why not; then nothing happened.
    pub(super) fn rotate_live(
        &self,
        record: &Record,
        snapshot: SnapshotId,
        still: &mut Still<'_>,
        next: NextRoot,
    ) -> DriverResult<Result<Rotated, String>> {
        let place = self.place(record.id);
        let upper = place.upper(record.generation);
        let give_up = |why: String| {
            let gone = self.store.throw_away(&place.generation(record.generation + 1));
            gone.map_err(layer_error("remove a work directory"))?;
            Ok(Err(why))
        };
        let made = match next.worker.hear() {
            Ok((Outcome::Made, made)) if made.len() == next.overlays.len() => made,
            Ok((Outcome::Failed(failure), _)) => return give_up(failure.to_string()),
            Ok(_) => return give_up("the other root was not made".to_owned()),
            Err(err) => return give_up(err.to_string()),
        };
        let old = self.overlays_on(record, record.generation, None, &next.chain);
        if let Err(why) = bring_up_to_date(&old, &next.overlays, &made) {
            return give_up(why);
        }
        let name = LayerName::of(snapshot);
        let promised = match self.store.promise_upper(name, self.lies_on(record), &upper, 0) {
            Ok(promised) => promised,
            Err(err) => return give_up(err.to_string()),
        };
        let root_device = match self.root_device(record) {
            Ok(device) => device,
            Err(err) => return give_up(err.to_string()),
        };
        let exchanges: Vec<_> = old
            .iter()
            .zip(&made)
            .map(|(old, new)| Exchange { at: &old.at, new: new.as_fd(), upper: &old.upper })
            .collect();
        let switch = || self.go_on_next_root(record, snapshot, root_device, &next.worker);
        let in_use = match still.relocate(&exchanges, switch) {
            Ok(Ok(in_use)) => in_use,
            Ok(Err(why)) => return give_up(why),
            // Then everything was ended.
            Err(err) => return Err(failed(CHANGE_ROOT)(err)),
        };
        drop(exchanges);
        drop(made);
        self.retire(&next.worker, in_use, still)?;
        let layer = promised.keep(&upper).map_err(layer_error("keep a layer"))?;
        let name = layer.name().clone();
        let captured = self.describe_next(record, &name)?.then_some(name);
        let chain = [layer].into_iter().chain(next.chain).collect();
        Ok(Ok(Rotated { chain, captured, live: true }))
    }

    /// Everything is ready for it. From here on the record tells what was begun.
    fn go_on_next_root(
        &self,
        record: &Record,
        snapshot: SnapshotId,
        root_device: u64,
        worker: &Worker,
    ) -> io::Result<Switch> {
        let sealing = Some(Sealing { snapshot, root_device });
        // Where there is no room for that, there is none for a copy either, and the caller hears it then.
        if self.write(&Record { sealing, ..record.clone() }).is_err() {
            return Ok(Switch::NotDone);
        }
        let told = worker.tell(&Turn::Go).map_err(|failure| failure.to_io());
        match told.and_then(|()| worker.hear())? {
            (Outcome::Switched, _) => Ok(Switch::Done),
            (Outcome::Failed(failure), _) => {
                // Only what is seen counts, as with one that is idle.
                if self.root_device(record).map_err(io::Error::other)? != root_device {
                    return Err(failure.to_io());
                }
                // If that cannot be written, whoever comes next sees that nothing happened.
                let _ = self.write(record);
                Ok(Switch::NotDone)
            }
            _ => Err(io::Error::other("it says what it was not asked")),
        }
    }

    /// Nobody can write to the old root any more. If whoever does that is lost, roots may lie where nobody looks for them: then
    /// everything ends.
    fn retire(&self, worker: &Worker, in_use: Vec<u64>, still: &mut Still<'_>) -> DriverResult<()> {
        let told = worker.tell(&Turn::Retire { in_use }).map_err(|failure| failure.to_io());
        match told.and_then(|()| worker.hear()) {
            Ok((Outcome::Failed(failure), _)) => Err(launch_error("leave the old root")(failure)),
            Ok(_) => Ok(()),
            Err(err) => {
                still.end();
                Err(failed(CHANGE_ROOT)(err))
            }
        }
    }

    /// What the file system copied for those who have files open for writing is what the layer has. Whether there is any of it.
    fn describe_next(&self, record: &Record, layer: &LayerName) -> DriverResult<bool> {
        let (place, next) = (self.place(record.id), record.generation + 1);
        let upper = place.upper(next);
        let state = describe_upper(&CaptureSpec::new(&upper), self.store.marks());
        let state = state.map_err(layer_error("look at what was copied"))?;
        if state.len_bytes == 0 {
            return Ok(false);
        }
        let saved = state.manifest.save(&place.manifest(next, layer));
        saved.map_err(layer_error("note what was copied"))?;
        Ok(true)
    }

    /// Whether a copy of what was written would take longer than to exchange the root. Nothing stands still for this, and it is
    /// given up as soon as it is known.
    fn has_written_much(&self, record: &Record) -> io::Result<bool> {
        let place = self.place(record.id);
        let last = record.captured.as_ref().map(|last| place.manifest(record.generation, last));
        // What was copied the last time is only looked at.
        let since = last.and_then(|path| fs::metadata(path).ok()?.modified().ok());
        let mut much = Much { entries: 0, bytes: 0, since, clones: clones_files(&self.root) };
        let open_flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        much.look(open(place.upper(record.generation), open_flags, Mode::empty())?)
    }
}

#[derive(Debug)]
struct Much {
    entries: usize,
    bytes: u64,
    since: Option<SystemTime>,
    /// Files are copied without their content being copied.
    clones: bool,
}

impl Much {
    /// It is being written to, by somebody who is not trusted: no link is followed, and what is gone meanwhile is nothing.
    fn look(&mut self, directory: OwnedFd) -> io::Result<bool> {
        let open = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut entries = Dir::new(directory)?;
        while let Some(entry) = entries.next().transpose()? {
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.entries += 1;
            if entry.file_type() == FileType::Directory
                && let Ok(below) = openat(entries.fd()?, name, open, Mode::empty())
                && self.look(below)?
            {
                return Ok(true);
            }
            if let Ok(stat) = statat(entries.fd()?, name, AtFlags::SYMLINK_NOFOLLOW) {
                self.count(&stat);
            }
            if self.entries >= ENTRIES_MIN || self.bytes >= BYTES_MIN {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn count(&mut self, stat: &Stat) {
        let since = self.since.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        let is_new = since.is_none_or(|since| stat.st_ctime >= since.as_secs() as i64);
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if is_file && is_new && !self.clones {
            // A hole is not copied.
            self.bytes += stat.st_blocks as u64 * 512;
        }
    }
}

/// Directories that lead to mounts, and the mounts' own, are made anew in each generation, like those before. Programs may
/// have changed them since: of what entries come and go, only the date tells. It is set through the new mount, which
/// remembers what it has seen of them.
fn bring_up_to_date(
    old: &[OverlaySpec],
    new: &[OverlaySpec],
    made: &[OwnedFd],
) -> Result<(), String> {
    for ((old, new), mount) in old.iter().zip(new).zip(made) {
        let odd = |err: Errno| format!("`/{}` cannot be looked at ({err})", new.at.display());
        let (was, is) = (lstat(&old.upper).map_err(odd)?, lstat(&new.upper).map_err(odd)?);
        let what = |stat: &Stat| (stat.st_mode, stat.st_uid, stat.st_gid);
        let attributes = || Some((attributes(&old.upper)?, attributes(&new.upper)?));
        let is_same = what(&was) == what(&is) && attributes().is_some_and(|(was, is)| was == is);
        if !is_same || leads_elsewhere(&old.upper, &new.upper, &new.at) {
            return Err(format!("`/{}` was just changed", new.at.display()));
        }
        if (was.st_mtime, was.st_mtime_nsec) != (is.st_mtime, is.st_mtime_nsec) {
            let last_modification =
                Timespec { tv_sec: was.st_mtime, tv_nsec: was.st_mtime_nsec as i64 };
            let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
            let times = Timestamps { last_access, last_modification };
            utimensat(mount, ".", &times, AtFlags::empty()).map_err(odd)?;
        }
    }
    Ok(())
}

/// Whether a directory on the way to a mount differs from the one before.
fn leads_elsewhere(old: &Path, new: &Path, at: &Path) -> bool {
    let what = |path: &Path| {
        let stat = lstat(path).ok()?;
        Some((stat.st_mode, stat.st_uid, stat.st_gid, stat.st_mtime, stat.st_mtime_nsec))
    };
    let above = at.components().count().saturating_sub(1);
    let both = old.ancestors().skip(1).zip(new.ancestors().skip(1)).take(above);
    both.into_iter().any(|(old, new)| what(old).is_none() || what(old) != what(new))
}

/// All but what overlayfs keeps there for itself.
fn attributes(path: &Path) -> Option<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0; 65_536];
    let len = llistxattr(path, &mut names[..]).ok()?;
    let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let own = |name: &&[u8]| {
        !name.starts_with(b"trusted.overlay.") && !name.starts_with(b"user.overlay.")
    };
    let value = |name: &[u8]| {
        let mut value = vec![0; 65_536];
        let len = lgetxattr(path, name, &mut value[..]).ok()?;
        value.truncate(len);
        Some((name.to_vec(), value))
    };
    names.filter(own).map(value).collect()
}

/// Whether this is a file system that does. One that was made without it copies, and takes longer.
fn clones_files(path: &Path) -> bool {
    const XFS: i64 = 0x5846_5342;
    const BTRFS: i64 = 0x9123_683e;
    const BCACHEFS: i64 = 0xca45_1a4e;
    let found = rustix::fs::statfs(path).map(|stat| stat.f_type);
    found.is_ok_and(|kind| matches!(kind, XFS | BTRFS | BCACHEFS))
}
