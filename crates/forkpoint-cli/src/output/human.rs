//! Numbers, times and texts as a person reads them.

use std::fmt::Write as _;

use forkpoint_core::Timestamp;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// `3.2 MiB`: three digits at most, and units that are powers of 1024.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut units = UNITS.iter();
    let mut unit = units.next();
    while value >= 999.5 {
        let Some(next) = units.next() else { break };
        (value, unit) = (value / 1024.0, Some(next));
    }
    let digits = usize::from(value < 9.95);
    format!("{value:.digits$} {}", unit.unwrap_or(&""))
}

/// `1 snapshot`, `3 snapshots`.
pub(crate) fn many(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// `45s`, `3m`, `5h`, `12d`; a time that is still to come is `now`.
pub(crate) fn age(then: Timestamp, now: Timestamp) -> String {
    span(now.duration_since(then).as_secs())
}

/// The time until then, in the same form; what has passed is `now`.
pub(crate) fn left(then: Timestamp, now: Timestamp) -> String {
    span(then.duration_since(now).as_secs())
}

fn span(seconds: i64) -> String {
    match seconds {
        ..=0 => "now".to_owned(),
        1..=59 => format!("{seconds}s"),
        60..=3599 => format!("{}m", seconds / 60),
        3600..=86_399 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// `2026-08-15 09:50:55 UTC (3d ago)`
pub(crate) fn moment(then: Timestamp, now: Timestamp) -> String {
    let date = then.strftime("%Y-%m-%d %H:%M:%S UTC");
    match age(then, now).as_str() {
        "now" if then > now => format!("{date} (in {})", left(then, now)),
        "now" => format!("{date} (now)"),
        age => format!("{date} ({age} ago)"),
    }
}

/// One line for a terminal: control characters, and those that turn the direction of writing, are
/// written out. What somebody put into a description must not move a cursor.
pub(crate) fn clean(text: &str) -> String {
    clean_but(text, |_| false)
}

/// As [`clean`], with its line breaks.
pub(crate) fn clean_lines(text: &str) -> String {
    clean_but(text, |c| c == '\n')
}

fn clean_but(text: &str, keep: impl Fn(char) -> bool) -> String {
    let mut cleaned = String::with_capacity(text.len());
    for c in text.chars() {
        match is_unsafe(c) && !keep(c) {
            true => cleaned.extend(c.escape_default()),
            false => cleaned.push(c),
        }
    }
    cleaned
}

/// JSON text in which nothing moves a cursor. Such characters stand in strings only.
pub(crate) fn clean_json(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unsafe(c) && c != '\n' {
            // All of them are below U+10000, so that one escape is enough.
            let _ = write!(cleaned, "\\u{:04x}", u32::from(c));
        } else {
            cleaned.push(c);
        }
    }
    cleaned
}

/// Whether a character does something to a terminal.
pub(crate) fn is_unsafe(c: char) -> bool {
    let turns =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}')
}

/// The columns that a text takes on a terminal.
pub(crate) fn columns(text: &str) -> usize {
    text.width()
}

/// The text if it fits, else its beginning and `…`.
pub(crate) fn cut(text: &str, room: usize) -> String {
    if columns(text) <= room {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut left = room.saturating_sub(1);
    for c in text.chars() {
        let wide = c.width().unwrap_or(0);
        if wide > left {
            break;
        }
        left -= wide;
        kept.push(c);
    }
    if room > 0 {
        kept.push('…');
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (10 * 1024, "10 KiB"),
            (1_048_575, "1.0 MiB"),
            (5 << 30, "5.0 GiB"),
            (u64::MAX, "16384 PiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn ages_are_short() {
        let now: Timestamp = "2026-08-15T09:50:55Z".parse().unwrap();
        for (then, text) in [
            ("2026-08-15T09:50:55Z", "now"),
            ("2026-08-15T09:51:55Z", "now"),
            ("2026-08-15T09:50:10Z", "45s"),
            ("2026-08-15T09:40:55Z", "10m"),
            ("2026-08-14T10:50:55Z", "23h"),
            ("2025-08-15T09:50:55Z", "365d"),
        ] {
            assert_eq!(age(then.parse().unwrap(), now), text);
        }
        assert_eq!(moment(now, now), "2026-08-15 09:50:55 UTC (now)");
    }

    #[test]
    fn nothing_moves_the_cursor() {
        assert_eq!(clean("a\x1b[2Jb\nc\u{9b}d\u{202e}"), "a\\u{1b}[2Jb\\nc\\u{9b}d\\u{202e}");
        assert_eq!(clean_lines("a\nb\r"), "a\nb\\r");
        assert_eq!(clean("é 漢 🙂"), "é 漢 🙂");
        assert_eq!(clean_json("\"a\u{9b}b\u{7f}\"\n"), "\"a\\u009bb\\u007f\"\n");
    }

    #[test]
    fn cutting_counts_columns() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("漢字漢字", 6), "漢字…");
        assert_eq!(cut("abc", 0), "");
    }
}
