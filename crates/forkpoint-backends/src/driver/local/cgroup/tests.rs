use std::{
    fs::OpenOptions,
    os::{fd::AsFd, unix::process::ExitStatusExt as _},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use super::{directory::Deadline, group::Usage, *};

const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
const OWN: &str = "9:name=systemd:/a\n4:memory:/jobs/7\n1:cpu,cpuacct:/\n0::/b\n";

fn own(hierarchy: Option<&Hierarchy>) -> Option<&str> {
    hierarchy.map(|hierarchy| hierarchy.own.to_str().unwrap())
}

#[test]
fn finds_hierarchies() {
    type Expected = [Option<&'static str>; 4];
    let table: &[(&str, &str, &str, Expected)] = &[
        ("none", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n", OWN, [None; 4]),
        ("no text", "", "", [None; 4]),
        (
            "hybrid",
            HYBRID,
            OWN,
            [
                Some("/sys/fs/cgroup/unified/b"),
                Some("/sys/fs/cgroup/memory/jobs/7"),
                Some("/sys/fs/cgroup/cpu,cpuacct"),
                None,
            ],
        ),
        (
            "pure",
            "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
            "0::/user.slice/user-1000.slice/session-2.scope\n",
            [Some("/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope"), None, None, None],
        ),
        (
            "version 1, in a container that sees its own part",
            "40 31 0:32 /docker/f00 /cg/memory\\040pids ro - cgroup cgroup rw,memory,pids\n",
            "4:memory,pids:/docker/f00/x\n1:cpu:/docker/f00\n",
            [None, Some("/cg/memory pids/x"), None, Some("/cg/memory pids/x")],
        ),
        (
            "outside of what is mounted",
            "40 31 0:32 / /cg/memory rw - cgroup cgroup rw,memory\n\
             41 31 0:33 /docker/f00 /cg/unified rw - cgroup2 none rw\n",
            "4:memory:/../..\n0::/elsewhere\n",
            [Some("/cg/unified"), Some("/cg/memory"), None, None],
        ),
    ];
    for (case, mounts, cgroups, expected) in table {
        let found = Hierarchies::parse(mounts, cgroups);
        let v1 = Controller::ALL.map(|controller| own(found.v1(controller)));
        assert_eq!([own(found.unified.as_ref()), v1[0], v1[1], v1[2]], *expected, "{case}");
    }
}

#[test]
fn tells_what_is_missing() {
    let none = Cgroups::find_in("", "", true);
    let reason = "no cgroup2 file system is mounted".to_owned();
    assert_eq!(none.describe().freeze, Err(reason.clone()));
    assert_eq!(none.describe().memory, Err(reason));
    let cgroup = none.create("a", &Resources::default()).unwrap();
    assert_eq!((&cgroup, cgroup.usage()), (&Cgroup::default(), Usage::default()));
    assert_eq!(cgroup.freeze().unwrap_err().kind(), io::ErrorKind::Unsupported);
    assert_eq!(cgroup.kill().unwrap_err().kind(), io::ErrorKind::Unsupported);
    cgroup.remove().unwrap();
    let limits = Resources { pids: Some(9), ..Resources::default() };
    let refusal = none.create("a", &limits).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "this machine cannot limit pids: no cgroup2 file system is mounted"
    );

    let pure = tempfile::tempdir().unwrap();
    fs::write(pure.path().join("cgroup.controllers"), "cpuset cpu memory\n").unwrap();
    let mounts = format!("1 1 0:1 / {} rw - cgroup2 none rw", pure.path().display());
    let found = Cgroups::find_in(&mounts, "0::/own", true);
    assert_eq!(found.unified.as_deref(), Ok(pure.path()));
    assert_eq!([&found.memory, &found.cpu], [&Source::Unified; 2]);
    assert!(matches!(&found.pids, Source::None(reason) if reason.contains("no controller `pids`")));

    // A directory that is no cgroup has nothing to hand down.
    let limits = Resources { memory_bytes: Some(1 << 30), ..Resources::default() };
    let refusal = found.create("a", &limits).unwrap_err().to_string();
    assert!(refusal.starts_with("this machine cannot limit memory: failed to enable"), "{refusal}");
    assert!(!pure.path().join("forkpoint").exists());

    let delegated = Cgroups::find_in(&mounts, "0::/own", false);
    assert!(delegated.unified.unwrap_err().ends_with("/own` cannot be written to"));
    fs::create_dir(pure.path().join("own")).unwrap();
    fs::write(pure.path().join("own/cgroup.procs"), "").unwrap();
    let delegated = Cgroups::find_in(&mounts, "0::/own", false);
    assert_eq!(delegated.unified, Ok(pure.path().join("own")));
}

/// A cgroup that is killed and removed when the test is over, however it ends.
struct Held(Cgroup);

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let removed = self.0.remove();
        if !std::thread::panicking() {
            removed.unwrap();
            let left = self.0.unified.iter().chain(&self.0.v1).find(|path| path.exists());
            assert_eq!(left, None);
        }
    }
}

fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The machine's cgroups. Not being root is the one reason to do without, and is told.
fn machine(test: &str) -> Option<Cgroups> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("`{test}` needs root");
        return None;
    }
    Some(Cgroups::find())
}

fn create(cgroups: &Cgroups, limits: Resources) -> Held {
    Held(cgroups.create(&unique(), &limits).unwrap())
}

/// Runs a script in the cgroup, the way a sandbox gets there but for its birth.
fn run(cgroup: &Cgroup, script: &str) -> Child {
    let tasks = cgroup.tasks_files().unwrap();
    assert!(tasks.len() <= 1, "it has one standard output");
    let unified = cgroup.unified.as_ref().unwrap().join("cgroup.procs");
    let enter = if tasks.is_empty() { "" } else { "echo 0 || exit 99;" };
    Command::new("sh")
        .args(["-c", &format!("{enter} echo 0 >&2 || exit 98; {script}")])
        .stdin(Stdio::null())
        .stdout(tasks.into_iter().next().map_or_else(Stdio::null, Into::into))
        .stderr(OpenOptions::new().write(true).open(unified).unwrap())
        .spawn()
        .unwrap()
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if condition() {
            return;
        }
        rest(Duration::from_millis(1));
    }
    panic!("{what} did not come");
}

/// Whether the kernel has counted one of these.
fn counts(cgroup: &Cgroup, file: &str, event: &str) -> bool {
    cgroup.unified.iter().chain(&cgroup.v1).any(|path| {
        let text = fs::read_to_string(path.join(file)).unwrap_or_default();
        text.lines()
            .any(|line| line.split_once(' ').is_some_and(|(name, n)| name == event && n != "0"))
    })
}

fn rest(time: Duration) {
    let time = rustix::time::Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
    let _ = rustix::thread::nanosleep(&time);
}

#[test]
fn this_machine_has_all() {
    let Some(cgroups) = machine("this_machine_has_all") else { return };
    let description = cgroups.describe();
    assert_eq!([&description.freeze, &description.kill], [&Ok(()); 2]);
    for limit in [&description.memory, &description.cpu, &description.pids] {
        assert!(limit.is_ok(), "{limit:?}");
    }
    let probe = cgroups.unified.unwrap().join(format!("forkpoint/probe-{}", std::process::id()));
    assert!(!probe.exists());
}

#[test]
fn freezes_and_thaws_and_kills() {
    let Some(cgroups) = machine("freezes_and_thaws_and_kills") else { return };
    let Held(cgroup) = &create(&cgroups, Resources::default());
    assert!(cgroup.pids().unwrap().is_empty());
    let mut child = run(cgroup, "sleep 1000 & while :; do :; done");
    let used = || cgroup.usage().cpu.unwrap();
    wait_until("work", || used() > Duration::from_millis(20));

    cgroup.freeze().unwrap();
    assert!(cgroup.is_frozen().unwrap());
    cgroup.freeze().unwrap();
    let before = used();
    rest(Duration::from_millis(50));
    assert_eq!(used(), before);
    assert!(cgroup.pids().unwrap().contains(&child.id()));
    assert_eq!(cgroup.usage().pids, Some(2));

    cgroup.thaw().unwrap();
    wait_until("work", || used() > before);
    assert!(!cgroup.is_frozen().unwrap());

    cgroup.freeze().unwrap();
    cgroup.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    wait_until("an end", || cgroup.pids().unwrap().is_empty());
    cgroup.remove().unwrap();

    cgroup.remove().unwrap();
    cgroup.kill().unwrap();
    assert!(cgroup.pids().unwrap().is_empty());
    assert!(cgroup.freeze().is_err());
}

