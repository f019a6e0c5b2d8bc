//! What earlier applies wrote to a directory, so that it is not taken for somebody else's change.
//!
//! One file for each directory, replaced at once. It can be lost: then the next apply finds conflicts
//! where there are none.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
};

use forkpoint_core::{Timestamp, path::HostPath};
use rustix::fs::Stat;
use serde::{Deserialize, Serialize};

use super::{
    ApplySpec,
    error::{Doing as _, WorkspaceError, WorkspaceResult},
    host::is_dir,
    line::{Line, Maker},
    plan::{Plan, Want},
    stage::Staged,
};
use crate::layer::{Moment, replace};

const FORMAT: u32 = 1;

/// A file with a note for each of a million paths.
const LEN_MAX: u64 = 512 << 20;

#[derive(Debug)]
pub(super) struct Ledger {
    path: PathBuf,
    source: HostPath,
    since: Timestamp,
    line: Line,
    maker: Option<Maker>,
    notes: BTreeMap<PathBuf, Note>,
    shared: BTreeMap<u64, Shared>,
}

/// What we left at a path, for a sandbox whose workspace began at `since`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    since: Timestamp,
    /// Not known of what older releases left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<Maker>,
    /// One of these, if somebody died on the way from one to another. Nothing: we deleted it.
    states: Vec<Option<Version>>,
    /// When a directory last changed, if all that changed in it since the sandbox began was ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    left: Option<(i64, i64)>,
}

/// A file of which we took one name away. That dated it anew under the names that are left, wherever they are.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Shared {
    since: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<Maker>,
    /// How many names it had then.
    names: u64,
    #[serde(flatten)]
    file: Version,
}

impl Shared {
    /// Dates alone would not do: what happens in one tick of the clock has one date.
    fn is(&self, stat: &Stat) -> bool {
        self.file.is(stat) && self.names == stat.st_nlink
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Version {
    ino: u64,
    len_bytes: u64,
    modified: (i64, i64),
    /// Not known before it is in its place, since a rename changes it.
    changed: Option<(i64, i64)>,
}

impl Version {
    /// Of a directory nothing but its number is kept: the rest changes with what is in it.
    fn of(stat: &Stat) -> Self {
        if is_dir(stat) {
            return Self { ino: stat.st_ino, len_bytes: 0, modified: (0, 0), changed: None };
        }
        Self {
            ino: stat.st_ino,
            len_bytes: stat.st_size as _,
            modified: (stat.st_mtime as _, stat.st_mtime_nsec as _),
            changed: Some(changed(stat)),
        }
    }

    fn is(&self, stat: &Stat) -> bool {
        let there = Self::of(stat);
        let changed = self.changed.or(there.changed);
        Self { changed, ..*self } == there
    }
}

fn changed(stat: &Stat) -> (i64, i64) {
    (stat.st_ctime as _, stat.st_ctime_nsec as _)
}

#[derive(Serialize, Deserialize)]
struct Written {
    format: u32,
    source: HostPath,
    notes: Vec<(Text, Note)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    shared: Vec<Shared>,
}

#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// JSON has no way to write other bytes but as numbers.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Text {
    Utf8(String),
    Bytes(Vec<u8>),
}

impl Ledger {
    pub(super) fn read(spec: &ApplySpec) -> WorkspaceResult<Self> {
        let (source, since) = (&spec.workspace.source, spec.workspace.since);
        let ledger = Self::read_from(spec.ledgers, source, since)?;
        Ok(Self { line: spec.line.clone(), maker: spec.line.maker(spec.at), ..ledger })
    }

    pub(super) fn read_from(
        directory: &Path,
        source: &HostPath,
        since: Timestamp,
    ) -> WorkspaceResult<Self> {
        let mut hasher = DefaultHasher::new();
        source.hash(&mut hasher);
        let path = directory.join(format!("{:016x}.json", hasher.finish()));
        let (notes, shared) = read_notes(&path, source)?;
        let (line, maker) = (Line::default(), None);
        Ok(Self { path, source: source.clone(), since, line, maker, notes, shared })
    }

    pub(super) fn write(&self) -> WorkspaceResult<()> {
        let text = |path: &PathBuf| match path.to_str() {
            Some(text) => Text::Utf8(text.to_owned()),
            None => Text::Bytes(path.as_os_str().as_bytes().to_vec()),
        };
        let notes = self.notes.iter().map(|(path, note)| (text(path), note.clone())).collect();
        let shared = self.shared.values().copied().collect();
        let written = Written { format: FORMAT, source: self.source.clone(), notes, shared };
        let write = || -> io::Result<()> {
            if let Some(directory) = self.path.parent() {
                fs::create_dir_all(directory)?;
            }
            replace(&self.path, &self.path.with_extension("new"), &serde_json::to_vec(&written)?)
        };
        write().doing("write", || self.path.clone())
    }

