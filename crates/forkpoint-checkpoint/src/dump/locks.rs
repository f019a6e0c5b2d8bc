//! Locks of files: those of open files, and those of processes.

use super::proc::FdInfo;
use crate::image::{FileLock, Lock, RangeLock, RecordLock};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// The open file, as a whole (`flock`).
    Whole,
    /// The open file, a part of it.
    Part,
    Process,
}

/// `1: POSIX  ADVISORY  WRITE 12345 fe:00:2302894 0 EOF`
fn parse(line: &str) -> Result<(Owner, RangeLock), String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let odd = || format!("a lock that is not understood (`{line}`); release it first");
    let [_, kind, _, access, _, _, start, end] = words[..] else { return Err(odd()) };
    let owner = match kind {
        "FLOCK" => Owner::Whole,
        "OFDLCK" => Owner::Part,
        "POSIX" => Owner::Process,
        kind => {
            let kind = kind.to_lowercase();
            return Err(format!("a lock of kind {kind} cannot be brought back; release it first"));
        }
    };
    let lock = match access {
        "WRITE" => Lock::Exclusive,
        "READ" => Lock::Shared,
        _ => return Err(odd()),
    };
    let start = start.parse().map_err(|_| odd())?;
    let last = (end != "EOF").then(|| end.parse::<u64>()).transpose().map_err(|_| odd())?;
    Ok((owner, RangeLock { lock, start, end: last.map(|last| last + 1) }))
}

fn all(info: &FdInfo) -> Result<Vec<(Owner, RangeLock)>, String> {
    info.lines("lock:").map(parse).collect()
}

/// Those that belong to the open file.
pub(super) fn of_file(info: &FdInfo) -> Result<Vec<FileLock>, String> {
    let lock = |(owner, range): (Owner, RangeLock)| match owner {
        Owner::Whole => Some(FileLock::Whole(range.lock)),
        Owner::Part => Some(FileLock::Part(range)),
        Owner::Process => None,
    };
    Ok(all(info)?.into_iter().filter_map(lock).collect())
}

/// Takes the one of the whole file out.
pub(super) fn take_whole(locks: &mut Vec<FileLock>) -> Option<Lock> {
    let whole = locks.iter().position(|lock| matches!(lock, FileLock::Whole(_)))?;
    match locks.remove(whole) {
        FileLock::Whole(lock) => Some(lock),
        FileLock::Part(_) => None,
    }
}

/// Those that the process took through this descriptor. A lock that cannot be told is the open file's
/// to refuse.
pub(super) fn of_process(info: &FdInfo, descriptor: i32) -> Vec<RecordLock> {
    let its =
        all(info).unwrap_or_default().into_iter().filter(|(owner, _)| *owner == Owner::Process);
    its.map(|(_, range)| RecordLock { descriptor, range }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_parsed() {
        let range = |lock, start, end| RangeLock { lock, start, end };
        let (owner, part) = parse("2: POSIX  ADVISORY  WRITE 23444 fe:00:10010638 5 14").unwrap();
        assert_eq!((owner, part), (Owner::Process, range(Lock::Exclusive, 5, Some(15))));
        let (owner, part) = parse("3: OFDLCK ADVISORY  READ -1 fe:00:1 100 EOF").unwrap();
        assert_eq!((owner, part), (Owner::Part, range(Lock::Shared, 100, None)));
        let whole = parse("1: FLOCK  ADVISORY  READ 1 fe:00:1 0 EOF").unwrap();
        assert_eq!(whole, (Owner::Whole, range(Lock::Shared, 0, None)));
        assert!(parse("1: LEASE  ACTIVE    READ 1 fe:00:1 0 EOF").unwrap_err().contains("lease"));
        assert!(parse("1: POSIX").unwrap_err().contains("not understood"));
    }
}
