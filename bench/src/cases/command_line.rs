//! What a process of our own for every command adds to the work.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use super::Bench;
use crate::{
    figures::{Row, Samples, Unit, timed},
    peers::output,
    product::Limits,
};

const TARGET_MS: f64 = 5.0;
const COUNT: usize = 6;
const VERBS: [&str; COUNT] = ["create", "exec", "snapshot --no-sync", "rollback", "fork", "rm"];

pub(super) fn added(bench: &Bench<'_>) -> Vec<Row> {
    let what = |verb: &str| format!("added by a process: `forkpoint {verb}`");
    let directory = bench.ground.directory();
    let Some(cli) = CommandLine::find(bench, directory.path()) else {
        return VERBS.map(|verb| Row::missing(what(verb), NOT_THERE)).into();
    };
    // For the first time, so that what is made once is made.
    if let Err(err) = cli.round() {
        return VERBS.map(|verb| Row::missing(what(verb), err.clone())).into();
    }
    let product = bench.product();
    let mut ours = [const { Samples(Vec::new()) }; COUNT];
    let mut whole = [const { Samples(Vec::new()) }; COUNT];
    for _ in 0..bench.rounds(30, 3) {
        let (create, id) = product.create(Limits::None);
        let exec = product.exec(&id);
        let (snapshot, kept) = product.snapshot(&id, false);
        let rollback = product.rollback(&id);
        let (fork, copies) = product.fork(&kept, 1);
        for copy in &copies {
            product.destroy(copy);
        }
        let inside = [create, exec, snapshot, rollback, fork, product.destroy(&id)];
        ours.iter_mut().zip(inside).for_each(|(samples, time)| samples.add(time));
        match cli.round() {
            Ok(times) => {
                whole.iter_mut().zip(times).for_each(|(samples, time)| samples.add(time));
            }
            Err(err) => return VERBS.map(|verb| Row::missing(what(verb), err.clone())).into(),
        }
    }
    let rows = VERBS.iter().zip(ours).zip(whole);
    rows.map(|((verb, ours), whole)| {
        let row = Row::new(what(verb), Unit::Milliseconds, whole.above(ours.median()));
        row.at_most(TARGET_MS).with("all of it", whole).with("without a process", ours)
    })
    .collect()
}

pub(super) const NOT_THERE: &str =
    "the program `forkpoint` is not there: `cargo build --release -p forkpoint-cli` makes it";

/// The program, on a data directory of its own.
pub(super) struct CommandLine {
    program: PathBuf,
    pub(super) data: PathBuf,
}

impl CommandLine {
    /// Where we were told, else beside ourselves.
    pub(super) fn find(bench: &Bench<'_>, directory: &Path) -> Option<Self> {
        let beside = || Some(env::current_exe().ok()?.with_file_name("forkpoint"));
        let program = bench.options.cli.clone().or_else(beside).filter(|path| path.is_file())?;
        Some(Self { program, data: directory.join("data") })
    }

    pub(super) fn call(&self, arguments: &[&str]) -> Result<(Duration, String), String> {
        let mut command = Command::new(&self.program);
        command.arg("--data-dir").arg(&self.data).args(arguments);
        let (time, answer) = timed(|| output(&mut command));
        let verb = arguments[0];
        answer.map(|answer| (time, answer)).map_err(|err| format!("`{verb}` failed: {err}"))
    }

    /// One of each, in the order of [`VERBS`].
    fn round(&self) -> Result<[Duration; COUNT], String> {
        let (create, id) = self.call(&["create"])?;
        let times = || {
            let (exec, _) = self.call(&["exec", &id, "--", "true"])?;
            let (snapshot, kept) = self.call(&["snapshot", "--no-sync", &id])?;
            let (rollback, _) = self.call(&["rollback", &id])?;
            let (fork, copy) = self.call(&["fork", &kept])?;
            self.call(&["rm", "--force", &copy])?;
            Ok([create, exec, snapshot, rollback, fork])
        };
        let times: Result<[Duration; COUNT - 1], String> = times();
        let (rm, _) = self.call(&["rm", "--force", &id])?;
        let [create, exec, snapshot, rollback, fork] = times?;
        Ok([create, exec, snapshot, rollback, fork, rm])
    }
}
