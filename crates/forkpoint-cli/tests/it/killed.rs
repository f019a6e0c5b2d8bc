//! The command line, killed at every moment of what it does.

use std::{collections::BTreeSet, fs, time::Duration};

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::harness::{Home, ended as ended_run, until, wait_until};

mod busy;

/// Between two moments, at first. Later ones lie further apart, so that a verb that takes long on a busy
/// machine is not tried a thousand times.
const STEP: Duration = Duration::from_micros(400);
/// More than any of the verbs takes, however busy the machine: a run that ends before is the last.
const LATEST: Duration = Duration::from_secs(60);

/// Runs `args` again and again, each time killed a little later, until it ends by itself.
fn kill_at_every_moment(home: &Home, args: &[&str], mut after: impl FnMut(usize)) {
    let mut moment = Duration::ZERO;
    for round in 0.. {
        assert!(moment < LATEST, "{args:?} never ends");
        let args: Vec<String> =
            args.iter().map(|arg| arg.replace("{}", &round.to_string())).collect();
        let mut child = home.start(args);
        let ended = wait_until(moment, || child.try_wait().expect("a child").is_some());
        // It may have ended in between: then there is nobody to kill.
        let _ = child.kill();
        child.wait().expect("a child");
        after(round);
        if ended {
            let run = ended_run(child);
            assert_eq!(run.code, Some(0), "{run:?}");
            return;
        }
        moment += STEP.max(moment / 32);
    }
}

/// What the catalog knows is what there is. A process that was killed while it started another one is
/// alive until that one is itself, so the first to come may find an operation that still has an owner.
fn assert_agreed(home: &Home) {
    let mut seen = (BTreeSet::new(), BTreeSet::new());
    let agreed = until(|| {
        seen = (known(home), home.sandboxes());
        seen.0 == seen.1
    });
    assert!(agreed, "known: {:?}, there: {:?}", seen.0, seen.1);
    let states = home.ok(["ps", "--json"]).json();
    for sandbox in states["sandboxes"].as_array().expect("a list") {
        assert_eq!(sandbox["state"], "running", "{sandbox}");
    }
}

fn known(home: &Home) -> BTreeSet<String> {
    home.ok(["ps", "-q"]).stdout.lines().map(str::to_owned).collect()
}

#[test]
fn a_killed_create_makes_all_of_a_sandbox_or_nothing() {
    let home = Home::new();
    kill_at_every_moment(&home, &["create"], |_| assert_agreed(&home));
    assert!(home.ok(["ps", "-q"]).stdout.lines().count() >= 1);
}

#[test]
fn a_killed_snapshot_is_taken_or_not_and_the_sandbox_works_on() {
    let home = Home::with_web();
    home.sh("web", "echo 0 > /srv/n");
    kill_at_every_moment(&home, &["snapshot", "web", "--name", "s{}", "--no-sync"], |round| {
        assert_eq!(home.sh("web", "cat /srv/n"), format!("{round}\n"));
        home.sh("web", &format!("echo {} > /srv/n", round + 1));
    });
    assert_agreed(&home);
    let names = home.ok(["list", "--json"]).json();
    let names: Vec<String> = names["snapshots"]
        .as_array()
        .unwrap()
        .iter()
        .map(|snapshot| snapshot["name"].as_str().expect("a text").to_owned())
        .collect();
    assert!(!names.is_empty());
    for name in names {
        let id = home.ok(["restore", &name]).id().to_owned();
        let expected = format!("{}\n", name.strip_prefix('s').expect("a name"));
        assert_eq!(home.sh(&id, "cat /srv/n"), expected, "{name}");
        home.ok(["rm", "--force", &id]);
    }
}

#[test]
fn a_killed_rollback_was_done_or_not() {
    let home = Home::with_web();
    home.sh("web", "echo good > /srv/n");
    home.ok(["snapshot", "web", "--name", "good", "--no-sync"]);
    kill_at_every_moment(&home, &["rollback", "web", "good"], |round| {
        assert_agreed(&home);
        let now = home.sh("web", "cat /srv/n");
        assert!(now == "good\n" || now == format!("bad {}\n", round.wrapping_sub(1)), "{now}");
        home.sh("web", &format!("echo bad {round} > /srv/n"));
    });
    home.ok(["rollback", "web", "good"]);
    assert_eq!(home.sh("web", "cat /srv/n"), "good\n");
}

