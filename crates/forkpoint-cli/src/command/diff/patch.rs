//! `--patch`: a unified diff as git writes it, for `git apply` and `patch -p1`.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use forkpoint_core::{
    driver::{ChangeKind, FileChange, FileFacts, FileKind},
    engine::Comparison,
};
use similar::{ChangeTag, DiffOp};

use super::{
    Failed,
    content::{Content, compare},
};
use crate::{
    app::App,
    output::{paint::Paint, quote::quote},
};

/// Lines around a change.
const CONTEXT: usize = 3;

/// From where the paths in a patch are told: the directory that was asked for, if it was one.
pub(super) async fn root(found: &Comparison, under: &[PathBuf]) -> Result<PathBuf, Failed> {
    let [path] = under else { return Ok(PathBuf::from("/")) };
    let path = Path::new("/").join(path);
    for look in [&found.from, &found.to] {
        if let Some(spot) = look.find(&path).await?
            && spot.facts.kind == FileKind::Directory
        {
            return Ok(path);
        }
    }
    Ok(PathBuf::from("/"))
}

pub(super) async fn print(
    app: &App,
    found: &Comparison,
    root: &Path,
    to: &mut impl Write,
) -> Result<(), Failed> {
    let paint = app.out.paint;
    let mut silent = 0;
    for change in &found.diff.changes {
        let name = |path: &Path| path.strip_prefix(root).unwrap_or(path).to_owned();
        let change = Named { change, path: name(&change.path), name: &name };
        let mut told = Vec::new();
        change.write(found, paint, &mut told).await?;
        if told.is_empty() && !change.is_directory() {
            silent += 1;
        }
        to.write_all(&told)?;
    }
    if silent > 0 {
        let changes = if silent == 1 { "change" } else { "changes" };
        app.out.note(format!("{silent} {changes} cannot be told in a patch: `diff` lists all"));
    }
    Ok(())
}

struct Named<'a> {
    change: &'a FileChange,
    path: PathBuf,
    name: &'a (dyn Fn(&Path) -> PathBuf + Sync),
}

impl Named<'_> {
    /// Directories are not part of patches: what is in them is.
    fn is_directory(&self) -> bool {
        let sides = [self.change.before, self.change.after];
        sides.into_iter().flatten().all(|facts| facts.kind == FileKind::Directory)
    }

    async fn write(
        &self,
        found: &Comparison,
        paint: Paint,
        to: &mut Vec<u8>,
    ) -> Result<(), Failed> {
        let FileChange { kind, before, after, .. } = self.change;
        let before = before.as_ref().filter(|facts| git_mode(facts).is_some());
        let after = after.as_ref().filter(|facts| git_mode(facts).is_some());
        match kind {
            ChangeKind::Renamed { from } => self.rename(&(self.name)(from), paint, to)?,
            // What becomes another kind of thing is taken away and made anew; so is a link, or
            // `patch` would take it for the file that it points to.
            _ if matches!(kind, ChangeKind::Retyped) || is_link(before) && is_link(after) => {
                self.sides(found, before, None, paint, to).await?;
                self.sides(found, None, after, paint, to).await?;
            }
            _ => self.sides(found, before, after, paint, to).await?,
        }
        Ok(())
    }

    fn rename(&self, from: &Path, paint: Paint, to: &mut Vec<u8>) -> Result<(), Failed> {
        let mut lines = vec![head(from, &self.path)];
        lines.extend(self.modes());
        lines.push("similarity index 100%".to_owned());
        lines.push(format!("rename from {}", quote(from)));
        lines.push(format!("rename to {}", quote(&self.path)));
        bold(&lines, paint, to)
    }

    fn modes(&self) -> Vec<String> {
        let mode = |facts: Option<FileFacts>| facts.as_ref().and_then(git_mode);
        match (mode(self.change.before), mode(self.change.after)) {
            (Some(old), Some(new)) if old != new => {
                vec![format!("old mode {old}"), format!("new mode {new}")]
            }
            _ => Vec::new(),
        }
    }

    async fn sides(
        &self,
        found: &Comparison,
        before: Option<&FileFacts>,
        after: Option<&FileFacts>,
        paint: Paint,
        to: &mut Vec<u8>,
    ) -> Result<(), Failed> {
        let mut lines = vec![head(&self.path, &self.path)];
        match (before.and_then(git_mode), after.and_then(git_mode)) {
            (None, None) => return Ok(()),
            (None, Some(mode)) => lines.push(format!("new file mode {mode}")),
            (Some(mode), None) => lines.push(format!("deleted file mode {mode}")),
            (Some(_), Some(_)) => lines.extend(self.modes()),
        }
        let path = &self.change.path;
        let old = Content::read(&found.from, path, before).await?;
        let new = Content::read(&found.to, path, after).await?;
        let side = |letter: &str, content: &Content| match content {
            Content::Missing => "/dev/null".to_owned(),
            _ => quote(&Path::new(letter).join(&self.path)),
        };
        let (a, b) = (side("a", &old), side("b", &new));
        let (Some(old_lines), Some(new_lines)) = (old.lines(), new.lines()) else {
            // Without such a line git takes what follows for a part of this.
            lines.push("index 0000000..0000000".to_owned());
            lines.push(format!("Binary files {a} and {b} differ"));
            return bold(&lines, paint, to);
        };
        let ops = compare(&old_lines, &new_lines);
        let hunks = similar::group_diff_ops(ops, CONTEXT);
        let changes = hunks.iter().flatten().any(|op| !matches!(op, DiffOp::Equal { .. }));
        if changes {
            lines.push(format!("--- {}", tabbed(&a)));
            lines.push(format!("+++ {}", tabbed(&b)));
        } else if lines.len() == 1 {
            // Another mode or owner of which git knows nothing.
            return Ok(());
        }
        bold(&lines, paint, to)?;
        for hunk in hunks.iter().filter(|_| changes) {
            write_hunk(hunk, &old_lines, &new_lines, paint, to)?;
        }
        Ok(())
    }
}

