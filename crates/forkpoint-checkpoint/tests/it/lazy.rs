//! Memory that comes when it is asked for: what the program sees is what it had.

use std::{fs, fs::File, os::unix::fs::FileExt as _, time::Duration};

use forkpoint_checkpoint::{
    CaptureSpec, Tracker, Tree,
    bare::{Bare, BareSpec},
    capture,
};

use crate::place::{Place, until};

/// Has memory of which each page is known, and does what it is told.
const PROGRAM: &str = "
import ctypes, mmap, os, random, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
for f in (libc.munmap, libc.mprotect, libc.madvise): f.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
for f in (libc.read, libc.write): f.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
SIZE = 24 << 20
PAGES = SIZE // 4096
base = libc.mmap(None, SIZE, 3, 0x22, -1, 0)
def page(i): return (i * 2654435761 + 12345 & 0xffffffff).to_bytes(4, 'little') * 1024
for i in range(PAGES): ctypes.memmove(base + i * 4096, page(i), 4096)
EMPTY = bytes(4096)
def read(at): return ctypes.string_at(at, 4096)
def wrong(pages, start=None): return sum(read((start or base) + i * 4096) != page(i) for i in pages)
def some(seed, count=PAGES): return random.Random(seed).sample(range(PAGES), count)
open('/mnt/at', 'w').write(str(base))
done, answer = 0, None
while True:
    try: number = int(open('/mnt/want').read() or 0)
    except (FileNotFoundError, ValueError): number = 0
    if number > done:
        done = number
        exec(open('/mnt/code').read())
        open('/mnt/answer.new', 'w').write(f'{done} {answer}.')
        os.rename('/mnt/answer.new', '/mnt/answer')
    open('/mnt/count.new', 'w').write(str(done + 1)); os.rename('/mnt/count.new', '/mnt/count')
    time.sleep(0.002)
";

/// Before a restore: a file that was open for a moment is there again.
fn prepare(place: &Place, number: u32, code: &str) {
    place.bring_files_back();
    place.put("answer", "");
    tell(place, number, code);
}

fn tell(place: &Place, number: u32, code: &str) {
    place.put("code", code);
    place.put("want", &number.to_string());
}

fn answer(place: &Place, number: u32) -> String {
    let wanted = format!("{number} ");
    until("an answer", || {
        let (ended, log) = (place.read("ended"), place.read("log"));
        assert!(!ended.lines().any(|line| line.starts_with("2 ")), "it ended: {ended} {log}");
        let text = place.read("answer");
        Some(text.strip_prefix(&wanted)?.strip_suffix('.')?.to_owned())
    })
}

fn ask(place: &Place, number: u32, code: &str) -> String {
    tell(place, number, code);
    answer(place, number)
}

const ALL: &str = "answer = wrong(some(1))";

/// Captured, and ended.
fn captured() -> Place {
    let mut place = Place::new();
    let sandbox = place.python(PROGRAM);
    place.grows("count", 0);
    place.capture(&sandbox);
    place
}

/// Restores it, with something to do as soon as it runs.
fn restored(place: &Place, code: &str) -> Bare {
    prepare(place, 1, code);
    let sandbox = place.restore_as(BareSpec { lazy: true, slow: true, ..place.spec() });
    assert!(sandbox.pager.is_some() && !sandbox.is_whole(), "its memory was there at once");
    sandbox
}

fn whole(sandbox: &Bare) {
    until("all memory", || sandbox.is_whole().then_some(()));
}

/// The answer while memory was missing, and that nothing is wrong when all of it is there.
fn while_missing(code: &str, then: &str) -> String {
    let place = captured();
    let sandbox = restored(&place, code);
    let first = answer(&place, 1);
    assert!(!sandbox.is_whole(), "it was there before the answer, {first}");
    whole(&sandbox);
    assert_eq!(ask(&place, 2, then), "0");
    first
}

