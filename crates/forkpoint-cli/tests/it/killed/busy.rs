//! Killed while it keeps what runs, or while it makes copies of it.

use std::collections::BTreeSet;

use super::{COUNTER, assert_agreed, counts_on, kill_at_every_moment, known};
use crate::harness::{Home, until};

fn counting() -> Home {
    let home = Home::with_web();
    home.sh("web", COUNTER);
    assert!(until(|| home.run(["exec", "web", "--", "test", "-e", "/srv/n"]).code == Some(0)));
    home
}

fn snapshots(home: &Home) -> Vec<String> {
    home.ok(["list", "-q"]).stdout.lines().map(str::to_owned).collect()
}

/// Every snapshot, in a sandbox of its own.
fn each_restored(home: &Home, check: impl Fn(&str)) {
    let all = snapshots(home);
    assert!(!all.is_empty());
    for snapshot in all {
        let copy = home.ok(["restore", &snapshot]).id().to_owned();
        check(&copy);
        home.ok(["rm", "--force", &copy]);
    }
}

fn remove(home: &Home, copies: impl IntoIterator<Item = String>) {
    for copy in copies {
        home.ok(["rm", "--force", &copy]);
    }
}

#[test]
fn a_killed_fork_of_a_sandbox_makes_all_copies_or_none_and_it_works_on() {
    let home = Home::with_web();
    let web = known(&home);
    home.sh("web", "echo 0 > /srv/n");
    kill_at_every_moment(&home, &["fork", "web", "-n", "2"], |round| {
        assert_agreed(&home);
        let copies: BTreeSet<String> = known(&home).difference(&web).cloned().collect();
        assert!(copies.is_empty() || copies.len() == 2, "{copies:?}");
        for id in web.union(&copies) {
            assert_eq!(home.sh(id, "cat /srv/n"), format!("{round}\n"));
        }
        remove(&home, copies);
        home.sh("web", &format!("echo {} > /srv/n", round + 1));
    });
    each_restored(&home, |copy| {
        let number = home.sh(copy, "cat /srv/n");
        assert!(number.trim().parse::<usize>().is_ok(), "{number}");
    });
}

#[test]
fn a_killed_snapshot_of_a_busy_sandbox_is_taken_or_not_and_what_runs_goes_on() {
    let home = counting();
    let args = ["snapshot", "web", "--name", "s{}", "--no-sync"];
    kill_at_every_moment(&home, &args, |_| counts_on(&home, "web"));
    assert_agreed(&home);
    each_restored(&home, |copy| {
        let number = home.sh(copy, "cat /srv/n");
        assert!(number.trim().parse::<u64>().is_ok(), "{number}");
        assert_eq!(home.sh(copy, "pgrep -c sleep || true").trim(), "0", "files, and no processes");
    });
}

/// On the disk when it is told as taken: the step that takes longest is one that others wait for.
#[test]
fn a_killed_snapshot_that_is_to_survive_a_power_cut_is_taken_or_not() {
    let home = Home::with_web();
    home.sh("web", "echo 0 > /srv/n; head -c 300000 /dev/urandom > /srv/random");
    let sum = home.sh("web", "sha256sum < /srv/random");
    kill_at_every_moment(&home, &["snapshot", "web", "--name", "s{}"], |round| {
        assert_eq!(home.sh("web", "cat /srv/n"), format!("{round}\n"));
        home.sh("web", &format!("echo {} > /srv/n", round + 1));
    });
    assert_agreed(&home);
    let listed = home.ok(["list", "--json"]).json();
    for snapshot in listed["snapshots"].as_array().expect("a list") {
        let name = snapshot["name"].as_str().expect("a text");
        assert_eq!(snapshot["durable"], true, "{snapshot}");
        let copy = home.ok(["restore", name]).id().to_owned();
        let number = home.sh(&copy, "cat /srv/n");
        assert_eq!(number.trim(), name.trim_start_matches('s'));
        assert_eq!(home.sh(&copy, "sha256sum < /srv/random"), sum);
        home.ok(["rm", "--force", &copy]);
    }
}

/// Forty megabytes, a page of which it writes each time; asked, it tells whether each page has what it wrote there last.
const HEAP: &str = "python3 -c \"
import os, time
pages = 40 << 8
heap = bytearray(os.urandom(4096)) * pages
for page in range(pages): heap[page << 12:(page << 12) + 8] = bytes(8)
turn = 0
def is_whole():
    for page in range(pages):
        last = max(turn - (turn - page) % pages, 0)
        if int.from_bytes(heap[page << 12:(page << 12) + 8], 'little') != last: return False
    return True
while True:
    turn += 1
    at = turn % pages << 12
    heap[at:at + 8] = turn.to_bytes(8, 'little')
    if os.path.exists('/srv/ask'):
        os.unlink('/srv/ask')
        with open('/srv/new', 'w') as file: file.write(str(is_whole()))
        os.rename('/srv/new', '/srv/told')
    time.sleep(0.001)
\" > /dev/null 2>&1 < /dev/null &";

fn is_whole(home: &Home, sandbox: &str) {
    let ask = "rm -f /srv/told; touch /srv/ask; \
               for i in $(seq 6000); do [ -e /srv/told ] && break; sleep 0.01; done; cat /srv/told";
    assert_eq!(home.sh(sandbox, ask), "True", "{sandbox}");
}

#[test]
fn a_killed_full_snapshot_of_much_memory_loses_no_page() {
    let home = Home::with_web();
    home.sh("web", HEAP);
    is_whole(&home, "web");
    // The next ones hold what was written since.
    home.ok(["snapshot", "web", "--full", "--name", "first", "--no-sync"]);
    let args = ["snapshot", "web", "--full", "--name", "s{}", "--no-sync"];
    kill_at_every_moment(&home, &args, |_| is_whole(&home, "web"));
    assert_agreed(&home);
    each_restored(&home, |copy| is_whole(&home, copy));
}
