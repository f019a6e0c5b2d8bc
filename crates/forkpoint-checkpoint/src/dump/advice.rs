//! What a program told the kernel about its mappings (`madvise`), and what else only `smaps` tells.
//!
//! Reading it walks all pages (4 ms for 200 MB), so it is read while the tree still runs; where something was mapped
//! since, it is read again when the tree stands.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io,
};

use super::{Draft, proc::Stat};
use crate::{
    coverage::Findings,
    freeze::Tree,
    image::{Mapping, MappingKind},
    sys::{
        memory::{GUARDS, scan},
        read_text,
    },
};

/// Two letters for each flag.
const ADVICE: [(&str, i32); 8] = [
    ("dc", libc::MADV_DONTFORK),
    ("wf", libc::MADV_WIPEONFORK),
    ("dd", libc::MADV_DONTDUMP),
    ("hg", libc::MADV_HUGEPAGE),
    ("nh", libc::MADV_NOHUGEPAGE),
    ("mg", libc::MADV_MERGEABLE),
    ("rr", libc::MADV_RANDOM),
    ("sr", libc::MADV_SEQUENTIAL),
];
const REFUSED: [(&str, &str, &str); 2] = [
    ("sl", "sealed memory", "it could not be taken away again; run the program without `mseal`"),
    ("ht", "huge pages", "they are the machine's; use ordinary memory"),
];

/// Flags by range.
type Flags = BTreeMap<(u64, u64), String>;

#[derive(Debug, Default)]
pub(crate) struct Advice(HashMap<i32, (u64, Flags)>);

impl Advice {
    /// Of a tree that runs. What ends meanwhile is not missed.
    pub(crate) fn look(tree: &Tree) -> Self {
        let look = |pid: i32| Some((pid, (started(pid).ok()?, flags(pid).ok()?)));
        Self(tree.processes().into_iter().filter_map(look).collect())
    }

    /// Notes it in the mappings of a process that stands.
    pub(super) fn note(
        &mut self,
        pid: i32,
        draft: &mut Draft,
        findings: &mut Findings,
    ) -> io::Result<()> {
        let started = draft.started;
        let mappings = &draft.alive.mappings;
        let knows = |flags: &Flags| mappings.iter().all(|mapping| told(flags, mapping).is_some());
        let known = self.0.remove(&pid).filter(|(then, flags)| *then == started && knows(flags));
        let flags = match known {
            Some((_, flags)) => flags,
            None => flags(pid)?,
        };
        for mapping in &mut draft.alive.mappings {
            let Some(told) = told(&flags, mapping) else { continue };
            note(pid, mapping, told)?;
            for (flag, thing, reason) in REFUSED {
                if has(told, flag) {
                    findings.refuse(&draft.whose, thing, reason);
                }
            }
        }
        Ok(())
    }
}

/// One that grew, or was joined with another, has the same flags.
fn told<'a>(flags: &'a Flags, mapping: &Mapping) -> Option<&'a str> {
    let before_end = flags.range(..(mapping.end, 0)).next_back()?;
    (mapping.start < before_end.0.1).then_some(before_end.1.as_str())
}

fn has(told: &str, flag: &str) -> bool {
    told.split(' ').any(|word| word == flag)
}

fn note(pid: i32, mapping: &mut Mapping, told: &str) -> io::Result<()> {
    let given = ADVICE.iter().filter(|(flag, _)| has(told, flag));
    mapping.advice = given.map(|(_, advice)| *advice).collect();
    if let MappingKind::Anonymous { grows_down } = &mut mapping.kind {
        *grows_down |= has(told, "gd");
    }
    if has(told, "gu") {
        let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
        scan(pagemap, (mapping.start, mapping.end), &GUARDS, &mut mapping.guards)?;
    }
    Ok(())
}

fn started(pid: i32) -> io::Result<u64> {
    Ok(Stat::of(pid)?.started())
}

fn flags(pid: i32) -> io::Result<Flags> {
    Ok(parse(&read_text(format!("/proc/{pid}/smaps"))?))
}

fn parse(text: &str) -> Flags {
    let mut all = Flags::new();
    let mut range = (0, 0);
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    for line in text.lines() {
        if let Some(told) = line.strip_prefix("VmFlags: ") {
            all.insert(range, told.trim_end().to_owned());
        } else if !line.starts_with(|first: char| first.is_ascii_uppercase()) {
            let ends = line.split(' ').next().and_then(|ends| ends.split_once('-'));
            range = ends.and_then(|(start, end)| Some((hex(start)?, hex(end)?))).unwrap_or((0, 0));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_parsed() {
        let text = "1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nVmFlags: rd wr dc gu \n\
                    abc000-abd000 r--p 00000000 00:00 0 [x]\nVmFlags: rd\n";
        let flags = parse(text);
        assert!(has(&flags[&(0x1000, 0x3000)], "dc") && has(&flags[&(0x1000, 0x3000)], "gu"));
        assert_eq!(flags[&(0xab_c000, 0xab_d000)], "rd");
        assert_eq!(flags.len(), 2);
        let mapping = |start, end| Mapping {
            start,
            end,
            access: 3,
            kind: MappingKind::Anonymous { grows_down: false },
            pages: Vec::new(),
            stored: Vec::new(),
            advice: Vec::new(),
            guards: Vec::new(),
        };
        assert_eq!(told(&flags, &mapping(0x1000, 0x3000)), Some("rd wr dc gu"));
        assert_eq!(told(&flags, &mapping(0x1000, 0x5000)), Some("rd wr dc gu"));
        assert_eq!(told(&flags, &mapping(0x3000, 0x5000)), None);
        assert_eq!(told(&flags, &mapping(0, 0x1000)), None);
    }
}
