//! The storage of the older snapshot manager: one JSON document for each snapshot, and an index.
//!
//! The documents are the truth; the index is only asked for what has lost its document. Others may
//! write while this reads, without a lock: what cannot be read is told, and stops nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read as _},
    path::Path,
};

use forkpoint_core::{
    Error, ErrorKind, Timestamp, driver::NativeState, engine::ClaimRequest, engine::Wait,
    id::SnapshotId, label::Labels, naming::Name, trigger::Trigger,
};
use jiff::{civil::DateTime, tz::TimeZone};
use serde_json::{Map, Value};

/// More than any of its documents has; an inspection of a container is some kilobytes.
const MAX_BYTES: u64 = 16 << 20;

/// An odd number without a pattern.
const MIXER: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

/// Labels of ours beside theirs.
const MAX_LABELS: usize = 48;
const ID_LABEL: &str = "legacy.snapshot";

/// What a storage holds.
#[derive(Debug, Default)]
pub(crate) struct Storage {
    /// Parents before their children, else the oldest first.
    pub(crate) snapshots: Vec<Legacy>,
    /// What cannot be taken over, and why.
    pub(crate) refused: Vec<(String, Refusal)>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Legacy {
    uuid: u128,
    container_id: String,
    container_name: Option<Name>,
    created: Timestamp,
    trigger: Trigger,
    description: Option<String>,
    context: Option<String>,
    run_id: Option<String>,
    image: String,
    tag: Option<String>,
    labels: Labels,
    parent: Option<u128>,
    restore_count: u64,
    /// All of the document: a driver finds in it what an image does not say.
    told: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Its manager says itself that it is none.
    Unfinished(String),
    Damaged(String),
}

impl Refusal {
    pub(crate) fn reason(&self) -> &str {
        match self {
            Self::Unfinished(reason) | Self::Damaged(reason) => reason,
        }
    }
}

pub(crate) fn read(directory: &Path) -> Result<Storage, Error> {
    let metadata = directory.join("metadata");
    let listed = fs::read_dir(&metadata).map_err(|err| {
        let shown = directory.display();
        let kind = match err.kind() {
            io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            _ => ErrorKind::NotFound,
        };
        Error::new(
            kind,
            format!("`{shown}` is no storage of the older manager: it has no `metadata`"),
        )
        .with_source(err)
    })?;
    let mut storage = Storage::default();
    let mut found = BTreeMap::new();
    for entry in listed.flatten() {
        let path = entry.path();
        let Some(stem) = document(&path) else { continue };
        match load(&path).and_then(|bytes| parse(&stem, &bytes)) {
            Ok(legacy) => drop(found.insert(legacy.uuid, legacy)),
            Err(refusal) => storage.refused.push((stem, refusal)),
        }
    }
    let known: BTreeSet<String> = found
        .keys()
        .map(|uuid| shown(*uuid))
        .chain(storage.refused.iter().map(|(stem, _)| stem.clone()))
        .collect();
    for id in indexed(&directory.join("index.json")).difference(&known) {
        let reason = "the index has it, and its document is gone".to_owned();
        storage.refused.push((id.clone(), Refusal::Damaged(reason)));
    }
    storage.refused.sort_by(|one, other| one.0.cmp(&other.0));
    storage.snapshots = in_order(found);
    Ok(storage)
}

/// The name of a document, which is the id of its snapshot.
fn document(path: &Path) -> Option<String> {
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let stem = path.file_stem()?.to_str()?;
    (is_json && !stem.starts_with('.')).then(|| stem.to_owned())
}

fn load(path: &Path) -> Result<Vec<u8>, Refusal> {
    let read = || -> io::Result<Vec<u8>> {
        // Opening what is no file could take for ever.
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::other("it is no file"));
        }
        let mut bytes = Vec::new();
        File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    match read() {
        Ok(bytes) if bytes.len() as u64 > MAX_BYTES => damaged("its document is too long"),
        Ok(bytes) => Ok(bytes),
        Err(err) => damaged(format!("its document cannot be read: {err}")),
    }
}

fn damaged<T>(reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Damaged(reason.into()))
}

/// Ids that the index has. One that cannot be read has none: it is rewritten in place by others.
fn indexed(path: &Path) -> BTreeSet<String> {
    let index = || -> Option<BTreeSet<String>> {
        let value: Value = serde_json::from_slice(&load(path).ok()?).ok()?;
        Some(value.get("snapshots")?.as_object()?.keys().cloned().collect())
    };
    // Whoever rewrites it is done in a moment.
    index().or_else(index).unwrap_or_default()
}

