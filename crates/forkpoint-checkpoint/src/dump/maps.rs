//! Mappings of a process.

use std::{collections::HashMap, io};

use rustix::fs::FileType;

use crate::{
    coverage::{self, Findings, Whose},
    image::{Mapping, MappingKind, MemoryId},
    mounts::Names,
    sys::Proc,
};

/// A process's address space, as far as it can be captured.
#[derive(Debug, Default)]
pub(crate) struct Maps {
    pub(crate) mappings: Vec<Mapping>,
    /// The kernel's own code.
    pub(crate) vdso: Option<(u64, u64)>,
    /// Where the kernel's own pages begin, data before code.
    pub(crate) kernel_start: Option<u64>,
}

struct Line<'a> {
    start: u64,
    end: u64,
    access: u32,
    shared: bool,
    offset: u64,
    /// Device and inode, as they are told.
    file: (&'a str, u64),
    name: &'a str,
}

fn parse(line: &str) -> Option<Line<'_>> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let access = words.next()?.as_bytes();
    let bit =
        |at: usize, letter: u8, bit: u32| if access.get(at) == Some(&letter) { bit } else { 0 };
    let offset = hex(words.next()?)?;
    let file = (words.next()?, words.next()?.parse().ok()?);
    Some(Line {
        start: hex(start)?,
        end: hex(end)?,
        access: bit(0, b'r', 1) | bit(1, b'w', 2) | bit(2, b'x', 4),
        shared: access.get(3) == Some(&b's'),
        offset,
        file,
        name: words.next().unwrap_or_default().trim_start(),
    })
}

/// What is looked at only once.
struct Known<'a> {
    names: &'a Names,
    /// How long mapped files are.
    sizes: HashMap<(String, u64, String), u64>,
}

impl Maps {
    /// `names` are of files in memory.
    pub(crate) fn of(
        proc: &Proc,
        names: &Names,
        whose: &Whose,
        findings: &mut Findings,
    ) -> io::Result<Self> {
        let text = proc.text("maps")?;
        let mut maps = Self::default();
        let mut known = Known { names, sizes: HashMap::new() };
        for line in text.lines() {
            let line =
                parse(line).ok_or_else(|| io::Error::other("a mapping is not understood"))?;
            maps.add(proc, &line, &mut known, whose, findings);
        }
        Ok(maps)
    }

    fn add(
        &mut self,
        proc: &Proc,
        line: &Line<'_>,
        known: &mut Known<'_>,
        whose: &Whose,
        findings: &mut Findings,
    ) {
        let Line { start, end, access, .. } = *line;
        match line.name {
            "[vsyscall]" => return,
            name @ ("[vdso]" | "[vvar]" | "[vvar_vclock]") => {
                if name == "[vdso]" {
                    self.vdso = Some((start, end));
                }
                self.kernel_start = Some(self.kernel_start.map_or(start, |known| known.min(start)));
                return;
            }
            _ => {}
        }
        let kind = match kind(proc, line, known) {
            Ok(kind) => kind,
            Err(why) => {
                let name = if line.name.is_empty() { "without a name" } else { line.name };
                findings.refuse(whose, format!("memory {name} at {start:#x}"), &why);
                return;
            }
        };
        self.mappings.push(Mapping {
            start,
            end,
            access,
            kind,
            pages: Vec::new(),
            stored: Vec::new(),
            advice: Vec::new(),
            guards: Vec::new(),
            droppable: false,
        });
    }
}