fn head(from: &Path, to: &Path) -> String {
    let side = |letter: &str, path: &Path| quote(&Path::new(letter).join(path));
    format!("diff --git {} {}", side("a", from), side("b", to))
}

/// A name with a space ends at a tab, or `patch` would take what follows for a time.
fn tabbed(name: &str) -> String {
    if name.contains(' ') && !name.starts_with('"') { format!("{name}\t") } else { name.to_owned() }
}

fn bold(lines: &[String], paint: Paint, to: &mut Vec<u8>) -> Result<(), Failed> {
    for line in lines {
        writeln!(to, "{}", paint.bold(line))?;
    }
    Ok(())
}

fn is_link(facts: Option<&FileFacts>) -> bool {
    facts.is_some_and(|facts| facts.kind == FileKind::Symlink)
}

/// All that git knows of a mode; `None` for what it does not keep.
fn git_mode(facts: &FileFacts) -> Option<&'static str> {
    match facts.kind {
        FileKind::File if facts.mode & 0o100 != 0 => Some("100755"),
        FileKind::File => Some("100644"),
        FileKind::Symlink => Some("120000"),
        _ => None,
    }
}

fn write_hunk(
    hunk: &[DiffOp],
    old: &[&[u8]],
    new: &[&[u8]],
    paint: Paint,
    to: &mut Vec<u8>,
) -> Result<(), Failed> {
    let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else { return Ok(()) };
    let range = |start: usize, end: usize| match end - start {
        0 => format!("{start},0"),
        1 => format!("{}", start + 1),
        len => format!("{},{len}", start + 1),
    };
    let a = range(first.old_range().start, last.old_range().end);
    let b = range(first.new_range().start, last.new_range().end);
    writeln!(to, "{}", paint.cyan(&format!("@@ -{a} +{b} @@")))?;
    for change in hunk.iter().flat_map(|op| op.iter_changes(old, new)) {
        let line: &[u8] = change.value();
        let (sign, code) = match change.tag() {
            ChangeTag::Equal => (b' ', None),
            ChangeTag::Delete => (b'-', Some(Paint::RED)),
            ChangeTag::Insert => (b'+', Some(Paint::GREEN)),
        };
        let text = line.strip_suffix(b"\n").unwrap_or(line);
        to.write_all(&paint.bytes(code, &[&[sign], text].concat()))?;
        to.write_all(b"\n")?;
        if !line.ends_with(b"\n") {
            to.write_all(b"\\ No newline at end of file\n")?;
        }
    }
    Ok(())
}
