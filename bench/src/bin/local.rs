//! What the product costs on the embedded runtime, beside others in the same run.
//!
//! `cargo run --release -p forkpoint-bench --bin local` prints one table. As root it runs in
//! namespaces and on a file system of its own, and leaves nothing behind, however it ends. It takes
//! some minutes; the figures are worth something when nothing else runs on the machine.
//!
//! | option | |
//! |---|---|
//! | `--quick` | seconds: few rounds, nothing large, no peers |
//! | `--peers found\|start\|none` | others that answer (default); a Docker daemon of our own; none |
//! | `--cli PATH` | the `forkpoint` program; else the one beside this |
//! | `--dir DIR` | state there, instead of on a file system of our own |
//! | `--warm N` | with so many sandboxes kept ready; each round begins when all of them are |
//! | `--only WORD` | only the cases whose name holds it |
//! | `--json FILE` | all figures |
//!
//! Peers need `docker.io` (which brings `runc`) and, for small images, `busybox-static`.

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]

use std::{
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
};

use forkpoint_bench::{
    apart::{self, Ground},
    cases::{self, Bench},
    figures::{Row, table},
    options::Options,
    peers::Peers,
};
use serde_json::json;

fn main() -> ExitCode {
    forkpoint_backends::driver::local::run_if_asked();
    let options = match Options::parse(env::args().skip(1)) {
        Ok(options) => options,
        Err(err) => {
            eprintln!("{err}");
            return ExitCode::from(2);
        }
    };
    let apart = apart::go_apart();
    let ground = Ground::find(options.dir.as_deref(), apart);
    let machine = apart::machine();
    println!("{machine}; {}\n", ground.description);
    let rows = measure(&options, &ground);
    print!("{}", table(&rows));
    if let Some(path) = &options.json {
        let figures = json!({ "machine": machine, "place": ground.description, "rows": rows });
        fs::write(path, serde_json::to_vec_pretty(&figures).unwrap()).unwrap();
    }
    match rows.iter().any(|row| row.what.starts_with(FAILED)) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

const FAILED: &str = "failed: ";

/// A case that fails costs its own rows.
fn measure(options: &Options, ground: &Ground) -> Vec<Row> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let peers = Peers::find(options, ground);
    let bench = Bench { options, ground, runtime: &runtime, peers: &peers };
    let mut rows = Vec::new();
    for (name, case) in cases::ALL {
        if options.only.as_ref().is_some_and(|only| !name.contains(only)) {
            continue;
        }
        eprintln!("measuring {name}");
        match catch_unwind(AssertUnwindSafe(|| case(&bench))) {
            Ok(more) => rows.extend(more),
            Err(_) => rows.push(Row::missing(format!("{FAILED}{name}"), "see above")),
        }
    }
    rows
}
