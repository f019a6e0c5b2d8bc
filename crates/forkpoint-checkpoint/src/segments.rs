//! Memory of System V (`shmget`): captured whole, made again under its number and its key.
//!
//! A number tells a place and in which turn it was used; a new namespace gives numbers out in order. So a
//! segment gets its own by being made and removed until it has it. Only the host could choose it at once.

use std::{fs::File, io, os::unix::fs::FileExt as _};

use rustix::fs::fstatfs;

use crate::{
    coverage::{Findings, Whose},
    dump::{
        Draft,
        memory::Pages,
        proc::Ids,
        shared::{HUGE_PAGES, copy_file},
    },
    image::{Chain, MappingKind, Segment},
    restore::shared::{empty, fill_file},
    sys::{
        PAGE,
        ipc::{self, Attached, Tables, Told, in_namespace_of},
    },
};

const DOOMED: u32 = 0o1000;
const LOCKED: u32 = 0o2000;
const PLACES: i32 = 1 << 15;
/// A namespace with few segments uses so many places in turn.
const AROUND: i32 = 64;
/// More tries would take seconds.
const FAR: u64 = 300_000;

/// All segments of the sandbox, without what is in them.
pub(crate) fn look(
    init: i32,
    tables: &Tables,
    drafts: &[Draft],
    findings: &mut Findings,
) -> io::Result<Vec<(Segment, File)>> {
    for what in tables.others()? {
        let why = "those of System V are not captured; remove them first (`ipcrm`)";
        findings.refuse(&Whose { pid: 1, name: "init".to_owned() }, what, why);
    }
    let all = tables.segments()?;
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let all = in_namespace_of(init, || {
        let open = |told: Told| Ok((told, Attached::new(told.id, told.len_bytes)?.file()?));
        all.into_iter().map(open).collect::<io::Result<Vec<_>>>()
    })?;
    let (uids, gids) = (Ids::of(init, "uid_map")?, Ids::of(init, "gid_map")?);
    let mut kept = Vec::new();
    for (told, file) in all {
        let inside = |(uid, gid)| uids.inside(uid).zip(gids.inside(gid));
        let (owner, maker) = (inside(told.owner), inside(told.maker));
        let why = match (owner, maker) {
            _ if fstatfs(&file)?.f_type == HUGE_PAGES => {
                Some("huge pages are the machine's; use ordinary memory")
            }
            _ if told.mode & LOCKED != 0 => Some("locks on memory are not captured; unlock it"),
            _ if distance(told.id) > FAR => Some(
                "so many were made before it that its number cannot be had again; make it anew",
            ),
            (Some(_), Some(_)) => None,
            _ => Some("its owner is nobody in the sandbox"),
        };
        let thing = format!("segment {} of System V", told.id);
        if let Some(why) = why {
            findings.refuse(&Whose { pid: 1, name: "init".to_owned() }, thing, why);
            continue;
        }
        check_attached(&told, drafts, findings);
        let segment = Segment {
            id: told.id,
            key: told.key,
            len_bytes: told.len_bytes,
            mode: told.mode & 0o777,
            owner: owner.unwrap_or_default(),
            maker: maker.unwrap_or_default(),
            doomed: told.mode & DOOMED != 0,
            stored: Vec::new(),
        };
        kept.push((segment, file));
    }
    Ok(kept)
}

/// A part of one cannot be attached.
fn check_attached(told: &Told, drafts: &[Draft], findings: &mut Findings) {
    let len = told.len_bytes.next_multiple_of(PAGE);
    for draft in drafts {
        let is_part = |kind: &MappingKind, there: u64| {
            matches!(kind, MappingKind::Segment { id } if *id == told.id) && there != len
        };
        if draft.alive.mappings.iter().any(|mapping| is_part(&mapping.kind, mapping.len())) {
            let thing = format!("a part of segment {} of System V", told.id);
            findings.refuse(&draft.whose, thing, "only whole ones are captured; detach it first");
        }
    }
}

