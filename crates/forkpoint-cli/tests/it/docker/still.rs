//! A container that stands still while it is sealed: by its own cgroup where that is in reach, else by its
//! engine. Whoever dies meanwhile is followed by somebody who lets it go.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use forkpoint_testkit::docker::{Cut, Proxy};
use tempfile::TempDir;

use super::Dock;
use crate::harness::Run;

/// Which cgroups a command finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    All,
    /// Not the version that an engine leaves alone.
    First,
    Nothing,
}

const REACHES: [Reach; 3] = [Reach::All, Reach::First, Reach::Nothing];

const HIDE: &str = r#"for one in $HIDDEN; do umount "$one" || exit 99; done; exec "$0" "$@""#;

/// The mounts of cgroups of a kind on this machine.
fn mounts(of: impl Fn(&str, &str) -> bool) -> Vec<PathBuf> {
    let told = fs::read_to_string("/proc/self/mounts").expect("mounts");
    let line = |line: &str| {
        let mut words = line.split(' ').skip(1);
        let (point, kind, options) = (words.next()?, words.next()?, words.next()?);
        of(kind, options).then(|| PathBuf::from(point))
    };
    told.lines().filter_map(line).collect()
}

fn unified() -> Vec<PathBuf> {
    mounts(|kind, _| kind == "cgroup2")
}

fn freezers() -> Vec<PathBuf> {
    mounts(|kind, options| kind == "cgroup" && options.split(',').any(|one| one == "freezer"))
}

impl Reach {
    /// The same command, from where only this is mounted.
    fn of(self, command: &Command) -> Command {
        let hidden = match self {
            Self::All => Vec::new(),
            Self::First => unified(),
            Self::Nothing => unified().into_iter().chain(freezers()).collect(),
        };
        let hidden: Vec<&str> = hidden.iter().filter_map(|path| path.to_str()).collect();
        let mut other = Command::new("unshare");
        other.args(["--mount", "--propagation", "private", "sh", "-c", HIDE]);
        other.arg(command.get_program()).args(command.get_args()).env("HIDDEN", hidden.join(" "));
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => other.env(name, value),
                None => other.env_remove(name),
            };
        }
        other.stdin(Stdio::null());
        other
    }
}

/// What holds a container still now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Held {
    second: bool,
    first: bool,
    engine: bool,
}

impl Held {
    fn by(reach: Reach) -> Self {
        Self {
            second: reach == Reach::All,
            first: reach != Reach::All,
            engine: reach == Reach::Nothing,
        }
    }
}

fn held(dock: &Dock) -> Held {
    let told = dock.inspect("web");
    Held { engine: told["State"]["Paused"] == true, ..by_cgroup(&told["Id"].to_string()) }
}

fn by_cgroup(id: &str) -> Held {
    let id = id.trim_matches('"');
    let says = |mounts: &[PathBuf], file: &str, what: &str| {
        let path = |mount: &PathBuf| mount.join("docker").join(id).join(file);
        mounts
            .iter()
            .any(|mount| fs::read_to_string(path(mount)).is_ok_and(|text| text.trim() == what))
    };
    Held {
        second: says(&unified(), "cgroup.freeze", "1"),
        first: says(&freezers(), "freezer.self_freezing", "1"),
        engine: false,
    }
}

fn through(dock: &Dock, socket: &Path, args: &[&str]) -> Command {
    let mut command = dock.home.command(args);
    command.env("DOCKER_HOST", format!("unix://{}", socket.display()));
    command
}

/// Kills a snapshot while it makes its image. What held the container still then.
fn kill_a_snapshot(dock: &Dock, reach: Reach) -> Held {
    let sockets = TempDir::new().expect("a directory");
    let (pid, seen) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(Held::default())));
    let (victim, told) = (Arc::clone(&pid), Arc::clone(&seen));
    let id = dock.inspect("web")["Id"].to_string();
    let strike = move || {
        *told.lock().expect("a lock") = by_cgroup(&id);
        let number = victim.load(Ordering::SeqCst).try_into().expect("a number");
        let process = rustix::process::Pid::from_raw(number).expect("a process");
        rustix::process::kill_process(process, rustix::process::Signal::KILL).expect("it lives");
    };
    // An engine that has to pause is asked to do that first.
    let step = usize::from(reach == Reach::Nothing);
    let proxy = Proxy::with(sockets.path(), dock.engine.socket(), step, Cut::During, strike);
    let command = through(dock, &proxy.path, &["snapshot", &dock.reference("web")]);
    let mut child = reach.of(&command).stdout(Stdio::null()).spawn().expect("it starts");
    pid.store(child.id(), Ordering::SeqCst);
    let status = child.wait().expect("it ends");
    assert!(proxy.was_cut() && !status.success(), "{reach:?}: {status}");
    seen.lock().expect("a lock").clone()
}

/// As an engine takes it.
fn now() -> String {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    format!("{}.{:09}", now.tv_sec, now.tv_nsec)
}

/// How often its engine was told to pause it. An engine knows its last 256 events.
fn pauses(dock: &Dock, since: &str) -> usize {
    let name = format!("container={}", dock.name("web"));
    let args = ["events", "--since", since, "--until", &now(), "--filter", &name];
    dock.docker(args.iter().chain(&["--filter", "event=pause"])).lines().count()
}

