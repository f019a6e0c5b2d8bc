//! The questions, answered by looking at everything.

use std::collections::BTreeSet;

use bytes::Bytes;
use forkpoint_core::{
    catalog::{
        CandidateQuery, CatalogError, CatalogResult, Cursor, DriverUsage, LineageScope, Page,
        SandboxQuery, SandboxRecord, SnapshotQuery, SnapshotRecord, Usage,
    },
    driver::PieceName,
    id::{SandboxId, SnapshotId},
    lineage::LineageNode,
    naming::Name,
    retention::{Candidate, KeepGroup},
};

use super::Tables;

impl Tables {
    pub(crate) fn sandbox(&self, id: SandboxId) -> CatalogResult<SandboxRecord> {
        let found = self.sandboxes.values().find(|row| row.id == id).cloned();
        found.ok_or_else(|| CatalogError::SandboxMissing { reference: id.to_string() })
    }

    pub(crate) fn find_sandbox(
        &self,
        driver: &str,
        reference: &str,
    ) -> CatalogResult<SandboxRecord> {
        let rows = || self.sandboxes.values();
        let named = |row: &&SandboxRecord| {
            row.driver == driver && row.name.as_ref().is_some_and(|name| name.as_str() == reference)
        };
        if let Some(found) =
            rows().find(|row| row.id.to_string() == reference).or(rows().find(named))
        {
            return Ok(found.clone());
        }
        let id = only(reference, rows().map(|row| row.id.to_string()))?
            .ok_or_else(|| CatalogError::SandboxMissing { reference: reference.to_owned() })?;
        self.find_sandbox(driver, &id)
    }

    pub(crate) fn find_former_sandbox(
        &self,
        driver: &str,
        reference: &str,
    ) -> CatalogResult<Option<SandboxId>> {
        let newest_first = || self.snapshots.values().rev();
        let named = |row: &&SnapshotRecord| {
            let name = row.sandbox_name.as_ref().map(Name::as_str);
            row.driver == driver && name == Some(reference)
        };
        let found = newest_first()
            .find(|row| row.sandbox.to_string() == reference)
            .or_else(|| newest_first().find(named));
        if let Some(found) = found {
            return Ok(Some(found.sandbox));
        }
        let ids: BTreeSet<String> = newest_first().map(|row| row.sandbox.to_string()).collect();
        Ok(only(reference, ids)?.and_then(|id| id.parse().ok()))
    }

    pub(crate) fn sandboxes(&self, query: &SandboxQuery) -> Page<SandboxRecord> {
        let SandboxQuery { driver, labels, expired, limit, after } = query;
        let rows = self.sandboxes.iter().filter(|(number, row)| {
            after.is_none_or(|after| **number > after.0)
                && driver.as_ref().is_none_or(|driver| row.driver == *driver)
                && row.labels.contain(labels)
                && expired.is_none_or(|at| row.expires.is_some_and(|expires| expires <= at))
        });
        page(rows, *limit)
    }

    pub(crate) fn snapshot(&self, id: SnapshotId) -> CatalogResult<SnapshotRecord> {
        let found = self.snapshots.values().find(|row| row.id == id).cloned();
        found.ok_or_else(|| CatalogError::SnapshotMissing { reference: id.to_string() })
    }

    pub(crate) fn find_snapshot(&self, reference: &str) -> CatalogResult<SnapshotRecord> {
        let rows = || self.snapshots.values();
        let exact = rows()
            .find(|row| row.id.to_string() == reference)
            .or_else(|| rows().find(|row| row.name.as_str() == reference));
        if let Some(found) = exact {
            return Ok(found.clone());
        }
        let id = only(reference, rows().map(|row| row.id.to_string()))?
            .ok_or_else(|| CatalogError::SnapshotMissing { reference: reference.to_owned() })?;
        self.find_snapshot(&id)
    }

    pub(crate) fn snapshots(&self, query: &SnapshotQuery) -> Page<SnapshotRecord> {
        let SnapshotQuery { sandbox, driver, trigger, kind, run_id, labels, limit, after } = query;
        let rows = self.snapshots.iter().rev().filter(|(number, row)| {
            after.is_none_or(|after| **number < after.0)
                && sandbox.is_none_or(|id| row.sandbox == id)
                && driver.as_ref().is_none_or(|driver| row.driver == *driver)
                && trigger.is_none_or(|trigger| row.trigger == trigger)
                && kind.is_none_or(|kind| row.kind == kind)
                && (run_id.is_none() || row.run_id == *run_id)
                && row.labels.contain(labels)
        });
        page(rows, *limit)
    }

    pub(crate) fn agent_state(&self, id: SnapshotId) -> CatalogResult<Option<Bytes>> {
        self.snapshot(id).map(|_| self.agent_states.get(&id).cloned())
    }

    pub(crate) fn lineage(&self, scope: &LineageScope) -> Vec<LineageNode> {
        let mut nodes: Vec<(u64, LineageNode)> = self
            .snapshots
            .iter()
            .map(|(number, row)| (*number, node(row)))
            .chain(self.ghosts.iter().map(|(number, ghost)| (*number, ghost.clone())))
            .collect();
        nodes.sort_by_key(|(number, _)| *number);
        let nodes: Vec<LineageNode> = nodes.into_iter().map(|(_, node)| node).collect();
        let wanted = match scope {
            LineageScope::Everything => return nodes,
            LineageScope::Ancestors(id) => ancestors(&nodes, *id),
            LineageScope::Tree(id) => {
                let root = ancestors(&nodes, *id)
                    .into_iter()
                    .find(|id| nodes.iter().any(|node| node.id == *id && node.parent.is_none()));
                root.map(|root| descendants(&nodes, root)).unwrap_or_default()
            }
            LineageScope::Children(id) => {
                nodes.iter().filter(|n| n.parent == Some(*id)).map(|n| n.id).collect()
            }
        };
        nodes.into_iter().filter(|node| wanted.contains(&node.id)).collect()
    }

