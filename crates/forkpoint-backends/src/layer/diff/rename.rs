//! A file that was deleted here and added there with the same content was renamed.
//!
//! Only where finding that out is cheap: what is not found stays a deletion and an addition, which
//! is as true.

use std::collections::{HashMap, HashSet};

use forkpoint_core::driver::{ChangeKind, FileKind};

use super::{DiffSpec, ViewChange, content};
use crate::layer::{LayerView, ViewFacts};

/// Of all files that are read, to find renames.
const FILES_MAX: usize = 4000;
const BYTES_MAX: u64 = 512 << 20;

pub(super) fn join(changes: &mut Vec<ViewChange>, spec: &DiffSpec) {
    let mut gone = positions(changes, &ChangeKind::Deleted);
    let mut added = positions(changes, &ChangeKind::Added);
    keep_same_lengths(changes, &mut gone, &mut added);
    let mut pairs = same_inodes(changes, &mut gone, &mut added);
    keep_same_lengths(changes, &mut gone, &mut added);
    if is_cheap(changes, &gone, &added) {
        pairs.extend(same_contents(changes, spec, &gone, added));
    }
    for (source, index) in &pairs {
        let (before, from) = (changes[*source].before, changes[*source].path.clone());
        changes[*index].kind = ChangeKind::Renamed { from };
        changes[*index].before = before;
    }
    let joined: HashSet<usize> = pairs.into_iter().map(|(source, _)| source).collect();
    let mut index = 0..;
    changes.retain(|_| index.next().is_none_or(|index| !joined.contains(&index)));
}

/// Of the files with something in them that were deleted, or added.
fn positions(changes: &[ViewChange], kind: &ChangeKind) -> Vec<usize> {
    let fits = |change: &ViewChange| {
        let facts = facts(change).map(|facts| facts.facts);
        change.kind == *kind
            && facts.is_some_and(|facts| facts.kind == FileKind::File && facts.len_bytes > 0)
    };
    (0..changes.len()).filter(|&index| fits(&changes[index])).collect()
}

fn facts(change: &ViewChange) -> Option<ViewFacts> {
    change.before.or(change.after)
}

fn len_bytes(change: &ViewChange) -> u64 {
    facts(change).map_or(0, |facts| facts.facts.len_bytes)
}

fn keep_same_lengths(changes: &[ViewChange], gone: &mut Vec<usize>, added: &mut Vec<usize>) {
    let lengths = |of: &[usize]| -> HashSet<u64> {
        of.iter().map(|&index| len_bytes(&changes[index])).collect()
    };
    let (left, right) = (lengths(gone), lengths(added));
    gone.retain(|&index| right.contains(&len_bytes(&changes[index])));
    added.retain(|&index| left.contains(&len_bytes(&changes[index])));
}

/// Pairs of a deleted and an added one that are the same file, which are then no longer candidates.
fn same_inodes(
    changes: &[ViewChange],
    gone: &mut Vec<usize>,
    added: &mut Vec<usize>,
) -> Vec<(usize, usize)> {
    let inode = |index: usize| facts(&changes[index]).map(|facts| facts.inode);
    let mut by_inode: HashMap<_, usize> = gone.iter().map(|&index| (inode(index), index)).collect();
    let mut pairs = Vec::new();
    added.retain(|&index| match by_inode.remove(&inode(index)) {
        Some(source) => {
            pairs.push((source, index));
            false
        }
        None => true,
    });
    let taken: HashSet<usize> = pairs.iter().map(|(source, _)| *source).collect();
    gone.retain(|index| !taken.contains(index));
    pairs
}

fn is_cheap(changes: &[ViewChange], gone: &[usize], added: &[usize]) -> bool {
    let bytes = gone.iter().chain(added).map(|&index| len_bytes(&changes[index]));
    gone.len() + added.len() <= FILES_MAX && bytes.fold(0, u64::saturating_add) <= BYTES_MAX
}

fn same_contents(
    changes: &[ViewChange],
    spec: &DiffSpec,
    gone: &[usize],
    added: Vec<usize>,
) -> Vec<(usize, usize)> {
    let digest = |view: &LayerView, index: usize| {
        let file = view.open_file(&changes[index].path).ok()?;
        Some((len_bytes(&changes[index]), content::digest(file).ok()?))
    };
    let mut by_digest: HashMap<(u64, u64), Vec<usize>> = HashMap::new();
    for &index in gone {
        if let Some(digest) = digest(spec.from, index) {
            by_digest.entry(digest).or_default().push(index);
        }
    }
    let mut pairs = Vec::new();
    for index in added {
        let Some(sources) = digest(spec.to, index).and_then(|sum| by_digest.get_mut(&sum)) else {
            continue;
        };
        let name = changes[index].path.file_name();
        let same_name = |&source: &usize| changes[source].path.file_name() == name;
        let position = sources.iter().position(same_name).unwrap_or_default();
        // A digest is easily forged.
        if position < sources.len() && same(spec, &changes[sources[position]], &changes[index]) {
            pairs.push((sources.remove(position), index));
        }
    }
    pairs
}

fn same(spec: &DiffSpec, gone: &ViewChange, added: &ViewChange) -> bool {
    let before = spec.from.open_file(&gone.path);
    let same = before.and_then(|before| content::same(before, spec.to.open_file(&added.path)?));
    same.unwrap_or(false)
}
