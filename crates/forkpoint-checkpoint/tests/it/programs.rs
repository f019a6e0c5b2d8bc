//! Programs that agents really run, from Debian's packages: captured, killed, brought back, and back in place.

use std::{os::unix::net::UnixStream, process::Command};

use forkpoint_checkpoint::{CaptureSpec, Chain, Tracker, Tree, bare::Bare};

use crate::place::{Place, until};

/// Captured, killed, brought back: twice, so that a copy is captured too.
fn goes_on(place: &mut Place, mut sandbox: Bare) -> Bare {
    for _ in 0..2 {
        let before = place.grows("count", 3);
        place.capture(&sandbox);
        place.grows("count", before);
        drop(sandbox);
        sandbox = place.restore();
        let again = place.number("count");
        place.grows("count", again + 3);
    }
    sandbox
}

/// Back in place, or refused with a reason, and in any case it runs.
fn goes_back(place: &mut Place, sandbox: &Bare) {
    let (tree, spec) = (Tree::below(sandbox.init), CaptureSpec::default());
    let mut tracker = Tracker::new();
    let before = place.grows("count", 0);
    // While it writes, it has a file open that it will not have for long; and so it is with a connection of who has just
    // asked it something.
    let captured = until("it can be captured", || {
        let captured = tracker.capture(&tree, &spec, || Ok(())).ok()?;
        let names = captured.snapshot.files.iter().map(|file| format!("{:?}", file.kind));
        let mut passing =
            names.filter(|name| name.contains("/mnt/count") || name.starts_with("Connection"));
        passing.next().is_none().then_some(captured)
    });
    tracker.note(place.write(&captured));
    let chain = Chain::open(place.images.clone()).unwrap();
    place.grows("count", before + 5);
    tracker.rollback(&tree, &chain, &spec, || Ok(())).unwrap();
    place.put("count", "0");
    let after = place.grows("count", 0);
    place.grows("count", after + 3);
}

/// In a transaction, with the journal written and the lock held, and somebody else who waits for it.
const SQLITE: &str = "
import os, sqlite3, time
db = sqlite3.connect('/mnt/db', isolation_level=None)
db.execute('create table t (n integer)')
if os.fork() == 0:
    other = sqlite3.connect('/mnt/db', isolation_level=None, timeout=0)
    while not os.path.exists('/mnt/begun'): time.sleep(0.002)
    while True:
        try: other.execute('insert into t values (100)'); break
        except sqlite3.OperationalError as err: open('/mnt/busy', 'w').write(str(err))
        time.sleep(0.002)
    open('/mnt/second', 'w').write(str(other.execute('select sum(n), count(n) from t').fetchone()))
    while True: time.sleep(1)
db.execute('pragma cache_size = 1')
db.execute('begin immediate')
for n in range(2000): db.execute('insert into t values (?)', (n,))
os.close(os.open('/mnt/begun', os.O_CREAT))
while not os.path.exists('/mnt/go'): time.sleep(0.002)
db.execute('insert into t values (1000000)')
db.execute('commit')
open('/mnt/first', 'w').write(str(db.execute('pragma integrity_check').fetchone()))
while True: time.sleep(1)
";

#[test]
fn a_transaction_of_sqlite_is_finished() {
    let mut place = Place::new();
    let sandbox = place.python(SQLITE);
    until("somebody waits", || place.read("busy").contains("locked").then_some(()));
    place.capture(&sandbox);
    drop(sandbox);
    // The files stay: SQLite remembers the number of the inode, and writes to no other.
    let _copy = place.try_restore().unwrap();
    let _ = std::fs::remove_file(place.work().join("busy"));
    until("somebody still waits", || place.read("busy").contains("locked").then_some(()));
    assert_eq!(place.read("second"), "");
    place.put("go", "");
    until("it is whole", || (place.read("first") == "('ok',)").then_some(()));
    let sum = 1999 * 1000 + 1_000_000 + 100;
    let wanted = format!("({sum}, 2002)");
    until("the other comes after", || {
        assert_eq!(place.read("log"), "");
        let second = place.read("second");
        assert!(second.is_empty() || wanted.starts_with(&second), "{second}");
        (second == wanted).then_some(())
    });
}

const NODE: &str = "
const fs = require('fs'), http = require('http');
let changed = 0, n = 0;
fs.watch('/mnt/watched', () => changed++);
const server = http.createServer((_, response) => response.end(`n=${n} changed=${changed > 0}`));
server.listen(8080, '127.0.0.1');
setInterval(() => { n++; fs.writeFileSync('/mnt/count.new', String(n)); try { fs.renameSync('/mnt/count.new', '/mnt/count') } catch {} }, 3);
";

#[test]
fn a_node_server_answers_and_watches() {
    let mut place = Place::new();
    std::fs::create_dir(place.work().join("watched")).unwrap();
    place.put("server.js", NODE);
    let sandbox = place.run(&["/usr/bin/node", "/mnt/server.js"]);
    let copy = goes_on(&mut place, sandbox);
    let ask = || {
        let program =
            "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8080').read().decode())";
        place.inside(&copy, &["/usr/bin/python3", "-c", program])
    };
    assert!(ask().ends_with("changed=false"), "{}", ask());
    place.put("watched/new", "");
    until("it notices", || ask().ends_with("changed=true").then_some(()));
    goes_back(&mut place, &copy);
}

