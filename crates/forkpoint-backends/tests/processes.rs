//! Real processes work on one SQLite catalog, on one store of layers, and on one sandbox, and are
//! killed with `SIGKILL` again and again.
//!
//! The same program is parent and child: a child is told so by its environment. Children report on
//! their standard output, and the parent kills one of them after every few reports, so that nothing
//! here depends on a clock.

#![expect(clippy::unwrap_used, reason = "in a test, what cannot be unwrapped is a failure")]

use std::{env, process::ExitCode};

use libtest_mimic::{Arguments, Trial};

#[path = "processes/child.rs"]
mod child;
#[path = "processes/layers.rs"]
mod layers;
#[path = "processes/left.rs"]
mod left;
#[path = "processes/local.rs"]
mod local;
#[path = "processes/parent.rs"]
mod parent;
#[path = "processes/rotate.rs"]
mod rotate;
#[path = "processes/warm.rs"]
mod warm;
#[path = "processes/without_root.rs"]
mod without_root;

/// What a child must know, in its environment.
const DIRECTORY: &str = "FORKPOINT_TEST_DIRECTORY";
const SERIAL: &str = "FORKPOINT_TEST_SERIAL";

/// Few enough that every child meets others everywhere.
const SANDBOXES: u64 = 3;

/// Runs without root as well.
const LOCAL: &str = "killed_drivers_lose_no_file_and_no_snapshot";

fn main() -> ExitCode {
    if let Ok(directory) = env::var(DIRECTORY) {
        child::work(directory.as_ref());
        return ExitCode::SUCCESS;
    }
    if let Ok(directory) = env::var(layers::DIRECTORY) {
        layers::work_for_ever(directory.as_ref());
        return ExitCode::SUCCESS;
    }
    if let Ok(directory) = env::var(local::DIRECTORY) {
        local::work_for_ever(directory.as_ref());
        return ExitCode::SUCCESS;
    }
    if let Ok(directory) = env::var(rotate::DIRECTORY) {
        rotate::take_one(directory.as_ref());
        return ExitCode::SUCCESS;
    }
    if let Ok(directory) = env::var(warm::DIRECTORY) {
        warm::keep_ready(directory.as_ref());
        return ExitCode::SUCCESS;
    }
    let catalog = Trial::test("killed_processes_leave_nothing_behind", || {
        parent::kill_again_and_again();
        Ok(())
    });
    let layers = Trial::test("killed_processes_leave_no_half_layer_and_nothing_behind", || {
        layers::kill_again_and_again();
        Ok(())
    });
    let local = Trial::test(LOCAL, || {
        local::kill_again_and_again();
        Ok(())
    });
    let rootless = Trial::test("killed_drivers_lose_nothing_without_root", || {
        without_root::kill(LOCAL);
        Ok(())
    });
    let failing = Trial::test("a_parent_that_fails_leaves_no_child_and_no_sandbox", || {
        left::fail_at_work();
        Ok(())
    });
    let warm = Trial::test("a_killed_driver_leaves_nothing_of_what_it_kept_ready", || {
        warm::kill_in_every_way();
        Ok(())
    });
    let rotate = Trial::test("a_driver_that_dies_while_it_changes_a_root_loses_nothing", || {
        rotate::die_at_every_step();
        Ok(())
    });
    let worker =
        Trial::test("a_worker_that_is_killed_while_it_changes_a_root_loses_nothing", || {
            rotate::kill_the_worker();
            Ok(())
        });
    let trials = vec![catalog, layers, local, rootless, failing, warm, rotate, worker];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