    /// Whether what is there is what we wrote.
    pub(super) fn wrote(&self, path: &Path, stat: &Stat) -> bool {
        self.states(path).iter().flatten().any(|version| version.is(stat))
    }

    /// Whether nobody but us has changed it since the sandbox began.
    pub(super) fn is_as_left(&self, path: &Path, stat: &Stat) -> bool {
        Moment::of_change(stat) < self.since.into()
            || self.wrote(path, stat)
            || self
                .shared
                .get(&stat.st_ino)
                .is_some_and(|shared| shared.is(stat) && self.is_ours(shared.since, shared.by))
    }

    /// One of the names of a file was taken away, which was as `then` before and is as `now`, with the same content.
    pub(super) fn note_shared(&mut self, path: &Path, then: &Stat, now: &Stat) {
        if self.is_as_left(path, then) {
            let (since, by, names) = (self.since, self.maker, now.st_nlink);
            let shared = Shared { since, by, names, file: Version::of(now) };
            self.shared.insert(now.st_ino, shared);
        }
    }

    /// Whether we deleted what was there.
    pub(super) fn deleted(&self, path: &Path) -> bool {
        self.states(path).contains(&None)
    }

    fn states(&self, path: &Path) -> &[Option<Version>] {
        self.note_of(path).map_or(&[], |note| &note.states)
    }

    /// What was left by this sandbox or one that it comes from: what others left is as strange to it as
    /// anything of the host's.
    fn note_of(&self, path: &Path) -> Option<&Note> {
        self.notes.get(path).filter(|note| self.is_ours(note.since, note.by))
    }

    fn is_ours(&self, since: Timestamp, by: Option<Maker>) -> bool {
        since == self.since && by.is_none_or(|maker| self.line.knows(&maker))
    }

    /// Where this sandbox, or one that it comes from, was applied before.
    pub(super) fn earlier(&self) -> impl Iterator<Item = &Path> {
        let ours = self.notes.iter().filter(|(_, note)| self.is_ours(note.since, note.by));
        ours.map(|(path, _)| path.as_path())
    }

    /// Whether what was applied there is what the sandbox had then, and not something that it
    /// was rolled back from.
    pub(super) fn had(&self, path: &Path) -> bool {
        let had = |note: &Note| note.by.is_none_or(|maker| self.line.had(&maker));
        self.note_of(path).is_some_and(had)
    }

    /// What is about to be done: if we die on the way, what is there then is known all the same.
    pub(super) fn expect(&mut self, plan: &Plan, staged: &[Staged]) {
        let new = |stat: &Stat| Some(Version { changed: None, ..Version::of(stat) });
        for file in staged {
            self.expect_state(plan, &file.path, new(&file.stat));
        }
        for step in &plan.steps {
            match (&step.want, &step.host) {
                (Want::Nothing, there) => {
                    self.expect_state(plan, &step.path, None);
                    // What is still there of a directory then is what was to be removed.
                    if let Some(there) = there.filter(is_dir) {
                        let both = [self.states(&step.path), &[new(&there)]].concat();
                        self.set_states(&step.path, both);
                    }
                }
                (Want::Mode(_), Some(there)) if !is_dir(there) => {
                    self.expect_state(plan, &step.path, new(there));
                }
                _ => {}
            }
        }
    }

    /// Besides what is there now, if that is ours.
    fn expect_state(&mut self, plan: &Plan, path: &Path, state: Option<Version>) {
        let found = plan.steps.binary_search_by(|step| step.path.as_path().cmp(path));
        let there = found.ok().and_then(|index| plan.steps[index].host);
        let is_there = |state: &Option<Version>| match (state, &there) {
            (Some(version), Some(stat)) => version.is(stat),
            (None, None) => true,
            _ => false,
        };
        let mut states = self.states(path).to_vec();
        states.retain(is_there);
        states.push(state);
        self.set_states(path, states);
    }

    fn set_states(&mut self, path: &Path, states: Vec<Option<Version>>) {
        let left = self.note_of(path).and_then(|note| note.left);
        self.insert(path, states, left);
    }

    fn insert(&mut self, path: &Path, states: Vec<Option<Version>>, left: Option<(i64, i64)>) {
        let note = Note { since: self.since, by: self.maker, states, left };
        self.notes.insert(path.to_owned(), note);
    }

    pub(super) fn note_written(&mut self, path: &Path, stat: &Stat) {
        self.note(path, Some(Version::of(stat)));
    }

    pub(super) fn note_deleted(&mut self, path: &Path) {
        self.note(path, None);
    }

    fn note(&mut self, path: &Path, state: Option<Version>) {
        self.set_states(path, vec![state]);
    }

    /// Whether a directory is as we left it, or as it was before.
    pub(super) fn is_untouched(&self, path: &Path, stat: &Stat) -> bool {
        let left = self.note_of(path).and_then(|note| note.left);
        Moment::of_change(stat) < self.since.into() || left == Some(changed(stat))
    }