/// One document. Bytes of a stranger: whatever is in them, this answers.
pub(crate) fn parse(stem: &str, bytes: &[u8]) -> Result<Legacy, Refusal> {
    let told: Map<String, Value> = match serde_json::from_slice(bytes) {
        Ok(told) => told,
        Err(err) => return damaged(format!("its document is no JSON object: {err}")),
    };
    let text = |key: &str| told.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let id = text("snapshot_id").unwrap_or_default();
    let Some(uuid) = uuid(id).filter(|_| id == stem) else {
        return damaged(format!(
            "its document tells of `{}`",
            id.chars().take(64).collect::<String>()
        ));
    };
    match text("status").unwrap_or_default() {
        "completed" | "restoring" => {}
        status @ ("creating" | "failed" | "deleted") => {
            return Err(Refusal::Unfinished(format!("its status is `{status}`")));
        }
        _ => return damaged("its status is none that there is"),
    }
    let Some(image) = text("image_id").or(text("image_tag")) else {
        return damaged("it names no image");
    };
    let Some(created) = text("timestamp").and_then(moment) else {
        return damaged("it tells no time");
    };
    let owned = |key: &str| text(key).map(str::to_owned);
    Ok(Legacy {
        uuid,
        container_id: owned("container_id").unwrap_or_default(),
        container_name: text("container_name")
            .and_then(|name| name.trim_start_matches('/').parse().ok()),
        created,
        trigger: text("trigger").and_then(|trigger| trigger.parse().ok()).unwrap_or_default(),
        description: owned("description"),
        context: owned("action_context"),
        run_id: owned("run_id"),
        image: image.to_owned(),
        tag: owned("image_tag"),
        labels: labels(id, told.get("labels")),
        parent: text("parent_snapshot_id").and_then(self::uuid),
        restore_count: told.get("restoration_count").and_then(Value::as_u64).unwrap_or_default(),
        told: Value::Object(told),
    })
}

/// Theirs, as far as they can be labels here.
fn labels(id: &str, theirs: Option<&Value>) -> Labels {
    let theirs = theirs.and_then(Value::as_object).into_iter().flatten();
    let text = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    let good = |pair: &(String, String)| Labels::new([pair.clone()]).is_ok();
    let theirs = theirs.filter_map(text).filter(good).take(MAX_LABELS);
    let ours = (ID_LABEL.to_owned(), id.to_owned());
    Labels::new(theirs.chain([ours])).unwrap_or_default()
}

/// Without a zone, it is taken for UTC.
fn moment(text: &str) -> Option<Timestamp> {
    let zoned = text.parse::<Timestamp>().ok();
    let naive = || text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok();
    zoned.or_else(|| naive().map(|zoned| zoned.timestamp()))
}

fn uuid(text: &str) -> Option<u128> {
    let places = [8, 13, 18, 23];
    let fits = text.len() == 36
        && text.bytes().enumerate().all(|(place, byte)| match places.contains(&place) {
            true => byte == b'-',
            false => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
        });
    fits.then(|| u128::from_str_radix(&text.replace('-', ""), 16).ok()).flatten()
}

fn shown(uuid: u128) -> String {
    let hex = format!("{uuid:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Parents first. A circle is cut where it is met.
fn in_order(mut found: BTreeMap<u128, Legacy>) -> Vec<Legacy> {
    let mut ids: Vec<_> = found.values().map(|legacy| (legacy.created, legacy.uuid)).collect();
    ids.sort_unstable();
    let mut ordered = Vec::with_capacity(ids.len());
    for (_, id) in ids {
        let mut line = Vec::new();
        let mut next = Some(id);
        while let Some(legacy) = next.and_then(|id| found.remove(&id)) {
            next = legacy.parent;
            line.push(legacy);
        }
        ordered.extend(line.into_iter().rev());
    }
    ordered
}

impl Legacy {
    pub(crate) fn legacy_id(&self) -> String {
        shown(self.uuid)
    }

    /// Follows from its own id and time: taking it over twice is taking it over once.
    pub(crate) fn id(&self) -> SnapshotId {
        // Every bit of it counts in those that an id has room for.
        SnapshotId::new(self.created, self.uuid.wrapping_mul(MIXER) >> 48)
    }

    pub(crate) fn name(&self) -> Name {
        let tag = self.tag.as_deref().and_then(|tag| tag.rsplit('/').next());
        let tag = tag.map(|tag| tag.replace(':', "_"));
        let plain = || format!("legacy-{}", &self.legacy_id()[..8]);
        let named = tag.and_then(|tag| tag.parse().ok());
        named.or_else(|| plain().parse().ok()).unwrap_or_else(|| unreachable!("a plain name"))
    }

    pub(crate) fn request(&self, driver: &str, all: &BTreeMap<u128, SnapshotId>) -> ClaimRequest {
        let of = Some(self.container_id.clone()).filter(|id| !id.is_empty());
        ClaimRequest {
            driver: driver.to_owned(),
            what: NativeState { name: self.image.clone(), of, told: self.told.clone() },
            id: self.id(),
            name: self.name(),
            sandbox_name: self.container_name.clone(),
            parent: self.parent.and_then(|parent| all.get(&parent).copied()),
            trigger: self.trigger,
            description: self.description.clone(),
            context: self.context.clone(),
            run_id: self.run_id.clone(),
            labels: self.labels.clone(),
            created: self.created,
            restore_count: self.restore_count,
            wait: Wait::No,
        }
    }
}

impl Storage {
    /// What each of them is called here.
    pub(crate) fn ids(&self) -> BTreeMap<u128, SnapshotId> {
        self.snapshots.iter().map(|legacy| (legacy.uuid, legacy.id())).collect()
    }
}

#[cfg(test)]
mod tests;
