//! `doctor`: what this machine can do.

use std::path::Path;

use forkpoint_backends::driver::local::{Check, Verdict, examine};
use serde::Serialize;

use super::{Exit, Outcome};
use crate::{
    output::{Output, human::clean},
    wire,
};

/// The exit code of what this machine cannot do.
const UNSUPPORTED: u8 = 5;

#[derive(Serialize)]
struct Report<'a> {
    driver: &'static str,
    works: bool,
    data_dir: String,
    checks: &'a [Check],
}

pub(crate) fn doctor(out: &Output, data: &Path) -> Outcome {
    let checks = examine(&wire::local(data));
    let works = checks.iter().all(|check| check.verdict != Verdict::No);
    if out.json {
        let data_dir = data.display().to_string();
        out.json(&Report { driver: wire::DEFAULT_DRIVER, works, data_dir, checks: &checks })?;
    } else {
        out.text(&lines(out, data, &checks, works).join("\n"))?;
    }
    Ok(if works { Exit::DONE } else { Exit(UNSUPPORTED) })
}

fn lines(out: &Output, data: &Path, checks: &[Check], works: bool) -> Vec<String> {
    let wide = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut lines = vec![
        format!("driver {}, data in {}", wire::DEFAULT_DRIVER, clean(&data.display().to_string())),
        String::new(),
    ];
    for check in checks {
        let name = format!("{:wide$}", check.name);
        lines.push(format!("  {}  {name}  {}", mark(out, check.verdict), clean(&check.detail)));
        if let Some(way_out) = &check.way_out {
            let indent = " ".repeat(wide + 13);
            lines.push(format!("{indent}{}", out.paint.cyan(&clean(way_out))));
        }
    }
    lines.push(String::new());
    lines.push(match works {
        true => out.paint.green("this machine can run sandboxes"),
        false => out.paint.red("this machine cannot run sandboxes yet: see each \"no\" above"),
    });
    lines
}

fn mark(out: &Output, verdict: Verdict) -> String {
    match verdict {
        Verdict::Yes => out.paint.green("yes    "),
        Verdict::Limited => out.paint.yellow("limited"),
        Verdict::No => out.paint.red("no     "),
    }
}
