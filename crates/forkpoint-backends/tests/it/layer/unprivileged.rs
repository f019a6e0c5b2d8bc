//! The same tests once more, by somebody who may nothing.

use std::path::PathBuf;

use crate::unprivileged::Unprivileged;

#[test]
fn the_tests_pass_without_root() {
    let Some(user) = Unprivileged::new() else {
        return; // The others run without root already.
    };
    let ran = user.run(&["layer::"], &[]);
    let whole = ran.iter().filter(|ran| ran.skipped.is_none());
    assert!(whole.count() >= 50, "{ran:#?}");
    assert_eq!(user.left(), [] as [PathBuf; 0], "left behind");
}
