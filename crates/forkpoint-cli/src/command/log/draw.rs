//! The tree as text.

use std::collections::BTreeMap;

use forkpoint_core::{
    Timestamp,
    driver::SnapshotKind,
    id::SnapshotId,
    lineage::{LineageNode, LineageRow},
    trigger::Trigger,
};

use super::Stands;
use crate::output::{
    Output,
    human::{age, clean, columns, cut, size},
};

/// A branch is drawn no further to the right than this: deeper ones share the column.
const DEEPEST: usize = 24;

/// Where the facts stand at the latest, however long the names are.
const WIDEST: usize = 60;

/// Sandboxes that are named at their snapshot; of the others, how many.
const NAMED: usize = 4;

/// One line for each snapshot, and an empty one between two trees. A chain goes straight down; only
/// a branch goes to the right.
pub(in crate::command) fn draw(
    rows: &[LineageRow],
    stands: &Stands,
    out: &Output,
    now: Timestamp,
) -> Vec<String> {
    let rails = rails(rows);
    let labels = rows.iter().zip(&rails).map(|(row, rail)| columns(&label(row, rail)));
    let widest = labels.max().unwrap_or(0).min(WIDEST);
    let mut lines = Vec::with_capacity(rows.len());
    for (row, rail) in rows.iter().zip(&rails) {
        if row.depth == 0 && !lines.is_empty() {
            lines.push(String::new());
        }
        lines.push(line(row, rail, &marks(stands, row.node.id), (widest, now), out));
    }
    lines
}

fn line(
    row: &LineageRow,
    rail: &str,
    here: &str,
    (widest, now): (usize, Timestamp),
    out: &Output,
) -> String {
    let (node, paint) = (&row.node, out.paint);
    let pad = " ".repeat(widest.saturating_sub(columns(&label(row, rail))));
    // Nobody has counted what was not synced.
    let own = if node.own_bytes == 0 { "-".to_owned() } else { size(node.own_bytes) };
    let facts = format!("{:>8}  {:>4}", own, age(node.created, now));
    let before = columns(&label(row, rail)) + pad.len() + columns(&facts) + columns(here) + 6;
    let text = said(node);
    let text = match out.width {
        Some(width) => cut(&text, width.saturating_sub(before)),
        None => text,
    };
    let name = node.name.to_string();
    let name = if node.deleted { paint.dim(&name) } else { paint.bold(&name) };
    let (rail, facts, here) = (paint.dim(rail), paint.dim(&facts), paint.green(here));
    let gap = if text.is_empty() || here.is_empty() { "" } else { "  " };
    let line = format!("{rail}{name}{}{pad}  {facts}  {text}{gap}{here}", gone(row));
    line.trim_end().to_owned()
}

/// Why it was taken, where that is not simply that somebody asked for it, and what was said of it.
fn said(node: &LineageNode) -> String {
    let description = node.description.as_deref().map(clean).unwrap_or_default();
    match (node.trigger, description.is_empty()) {
        (Trigger::Manual, _) => description,
        (trigger, true) => format!("[{trigger}]"),
        (trigger, false) => format!("[{trigger}] {description}"),
    }
}

fn label(row: &LineageRow, rail: &str) -> String {
    format!("{rail}{}{}", row.node.name, gone(row))
}

fn gone(row: &LineageRow) -> &'static str {
    if row.node.deleted { " (deleted)" } else { "" }
}

fn marks(stands: &Stands, id: SnapshotId) -> String {
    let here = stands.get(&id).map(Vec::as_slice).unwrap_or_default();
    let names: Vec<&str> = here.iter().take(NAMED).map(|(_, name)| name.as_str()).collect();
    match here.len() {
        0 => String::new(),
        count if count > NAMED => format!("◀ {} and {} more", names.join(", "), count - NAMED),
        _ => format!("◀ {}", names.join(", ")),
    }
}