#[test]
fn every_page_is_what_it_was() {
    let code = "
answer = wrong(some(1, 60))
f = os.open('/tmp', os.O_TMPFILE | os.O_RDWR)
left = some(2, 60)
for i in left[:30]: answer += libc.write(f, base + i * 4096, 4096) != 4096
os.lseek(f, 0, 0)
for i in left[:30]: answer += os.read(f, 4096) != page(i)
os.lseek(f, 0, 0)
for i in left[30:]: answer += libc.read(f, base + i * 4096, 4096) != 4096
for i, j in zip(left, left[30:]): answer += read(base + j * 4096) != page(i)
for i in left[30:]: ctypes.memmove(base + i * 4096, page(i), 4096)
";
    assert_eq!(while_missing(code, ALL), "0");
}

#[test]
fn a_copy_of_the_program_has_the_same_pages() {
    let code = "
def child(seed):
    bad = wrong([i for i in some(seed, 400) if i > 9]) + (read(base + 5 * 4096) != bytes([9]) * 4096)
    os._exit(min(bad, 99))
ctypes.memset(base + 5 * 4096, 9, 4096)
libc.madvise(base + 100 * 4096, 4096, 4)
pids = []
for seed in range(4):
    pid = os.fork()
    if pid == 0:
        ctypes.memset(base + 6 * 4096, 1, 4096)
        if os.fork() == 0: child(seed + 50)
        bad = os.waitstatus_to_exitcode(os.wait()[1])
        bad += read(base + 100 * 4096) != EMPTY
        ctypes.memmove(base + 100 * 4096, page(100), 4096)
        if bad: os._exit(bad)
        child(seed)
    pids.append(pid)
    answer = wrong([i for i in some(seed, 50) if i > 9 and i != 100])
answer = [answer] + [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
answer += [wrong([6]), read(base + 100 * 4096) == EMPTY]
ctypes.memmove(base + 5 * 4096, page(5), 4096)
ctypes.memmove(base + 100 * 4096, page(100), 4096)
";
    assert_eq!(while_missing(code, ALL), "[0, 0, 0, 0, 0, 0, True]");
}

/// More than are kept in one row of messages, all alive at once.
#[test]
fn many_copies_of_the_program_have_the_same_pages() {
    let code = "
go = os.pipe()
pids = []
for seed in range(150):
    pid = os.fork()
    if pid == 0:
        os.close(go[1]); os.read(go[0], 1)
        os._exit(min(wrong(some(seed, 3)), 99))
    pids.append(pid)
os.close(go[1])
answer = sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)
os.close(go[0])
";
    let place = captured();
    let sandbox = restored(&place, code);
    assert_eq!(answer(&place, 1), "0");
    whole(&sandbox);
    assert_eq!(ask(&place, 2, ALL), "0");
}

