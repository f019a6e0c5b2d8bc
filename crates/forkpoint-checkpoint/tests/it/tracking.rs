//! Captures of what changed since the last one.

use forkpoint_checkpoint::{CaptureSpec, Chain, Tracker, Tree, bare::Bare, image::Image};

use crate::place::{Place, until};

/// A heap whose pages are written when asked for, and a sum of all of it.
const HEAP: &str = "
import mmap, os, time, zlib
m = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, len(m), 4096): m[at:at + 8] = at.to_bytes(8, 'little')
n = 0
while True:
    try: wanted = int(open('/mnt/want').read() or 0)
    except (FileNotFoundError, ValueError): wanted = 0
    if wanted > n:
        n = wanted
        for at in range(0, 100 * 4096, 4096): m[at * 20 % (30 << 20)] = n
        if n == 3: m.madvise(mmap.MADV_DONTNEED, 16 << 20, 6 << 20)
        open('/mnt/answer.new', 'w').write(f'{n} {zlib.crc32(m)}.')
        os.rename('/mnt/answer.new', '/mnt/answer')
    time.sleep(0.002)
";

fn ask(place: &Place, number: u32) -> String {
    place.put("want", &number.to_string());
    let wanted = format!("{number} ");
    until("an answer", || {
        Some(place.read("answer")).filter(|text| text.starts_with(&wanted) && text.ends_with('.'))
    })
}

fn capture(place: &mut Place, tracker: &mut Tracker, sandbox: &Bare) -> u64 {
    let tree = Tree::below(sandbox.init);
    let captured = tracker.capture(&tree, &CaptureSpec::default(), || place.keep_files()).unwrap();
    let id = place.write(&captured);
    tracker.note(id);
    captured.pages_len_bytes()
}

#[test]
fn only_what_was_written_is_captured_again() {
    let mut place = Place::new();
    let sandbox = place.python(HEAP);
    ask(&place, 1);
    let mut tracker = Tracker::new();
    let first = capture(&mut place, &mut tracker, &sandbox);
    assert!(first > 32 << 20, "{first}");
    let mut answers = Vec::new();
    for number in 2..6 {
        answers.push(ask(&place, number));
        let more = capture(&mut place, &mut tracker, &sandbox);
        assert!((100 * 4096..4 << 20).contains(&more), "{more} bytes in capture {number}");
    }
    assert_eq!(place.images.len(), 5);
    let all = place.images.clone();
    drop(sandbox);
    // Every moment of the row can be gone back to; asking for the same again gives the same sum.
    for (number, answer) in (2..6).zip(&answers) {
        place.images = all[..number as usize].to_vec();
        place.put("answer", "");
        place.put("want", "0");
        // The files that were kept are those of the last moment.
        let copy = place.try_restore().unwrap();
        let next = answers.get(number as usize - 1);
        assert_eq!(next.is_some(), number < 5);
        if let Some(next) = next {
            assert_eq!(&ask(&place, number + 1), next);
        }
        assert!(answer.ends_with('.'));
        drop(copy);
    }
}

#[test]
fn images_that_were_merged_hold_what_they_held_and_are_built_upon() {
    let mut place = Place::new();
    let sandbox = place.python(HEAP);
    ask(&place, 1);
    let mut tracker = Tracker::new();
    capture(&mut place, &mut tracker, &sandbox);
    for number in 2..5 {
        ask(&place, number);
        capture(&mut place, &mut tracker, &sandbox);
    }
    let all = place.images.clone();
    let chain = Chain::open(all.clone()).unwrap();
    let [whole, part] = [0, 1].map(|from| {
        let path = all[0].with_file_name(format!("merged-{from}"));
        let id = chain.merge(from, &path).unwrap();
        assert_eq!(Image::open(&path).unwrap().id, id);
        assert!(chain.merge(from, &path).is_err(), "it is there already");
        path
    });
    let len = |path: &std::path::PathBuf| Image::open(path).unwrap().pages_len_bytes;
    assert!(len(&whole) > 28 << 20 && len(&whole) < len(&all[0]) + (1 << 20), "no page twice");
    assert!(len(&part) >= 100 * 4096 && len(&part) < all[1..].iter().map(len).sum());
    let left = std::fs::read_dir(all[0].parent().unwrap()).unwrap().flatten();
    let left = left.map(|entry| entry.file_name().into_string().unwrap());
    assert!(!left.into_iter().any(|name| name.contains(".new-")));

    // What comes next lies over one of them, and holds what was written since the last.
    tracker = Tracker::from_handles(&Image::open(&part).unwrap(), tracker.into_handles());
    let five = ask(&place, 5);
    place.images = vec![all[0].clone(), part.clone()];
    let more = capture(&mut place, &mut tracker, &sandbox);
    assert!((100 * 4096..4 << 20).contains(&more), "{more} bytes");
    let six = ask(&place, 6);
    drop(sandbox);
    let next = place.images.clone();
    assert_eq!(next.len(), 3);
    for (images, number, answer) in [
        (vec![whole], 5, &five),
        (vec![all[0].clone(), part], 5, &five),
        (all, 5, &five),
        (next, 6, &six),
    ] {
        place.images = images;
        place.put("answer", "");
        place.put("want", "0");
        let _copy = place.try_restore().unwrap();
        assert_eq!(&ask(&place, number), answer);
    }
}

