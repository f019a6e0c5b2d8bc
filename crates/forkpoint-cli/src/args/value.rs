//! Values that are typed: sizes, durations, pairs.

use std::{str::FromStr, time::Duration};

use forkpoint_core::{Error, Timestamp, engine::Wait, spec::VolumeChoice};
use jiff::SignedDuration;

use crate::app::now;

/// `0s` does not wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaitTime(Duration);

impl FromStr for WaitTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        duration(text).map(Self)
    }
}

impl From<WaitTime> for Wait {
    fn from(time: WaitTime) -> Self {
        match time.0.is_zero() {
            true => Self::No,
            false => Self::UpTo(time.0),
        }
    }
}

/// `KEY=VALUE`; the value may hold more of `=`.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("give it as KEY=VALUE".to_owned()),
    }
}

/// `KEY=VALUE`, or `KEY` for the value that it has here.
pub(crate) fn env(text: &str) -> Result<(String, String), String> {
    if text.contains('=') {
        return pair(text);
    }
    match std::env::var(text) {
        Ok(value) => Ok((text.to_owned(), value)),
        Err(std::env::VarError::NotPresent) => {
            Err("it is not set here: give it as KEY=VALUE".to_owned())
        }
        Err(std::env::VarError::NotUnicode(_)) => Err("its value here is not UTF-8".to_owned()),
    }
}

/// A number of bytes: `512M`, `1.5G`, `2GiB`, `4096`. Units are powers of 1024.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let refuse = || "give a number of bytes, or one with K, M, G or T behind it".to_owned();
    let (number, unit) = split(text).ok_or_else(refuse)?;
    let unit = unit.to_ascii_lowercase();
    let power = match unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(&unit) {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        _ => return Err(refuse()),
    };
    let bytes = number * 1024_f64.powi(power);
    match bytes.is_finite() && bytes < 9e18 {
        true => Ok(bytes as u64),
        false => Err(refuse()),
    }
}

/// As [`bytes()`], and not zero: a limit that leaves nothing is a slip of the finger.
pub(crate) fn some_bytes(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        0 => Err("a limit of nothing would keep nothing".to_owned()),
        bytes => Ok(bytes),
    }
}

/// A number of days, as a time.
pub(crate) fn days(text: &str) -> Result<SignedDuration, String> {
    let refuse = || "give a number of days, such as 14".to_owned();
    let days: i64 = text.parse().map_err(|_| refuse())?;
    // No calendar goes on for longer than 10,000 years.
    match (0..=3_650_000).contains(&days) {
        true => Ok(SignedDuration::from_hours(days * 24)),
        false => Err(refuse()),
    }
}

/// Processors in thousandths: `1.5` is 1500.
pub(crate) fn cpus(text: &str) -> Result<u32, String> {
    let millis = text.parse::<f64>().map(|cpus| (cpus * 1000.0).round());
    match millis {
        Ok(millis) if (1.0..=4_000_000.0).contains(&millis) => Ok(millis as u32),
        _ => Err("give a number of processors, such as 0.5 or 2".to_owned()),
    }
}

/// A time with its unit: `500ms`, `10s`, `5m`, `2h`, `1d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let refuse = || "give a number with ms, s, m, h or d behind it, such as 10s".to_owned();
    let (number, unit) = split(text).ok_or_else(refuse)?;
    let seconds = match unit {
        "ms" => number / 1000.0,
        "s" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        "d" => number * 86_400.0,
        _ => return Err(refuse()),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| refuse())
}

/// As [`duration`], and not zero: nothing runs for no time.
pub(crate) fn timeout(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    match time.is_zero() {
        true => Err("a timeout of nothing leaves no time to run".to_owned()),
        false => Ok(time),
    }
}

/// A moment that is still to come.
pub(crate) fn from_now(time: Duration) -> Result<Timestamp, Error> {
    let later = SignedDuration::try_from(time).ok().and_then(|time| now().checked_add(time).ok());
    later.ok_or_else(|| Error::invalid("that is later than any calendar goes"))
}

pub(crate) fn volumes(text: &str) -> Result<VolumeChoice, String> {
    let all = [VolumeChoice::Copy, VolumeChoice::Share, VolumeChoice::None];
    let found = all.into_iter().find(|choice| choice.as_str() == text);
    found.ok_or_else(|| "give `copy`, `share` or `none`".to_owned())
}

/// `7d`, or `never`.
pub(crate) fn expiry(text: &str) -> Result<Expiry, String> {
    match text {
        "never" => Ok(Expiry::Never),
        text => timeout(text).map(Expiry::In).map_err(|err| format!("{err}; or `never`")),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    Never,
    In(Duration),
}

impl Expiry {
    pub(crate) fn moment(self) -> Result<Option<Timestamp>, Error> {
        match self {
            Self::Never => Ok(None),
            Self::In(time) => from_now(time).map(Some),
        }
    }
}

fn split(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit))
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, string::string_regex};

    use super::*;

    #[test]
    fn sizes() {
        for (text, value) in
            [("0", 0), ("4096", 4096), ("512M", 512 << 20), ("1.5g", 3 << 29), ("2GiB", 2 << 30)]
        {
            assert_eq!(bytes(text).unwrap(), value, "{text}");
        }
        for bad in ["", "M", "-1", "1X", "1 M", "1e3", "99999999999T", "nan", "1.2.3"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times() {
        for (text, value) in [("0s", 0), ("250ms", 250), ("1.5s", 1500), ("2m", 120_000)] {
            assert_eq!(duration(text).unwrap(), Duration::from_millis(value), "{text}");
        }
        for bad in ["", "10", "s", "-1s", "1y", "1 s", "99999999999999999999d"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert!(timeout("0s").is_err());
    }

    /// Nearly right, and anything.
    fn text() -> impl Strategy<Value = String> {
        let near = string_regex("-?[0-9.e]{0,25} ?(ms|s|m|h|d|K|MiB|gb|T|)[=]?").unwrap();
        prop_oneof![near, any::<String>()]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn whatever_is_typed_is_a_value_or_a_reason(text in text()) {
            let reasons = [
                bytes(&text).err(), some_bytes(&text).err(), duration(&text).err(), timeout(&text).err(),
                cpus(&text).err(), days(&text).err(), pair(&text).err(), expiry(&text).err(),
            ];
            prop_assert!(reasons.iter().flatten().all(|reason| !reason.is_empty()));
            if let Ok(time) = timeout(&text) {
                prop_assert!(!time.is_zero());
            }
        }

        #[test]
        fn numbers_come_back(number in 0u64..1 << 40) {
            prop_assert_eq!(bytes(&format!("{number}")), Ok(number));
            prop_assert_eq!(bytes(&format!("{}K", number >> 10)), Ok(number >> 10 << 10));
            prop_assert_eq!(duration(&format!("{number}s")), Ok(Duration::from_secs(number)));
        }
    }

    #[test]
    fn processors() {
        assert_eq!(cpus("1.5").unwrap(), 1500);
        assert_eq!(cpus("0.001").unwrap(), 1);
        for bad in ["0", "-1", "inf", "NaN", "two", ""] {
            assert!(cpus(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn pairs() {
        assert_eq!(pair("a=b=c").unwrap(), ("a".to_owned(), "b=c".to_owned()));
        assert!(pair("a").is_err() && pair("=b").is_err());
        assert!(env("FORKPOINT_TEST_NEVER_SET").is_err());
        assert_eq!(env("A=").unwrap(), ("A".to_owned(), String::new()));
    }
}