/// What is drawn in front of each row. An only child stays in its parent's column, so that a run
/// of a thousand snapshots is a line and no staircase.
fn rails(rows: &[LineageRow]) -> Vec<String> {
    let mut children: BTreeMap<SnapshotId, usize> = BTreeMap::new();
    for parent in rows.iter().filter_map(|row| row.node.parent) {
        *children.entry(parent).or_default() += 1;
    }
    // By depth in the tree: the rail that the children of the last row there are drawn behind.
    let mut below: Vec<String> = Vec::new();
    let mut rails = Vec::with_capacity(rows.len());
    for row in rows {
        below.truncate(row.depth);
        let parent = below.last().cloned();
        let siblings = row.node.parent.and_then(|id| children.get(&id)).copied().unwrap_or(1);
        let dot = dot(row.node.kind);
        let (rail, next) = match parent {
            None => (format!("{dot} "), String::new()),
            Some(before) if siblings == 1 || before.chars().count() / 3 >= DEEPEST => {
                (format!("{before}{dot} "), before)
            }
            Some(before) if row.last => (format!("{before}└─{dot} "), format!("{before}   ")),
            Some(before) => (format!("{before}├─{dot} "), format!("{before}│  ")),
        };
        rails.push(rail);
        below.push(next);
    }
    rails
}

/// A full snapshot differs in shape, which no narrow terminal cuts off.
fn dot(kind: SnapshotKind) -> char {
    match kind {
        SnapshotKind::Files => '●',
        SnapshotKind::Full => '◆',
    }
}

#[cfg(test)]
mod tests {
    use forkpoint_core::{id::SandboxId, lineage::rows};

    use super::*;
    use crate::output::paint::Paint;

    fn out(width: Option<usize>) -> Output {
        let paint = Paint::default();
        Output {
            json: false,
            quiet: false,
            verbose: false,
            progress: false,
            paint,
            paint_err: paint,
            width,
        }
    }

    fn node(id: u128, parent: Option<u128>, text: &str) -> LineageNode {
        LineageNode {
            id: SnapshotId::from_u128(id),
            parent: parent.map(SnapshotId::from_u128),
            name: format!("s{id}").parse().unwrap(),
            sandbox: SandboxId::from_u128(0),
            sandbox_name: None,
            kind: if [4, 5, 7].contains(&id) { SnapshotKind::Full } else { SnapshotKind::Files },
            trigger: Trigger::Manual,
            description: Some(text.to_owned()),
            own_bytes: 2048,
            created: Timestamp::UNIX_EPOCH,
            deleted: id == 3,
        }
    }

    fn tree(width: Option<usize>) -> String {
        let nodes = vec![
            node(1, None, "the first"),
            node(2, Some(1), "straight on"),
            node(3, Some(2), "a branch\n"),
            node(4, Some(2), ""),
            node(5, Some(3), "below the branch, with a text that goes on for quite a while"),
            node(6, Some(4), ""),
            node(7, None, "another tree"),
        ];
        let name = |text: &str| (SandboxId::from_u128(9), text.to_owned());
        let stands = Stands::from([(SnapshotId::from_u128(5), vec![name("web"), name("try-1")])]);
        draw(&rows(nodes), &stands, &out(width), Timestamp::UNIX_EPOCH).join("\n")
    }

    #[test]
    fn why_it_was_taken_stands_before_what_was_said() {
        let taken = |trigger, text| said(&LineageNode { trigger, ..node(1, None, text) });
        assert_eq!(taken(Trigger::Manual, "mine"), "mine");
        assert_eq!(taken(Trigger::OnError, "it broke"), "[on_error] it broke");
        assert_eq!(taken(Trigger::RunEnd, ""), "[run_end]");
    }

    #[test]
    fn a_chain_is_a_line_a_fork_is_a_branch_and_a_full_one_has_another_shape() {
        insta::assert_snapshot!(tree(None), @r"
        ● s1               2.0 KiB   now  the first
        ● s2               2.0 KiB   now  straight on
        ├─● s3 (deleted)   2.0 KiB   now  a branch\n
        │  ◆ s5            2.0 KiB   now  below the branch, with a text that goes on for quite a while  ◀ web, try-1
        └─◆ s4             2.0 KiB   now
           ● s6            2.0 KiB   now

        ◆ s7               2.0 KiB   now  another tree
        ");
    }

    #[test]
    fn a_narrow_terminal_cuts_the_text_and_keeps_the_marks() {
        let drawn = tree(Some(70));
        assert!(drawn.lines().all(|line| columns(line) <= 70), "{drawn}");
        assert!(drawn.contains("◀ web, try-1"), "{drawn}");
    }

    #[test]
    fn a_long_run_is_drawn_straight_down() {
        let nodes = (1..2000).map(|id| node(id, (id > 1).then(|| id - 1), "")).collect();
        assert!(rails(&rows(nodes)).iter().all(|rail| ["● ", "◆ "].contains(&rail.as_str())));
    }
}
