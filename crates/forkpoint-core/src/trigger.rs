//! Why a snapshot was taken.

use std::{collections::BTreeSet, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::error::Error;

#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    #[default]
    Manual,
    RunStart,
    RunEnd,
    BeforeAction,
    AfterAction,
    OnError,
    Periodic,
}

impl Trigger {
    pub const ALL: [Self; 7] = [
        Self::Manual,
        Self::RunStart,
        Self::RunEnd,
        Self::BeforeAction,
        Self::AfterAction,
        Self::OnError,
        Self::Periodic,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Manual => "manual",
            Self::RunStart => "run_start",
            Self::RunEnd => "run_end",
            Self::BeforeAction => "before_action",
            Self::AfterAction => "after_action",
            Self::OnError => "on_error",
            Self::Periodic => "periodic",
        }
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Trigger {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|trigger| trigger.as_str() == text).ok_or_else(|| {
            let known = Self::ALL.map(Self::as_str).join(", ");
            Error::invalid(format!("no trigger `{text}`: it is one of {known}"))
        })
    }
}

/// Which triggers take a snapshot. A person who asks for one gets it: `manual` is always on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnabledTriggers(BTreeSet<Trigger>);

impl EnabledTriggers {
    pub fn only(triggers: impl IntoIterator<Item = Trigger>) -> Self {
        Self(triggers.into_iter().collect())
    }

    #[must_use]
    pub fn contains(&self, trigger: Trigger) -> bool {
        trigger == Trigger::Manual || self.0.contains(&trigger)
    }
}

impl Default for EnabledTriggers {
    fn default() -> Self {
        Self::only(Trigger::ALL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trigger_parses_from_what_it_prints() {
        for trigger in Trigger::ALL {
            assert_eq!(trigger.to_string().parse::<Trigger>().unwrap(), trigger);
            assert_eq!(serde_json::to_value(trigger).unwrap(), trigger.as_str());
        }
    }

    #[test]
    fn an_unknown_trigger_names_the_known_ones() {
        let err = "after-action".parse::<Trigger>().unwrap_err().to_string();
        assert!(err.contains("`after-action`") && err.contains("after_action"), "{err}");
    }

    #[test]
    fn manual_cannot_be_switched_off() {
        let enabled = EnabledTriggers::only([Trigger::RunEnd]);
        assert!(enabled.contains(Trigger::Manual) && enabled.contains(Trigger::RunEnd));
        assert!(!enabled.contains(Trigger::Periodic));
    }
}
