//! `doctor`: what this machine can do.

use std::path::Path;

use forkpoint_backends::driver::{
    docker,
    local::{Check, LocalConfig, Verdict, examine},
};
use serde::Serialize;

use super::{Exit, Outcome};
use crate::{
    config::Config,
    output::{Output, human::clean},
    wire,
};

/// The exit code of what this machine cannot do.
const UNSUPPORTED: u8 = 5;

#[derive(Serialize)]
struct Report<'a> {
    driver: &'a str,
    works: bool,
    data_dir: String,
    /// Of driver `local`.
    checks: &'a [Check],
    docker: &'a Section,
}

/// What there is to say of a driver.
#[derive(Serialize)]
struct Section {
    works: bool,
    checks: Vec<Check>,
}

impl Section {
    fn new(checks: Vec<Check>) -> Self {
        let works = checks.iter().all(|check| check.verdict != Verdict::No);
        Self { works, checks }
    }
}

pub(crate) async fn doctor(out: &Output, config: &Config, data: &Path) -> Outcome {
    let warm = config.settings.warm;
    let local = Section::new(examine(&LocalConfig { warm, ..wire::local(data) }));
    let docker = Section::new(containers(data).await);
    let driver = config.driver(None);
    let works = if driver == wire::DOCKER { docker.works } else { local.works };
    if out.json {
        let data_dir = data.display().to_string();
        let (checks, docker) = (&local.checks[..], &docker);
        out.json(&Report { driver, works, data_dir, checks, docker })?;
    } else {
        out.text(&lines(out, data, &local, &docker).join("\n"))?;
    }
    Ok(if works { Exit::DONE } else { Exit(UNSUPPORTED) })
}

async fn containers(data: &Path) -> Vec<Check> {
    match wire::docker(data) {
        Ok(config) => docker::examine(&config).await,
        Err(err) => vec![Check {
            name: "engine",
            verdict: Verdict::No,
            detail: err.chain().to_string(),
            way_out: Some("see DOCKER_HOST, DOCKER_CONTEXT and `docker context ls`".to_owned()),
        }],
    }
}

fn lines(out: &Output, data: &Path, local: &Section, docker: &Section) -> Vec<String> {
    let all = local.checks.iter().chain(&docker.checks);
    let wide = all.map(|check| check.name.len()).max().unwrap_or(0);
    let shown = clean(&data.display().to_string());
    let mut lines =
        vec![format!("driver {}, data in {shown}", wire::DEFAULT_DRIVER), String::new()];
    lines.extend(local.checks.iter().flat_map(|check| told(out, check, wide)));
    lines.push(String::new());
    lines.push(match local.works {
        true => out.paint.green("this machine can run sandboxes"),
        false => out.paint.red("this machine cannot run sandboxes yet: see each \"no\" above"),
    });
    lines.extend([String::new(), format!("driver {}", wire::DOCKER), String::new()]);
    lines.extend(docker.checks.iter().flat_map(|check| told(out, check, wide)));
    lines.push(String::new());
    lines.push(match docker.works {
        true => out.paint.green("containers can be snapshotted, restored and forked"),
        false => out.paint.yellow("containers of Docker are out of reach; nothing else needs them"),
    });
    lines
}

fn told(out: &Output, check: &Check, wide: usize) -> Vec<String> {
    let name = format!("{:wide$}", check.name);
    let line = format!("  {}  {name}  {}", mark(out, check.verdict), clean(&check.detail));
    let indent = " ".repeat(wide + 13);
    let way_out = check.way_out.as_ref();
    let way_out = way_out.map(|way_out| format!("{indent}{}", out.paint.cyan(&clean(way_out))));
    [line].into_iter().chain(way_out).collect()
}

fn mark(out: &Output, verdict: Verdict) -> String {
    match verdict {
        Verdict::Yes => out.paint.green("yes    "),
        Verdict::Limited => out.paint.yellow("limited"),
        Verdict::No => out.paint.red("no     "),
    }
}