    pub(crate) fn usage(&self) -> Usage {
        let rows = || self.snapshots.values();
        let drivers: BTreeSet<&String> = rows().map(|row| &row.driver).collect();
        Usage {
            sandboxes: self.sandboxes.len() as u64,
            snapshots: self.snapshots.len() as u64,
            pinned: rows().filter(|row| row.pinned).count() as u64,
            own_bytes: sum(rows().map(|row| row.own_bytes)),
            total_bytes: sum(rows().map(|row| row.total_bytes)),
            stored_bytes: sum(self.pieces.values().map(|piece| piece.bytes)),
            oldest: rows().map(|row| row.created).min(),
            newest: rows().map(|row| row.created).max(),
            drivers: drivers
                .into_iter()
                .map(|driver| DriverUsage {
                    driver: driver.clone(),
                    snapshots: rows().filter(|row| row.driver == *driver).count() as u64,
                    own_bytes: sum(rows()
                        .filter(|row| row.driver == *driver)
                        .map(|row| row.own_bytes)),
                })
                .collect(),
        }
    }

    /// The same for both scopes: the planner asks for at least what is due.
    pub(crate) fn candidates(&self, query: &CandidateQuery) -> Vec<Candidate> {
        let after = query.after.map_or(0, |after| after.0 + 1);
        let rows = self.snapshots.range(after..).filter(|(_, row)| !row.pinned);
        rows.take(query.limit).map(|(number, row)| self.candidate(query, *number, row)).collect()
    }

    fn candidate(&self, query: &CandidateQuery, number: u64, row: &SnapshotRecord) -> Candidate {
        let newer = |same: &dyn Fn(&SnapshotRecord) -> bool| {
            let alive = |row: &SnapshotRecord| row.expires.is_none_or(|at| at > query.now);
            let rows = self.snapshots.range(number + 1..);
            rows.filter(|(_, row)| alive(row) && same(row)).count() as u64
        };
        let newer_in_sandbox = newer(&|other| other.sandbox == row.sandbox);
        Candidate {
            cursor: Cursor(number),
            id: row.id,
            name: row.name.clone(),
            sandbox: row.sandbox,
            created: row.created,
            expires: row.expires,
            own_bytes: row.own_bytes,
            pinned: row.pinned,
            newer_in_sandbox,
            newer_in_group: match query.policy.keep_last.as_ref().map(|keep| &keep.group) {
                None => None,
                Some(KeepGroup::Sandbox) => Some(newer_in_sandbox),
                Some(KeepGroup::Label(key)) => {
                    let value = row.labels.get(key);
                    value.map(|_| newer(&|other| other.labels.get(key) == value))
                }
            },
        }
    }

    pub(crate) fn pieces(&self, driver: &str) -> Vec<PieceName> {
        self.pieces.keys().filter(|(of, _)| of == driver).map(|(_, name)| name.clone()).collect()
    }
}

fn sum(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}

/// The one id that begins with `reference`.
fn only(reference: &str, ids: impl IntoIterator<Item = String>) -> CatalogResult<Option<String>> {
    let mut matches: Vec<String> =
        ids.into_iter().filter(|id| !reference.is_empty() && id.starts_with(reference)).collect();
    matches.sort();
    matches.truncate(3);
    match matches.len() {
        0 | 1 => Ok(matches.pop()),
        _ => Err(CatalogError::Ambiguous { reference: reference.to_owned(), matches }),
    }
}

fn page<'a, T: Clone + 'a>(
    rows: impl Iterator<Item = (&'a u64, &'a T)>,
    limit: Option<usize>,
) -> Page<T> {
    let limit = limit.unwrap_or(usize::MAX);
    let mut rows: Vec<(u64, &T)> =
        rows.take(limit.saturating_add(1)).map(|(number, row)| (*number, row)).collect();
    let more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| more).map(|(number, _)| Cursor(*number));
    Page { items: rows.into_iter().map(|(_, row)| row.clone()).collect(), next }
}

pub(super) fn node(row: &SnapshotRecord) -> LineageNode {
    LineageNode {
        id: row.id,
        parent: row.parent,
        name: row.name.clone(),
        sandbox: row.sandbox,
        sandbox_name: row.sandbox_name.clone(),
        kind: row.kind,
        trigger: row.trigger,
        description: row.description.clone(),
        own_bytes: row.own_bytes,
        created: row.created,
        deleted: false,
    }
}

fn ancestors(nodes: &[LineageNode], from: SnapshotId) -> BTreeSet<SnapshotId> {
    let mut found = BTreeSet::new();
    let mut next = Some(from);
    while let Some(node) = next.and_then(|id| nodes.iter().find(|node| node.id == id)) {
        found.insert(node.id);
        next = node.parent;
    }
    found
}

fn descendants(nodes: &[LineageNode], root: SnapshotId) -> BTreeSet<SnapshotId> {
    let mut found = BTreeSet::from([root]);
    // A parent always comes before its children.
    for node in nodes {
        if node.parent.is_some_and(|parent| found.contains(&parent)) {
            found.insert(node.id);
        }
    }
    found
}
