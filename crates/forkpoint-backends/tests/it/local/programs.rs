//! Programs that agents really run go on: after a restore, in each of several copies, and after a rollback, whether it
//! is made in place or the sandbox is made anew.
//!
//! Each counts how often it was asked, in its memory and nowhere else.

use std::{fs, process::Command};

use forkpoint_core::driver::{Artifact, Driver as _, ExitStatus, Sandbox, WriteMode};
use tempfile::TempDir;

use super::{
    full::try_seal_full,
    scene::{Scene, bytes, exec, path, sh, spec, with_causes},
};

struct Program<'a> {
    /// What it is in files, below `/srv`.
    files: &'a [(&'a str, &'a [u8])],
    start: &'a str,
    /// Prints what it answers.
    ask: &'a str,
    /// By what part of its command it is found.
    pattern: &'a str,
    /// Whether the same processes are there when it was asked.
    stays: bool,
    /// Prints `ok` if all of it is as it should be; nothing is asked afterwards.
    end: Option<&'a str>,
}

/// For those who look whether `/srv/ask` is there, and answer in `/srv/told`.
const BY_FILE: &str = "rm -f /srv/told; touch /srv/ask; \
    for i in $(seq 6000); do [ -s /srv/told ] && break; sleep 0.01; done; cat /srv/told";

/// For those who answer whoever connects.
const BY_SOCKET: &str = "for i in $(seq 600); do \
    python3 -c 'import socket; print(socket.create_connection((\"127.0.0.1\", 8080)).makefile().read().split()[-1])' \
    2> /dev/null && break; sleep 0.1; done";

/// What is in the way for a moment only is waited for.
async fn seal(sandbox: &dyn Sandbox) -> Artifact {
    for _ in 0..200 {
        match try_seal_full(sandbox).await {
            Ok(artifact) => return artifact,
            Err(err) => assert!(with_causes(&err).contains("try again"), "{}", with_causes(&err)),
        }
    }
    panic!("it is never captured");
}

async fn asked(sandbox: &dyn Sandbox, program: &Program<'_>, expected: &[u32]) {
    for number in expected {
        assert_eq!(
            sh(sandbox, program.ask).await.trim(),
            number.to_string(),
            "{}",
            program.pattern
        );
    }
}

/// From the third answer on, and to its end.
async fn goes_on_from_there(sandbox: &dyn Sandbox, program: &Program<'_>) {
    asked(sandbox, program, &[3, 4]).await;
    if let Some(end) = program.end {
        assert_eq!(sh(sandbox, end).await.trim(), "ok", "{}", program.pattern);
    }
}

fn goes_on(program: &Program<'_>) {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        for (name, content) in program.files {
            let at = path(&format!("/srv/{name}"));
            sandbox.write(&at, bytes(content.to_vec()), WriteMode::Replace).await.unwrap();
        }
        sh(&*sandbox, &format!("cd /srv; {}", program.start)).await;
        asked(&*sandbox, program, &[1, 2]).await;
        let artifact = seal(&*sandbox).await;
        for _ in 0..2 {
            goes_on_from_there(&*scene.restore(&artifact).await, program).await;
        }
        sh(&*sandbox, "touch /srv/junk").await;
        if program.stays {
            asked(&*sandbox, program, &[3, 4]).await;
        }
        let anew = back(&scene, &*sandbox, &artifact).await;
        assert_eq!(anew, None, "it is the same process that goes on");
        assert_eq!(sh(&*sandbox, "ls /srv/junk 2> /dev/null || true").await, "");
        goes_on_from_there(&*sandbox, program).await;
        let (_, killed) = exec(&*sandbox, &["pkill", "-9", "-f", program.pattern]).await;
        assert_eq!(killed, ExitStatus::Code(0), "{}", program.pattern);
        // It takes a moment, and others end with it.
        while exec(&*sandbox, &["pgrep", "-f", program.pattern]).await.1 == ExitStatus::Code(0) {}
        let anew = back(&scene, &*sandbox, &artifact).await;
        let anew = anew.expect("it ended, and is made anew");
        // Of a session, others may still be ending.
        assert!(anew.contains("is gone") || program.pattern.contains("tmux"), "{anew}");
        goes_on_from_there(&*sandbox, program).await;
    });
}

/// Why it was made anew, if it was.
async fn back(scene: &Scene, sandbox: &dyn Sandbox, to: &Artifact) -> Option<String> {
    let back = scene.driver.rollback(sandbox.id(), &spec(), to).await;
    scene.note(sandbox.id());
    back.unwrap_or_else(|err| panic!("{}", with_causes(&err))).made_anew()
}