#[test]
fn a_tree_that_changes_is_captured_as_it_is() {
    let mut place = Place::new();
    let mut sandbox = place.shell(crate::shells::COUNTER);
    let mut before = place.grows("count", 3);
    for _ in 0..3 {
        let mut tracker = Tracker::new();
        for _ in 0..5 {
            capture(&mut place, &mut tracker, &sandbox);
            before = place.grows("count", before);
        }
        drop(sandbox);
        place.put("count", "0");
        sandbox = place.restore();
        before = place.grows("count", before.saturating_sub(5));
    }
}

#[test]
fn an_image_that_was_not_noted_is_not_built_upon() {
    let place = Place::new();
    let sandbox = place.python(HEAP);
    ask(&place, 1);
    let mut tracker = Tracker::new();
    let tree = Tree::below(sandbox.init);
    for _ in 0..2 {
        let captured = tracker.capture(&tree, &CaptureSpec::default(), || Ok(())).unwrap();
        assert!(captured.parent().is_none() && captured.pages_len_bytes() > 32 << 20);
    }
    let err =
        tracker.capture(&tree, &CaptureSpec::default(), || Err(std::io::Error::other("no room")));
    assert!(err.is_err());
    ask(&place, 2);
}

/// What was copied while it ran and what was copied while it stood are one moment.
#[test]
fn what_is_copied_early_is_corrected() {
    let mut place = Place::new();
    let sandbox = place.python(HEAP);
    ask(&place, 1);
    let (tree, spec) = (Tree::below(sandbox.init), CaptureSpec::default());
    let mut tracker = Tracker::new();
    tracker.prepare(&tree, &spec).unwrap();
    ask(&place, 2);
    let captured = tracker.capture(&tree, &spec, || place.keep_files()).unwrap();
    assert!(captured.parent().is_none());
    place.write(&captured);
    let third = ask(&place, 3);
    drop(sandbox);
    place.put("answer", "");
    place.put("want", "0");
    let copy = place.restore();
    assert_eq!(ask(&place, 3), third);
    drop(copy);
}

#[test]
fn a_second_tracker_is_told_of_the_first() {
    let place = Place::new();
    let sandbox = place.python(HEAP);
    ask(&place, 1);
    let (tree, spec) = (Tree::below(sandbox.init), CaptureSpec::default());
    let mut first = Tracker::new();
    first.capture(&tree, &spec, || Ok(())).unwrap();
    let mut second = Tracker::new();
    let err = second.capture(&tree, &spec, || Ok(())).unwrap_err();
    let cause = std::error::Error::source(&err).unwrap().to_string();
    assert!(cause.contains("another tracker has this process"), "{err}: {cause}");
    ask(&place, 2);
    drop(first);
    second.capture(&tree, &spec, || Ok(())).unwrap();
}

