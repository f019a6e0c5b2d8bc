//! Sessions on a pseudo-terminal.

use crate::place::{Place, until};

/// A master that types what it finds in a file and keeps what it reads.
const SESSION: &str = "
import os, pty, select, struct, fcntl, termios, time
pid, master = pty.fork()
if pid == 0:
    os.environ['PS1'] = 'ready> '
    os.execv('/bin/bash', ['bash', '--norc', '--noediting', '-i'])
fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack('HHHH', 33, 99, 0, 0))
seen = b''
typed = 0
while True:
    if select.select([master], [], [], 0.005)[0]:
        seen += os.read(master, 4096)
        with open('/mnt/seen.new', 'wb') as f: f.write(seen)
        os.rename('/mnt/seen.new', '/mnt/seen')
    try: lines = open('/mnt/type').read().split('|')[:-1]
    except FileNotFoundError: continue
    for line in lines[typed:]:
        os.write(master, line.encode())
        typed += 1
";

#[test]
fn a_terminal_session_goes_on() {
    let mut place = Place::new();
    let sandbox = place.python(SESSION);
    let seen = |place: &Place, what: &str| {
        until(&format!("`{what}` in {}", place.read("seen")), || {
            place.read("seen").contains(what).then_some(())
        });
    };
    seen(&place, "ready> ");
    place.put("type", "x=kept; stty size\n|");
    seen(&place, "33 99");
    // Something in the foreground, to be interrupted later.
    place.put("type", "x=kept; stty size\n|sleep 1000\n|");
    until("sleep is in front", || {
        let names = std::fs::read_dir(sandbox.path("/proc")).unwrap().flatten();
        let mut names =
            names.filter_map(|entry| std::fs::read_to_string(entry.path().join("comm")).ok());
        names.any(|name| name == "sleep\n").then_some(())
    });
    let captured = until("it is read", || crate::place::try_capture(&sandbox).ok());
    place.write(&captured);
    drop(sandbox);
    let copy = place.restore();
    // ^C reaches the foreground group, and the shell goes on with what it knew.
    place.put("type", "x=kept; stty size\n|sleep 1000\n|\u{3}|echo $x-$?; stty size; tty\n|");
    seen(&place, "kept-130");
    seen(&place, "/dev/pts/0");
    assert_eq!(place.read("seen").matches("33 99").count(), 2);
    drop(copy);
}
