//! `--stat`: how much changed in each file, as git tells it.

use std::{io::Write, path::Path};

use forkpoint_core::{
    driver::{ChangeKind, FileChange, FileKind},
    engine::Comparison,
};

use super::{
    Failed,
    content::{Content, compare, count},
};
use crate::{
    app::App,
    output::{
        human::{columns, cut},
        quote::quote,
    },
};

/// Of a line where nobody says how wide the terminal is.
const WIDTH: usize = 80;

/// A bar is no longer than this.
const BAR_MAX: usize = 50;

enum Amount {
    Lines { added: usize, removed: usize },
    Bytes { before: u64, after: u64 },
}

pub(super) async fn print(
    app: &App,
    found: &Comparison,
    to: &mut impl Write,
) -> Result<(), Failed> {
    let mut rows = Vec::new();
    for change in found.diff.changes.iter().filter(|change| is_told(change)) {
        rows.push((title(change), amount(found, change).await?));
    }
    if rows.is_empty() {
        return Ok(());
    }
    let room = app.out.width.unwrap_or(WIDTH).max(40);
    let names = rows.iter().map(|(name, _)| columns(name)).max().unwrap_or(0).min(room * 6 / 10);
    let number = |amount: &Amount| match amount {
        Amount::Lines { added, removed } => (added + removed).to_string(),
        Amount::Bytes { .. } => "Bin".to_owned(),
    };
    let wide = rows.iter().map(|(_, amount)| number(amount).len()).max().unwrap_or(0);
    let bar_room = room.saturating_sub(names + wide + 5).clamp(5, BAR_MAX);
    let most = rows.iter().map(|(_, amount)| total(amount)).max().unwrap_or(0);
    for (name, amount) in &rows {
        let pad = " ".repeat(names.saturating_sub(columns(name)));
        let bar = bar(app, amount, most, bar_room);
        let line = format!(" {}{pad} | {:>wide$} {bar}", cut(name, names), number(amount));
        writeln!(to, "{}", line.trim_end())?;
    }
    writeln!(to, " {}", summary(&rows))?;
    Ok(())
}

/// Directories are told by what is in them.
fn is_told(change: &FileChange) -> bool {
    let is_directory =
        |facts: &forkpoint_core::driver::FileFacts| facts.kind == FileKind::Directory;
    !change.before.iter().chain(&change.after).all(is_directory)
}

fn title(change: &FileChange) -> String {
    let name = |path: &Path| quote(path);
    match &change.kind {
        ChangeKind::Renamed { from } => format!("{} => {}", name(from), name(&change.path)),
        _ => name(&change.path),
    }
}

async fn amount(found: &Comparison, change: &FileChange) -> Result<Amount, Failed> {
    if matches!(change.kind, ChangeKind::Renamed { .. } | ChangeKind::Attributes) {
        return Ok(Amount::Lines { added: 0, removed: 0 });
    }
    let before = Content::read(&found.from, &change.path, change.before.as_ref()).await?;
    let after = Content::read(&found.to, &change.path, change.after.as_ref()).await?;
    Ok(match (before.lines(), after.lines()) {
        (Some(old), Some(new)) => {
            let (added, removed) = count(&compare(&old, &new));
            Amount::Lines { added, removed }
        }
        _ => Amount::Bytes { before: before.len_bytes(), after: after.len_bytes() },
    })
}

fn total(amount: &Amount) -> usize {
    match amount {
        Amount::Lines { added, removed } => added + removed,
        Amount::Bytes { .. } => 0,
    }
}

fn bar(app: &App, amount: &Amount, most: usize, room: usize) -> String {
    let paint = app.out.paint;
    let (added, removed) = match amount {
        Amount::Lines { added, removed } => (*added, *removed),
        Amount::Bytes { before, after } => return format!("{before} -> {after} bytes"),
    };
    let scaled = |count: usize| match most <= room {
        true => count,
        // Something that is there is seen.
        false => (count * room).div_ceil(most).min(room.saturating_sub(1)),
    };
    let (plus, minus) = ("+".repeat(scaled(added)), "-".repeat(scaled(removed)));
    format!("{}{}", paint.green(&plus), paint.red(&minus))
}

fn summary(rows: &[(String, Amount)]) -> String {
    let (mut added, mut removed) = (0, 0);
    for (_, amount) in rows {
        if let Amount::Lines { added: more, removed: less } = amount {
            added += more;
            removed += less;
        }
    }
    let count = |number: usize, one: &str, many: &str| match number {
        1 => format!("1 {one}"),
        number => format!("{number} {many}"),
    };
    let mut text = format!("{} changed", count(rows.len(), "file", "files"));
    if added > 0 || removed == 0 {
        text += &format!(", {}", count(added, "insertion(+)", "insertions(+)"));
    }
    if removed > 0 || added == 0 {
        text += &format!(", {}", count(removed, "deletion(-)", "deletions(-)"));
    }
    text
}
