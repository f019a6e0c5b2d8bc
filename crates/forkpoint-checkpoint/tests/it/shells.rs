//! Shells and their children.

use crate::place::{Place, until};

/// Counts, and starts something each time.
pub(crate) const COUNTER: &str = "i=0; while :; do i=$((i+1)); echo $i > /mnt/count.new; \
    mv -f /mnt/count.new /mnt/count; sleep 0.01; done";

#[test]
fn a_counter_goes_on_after_capture() {
    let mut place = Place::new();
    let sandbox = place.shell(COUNTER);
    let before = place.grows("count", 3);
    place.capture(&sandbox);
    place.grows("count", before + 3);
}

#[test]
fn a_counter_goes_on_after_its_end() {
    let mut place = Place::new();
    let sandbox = place.shell(COUNTER);
    let mut before = place.grows("count", 3);
    place.capture(&sandbox);
    drop(sandbox);
    for _ in 0..3 {
        place.put("count", "0");
        let sandbox = place.restore();
        let after = place.grows("count", before);
        place.capture(&sandbox);
        drop(sandbox);
        before = after;
    }
}

#[test]
fn two_copies_go_on_side_by_side() {
    let mut place = Place::new();
    let sandbox = place.shell("trap 'echo $$ $i >> /mnt/heard' USR1; i=7; echo 1 > /mnt/ready; while :; do i=$((i+1)); read -t 0.05 < /dev/full; done");
    until("it listens", || Some(place.number("ready")).filter(|ready| *ready == 1));
    let captured = place.capture(&sandbox);
    assert_eq!(captured.snapshot.processes.len(), 1);
    drop(sandbox);
    // Both see the same files.
    let copies = [place.try_restore().unwrap(), place.try_restore().unwrap()];
    for (count, copy) in copies.iter().enumerate() {
        place.signal(copy, 2, libc::SIGUSR1);
        until("it hears", || (place.read("heard").lines().count() > count).then_some(()));
    }
    assert!(place.read("heard").lines().all(|line| line.starts_with("2 ")), "the number is kept");
}

#[test]
fn a_parent_gets_the_right_child() {
    let mut place = Place::new();
    let sandbox = place.shell(
        "sleep 1000 & a=$!; sleep 2000 & b=$!; echo $a $b > /mnt/children; \
         wait $b; echo $? for $b > /mnt/answer; wait $a; echo $? for $a >> /mnt/answer; sleep 1000",
    );
    let children =
        until("children", || Some(place.read("children")).filter(|text| text.ends_with('\n')));
    let numbers: Vec<i32> = children.split_whitespace().map(|word| word.parse().unwrap()).collect();
    until("both sleep", || {
        let names = numbers
            .iter()
            .map(|pid| std::fs::read_to_string(sandbox.path(&format!("/proc/{pid}/comm"))));
        names.map(|name| name.ok().filter(|name| name == "sleep\n")).collect::<Option<Vec<_>>>()
    });
    place.capture(&sandbox);
    drop(sandbox);
    let copy = place.restore();
    place.signal(&copy, numbers[1], libc::SIGTERM);
    let first = format!("143 for {}\n", numbers[1]);
    until("the first answer", || (place.read("answer") == first).then_some(()));
    place.signal(&copy, numbers[0], libc::SIGHUP);
    let both = format!("{first}129 for {}\n", numbers[0]);
    until("the second answer", || (place.read("answer") == both).then_some(()));
}

#[test]
fn a_child_that_died_before_is_still_waited_for() {
    let mut place = Place::new();
    let sandbox = place.python(
        "import os, signal, time\n\
         a = os.fork()\n\
         if a == 0: os._exit(42)\n\
         b = os.fork()\n\
         if b == 0: os.kill(os.getpid(), signal.SIGKILL)\n\
         while open(f'/proc/{a}/stat').read().split()[2] != 'Z' or open(f'/proc/{b}/stat').read().split()[2] != 'Z': time.sleep(0.001)\n\
         open('/mnt/ready', 'w').write('1')\n\
         while not os.path.exists('/mnt/go'): time.sleep(0.005)\n\
         open('/mnt/answer', 'w').write(f'{os.waitpid(a, 0)[1]} {os.waitpid(b, 0)[1]}.')\n\
         time.sleep(1000)\n",
    );
    until("both are dead", || Some(place.number("ready")).filter(|ready| *ready == 1));
    let captured = place.capture(&sandbox);
    assert_eq!(
        captured.snapshot.processes.iter().filter(|process| process.alive().is_none()).count(),
        2
    );
    drop(sandbox);
    let _copy = place.restore();
    place.put("go", "");
    let answer =
        until("an answer", || Some(place.read("answer")).filter(|text| text.ends_with('.')));
    assert_eq!(answer, format!("{} 9.", 42 << 8));
}

