//! Descriptors of the kernel's own things: events, timers, signals, polls.

use super::{files::Seen, questions::whole_timer};
use crate::{
    coverage::{self, Reason},
    image::FileKind,
};

pub(super) fn kind(kind: &str, seen: &Seen<'_>) -> Result<FileKind, Reason> {
    let field = |key: &str| {
        let value = seen.info.field(key);
        value.ok_or_else(|| format!("`{key}` is not told by this kernel"))
    };
    let odd = || "what the kernel tells of it is not understood".to_owned();
    let hex = |text: &str| u64::from_str_radix(text, 16).map_err(|_| odd());
    match kind {
        "[eventfd]" => Ok(FileKind::Event {
            count: hex(field("eventfd-count:")?)?,
            semaphore: seen.info.field("eventfd-semaphore:") == Some("1"),
        }),
        "[timerfd]" => {
            let [value, rest] = pair(field("it_value:")?).ok_or_else(odd)?;
            let [interval, interval_rest] = pair(field("it_interval:")?).ok_or_else(odd)?;
            Ok(FileKind::Timer {
                clock: field("clockid:")?.parse().map_err(|_| odd())?,
                value: whole_timer([interval, interval_rest, value, rest]),
                ticks: field("ticks:")?.parse().map_err(|_| odd())?,
            })
        }
        "[signalfd]" => Ok(FileKind::Signal { mask: hex(field("sigmask:")?)? }),
        "[eventpoll]" => {
            let watched = seen.info.lines("tfd:").map(watched).collect::<Option<Vec<_>>>();
            let (owner, targets) = (seen.number, Vec::new());
            Ok(FileKind::Poll { owner, watched: watched.ok_or_else(odd)?, targets })
        }
        "[pidfd]" => {
            let pid = field("NSpid:")?.split_whitespace().last().and_then(|pid| pid.parse().ok());
            match pid {
                Some(pid @ 1..) => Ok(FileKind::Process { pid }),
                _ => Err("the process that it stands for is gone; close it first".into()),
            }
        }
        kind => Err(coverage::anonymous(kind).into()),
    }
}

/// `(1, 2)`
fn pair(text: &str) -> Option<[u64; 2]> {
    let (one, other) = text.trim_matches(['(', ')']).split_once(',')?;
    Some([one.trim().parse().ok()?, other.trim().parse().ok()?])
}

/// `5 events:       19 data:                5  pos:0 ino:2b sdev:f`
fn watched(line: &str) -> Option<(i32, u32, u64)> {
    let mut words = line.split_whitespace();
    let number = words.next()?.parse().ok()?;
    let events = words.nth(1)?;
    let data = words.nth(1)?;
    Some((number, u32::from_str_radix(events, 16).ok()?, u64::from_str_radix(data, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_poll_watches_is_parsed() {
        let line = "5 events:       19 data:               1f  pos:0 ino:2b sdev:f";
        assert_eq!(watched(line), Some((5, 0x19, 0x1f)));
        assert_eq!(watched("x"), None);
        assert_eq!(pair("(1, 250)"), Some([1, 250]));
        assert_eq!(pair("1"), None);
    }
}