#[test]
fn a_container_is_held_still_without_its_engine_where_that_can_be() {
    let dock = Dock::new();
    dock.start("web", &[]);
    for reach in REACHES {
        dock.sh("web", &format!("echo {reach:?} > /root/state"));
        let since = now();
        let command = dock.home.command(["snapshot", &dock.reference("web")]);
        let run = Run::of(reach.of(&command).output().expect("it starts"));
        assert_eq!(run.code, Some(0), "{reach:?}: {run:?}");
        assert_eq!(pauses(&dock, &since), usize::from(reach == Reach::Nothing), "{reach:?}");
        assert_eq!(held(&dock), Held::default(), "{reach:?}");
        let kept = dock.ok(&["cat", &format!("{}:/root/state", run.id())]).stdout;
        assert_eq!(kept, format!("{reach:?}\n"));
    }
}

#[test]
fn whoever_is_killed_while_it_stands_still_is_followed_by_one_who_lets_go() {
    let dock = Dock::new();
    dock.start("web", &[]);
    for reach in REACHES {
        dock.sh("web", &format!("echo {reach:?} > /root/state"));
        let then = kill_a_snapshot(&dock, reach);
        let engine = dock.inspect("web")["State"]["Paused"] == true;
        assert_eq!(Held { engine, ..then }, Held::by(reach), "{reach:?}");
        dock.ok(&["ps"]);
        assert_eq!(held(&dock), Held::default(), "{reach:?}");
        assert_eq!(dock.sh("web", "cat /root/state"), format!("{reach:?}"));
        assert_eq!(dock.ok(&["list", "-q"]).stdout, "", "{reach:?}: nothing came of it");
    }
}

#[test]
fn a_pause_that_somebody_made_meanwhile_stays_theirs() {
    let dock = Dock::new();
    dock.start("web", &[]);
    kill_a_snapshot(&dock, Reach::All);
    dock.docker(["pause", &dock.name("web")]);
    dock.ok(&["ps"]);
    assert_eq!(held(&dock), Held { second: false, first: true, engine: true });
    dock.ok(&["snapshot", &dock.reference("web")]);
    assert_eq!(held(&dock), Held { second: false, first: true, engine: true });
    dock.docker(["unpause", &dock.name("web")]);
    assert_eq!(dock.sh("web", "echo runs"), "runs");
}

#[test]
fn commands_that_are_run_meanwhile_are_run() {
    let dock = Dock::new();
    dock.start("web", &["-v", &format!("{}:/data", dock.name("data"))]);
    let (over, engine, name) = (AtomicBool::new(false), &dock.engine, dock.name("web"));
    std::thread::scope(|scope| {
        let runs = scope.spawn(|| {
            let mut count = 0;
            while !over.load(Ordering::SeqCst) {
                assert_eq!(engine.docker(["exec", &name, "echo", "ran"]), "ran");
                count += 1;
            }
            count
        });
        for number in 0..8 {
            dock.sh("web", &format!("echo {number} > /data/number"));
            dock.ok(&["snapshot", &dock.reference("web")]);
        }
        over.store(true, Ordering::SeqCst);
        assert!(runs.join().expect("none was refused") > 0);
    });
}

#[test]
fn a_container_that_ends_while_it_stands_still_is_no_trouble() {
    let dock = Dock::new();
    dock.start("web", &[]);
    for reach in [Reach::All, Reach::First] {
        let sockets = TempDir::new().expect("a directory");
        let (engine, name) = (dock.engine.host(), dock.name("web"));
        let strike = move || {
            let mut kill = Command::new("docker");
            kill.args(["-H", &engine, "kill", &name]).stdout(Stdio::null());
            assert!(kill.status().is_ok_and(|status| status.success()), "it is killed");
        };
        let proxy = Proxy::with(sockets.path(), dock.engine.socket(), 0, Cut::During, strike);
        let command = through(&dock, &proxy.path, &["snapshot", &dock.reference("web")]);
        let run = Run::of(reach.of(&command).output().expect("it starts"));
        assert!(proxy.was_cut() && run.code == Some(1), "the reply was lost: {run:?}");
        dock.ok(&["ps"]);
        assert_eq!(dock.inspect("web")["State"]["Status"], "exited", "{reach:?}");
        dock.docker(["start", &dock.name("web")]);
        assert_eq!((held(&dock), dock.sh("web", "echo runs")), (Held::default(), "runs".into()));
    }
}

#[test]
fn whoever_runs_in_the_container_itself_is_refused_and_holds_nothing_still() {
    let dock = Dock::new();
    let id = dock.start("web", &[]);
    let group = freezers().first().expect("cgroups").join("docker").join(id).join("cgroup.procs");
    let command = dock.home.command(["snapshot", &dock.reference("web")]);
    let mut inside = Command::new("sh");
    inside.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(group);
    inside.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    inside.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let run = Run::of(inside.output().expect("it starts"));
    assert!(run.code == Some(2) && run.stderr.contains("run it outside"), "{run:?}");
    assert_eq!((held(&dock), dock.sh("web", "echo runs")), (Held::default(), "runs".into()));
}
