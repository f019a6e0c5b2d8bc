//! The memory of a copy is that of the original, byte for byte.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    os::unix::fs::FileExt as _,
};

use forkpoint_checkpoint::{
    CaptureSpec, Captured, Chain, Tracker, Tree,
    bare::{Bare, BareSpec},
    capture,
    image::{Descriptor, FileKind, MappingKind, MemoryId, Process, Snapshot},
};
use proptest::prelude::*;

use crate::place::{Place, try_capture, until};

/// Maps, shares, writes, forks, opens and sleeps as a seed says, and then waits.
const RANDOM: &str = "
import ctypes, mmap, os, random, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
for f in (libc.munmap, libc.mprotect, libc.madvise): f.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mremap.restype = ctypes.c_void_p
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
r = random.Random(int(open('/mnt/seed').read()))
# What is ours alone, and in no file, is in `own` too.
regions, own, files, pipes = [], set(), [], []
def add(start, size, mine=False):
    regions.append((start, size))
    (own.add if mine else own.discard)((start, size))
rounds = 0
def more(*_):
    global rounds
    rounds += 1
    # What is unmapped and not ours alone does not come back in place.
    for _ in range(40): step(9, r.choice([0, 2, 3, 5, 6, 8, 9, 15, 16, 17] if rounds == 1 else [0, 2, 3, 8, 15, 16, 17]))
    open(f'/mnt/more{rounds}-{os.getpid()}', 'w').write('1')
