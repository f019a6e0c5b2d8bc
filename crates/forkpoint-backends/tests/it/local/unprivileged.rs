//! The suite once more, by somebody who may nothing.

use crate::unprivileged::Unprivileged;

use super::{HELPER, helper};

#[test]
fn the_suite_passes_without_root() {
    let Some(user) = Unprivileged::new() else {
        return; // The suite runs without root already.
    };
    let helper = user.bring(&helper());
    let text = user.run(&["local::mapped::"], &[(HELPER, helper.as_os_str())]);
    assert!(text.contains("local::mapped::runs_commands ... ok"), "{text}");
}
