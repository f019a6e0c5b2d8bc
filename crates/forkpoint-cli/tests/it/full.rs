//! Full snapshots, as the command line tells of them.

use serde_json::json;

use crate::harness::{Home, until};

/// A program with memory that nobody can keep.
const LOCKED: &str = "python3 -c \"
import ctypes, os, time
page = ctypes.create_string_buffer(4096)
assert ctypes.CDLL(None).mlock(page, 4096) == 0
open('/tmp/locked', 'w').close()
time.sleep(1000)\" > /dev/null 2>&1 < /dev/null &";

#[test]
fn what_runs_is_told_and_goes_on_in_a_copy() {
    let home = Home::with_web();
    home.sh("web", "sleep 1000 > /dev/null 2>&1 < /dev/null &");
    home.ok(["snapshot", "web", "--full", "--name", "whole"]);
    let shown = home.ok(["show", "whole", "--json"]).json();
    assert_eq!(shown["kind"], json!("full"));
    assert_eq!(shown["processes"][0]["name"], json!("sleep"), "{shown}");
    let told = home.ok(["show", "whole"]).stdout;
    assert!(told.contains("sleep, "), "{told}");
    home.ok(["snapshot", "web", "--name", "files"]);
    let drawn = home.ok(["log"]).stdout;
    assert!(drawn.contains("◆ whole ") && drawn.contains("● files "), "{drawn}");
    let listed = home.ok(["list"]).stdout;
    assert!(listed.contains("  full   manual") && listed.contains("  files  manual"), "{listed}");
    home.ok(["restore", "whole", "--name", "copy"]);
    assert_eq!(home.sh("copy", "pgrep -x sleep | wc -l").trim(), "1");
}

#[test]
fn what_cannot_be_kept_is_refused_or_left_out_as_one_likes() {
    let home = Home::with_web();
    home.sh("web", LOCKED);
    assert!(until(|| home.run(["exec", "web", "--", "test", "-e", "/tmp/locked"]).code == Some(0)));
    let validated = home.run(["validate", "web", "--full"]);
    assert!(
        validated.code == Some(1) && validated.stdout.contains("locked memory"),
        "{validated:?}"
    );
    let refused = home.run(["snapshot", "web", "--full"]);
    assert!(refused.code != Some(0) && refused.stderr.contains("locked memory"), "{refused:?}");
    assert_eq!(home.ok(["list", "-q"]).stdout, "");
    let auto = home.ok(["snapshot", "web", "--full=auto", "--name", "some"]);
    assert!(auto.stderr.contains("were not kept") && auto.stderr.contains("locked"), "{auto:?}");
    assert_eq!(home.ok(["show", "some", "--json"]).json()["kind"], json!("files"));
}

#[test]
fn connections_are_refused_or_closed_as_one_likes() {
    let home = Home::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    home.ok(["create", "--network", "host", "--name", "web"]);
    home.sh(
        "web",
        &format!(
            "python3 -c \"
import socket
call = socket.create_connection(('127.0.0.1', {port}))
try: call.recv(1)
except OSError: open('/tmp/reset', 'w').close()
\" > /dev/null 2>&1 < /dev/null &"
        ),
    );
    let _call = listener.accept().unwrap();
    let refused = home.run(["snapshot", "web", "--full"]);
    assert!(refused.code != Some(0) && refused.stderr.contains("--tcp close"), "{refused:?}");
    let odd = home.run(["snapshot", "web", "--tcp", "close"]);
    assert!(odd.code == Some(2) && odd.stderr.contains("--full"), "{odd:?}");
    home.ok(["snapshot", "web", "--full", "--tcp", "close", "--name", "whole"]);
    home.ok(["restore", "whole", "--name", "copy"]);
    assert!(until(|| home.run(["exec", "copy", "--", "test", "-e", "/tmp/reset"]).code == Some(0)));
    assert_eq!(home.run(["exec", "web", "--", "test", "-e", "/tmp/reset"]).code, Some(1));
}

/// Waits for a byte as long as it takes.
const HOLDS: &str = "python3 -c \"
import os
file = os.open('/etc/os-release', os.O_RDONLY)
os.mkfifo('/tmp/close')
open('/tmp/close').read()
os.close(file)
open('/tmp/closed', 'w').close()
open('/tmp/close').read()\" > /dev/null 2>&1 < /dev/null &";

