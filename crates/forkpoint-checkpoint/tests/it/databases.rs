//! What a program knows its databases by, found again in whatever image its pages are.

use std::path::PathBuf;

use forkpoint_checkpoint::{CaptureSpec, Chain, Tracker, Tree, bare::Bare, image::Image};

use crate::place::{Place, until};

const PROGRAM: &str = "
import mmap, os, sqlite3, time
ballast = mmap.mmap(-1, 24 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, len(ballast), 4096): ballast[at] = 1
def connect(): return sqlite3.connect('/mnt/db', isolation_level=None, timeout=0)
def is_alone():
    db.execute('begin immediate')
    try: connect().execute('begin immediate')
    except sqlite3.OperationalError as err: return str(err)
    return 'both write'
done = ''
while True:
    try: wanted = open('/mnt/want').read()
    except FileNotFoundError: wanted = ''
    answer = wanted
    if wanted != done:
        if wanted == 'open':
            db = connect()
            db.execute('pragma journal_mode = wal')
            db.execute('create table t (n)')
        if wanted == 'write': ballast[0:1 << 20] = bytes(1 << 20)
        if wanted == 'ask': answer = is_alone()
        done = wanted
        open('/mnt/new', 'w').write(answer + '.')
        os.rename('/mnt/new', '/mnt/answer')
    time.sleep(0.002)
";

fn ask(place: &Place, what: &str) -> String {
    let _ = std::fs::remove_file(place.work().join("answer"));
    place.put("want", what);
    until("an answer", || Some(place.read("answer")).filter(|text| text.ends_with('.')))
}

fn capture(place: &mut Place, tracker: &mut Tracker, sandbox: &Bare) -> PathBuf {
    let tree = Tree::below(sandbox.init);
    let captured = tracker.capture(&tree, &CaptureSpec::default(), || place.keep_files()).unwrap();
    let id = place.write(&captured);
    tracker.note(id);
    place.images.last().unwrap().clone()
}

/// How many places an image tells of.
fn places(image: &PathBuf) -> Option<usize> {
    let image = Image::open(image).unwrap();
    image.snapshot.processes[0].alive().unwrap().known_at.as_ref().map(Vec::len)
}

#[test]
fn a_database_is_known_again_in_whatever_image_it_was() {
    let mut place = Place::new();
    let sandbox = place.python(PROGRAM);
    ask(&place, "begin");
    let mut tracker = Tracker::new();
    let before = capture(&mut place, &mut tracker, &sandbox);
    ask(&place, "open");
    let open = capture(&mut place, &mut tracker, &sandbox);
    ask(&place, "write");
    let after = capture(&mut place, &mut tracker, &sandbox);
    assert_eq!(place.images.len(), 3, "each lies over the last");
    let chain = Chain::open(place.images.clone()).unwrap();
    let [all, two] = [0, 1].map(|from| {
        let path = before.with_file_name(format!("merged-{from}"));
        chain.merge(from, &path).unwrap();
        path
    });
    place.capture(&sandbox);
    let whole = place.images[0].clone();
    drop(sandbox);
    assert_eq!([&before, &all].map(places), [None, None], "nobody looked for it in the first");
    let noted = [&open, &two, &whole].map(places);
    assert!(noted.iter().all(|count| count.is_some_and(|count| count > 0)), "{noted:?}");
    assert!(places(&after).is_some());
    for images in [vec![before.clone(), open, after], vec![before, two], vec![all], vec![whole]] {
        place.images = images;
        let _copy = place.restore();
        assert_eq!(ask(&place, "ask"), "database is locked.", "{:?}", place.images);
    }
}
