//! What is in a file system in memory.

use std::{
    collections::HashMap,
    fs::File,
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    sync::{Arc, OnceLock},
};

use rustix::{
    fs::{
        FileType, Mode, OFlags, ResolveFlags, Stat, fstat, getxattr, listxattr, open, openat2,
        readlinkat,
    },
    io::Errno,
};

use super::{open_in, open_mount, walk};
use crate::{
    coverage::{Findings, Whose},
    dump::{memory::Pages, proc::Ids, shared},
    image::{Bytes, EntryKind, KeptEntry, KeptMount, MemoryId},
};

/// More than that is not kept: all of it is copied while everything stands.
const BYTES_MAX: u64 = 1 << 30;
const ENTRIES_MAX: usize = 1 << 16;

/// Names of files in memory by device and inode: one that was made under another name and linked is
/// still known by that to whoever has it open or mapped. That is rare, so they are looked at when somebody asks, while the
/// tree stands.
#[derive(Clone, Debug)]
pub(crate) struct Names(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    init: i32,
    paths: &'static [&'static str],
    /// Names of files that are mapped may be of mounts that were there before.
    relocated: bool,
    all: OnceLock<HashMap<MemoryId, String>>,
}

impl Names {
    pub(crate) fn of(init: i32, paths: &'static [&'static str], relocated: bool) -> Self {
        Self(Arc::new(Inner { init, paths, relocated, all: OnceLock::new() }))
    }

    /// Whether a file is still found under its name, which the kernel has told.
    pub(crate) fn leads_to(&self, path: &str, file: &Stat) -> bool {
        let Inner { init, relocated, .. } = &*self.0;
        if !*relocated {
            return true;
        }
        let confined = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let name = path.trim_start_matches('/');
        let found = root(*init)
            .and_then(|root| Ok(fstat(openat2(root, name, flags, Mode::empty(), confined)?)?));
        // The device is another one, and what was written to in place has another date.
        let what = |stat: &Stat| (stat.st_ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
        found.is_ok_and(|found| what(&found) == what(file))
    }

    pub(crate) fn get(&self, id: &MemoryId) -> Option<&String> {
        let Inner { init, paths, all, .. } = &*self.0;
        // What cannot be looked at has no name, and whoever has it is refused.
        all.get_or_init(|| names(*init, paths).unwrap_or_default()).get(id)
    }
}

fn names(init: i32, paths: &[&str]) -> io::Result<HashMap<MemoryId, String>> {
    let root = root(init)?;
    let mut names = HashMap::new();
    for at in paths {
        let Some(mount) = open_mount(&root, at)? else { continue };
        // What cannot be read is refused when it is looked at as a whole.
        let _ = walk(&mount, |path, _, stat| {
            if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
                let name = || format!("{at}/{path}");
                names.entry((stat.st_dev, stat.st_ino)).or_insert_with(name);
            }
            Ok(())
        });
    }
    Ok(names)
}

/// What is in the mounts of a sandbox at `paths`, without contents. Nothing in it runs.
pub(crate) fn look(
    init: i32,
    paths: &[&str],
    findings: &mut Findings,
) -> io::Result<Vec<KeptMount>> {
    let root = root(init)?;
    let looker = Looker { uids: Ids::of(init, "uid_map")?, gids: Ids::of(init, "gid_map")? };
    let mut all = Vec::new();
    for path in paths {
        let Some(mount) = open_mount(&root, path)? else { continue };
        all.push(looker.mount(&mount, path, BYTES_MAX, findings)?);
    }
    Ok(all)
}

fn root(init: i32) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(open(format!("/proc/{init}/root"), flags, Mode::empty())?)
}

/// The contents of what was found.
pub(crate) fn copy(init: i32, mounts: &mut [KeptMount], pages: &mut Pages) -> io::Result<()> {
    if mounts.is_empty() {
        return Ok(());
    }
    let root = root(init)?;
    for KeptMount { path, entries } in mounts {
        let mount = open_mount(&root, path)?.ok_or(io::ErrorKind::NotFound)?;
        for entry in entries {
            if let EntryKind::File { len_bytes, stored } = &mut entry.kind {
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOATIME;
                let file = open_in(&mount, &entry.path, flags)?;
                let file = File::from(file.ok_or(io::ErrorKind::NotFound)?);
                *stored = shared::copy_file(&file, *len_bytes, pages)?;
            }
        }
    }
    Ok(())
}

struct Looker {
    uids: Ids,
    gids: Ids,
}