/// Its number stays, and what was noted belongs to memory that is gone.
#[test]
fn a_process_that_became_another_program_is_captured_in_full() {
    let mut place = Place::new();
    let counter =
        "i=0; while :; do i=$((i+1)); echo $i > /mnt/c; mv /mnt/c /mnt/count; sleep 0.01; done";
    let sandbox = place.shell(&format!(
        "echo 1 > /mnt/ready; while ! [ -e /mnt/go ]; do sleep 0.01; done; exec bash -c '{counter}'"
    ));
    until("it is ready", || Some(place.number("ready")).filter(|ready| *ready == 1));
    let (tree, spec) = (Tree::below(sandbox.init), CaptureSpec::default());
    for early in [false, true] {
        let mut tracker = Tracker::new();
        if early {
            tracker.prepare(&tree, &spec).unwrap();
        } else {
            capture(&mut place, &mut tracker, &sandbox);
        }
        place.put("go", "");
        place.grows("count", 0);
        // Once more, into the same program.
        let captured = tracker.capture(&tree, &spec, || place.keep_files()).unwrap();
        place.write(&captured);
    }
    drop(sandbox);
    let _copy = place.restore();
    let now = place.number("count");
    place.grows("count", now + 3);
}

/// What notes writes takes a descriptor for a moment.
#[test]
fn who_has_no_descriptor_left_is_captured_in_full() {
    let mut place = Place::new();
    let sandbox = place.python(
        "
import os, resource, time
count = os.open('/mnt/count', os.O_WRONLY | os.O_CREAT)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
kept = bytearray(os.urandom(1 << 20))
try:
    while True: os.dup(0)
except OSError: pass
n = 0
while True:
    n += 1
    os.pwrite(count, str(n).encode(), 0)
    time.sleep(0.002)
",
    );
    place.grows("count", 2);
    let (tree, spec) = (Tree::below(sandbox.init), CaptureSpec::default());
    let mut tracker = Tracker::new();
    tracker.prepare(&tree, &spec).unwrap();
    for _ in 0..3 {
        let captured = tracker.capture(&tree, &spec, || place.keep_files()).unwrap();
        assert!(captured.pages_len_bytes() > 1 << 20);
        tracker.note(place.write(&captured));
        let now = place.number("count");
        place.grows("count", now);
    }
    let chain = Chain::open(place.images.clone()).unwrap();
    let err = tracker.rollback(&tree, &chain, &spec, || Ok(())).unwrap_err();
    assert!(err.to_string().contains("not tracked"), "{err}");
    drop(sandbox);
    let _copy = place.restore();
    let now = place.number("count");
    place.grows("count", now + 2);
}

/// What was thrown away of a private view shows the file again, which nobody writes down.
#[test]
fn a_view_that_was_thrown_away_shows_the_file() {
    let mut place = Place::new();
    let sandbox = place.python(
        "
import mmap, os, time
file = os.open('/mnt/data', os.O_RDWR | os.O_CREAT); os.write(file, b'file' * 4096)
view = mmap.mmap(file, 16384, flags=mmap.MAP_PRIVATE); view[0:4] = b'mine'; view[8192:8196] = b'mine'
fd = os.open('/mnt/told', os.O_WRONLY | os.O_CREAT)
while True:
    if os.path.exists('/mnt/go'): view.madvise(mmap.MADV_DONTNEED, 0, 4096)
    os.pwrite(fd, view[0:4] + view[8192:8196], 0)
    time.sleep(0.002)
",
    );
    let told =
        |place: &Place, what: &str| until(what, || (place.read("told") == what).then_some(()));
    told(&place, "minemine");
    let (tree, spec) = (Tree::below(sandbox.init), CaptureSpec::default());
    let mut tracker = Tracker::new();
    capture(&mut place, &mut tracker, &sandbox);
    place.put("go", "");
    told(&place, "filemine");
    std::fs::remove_file(place.work().join("go")).unwrap();
    let chain = Chain::open(place.images.clone()).unwrap();
    tracker.rollback(&tree, &chain, &spec, || Ok(())).unwrap();
    told(&place, "minemine");
    place.put("go", "");
    told(&place, "filemine");
    std::fs::remove_file(place.work().join("go")).unwrap();
    capture(&mut place, &mut tracker, &sandbox);
    assert_eq!(place.images.len(), 2);
    drop(sandbox);
    // What is there was told before.
    std::fs::write(place.dir.path().join("kept/told"), "").unwrap();
    let _copy = place.restore();
    told(&place, "filemine");
}
