//! What was decided beforehand, in files: one key from each, the nearest file first.
//!
//! `--config FILE` or `FORKPOINT_CONFIG` is the only file if given. Otherwise `./forkpoint.toml` comes
//! before the user's own, and that before the machine's. What may stand in which file is in `find`.

use std::{collections::BTreeMap, path::PathBuf};

use forkpoint_core::{
    EngineConfig, Error,
    retention::{KeepGroup, KeepLast, RetentionPolicy},
    trigger::EnabledTriggers,
};
use serde::Serialize;
use serde_json::Value;

mod find;
mod key;
mod older;
mod parse;
mod settings;

pub(crate) use find::{Place, candidates};
pub(crate) use settings::{Defaults, Settings};

use crate::{args::GlobalArgs, wire::DEFAULT_DRIVER};
use key::{KEYS, Key};

/// What holds for this run, and where each of it was said.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    pub(crate) settings: Settings,
    given: BTreeMap<&'static str, Given>,
    /// The files that were read, the first before the others.
    pub(crate) files: Vec<PathBuf>,
    /// What was read and has no effect here.
    pub(crate) ignored: Vec<String>,
}

#[derive(Clone, Debug)]
struct Given {
    value: Value,
    origin: String,
}

/// One line of `config show`.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) key: &'static str,
    pub(crate) value: Value,
    /// `None` where nobody said anything.
    pub(crate) origin: Option<String>,
}

/// One key as it stands in a file.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    key: String,
    value: Value,
    line: usize,
}

impl Config {
    pub(crate) fn load(args: &GlobalArgs) -> Result<Self, Error> {
        let mut config = Self::default();
        // From the last to the first, so that the first has the last word.
        for (place, path) in candidates(args).into_iter().rev() {
            if let Some(text) = find::read(place, &path)? {
                config.take(place, path, &text)?;
            }
        }
        config.files.reverse();
        Ok(config)
    }

    fn take(&mut self, place: Place, path: PathBuf, text: &str) -> Result<(), Error> {
        let shown = path.display().to_string();
        let at = |line: usize| format!("`{shown}` line {line}");
        let refuse = |line, message: String| Error::invalid(format!("{}: {message}", at(line)));
        let file = match text.trim_start().starts_with('{') {
            true => older::read(text),
            false => parse::toml(text),
        };
        let file = file.map_err(|(line, message)| refuse(line, message))?;
        for Entry { key, value, line } in file.entries {
            let known = Key::find(&key).map_err(|message| refuse(line, message))?;
            if place == Place::WorkingDirectory && !known.harmless {
                return Err(find::too_far(&at(line), known.name, &shown));
            }
            let base = (!file.is_older).then(|| path.parent()).flatten();
            (known.set)(&mut self.settings, &value, base).map_err(|message| {
                refuse(line, format!("`{}` = {value}: {message}", known.name))
            })?;
            self.given.insert(known.name, Given { value, origin: shown.clone() });
        }
        self.ignored.extend(file.ignored.into_iter().map(|key| format!("`{key}` in `{shown}`")));
        self.files.push(path);
        Ok(())
    }

    pub(crate) fn rows(&self, args: &GlobalArgs, data_dir: Option<&std::path::Path>) -> Vec<Row> {
        let mut rows: Vec<Row> = KEYS.iter().map(|key| self.row(key)).collect();
        for row in rows.iter_mut().filter(|row| row.key == "data_dir") {
            if let Some(dir) = data_dir {
                row.value = Value::from(dir.display().to_string());
            }
            if args.data_dir.is_some() {
                let from_env = std::env::var_os("FORKPOINT_DATA_DIR");
                let is_env = from_env.as_deref() == args.data_dir.as_deref().map(AsRef::as_ref);
                let origin = if is_env { "FORKPOINT_DATA_DIR" } else { "--data-dir" };
                row.origin = Some(origin.to_owned());
            }
        }
        rows
    }

    fn row(&self, key: &Key) -> Row {
        let given = self.given.get(key.name);
        let value = given.map_or_else(key.default, |given| given.value.clone());
        Row { key: key.name, value, origin: given.map(|given| given.origin.clone()) }
    }

    pub(crate) fn engine(&self) -> EngineConfig {
        let settings = &self.settings;
        let plain = EngineConfig::new(settings.driver.as_deref().unwrap_or(DEFAULT_DRIVER));
        let triggers = settings.triggers.clone().map(EnabledTriggers::only);
        EngineConfig {
            triggers: triggers.unwrap_or(plain.triggers),
            naming: settings.naming.clone().unwrap_or(plain.naming),
            retention: self.retention(),
            hooks: settings.hooks.clone(),
            max_agent_state_bytes: settings.max_agent_state.unwrap_or(plain.max_agent_state_bytes),
            max_forks: settings.max_forks.unwrap_or(plain.max_forks),
            parallel_forks: settings.parallel_forks.unwrap_or(plain.parallel_forks),
            ..plain
        }
    }

    /// The driver that was asked for, else the default.
    pub(crate) fn driver<'a>(&'a self, asked: Option<&'a str>) -> &'a str {
        asked.or(self.settings.driver.as_deref()).unwrap_or(DEFAULT_DRIVER)
    }

    /// Whether this run is about a driver: by what is typed, or because it is the default.
    pub(crate) fn wants(&self, driver: &str) -> bool {
        let names = |word: &std::ffi::OsString| {
            let word = word.to_string_lossy();
            word == driver || word.starts_with(&format!("{driver}:"))
        };
        self.settings.driver.as_deref() == Some(driver)
            || std::env::args_os().any(|word| names(&word))
    }

    pub(crate) fn retention(&self) -> RetentionPolicy {
        let settings = &self.settings;
        let group = settings.keep_last_by.clone();
        let keep_last = settings
            .keep_last
            .map(|count| KeepLast { count, group: group.unwrap_or(KeepGroup::Sandbox) });
        RetentionPolicy { keep_last, ..settings.retention.clone() }
    }
}

#[cfg(test)]
mod tests;
