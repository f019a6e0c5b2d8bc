//! Ctrl-C in the middle of what can be long: all of it, or nothing half-done, and 130.

use std::{
    collections::BTreeSet, fs, os::unix::process::ExitStatusExt as _, path::Path,
    process::ExitStatus, time::Duration,
};

use rustix::process::Signal;

use crate::harness::{Home, signal, wait_until};

/// Between two moments, at first.
const STEP: Duration = Duration::from_millis(1);
/// More than any of the verbs takes, however busy the machine: a run that ends before is the last.
const LATEST: Duration = Duration::from_secs(60);

/// Runs `args` again and again, each time interrupted a little later, until it ends by itself. Whoever
/// has not begun yet dies of the signal, which a shell tells as 130 too.
fn interrupt_at_moments(home: &Home, args: &[&str], mut after: impl FnMut(usize)) {
    let temporary = home.path().join("tmp");
    fs::create_dir_all(&temporary).expect("a directory");
    let mut moment = Duration::ZERO;
    for round in 0.. {
        assert!(moment < LATEST, "{args:?} never ends");
        let mut child = home.start_in(&temporary, args);
        let ended = wait_until(moment, || child.try_wait().expect("a child").is_some());
        if !ended {
            signal(&child, Signal::INT);
        }
        let status = child.wait().expect("a child");
        assert!(is_expected(status, ended), "{args:?}, round {round}: {status}");
        assert_eq!(names(&temporary), BTreeSet::new(), "{args:?}, round {round}");
        after(round);
        if ended {
            return;
        }
        moment += STEP.max(moment / 16);
    }
}

/// A signal may come too late: then the work is done.
fn is_expected(status: ExitStatus, ended: bool) -> bool {
    match (status.code(), status.signal()) {
        (Some(0), _) => true,
        (Some(130), _) | (None, Some(2)) => !ended,
        _ => false,
    }
}

/// Everything below a directory.
fn names(directory: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).expect("a directory").flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                pending.push(entry.path());
            }
            names.insert(entry.path().display().to_string());
        }
    }
    names
}

#[test]
fn an_interrupted_apply_brings_everything_home_or_nothing() {
    const FILES: usize = 40;
    let home = Home::new();
    let dir = home.path().join("project");
    fs::create_dir_all(dir.join("d")).expect("a directory");
    for number in 0..FILES {
        fs::write(dir.join(format!("d/{number}")), "0").expect("a file");
    }
    home.ok(["create", "--name", "web", "--workspace", dir.to_str().expect("text")]);
    let change = |round: usize| {
        let script = format!("for n in $(seq 0 {}); do printf {round} > d/$n; done", FILES - 1);
        home.sh("web", &script);
    };
    let before = names(&dir);
    let read = |number: usize| fs::read_to_string(dir.join(format!("d/{number}"))).expect("a file");
    let (mut was, mut wanted) = ("0".to_owned(), 1);
    change(wanted);
    interrupt_at_moments(&home, &["apply", "web"], |round| {
        let now: BTreeSet<String> = (0..FILES).map(read).collect();
        let new = wanted.to_string();
        assert!(now == [was.clone()].into() || now == [new.clone()].into(), "{round}: {now:?}");
        assert_eq!(names(&dir), before, "round {round}");
        if now.contains(&new) {
            (was, wanted) = (new, wanted + 1);
            change(wanted);
        }
    });
    home.ok(["apply", "web"]);
    assert_eq!(read(0), wanted.to_string());
}

#[test]
fn an_interrupted_diff_leaves_nothing() {
    let home = Home::new();
    let dir = home.path().join("project");
    fs::create_dir(&dir).expect("a directory");
    home.ok(["create", "--name", "web", "--workspace", dir.to_str().expect("text")]);
    home.sh("web", "for n in $(seq 300); do echo $n > $n; done");
    let data = home.path().join("data/local");
    let before = (names(&data), names(&dir));
    for args in [&["diff", "web", "--stat"][..], &["apply", "web", "--patch"]] {
        interrupt_at_moments(&home, args, |round| {
            assert_eq!((names(&data), names(&dir)), before, "{args:?}, round {round}");
        });
    }
}

/// A reader who takes nothing keeps it in the middle of printing.
#[test]
fn a_patch_that_is_being_printed_can_be_interrupted() {
    let home = Home::new();
    let dir = home.path().join("project");
    fs::create_dir(&dir).expect("a directory");
    home.ok(["create", "--name", "web", "--workspace", dir.to_str().expect("text")]);
    home.sh("web", "for n in $(seq 3000); do echo $n > $n; done");
    let whole = home.ok(["apply", "web", "--patch"]).stdout.len();
    assert!(whole > 256 << 10, "more than a pipe holds: {whole}");
    for args in [["apply", "web", "--patch"], ["diff", "web", "--patch"]] {
        let mut child = home.start(args);
        let mut stdout = child.stdout.take().expect("its output");
        let mut seen = vec![0; 1000];
        std::io::Read::read_exact(&mut stdout, &mut seen).expect("its beginning");
        signal(&child, Signal::INT);
        std::io::Read::read_to_end(&mut stdout, &mut seen).expect("the rest");
        assert_eq!(child.wait().expect("it ends").code(), Some(130), "{args:?}");
        assert!(seen.len() < whole, "{args:?}: {} of {whole}", seen.len());
    }
}

#[test]
fn an_interrupted_prune_deletes_whole_snapshots() {
    let home = Home::with_web();
    let mut taken = 0;
    let mut take = || {
        for _ in 0..6 {
            home.sh("web", &format!("echo {taken} > /srv/n"));
            home.ok(["snapshot", "web", "--name", &format!("s{taken}"), "--no-sync"]);
            taken += 1;
        }
        taken - 1
    };
    let mut last = take();
    interrupt_at_moments(&home, &["prune", "--max-per-sandbox", "1", "--force"], |round| {
        let listed = home.ok(["list", "--json"]).json();
        let listed = listed["snapshots"].as_array().expect("a list");
        for name in listed.iter().map(|snapshot| snapshot["name"].as_str().expect("a text")) {
            let held = home.ok(["cat", &format!("{name}:/srv/n")]).stdout;
            assert_eq!(format!("s{}", held.trim_end()), name, "round {round}");
        }
        home.ok(["validate", "web"]);
        if listed.len() == 1 {
            last = take();
        }
    });
    home.ok(["prune", "--max-per-sandbox", "1", "--force"]);
    assert_eq!(home.ok(["list", "-q"]).stdout.lines().count(), 1);
    let id = home.ok(["restore", &format!("s{last}")]).id().to_owned();
    assert_eq!(home.sh(&id, "cat /srv/n"), format!("{last}\n"));
}
