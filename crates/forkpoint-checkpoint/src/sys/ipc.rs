//! Memory of System V: segments that have a number and no file.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _},
    os::fd::AsFd as _,
    slice, thread,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{PAGE, check};

/// What the kernel tells of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) key: i32,
    pub(crate) id: i32,
    pub(crate) mode: u32,
    pub(crate) len_bytes: u64,
    /// User and group: the owner's, and the maker's.
    pub(crate) owner: (u32, u32),
    pub(crate) maker: (u32, u32),
}

/// Does something in the namespace of a process, by a thread of its own.
pub(crate) fn in_namespace_of<T: Send>(
    pid: i32,
    act: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let namespace = File::open(format!("/proc/{pid}/ns/ipc"))?;
    let go = || {
        enter(&namespace)?;
        act()
    };
    let unfinished = |_| Err(io::Error::other("it was not finished"));
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, go)?;
        thread.join().unwrap_or_else(unfinished)
    })
}

fn enter(namespace: &File) -> io::Result<()> {
    let kind = Some(LinkNameSpaceType::InterProcessCommunication);
    Ok(move_into_link_name_space(namespace.as_fd(), kind)?)
}

/// What the kernel tells of all that a namespace of System V has. Opened once, it can be read again and again by
/// anybody: entering the namespace each time would take longer than everything else.
#[derive(Debug)]
pub(crate) struct Tables {
    segments: File,
    others: [(File, &'static str); 2],
}

impl Tables {
    /// Opens those of a process. For a thread that may be in that one's namespace from then on.
    pub(crate) fn of(pid: i32) -> io::Result<Self> {
        enter(&File::open(format!("/proc/{pid}/ns/ipc"))?)?;
        Self::here()
    }

    /// Those of the namespace that this thread is in.
    pub(crate) fn here() -> io::Result<Self> {
        let open = |name: &str| File::open(format!("/proc/sysvipc/{name}"));
        let others = [(open("sem")?, "semaphores"), (open("msg")?, "a message queue")];
        Ok(Self { segments: open("shm")?, others })
    }

    /// What there is besides segments.
    pub(crate) fn others(&self) -> io::Result<Vec<&'static str>> {
        let mut found = Vec::new();
        for (table, what) in &self.others {
            if !rows(table)?.is_empty() {
                found.push(*what);
            }
        }
        Ok(found)
    }

    pub(crate) fn segments(&self) -> io::Result<Vec<Told>> {
        let row = |row: String| {
            let words: Vec<&str> = row.split_whitespace().collect();
            let word = |at: usize| words.get(at).and_then(|word| word.parse::<i64>().ok());
            let owner = |at: usize| Some((word(at)? as u32, word(at + 1)? as u32));
            Some(Told {
                key: word(0)? as i32,
                id: word(1)? as i32,
                mode: u32::from_str_radix(words.get(2)?, 8).ok()?,
                len_bytes: word(3)? as u64,
                owner: owner(7)?,
                maker: owner(9)?,
            })
        };
        let all = rows(&self.segments)?.into_iter().map(row).collect::<Option<_>>();
        all.ok_or_else(|| io::Error::other("a segment is not understood"))
    }
}

fn rows(mut table: &File) -> io::Result<Vec<String>> {
    let mut text = String::new();
    table.rewind()?;
    table.read_to_string(&mut text)?;
    Ok(text.lines().skip(1).map(str::to_owned).collect())
}

/// A segment in the memory of this process.
#[derive(Debug)]
pub(crate) struct Attached {
    start: u64,
    len: u64,
}

impl Attached {
    pub(crate) fn new(id: i32, len_bytes: u64) -> io::Result<Self> {
        // SAFETY: the kernel chooses a place where nothing is.
        let start = check(unsafe { libc::shmat(id, std::ptr::null(), 0) } as i64)?;
        Ok(Self { start: start as u64, len: len_bytes })
    }

    /// As a file, which tells where there is nothing in it. For who may look behind mappings.
    pub(crate) fn file(&self) -> io::Result<File> {
        let end = self.start + self.len.next_multiple_of(PAGE);
        let path = format!("/proc/self/map_files/{:x}-{end:x}", self.start);
        File::options().read(true).write(true).open(path)
    }

    /// What is in it. Nobody else has it.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: attached until this is dropped, for as many bytes, and whoever calls this has just made it.
        unsafe { slice::from_raw_parts_mut(self.start as *mut u8, self.len as usize) }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // SAFETY: attached here, and no reference to it is left.
        unsafe { libc::shmdt(self.start as *const _) };
    }
}

pub(crate) fn make_segment(key: i32, len_bytes: u64, mode: u32) -> io::Result<i32> {
    let flags = libc::IPC_CREAT | libc::IPC_EXCL | mode as i32;
    // SAFETY: it takes numbers.
    check(unsafe { libc::shmget(key, len_bytes as usize, flags) }.into()).map(|id| id as i32)
}

pub(crate) fn remove_segment(id: i32) -> io::Result<()> {
    // SAFETY: this command takes no buffer.
    check(unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) }.into()).map(drop)
}

pub(crate) fn set_owner(id: i32, (uid, gid): (u32, u32), mode: u32) -> io::Result<()> {
    // SAFETY: all zero is a valid value for a struct of integers.
    let mut state: libc::shmid_ds = unsafe { std::mem::zeroed() };
    state.shm_perm.uid = uid;
    state.shm_perm.gid = gid;
    state.shm_perm.mode = mode as _;
    // SAFETY: the command reads a `shmid_ds`.
    check(unsafe { libc::shmctl(id, libc::IPC_SET, &raw mut state) }.into()).map(drop)
}

/// Does something as another user and group. This process has one thread, and is root.
pub(crate) fn as_user<T>(
    (uid, gid): (u32, u32),
    act: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let be = |call: i64, id: u32| {
        // SAFETY: these take numbers.
        check(unsafe { libc::syscall(call, -1, id, -1) }).map(drop)
    };
    be(libc::SYS_setresgid, gid)?;
    be(libc::SYS_setresuid, uid)?;
    let result = act();
    be(libc::SYS_setresuid, 0)?;
    be(libc::SYS_setresgid, 0)?;
    result
}
