//! The same tests once more, by somebody who may nothing.

use std::path::PathBuf;

use crate::unprivileged::Unprivileged;

#[test]
fn the_tests_pass_without_root() {
    let Some(user) = Unprivileged::new() else {
        return; // The others run without root already.
    };
    let text = user.run(&["layer::"], &[]);
    assert!(text.contains("layers_show_what_the_sandbox_shows ... ok"), "{text}");
    assert_eq!(user.left(), [] as [PathBuf; 0], "left behind");
}