#[test]
fn memory_has_a_limit() {
    let Some(cgroups) = machine("memory_has_a_limit") else { return };
    let limits = Resources { memory_bytes: Some(64 << 20), ..Resources::default() };
    let Held(cgroup) = &create(&cgroups, limits);
    let mut modest = run(cgroup, "exec dd if=/dev/zero of=/dev/null bs=16M count=1 2>/dev/null");
    assert!(modest.wait().unwrap().success());
    assert_eq!(cgroup.oom_kills(), Some(0));
    let mut hog = run(cgroup, "exec dd if=/dev/zero of=/dev/null bs=200M count=1 2>/dev/null");
    assert_eq!(hog.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert_eq!(cgroup.oom_kills(), Some(1));
    assert!(cgroup.usage().memory_bytes.unwrap() <= 64 << 20);
}

#[test]
fn processes_have_a_limit() {
    let Some(cgroups) = machine("processes_have_a_limit") else { return };
    let limits = Resources { pids: Some(5), ..Resources::default() };
    let Held(cgroup) = &create(&cgroups, limits);
    let script = "exec 2>/dev/null; (for i in 1 2 3 4 5 6 7 8 9; do sleep 1000 & done); sleep 1000";
    let mut bomb = run(cgroup, script);
    wait_until("the limit", || counts(cgroup, "pids.events", "max"));
    // With one for a sandbox's first process, which there is none of here.
    assert!(cgroup.usage().pids <= Some(6));
    assert!(cgroup.pids().unwrap().len() <= 6);
    cgroup.kill().unwrap();
    bomb.wait().unwrap();
}

#[test]
fn processors_have_a_limit() {
    let Some(cgroups) = machine("processors_have_a_limit") else { return };
    for millis in [1, 9, 10, 200, 64_000] {
        let limits = Resources { cpu_millis: Some(millis), ..Resources::default() };
        create(&cgroups, limits);
    }
    let limits = Resources { cpu_millis: Some(100), ..Resources::default() };
    let Held(cgroup) = &create(&cgroups, limits);
    let mut child = run(cgroup, "while :; do :; done");
    wait_until("the limit", || counts(cgroup, "cpu.stat", "nr_throttled"));
    cgroup.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn gives_what_a_birth_needs() {
    let Some(cgroups) = machine("gives_what_a_birth_needs") else { return };
    let limits = Resources { memory_bytes: Some(64 << 20), cpu_millis: Some(500), pids: Some(5) };
    let Held(cgroup) = &create(&cgroups, limits);
    assert_eq!(cgroup.tasks_files().unwrap().len(), cgroup.v1.len());
    let directory = cgroup.unified_dir().unwrap().unwrap();
    rustix::fs::accessat(
        directory.as_fd(),
        "cgroup.procs",
        Access::WRITE_OK,
        rustix::fs::AtFlags::empty(),
    )
    .unwrap();
    let text = serde_json::to_string(cgroup).unwrap();
    assert_eq!(serde_json::from_str::<Cgroup>(&text).unwrap(), *cgroup);
}

/// Ours alone, so that all that is left in it can be told.
fn apart(cgroups: &Cgroups) -> Held {
    let path = cgroups.unified.clone().unwrap().join(unique());
    fs::create_dir(&path).unwrap();
    Held(Cgroup { unified: Some(path), v1: Vec::new() })
}

#[test]
fn leaves_nothing() {
    let Some(cgroups) = machine("leaves_nothing") else { return };
    let held = apart(&cgroups);
    let base = held.0.unified.clone().unwrap();
    let cgroups = Cgroups { unified: Ok(base.clone()), ..cgroups };
    let is_clean = || directory::children(&base).unwrap().is_empty();

    let (first, second) =
        (create(&cgroups, Resources::default()), create(&cgroups, Resources::default()));
    drop(first);
    assert!(base.join("forkpoint").is_dir(), "another is in it");
    drop(second);
    assert!(is_clean());

    // Made, but for the directory of one limit.
    let cgroups = Cgroups { memory: Source::V1("/proc/self".into()), ..cgroups };
    let limits = Resources { memory_bytes: Some(1 << 30), ..Resources::default() };
    let failure = cgroups.create(&unique(), &limits).unwrap_err();
    assert!(matches!(failure, CgroupError::Create { .. }), "{failure:?}");
    assert!(is_clean());
    for name in ["", ".", "..", "a/b"] {
        cgroups.create(name, &Resources::default()).unwrap_err();
    }
    assert!(is_clean());
}

#[test]
fn replaces_what_nobody_is_in() {
    let Some(cgroups) = machine("replaces_what_nobody_is_in") else { return };
    let limits = Resources { memory_bytes: Some(64 << 20), ..Resources::default() };
    let name = unique();
    let Held(first) = &Held(cgroups.create(&name, &limits).unwrap());
    assert_eq!(cgroups.create(&name, &limits).unwrap(), *first);
    let mut child = run(first, "exec sleep 1000");
    wait_until("a process", || first.pids().unwrap().contains(&child.id()));
    assert!(cgroups.create(&name, &limits).is_err());
    assert_eq!(first.pids().unwrap(), [child.id()], "it was left alone");
    first.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn many_come_and_go_at_once() {
    let Some(cgroups) = machine("many_come_and_go_at_once") else { return };
    let held = apart(&cgroups);
    let base = held.0.unified.clone().unwrap();
    let cgroups = Cgroups { unified: Ok(base.clone()), ..cgroups };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..100).for_each(|_| drop(create(&cgroups, Resources::default()))));
        }
    });
    assert_eq!(directory::children(&base).unwrap(), Vec::<PathBuf>::new());
}

#[test]
fn removal_waits_for_an_end_but_not_for_ever() {
    let Some(cgroups) = machine("removal_waits_for_an_end_but_not_for_ever") else { return };
    let Held(cgroup) = &create(&cgroups, Resources::default());
    let mut child = run(cgroup, "exec sleep 1000");
    wait_until("a process", || cgroup.pids().unwrap().contains(&child.id()));
    let path = cgroup.unified.as_ref().unwrap();
    let soon = Deadline::after(Duration::from_millis(20));
    let failure = directory::remove(path, soon).unwrap_err();
    assert_eq!(failure.raw_os_error(), Some(libc::EBUSY));
    cgroup.kill().unwrap();
    cgroup.remove().unwrap();
    assert!(!path.exists());
    child.wait().unwrap();
}
