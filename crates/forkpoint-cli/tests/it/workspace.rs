//! A directory of somebody's: let an agent loose on it, look, go back, and bring home what is good.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::harness::{Home, Run, assert_told};

/// A repository of somebody's, beside the data directory.
struct Project {
    home: Home,
}

impl Project {
    fn new() -> Self {
        let project = Self { home: Home::new() };
        fs::create_dir(project.dir()).expect("a directory");
        project.write("README", "A project.\n");
        project.write("src/main.sh", "echo hello\n");
        project.write("src/old.sh", "echo old\n");
        project.git(&["init", "-q", "-b", "main"]);
        project.git(&["add", "-A"]);
        project.git(&["commit", "-q", "-m", "begin"]);
        project
    }

    fn dir(&self) -> PathBuf {
        self.home.path().join("project")
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.dir().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        fs::write(path, text).expect("a file");
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.dir().join(path)).expect("a file")
    }

    fn git(&self, args: &[&str]) -> String {
        git(&self.dir(), args)
    }

    fn enter(&self, more: &[&str]) -> Run {
        let dir = self.dir();
        let args = ["create", "--name", "web", "--workspace", dir.to_str().expect("text")];
        self.home.ok(args.iter().chain(more))
    }
}

fn git(dir: &Path, args: &[&str]) -> String {
    let mut git = Command::new("git");
    git.args(["-c", "user.name=x", "-c", "user.email=x@example.org", "-C"]).arg(dir).args(args);
    let run = Run::of(git.output().expect("git"));
    assert_eq!(run.code, Some(0), "{run:?}");
    run.stdout
}

#[test]
fn an_agent_is_let_loose_and_the_third_attempt_comes_home() {
    let project = Project::new();
    let home = &project.home;
    project.enter(&[]);
    home.ok(["snapshot", "web", "--name", "begin", "--no-sync"]);
    home.sh("web", "rm -rf *; git checkout -q . ; rm README");
    home.ok(["rollback", "web"]);
    home.sh("web", "echo worse > README; git add -A; echo broken > src/main.sh; mkdir junk");
    assert_eq!(
        home.ok(["diff", "web", "--name-only", "--", "/workspace/src"]).stdout,
        "/workspace/src/main.sh\n"
    );
    home.ok(["rollback", "web"]);
    home.sh(
        "web",
        "echo 'echo good' > src/main.sh; chmod +x src/main.sh; rm src/old.sh; mkdir docs
         echo text > docs/a",
    );
    assert_eq!(project.git(&["status", "--short"]), "", "the original is as it was");
    let told = [
        home.ok(["apply", "web", "--dry-run"]),
        home.ok(["apply", "web", "--patch"]),
        home.ok(["apply", "web"]),
        home.ok(["apply", "web"]),
    ];
    let told: Vec<String> = told.iter().map(Run::told).collect();
    assert_told!(told.join("\n\n"));
    let status = project.git(&["status", "--short"]);
    assert_eq!(status, " M src/main.sh\n D src/old.sh\n?? docs/\n");
    assert_eq!(project.read("docs/a"), "text\n");
}

#[test]
fn what_both_changed_is_told_and_nothing_is_done() {
    let project = Project::new();
    let home = &project.home;
    project.enter(&["--workspace-mode", "copy"]);
    home.sh(
        "web",
        "echo theirs > README; echo theirs > src/main.sh; echo new > new; rm src/old.sh",
    );
    project.write("README", "mine\n");
    fs::remove_file(project.dir().join("src/main.sh")).expect("a file");
    let told = [
        home.run(["apply", "web"]),
        home.run(["apply", "web", "--json"]),
        home.run(["-q", "apply", "web", "--", "new", "/workspace/src/old.sh"]),
        home.run(["apply", "web", "--", "/etc"]),
        home.run(["apply", "web", "--", "../x"]),
        home.run(["apply", "web", "--", "typo"]),
    ];
    let told: Vec<String> = told.iter().map(Run::told).collect();
    assert_told!(told.join("\n\n"));
    assert_eq!(project.read("README"), "mine\n");
    home.ok(["apply", "web", "--force"]);
    assert_eq!(project.read("README") + &project.read("src/main.sh"), "theirs\ntheirs\n");
}

