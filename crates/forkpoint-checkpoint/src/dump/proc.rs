//! What `/proc` tells, parsed. All of it may be chosen by the program, and is bounded.

use std::io;

use crate::sys::{Proc, read_marked_at_once, read_text};

/// One of a task's `status` files.
#[derive(Debug)]
pub(crate) struct Status {
    text: String,
    /// Where a line's name begins and ends, and where the line does.
    lines: Vec<[usize; 3]>,
}

impl Status {
    pub(crate) fn of(pid: i32) -> io::Result<Self> {
        read_marked_at_once(format!("/proc/{pid}/status")).map(Self::parse)
    }

    /// Of a process, which is that of its leader.
    pub(crate) fn in_directory(proc: &Proc) -> io::Result<Self> {
        proc.marked_text("status").map(Self::parse)
    }

    pub(crate) fn of_thread(proc: &Proc, tid: i32) -> io::Result<Self> {
        proc.marked_text(&format!("task/{tid}/status")).map(Self::parse)
    }

    fn parse(text: String) -> Self {
        let (mut lines, mut start) = (Vec::with_capacity(64), 0);
        // A name in it has no line break that the kernel did not write.
        for line in text.split('\n') {
            if let Some(colon) = line.find(':') {
                lines.push([start, start + colon, start + line.len()]);
            }
            start += line.len() + 1;
        }
        Self { text, lines }
    }

    pub(crate) fn text(&self, key: &str) -> &str {
        let is_it = |[start, colon, _]: &&[usize; 3]| self.text[*start..*colon] == *key;
        let line = self.lines.iter().find(is_it);
        line.map_or("", |[_, colon, end]| self.text[colon + 1..*end].trim())
    }

    /// The last of several numbers: that of the innermost namespace.
    pub(crate) fn last(&self, key: &str) -> io::Result<i32> {
        let number = self.text(key).split_whitespace().last().and_then(|word| word.parse().ok());
        number.ok_or_else(|| missing(key))
    }

    pub(crate) fn number(&self, key: &str) -> u64 {
        self.text(key).split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    pub(crate) fn hex(&self, key: &str) -> io::Result<u64> {
        u64::from_str_radix(self.text(key), 16).map_err(|_| missing(key))
    }

    pub(crate) fn octal(&self, key: &str) -> io::Result<u32> {
        u32::from_str_radix(self.text(key), 8).map_err(|_| missing(key))
    }

    pub(crate) fn numbers(&self, key: &str) -> Vec<u32> {
        self.text(key).split_whitespace().filter_map(|word| word.parse().ok()).collect()
    }
}

fn missing(key: &str) -> io::Error {
    io::Error::other(format!("`{key}` is not told"))
}

/// Fields of `stat`, by the numbers of proc(5).
#[derive(Debug)]
pub(crate) struct Stat {
    state: char,
    /// From the fourth on.
    numbers: Vec<u64>,
}

impl Stat {
    pub(crate) fn of(pid: i32) -> io::Result<Self> {
        Self::in_directory(&Proc::of(pid)?)
    }

    pub(crate) fn in_directory(proc: &Proc) -> io::Result<Self> {
        let text = proc.marked_text("stat")?;
        // The name may hold anything, also brackets.
        let end = text.rfind(')').ok_or_else(|| missing("stat"))?;
        let mut words = text[end + 1..].split_ascii_whitespace();
        let state = words.next().and_then(|word| word.chars().next());
        let state = state.ok_or_else(|| missing("stat"))?;
        Ok(Self { state, numbers: words.map(|word| word.parse().unwrap_or(0)).collect() })
    }

    pub(crate) fn number(&self, field: usize) -> u64 {
        self.numbers.get(field - 4).copied().unwrap_or(0)
    }

    pub(crate) fn state(&self) -> char {
        self.state
    }

    /// In ticks since boot: the number of a process is used again.
    pub(crate) fn started(&self) -> u64 {
        const START_TIME: usize = 22;
        self.number(START_TIME)
    }
}

/// Users or groups as the sandbox counts them.
#[derive(Debug)]
pub(crate) struct Ids(Vec<(u32, u32, u32)>);

impl Ids {
    pub(crate) fn of(init: i32, file: &str) -> io::Result<Self> {
        let text = read_text(format!("/proc/{init}/{file}"))?;
        let line = |line: &str| {
            let mut words = line.split_whitespace().map(str::parse);
            Some((words.next()?.ok()?, words.next()?.ok()?, words.next()?.ok()?))
        };
        Ok(Self(text.lines().filter_map(line).collect()))
    }

    pub(crate) fn outside(&self, inside: u32) -> Option<u32> {
        self.0.iter().find_map(|(inner, outer, count)| {
            let distance = inside.checked_sub(*inner)?;
            if distance < *count { outer.checked_add(distance) } else { None }
        })
    }

    pub(crate) fn inside(&self, outside: u32) -> Option<u32> {
        self.0.iter().find_map(|(inner, outer, count)| {
            let distance = outside.checked_sub(*outer)?;
            if distance < *count { inner.checked_add(distance) } else { None }
        })
    }
}

/// The last line of `fdinfo` with this key, and others by need.
#[derive(Debug)]
pub(crate) struct FdInfo(String);

impl FdInfo {
    pub(crate) fn of(proc: &Proc, number: i32) -> io::Result<Self> {
        proc.text_at_once(&format!("fdinfo/{number}")).map(Self)
    }

    pub(crate) fn field(&self, key: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(key)).map(str::trim)
    }

    pub(crate) fn lines(&self, key: &str) -> impl Iterator<Item = &str> {
        self.0.lines().filter_map(move |line| line.strip_prefix(key)).map(str::trim)
    }

    pub(crate) fn flags(&self) -> io::Result<i32> {
        let flags = self.field("flags:").and_then(|flags| i32::from_str_radix(flags, 8).ok());
        flags.ok_or_else(|| missing("flags"))
    }

    pub(crate) fn position(&self) -> u64 {
        self.field("pos:").and_then(|position| position.parse().ok()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_counted_as_inside() {
        let ids = Ids(vec![(0, 100_000, 1), (1, 200_000, 10)]);
        let inside: Vec<_> =
            [100_000, 100_001, 200_000, 200_009, 200_010, 5].map(|id| ids.inside(id)).into();
        assert_eq!(inside, [Some(0), None, Some(1), Some(10), None, None]);
        let outside: Vec<_> = [0, 1, 10, 11].map(|id| ids.outside(id)).into();
        assert_eq!(outside, [Some(100_000), Some(200_000), Some(200_009), None]);
    }

    #[test]
    fn our_own_status_is_read() {
        let pid = std::process::id() as i32;
        let status = Status::of(pid).unwrap();
        assert_eq!(status.last("NSpid").unwrap(), pid);
        assert_eq!(status.numbers("Uid").len(), 4);
        assert!(Stat::of(pid).unwrap().number(26) > 0);
    }
}