#[test]
fn memory_that_moves_takes_its_pages_with_it() {
    let code = "
answer = wrong(some(3, 20))
new = libc.mremap(base, SIZE, SIZE * 2, 1, None)
answer += (new == base) + wrong(some(4, 500), new) + (read(new + SIZE) != EMPTY) + (read(new + SIZE * 2 - 4096) != EMPTY)
half = libc.mmap(None, SIZE // 2, 3, 0x22, -1, 0)
answer += libc.mremap(new, SIZE // 2, SIZE // 2, 3, half) != half
answer += wrong([i for i in some(5, 500) if i < PAGES // 2], half) + wrong([i for i in some(6, 500) if i >= PAGES // 2], new)
";
    let then = "answer = wrong(range(PAGES // 2), half) + wrong(range(PAGES // 2, PAGES), new)";
    assert_eq!(while_missing(code, then), "0");
}

#[test]
fn what_is_thrown_away_is_empty() {
    let code = "
answer = wrong([10, 11, 500])
answer += libc.madvise(base + 8 * 4096, 1000 * 4096, 4)
answer += sum(read(base + i * 4096) != EMPTY for i in (8, 10, 11, 300, 500, 1007)) + wrong([7, 1008])
ctypes.memmove(base + 9 * 4096, page(9), 4096)
answer += wrong([9])
";
    let then = "answer = sum(read(base + i * 4096) != EMPTY for i in range(10, 1008)) + wrong([9]) \
                + wrong(range(1008, PAGES)) + wrong(range(8))";
    assert_eq!(while_missing(code, then), "0");
}

#[test]
fn what_is_mapped_anew_or_protected_is_its_own() {
    let code = "
answer = libc.munmap(base + 1000 * 4096, 500 * 4096, 0)
answer += libc.mmap(base + 1200 * 4096, 100 * 4096, 3, 0x32, -1, 0) != base + 1200 * 4096
answer += sum(read(base + i * 4096) != EMPTY for i in range(1200, 1300, 9))
answer += libc.mprotect(base + 2000 * 4096, 100 * 4096, 1) + libc.mprotect(base + 2100 * 4096, 100 * 4096, 0)
answer += wrong(range(1990, 2100)) + wrong(range(2200, 2210)) + wrong(range(990, 1000)) + wrong(range(1500, 1510))
f = os.open('/mnt/program.py', os.O_RDONLY)
answer += libc.mmap(base + 1400 * 4096, 4096, 1, 0x12, f, 0) != base + 1400 * 4096
answer += read(base + 1400 * 4096)[:16] != open('/mnt/program.py', 'rb').read(16)
";
    let then = "
libc.mprotect(base + 2000 * 4096, 200 * 4096, 3)
answer = wrong(range(1000)) + wrong(range(1500, PAGES)) + sum(read(base + i * 4096) != EMPTY for i in range(1200, 1300))
";
    assert_eq!(while_missing(code, then), "0");
}

#[test]
fn threads_that_ask_at_once_are_all_answered() {
    let code = "
bad = [0] * 5
def look(n): bad[n] = wrong(some(n))
threads = [threading.Thread(target=look, args=(n,)) for n in range(5)]
for t in threads: t.start()
for t in threads: t.join()
answer = sum(bad)
";
    let place = captured();
    let sandbox = restored(&place, code);
    assert_eq!(answer(&place, 1), "0");
    whole(&sandbox);
}

#[test]
fn whoever_looks_from_outside_sees_it_or_is_told() {
    let place = captured();
    let sandbox = restored(&place, "answer = 0");
    let at: u64 = place.read("at").parse().unwrap();
    let memory = File::open(format!("/proc/{}/mem", place.outside(&sandbox, 2))).unwrap();
    let mut told = 0;
    for page in (0u32..6144).rev().step_by(101) {
        let mut bytes = [0; 4096];
        if let Err(err) = memory.read_exact_at(&mut bytes, at + u64::from(page) * 4096) {
            assert_eq!(err.raw_os_error(), Some(libc::EIO));
            told += 1;
            continue;
        }
        let wanted = page.wrapping_mul(2_654_435_761).wrapping_add(12_345).to_le_bytes();
        assert_eq!(bytes[..], wanted.repeat(1024)[..], "page {page}");
    }
    assert!(!sandbox.is_whole() && told > 0);
}

/// Looks at everything all the time, also in a copy of itself, and tells when something is wrong.
const SUSPICIOUS: &str = "
answer = 0
if os.fork() == 0: done = 77
seed = os.getpid()
open(f'/mnt/ready{done}', 'w').close()
while True:
    seed += 1
    if wrong(some(seed, 3)): open('/mnt/wrong', 'a').write(f'{done} ')
    time.sleep(0.0005)
";

#[test]
fn a_pager_that_dies_ends_the_sandbox_and_nobody_sees_an_empty_page() {
    let place = captured();
    for _ in 0..4 {
        let sandbox = restored(&place, SUSPICIOUS);
        until("both look", || (place.ready() == 2).then_some(()));
        assert!(!sandbox.is_whole());
        let pager = rustix::process::Pid::from_raw(sandbox.pager.unwrap()).unwrap();
        rustix::process::kill_process(pager, rustix::process::Signal::KILL).unwrap();
        until("the end of it", || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", sandbox.init));
            stat.map_or(true, |stat| stat.contains(") Z")).then_some(())
        });
        assert_eq!(place.read("wrong"), "");
    }
}

#[test]
fn a_capture_waits_for_the_memory() {
    let mut place = captured();
    let sandbox = restored(&place, "answer = 0");
    let hasty = CaptureSpec { patience: Duration::from_millis(20), ..CaptureSpec::default() };
    let refused = capture(&Tree::below(sandbox.init), &hasty, || Ok(())).unwrap_err().to_string();
    assert!(refused.contains("on its way") && refused.contains("try again"), "{refused}");
    // This one is patient, and nothing is missing in what it has.
    let mut tracker = Tracker::new();
    let (tree, patient) = (
        Tree::below(sandbox.init),
        CaptureSpec { patience: Duration::from_secs(25), ..CaptureSpec::default() },
    );
    let captured = tracker.capture(&tree, &patient, || place.keep_files()).unwrap();
    assert!(captured.pages_len_bytes() > 24 << 20);
    let id = place.write(&captured);
    tracker.note(id);
    assert_eq!(
        ask(&place, 2, "ctypes.memset(base, 7, 4096); answer = wrong(range(1, PAGES))"),
        "0"
    );
    // And the next is small: it is tracked as any other.
    let more = tracker.capture(&tree, &CaptureSpec::default(), || place.keep_files()).unwrap();
    assert!(more.pages_len_bytes() < 4 << 20, "{}", more.pages_len_bytes());
    place.write(&more);
    assert_eq!(place.images.len(), 2);
    drop((tracker, sandbox));

    // A row of images, lazily and at once.
    let check = "answer = wrong(some(2)[:3000]) - wrong([0]) * (0 in some(2)[:3000]) + (read(base) != bytes([7]) * 4096)";
    prepare(&place, 3, check);
    let sandbox = place.restore_as(BareSpec { lazy: true, slow: true, ..place.spec() });
    assert!(!sandbox.is_whole());
    assert_eq!(answer(&place, 3), "0");
    whole(&sandbox);
    drop(sandbox);
    prepare(&place, 3, check);
    let _sandbox = place.try_restore().unwrap();
    assert_eq!(answer(&place, 3), "0");
}

#[test]
fn without_a_guard_nothing_is_missing() {
    let place = captured();
    prepare(&place, 1, ALL);
    let spec = BareSpec { lazy: true, slow: true, unguarded: true, ..place.spec() };
    let sandbox = place.restore_as(spec);
    assert!(sandbox.pager.is_none() && sandbox.is_whole());
    assert_eq!(answer(&place, 1), "0");
    // Nobody asks any more: it can be tracked.
    let mut tracker = Tracker::new();
    tracker.capture(&Tree::below(sandbox.init), &CaptureSpec::default(), || Ok(())).unwrap();
}

#[test]
fn small_processes_are_there_at_once() {
    let mut place = Place::new();
    let script =
        "i=0; while :; do i=$((i+1)); echo $i > /mnt/count; read -t 0.001 < /dev/full; done";
    let sandbox = place.shell(script);
    let before = place.grows("count", 0);
    place.capture(&sandbox);
    drop(sandbox);
    let sandbox = place.restore_slowly();
    assert!(sandbox.pager.is_none() && sandbox.is_whole());
    place.grows("count", before);
}

/// How much memory a process has that is its own, in bytes.
fn own_bytes(place: &Place, sandbox: &Bare) -> u64 {
    let pid = place.outside(sandbox, 2);
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn copies_share_what_they_do_not_write() {
    let mut place = captured();
    let sharing = |place: &Place| {
        place.bring_files_back();
        place.put("answer", "");
        place.restore_as(BareSpec { shares: true, ..place.spec() })
    };
    prepare(&place, 1, ALL);
    let copy = place.restore_as(BareSpec { shares: true, ..place.spec() });
    assert_eq!(answer(&place, 1), "0");
    let own = own_bytes(&place, &copy);
    assert!(own < 8 << 20, "{own} of {}", 24 << 20);
    // What it writes is its own, and is kept with the rest.
    let write = "ctypes.memmove(base + 4096, EMPTY, 4096); answer = wrong(some(1))";
    assert_eq!(ask(&place, 2, write), "1");
    let again = place.capture(&copy);
    assert!(again.parent().is_none());
    drop(copy);
    for lazy in [false, true] {
        place.bring_files_back();
        place.put("answer", "");
        let restored = place.restore_as(BareSpec { lazy, ..place.spec() });
        assert_eq!(
            ask(&place, 3, "answer = wrong(some(1)), read(base + 4096) == EMPTY"),
            "(1, True)"
        );
        drop(restored);
    }
    // A copy of a copy that shares, too.
    let copy = sharing(&place);
    assert_eq!(ask(&place, 3, "answer = wrong(some(1)), read(base + 4096) == EMPTY"), "(1, True)");
    drop(copy);
}
