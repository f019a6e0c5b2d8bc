//! The engine on a real catalog meets the faults that such a catalog can have a part in: lost
//! replies, and processes that die with their locks.

use std::sync::Arc;

use forkpoint_testkit::{World, faults::Fault, harness::Harness};

use super::Directory;

fn harness() -> Harness<'static> {
    let make = &|simulation| World::with_catalog(simulation, Arc::new(Directory::new()));
    Harness::new(make, 1).only(&[Fault::After, Fault::CrashAfter])
}

/// Each commit goes to the disk, and the disk may be busy.
const PARTS: usize = 4;

fn any_call_may_fail(part: usize) {
    harness().part(part, PARTS).any_call_may_fail().check();
}

#[test]
fn any_call_may_fail_on_sqlite() {
    any_call_may_fail(0);
}

#[test]
fn any_call_may_fail_on_sqlite_in_the_second_part() {
    any_call_may_fail(1);
}

#[test]
fn any_call_may_fail_on_sqlite_in_the_third_part() {
    any_call_may_fail(2);
}

#[test]
fn any_call_may_fail_on_sqlite_in_the_last_part() {
    any_call_may_fail(3);
}

#[test]
fn the_next_call_clears_what_a_dead_process_left_on_sqlite() {
    harness().part(0, 2).the_next_call_clears_what_is_left().check();
}

#[test]
fn the_next_call_clears_the_rest_on_sqlite() {
    harness().part(1, 2).the_next_call_clears_what_is_left().check();
}
