//! Tables that fit the terminal. In a pipe nothing is cut.

use super::{
    human::{clean, columns, cut},
    paint::Paint,
};

const GAP: usize = 2;

/// No column gets narrower than this or than its title, whatever the terminal.
const LEAST: usize = 6;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Column {
    /// As wide as what is in it.
    Whole(&'static str),
    /// Gives way when the line gets too long.
    Shrinks(&'static str),
    /// Numbers, to the right.
    Number(&'static str),
}

impl Column {
    fn title(self) -> &'static str {
        match self {
            Self::Whole(title) | Self::Shrinks(title) | Self::Number(title) => title,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(columns: impl IntoIterator<Item = Column>) -> Self {
        Self { columns: columns.into_iter().collect(), rows: Vec::new() }
    }

    pub(crate) fn add(&mut self, row: impl IntoIterator<Item = String>) {
        self.rows.push(row.into_iter().map(|cell| clean(&cell)).collect());
    }

    /// Lines without a break at the end. `tint` colours a cell by its column and text.
    pub(crate) fn render(
        &self,
        width: Option<usize>,
        paint: Paint,
        tint: impl Fn(&'static str, &str) -> Option<String>,
    ) -> String {
        let widths = self.widths(width);
        let titles: Vec<String> =
            self.columns.iter().map(|column| column.title().to_owned()).collect();
        let head = self.line(&titles, &widths, |_, text| Some(paint.dim(text)));
        let body = self.rows.iter().map(|row| self.line(row, &widths, &tint));
        [head].into_iter().chain(body).collect::<Vec<_>>().join("\n")
    }

    fn line(
        &self,
        cells: &[String],
        widths: &[usize],
        tint: impl Fn(&'static str, &str) -> Option<String>,
    ) -> String {
        let mut line = String::new();
        let last = self.columns.len().saturating_sub(1);
        for (at, (column, cell)) in self.columns.iter().zip(cells).enumerate() {
            let text = cut(cell, widths[at]);
            let pad = " ".repeat(widths[at].saturating_sub(columns(&text)));
            let shown = tint(column.title(), &text).unwrap_or(text);
            match column {
                Column::Number(_) => line.extend([pad.as_str(), &shown]),
                _ if at == last => line.push_str(&shown),
                _ => line.extend([shown.as_str(), &pad]),
            }
            if at != last {
                line.push_str(&" ".repeat(GAP));
            }
        }
        line.truncate(line.trim_end().len());
        line
    }

    /// What each column would like, less what does not fit. The last gives way first: in front
    /// stand the names that people copy.
    fn widths(&self, room: Option<usize>) -> Vec<usize> {
        let mut widths: Vec<usize> = (0..self.columns.len())
            .map(|at| {
                let cells = self.rows.iter().map(|row| columns(&row[at]));
                cells.chain([columns(self.columns[at].title())]).max().unwrap_or(0)
            })
            .collect();
        let gaps = GAP * widths.len().saturating_sub(1);
        let mut over = match room {
            Some(room) => (widths.iter().sum::<usize>() + gaps).saturating_sub(room),
            None => 0,
        };
        for (column, width) in self.columns.iter().zip(&mut widths).rev() {
            if let Column::Shrinks(title) = column {
                let least = LEAST.max(title.len()).min(*width);
                let given = over.min(*width - least);
                *width -= given;
                over -= given;
            }
        }
        widths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new([
            Column::Shrinks("NAME"),
            Column::Whole("STATE"),
            Column::Number("SIZE"),
            Column::Shrinks("TEXT"),
        ]);
        let row = |cells: [&str; 4]| cells.map(str::to_owned);
        table.add(row(["web", "running", "12 KiB", "short"]));
        table.add(row(["a-rather-long-name", "paused", "3 B", "a text that goes on\nand on"]));
        table
    }

    fn render(width: Option<usize>) -> String {
        table().render(width, Paint::default(), |_, _| None)
    }

    #[test]
    fn in_a_pipe_nothing_is_cut() {
        insta::assert_snapshot!(render(None), @r"
        NAME                STATE      SIZE  TEXT
        web                 running  12 KiB  short
        a-rather-long-name  paused      3 B  a text that goes on\nand on
        ");
    }

    #[test]
    fn the_last_gives_way_first() {
        insta::assert_snapshot!(render(Some(50)), @r"
        NAME                STATE      SIZE  TEXT
        web                 running  12 KiB  short
        a-rather-long-name  paused      3 B  a text that …
        ");
        assert!(render(Some(50)).lines().all(|line| columns(line) <= 50));
    }

    #[test]
    fn a_terminal_that_is_too_narrow_is_no_reason_to_hang() {
        assert!(render(Some(3)).starts_with("NAME"));
    }
}