signal.signal(signal.SIGTERM, more)
def step(depth, what=None):
    if what is None: what = r.randrange(18)
    if what <= 1:
        size = r.randrange(1, r.choice([64, 64, 64, 2048])) * 4096
        add(libc.mmap(None, size, 3, 0x22, -1, 0), size, True)
    elif what <= 4 and regions:
        start, size = r.choice(regions)
        for _ in range(r.randrange(1, 12)):
            at = r.randrange(size - 64)
            ctypes.memmove(start + at, r.randbytes(64), 64)
    elif what == 5 and regions:
        start, size = regions.pop(r.randrange(len(regions)))
        libc.munmap(start + size // 8192 * 4096, 4096, 0)
    elif what == 6 and regions:
        start, size = regions.pop(r.randrange(len(regions)))
        libc.mprotect(start, 4096, r.choice([0, 1, 3]))
    elif what == 7:
        name = f'/mnt/f{r.randrange(5)}'
        f = os.open(name, os.O_RDWR | os.O_CREAT); os.write(f, r.randbytes(r.randrange(9000))); files.append(f)
        if r.randrange(2): add(libc.mmap(None, 8192, 3, 2, f, 0), 4096)
    elif what == 8 and regions:
        start, size = r.choice(regions)
        libc.madvise(start, 4096, 4)
    elif what == 9:
        size = r.randrange(1, 32) * 4096
        add(libc.mmap(None, size, 3, 0x21, -1, 0), size)
    elif what == 10:
        f = os.memfd_create(f'm{r.randrange(9)}'); os.ftruncate(f, 65536); os.pwrite(f, r.randbytes(99), r.randrange(60000))
        add(libc.mmap(None, 65536, 3, r.choice([1, 2]), f, 0), 65536)
        files.append(f)
    elif what == 11:
        f = os.open(f'/dev/shm/s{r.randrange(4)}', os.O_RDWR | os.O_CREAT); os.ftruncate(f, 32768)
        add(libc.mmap(None, 32768, 3, r.choice([1, 2]), f, 0), 32768)
        files.append(f)
    elif what == 12 and files:
        f = r.choice(files)
        more = r.randrange(4)
        if more == 0: os.lseek(f, r.randrange(5000), 0)
        elif more == 1: files.append(os.dup(f))
        elif more == 2: os.read(f, r.randrange(300))
        else: files.remove(f); os.close(f)
    elif what == 13:
        reader, writer = os.pipe(); os.write(writer, r.randbytes(r.randrange(3000))); pipes.append((reader, writer))
    elif what == 14:
        time.sleep(r.random() / 500)
    elif what >= 15 and any(region in own for region in regions):
        start, size = r.choice([region for region in regions if region in own])
        regions.remove((start, size))
        page, most = r.choice([0, r.randrange(size // 4096)]), size // 4096
        part = (start + page * 4096, r.randrange(1, most - page + 1) * 4096)
        if what == 15: libc.munmap(*part, 0)
        elif what == 16: libc.mprotect(*part, r.choice([0, 1, 3]))
        else:
            size, more = part[1], part[1] + r.randrange(64) * 4096
            start = libc.mremap(part[0], size, more, 1)
            if start != ctypes.c_void_p(-1).value: add(start, more, True)
    if r.randrange(25) == 0 and depth < 3 and os.fork() == 0:
        depth += 1
        r.seed(r.randrange(1 << 30) + depth)
    return depth
depth = 0
for _ in range(r.randrange(20, 120)): depth = step(depth)
open(f'/mnt/ready{os.getpid()}', 'w').write('1')
while True: signal.pause()
";

type Memory = BTreeMap<(i32, u64), Vec<u8>>;

/// All memory that can be read, by number inside and address.
fn memory(sandbox: &Bare) -> Memory {
    let mut all = Memory::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(outside) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        let status = fs::read_to_string(format!("/proc/{outside}/status")).unwrap_or_default();
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or("");
        let numbers: Vec<i32> = numbers.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let [.., inside] = numbers[..] else { continue };
        if inside == 1 || numbers.len() < 2 || namespace(outside) != namespace(sandbox.init) {
            continue;
        }
        let file = File::open(format!("/proc/{outside}/mem")).unwrap();
        for line in fs::read_to_string(format!("/proc/{outside}/maps")).unwrap().lines() {
            let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let (start, end) =
                (u64::from_str_radix(start, 16).unwrap(), u64::from_str_radix(end, 16).unwrap());
            if line.contains("[v") {
                continue;
            }
            let mut bytes = vec![0; (end - start) as usize];
            // Behind the end of a mapped file there is nothing to read.
            for (page, bytes) in bytes.chunks_mut(4096).enumerate() {
                let _ = file.read_exact_at(bytes, start + 4096 * page as u64);
            }
            all.insert((inside, start), bytes);
        }
    }
    all
}

/// Pages that differ, apart from what the kernel writes by itself.
fn differing(before: &Memory, after: &Memory, snapshot: &Snapshot) -> Vec<(i32, u64)> {
    let own: Vec<(i32, u64)> = snapshot
        .processes
        .iter()
        .filter_map(|process| Some((process.pid, process.alive()?)))
        .flat_map(|(pid, alive)| {
            alive.threads.iter().filter_map(move |thread| Some((pid, thread.rseq?.0)))
        })
        .collect();
    let mut found = Vec::new();
    for ((pid, start), bytes) in before {
        let pages = bytes.chunks(4096).zip(after[&(*pid, *start)].chunks(4096));
        for (page, (one, other)) in pages.enumerate().filter(|(_, (one, other))| one != other) {
            let page = start + 4096 * page as u64;
            let differs = |at: usize| {
                let address = page + at as u64;
                let is_own = |(owner, area): &(i32, u64)| {
                    owner == pid && (*area..area + 32).contains(&address)
                };
                one[at] != other[at] && !own.iter().any(is_own)
            };
            if (0..one.len()).any(differs) {
                found.push((*pid, page));
            }
        }
    }
    found
}

/// Mappings that touch count as one: what the kernel joins is not the program's business.
fn joined(memory: Memory) -> Memory {
    let mut all = Memory::new();
    for ((pid, start), bytes) in memory {
        match all.last_entry() {
            Some(mut last)
                if last.key().0 == pid && last.key().1 + last.get().len() as u64 == start =>
            {
                last.get_mut().extend(bytes);
            }
            _ => {
                all.insert((pid, start), bytes);
            }
        }
    }
    all
}

/// Mappings that one of them has alone, or with another length.
fn only<'a>(one: &'a Memory, other: &'a Memory) -> Vec<(i32, String)> {
    let len = |memory: &Memory, key| memory.get(key).map_or(0, Vec::len);
    let keys = one.keys().chain(other.keys());
    let odd = keys.filter(|key| len(one, key) != len(other, key));
    odd.map(|key| (key.0, format!("{:x} {:x} {:x}", key.1, len(one, key), len(other, key))))
        .collect()
}

/// What every descriptor is, but for numbers that the kernel gives out.
fn open_files(snapshot: &Snapshot) -> Vec<(i32, i32, bool, usize, i32, String)> {
    let told = |kind: &FileKind| match kind {
        FileKind::Memory { position, .. } => format!("memory at {position}"),
        FileKind::Pipe { capacity, content, .. } => format!("pipe of {capacity}: {content:?}"),
        FileKind::Deleted { content, position, mode, .. } => {
            format!("deleted, {mode:o}, at {position}: {content:?}")
        }
        kind => format!("{kind:?}"),
    };
    let mut all = Vec::new();
    for process in &snapshot.processes {
        let descriptors = process.alive().map_or(&[][..], |alive| &alive.descriptors);
        for descriptor in descriptors {
            let file = &snapshot.files[descriptor.file];
            // Who shares it, by the first who does.
            let same = |other: &&Process| {
                other.alive().is_some_and(|alive| {
                    alive.descriptors.iter().any(|other| other.file == descriptor.file)
                })
            };
            let sharers = snapshot.processes.iter().filter(same).count();
            let kind = told(&file.kind);
            let Descriptor { number, close_on_exec, .. } = *descriptor;
            // A pipe that is opened by a name in `/proc` may be large, which means nothing.
            let flags = file.flags & !0o100_000;
            all.push((process.pid, number, close_on_exec, sharers, flags, kind));
        }
    }
    all
}

/// Whose, where, and which part of it.
type Part = (i32, u64, u64);

/// Which mappings are of one memory, as sets of addresses.
fn shared(snapshot: &Snapshot) -> BTreeSet<Vec<Part>> {
    let mut all: BTreeMap<MemoryId, Vec<Part>> = BTreeMap::new();
    for process in &snapshot.processes {
        for mapping in process.alive().map_or(&[][..], |alive| &alive.mappings) {
            if let MappingKind::Memory { memory, offset, .. } = mapping.kind {
                all.entry(memory).or_default().push((process.pid, mapping.start, offset));
            }
        }
    }
    all.into_values().collect()
}

/// Waits until every process has said so and does nothing any more. Returns their numbers.
fn all_wait(place: &Place, sandbox: &Bare, said: &str) -> Vec<i32> {
    until("all wait", || {
        let names = fs::read_dir(sandbox.path("/proc")).unwrap().flatten();
        let numbers = names.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let numbers: Vec<i32> = numbers.filter(|pid| *pid != 1).collect();
        let waits = |pid: &i32| {
            let call = fs::read_to_string(sandbox.path(&format!("/proc/{pid}/syscall")));
            call.is_ok_and(|call| call.starts_with("34 "))
        };
        let all = !numbers.is_empty() && numbers.len() == place.said(said);
        (all && numbers.iter().all(waits)).then_some(numbers)
    })
}

/// All have more of the same, in memory alone.
fn go_on(place: &Place, sandbox: &Bare, numbers: &[i32], round: u32) {
    for pid in numbers {
        place.signal(sandbox, *pid, libc::SIGTERM);
    }
    all_wait(place, sandbox, &format!("more{round}-"));
}

/// The memory of a moment, as far as it is in an image of it: what the engine itself mapped in there while it looked is
/// not the program's, even where the kernel joined them.
fn of_moment(before: Memory, captured: &Captured) -> Memory {
    let before = joined(before);
    let mut all = Memory::new();
    for process in &captured.snapshot.processes {
        for mapping in process.alive().map_or(&[][..], |alive| &alive.mappings) {
            let ((_, start), bytes) =
                before.range(..=(process.pid, mapping.start)).next_back().unwrap();
            let (from, to) = ((mapping.start - start) as usize, (mapping.end - start) as usize);
            all.insert((process.pid, mapping.start), bytes[from..to].to_vec());
        }
    }
    joined(all)
}

fn same(sandbox: &Bare, before: &Memory, snapshot: &Snapshot, whose: &str) {
    let after = joined(memory(sandbox));
    assert_eq!(only(&after, before), [], "{whose}");
    assert_eq!(differing(before, &after, snapshot), [], "{whose}");
}

fn compare(seed: u32) {
    let mut place = Place::new();
    place.put("seed", &seed.to_string());
    let sandbox = place.python(RANDOM);
    all_wait(&place, &sandbox, "ready");
    let mut before = Memory::new();
    let captured = capture(&Tree::below(sandbox.init), &CaptureSpec::default(), || {
        before = memory(&sandbox);
        Ok(())
    })
    .unwrap();
    place.write(&captured);
    let before = of_moment(before, &captured);
    let original = joined(memory(&sandbox));
    assert_eq!(only(&original, &before), [], "the original");
    assert_eq!(differing(&before, &original, &captured.snapshot), [], "the original");
    drop(sandbox);
    let copy = place.restore();
    let after = joined(memory(&copy));
    assert_eq!(only(&after, &before), [], "the copy");
    assert_eq!(differing(&before, &after, &captured.snapshot), [], "the copy, seed {seed}");
    let again = try_capture(&copy).unwrap().snapshot;
    let (is, was) = (open_files(&again), open_files(&captured.snapshot));
    assert_eq!(is.len(), was.len(), "the copy, seed {seed}");
    for (is, was) in is.iter().zip(&was) {
        assert_eq!(is, was, "the copy, seed {seed}");
    }
    assert_eq!(shared(&again), shared(&captured.snapshot), "the copy, seed {seed}");
    drop(copy);
    place.bring_files_back();
    let sharing = place.restore_as(BareSpec { shares: true, ..place.spec() });
    same(&sharing, &before, &captured.snapshot, &format!("one that shares, seed {seed}"));
    drop(sharing);
    place.bring_files_back();
    let lazy = place.restore_as(BareSpec { lazy: true, ..place.spec() });
    until("all memory is there", || lazy.is_whole().then_some(()));
    same(&lazy, &before, &captured.snapshot, &format!("one whose memory came later, seed {seed}"));
}

/// The same of an image that lies over another: of a copy, and of who goes back in place.
fn compare_chain(seed: u32) {
    let mut place = Place::new();
    place.put("seed", &seed.to_string());
    let sandbox = place.python(RANDOM);
    let numbers = all_wait(&place, &sandbox, "ready");
    let (tree, spec) = (Tree::below(sandbox.init), CaptureSpec::default());
    let mut tracker = Tracker::new();
    let base = tracker.capture(&tree, &spec, || Ok(())).unwrap();
    tracker.note(place.write(&base));
    go_on(&place, &sandbox, &numbers, 1);
    let mut before = Memory::new();
    let captured = tracker.capture(&tree, &spec, || {
        before = memory(&sandbox);
        place.keep_files()
    });
    let captured = captured.unwrap();
    assert!(captured.parent().is_some());
    tracker.note(place.write(&captured));
    let before = of_moment(before, &captured);
    go_on(&place, &sandbox, &numbers, 2);
    let chain = Chain::open(place.images.clone()).unwrap();
    tracker.rollback(&tree, &chain, &spec, || Ok(())).unwrap();
    same(&sandbox, &before, &captured.snapshot, &format!("who went back, seed {seed}"));
    drop(sandbox);
    let copy = place.restore();
    same(&copy, &before, &captured.snapshot, &format!("a copy of two images, seed {seed}"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, max_shrink_iters: 0, ..ProptestConfig::default() })]
    #[test]
    fn a_copy_has_the_same_memory(seed in any::<u32>()) {
        compare(seed);
    }

    #[test]
    fn a_copy_of_two_images_has_the_same_memory(seed in any::<u32>()) {
        compare_chain(seed);
    }
}
