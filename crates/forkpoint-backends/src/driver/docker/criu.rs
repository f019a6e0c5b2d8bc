//! Whether an engine can write down processes, and if not, why.
//!
//! An engine does not tell whether it finds CRIU. It is looked for where the engine would, and asked
//! itself whether it works on this kernel.

use std::{
    env,
    ffi::OsString,
    fs,
    os::unix::{ffi::OsStringExt as _, fs::PermissionsExt as _, net::UnixStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::net::sockopt::socket_peercred;
use serde_json::Value;

/// Where programs are if nobody says otherwise.
const USUAL: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Why not, from what the engine tells of itself; `None` if it can. `socket` is where it listens, if that
/// is on this machine. Blocks.
pub(super) fn refusal(info: &Value, is_podman: bool, socket: Option<&Path>) -> Option<String> {
    if is_podman {
        return Some("Podman cannot be asked for it in Docker's words".to_owned());
    }
    if info["ExperimentalBuild"] != true {
        return Some(
            "the engine does so only with `\"experimental\": true` in its `daemon.json`".to_owned(),
        );
    }
    let Some(socket) = socket else {
        return Some("the engine is on another machine, and its files are needed".to_owned());
    };
    let root = Path::new(info["DockerRootDir"].as_str().unwrap_or_default()).join("containers");
    if let Err(err) = fs::read_dir(&root) {
        return Some(format!("`{}` of the engine is out of reach: {err}; be root", root.display()));
    }
    let Some(criu) = find(engine_path(socket)) else {
        return Some(
            "the engine finds no `criu`: install it on the engine's PATH, and start the engine again"
                .to_owned(),
        );
    };
    broken(&criu)
}

/// The PATH of the engine itself; of whoever started it, where its socket was there before it.
fn engine_path(socket: &Path) -> Option<OsString> {
    let peer = socket_peercred(UnixStream::connect(socket).ok()?).ok()?;
    let environment = fs::read(format!("/proc/{}/environ", peer.pid.as_raw_nonzero())).ok()?;
    let mut variables = environment.split(|byte| *byte == 0);
    let path = variables.find_map(|variable| variable.strip_prefix(b"PATH="))?;
    Some(OsString::from_vec(path.to_vec()))
}

fn find(path: Option<OsString>) -> Option<PathBuf> {
    let path = path.unwrap_or_else(|| USUAL.into());
    let runs = |path: &PathBuf| {
        let is_program =
            |meta: fs::Metadata| meta.is_file() && meta.permissions().mode() & 0o111 != 0;
        fs::metadata(path).is_ok_and(is_program)
    };
    env::split_paths(&path).map(|directory| directory.join("criu")).find(runs)
}

fn broken(criu: &Path) -> Option<String> {
    let told = Command::new(criu).arg("check").stdin(Stdio::null()).output();
    let why = match told {
        Ok(output) if output.status.success() => return None,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let last = said.lines().rfind(|line| line.contains("Error"));
            last.unwrap_or("it says that it does not").trim().to_owned()
        }
        Err(err) => err.to_string(),
    };
    Some(format!("`{}` does not work on this machine: {why}", criu.display()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_reason_says_what_to_do() {
        let socket = Path::new("/nowhere/docker.sock");
        let told = |info: Value, podman, socket| refusal(&info, podman, socket).unwrap();
        let able = json!({ "ExperimentalBuild": true, "DockerRootDir": "/nowhere" });
        assert!(told(able.clone(), true, Some(socket)).contains("Podman"));
        assert!(told(json!({}), false, Some(socket)).contains("daemon.json"));
        assert!(told(able.clone(), false, None).contains("another machine"));
        assert!(told(able, false, Some(socket)).contains("/nowhere/containers"));
    }

    #[test]
    fn a_criu_that_is_none_is_said_to_be() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(find(Some(directory.path().into())), None);
        let program = directory.path().join("criu");
        fs::write(&program, "#!/bin/sh\necho 'Error (x): no vDSO' >&2\nexit 1\n").unwrap();
        assert_eq!(find(Some(directory.path().into())), None, "nobody may run it");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let found = find(Some(directory.path().into())).unwrap();
        assert!(broken(&found).unwrap().contains("no vDSO"));
        fs::write(&program, "#!/bin/sh\nexit 0\n").unwrap();
        assert_eq!(broken(&found), None);
    }
}