#[test]
fn nothing_is_lost_or_doubled_in_a_pipe() {
    let mut place = Place::new();
    // The reader is slower than the writer: the pipe is full when it is captured.
    let mut sandbox = place.shell(
        "i=0; while :; do i=$((i+1)); echo $i; done | \
         while read l; do n=$((n+1)); [ $l = $n ] || echo wrong $l $n >> /mnt/wrong; \
         [ $((n % 50)) = 0 ] && { echo $n > /mnt/count.new; mv -f /mnt/count.new /mnt/count; sleep 0.002; }; done",
    );
    let mut before = place.grows("count", 100);
    for _ in 0..5 {
        let captured = place.capture(&sandbox);
        let bytes: usize = captured
            .snapshot
            .files
            .iter()
            .map(|file| match &file.kind {
                forkpoint_checkpoint::image::FileKind::Pipe { content, .. } => content.0.len(),
                _ => 0,
            })
            .sum();
        assert!(bytes > 0, "something was on its way");
        drop(sandbox);
        place.put("count", "0");
        sandbox = place.restore();
        before = place.grows("count", before);
    }
    assert_eq!(place.read("wrong"), "");
}

/// More than one process has numbers for.
#[test]
fn pipes_of_many_processes_stay_apart() {
    let mut place = Place::new();
    let sandbox = place.python(
        "import os, socket, time\n\
         me = 0\n\
         for child in range(1, 8):\n    if os.fork() == 0: me = child; break\n\
         pipes = [os.pipe() for _ in range(40)]\n\
         for i, (_, w) in enumerate(pipes): os.write(w, f'{me} {i}'.encode())\n\
         pairs = [socket.socketpair() for _ in range(20)]\n\
         for i, (a, _) in enumerate(pairs): a.send(f'{i} {me}'.encode())\n\
         open(f'/mnt/ready{me}', 'w').write('1')\n\
         while not os.path.exists('/mnt/go'): time.sleep(0.005)\n\
         for i, (r, w) in enumerate(pipes):\n    os.close(w); assert os.read(r, 99) == f'{me} {i}'.encode() and os.read(r, 99) == b'', (me, i)\n\
         for i, (_, b) in enumerate(pairs): assert b.recv(99) == f'{i} {me}'.encode(), (me, i)\n\
         open(f'/mnt/answer{me}', 'w').write('good.')\n\
         time.sleep(1000)\n",
    );
    until("all are there", || (place.ready() == 8).then_some(()));
    place.capture(&sandbox);
    drop(sandbox);
    let _copy = place.restore();
    place.put("go", "");
    for child in 0..8 {
        let answer = format!("answer{child}");
        until("an answer", || (place.read(&answer) == "good.").then_some(()));
    }
}

/// Whose session and group leaders are gone, as daemons have it.
#[test]
fn who_outlived_his_session_comes_back_in_it() {
    let mut place = Place::new();
    let sandbox = place.python(
        "import os, time\n\
         if os.fork() == 0:\n\
         \x20   os.setsid()\n\
         \x20   if os.fork() == 0:\n\
         \x20       while os.getppid() != 1: time.sleep(0.001)\n\
         \x20       if os.fork() == 0: os.setpgid(0, 0)\n\
         \x20       open(f'/mnt/d{os.getpid()}', 'w').write('1')\n\
         \x20       while not os.path.exists('/mnt/go'): time.sleep(0.005)\n\
         \x20       open(f'/mnt/a{os.getpid()}', 'w').write(f'{os.getsid(0)} {os.getpgid(0)} {os.getppid()}.')\n\
         \x20       time.sleep(1000)\n\
         \x20   os._exit(0)\n\
         os.wait()\n\
         time.sleep(1000)\n",
    );
    until("both are there", || (place.read("d4") == "1" && place.read("d5") == "1").then_some(()));
    place.capture(&sandbox);
    drop(sandbox);
    let copy = place.restore();
    place.put("go", "");
    let read =
        |name: &str| until(name, || Some(place.read(name)).filter(|text| text.ends_with('.')));
    assert_eq!([read("a4"), read("a5")], ["3 3 1.", "3 5 4."]);
    drop(copy);
}

