//! Every key that a file may hold, with what it does.

use std::{path::Path, str::FromStr, time::Duration};

use forkpoint_backends::driver::local::WARM_MAX;
use forkpoint_core::{
    Error,
    engine::OnFailure,
    path::SandboxPath,
    retention::KeepGroup,
    spec::{Network, Template},
    trigger::Trigger,
};
use serde_json::{Value, json};

use super::Settings;
use crate::{args::value, hint::nearest};

/// Changes the settings; `base` is where relative paths begin.
type Set = fn(&mut Settings, &Value, base: Option<&Path>) -> Result<(), String>;

#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    /// Whether it may stand in a file that was merely found in the working directory.
    pub(super) harmless: bool,
    pub(super) default: fn() -> Value,
    pub(super) set: Set,
}

impl Key {
    pub(super) fn find(name: &str) -> Result<&'static Self, String> {
        KEYS.iter().find(|key| key.name == name).ok_or_else(|| {
            let known = KEYS.iter().map(|key| key.name.to_owned()).collect();
            unknown(name, known)
        })
    }
}

pub(super) fn unknown(name: &str, known: Vec<String>) -> String {
    // A key in the wrong section is as near as one that is misspelt.
    let last = |name: &str| name.rsplit('.').next().unwrap_or(name).to_owned();
    let same = known.iter().find(|key| last(key) == last(name)).cloned();
    let near = same.or_else(|| nearest(name, known.clone())).or_else(|| {
        let near = nearest(&last(name), known.iter().map(|key| last(key)).collect())?;
        known.into_iter().find(|key| last(key) == near)
    });
    match near {
        Some(near) => format!("there is no key `{name}`: did you mean `{near}`?"),
        None => format!("there is no key `{name}`: `forkpoint config show` lists them"),
    }
}

const fn safe(name: &'static str, default: fn() -> Value, set: Set) -> Key {
    Key { name, harmless: true, default, set }
}

const fn mighty(name: &'static str, default: fn() -> Value, set: Set) -> Key {
    Key { name, harmless: false, default, set }
}

const HOOK_MAX: Duration = Duration::from_secs(3600);

const NONE: fn() -> Value = || Value::Null;

