//! Samples, and the table that they end up in.

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use serde::Serialize;

/// In milliseconds, unless their row says otherwise.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Samples(pub Vec<f64>);

impl Samples {
    pub fn add(&mut self, time: Duration) {
        self.0.push(time.as_secs_f64() * 1e3);
    }

    /// Between the two in the middle, where there are two: else times and what is computed from them would not have the
    /// same one.
    #[must_use]
    pub fn median(&self) -> f64 {
        let sorted = self.sorted();
        let at = |at: usize| sorted.get(at).copied().unwrap_or(f64::NAN);
        f64::midpoint(at(sorted.len().saturating_sub(1) / 2), at(sorted.len() / 2))
    }

    #[must_use]
    pub fn p95(&self) -> f64 {
        self.part(0.95)
    }

    #[must_use]
    pub fn min(&self) -> f64 {
        self.part(0.0)
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    fn part(&self, part: f64) -> f64 {
        let sorted = self.sorted();
        let last = sorted.len().saturating_sub(1) as f64;
        sorted.get((last * part).round() as usize).copied().unwrap_or(f64::NAN)
    }

    /// What is left of each when `less` is taken away.
    #[must_use]
    pub fn above(&self, less: f64) -> Self {
        Self(self.0.iter().map(|sample| sample - less).collect())
    }

    /// How many times longer `other` took.
    #[must_use]
    pub fn times_in(&self, other: &Self) -> Self {
        let other = other.median();
        Self(self.0.iter().map(|sample| other / sample).collect())
    }
}

impl FromIterator<Duration> for Samples {
    fn from_iter<T: IntoIterator<Item = Duration>>(times: T) -> Self {
        let mut samples = Self::default();
        times.into_iter().for_each(|time| samples.add(time));
        samples
    }
}

pub fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let answer = work();
    (start.elapsed(), answer)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    Milliseconds,
    Kibibytes,
    /// How many times faster.
    Times,
}

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            _ if value.is_nan() => "–".to_owned(),
            Self::Milliseconds if value.abs() >= 100.0 => format!("{value:.0} ms"),
            Self::Milliseconds => format!("{value:.2} ms"),
            Self::Kibibytes => format!("{value:.0} KiB"),
            Self::Times if value.abs() >= 100.0 => format!("{value:.0} ×"),
            Self::Times => format!("{value:.1} ×"),
        }
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    AtMost(f64),
    AtLeast(f64),
}

impl Target {
    fn is_reached(self, median: f64) -> bool {
        match self {
            Self::AtMost(most) => median <= most,
            Self::AtLeast(least) => median >= least,
        }
    }
}

/// Another figure for the same thing: synced, by a peer, in one process.
#[derive(Clone, Debug, Serialize)]
pub struct Beside {
    pub what: String,
    pub samples: Samples,
    /// Whether to say how many times ours it is.
    pub compared: bool,
    /// Why there are none.
    pub missing: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub what: String,
    pub unit: Unit,
    pub samples: Samples,
    pub target: Option<Target>,
    pub beside: Vec<Beside>,
    /// Why there are no samples.
    pub missing: Option<String>,
}

impl Row {
    pub fn new(what: impl Into<String>, unit: Unit, samples: Samples) -> Self {
        let beside = Vec::new();
        Self { what: what.into(), unit, samples, target: None, beside, missing: None }
    }

    pub fn missing(what: impl Into<String>, why: impl Into<String>) -> Self {
        let row = Self::new(what, Unit::Milliseconds, Samples::default());
        Self { missing: Some(why.into()), ..row }
    }

    #[must_use]
    pub fn at_most(self, most: f64) -> Self {
        Self { target: Some(Target::AtMost(most)), ..self }
    }

    #[must_use]
    pub fn at_least(self, least: f64) -> Self {
        Self { target: Some(Target::AtLeast(least)), ..self }
    }

    /// A rival's figure.
    #[must_use]
    pub fn beside(self, what: impl Into<String>, samples: Samples) -> Self {
        let compared = self.unit == Unit::Milliseconds;
        self.add(Beside { what: what.into(), samples, compared, missing: None })
    }

    /// Another figure of our own.
    #[must_use]
    pub fn with(self, what: impl Into<String>, samples: Samples) -> Self {
        self.add(Beside { what: what.into(), samples, compared: false, missing: None })
    }

    #[must_use]
    pub fn beside_missing(self, what: impl Into<String>, why: impl Into<String>) -> Self {
        let (samples, missing) = (Samples::default(), Some(why.into()));
        self.add(Beside { what: what.into(), samples, compared: false, missing })
    }

    fn add(mut self, beside: Beside) -> Self {
        self.beside.push(beside);
        self
    }

    fn line(&self) -> String {
        let Self { what, unit, samples, .. } = self;
        let target = match self.target {
            Some(Target::AtMost(most)) => format!("≤ {}", unit.show(most)),
            Some(Target::AtLeast(least)) => format!("≥ {}", unit.show(least)),
            None => String::new(),
        };
        let verdict = match (&self.missing, self.target) {
            (Some(why), _) => why.replace('|', "/").replace('\n', " "),
            (None, None) => String::new(),
            (None, Some(target)) if target.is_reached(samples.median()) => "reached".to_owned(),
            (None, Some(_)) => "**not reached**".to_owned(),
        };
        let [median, p95, min] =
            [samples.median(), samples.p95(), samples.min()].map(|value| unit.show(value));
        let (n, beside) = (samples.0.len(), self.shown_beside());
        format!("| {what} | {median} | {p95} | {min} | {n} | {target} | {verdict} | {beside} |")
    }

    fn shown_beside(&self) -> String {
        let ours = self.samples.median();
        let unit = match self.unit {
            Unit::Times => Unit::Milliseconds,
            unit => unit,
        };
        let show = |Beside { what, samples, compared, missing }: &Beside| {
            let median = samples.median();
            match missing {
                Some(why) => format!("{what}: {why}"),
                None if *compared => {
                    format!("{what} {} ({:.1} ×)", unit.show(median), median / ours)
                }
                None => format!("{what} {}", unit.show(median)),
            }
        };
        self.beside.iter().map(show).collect::<Vec<_>>().join("; ")
    }
}

/// The table, as Markdown.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| what | median | p95 | min | n | target | verdict | beside (× ours) |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let _ = writeln!(text, "{}", row.line());
    }
    text
}
