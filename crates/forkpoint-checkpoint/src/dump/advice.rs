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
    coverage::{Findings, Whose},
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
/// What else is known to come back, or to be nothing that could: rights and what the kernel knows by them, growing down,
/// no reserve, what was written, who notes that. Locks are refused by their size.
const KNOWN: [&str; 20] = [
    "rd", "wr", "ex", "sh", "mr", "mw", "me", "ms", "gd", "ac", "nr", "sd", "mm", "lo", "lf", "um",
    "uw", "gu", DROPPABLE, "",
];
const DROPPABLE: &str = "dp";
/// No flag of the kernel's: a key that protects it is told apart.
const KEY: &str = "key";
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
            for flag in told.split(' ').filter(|flag| !is_known(flag)) {
                refuse(flag, mapping.start, &draft.whose, findings);
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

fn is_known(flag: &str) -> bool {
    KNOWN.contains(&flag) || ADVICE.iter().any(|(known, _)| *known == flag)
}

fn refuse(flag: &str, start: u64, whose: &Whose, findings: &mut Findings) {
    match REFUSED.iter().find(|(refused, ..)| *refused == flag) {
        Some((_, thing, reason)) => findings.refuse(whose, *thing, *reason),
        None => {
            let thing = format!("memory with the flag `{flag}` at {start:#x}");
            findings.refuse(whose, thing, "it is not known to come back; run the program without");
        }
    }
}

fn note(pid: i32, mapping: &mut Mapping, told: &str) -> io::Result<()> {
    let given = ADVICE.iter().filter(|(flag, _)| has(told, flag));
    mapping.advice = given.map(|(_, advice)| *advice).collect();
    mapping.droppable = has(told, DROPPABLE);
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
    let (mut range, mut has_key) = ((0, 0), false);
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    for line in text.lines() {
        if let Some(told) = line.strip_prefix("VmFlags: ") {
            let key = if has_key { format!(" {KEY}") } else { String::new() };
            all.insert(range, format!("{}{key}", told.trim_end()));
        } else if let Some(key) = line.strip_prefix("ProtectionKey:") {
            has_key = key.trim() != "0";
        } else if !line.starts_with(|first: char| first.is_ascii_uppercase()) {
            let ends = line.split(' ').next().and_then(|ends| ends.split_once('-'));
            has_key = false;
            range = ends.and_then(|(start, end)| Some((hex(start)?, hex(end)?))).unwrap_or((0, 0));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_refused_by_its_flag() {
        let text = "1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nProtectionKey:       3\n\
                    VmFlags: rd wr mr mw me ac sd zz \n\
                    5000-6000 rw-p 00000000 00:00 0 \nProtectionKey:       0\nVmFlags: rd wr dp wf dd\n";
        let flags = parse(text);
        let unknown = |start, end| -> Vec<&str> {
            flags[&(start, end)].split(' ').filter(|flag| !is_known(flag)).collect()
        };
        assert_eq!(unknown(0x1000, 0x3000), ["zz", KEY]);
        assert_eq!(unknown(0x5000, 0x6000), [""; 0]);
        let (whose, mut findings) = (Whose { pid: 2, name: "x".to_owned() }, Findings::default());
        refuse("zz", 0x1000, &whose, &mut findings);
        let told = findings.verdict().unwrap_err().to_string();
        assert!(told.contains("memory with the flag `zz` at 0x1000: it is not known"), "{told}");
    }

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
            droppable: false,
        };
        assert_eq!(told(&flags, &mapping(0x1000, 0x3000)), Some("rd wr dc gu"));
        assert_eq!(told(&flags, &mapping(0x1000, 0x5000)), Some("rd wr dc gu"));
        assert_eq!(told(&flags, &mapping(0x3000, 0x5000)), None);
        assert_eq!(told(&flags, &mapping(0, 0x1000)), None);
    }
}