#[test]
fn a_killed_fork_makes_all_copies_or_none() {
    let home = Home::with_web();
    home.sh("web", "echo good > /srv/n");
    home.ok(["snapshot", "web", "--name", "good", "--no-sync"]);
    kill_at_every_moment(&home, &["fork", "good", "-n", "2"], |_| {
        assert_agreed(&home);
        let ids = known(&home);
        assert!(ids.len() == 1 || ids.len() == 3, "{ids:?}");
        for id in &ids {
            assert_eq!(home.sh(id, "cat /srv/n"), "good\n");
        }
        let web = home.ok(["ps", "--json"]).json();
        let is_copy = |sandbox: &&Value| sandbox["name"] != "web";
        for copy in web["sandboxes"].as_array().expect("a list").iter().filter(is_copy) {
            home.ok(["rm", "--force", copy["id"].as_str().expect("a text")]);
        }
    });
}

/// Counts in its memory for ever.
const COUNTER: &str = "(i=0; while :; do i=$((i+1)); echo $i > /srv/new; mv /srv/new /srv/n; \
                       sleep 0.005; done) > /dev/null 2>&1 < /dev/null &";

fn counts_on(home: &Home, sandbox: &str) {
    let count = || home.sh(sandbox, "cat /srv/n").trim().parse::<u64>().expect("a number");
    let now = count();
    assert!(until(|| count() > now), "{sandbox} does not count");
}

/// Waits without a process of its own and touches nothing, so that it is the same process that goes back in place.
const WAITING: &str = "mkfifo /srv/ask; exec bash -c 'exec 3<>/srv/ask; i=0; while :; do i=$((i+1)); \
                       read -t 0.02 -u 3 x && echo $i > /srv/i; done' > /dev/null 2>&1 < /dev/null &";

/// Whoever dies half-way takes the processes along: the sandbox stands then, with files of one moment.
#[test]
fn a_killed_rollback_of_what_runs_was_done_or_not_or_the_sandbox_stands() {
    let home = Home::with_web();
    home.sh("web", &format!("echo good > /srv/a; echo good > /srv/b; {WAITING}"));
    let asked = || {
        // A shell whose time is over while it reads throws away what it read.
        let ask = "until [ -s /srv/i ]; do [ -p /srv/ask ] && echo > /srv/ask; sleep 0.02; done; cat /srv/i; rm /srv/i";
        home.sh("web", ask).trim().parse::<u64>().expect("a number")
    };
    let before = asked();
    home.ok(["snapshot", "web", "--full", "--name", "good", "--no-sync"]);
    let id = home.ok(["ps", "-q"]).id().to_owned();
    let init = || home.init_of(&id);
    let first = init();
    let mut in_place = 0;
    kill_at_every_moment(&home, &["rollback", "web", "good"], |round| {
        let sandboxes = home.ok(["ps", "--json"]).json();
        if sandboxes["sandboxes"][0]["state"] == "stopped" {
            home.ok(["start", "web"]);
        }
        let now = home.sh("web", "cat /srv/a /srv/b; rm -f /srv/new");
        let bad = format!("bad {0}\nbad {0}\n", round.wrapping_sub(1));
        assert!(now == "good\ngood\n" || now == bad, "round {round}: {now}");
        home.ok(["rollback", "web", "good"]);
        assert_eq!(
            home.sh("web", "cat /srv/a /srv/b; ls /srv/new 2>&1 | wc -l"),
            "good\ngood\n1\n"
        );
        in_place += u32::from(init() == first);
        assert!(asked() > before, "round {round}: it does not count on");
        home.sh("web", &format!("echo bad {round} | tee /srv/a > /srv/b; echo new > /srv/new"));
    });
    assert!(in_place > 0, "until then, the same process went back");
    assert_agreed(&home);
}

#[test]
fn a_killed_full_snapshot_is_taken_or_not_and_what_runs_goes_on() {
    let home = Home::with_web();
    home.sh("web", COUNTER);
    assert!(until(|| home.run(["exec", "web", "--", "test", "-e", "/srv/n"]).code == Some(0)));
    let args = ["snapshot", "web", "--full", "--name", "s{}", "--no-sync"];
    kill_at_every_moment(&home, &args, |_| counts_on(&home, "web"));
    assert_agreed(&home);
    let names = home.ok(["list", "-q"]).stdout;
    let names: Vec<&str> = names.lines().collect();
    let images = fs::read_dir(home.path().join("data/local/memory")).expect("images").count();
    assert_eq!(images, names.len(), "nothing is kept that nobody knows");
    for name in &names {
        let copy = home.ok(["restore", name]).id().to_owned();
        counts_on(&home, &copy);
        home.ok(["rm", "--force", &copy]);
    }
    kill_at_every_moment(&home, &["restore", names[0], "--name", "copy{}"], |_| {
        assert_agreed(&home);
        let web = home.ok(["ps", "--json"]).json();
        let is_copy = |sandbox: &&Value| sandbox["name"] != "web";
        for copy in web["sandboxes"].as_array().expect("a list").iter().filter(is_copy) {
            let id = copy["id"].as_str().expect("a text");
            counts_on(&home, id);
            home.ok(["rm", "--force", id]);
        }
    });
    kill_at_every_moment(&home, &["rollback", "web", names[0]], |_| {
        assert_agreed(&home);
        counts_on(&home, "web");
    });
}

