//! Which entries of a tree changed since a moment, by the dates that the kernel keeps.

use std::{
    ffi::CString,
    path::{Path, PathBuf},
};

use forkpoint_core::Timestamp;
use rustix::fs::{AtFlags, FileType, Stat, fstat, statat};

use super::{
    LayerResult,
    cursor::{DirCursor, KEEP, names},
    error::{At as _, During as _, Fault},
    store::open_path,
};

/// Entries between two looks at the clock.
const STRIDE: usize = 256;

/// As files are dated: seconds and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(i64, i64);

impl From<Timestamp> for Moment {
    fn from(at: Timestamp) -> Self {
        // Both count from the same second, but of a time before 1970 the rest is negative there.
        let at = at.as_nanosecond();
        let (seconds, rest) = (at.div_euclid(1_000_000_000), at.rem_euclid(1_000_000_000));
        Self(i64::try_from(seconds).unwrap_or(i64::MAX), i64::try_from(rest).unwrap_or(0))
    }
}

impl Moment {
    /// When an inode last changed, in any way that the kernel notes.
    pub fn of_change(stat: &Stat) -> Self {
        Self(stat.st_ctime as _, stat.st_ctime_nsec as _).max(Self::of_content(stat))
    }

    /// When its content did; whoever owns it can say otherwise.
    pub fn of_content(stat: &Stat) -> Self {
        Self(stat.st_mtime as _, stat.st_mtime_nsec as _)
    }
}

struct Stay {
    stat: Stat,
    directories: Vec<CString>,
    /// Whether an entry of it is told already: then nobody needs to be told of the directory.
    told: bool,
}

/// Tells `found` of what changed at `since` or later below `root`, by paths from there. A directory is told
/// when none of its entries is: then one is gone, or its mode is another. Answers whether
/// everything was looked at: not when `go_on` says no, nor where we may not look. What is mounted
/// below is passed over.
pub fn changed_since(
    root: &Path,
    since: Moment,
    go_on: impl Fn() -> bool,
    mut found: impl FnMut(&dyn Fn() -> PathBuf),
) -> LayerResult<bool> {
    let mut cursor = DirCursor::new(PathBuf::new(), open_path(root)?, KEEP);
    let stat = fstat(cursor.fd()).during("inspect").at(|| root.to_owned())?;
    let (mut complete, mut seen) = (true, 0);
    let mut way = vec![Stay::new(&cursor, stat, since, &mut found).at(|| root.to_owned())?];
    while let Some(stay) = way.last_mut() {
        seen += 1;
        if seen % STRIDE == 0 && !go_on() {
            return Ok(false);
        }
        let Some(name) = stay.directories.pop() else {
            if !stay.told && Moment::of_change(&stay.stat) >= since {
                found(&|| cursor.path());
            }
            way.pop();
            cursor.leave().at(|| root.join(cursor.path()))?;
            continue;
        };
        // Gone meanwhile, not ours to look at, or another file system.
        if cursor.enter(&name).is_err() {
            complete = false;
            continue;
        }
        let stat = fstat(cursor.fd()).during("inspect").at(|| root.join(cursor.path()))?;
        let stay = Stay::new(&cursor, stat, since, &mut found);
        way.push(stay.at(|| root.join(cursor.path()))?);
    }
    Ok(complete)
}

impl Stay {
    fn new(
        cursor: &DirCursor,
        stat: Stat,
        since: Moment,
        found: &mut impl FnMut(&dyn Fn() -> PathBuf),
    ) -> Result<Self, Fault> {
        let mut stay = Self { stat, directories: Vec::new(), told: false };
        for (name, _) in names(cursor.fd())? {
            let Ok(stat) = statat(cursor.fd(), &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                stay.directories.push(name);
            } else if Moment::of_change(&stat) >= since {
                stay.told = true;
                found(&|| cursor.path_of(&name));
            }
        }
        stay.directories.sort_unstable_by(|one, other| other.cmp(one));
        Ok(stay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_before_1970_is_one_too() {
        let moment = Moment::from(Timestamp::new(-1, -500_000_000).unwrap());
        assert_eq!(moment, Moment(-2, 500_000_000));
        assert!(moment < Moment::from(Timestamp::UNIX_EPOCH));
    }
}