/// Sleeps in `wait`. Whoever is asked is the child, which ends with the next number.
const PARENT: &[u8] = b"
import os, time
number = 0
while True:
    number += 1
    child = os.fork()
    if child == 0:
        while not os.path.exists('/srv/ask'): time.sleep(0.002)
        os.unlink('/srv/ask')
        os._exit(number)
    ended, status = os.wait()
    is_right = ended == child and os.waitstatus_to_exitcode(status) == number
    with open('/srv/new', 'w') as file: file.write(str(number) if is_right else 'wrong')
    os.rename('/srv/new', '/srv/told')
";

#[test]
fn a_parent_waits_for_the_right_child() {
    goes_on(&Program {
        files: &[("parent.py", PARENT)],
        start: "python3 parent.py > log 2>&1 < /dev/null &",
        ask: BY_FILE,
        pattern: "parent.py",
        stays: false,
        end: None,
    });
}

/// The shell has the number, and tmux the terminal that it is typed at.
#[test]
fn a_session_at_a_pseudo_terminal_goes_on() {
    goes_on(&Program {
        files: &[],
        start: "LC_ALL=C.UTF-8 TERM=xterm n=0 tmux -S /srv/tmux -f /dev/null new -d -x 80 -y 24 'exec bash --norc' > log 2>&1; \
                cat log",
        ask: "rm -f /srv/told; tmux -S /srv/tmux send-keys 'n=$((n+1)); echo $n > /srv/new; mv /srv/new /srv/told' Enter; \
              for i in $(seq 6000); do [ -s /srv/told ] && break; sleep 0.01; done; cat /srv/told",
        pattern: "tmux",
        stays: true,
        end: Some("tmux -S /srv/tmux capture-pane -p | grep -q 'n+1' && echo ok"),
    });
}

/// In the middle of a transaction, of which others see nothing until it ends. Nor can they begin one meanwhile: connections
/// of the same process, which SQLite keeps apart and the kernel does not.
const SQLITE: &[u8] = b"
import hashlib, mmap, os, sqlite3, struct, sys, time
if sys.argv[1] == 'wal': ballast = bytearray(os.urandom(1 << 20)) * 16
def known():
    now = os.stat('/srv/db'); return struct.pack('QQ', now.st_dev, now.st_ino)