#[test]
fn a_sandbox_whose_first_process_is_killed_is_told_as_stopped_and_starts_again() {
    let home = Home::with_web();
    home.sh("web", "echo kept > /srv/n");
    home.ok(["snapshot", "web", "--name", "good", "--no-sync"]);
    let init = home.init_of(home.ok(["ps", "-q"]).id());
    kill_process(init, Signal::KILL).expect("it is killed");
    let state = || home.ok(["ps", "--json"]).json()["sandboxes"][0]["state"].clone();
    assert!(until(|| state() == "stopped"), "{}", state());
    let run = home.run(["exec", "web", "--", "true"]);
    assert!(run.code == Some(125) && run.stderr.contains("forkpoint start web"), "{run:?}");
    home.ok(["start", "web"]);
    assert_eq!((home.sh("web", "cat /srv/n").as_str(), state()), ("kept\n", "running".into()));
    let copy = home.ok(["restore", "good"]).id().to_owned();
    assert_eq!(home.sh(&copy, "cat /srv/n"), "kept\n");
}

#[test]
fn a_killed_create_with_a_copy_of_a_directory_leaves_no_copy_alone() {
    let home = Home::new();
    let dir = home.path().join("project");
    for number in 0..50 {
        fs::create_dir_all(dir.join(format!("{number}"))).expect("a directory");
        fs::write(dir.join(format!("{number}/file")), "content").expect("a file");
    }
    let dir = dir.to_str().expect("text");
    let args = ["create", "--workspace", dir, "--workspace-mode", "copy"];
    kill_at_every_moment(&home, &args, |_| {
        assert_agreed(&home);
        let copies = fs::read_dir(home.path().join("data/local/store/layers"));
        let copies = copies.into_iter().flatten().count();
        assert_eq!(copies, known(&home).len(), "copies and sandboxes");
        for id in known(&home) {
            assert_eq!(home.sh(&id, "cat */file | wc -c"), "350\n");
            home.ok(["rm", "--force", &id]);
        }
    });
}

#[test]
fn a_killed_apply_leaves_each_file_as_it_was_or_as_it_will_be() {
    const FILES: usize = 30;
    for mode in ["live", "copy"] {
        let home = Home::new();
        let dir = home.path().join("project");
        fs::create_dir_all(dir.join("d")).expect("a directory");
        let read = |number: usize| {
            let path = dir.join(format!("d/{number}"));
            fs::read_to_string(path).unwrap_or_else(|_| "gone".to_owned())
        };
        for number in 0..FILES {
            fs::write(dir.join(format!("d/{number}")), "0").expect("a file");
        }
        let source = dir.to_str().expect("text");
        let args = ["create", "--name", "web", "--workspace", source, "--workspace-mode", mode];
        home.ok(args);
        let change = |round: usize| {
            let script = format!(
                "for n in $(seq 0 {}); do printf {round} > d/$n; done; rm d/$(({round} % {FILES}))",
                FILES - 1
            );
            home.sh("web", &script);
        };
        change(1);
        let mut before: Vec<String> = (0..FILES).map(read).collect();
        kill_at_every_moment(&home, &["apply", "web"], |round| {
            let (now, round) = ((0..FILES).map(read).collect::<Vec<_>>(), round + 1);
            for (number, (now, before)) in now.iter().zip(&before).enumerate() {
                let new = match number == round % FILES {
                    true => "gone".to_owned(),
                    false => round.to_string(),
                };
                assert!(*now == new || now == before, "{number}: {before} {now} {new}");
            }
            before = now;
            change(round + 1);
        });
        let told = home.ok(["apply", "web"]);
        assert!(told.stdout.contains("changed d/"), "{told:?}");
        let left = fs::read_dir(&dir).expect("a directory").flatten();
        let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
        assert_eq!(left, ["d"], "{mode}");
    }
}
