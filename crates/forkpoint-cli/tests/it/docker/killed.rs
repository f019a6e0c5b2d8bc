//! The engine, and we ourselves, killed at each step of an operation; and then whoever comes next recovers.

use std::{
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use forkpoint_testkit::docker::{Cut, Proxy};
use tempfile::TempDir;

use super::Dock;

/// No operation asks an engine to change more than this often.
const STEPS_MAX: usize = 40;

const BAD: &str = "echo bad > /root/state; echo bad > /data/state";
const LOOK: &str = "cat /root/state /data/state";

/// A container with a volume, kept as it was good, and bad now.
struct Attack {
    dock: Dock,
    sockets: TempDir,
    good: String,
}

impl Attack {
    fn on(dock: Dock) -> Self {
        let volume = format!("{}:/data", dock.name("data"));
        dock.start("web", &["-v", &volume]);
        dock.sh("web", "echo good > /root/state; echo good > /data/state");
        let good = dock.ok(&["snapshot", &dock.reference("web")]).id().to_owned();
        dock.sh("web", BAD);
        Self { dock, sockets: TempDir::new().expect("a directory"), good }
    }

    fn proxy(&self, step: usize, cut: Cut, strike: impl Fn() + Send + Sync + 'static) -> Proxy {
        Proxy::with(self.sockets.path(), self.dock.engine.socket(), step, cut, strike)
    }

    /// Runs a command while the engine is killed at one of its steps. Whether it got there.
    fn kill_engine(&self, args: &[&str], step: usize, cut: Cut) -> bool {
        let proxy = self.proxy(step, cut, self.dock.engine.killer());
        let run = self.through(&proxy.path, args).output().expect("the binary starts");
        assert!(run.status.success() || proxy.was_cut(), "nothing was in its way: {run:?}");
        self.dock.engine.await_answer();
        proxy.was_cut()
    }

    /// Runs a command that is killed at one of its steps.
    fn kill_us(&self, args: &[&str], step: usize, cut: Cut) -> bool {
        let pid = Arc::new(AtomicU32::new(0));
        let victim = Arc::clone(&pid);
        let strike = move || {
            let number = victim.load(Ordering::SeqCst).try_into().expect("a number");
            let process = rustix::process::Pid::from_raw(number).expect("a process");
            let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
        };
        let proxy = self.proxy(step, cut, strike);
        let mut command = self.through(&proxy.path, args);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.expect("the binary starts");
        pid.store(child.id(), Ordering::SeqCst);
        let run = child.wait_with_output().expect("it ends");
        let killed = run.status.signal() == Some(9);
        assert!(killed == proxy.was_cut() && (killed || run.status.success()), "{run:?}");
        killed
    }

    fn through(&self, socket: &Path, args: &[&str]) -> std::process::Command {
        let mut command = self.dock.home.command(args);
        command.env("DOCKER_HOST", format!("unix://{}", socket.display()));
        command
    }

    /// What a sandbox stands on is kept, also when its snapshot is deleted.
    fn stand_on_good(&self) {
        self.dock.ok(&["rollback", &self.dock.reference("web"), &self.good]);
        self.dock.sh("web", BAD);
    }

    /// Everything that says it is ours, and all that is known.
    fn check(&self, step: usize) {
        let dock = &self.dock;
        dock.ok(&["ps"]);
        let stats = dock.ok(&["stats", "--json"]).json();
        assert_eq!(stats["open_operations"], 0, "step {step}: {stats}");
        // What died with its engine is started again by whoever had started it.
        dock.docker(["start", &dock.name("web")]);
        let ready = dock.ok(&["list", "-q"]).stdout;
        let mut ready: Vec<&str> = ready.lines().collect();
        ready.sort_unstable();
        let named = self.ours(&["images", "--format", "{{.Repository}}"]);
        let mut images: Vec<&str> = named.lines().collect();
        images.sort_unstable();
        let expected: Vec<String> = ready.iter().map(|id| format!("forkpoint/{id}")).collect();
        assert_eq!(images, expected, "step {step}: images");
        for (index, snapshot) in ready.iter().enumerate() {
            let name = format!("try{index}");
            let run = dock.run(&["restore", snapshot, "--name", &dock.name(&name)]);
            assert_eq!(run.code, Some(0), "step {step}: {run:?}");
            let seen = dock.sh(&name, LOOK);
            assert!(seen == "good\ngood" || *snapshot != self.good && seen == "bad\nbad", "{seen}");
            dock.ok(&["rm", "--force", run.id()]);
        }
        let known = dock.ok(&["ps", "-q"]).stdout;
        let others = known.lines().count();
        let containers = self.ours(&["ps", "-a", "--format", "{{.Names}}"]);
        let web = dock.name("web");
        let containers: Vec<&str> = containers.lines().filter(|name| *name != web).collect();
        assert_eq!(containers.len() + 1, others, "step {step}: {containers:?} and {known}");
        let volumes = self.ours(&["volume", "ls", "--format", "{{.Name}}"]);
        assert_eq!(volumes.lines().count(), containers.len(), "step {step}: {volumes}");
        let all = dock.docker(["ps", "-a", "--format", "{{.Names}}"]);
        let is_passing = |name: &&str| {
            let id = name.strip_prefix("forkpoint-next-");
            let id = id.or_else(|| name.strip_prefix("forkpoint-previous-"));
            id.is_some_and(|id| known.lines().any(|known| known == id))
        };
        let passing: Vec<&str> = all.lines().filter(is_passing).collect();
        assert_eq!(passing, [""; 0], "step {step}: no rollback is under way");
    }

    fn ours(&self, list: &[&str]) -> String {
        let id = std::fs::read_to_string(self.dock.home.path().join("data/docker/id"));
        let filter = format!("label=forkpoint.data={}", id.expect("an id"));
        self.dock.docker(list.iter().chain(&["--filter", &filter]))
    }
}

/// What is done, and what it is done with.
fn command(attack: &Attack, verb: &str, step: usize) -> Vec<String> {
    let web = attack.dock.reference("web");
    match verb {
        "snapshot" => vec!["snapshot".to_owned(), web],
        "restore" => {
            let name = attack.dock.name(&format!("copy{step}"));
            vec!["restore".to_owned(), attack.good.clone(), "--name".to_owned(), name]
        }
        "rollback" => vec!["rollback".to_owned(), web, attack.good.clone()],
        _ => {
            attack.dock.sh("web", "date > /root/now 2>/dev/null || echo $$ > /root/now");
            let extra = attack.dock.ok(&["snapshot", &web]).id().to_owned();
            attack.stand_on_good();
            vec!["delete".to_owned(), "--force".to_owned(), extra]
        }
    }
}

/// Makes room for the next try.
fn clear(attack: &Attack, verb: &str, step: usize) {
    let dock = &attack.dock;
    match verb {
        "restore" => {
            dock.run(&["rm", "--force", &dock.reference(&format!("copy{step}"))]);
        }
        "rollback" => {
            let seen = dock.sh("web", LOOK);
            assert!(seen == "good\ngood" || seen == "bad\nbad", "step {step}: {seen}");
            dock.sh("web", BAD);
        }
        _ => {
            attack.stand_on_good();
            let all = dock.ok(&["list", "-q"]).stdout;
            for snapshot in all.lines().filter(|id| *id != attack.good) {
                dock.ok(&["delete", "--force", snapshot]);
            }
        }
    }
}

fn each(
    attack: &Attack,
    verb: &str,
    steps: impl Iterator<Item = usize>,
    kill: impl Fn(&Attack, &[&str], usize) -> bool,
) {
    for step in steps {
        let args = command(attack, verb, step);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let reached = kill(attack, &args, step);
        attack.check(step);
        clear(attack, verb, step);
        if !reached {
            assert!(step > 0, "it changes something");
            return;
        }
    }
    panic!("it never gets through");
}

/// Each step is met once: in turn when the engine has begun it, and when it has done it. An engine takes
/// seconds to come back.
fn engine_killed(verb: &str, steps: impl Iterator<Item = usize>) {
    let directory = TempDir::new().expect("a directory");
    let attack = Attack::on(Dock::alone(directory.path()));
    each(&attack, verb, steps, |attack, args, step| {
        let cut = if step % 2 == 0 { Cut::During } else { Cut::After };
        attack.kill_engine(args, step, cut)
    });
}

fn we_killed(verb: &str) {
    let attack = Attack::on(Dock::new());
    let steps = 0..STEPS_MAX;
    each(&attack, verb, steps, |attack, args, step| attack.kill_us(args, step, Cut::After));
}

#[test]
fn an_engine_that_is_killed_in_a_snapshot_leaves_nothing() {
    engine_killed("snapshot", 0..STEPS_MAX);
}

#[test]
fn an_engine_that_is_killed_in_a_restore_leaves_nothing() {
    engine_killed("restore", 0..STEPS_MAX);
}

#[test]
fn an_engine_that_is_killed_within_a_step_of_a_rollback_leaves_nothing() {
    engine_killed("rollback", (0..STEPS_MAX).step_by(2));
}

#[test]
fn an_engine_that_is_killed_after_a_step_of_a_rollback_leaves_nothing() {
    engine_killed("rollback", (1..STEPS_MAX).step_by(2));
}

#[test]
fn an_engine_that_is_killed_in_a_deletion_leaves_nothing() {
    engine_killed("delete", 0..STEPS_MAX);
}

#[test]
fn whoever_is_killed_in_a_snapshot_leaves_nothing() {
    we_killed("snapshot");
}

#[test]
fn whoever_is_killed_in_a_restore_leaves_nothing() {
    we_killed("restore");
}

#[test]
fn whoever_is_killed_in_a_rollback_leaves_nothing() {
    we_killed("rollback");
}

#[test]
fn whoever_is_killed_in_a_deletion_leaves_nothing() {
    we_killed("delete");
}
