//! What a sandbox that does nothing occupies.

use std::fs;

use super::Bench;
use crate::{
    figures::{Row, Samples, Unit},
    product::Limits,
};

pub(super) fn idle(bench: &Bench<'_>) -> Vec<Row> {
    let product = bench.product();
    let count = bench.rounds(50, 5);
    let before = slab();
    let ids: Vec<_> = (0..count).map(|_| product.create(Limits::None).1).collect();
    let slab = (slab() - before) / count as f64;
    let (mut private, mut proportional) = (Samples::default(), Samples::default());
    for id in &ids {
        let path = format!("/proc/{}/smaps_rollup", product.init(id));
        let Ok(text) = fs::read_to_string(path) else { continue };
        private.0.push(field(&text, "Private_Clean:") + field(&text, "Private_Dirty:"));
        proportional.0.push(field(&text, "Pss:"));
    }
    let row = Row::new("memory of an idle sandbox, private", Unit::Kibibytes, private);
    let what = "kernel memory of an idle sandbox (slab, estimate)";
    vec![
        row.at_most(1024.0).with("PSS", proportional),
        Row::new(what, Unit::Kibibytes, Samples(vec![slab])),
    ]
}

fn slab() -> f64 {
    field(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), "Slab:")
}

/// In KiB; 0 when there is none.
fn field(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0.0)
}
