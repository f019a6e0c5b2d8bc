//! The suite once more, by somebody who may nothing.

use crate::unprivileged::Unprivileged;

use super::{HELPER, helper};

#[test]
fn the_suite_passes_without_root() {
    let Some(user) = Unprivileged::new() else {
        return; // The suite runs without root already.
    };
    let helper = user.bring(&helper());
    let suites = ["local::mapped::", "local::images::", "local::templates::", "local::rights::"];
    let text = user.run(&suites, &[(HELPER, helper.as_os_str())]);
    assert!(text.contains("local::mapped::runs_commands ... ok"), "{text}");
    assert!(text.contains("needs_its_snapshot_no_longer ... ok"), "{text}");
}

#[test]
fn workspaces_are_changed_and_brought_home_without_root() {
    let Some(user) = Unprivileged::new() else {
        return; // The tests run without root already.
    };
    let helper = user.bring(&helper());
    let text = user.run(&["local::workspace::"], &[(HELPER, helper.as_os_str())]);
    assert!(text.contains("every_kind_of_change_comes_home ... ok"), "{text}");
    assert!(text.contains("cannot_be_read_is_named_and_nothing_is_applied ... ok"), "{text}");
}
