//! Several command lines at once, on one sandbox and on many.

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader},
    process::Child,
};

use rustix::process::Signal;

use crate::harness::{Holder, Home, Run, Started, ended, signal};

fn ends(children: Vec<Started>) -> Vec<Run> {
    children.into_iter().map(ended).collect()
}

#[test]
fn snapshots_of_one_sandbox_wait_for_each_other() {
    let home = Home::with_web();
    let children = (0..6).map(|_| home.start(["snapshot", "web", "--wait", "30s"])).collect();
    for run in ends(children) {
        assert_eq!(run.code, Some(0), "{run:?}");
    }
    assert_eq!(home.ok(["list", "-q"]).stdout.lines().count(), 6);
    let tree = home.ok(["log", "--json"]).json();
    let depths: Vec<u64> = tree["snapshots"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|node| node["depth"].as_u64())
        .collect();
    assert_eq!(depths, [0, 1, 2, 3, 4, 5], "each came after another: {tree}");
}

#[test]
fn without_waiting_a_second_is_told_who_is_in_the_way() {
    let home = Home::with_web();
    let children = (0..8).map(|_| home.start(["snapshot", "web"])).collect();
    let mut taken = 0;
    for run in ends(children) {
        match run.code {
            Some(0) => taken += 1,
            Some(4) => assert!(
                run.stderr.contains("is busy") && run.stderr.contains("--wait 10s"),
                "{run:?}"
            ),
            _ => panic!("{run:?}"),
        }
    }
    assert!(taken >= 1);
    assert_eq!(home.ok(["list", "-q"]).stdout.lines().count(), taken);
}

#[test]
fn one_name_is_given_once() {
    let home = Home::new();
    let children = (0..6).map(|_| home.start(["create", "--name", "web"])).collect();
    let runs = ends(children);
    assert_eq!(runs.iter().filter(|run| run.code == Some(0)).count(), 1, "{runs:?}");
    assert!(runs.iter().all(|run| matches!(run.code, Some(0 | 4))), "{runs:?}");
    assert_eq!(home.ok(["ps", "-q"]).stdout.lines().count(), 1);
}

#[test]
fn many_sandboxes_come_and_go_side_by_side() {
    let home = Home::new();
    let script = |n: usize| format!("echo {n} > /srv/n; cat /srv/n");
    let children =
        (0..8).map(|n| home.start(["run", "--rm", "--", "sh", "-c", &script(n)])).collect();
    for (n, run) in ends(children).into_iter().enumerate() {
        assert_eq!((run.code, run.stdout), (Some(0), format!("{n}\n")), "{}", run.stderr);
    }
    assert_eq!(home.ok(["ps", "-q"]).stdout, "");
}

#[test]
fn commands_in_one_sandbox_run_side_by_side() {
    let home = Home::with_web();
    let children =
        (0..8).map(|n| home.start(["exec", "web", "--", "echo", &n.to_string()])).collect();
    for (n, run) in ends(children).into_iter().enumerate() {
        assert_eq!((run.code, run.stdout), (Some(0), format!("{n}\n")), "{}", run.stderr);
    }
}

#[test]
fn a_killed_command_line_leaves_nothing_in_the_way() {
    let home = Home::with_web();
    for _ in 0..10 {
        let mut child = home.start(["snapshot", "web"]);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    home.sh("web", "echo alive > /srv/file");
    home.ok(["snapshot", "web", "--name", "after", "--wait", "10s"]);
    home.ok(["rollback", "web", "after"]);
    assert_eq!(home.sh("web", "cat /srv/file"), "alive\n");
}

/// Two files that are always written together, so that what is half of one moment and half of another shows.
fn pair(home: &Home, sandbox: &str) -> String {
    let text = home.sh(sandbox, "cat /srv/a; cat /srv/b");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() == 2 && lines[0] == lines[1], "{sandbox}: {text}");
    lines[0].to_owned()
}

/// Every verb that changes a sandbox, several times each, in an order that nobody knows.
fn storm(home: &Home, rounds: usize, last: &[&[&str]]) -> Vec<(String, Run)> {
    let verbs = [
        "snapshot web --name s{}",
        "rollback web base",
        "fork web --name f{}",
        "stop web",
        "snapshot web --full=auto --name a{}",
        "start web",
        "rollback web full",
        "fork base -n 2 --name b{}",
        "start web",
    ];
    let mut started = Vec::new();
    for round in 0..rounds {
        for verb in verbs {
            let verb = verb.replace("{}", &round.to_string());
            let args: Vec<&str> = verb.split(' ').chain(["--wait", "5m"]).collect();
            started.push((verb.clone(), home.start(&args)));
        }
    }
    started.extend(last.iter().map(|args| (args.join(" "), home.start(args.iter().copied()))));
    started.into_iter().map(|(verb, child)| (verb, ended(child))).collect()
}

