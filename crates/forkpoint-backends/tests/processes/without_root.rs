//! Drivers of somebody who may nothing are killed as those of root are.

use std::{
    env, fs,
    os::unix::{
        fs::{PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use super::local::is_root;

/// Where the helper is, for somebody who may not go where it was built.
pub(crate) const HELPER: &str = "FORKPOINT_TEST_HELPER";

/// Nobody in particular, and without an entry in `/etc/passwd`.
const USER: u32 = 61_236;

pub(crate) fn helper() -> PathBuf {
    let built = env!("CARGO_BIN_EXE_forkpoint-spawner");
    env::var_os(HELPER).map_or_else(|| built.into(), PathBuf::from)
}

/// The same test by another user, in a directory with copies of what it needs.
pub(crate) fn kill(test: &str) {
    if !is_root() {
        return; // It runs without root already.
    }
    let home = TempDir::new().unwrap();
    let bring = |from: &Path, name: &str| {
        let to = home.path().join(name);
        fs::copy(from, &to).unwrap();
        to
    };
    let own = bring(&env::current_exe().unwrap(), "processes");
    let helper = bring(&helper(), "helper");
    for path in [home.path(), &own, &helper] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        chown(path, Some(USER), Some(USER)).unwrap();
    }
    let output = Command::new(own)
        .args(["--exact", test, "--nocapture"])
        .current_dir(home.path())
        .env("TMPDIR", home.path())
        .env(HELPER, helper)
        .env_remove("NEXTEST_EXECUTION_MODE")
        .uid(USER)
        .gid(USER)
        .output()
        .unwrap();
    let [text, errors] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success() && text.contains("1 passed"), "{text}\n{errors}");
    assert!(errors.contains("died at: "), "{errors}");
}