const GO: &str = r#"
package main

import ("fmt"; "net"; "os"; "runtime"; "sync/atomic"; "time")

func main() {
    var n int64
    for i := 0; i < 4; i++ {
        go func() { for { atomic.AddInt64(&n, 1); runtime.Gosched(); time.Sleep(time.Millisecond) } }()
    }
    listener, err := net.Listen("tcp", "127.0.0.1:8080")
    if err != nil { panic(err) }
    go func() { for { c, err := listener.Accept(); if err == nil { fmt.Fprintf(c, "%d", atomic.LoadInt64(&n)); c.Close() } } }()
    garbage := make([][]byte, 64)
    for i := 0; ; i++ {
        garbage[i % 64] = make([]byte, 10000 + i % 50000)
        if i % 1000 == 0 { runtime.GC() }
        os.WriteFile("/mnt/count.new", []byte(fmt.Sprint(atomic.LoadInt64(&n))), 0644)
        os.Rename("/mnt/count.new", "/mnt/count")
        time.Sleep(2 * time.Millisecond)
    }
}
"#;

#[test]
fn a_go_program_goes_on() {
    let mut place = Place::new();
    let source = place.dir.path().join("main.go");
    std::fs::write(&source, GO).unwrap();
    let built = Command::new("go")
        .args(["build", "-o"])
        .arg(place.work().join("program"))
        .arg(&source)
        .env("GOCACHE", place.dir.path().join("cache"))
        .env("HOME", place.dir.path())
        .env("CGO_ENABLED", "0")
        .status();
    assert!(built.unwrap().success());
    let sandbox = place.run(&["/mnt/program"]);
    let copy = goes_on(&mut place, sandbox);
    let ask =
        "import socket; print(socket.create_connection(('127.0.0.1', 8080)).recv(100).decode())";
    assert!(place.inside(&copy, &["/usr/bin/python3", "-c", ask]).parse::<u64>().unwrap() > 0);
    goes_back(&mut place, &copy);
}

const JAVA: &str = r#"
import java.nio.file.*;
import java.util.concurrent.atomic.*;

public class Main {
    public static void main(String[] args) throws Exception {
        AtomicLong n = new AtomicLong();
        for (int i = 0; i < 3; i++) {
            Thread thread = new Thread(() -> { try { for (;;) { n.incrementAndGet(); Thread.sleep(1); } } catch (Exception e) {} });
            thread.setDaemon(true);
            thread.start();
        }
        byte[][] garbage = new byte[64][];
        for (int i = 0; ; i++) {
            garbage[i % 64] = new byte[100000];
            if (i % 500 == 0) System.gc();
            Files.writeString(Path.of("/mnt/count.new"), Long.toString(n.get()));
            // Who goes back in place, without its files, may have moved it already.
            try {
                Files.move(Path.of("/mnt/count.new"), Path.of("/mnt/count"), StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
            } catch (NoSuchFileException e) {}
            Thread.sleep(2);
        }
    }
}
"#;

#[test]
fn a_java_program_goes_on() {
    let mut place = Place::new();
    place.put("Main.java", JAVA);
    // `/tmp` of a bare sandbox is gone with it, and that is where its counters would be.
    let sandbox = place.run(&["/usr/bin/java", "-XX:-UsePerfData", "-Xmx128m", "/mnt/Main.java"]);
    let copy = goes_on(&mut place, sandbox);
    goes_back(&mut place, &copy);
}

const TMUX: &str = "
import os, pty, time
os.environ.update(TERM='xterm', SHELL='/bin/bash', LC_ALL='C.UTF-8')
pid, master = pty.fork()
if pid == 0: os.execv('/usr/bin/tmux', ['tmux', '-S', '/mnt/tmux', '-f', '/dev/null', 'new', 'PS1=prompt bash --norc'])
while True: os.read(master, 65536)
";

#[test]
fn a_session_of_tmux_goes_on() {
    let mut place = Place::new();
    let sandbox = place.python(TMUX);
    let tmux = |place: &Place, sandbox: &Bare, args: &[&str]| {
        let command = [&["/usr/bin/tmux", "-S", "/mnt/tmux"], args].concat();
        place.inside(sandbox, &command)
    };
    let shows = |place: &Place, sandbox: &Bare, what: &str| {
        until(&format!("`{what}` is shown"), || {
            tmux(place, sandbox, &["capture-pane", "-p"]).contains(what).then_some(())
        });
    };
    // Its name is there before it listens.
    until("it listens", || UnixStream::connect(place.work().join("tmux")).ok());
    shows(&place, &sandbox, "prompt");
    tmux(&place, &sandbox, &["send-keys", "x=kept", "Enter"]);
    place.capture(&sandbox);
    drop(sandbox);
    let copy = place.restore();
    shows(&place, &copy, "prompt");
    tmux(&place, &copy, &["send-keys", "echo $x-$((6*7))", "Enter"]);
    shows(&place, &copy, "kept-42");
    assert_eq!(tmux(&place, &copy, &["list-clients"]).lines().count(), 1, "the client is there");
}