impl Looker {
    fn mount(
        &self,
        mount: &OwnedFd,
        at: &str,
        most: u64,
        findings: &mut Findings,
    ) -> io::Result<KeptMount> {
        let mut entries = Vec::new();
        let mut names: HashMap<u64, String> = HashMap::new();
        let mut bytes = 0;
        let whose = Whose { pid: 1, name: "init".to_owned() };
        let walked = walk(mount, |path, file, stat| {
            bytes += stat.st_blocks as u64 * 512;
            let same = names.get(&stat.st_ino).cloned();
            match self.entry(path, file, stat, same) {
                Ok(entry) => entries.push(entry),
                Err(why) => findings.refuse(&whose, format!("`{at}/{path}`"), &why),
            }
            if stat.st_nlink > 1 {
                names.entry(stat.st_ino).or_insert_with(|| path.to_owned());
            }
            match entries.len() > ENTRIES_MAX {
                true => Err(io::Error::other(format!("there are more than {ENTRIES_MAX} files"))),
                false => Ok(()),
            }
        });
        if let Err(err) = walked {
            let why = format!("it cannot be read ({err}); remove some of it");
            findings.refuse(&whose, format!("`{at}`"), &why);
        }
        if bytes > most {
            let thing = format!("{} MiB in `{at}`", bytes >> 20);
            let why = format!("up to {} MiB are kept; remove some of it", most >> 20);
            findings.refuse(&whose, thing, &why);
        }
        Ok(KeptMount { path: at.to_owned(), entries })
    }

    fn entry(
        &self,
        path: &str,
        file: &OwnedFd,
        stat: &Stat,
        same: Option<String>,
    ) -> Result<KeptEntry, String> {
        let kind = FileType::from_raw_mode(stat.st_mode);
        let owner = self.uids.inside(stat.st_uid).zip(self.gids.inside(stat.st_gid));
        let (uid, gid) = owner.ok_or("its owner is nobody in the sandbox; remove it")?;
        let attributes = match kind {
            FileType::RegularFile | FileType::Directory => attributes(file)?,
            _ => Vec::new(),
        };
        Ok(KeptEntry {
            path: path.to_owned(),
            kind: self::kind(kind, file, stat, same)?,
            mode: stat.st_mode & 0o7777,
            uid,
            gid,
            times: [
                (stat.st_atime, stat.st_atime_nsec as u32),
                (stat.st_mtime, stat.st_mtime_nsec as u32),
            ],
            attributes,
        })
    }
}

fn kind(
    kind: FileType,
    file: &OwnedFd,
    stat: &Stat,
    same: Option<String>,
) -> Result<EntryKind, String> {
    Ok(match kind {
        FileType::Directory => EntryKind::Directory,
        FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => {
            return Err("devices are the machine's, and are not captured; remove it".to_owned());
        }
        _ if same.is_some() => EntryKind::Same { path: same.unwrap_or_default() },
        FileType::RegularFile => {
            EntryKind::File { len_bytes: stat.st_size as u64, stored: Vec::new() }
        }
        FileType::Symlink => {
            let target = readlinkat(file, "", Vec::new()).map_err(told)?.into_string();
            EntryKind::Link { target: target.map_err(|_| "it leads to a name that is not UTF-8")? }
        }
        FileType::Socket => EntryKind::Socket,
        FileType::Fifo => EntryKind::Fifo,
    })
}

fn told(err: Errno) -> String {
    format!("it cannot be read ({err})")
}

/// Those of users. Labels come from the machine's policy.
fn attributes(file: &OwnedFd) -> Result<Vec<(String, Bytes)>, String> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut list = vec![0; 1 << 16];
    let len = match listxattr(&path, &mut list) {
        Ok(len) => len,
        Err(Errno::NOTSUP) => 0,
        Err(err) => return Err(told(err)),
    };
    let mut all = Vec::new();
    for name in list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = std::str::from_utf8(name).map_err(|_| "it has an attribute without a name")?;
        if name.starts_with("user.") {
            let mut value = vec![0; 1 << 16];
            let len = getxattr(&path, name, &mut value).map_err(told)?;
            value.truncate(len);
            all.push((name.to_owned(), Bytes(value)));
        } else if !name.starts_with("security.") || name == "security.capability" {
            return Err(format!("its attribute `{name}` is not captured; remove it"));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_is_refused_with_its_size() {
        let dir = tempfile::TempDir::new().unwrap();
        std::fs::write(dir.path().join("large"), vec![1; 3 << 20]).unwrap();
        let mount = File::open(dir.path()).unwrap().into();
        let own = std::process::id() as i32;
        let looker = Looker {
            uids: Ids::of(own, "uid_map").unwrap(),
            gids: Ids::of(own, "gid_map").unwrap(),
        };
        let mut findings = Findings::default();
        let kept = looker.mount(&mount, "/dev/shm", 4 << 20, &mut findings).unwrap();
        findings.verdict().unwrap();
        assert_eq!(kept.entries.len(), 2);
        let mut findings = Findings::default();
        looker.mount(&mount, "/dev/shm", 2 << 20, &mut findings).unwrap();
        let told = findings.verdict().unwrap_err().to_string();
        assert!(told.contains("3 MiB in `/dev/shm`: up to 2 MiB are kept"), "{told}");
    }
}