#[test]
fn why_processes_did_not_go_back_in_place_is_told_to_who_asks() {
    let home = Home::with_web();
    home.sh("web", HOLDS);
    let is_there =
        |file: &str| until(|| home.run(["exec", "web", "--", "test", "-e", file]).code == Some(0));
    assert!(is_there("/tmp/close"));
    home.ok(["snapshot", "web", "--full", "--name", "whole"]);
    let told = |args: &[&str]| home.ok(["rollback", "web", "whole"].iter().chain(args)).stderr;
    assert!(!told(&["-v"]).contains("anew"), "in place");
    let json = home.ok(["rollback", "web", "whole", "--json"]).json();
    assert_eq!(json["made_anew"], json!(null), "in place: {json}");

    home.sh("web", "echo > /tmp/close");
    assert!(is_there("/tmp/closed"));
    let why = told(&["-v"]);
    assert!(why.contains("made anew: process "), "{why}");
    assert!(why.contains("(`python3`) has something else as descriptor "), "{why}");
    assert_eq!(home.run(["exec", "web", "--", "test", "-e", "/tmp/closed"]).code, Some(1));

    home.sh("web", "pkill -9 python3; while pgrep -x python3 > /dev/null; do sleep 0.01; done");
    let json = home.ok(["rollback", "web", "whole", "--json"]).json();
    let why = json["made_anew"].as_str().unwrap_or_default();
    assert!(why.contains("(`python3`) is gone"), "{json}");
    home.ok(["snapshot", "web", "--name", "files"]);
    let why = told(&["-v"]);
    assert!(why.contains("made anew: it did not stand on this snapshot"), "{why}");
    home.ok(["stop", "web"]);
    assert!(!told(&[]).contains("anew"), "nobody asked");
    home.ok(["stop", "web"]);
    assert!(told(&["-v"]).contains("made anew: nothing ran in it"));
    let files = home.ok(["rollback", "web", "files", "-v", "--json"]);
    assert_eq!(files.json()["made_anew"], json!(null), "files are always");
    assert!(!files.stderr.contains("anew"), "{files:?}");
}

/// Each command is a process of its own, and what is merged is merged by one that outlives it.
#[test]
fn a_long_row_stays_short_and_old_ones_give_their_room_back() {
    const HEAP: &str = "python3 -c \"
import os, time
heap = bytearray(os.urandom(1 << 20)) * 24
open('/tmp/ready', 'w').close()
while True:
    heap[:] = heap; time.sleep(1000)\" > /dev/null 2>&1 < /dev/null &";
    let home = Home::with_web();
    home.sh("web", HEAP);
    assert!(until(|| home.run(["exec", "web", "--", "test", "-e", "/tmp/ready"]).code == Some(0)));
    let place = home.path().join("data/local");
    let count = |name: &str| std::fs::read_dir(place.join(name)).map_or(0, Iterator::count);
    for number in 1..=18 {
        home.ok(["snapshot", "web", "--full", "--no-sync", "--name", &format!("s{number}")]);
        if number == 16 {
            let is_whole = || {
                let names = std::fs::read_dir(place.join("merged")).into_iter().flatten().flatten();
                let names: Vec<_> = names.map(|entry| entry.file_name()).collect();
                names.len() == 1 && !names[0].to_string_lossy().contains(".new-")
            };
            assert!(until(is_whole), "it is merged");
        }
    }
    assert_eq!((count("memory"), count("merged")), (19, 0), "the 17th has what was merged");
    for number in 1..=16 {
        home.ok(["delete", &format!("s{number}")]);
    }
    assert!(until(|| count("memory") == 4), "the first, what was merged, and two");
    for name in ["s17", "s18"] {
        home.ok(["restore", name, "--name", &format!("copy-{name}")]);
        assert_eq!(home.sh(&format!("copy-{name}"), "pgrep -x python3 | wc -l").trim(), "1");
    }
    home.ok(["rm", "web", "copy-s17", "copy-s18"]);
    for name in ["s17", "s18"] {
        home.ok(["delete", name]);
    }
    assert!(until(|| count("memory") == 0));
}