#[test]
fn what_stood_by_job_control_stands_again() {
    let mut place = Place::new();
    let sandbox = place.shell(COUNTER);
    place.grows("count", 3);
    place.signal(&sandbox, 2, libc::SIGSTOP);
    until("it stands", || place.state(&sandbox, 2).filter(|state| *state == 'T'));
    place.capture(&sandbox);
    assert_eq!(until("it stands", || place.state(&sandbox, 2).filter(|state| *state == 'T')), 'T');
    drop(sandbox);
    let copy = place.restore();
    until("it stands again", || place.state(&copy, 2).filter(|state| *state == 'T'));
    let before = place.number("count");
    place.signal(&copy, 2, libc::SIGCONT);
    place.grows("count", before);
}

/// Filters and the promise to gain no rights are inherited by what is started later, also afterwards.
#[test]
fn what_is_forbidden_stays_forbidden() {
    let mut place = Place::new();
    let sandbox = place.confined(
        "while :; do grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status > /mnt/rights.new; \
         mount -t tmpfs x /tmp 2>/mnt/error; echo $? >> /mnt/rights.new; mv /mnt/rights.new /mnt/rights; sleep 0.01; done",
    );
    let wanted = "NoNewPrivs:\t1\nSeccomp:\t2\n32\n";
    until("rights", || (place.read("rights") == wanted).then_some(()));
    let captured = place.capture(&sandbox);
    let filters = |process: &forkpoint_checkpoint::image::Process| {
        process.alive().unwrap().threads[0].filters.len()
    };
    assert!(
        captured.snapshot.processes.iter().filter(|p| p.alive().is_some()).all(|p| filters(p) == 1)
    );
    drop(sandbox);
    place.put("rights", "");
    let _copy = place.restore();
    until("the same rights", || (place.read("rights") == wanted).then_some(()));
}

#[test]
fn users_groups_limits_and_directories_come_back() {
    let mut place = Place::new();
    let sandbox = place.python(
        "import os, resource, time, json\n\
         def told():\n\
         \x20   status = dict(line.rstrip().split(':', 1) for line in open('/proc/self/status'))\n\
         \x20   keys = ['Name', 'Uid', 'Gid', 'Groups', 'CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'Umask']\n\
         \x20   return [[key, status[key].strip()] for key in keys] + [os.getcwd(), os.nice(0), sorted(os.sched_getaffinity(0)),\n\
         \x20       resource.getrlimit(resource.RLIMIT_NOFILE), open('/proc/self/oom_score_adj').read()]\n\
         os.mkdir('/mnt/sub'); os.chdir('/mnt/sub'); os.umask(0o27); os.nice(5)\n\
         resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300))\n\
         os.sched_setaffinity(0, {0})\n\
         open('/proc/self/oom_score_adj', 'w').write('300')\n\
         os.chmod('/mnt', 0o777)\n\
         os.setgroups([4, 20]); os.setresgid(7, 8, 9); os.setresuid(1000, 1001, 1002)\n\
         open('/mnt/before', 'w').write(json.dumps(told()))\n\
         open('/mnt/ready', 'w').write('1')\n\
         while not os.path.exists('/mnt/go'): time.sleep(0.005)\n\
         open('/mnt/after', 'w').write(json.dumps(told()) + '.')\n\
         time.sleep(1000)\n",
    );
    until("ready", || Some(place.number("ready")).filter(|ready| *ready == 1));
    place.capture(&sandbox);
    drop(sandbox);
    let _copy = place.restore();
    place.put("go", "");
    let after = until("an answer", || Some(place.read("after")).filter(|text| text.ends_with('.')));
    assert_eq!(after, place.read("before") + ".");
}
