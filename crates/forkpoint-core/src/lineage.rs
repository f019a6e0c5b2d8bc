//! Which snapshot came from which: a tree across restores, forks and rollbacks.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use crate::{
    driver::SnapshotKind,
    id::{SandboxId, SnapshotId},
    naming::Name,
    trigger::Trigger,
};

/// A snapshot as the lineage shows it. Deleted ones stay while something hangs on them, so that a
/// tree never falls apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LineageNode {
    pub id: SnapshotId,
    pub parent: Option<SnapshotId>,
    pub name: Name,
    pub sandbox: SandboxId,
    pub sandbox_name: Option<Name>,
    pub kind: SnapshotKind,
    pub trigger: Trigger,
    pub description: Option<String>,
    pub own_bytes: u64,
    pub created: Timestamp,
    pub deleted: bool,
}

/// One line of a drawn tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LineageRow {
    pub node: LineageNode,
    pub depth: usize,
    /// The last child of its parent: the line that leads down to it ends here.
    pub last: bool,
}

/// Puts nodes in the order in which a tree is drawn: each parent before its children, siblings in
/// the order given. A node whose parent is not there is a root.
#[must_use]
pub fn rows(nodes: Vec<LineageNode>) -> Vec<LineageRow> {
    let position: BTreeMap<SnapshotId, usize> =
        nodes.iter().enumerate().map(|(at, node)| (node.id, at)).collect();
    let mut children: BTreeMap<Option<usize>, Vec<usize>> = BTreeMap::new();
    for (at, node) in nodes.iter().enumerate() {
        // A parent always comes first; whatever a damaged catalog says, no cycle gets in.
        let parent = node.parent.and_then(|id| position.get(&id).copied()).filter(|&p| p < at);
        children.entry(parent).or_default().push(at);
    }

    let mut last = vec![false; nodes.len()];
    for at in children.values().filter_map(|siblings| siblings.last()) {
        last[*at] = true;
    }

    let mut nodes: Vec<Option<LineageNode>> = nodes.into_iter().map(Some).collect();
    let mut rows = Vec::with_capacity(nodes.len());
    // A stack and not recursion: an agent's run is thousands of snapshots deep.
    let mut waiting = vec![(None, 0)];
    while let Some((at, depth)) = waiting.pop() {
        if let Some((node, at)) = at.and_then(|at: usize| Some((nodes[at].take()?, at))) {
            rows.push(LineageRow { node, depth: depth - 1, last: last[at] });
        }
        let below = children.remove(&at).unwrap_or_default();
        waiting.extend(below.into_iter().rev().map(|at| (Some(at), depth + 1)));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: u128, parent: Option<u128>) -> LineageNode {
        LineageNode {
            id: SnapshotId::from_u128(id),
            parent: parent.map(SnapshotId::from_u128),
            name: format!("n{id}").parse().unwrap(),
            sandbox: SandboxId::from_u128(0),
            sandbox_name: None,
            kind: SnapshotKind::Files,
            trigger: Trigger::Manual,
            description: None,
            own_bytes: 0,
            created: Timestamp::UNIX_EPOCH,
            deleted: false,
        }
    }

    fn draw(nodes: Vec<LineageNode>) -> Vec<(String, usize, bool)> {
        rows(nodes)
            .into_iter()
            .map(|row| (row.node.name.to_string(), row.depth, row.last))
            .collect()
    }

    fn row(name: &str, depth: usize, last: bool) -> (String, usize, bool) {
        (name.to_owned(), depth, last)
    }

    #[test]
    fn a_parent_comes_before_its_children() {
        let nodes = vec![
            node(1, None),
            node(2, Some(1)),
            node(3, None),
            node(4, Some(1)),
            node(5, Some(2)),
        ];
        assert_eq!(
            draw(nodes),
            [
                row("n1", 0, false),
                row("n2", 1, false),
                row("n5", 2, true),
                row("n4", 1, true),
                row("n3", 0, true)
            ]
        );
    }

    #[test]
    fn a_missing_parent_makes_a_root_and_a_cycle_does_not_hang() {
        assert_eq!(draw(vec![node(2, Some(1))]), [row("n2", 0, true)]);
        assert_eq!(draw(vec![node(1, Some(2)), node(2, Some(1))]).len(), 2);
    }

    #[test]
    fn a_deep_chain_is_no_deep_stack() {
        let nodes = (0..50_000).map(|id| node(id, id.checked_sub(1))).collect();
        assert_eq!(draw(nodes).last().unwrap().1, 49_999);
    }
}