    pub(super) fn note_left(&mut self, path: &Path, stat: &Stat) {
        let states = self.states(path).to_vec();
        self.insert(path, states, Some(changed(stat)));
    }
}

type Notes = (BTreeMap<PathBuf, Note>, BTreeMap<u64, Shared>);

fn read_notes(path: &Path, source: &HostPath) -> WorkspaceResult<Notes> {
    let bytes = match fs::metadata(path) {
        Ok(metadata) if metadata.len() <= LEN_MAX => fs::read(path),
        Ok(_) => return Ok(Notes::default()),
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Notes::default()),
        Err(err) => Err(err),
    };
    let bytes = bytes.doing("read", || path.to_owned())?;
    if let Ok(Format { format }) = serde_json::from_slice(&bytes)
        && format > FORMAT
    {
        let reason = format!("its notes have format {format}, and this release reads {FORMAT}");
        return Err(WorkspaceError::Refused { path: source.as_path().to_owned(), reason });
    }
    // One that is damaged, or of another directory with the same number, costs caution and nothing else.
    let written = serde_json::from_slice::<Written>(&bytes).ok();
    let Some(ours) = written.filter(|written| written.source == *source) else {
        return Ok(Notes::default());
    };
    let note = |(text, note): (Text, Note)| (PathBuf::from(OsString::from(text)), note);
    let notes = ours.notes.into_iter().map(note).collect();
    Ok((notes, ours.shared.into_iter().map(|shared| (shared.file.ino, shared)).collect()))
}

impl From<Text> for OsString {
    fn from(text: Text) -> Self {
        match text {
            Text::Utf8(text) => text.into(),
            Text::Bytes(bytes) => Self::from_vec(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT_1: &str = include_str!("../../tests/fixtures/ledger-v1.json");

    fn read(directory: &Path) -> WorkspaceResult<Ledger> {
        let source = HostPath::new("/srv/project").unwrap();
        Ledger::read_from(directory, &source, "2026-08-15T09:50:55Z".parse().unwrap())
    }

    #[test]
    fn format_1_stays_what_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let ledger = read(directory.path()).unwrap();
        fs::write(&ledger.path, FORMAT_1).unwrap();
        let ledger = read(directory.path()).unwrap();
        assert!(ledger.deleted(Path::new("gone")));
        assert!(ledger.deleted(&PathBuf::from(OsString::from_vec(vec![0xff, 0x2f, 0x61]))));
        assert_eq!(ledger.earlier().count(), 4);
        assert_eq!(ledger.shared[&9].names, 2);
        ledger.write().unwrap();
        let (written, fixture): (serde_json::Value, serde_json::Value) = (
            serde_json::from_slice(&fs::read(&ledger.path).unwrap()).unwrap(),
            serde_json::from_str(FORMAT_1).unwrap(),
        );
        assert_eq!(written, fixture);
    }

    /// Of what happens within one tick of the clock, the date tells nothing.
    #[test]
    fn a_file_that_lost_a_name_to_us_is_known_by_more_than_its_date() {
        let directory = tempfile::tempdir().unwrap();
        let (path, file) = (Path::new("other"), directory.path().join("file"));
        fs::write(&file, "text").unwrap();
        fs::hard_link(&file, directory.path().join("other")).unwrap();
        let now = rustix::fs::stat(&file).unwrap();
        let mut ledger = read(directory.path()).unwrap();
        ledger.note_shared(path, &now, &now);
        assert!(!ledger.is_as_left(path, &now), "somebody else had changed it before");
        let but = |change: fn(&mut Stat)| {
            let mut other = now;
            change(&mut other);
            other
        };
        ledger.note_shared(path, &but(|stat| (stat.st_ctime, stat.st_mtime) = (0, 0)), &now);
        assert!(ledger.is_as_left(path, &now));
        for other in [
            but(|stat| stat.st_size += 1),
            but(|stat| stat.st_mtime_nsec ^= 1),
            but(|stat| stat.st_ctime_nsec ^= 1),
            but(|stat| stat.st_nlink += 1),
            but(|stat| stat.st_ino += 1),
        ] {
            assert!(!ledger.is_as_left(path, &other), "{other:?}");
        }
        ledger.write().unwrap();
        assert!(read(directory.path()).unwrap().is_as_left(path, &now));
    }

    #[test]
    fn a_newer_format_is_refused_and_damage_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let read = || read(directory.path());
        let path = read().unwrap().path;
        fs::write(&path, r#"{"format": 2}"#).unwrap();
        let err = read().unwrap_err().to_string();
        assert!(err.contains("format 2"), "{err}");
        for damaged in ["", "{", r#"{"format": 1}"#, &FORMAT_1.replace("/srv/", "/other/")] {
            fs::write(&path, damaged).unwrap();
            assert!(read().unwrap().notes.is_empty(), "{damaged}");
        }
    }
}
