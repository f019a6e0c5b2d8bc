//! Every call of every operation goes wrong in every way; then `recover`; then the invariants.

use forkpoint_testkit::{World, harness::Harness};

fn harness() -> Harness<'static> {
    Harness::new(&World::new, 6)
}

#[test]
fn without_a_fault_every_operation_works() {
    harness().without_a_fault().check();
}

#[test]
fn any_call_may_fail() {
    harness().any_call_may_fail().check();
}

#[test]
fn work_after_a_fault_stays() {
    harness().work_after_a_fault_stays().check();
}

#[test]
fn a_commit_may_be_late() {
    harness().a_commit_may_be_late().check();
}

#[test]
fn any_two_calls_may_fail() {
    harness().any_two_calls_may_fail().check();
}

#[test]
fn recovery_may_fail_too() {
    harness().recovery_may_fail_too().check();
}

#[test]
fn the_same_process_recovers_what_it_could_not_undo() {
    harness().the_same_process_recovers().check();
}

#[test]
fn a_caller_that_goes_away_cancels_nothing() {
    harness().a_caller_may_go_away().check();
}