#[test]
fn a_patch_is_one_that_git_takes() {
    for mode in ["live", "copy"] {
        let project = Project::new();
        let home = &project.home;
        project.enter(&["--workspace-mode", mode]);
        home.sh(
            "web",
            "echo more >> README; chmod +x src/main.sh; git mv src/old.sh src/moved.sh; ln -s a b
             printf 'no end' > 'with space'; git -c user.name=x -c user.email=y commit -qam agent",
        );
        let patch = home.ok(["apply", "web", "--patch"]);
        let mut git = Command::new("git");
        git.arg("-C").arg(project.dir()).args(["apply", "-"]).stdin(Stdio::piped());
        let mut child = git.spawn().expect("git");
        let mut input = child.stdin.take().expect("its input");
        std::io::Write::write_all(&mut input, patch.stdout.as_bytes()).expect("git reads");
        drop(input);
        assert!(child.wait().expect("git").success(), "{patch:?}");
        let left = home.ok(["apply", "web", "--dry-run"]);
        let is_gits = |line: &str| line.contains(" .git/");
        assert!(left.stdout.lines().all(is_gits), "{mode}: {left:?}");
        assert!(project.dir().join("src/moved.sh").exists());
    }
}

#[test]
fn a_workspace_that_changed_since_a_snapshot_is_told() {
    let project = Project::new();
    let home = &project.home;
    project.enter(&[]);
    home.ok(["snapshot", "web", "--name", "one", "--no-sync"]);
    let quiet = home.ok(["rollback", "web"]);
    assert!(!quiet.stderr.contains("warning"), "{quiet:?}");
    std::thread::yield_now();
    // The clock of files may be a tick behind.
    while !home.ok(["restore", "one"]).stderr.contains("warning") {
        project.write("src/main.sh", "echo host\n");
        project.write("new", "new\n");
    }
    for args in [vec!["rollback", "web"], vec!["fork", "one"], vec!["restore", "one"]] {
        let run = home.ok(args.iter().chain(&["--json"]));
        let drift = &run.json()["drift"][0];
        assert_eq!((&drift["changed"], &drift["complete"]), (&2.into(), &true.into()), "{run:?}");
        assert_eq!(drift["examples"].as_array().map(Vec::len), Some(2), "{run:?}");
    }
    assert_told!(home.ok(["rollback", "web"]).told());
    assert_eq!(home.sh("web", "cat src/main.sh"), "echo host\n");
    assert!(!home.ok(["fork", "web"]).stderr.contains("warning"));
}

#[test]
fn a_workspace_is_shown() {
    let project = Project::new();
    let home = &project.home;
    project.enter(&["--workspace-mode", "copy"]);
    home.ok(["snapshot", "web", "--name", "one"]);
    let workspaces = home.ok(["ps", "--json"]).json()["sandboxes"][0]["workspaces"].clone();
    assert_eq!(workspaces[0]["at"], "/workspace");
    assert_eq!(workspaces[0]["mode"], "copy");
    assert_eq!(home.ok(["show", "one", "--json"]).json()["workspaces"], workspaces);
    let shown = home.ok(["show", "one"]).stdout;
    let line = shown.lines().find(|line| line.starts_with("workspace")).expect("a line");
    assert_told!(line);
}

#[test]
fn what_cannot_be_a_workspace_is_refused() {
    let project = Project::new();
    let home = &project.home;
    project.enter(&[]);
    let dir = project.dir().display().to_string();
    let mut told = Vec::new();
    for workspace in
        ["/", "nothing", &format!("{dir}/README"), &format!("{dir}:/proc/x"), &format!("{dir}:/")]
    {
        told.push(home.run(["create", "--workspace", workspace]).told());
    }
    let data = home.path().join("data");
    told.push(home.run(["create", "--workspace", data.to_str().expect("text")]).told());
    home.ok(["create", "--name", "none"]);
    told.push(home.run(["apply", "none"]).told());
    told.push(home.run(["apply", "wep"]).told());
    assert_told!(told.join("\n\n"));
    assert_eq!(home.ok(["ps", "-q"]).stdout.lines().count(), 2);
}
