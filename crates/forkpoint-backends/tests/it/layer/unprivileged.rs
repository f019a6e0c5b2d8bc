//! The same tests once more, by somebody who may nothing.

use std::{
    env, fs,
    os::unix::{
        fs::{PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    process::Command,
};

use tempfile::TempDir;

use super::is_root;

/// Nobody in particular, and without an entry in `/etc/passwd`.
const USER: u32 = 61_234;

#[test]
fn the_tests_pass_without_root() {
    if !is_root() {
        return; // The others run without root already.
    }
    let directory = TempDir::new().unwrap();
    let program = directory.path().join("it");
    // Where the program is built, others may not be able to go.
    fs::copy(env::current_exe().unwrap(), &program).unwrap();
    for path in [directory.path(), &program] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        chown(path, Some(USER), Some(USER)).unwrap();
    }
    let output = Command::new(&program)
        .args(["layer::", "--test-threads=2"])
        .current_dir(directory.path())
        .env("TMPDIR", directory.path())
        .env_remove("NEXTEST_EXECUTION_MODE")
        .uid(USER)
        .gid(USER)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("layers_show_what_the_sandbox_shows ... ok"), "{text}");
    fs::remove_file(&program).unwrap();
    let left = super::entries(directory.path());
    assert_eq!(left, [] as [String; 0], "left behind");
}
