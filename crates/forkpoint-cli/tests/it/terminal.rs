//! On a terminal: raw mode that ends, sizes, questions.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read as _, Write as _},
    os::fd::OwnedFd,
    process::Stdio,
};

use rustix::{
    process::{Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};

use crate::harness::{Holder, Home, Started, ended, signal};

struct Terminal {
    master: File,
    slave: File,
    seen: String,
}

impl Terminal {
    fn open() -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&master).expect("a terminal");
        unlockpt(&master).expect("a terminal");
        let name =
            ptsname(&master, Vec::new()).expect("a terminal").into_string().expect("a terminal");
        let slave = OpenOptions::new().read(true).write(true).open(name).expect("a terminal");
        let terminal = Self { master: File::from(master), slave, seen: String::new() };
        terminal.resize(24, 80);
        terminal
    }

    fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.slave, size).expect("a terminal");
    }

    fn start(&self, home: &Home, args: &[&str]) -> Started {
        let side = || Stdio::from(OwnedFd::from(self.slave.try_clone().expect("a terminal")));
        Started::spawn(home.command(args).stdin(side()).stdout(side()).stderr(side()))
    }

    /// Reads until `text` was printed since the last time, and answers with all until then.
    fn await_text(&mut self, text: &str) -> String {
        while !self.seen.contains(text) {
            let mut buffer = [0; 1024];
            let len = self.master.read(&mut buffer).expect("a terminal");
            assert_ne!(len, 0, "the terminal is closed, after {:?}", self.seen);
            self.seen.push_str(&String::from_utf8_lossy(&buffer[..len]));
        }
        let end = self.seen.find(text).expect("a terminal") + text.len();
        self.seen.drain(..end).collect()
    }

    fn type_in(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).expect("a terminal");
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.slave).expect("a terminal").local_modes.contains(LocalModes::ICANON)
    }
}

#[test]
fn run_alone_is_a_shell_to_type_into() {
    let home = Home::new();
    let mut terminal = Terminal::open();
    let mut child = terminal.start(&home, &["run", "--rm"]);
    terminal.await_text("# ");
    assert!(terminal.is_raw());
    terminal.type_in("echo $((6 * 7)); tty\n");
    terminal.await_text("42");
    terminal.await_text("/dev/pts/");
    terminal.type_in("exit 3\n");
    assert_eq!(child.wait().unwrap().code(), Some(3));
    assert!(!terminal.is_raw(), "the terminal is as it was");
}

