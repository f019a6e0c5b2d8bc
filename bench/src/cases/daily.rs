//! What a person waits for every day: the program itself, a workspace, what changed in it, bringing it home.

use std::{fs, path::Path, process::Command};

use forkpoint_backends::catalog::SqliteCatalog;
use forkpoint_testkit::conformance::catalog::scene::Hand;

use super::{
    Bench,
    command_line::{CommandLine, NOT_THERE},
};
use crate::{
    figures::{Row, Samples, Unit, timed},
    peers::output,
    seed,
};

const SNAPSHOTS: u64 = 10_000;
const DIRECTORIES: usize = 1_000;
const CHANGED: usize = 10;

const ENTER: &str = "enter a workspace of 100,000 files: `forkpoint create --workspace`";
const STAT: &str = "`forkpoint diff --stat` after ten of them changed";
const APPLY: &str = "`forkpoint apply` of ten files";

pub(super) fn version(bench: &Bench<'_>) -> Vec<Row> {
    let what = "start of the program: `forkpoint --version`";
    let directory = bench.ground.directory();
    let Some(cli) = CommandLine::find(bench, directory.path()) else {
        return vec![Row::missing(what, NOT_THERE)];
    };
    let (mut ours, mut least) = (Samples::default(), Samples::default());
    for _ in 0..bench.rounds(60, 5) {
        match cli.call(&["--version"]) {
            Ok((time, _)) => ours.add(time),
            Err(err) => return vec![Row::missing(what, err)],
        }
        least.add(timed(|| output(&mut Command::new("true"))).0);
    }
    vec![Row::new(what, Unit::Milliseconds, ours).at_most(5.0).with("`true`", least)]
}

pub(super) fn log(bench: &Bench<'_>) -> Vec<Row> {
    let what = format!("`forkpoint log` of {SNAPSHOTS} snapshots");
    let directory = bench.ground.directory();
    let Some(cli) = CommandLine::find(bench, directory.path()) else {
        return vec![Row::missing(what, NOT_THERE)];
    };
    fs::create_dir_all(&cli.data).unwrap();
    let catalog = SqliteCatalog::open(cli.data.join("catalog.db")).unwrap();
    seed::fill(
        &Hand(std::sync::Arc::new(catalog)),
        if bench.options.quick { 500 } else { SNAPSHOTS },
    );
    let mut ours = Samples::default();
    for _ in 0..bench.rounds(10, 2) {
        match cli.call(&["log"]) {
            Ok((time, _)) => ours.add(time),
            Err(err) => return vec![Row::missing(what, err)],
        }
    }
    vec![Row::new(what, Unit::Milliseconds, ours).at_most(200.0)]
}

pub(super) fn workspace(bench: &Bench<'_>) -> Vec<Row> {
    let directory = bench.ground.directory();
    let Some(cli) = CommandLine::find(bench, directory.path()) else {
        return [ENTER, STAT, APPLY].map(|what| Row::missing(what, NOT_THERE)).into();
    };
    let project = directory.path().join("project");
    make_project(&project, if bench.options.quick { 10 } else { DIRECTORIES });
    let rows = measure(bench, &cli, &project);
    rows.unwrap_or_else(|err| vec![Row::missing(ENTER, err)])
}

fn make_project(at: &Path, directories: usize) {
    for number in 0..directories {
        let directory = at.join(format!("d{number:04}"));
        fs::create_dir_all(&directory).unwrap();
        for file in 0..100 {
            fs::write(directory.join(format!("f{file:02}.txt")), format!("{number} {file}\n"))
                .unwrap();
        }
    }
}

fn measure(bench: &Bench<'_>, cli: &CommandLine, project: &Path) -> Result<Vec<Row>, String> {
    let source = project.to_str().unwrap_or_default();
    let create = || cli.call(&["create", "--workspace", source]);
    let (mut enter, mut stat, mut apply) =
        (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..bench.rounds(20, 2) {
        let (time, id) = create()?;
        enter.add(time);
        cli.call(&["rm", "--force", &id])?;
    }
    let (_, id) = create()?;
    for round in 0..bench.rounds(20, 2) {
        let script = format!(
            "for n in $(seq 0 {}); do echo {round} >> /workspace/d000$n/f00.txt; done",
            CHANGED - 1
        );
        cli.call(&["exec", &id, "--", "sh", "-c", &script])?;
        stat.add(cli.call(&["diff", "--stat", &id])?.0);
        apply.add(cli.call(&["apply", &id])?.0);
    }
    cli.call(&["rm", "--force", &id])?;
    let copy = project.with_extension("copy");
    let (copied, _) = timed(|| output(Command::new("cp").arg("-a").arg(project).arg(copy)));
    let git = |arguments: &[&str]| {
        let (time, answer) =
            timed(|| output(Command::new("git").arg("-C").arg(project).args(arguments)));
        answer.map(|_| time).map_err(|err| err.to_string())
    };
    let row = |what: &str, samples, most| Row::new(what, Unit::Milliseconds, samples).at_most(most);
    let compared = row(STAT, stat, 30.0);
    let compared = match git_diff(&git, project) {
        Ok(samples) => compared.beside("`git diff --stat` of the same", samples),
        Err(why) => compared.beside_missing("`git diff --stat`", why),
    };
    Ok(vec![
        row(ENTER, enter, 20.0).beside("`cp -a` of it", Samples::from_iter([copied])),
        compared,
        row(APPLY, apply, 50.0),
    ])
}

fn git_diff(
    git: &impl Fn(&[&str]) -> Result<std::time::Duration, String>,
    project: &Path,
) -> Result<Samples, String> {
    git(&["init", "-q"])?;
    git(&["add", "."])?;
    for number in 0..CHANGED {
        fs::write(project.join(format!("d000{number}/f00.txt")), "changed\n")
            .map_err(|err| err.to_string())?;
    }
    (0..5).map(|_| git(&["diff", "--stat"])).collect()
}