fn kind(proc: &Proc, line: &Line<'_>, known: &mut Known<'_>) -> Result<MappingKind, String> {
    let (name, (device, inode)) = (line.name, line.file);
    let is_anonymous = name.is_empty()
        || name == "[heap]"
        || name.starts_with("[stack")
        || name.starts_with("[anon:");
    if !line.shared && (inode == 0 && is_anonymous || name == "/dev/zero") {
        return Ok(MappingKind::Anonymous { grows_down: name == "[stack]" });
    }
    if line.shared && name.starts_with("/SYSV") && line.offset == 0 {
        return Ok(MappingKind::Segment { id: inode as i32 });
    }
    let is_memory = name.starts_with("[anon_shmem:") && line.shared;
    if inode == 0 || !name.starts_with('/') && !is_memory || is_special(name) {
        return Err(coverage::mapping(name).to_owned());
    }
    let mut path = name.to_owned();
    let file = (device.to_owned(), inode, name.to_owned());
    let len_bytes = match known.sizes.get(&file) {
        Some(size) => *size,
        None => match mapped(proc, line, known.names)? {
            Mapped::File(size) => *known.sizes.entry(file).or_insert(size),
            Mapped::Renamed(name, size) => {
                path = name;
                size
            }
            Mapped::Memory(memory) => {
                let (offset, private) = (line.offset, !line.shared);
                return Ok(MappingKind::Memory { memory, offset, private });
            }
        },
    };
    let offset = line.offset;
    Ok(match line.shared {
        true => MappingKind::Shared { path, offset, writable: line.access & 2 != 0 },
        false => MappingKind::Private { path, offset, len_bytes },
    })
}

fn is_special(name: &str) -> bool {
    ["/SYSV", "/[aio]", "/anon_hugepage"].iter().any(|prefix| name.starts_with(prefix))
}

enum Mapped {
    /// How long it is.
    File(u64),
    /// A file in memory that has another name by now.
    Renamed(String, u64),
    /// A file that has no name.
    Memory(MemoryId),
}

fn mapped(proc: &Proc, line: &Line<'_>, names: &Names) -> Result<Mapped, String> {
    let file = proc.stat(&format!("map_files/{:x}-{:x}", line.start, line.end));
    let file = file.map_err(|err| format!("its file cannot be looked at ({err})"))?;
    if FileType::from_raw_mode(file.st_mode) != FileType::RegularFile {
        return Err("it is a device's, and those are not captured".to_owned());
    }
    let (id, len_bytes) = ((file.st_dev, file.st_ino), file.st_size as u64);
    if file.st_nlink == 0 {
        return Ok(Mapped::Memory(id));
    }
    if line.name.ends_with(" (deleted)") {
        if let Some(name) = names.get(&id) {
            return Ok(Mapped::Renamed(name.clone(), len_bytes));
        }
        return Err("its file was renamed or replaced; restart the program".to_owned());
    }
    match names.leads_to(line.name, &file) {
        true => Ok(Mapped::File(len_bytes)),
        // It is there, and nobody finds it any more.
        false => Ok(Mapped::Memory(id)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed() {
        let line = parse("7f00-7f01 r-xs 00001000 fe:00 12 /a b (c)").unwrap();
        assert_eq!((line.start, line.end, line.access, line.shared), (0x7f00, 0x7f01, 5, true));
        assert_eq!((line.offset, line.file, line.name), (0x1000, ("fe:00", 12), "/a b (c)"));
        let line = parse("1000-2000 ---p 00000000 00:00 0 ").unwrap();
        assert_eq!((line.access, line.shared, line.name), (0, false, ""));
        assert!(parse("nothing").is_none());
    }

    #[test]
    fn our_own_mappings_are_read() {
        let pid = std::process::id() as i32;
        let whose = Whose { pid, name: "test".to_owned() };
        let maps = Maps::of(
            &Proc::of(pid).unwrap(),
            &Names::of(pid, &[], false),
            &whose,
            &mut Findings::default(),
        )
        .unwrap();
        assert!(maps.vdso.is_some() && maps.kernel_start < maps.vdso.map(|vdso| vdso.0));
        let stacks = maps
            .mappings
            .iter()
            .filter(|mapping| matches!(mapping.kind, MappingKind::Anonymous { grows_down: true }));
        assert_eq!(stacks.count(), 1);
    }
}