#[test]
fn a_command_hears_of_a_new_size() {
    let home = Home::with_web();
    let mut terminal = Terminal::open();
    let script = "trap 'stty size; exit 0' WINCH; stty size; while :; do sleep 0.05; done";
    let mut child = terminal.start(&home, &["exec", "-it", "web", "--", "sh", "-c", script]);
    terminal.await_text("24 80");
    terminal.resize(50, 132);
    signal(&child, Signal::WINCH);
    terminal.await_text("50 132");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn keys_go_through_and_signals_give_the_terminal_back() {
    let home = Home::with_web();
    let mut terminal = Terminal::open();
    let mut child =
        terminal.start(&home, &["exec", "-it", "web", "--", "sh", "-c", "echo up; exec sleep 60"]);
    terminal.await_text("up");
    assert!(terminal.is_raw());
    terminal.type_in("\u{3}");
    assert_eq!(child.wait().unwrap().code(), Some(130), "Ctrl-C is a key for the command");
    assert!(!terminal.is_raw());

    let mut child =
        terminal.start(&home, &["exec", "-it", "web", "--", "sh", "-c", "echo up; exec sleep 60"]);
    terminal.await_text("up");
    signal(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(!terminal.is_raw());
}

#[test]
fn a_terminal_is_needed_for_it() {
    let home = Home::with_web();
    let run = home.run(["exec", "-it", "web", "--", "true"]);
    assert_eq!(run.code, Some(125), "{run:?}");
    assert!(run.stderr.contains("leave out `-t`"), "{run:?}");
}

#[test]
fn questions_are_asked_and_no_is_no() {
    let home = Home::with_web();
    home.ok(["snapshot", "web", "--name", "good"]);
    let mut terminal = Terminal::open();
    for (answer, left) in [("\n", 1), ("n\n", 1), ("y\n", 0)] {
        let mut child = terminal.start(&home, &["delete", "good"]);
        terminal.await_text("delete snapshot `good` for good? [y/N]");
        terminal.type_in(answer);
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert_eq!(home.ok(["list", "-q"]).stdout.lines().count(), left);
    }
}

#[test]
fn tables_fit() {
    let home = Home::with_web();
    home.ok(["snapshot", "web", "-m", &"long ".repeat(100)]);
    let mut terminal = Terminal::open();
    terminal.resize(24, 100);
    let mut child = terminal.start(&home, &["list", "--color", "never"]);
    terminal.await_text("DESCRIPTION");
    terminal.await_text("…\r\n");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn what_takes_long_gives_a_sign_of_life() {
    let home = Home::with_web();
    let _holder = Holder::of_web(&home);
    let mut terminal = Terminal::open();
    let mut child = terminal.start(&home, &["snapshot", "web", "--wait", "10m"]);
    terminal.await_text("taking a snapshot ·");
    signal(&child, Signal::INT);
    terminal.await_text("finishing…");
    signal(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn a_copy_of_unknown_length_tells_how_far_it_has_come() {
    let home = Home::with_web();
    let mut terminal = Terminal::open();
    let side = || Stdio::from(OwnedFd::from(terminal.slave.try_clone().expect("a terminal")));
    let mut command = home.command(["cp", "-", "web:/srv/fed"]);
    let mut child = Started::spawn(command.stdin(Stdio::piped()).stdout(side()).stderr(side()));
    let mut stdin = child.stdin.take().expect("its input");
    stdin.write_all(&vec![7; 3 << 20]).expect("it is read");
    terminal.await_text("copying ·");
    terminal.await_text("  3.0 MiB");
    drop(stdin);
    terminal.await_text("copied 1 files, 3.0 MiB");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(home.sh("web", "wc -c < /srv/fed").trim(), (3 << 20).to_string());
}

/// Whoever opens files inside stands still meanwhile.
#[test]
fn a_copy_tells_its_part_on_a_terminal_and_to_nobody_else() {
    let home = Home::with_web();
    let file = home.path().join("file");
    fs::write(&file, "content").expect("a file");
    let file = file.to_str().expect("text");
    let init = home.init_of(home.ok(["ps", "-q"]).id());
    let (mut terminal, mut quiet) = (Terminal::open(), Terminal::open());
    kill_process(init, Signal::STOP).expect("it stands still");
    let in_script = home.start(["cp", file, "web:/srv/a"]);
    let mut silent = quiet.start(&home, &["--no-progress", "cp", file, "web:/srv/b"]);
    let mut child = terminal.start(&home, &["cp", file, "web:/srv/c"]);
    terminal.await_text("copying ·");
    terminal.await_text(" 7 B of 7 B, 100 %");
    kill_process(init, Signal::CONT).expect("it goes on");
    terminal.await_text("copied 1 files, 7 B");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let before = quiet.await_text("copied 1 files");
    assert_eq!(before, "copied 1 files");
    assert_eq!(silent.wait().unwrap().code(), Some(0));
    let run = ended(in_script);
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
}

#[test]
fn the_tour_has_calm_colours() {
    let home = Home::new();
    let mut terminal = Terminal::open();
    let mut child = terminal.start(&home, &["demo", "-n", "1"]);
    terminal.await_text("\u{1b}[36mcreate");
    terminal.await_text("ms\u{1b}[0m");
    terminal.await_text("Go on with");
    terminal.await_text("everything else");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_diff_goes_through_a_pager_that_can_be_started() {
    let home = Home::with_web();
    home.sh("web", "echo one > /srv/file");
    for (pager, shown) in
        [("sed s/^/paged:/", "paged:\u{1b}[32mA"), ("/no/such/pager -x", "\u{1b}[32mA")]
    {
        let mut terminal = Terminal::open();
        let side = || Stdio::from(OwnedFd::from(terminal.slave.try_clone().expect("a terminal")));
        let mut command = home.command(["diff", "web"]);
        command.env("FORKPOINT_PAGER", pager).env("TERM", "xterm").env_remove("NO_COLOR");
        let mut child = Started::spawn(command.stdin(side()).stdout(side()).stderr(side()));
        terminal.await_text(shown);
        terminal.await_text("/srv/file");
        assert!(child.wait().expect("it ends").success(), "{pager}");
    }
}
