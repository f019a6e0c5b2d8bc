//! The engine on a real catalog meets the faults that such a catalog can have a part in: lost
//! replies, and processes that die with their locks.

use std::sync::Arc;

use forkpoint_testkit::{World, faults::Fault, harness::Harness};

use super::Directory;

fn harness() -> Harness<'static> {
    let make = &|simulation| World::with_catalog(simulation, Arc::new(Directory::new()));
    Harness::new(make, 1).only(&[Fault::After, Fault::CrashAfter])
}

#[test]
fn any_call_may_fail_on_sqlite() {
    harness().any_call_may_fail().check();
}

#[test]
fn the_next_call_clears_what_a_dead_process_left_on_sqlite() {
    harness().the_next_call_clears_what_is_left().check();
}