pub(super) static KEYS: [Key; 29] = [
    mighty("data_dir", NONE, |to, value, base| {
        let dir = Path::new(text(value)?);
        to.data_dir = Some(base.map_or_else(|| dir.to_owned(), |base| base.join(dir)));
        Ok(())
    }),
    mighty(
        "driver",
        || json!(crate::wire::DEFAULT_DRIVER),
        |to, value, _| {
            to.driver = Some(text(value)?.to_owned());
            Ok(())
        },
    ),
    mighty(
        "snapshots.triggers",
        || json!(Trigger::ALL),
        |to, value, _| {
            let names = value.as_array().ok_or("a list of triggers is expected")?;
            let triggers = names.iter().map(parsed).collect::<Result<_, _>>()?;
            to.triggers = Some(triggers);
            Ok(())
        },
    ),
    safe(
        "snapshots.naming",
        || json!("{sandbox_name}_{trigger}_{timestamp}"),
        |to, value, _| {
            to.naming = Some(parsed(value)?);
            Ok(())
        },
    ),
    mighty(
        "snapshots.skip_unchanged",
        || json!(false),
        |to, value, _| {
            to.skip_unchanged = value.as_bool().ok_or("true or false is expected")?;
            Ok(())
        },
    ),
    safe(
        "snapshots.max_agent_state",
        || json!("1M"),
        |to, value, _| {
            to.max_agent_state = Some(usize::try_from(bytes(value)?).map_err(too_large)?);
            Ok(())
        },
    ),
    mighty(
        "forks.max",
        || json!(1000),
        |to, value, _| {
            to.max_forks = Some(usize::try_from(at_least_one(value)?).map_err(too_large)?);
            Ok(())
        },
    ),
    mighty(
        "forks.parallel",
        || json!(4),
        |to, value, _| {
            to.parallel_forks = Some(usize::try_from(at_least_one(value)?).map_err(too_large)?);
            Ok(())
        },
    ),
    mighty(
        "local.warm",
        || json!(0),
        |to, value, _| {
            to.warm = match usize::try_from(whole(value)?).map_err(too_large)? {
                count if count > WARM_MAX => return Err(format!("it is at most {WARM_MAX}")),
                count => count,
            };
            Ok(())
        },
    ),
    mighty(
        "local.share_memory",
        || json!(false),
        |to, value, _| {
            to.share_memory = value.as_bool().ok_or("true or false is expected")?;
            Ok(())
        },
    ),
    mighty(
        "local.live_rotation",
        || json!(true),
        |to, value, _| {
            to.live_rotation = Some(value.as_bool().ok_or("true or false is expected")?);
            Ok(())
        },
    ),
    mighty("retention.max_per_sandbox", NONE, |to, value, _| {
        to.retention.max_per_sandbox = Some(limit(value)?);
        Ok(())
    }),
    mighty("retention.keep_last", NONE, |to, value, _| {
        to.keep_last = Some(limit(value)?);
        Ok(())
    }),
    mighty(
        "retention.keep_last_by",
        || json!("sandbox"),
        |to, value, _| {
            to.keep_last_by = Some(group(text(value)?)?);
            Ok(())
        },
    ),
    mighty("retention.max_total", NONE, |to, value, _| {
        to.retention.max_total = Some(limit(value)?);
        Ok(())
    }),
    mighty("retention.max_size", NONE, |to, value, _| {
        let size = bytes(value)?;
        to.retention.max_bytes = Some(kept(size)?);
        Ok(())
    }),
    mighty("retention.max_age_days", NONE, |to, value, _| {
        let age = value::days(&value.to_string())?;
        kept(age.as_secs().unsigned_abs())?;
        to.retention.max_age = Some(age);
        Ok(())
    }),
    mighty("hooks.before_snapshot", NONE, |to, value, _| {
        to.hooks.before_snapshot = Some(text(value)?.to_owned());
        Ok(())
    }),
    mighty("hooks.after_restore", NONE, |to, value, _| {
        to.hooks.after_restore = Some(text(value)?.to_owned());
        Ok(())
    }),
    mighty(
        "hooks.timeout",
        || json!("10s"),
        |to, value, _| {
            to.hooks.timeout = match value::timeout(text(value)?)? {
                // A sandbox is claimed meanwhile, and nobody else can have it.
                time if time > HOOK_MAX => return Err("it is at most 1h".to_owned()),
                time => time,
            };
            Ok(())
        },
    ),
    mighty(
        "hooks.on_failure",
        || json!("abort"),
        |to, value, _| {
            to.hooks.on_failure = match text(value)? {
                "abort" => OnFailure::Abort,
                "warn" => OnFailure::Warn,
                _ => return Err("it is `abort` or `warn`".to_owned()),
            };
            Ok(())
        },
    ),
    mighty(
        "defaults.template",
        || json!("host"),
        |to, value, _| {
            to.defaults.template = Some(parsed::<Template>(value)?);
            Ok(())
        },
    ),
    mighty(
        "defaults.network",
        || json!("none"),
        |to, value, _| {
            to.defaults.network = match text(value)? {
                "none" => Network::None,
                "host" => Network::Host,
                _ => return Err("it is `none` or `host`".to_owned()),
            };
            Ok(())
        },
    ),
    safe("defaults.memory", NONE, |to, value, _| {
        to.defaults.resources.memory_bytes = Some(running(bytes(value)?)?);
        Ok(())
    }),
    safe("defaults.cpus", NONE, |to, value, _| {
        let number = match value {
            Value::Number(number) => number.to_string(),
            other => text(other)?.to_owned(),
        };
        to.defaults.resources.cpu_millis = Some(value::cpus(&number)?);
        Ok(())
    }),
    safe("defaults.pids", NONE, |to, value, _| {
        let pids = running(whole(value)?)?;
        to.defaults.resources.pids = Some(u32::try_from(pids).map_err(too_large)?);
        Ok(())
    }),
    safe("defaults.user", NONE, |to, value, _| {
        to.defaults.user = Some(text(value)?.to_owned());
        Ok(())
    }),
    safe("defaults.workdir", NONE, |to, value, _| {
        let path = SandboxPath::new(text(value)?).map_err(|err| err.to_string())?;
        to.defaults.workdir = Some(path);
        Ok(())
    }),
    mighty("defaults.ttl", NONE, |to, value, _| {
        to.defaults.ttl = Some(value::timeout(text(value)?)?);
        Ok(())
    }),
];

pub(super) fn text(value: &Value) -> Result<&str, String> {
    value.as_str().filter(|text| !text.is_empty()).ok_or_else(|| "a text is expected".to_owned())
}

fn parsed<T: FromStr<Err = Error>>(value: &Value) -> Result<T, String> {
    text(value)?.parse::<T>().map_err(|err| err.to_string())
}

fn whole(value: &Value) -> Result<u64, String> {
    value.as_u64().ok_or_else(|| "a whole number from 0 is expected".to_owned())
}

fn limit(value: &Value) -> Result<u64, String> {
    kept(whole(value)?)
}

fn kept(limit: u64) -> Result<u64, String> {
    match limit {
        0 => Err("this would keep nothing: leave it out for no limit".to_owned()),
        limit => Ok(limit),
    }
}

fn running(limit: u64) -> Result<u64, String> {
    match limit {
        0 => Err("this leaves nothing to run on: leave it out for no limit".to_owned()),
        limit => Ok(limit),
    }
}

fn at_least_one(value: &Value) -> Result<u64, String> {
    match whole(value)? {
        0 => Err("it is at least 1".to_owned()),
        count => Ok(count),
    }
}

fn too_large(_: std::num::TryFromIntError) -> String {
    "this is too large".to_owned()
}

/// `"5G"`, or a number of bytes.
fn bytes(value: &Value) -> Result<u64, String> {
    match value {
        Value::String(text) => value::bytes(text),
        number => number.as_u64().ok_or_else(|| "a size such as \"5G\" is expected".to_owned()),
    }
}

fn group(text: &str) -> Result<KeepGroup, String> {
    match (text, text.strip_prefix("label:")) {
        ("sandbox", _) => Ok(KeepGroup::Sandbox),
        (_, Some(label)) if !label.is_empty() => Ok(KeepGroup::Label(label.to_owned())),
        _ => Err("it is `sandbox` or `label:KEY`".to_owned()),
    }
}