pub(crate) fn copy(found: Vec<(Segment, File)>, pages: &mut Pages) -> io::Result<Vec<Segment>> {
    let copy = |(mut segment, file): (Segment, File)| {
        segment.stored = copy_file(&file, segment.len_bytes, pages)?;
        Ok(segment)
    };
    found.into_iter().map(copy).collect()
}

/// What is to be removed when everybody has attached what he had.
#[derive(Debug, Default)]
pub(crate) struct Doomed(Vec<Attached>);

impl Doomed {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Makes all of them, in a new namespace, by its process 1.
pub(crate) fn make_all(segments: &[Segment], chain: &Chain) -> io::Result<Doomed> {
    let mut doomed = Doomed::default();
    for segment in segments {
        make(segment)?;
        let mut attached = Attached::new(segment.id, segment.len_bytes)?;
        let bytes = attached.bytes();
        for stored in &segment.stored {
            let end = stored.end.min(segment.len_bytes) as usize;
            chain.top().pages.read_exact_at(&mut bytes[stored.start as usize..end], stored.at)?;
        }
        if segment.owner != segment.maker {
            ipc::set_owner(segment.id, segment.owner, segment.mode)?;
        }
        if segment.doomed {
            ipc::remove_segment(segment.id)?;
            doomed.0.push(attached);
        }
    }
    Ok(doomed)
}

/// How many numbers a new namespace gives out before it comes to this one.
fn distance(id: i32) -> u64 {
    let (turn, place) = (id / PLACES, id % PLACES);
    turn as u64 * AROUND.max(place + 1) as u64 + place as u64
}

fn make(segment: &Segment) -> io::Result<()> {
    // Places are used in turn, the more the more there are.
    let place = segment.id % PLACES;
    let crowd = if place < AROUND { 0 } else { place as usize * 2 / 3 + 2 };
    let mut others = Vec::new();
    while others.len() < crowd {
        let id = ipc::make_segment(libc::IPC_PRIVATE, PAGE, 0)?;
        match id % PLACES == place {
            true => ipc::remove_segment(id)?,
            false => others.push(id),
        }
    }
    let made = ipc::as_user(segment.maker, || {
        for _ in 0..=FAR {
            let id = ipc::make_segment(segment.key, segment.len_bytes, segment.mode)?;
            if id == segment.id {
                return Ok(true);
            }
            ipc::remove_segment(id)?;
        }
        Ok(false)
    })?;
    others.into_iter().try_for_each(ipc::remove_segment)?;
    match made {
        true => Ok(()),
        false => Err(io::Error::other(format!("segment {} cannot have its number", segment.id))),
    }
}

/// Whether all of the image are still there. Says which is not.
pub(crate) fn still_fit(tables: &Tables, segments: &[Segment]) -> io::Result<Result<(), i32>> {
    let now = tables.segments()?;
    let is_there = |segment: &Segment| {
        let same = |told: &Told| {
            (told.id, told.key, told.len_bytes) == (segment.id, segment.key, segment.len_bytes)
                && (told.mode & DOOMED != 0) == segment.doomed
        };
        now.iter().any(same)
    };
    Ok(segments.iter().find(|segment| !is_there(segment)).map_or(Ok(()), |gone| Err(gone.id)))
}

/// Gives back what was in them, and removes what is new.
pub(crate) fn put_back(
    init: i32,
    tables: &Tables,
    segments: &[Segment],
    chain: &Chain,
) -> io::Result<()> {
    let now = tables.segments()?;
    if now.is_empty() {
        return Ok(());
    }
    in_namespace_of(init, || {
        for told in now {
            let Some(segment) = segments.iter().find(|segment| segment.id == told.id) else {
                ipc::remove_segment(told.id)?;
                continue;
            };
            let file = Attached::new(told.id, told.len_bytes)?.file()?;
            empty(&file)?;
            fill_file(&file, segment.len_bytes, &segment.stored, chain)?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_given_out_in_turn() {
        assert_eq!([0, 5, PLACES, 3 * PLACES + 7].map(distance), [0, 5, 64, 199]);
        assert_eq!(distance(PLACES + 99), 199);
        assert!(distance(i32::MAX) > FAR);
    }
}