fn with_two_snapshots() -> Home {
    let home = Home::with_web();
    home.sh("web", "echo base | tee /srv/a > /srv/b");
    home.ok(["snapshot", "web", "--name", "base"]);
    home.sh("web", "echo full | tee /srv/a > /srv/b; sleep 100000 > /dev/null 2>&1 < /dev/null &");
    home.ok(["snapshot", "web", "--full", "--name", "full"]);
    home
}

/// What the catalog knows is there, and all of it is whole.
fn assert_whole(home: &Home) {
    let known = home.ok(["ps", "-q"]).stdout;
    assert_eq!(known.lines().map(str::to_owned).collect::<BTreeSet<_>>(), home.sandboxes());
    for id in known.lines() {
        let text = pair(home, id);
        assert!(["base", "full"].contains(&text.as_str()), "{text}");
    }
    for id in home.ok(["list", "-q"]).stdout.lines() {
        let copy = home.ok(["restore", id]).id().to_owned();
        pair(home, &copy);
        home.ok(["rm", "--force", &copy]);
    }
}

#[test]
fn a_storm_of_all_verbs_on_one_sandbox_takes_turns() {
    let home = with_two_snapshots();
    for (verb, run) in storm(&home, 3, &[]) {
        assert_eq!(run.code, Some(0), "{verb}: {run:?}");
    }
    home.ok(["start", "web"]);
    assert_whole(&home);
    assert_eq!(
        home.ok(["list", "-q"]).stdout.lines().count(),
        2 + 3 * 3,
        "a fork keeps what it forks"
    );
    assert_eq!(home.ok(["ps", "-q"]).stdout.lines().count(), 1 + 3 * 3);
}

#[test]
fn a_storm_in_which_the_sandbox_goes_leaves_what_was_kept() {
    let home = with_two_snapshots();
    for (verb, run) in storm(&home, 2, &[&["rm", "--force", "web", "--wait", "5m"]]) {
        // Gone before its turn came, or while it was looked for.
        assert!(matches!(run.code, Some(0 | 3)), "{verb}: {run:?}");
    }
    let names = home.ok(["ps", "--json"]).json();
    let names = names["sandboxes"].as_array().unwrap().iter().map(|each| each["name"].clone());
    assert!(!names.into_iter().any(|name| name == "web"), "it is gone");
    assert_whole(&home);
}

#[test]
fn who_holds_it_is_told() {
    let home = Home::with_web();
    let holder = Holder::of_web(&home);
    for verb in ["snapshot", "stop", "rm", "fork"] {
        let run = home.run([verb, "web"]);
        assert_eq!(run.code, Some(4), "{run:?}");
        assert!(
            run.stderr.contains("snapshot `opr00000000000000000000000007` holds it"),
            "{run:?}"
        );
        assert!(run.stderr.contains("hint: wait for the other operation with `--wait 10s`"));
    }
    let json = home.run(["snapshot", "web", "--json", "--wait", "50ms"]);
    assert!(json.stderr.contains("\"kind\": \"busy\""), "{json:?}");
    assert_eq!(home.sh("web", "echo commands need no turn"), "commands need no turn\n");
    drop(holder);
    let cleared = home.ok(["-v", "ps"]).stderr;
    assert_eq!(cleared, "recovery undid operation `opr00000000000000000000000007`\n");
}

#[test]
fn the_first_interrupt_lets_it_finish_and_the_second_leaves() {
    let home = Home::with_web();
    let _holder = Holder::of_web(&home);
    let mut child = home.start(["snapshot", "web", "--wait", "10m"]);
    let mut stderr = BufReader::new(child.stderr.take().expect("its messages"));
    // It listens for signals by the time that it can be seen to wait for the catalog's answer.
    await_handler(&child, Signal::INT);
    signal(&child, Signal::INT);
    let mut line = String::new();
    stderr.read_line(&mut line).expect("a line");
    assert_eq!(line, "taking a snapshot: finishing… (again to leave at once)\n");
    signal(&child, Signal::INT);
    assert_eq!(ended(child).code, Some(130));
}

/// Until the process has a handler of its own for a signal.
fn await_handler(child: &Child, signal: Signal) {
    let status = format!("/proc/{}/status", child.id());
    let bit = 1_u64 << (signal.as_raw() - 1);
    loop {
        let text = std::fs::read_to_string(&status).expect("it runs");
        let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0");
        if u64::from_str_radix(caught.trim(), 16).unwrap_or(0) & bit != 0 {
            return;
        }
        std::thread::yield_now();
    }
}
