//! Starting points: the host, or a directory.
//!
//! A template is a list of places with what lies at the bottom of each. The host's `/usr` is seen
//! through an overlay of its own, so that nothing else of the host can appear, whatever is added
//! there later. The rest (`/etc`, links such as `/bin`, empty directories) is a small tree that is
//! made once, from a list of what is known to be harmless.

use std::{
    fs::{self, Permissions},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde::{Deserialize, Serialize};

/// Part of the name of what is made from the host: grows when the rules below change.
const VERSION: u32 = 1;

/// What is taken over from the host's `/etc`: nothing that holds a secret, names a user or tells of
/// the network.
const FROM_ETC: [&str; 36] = [
    "alternatives",
    "bash.bashrc",
    "bindresvport.blacklist",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "fonts",
    "gai.conf",
    "inputrc",
    "issue",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "locale.gen",
    "localtime",
    "login.defs",
    "magic",
    "magic.mime",
    "mime.types",
    "nanorc",
    "networks",
    "os-release",
    "perl",
    "pki",
    "profile",
    "protocols",
    "rpc",
    "services",
    "shells",
    "ssl",
    "terminfo",
    "timezone",
    "xattr.conf",
];

/// In none of the directories above.
const NEVER: [&str; 3] = ["private", "auth.conf", "auth.conf.d"];

/// Directories of the small tree, and their modes.
const DIRECTORIES: [(&str, u32); 25] = [
    ("dev", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("media", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("usr/local", 0o755),
    ("usr/local/bin", 0o755),
    ("usr/local/include", 0o755),
    ("usr/local/lib", 0o755),
    ("usr/local/sbin", 0o755),
    ("usr/local/share", 0o755),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/log", 0o755),
    ("var/spool", 0o755),
    ("var/tmp", 0o1777),
];

/// Under any directory that lacks them: places where something is mounted.
const MOUNT_POINTS: [(&str, u32); 5] =
    [("dev", 0o755), ("etc", 0o755), ("proc", 0o555), ("sys", 0o555), ("tmp", 0o1777)];

/// What lies below all layers of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Base(pub(super) Vec<Bottom>);

impl Base {
    pub(super) fn lowers(&self) -> impl Iterator<Item = PathBuf> + use<> {
        let lowers: Vec<PathBuf> =
            self.0.iter().flat_map(|bottom| &bottom.lowers).cloned().collect();
        lowers.into_iter()
    }

    /// What the sandbox's root looks like.
    pub(super) fn top(&self) -> Option<&Path> {
        let root = self.0.iter().find(|bottom| bottom.at.as_os_str().is_empty())?;
        root.lowers.first().map(PathBuf::as_path)
    }

    /// With a layer above everything: each place shows its part of it.
    pub(super) fn covered(mut self, tree: &Path) -> Self {
        for bottom in &mut self.0 {
            let part = tree.join(&bottom.at);
            if bottom.at.as_os_str().is_empty() || fs::symlink_metadata(&part).is_ok() {
                bottom.lowers.insert(0, part);
            }
        }
        self
    }

    pub(super) fn is_there(&self) -> bool {
        !self.0.is_empty()
            && self.0.iter().flat_map(|bottom| &bottom.lowers).all(|lower| lower.is_dir())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bottom {
    /// From the sandbox's root; empty for the root itself.
    pub(super) at: PathBuf,
    /// The top first.
    pub(super) lowers: Vec<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum TemplateError {
    #[error("{0}")]
    Invalid(String),
    #[error("failed to prepare template `{template}`: {doing}")]
    Io {
        template: String,
        doing: String,
        #[source]
        source: io::Error,
    },
}

/// Finds what a template without a record of its own means, and makes what it needs below `root`,
/// the driver's directory.
pub(super) fn resolve(text: &str, root: &Path) -> Result<Base, TemplateError> {
    let io_error = |doing: &str| {
        let (template, doing) = (text.to_owned(), doing.to_owned());
        move |source| TemplateError::Io { template, doing, source }
    };
    if text == "host" {
        return host(root).map_err(io_error("copy what is harmless of the host"));
    }
    let Some(path) = text.strip_prefix("dir:") else {
        return Err(TemplateError::Invalid(format!(
            "there is no template `{text}`: it is `host`, or `dir:PATH` for a directory"
        )));
    };
    let path = check_directory(text, Path::new(path), root)?;
    let points = mount_points(root).map_err(io_error("make mount points"))?;
    Ok(Base(vec![Bottom { at: PathBuf::new(), lowers: vec![path, points] }]))
}

fn check_directory(text: &str, path: &Path, root: &Path) -> Result<PathBuf, TemplateError> {
    let invalid = |why: String| Err(TemplateError::Invalid(format!("template `{text}` {why}")));
    if !path.is_absolute() {
        return invalid("is not absolute: write `dir:/…`".to_owned());
    }
    let path = match fs::canonicalize(path) {
        Ok(path) => path,
        Err(err) => return invalid(format!("cannot be used: {err}")),
    };
    if !path.is_dir() {
        return invalid("is not a directory".to_owned());
    }
    let ours = fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
    if path.starts_with(&ours) {
        return invalid(format!("lies in our own data directory `{}`", ours.display()));
    }
    if ours.starts_with(&path) {
        return invalid(format!("holds our own data directory `{}`", ours.display()));
    }
    Ok(path)
}

pub(super) fn mount_points(root: &Path) -> io::Result<PathBuf> {
    let path = root.join("base").join("points");
    make_once(&path, |new| {
        MOUNT_POINTS.iter().try_for_each(|(at, mode)| make_dir(new, at, *mode))
    })?;
    Ok(path)
}

fn host(root: &Path) -> io::Result<Base> {
    if !Path::new("/usr/bin").is_dir() || !fs::symlink_metadata("/bin")?.is_symlink() {
        return Err(io::Error::other(
            "on this machine `/bin` is not part of `/usr`: take a directory as template",
        ));
    }
    let path = root.join("base").join(format!("host{VERSION}-{:016x}", fingerprint()));
    make_once(&path, make_host)?;
    let usr = vec![path.join("usr"), PathBuf::from("/usr")];
    Ok(Base(vec![
        Bottom { at: PathBuf::new(), lowers: vec![path] },
        Bottom { at: "usr".into(), lowers: usr },
    ]))
}

/// Changes when what we take from the host does.
fn fingerprint() -> u64 {
    let mut hasher = DefaultHasher::new();
    let names = FROM_ETC.iter().chain(&["passwd", "group"]);
    for path in names.map(|name| Path::new("/etc").join(name)) {
        let seen = fs::metadata(&path);
        let seen = seen.map(|seen| (seen.mtime(), seen.mtime_nsec(), seen.ino(), seen.len())).ok();
        seen.hash(&mut hasher);
    }
    hasher.finish()
}

/// Makes a directory, complete or not at all. Two may try at once.
pub(super) fn make_once(path: &Path, fill: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let Some(parent) = path.parent() else { return Ok(()) };
    fs::create_dir_all(parent)?;
    let new = parent.join(crate::layer::unique_name("new"));
    fs::create_dir(&new)?;
    let made = fill(&new)
        .and_then(|()| fs::set_permissions(&new, Permissions::from_mode(0o755)))
        .and_then(|()| fs::rename(&new, path));
    match made {
        Err(_) if path.is_dir() => fs::remove_dir_all(&new),
        Err(err) => {
            let _ = fs::remove_dir_all(&new);
            Err(err)
        }
        Ok(()) => Ok(()),
    }
}

pub(super) fn make_dir(root: &Path, at: impl AsRef<Path>, mode: u32) -> io::Result<()> {
    let path = root.join(at);
    fs::create_dir(&path)?;
    fs::set_permissions(&path, Permissions::from_mode(mode))
}

fn make_host(new: &Path) -> io::Result<()> {
    for (at, mode) in DIRECTORIES {
        make_dir(new, at, mode)?;
    }
    for entry in fs::read_dir("/")? {
        let entry = entry?;
        // `/bin` and the like; a link that leads elsewhere is not ours to follow.
        if let Ok(target) = fs::read_link(entry.path())
            && (target.starts_with("usr") || target.starts_with("/usr"))
        {
            symlink(target, new.join(entry.file_name()))?;
        }
    }
    symlink("/run", new.join("var/run"))?;
    hide_private(Path::new("/usr/local"), &new.join("usr/local"))?;
    let etc = new.join("etc");
    for name in FROM_ETC {
        copy(&Path::new("/etc").join(name), &etc.join(name))?;
    }
    fs::write(etc.join("passwd"), accounts("/etc/passwd")?)?;
    fs::write(etc.join("group"), accounts("/etc/group")?)?;
    fs::write(etc.join("nsswitch.conf"), "passwd: files\ngroup: files\nhosts: files dns\n")?;
    fs::write(etc.join("machine-id"), "")?;
    fs::write(etc.join("resolv.conf"), "")?;
    fs::write(etc.join("hosts"), "127.0.0.1\tlocalhost\n::1\tlocalhost\n")?;
    symlink("/proc/self/mounts", etc.join("mtab"))
}

/// What administrators put there and only root may read is not for sandboxes, whose root would be
/// taken for its owner. What packages put into the rest of `/usr` is no secret.
fn hide_private(from: &Path, to: &Path) -> io::Result<()> {
    let Ok(entries) = fs::read_dir(from) else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        let metadata = entry.metadata()?;
        let readable = if metadata.is_dir() { 0o005 } else { 0o004 };
        if !metadata.is_symlink() && metadata.mode() & readable != readable {
            make_like(from, to)?;
            let hidden = to.join(entry.file_name());
            mknodat(CWD, &hidden, FileType::CharacterDevice, Mode::empty(), 0)?;
        } else if metadata.is_dir() {
            hide_private(&entry.path(), &to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// A directory that hides something says of itself what the one below it does.
fn make_like(from: &Path, to: &Path) -> io::Result<()> {
    if to.is_dir() {
        return Ok(());
    }
    if let (Some(from), Some(to)) = (from.parent(), to.parent()) {
        make_like(from, to)?;
    }
    fs::create_dir(to)?;
    fs::set_permissions(to, fs::metadata(from)?.permissions())
}

/// Users of the system, not people: name, password, number, …
fn accounts(path: &str) -> io::Result<String> {
    let text = fs::read_to_string(path)?;
    let is_system = |line: &&str| {
        let number = line.split(':').nth(2).and_then(|field| field.parse::<u32>().ok());
        number.is_some_and(|number| number < 1000 || number == 65_534)
    };
    Ok(text.lines().filter(is_system).map(|line| format!("{line}\n")).collect())
}

/// What cannot be read by everybody is left out: it is not for everybody.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let Ok(metadata) = fs::symlink_metadata(from) else { return Ok(()) };
    let name = from.file_name().unwrap_or_default();
    let public = metadata.is_symlink() || metadata.mode() & 0o004 != 0;
    if !public || NEVER.iter().any(|never| name == *never) {
        return Ok(());
    }
    if metadata.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    if metadata.is_dir() {
        fs::create_dir(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    if metadata.is_file() {
        fs::copy(from, to)?;
    }
    Ok(())
}