pages = mmap.mmap(-1, 8192, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
def connect(): return sqlite3.connect('/srv/db', isolation_level=None, timeout=0)
def is_alone():
    stranger = connect()
    try: stranger.execute('begin immediate')
    except sqlite3.OperationalError as err: return str(err) == 'database is locked' and is_known()
    return False
db = connect()
db.execute('pragma journal_mode = ' + sys.argv[1])
db.execute('create table others (n)')
# As SQLite has it, where it goes from one page to the next; and what only looks like it, many times.
pages[4088:4168] = known() + struct.pack('8Q', 0, 1 << 32, 1, 0, 1, 0, 0, 0)
others = bytearray(known() * 500 + struct.pack('8Q', 0, 1 << 32, 1, 0, 1, 0, 0, 7))
digest = hashlib.md5(others).digest()
def is_known(): return pages[4088:4104] == known() and hashlib.md5(others).digest() == digest
db.execute('create table numbers (n)')
db.execute('begin immediate')
db.execute('pragma cache_size = 1')
db.executemany('insert into numbers values (?)', ((-1,) for n in range(5000)))
def tell(what):
    with open('/srv/new', 'w') as file: file.write(str(what))
    os.rename('/srv/new', '/srv/told')
while True:
    time.sleep(0.002)
    if os.path.exists('/srv/ask'):
        os.unlink('/srv/ask')
        db.execute('insert into numbers values (0)')
        count = db.execute('select count(*) from numbers where n = 0').fetchone()[0]
        tell(count if is_alone() else 'both write')
    if os.path.exists('/srv/commit'):
        os.unlink('/srv/commit')
        db.execute('commit')
        db.execute('begin immediate')
        db.execute('insert into numbers values (1)')
        alone = is_alone()
        db.execute('commit')
        connect().execute('insert into numbers values (1)')
        db.execute('insert into numbers values (1)')
        ones = [c.execute('select count(*) from numbers where n = 1').fetchone()[0] for c in (db, connect())]
        tell('ok' if alone and ones == [3, 3] else (alone, ones))
";

const COMMIT: &str = "rm -f /srv/told; touch /srv/commit; \
    for i in $(seq 6000); do [ -s /srv/told ] && break; sleep 0.01; done; cat /srv/log; \
    [ \"$(sqlite3 /srv/db 'select count(*) from numbers where n < 1; pragma integrity_check')\" \
    = \"$(printf '5004\\nok')\" ] && cat /srv/told";

#[test]
fn a_transaction_of_sqlite_goes_on_and_is_committed() {
    for mode in ["delete", "wal"] {
        goes_on(&Program {
            files: &[("sqlite.py", SQLITE)],
            start: &format!("python3 sqlite.py {mode} > log 2>&1 < /dev/null &"),
            ask: BY_FILE,
            pattern: "sqlite.py",
            stays: true,
            end: Some(COMMIT),
        });
    }
}

const NODE: &[u8] = b"
let asked = 0;
const server = require('http').createServer((_, response) => response.end(String(++asked)));
server.listen(8080, '127.0.0.1');
";

#[test]
fn a_node_server_still_answers() {
    goes_on(&Program {
        files: &[("server.js", NODE)],
        start: "node server.js > log 2>&1 < /dev/null &",
        ask: "for i in $(seq 600); do \
              python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:8080\").read().decode())' \
              2> /dev/null && break; sleep 0.1; done",
        pattern: "server.js",
        stays: true,
        end: None,
    });
}

const GO: &str = r#"
package main

import ("fmt"; "net"; "runtime"; "sync/atomic"; "time")

func main() {
    var asked, turns int64
    for i := 0; i < 4; i++ {
        go func() { for { atomic.AddInt64(&turns, 1); runtime.Gosched(); time.Sleep(time.Millisecond) } }()
    }
    listener, err := net.Listen("tcp", "127.0.0.1:8080")
    if err != nil { panic(err) }
    for {
        connection, err := listener.Accept()
        if err != nil { panic(err) }
        before := atomic.LoadInt64(&turns)
        for atomic.LoadInt64(&turns) == before { time.Sleep(time.Millisecond) }
        asked++
        fmt.Fprintf(connection, "%d", asked)
        connection.Close()
    }
}
"#;

fn built_by_go() -> Vec<u8> {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("main.go"), GO).unwrap();
    let built = Command::new("go")
        .args(["build", "-o", "program", "main.go"])
        .current_dir(&dir)
        .env("GOCACHE", dir.path().join("cache"))
        .env("HOME", dir.path())
        .env("CGO_ENABLED", "0")
        .status();
    assert!(built.unwrap().success());
    fs::read(dir.path().join("program")).unwrap()
}

#[test]
fn a_go_program_goes_on_with_all_of_its_threads() {
    goes_on(&Program {
        files: &[("program", &built_by_go())],
        start: "chmod 755 program; ./program > log 2>&1 < /dev/null &",
        ask: BY_SOCKET,
        pattern: "./program",
        stays: true,
        end: None,
    });
}

const JAVA: &[u8] = br#"
import java.nio.file.*;

public class Main {
    static volatile long turns;

    public static void main(String[] args) throws Exception {
        Thread thread = new Thread(() -> { try { for (;;) { turns++; Thread.sleep(1); } } catch (Exception e) {} });
        thread.setDaemon(true);
        thread.start();
        for (int asked = 1; ; asked++) {
            while (!Files.exists(Path.of("/srv/ask"))) Thread.sleep(2);
            Files.delete(Path.of("/srv/ask"));
            for (long before = turns; turns == before; ) Thread.sleep(1);
            Files.writeString(Path.of("/srv/new"), Integer.toString(asked));
            Files.move(Path.of("/srv/new"), Path.of("/srv/told"), StandardCopyOption.ATOMIC_MOVE);
        }
    }
}
"#;

/// Debian keeps it in `/etc`, of which a sandbox of this machine's system has little.
fn security_of_java() -> Vec<u8> {
    let java = fs::canonicalize("/usr/bin/java").unwrap();
    fs::read(java.parent().unwrap().join("../conf/security/java.security")).unwrap()
}

#[test]
fn a_java_program_goes_on_with_all_of_its_threads() {
    goes_on(&Program {
        files: &[("Main.java", JAVA), ("java.security", &security_of_java())],
        start: "at=$(readlink -m $(dirname $(readlink -f /usr/bin/java))/../conf/security/java.security); \
                mkdir -p $(dirname $at); cp java.security $at; \
                java -Xmx128m Main.java > log 2>&1 < /dev/null &",
        ask: BY_FILE,
        pattern: "Main.java",
        stays: true,
        end: None,
    });
}
