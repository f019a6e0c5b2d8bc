//! Images in every form that they come in, and what is wrong with some.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    thread,
};

use forkpoint_backends::{
    driver::local::{TemplateKind, TemplateRecord, Templates},
    image::Progress,
};
use forkpoint_core::{Error, ErrorKind};
use forkpoint_testkit::image::{
    INDEX, MANIFEST, Packed, TarEntry, TestImage, archive, digest, tar, write,
};
use serde_json::{Value, json};

use super::Machine;

/// A machine whose templates are made, and a place for images.
pub(super) struct Shelf {
    pub(super) machine: Machine,
    pub(super) templates: Templates,
}

impl Shelf {
    pub(super) fn new() -> Self {
        let machine = Machine::new(true);
        let templates = machine.local().templates();
        Self { machine, templates }
    }

    pub(super) fn root(&self) -> PathBuf {
        self.machine.directory.path().join("local")
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.machine.directory.path().join(name)
    }

    pub(super) fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub(super) fn add(&self, name: &str, source: &str) -> Result<TemplateRecord, Error> {
        let now = "2026-08-15T09:50:55Z".parse().unwrap();
        self.templates.add(Some(name), source, now, &Progress::default())
    }

    fn refused(&self, source: &str) -> (ErrorKind, String) {
        let err = self.add("bad", source).unwrap_err();
        assert_eq!(self.layers(), [] as [String; 0], "nothing is left");
        assert_eq!(names(&self.root().join("images/staging")), [] as [String; 0]);
        assert!(self.templates.find("bad").unwrap().is_none());
        (err.kind(), err.chain().to_string())
    }

    pub(super) fn layers(&self) -> Vec<String> {
        names(&self.root().join("images/layers"))
    }

    fn tree(&self, digest: &str) -> PathBuf {
        self.root().join("images/layers").join(digest.replace(':', "-")).join("tree")
    }
}

fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

/// Two layers; the upper one hides something of the lower.
pub(super) fn image() -> TestImage {
    let lower = tar([
        TarEntry::directory("etc"),
        TarEntry::file("etc/one", "one"),
        TarEntry::file("etc/two", "two"),
    ]);
    let upper = tar([TarEntry::directory("etc"), TarEntry::file("etc/.wh.one", "")]);
    let run = json!({
        "Env": ["PATH=/bin", "A=B=C"], "Cmd": ["sh"], "WorkingDir": "/srv", "User": "daemon",
        "Entrypoint": null, "ExposedPorts": {"80/tcp": {}},
    });
    TestImage { run, ..TestImage::new(vec![lower, upper]) }
}

fn check(shelf: &Shelf, record: &TemplateRecord, image: &TestImage) {
    let layers: Vec<String> = record.layers.iter().map(ToString::to_string).collect();
    let expected: Vec<String> = image.layers.iter().map(|layer| digest(layer)).collect();
    assert_eq!(layers, expected);
    let lower = shelf.tree(&expected[0]);
    assert_eq!(fs::read_to_string(lower.join("etc/two")).unwrap(), "two");
    assert!(fs::symlink_metadata(shelf.tree(&expected[1]).join("etc/one")).is_ok(), "a whiteout");
    assert_eq!(record.kind, TemplateKind::Image);
    let config = &record.config;
    assert_eq!(config.env["A"], "B=C");
    assert_eq!((config.cmd.as_slice(), config.entrypoint.len()), (&["sh".to_owned()][..], 0));
    assert_eq!(config.workdir.as_deref(), Some("/srv"));
    assert_eq!(
        (config.user.as_deref(), &*config.ports),
        (Some("daemon"), &["80/tcp".to_owned()][..])
    );
    assert_eq!(record.bytes, 6);
}

#[test]
fn an_image_is_read_from_a_layout_however_it_is_compressed() {
    for packed in Packed::ALL {
        let shelf = Shelf::new();
        let image = TestImage { packed, ..image() };
        write(&image.layout(), &shelf.path("layout"));
        let path = shelf.path("layout");
        check(&shelf, &shelf.add("plain", path.to_str().unwrap()).unwrap(), &image);
        let tagged = format!("oci:{}:test:v1", path.display());
        let by_tag = format!("oci:{}:v1", path.display());
        for source in [format!("oci:{}", path.display()), by_tag] {
            check(&shelf, &shelf.add("again", &source).unwrap(), &image);
        }
        assert!(shelf.add("no", &tagged.replace("v1", "v2")).is_err());
    }
}

#[test]
fn an_image_is_read_from_what_docker_saves_old_and_new_and_from_archives() {
    for (name, files) in [
        ("old", image().saved_old()),
        ("new", TestImage { packed: Packed::Gzip, ..image() }.saved_new()),
        ("oci", TestImage { packed: Packed::Zstd, ..image() }.layout()),
    ] {
        for packed in Packed::ALL {
            let shelf = Shelf::new();
            let file = shelf.file("image", packed.pack(&archive(&files)));
            check(&shelf, &shelf.add(name, &file).unwrap(), &image());
            let record = shelf.add("again", &format!("archive:{file}")).unwrap();
            check(&shelf, &record, &image());
        }
    }
}

#[test]
fn a_layer_that_is_a_link_in_what_docker_saved_is_found() {
    let mut files = image().saved_old();
    let (name, bytes) = files.iter().find(|(name, _)| name.ends_with("/layer.tar")).unwrap();
    let (name, bytes) = (name.clone(), bytes.clone());
    files.remove(&name);
    files.insert("kept/layer.tar".to_owned(), bytes);
    let entries = files.iter().map(|(name, bytes)| TarEntry::file(name, bytes));
    let link = TarEntry::symlink(&name, "../kept/layer.tar");
    let shelf = Shelf::new();
    let file = shelf.file("image", tar(entries.chain([link])));
    check(&shelf, &shelf.add("linked", &file).unwrap(), &image());
}

#[test]
fn the_files_of_a_system_in_an_archive_are_a_template() {
    let system = tar([
        TarEntry::directory("./"),
        TarEntry::directory("./etc"),
        TarEntry::file("./etc/hostname", "x"),
    ]);
    for packed in Packed::ALL {
        let shelf = Shelf::new();
        let file = shelf.file("root.tar", packed.pack(&system));
        let record = shelf.add("root", &file).unwrap();
        assert_eq!(record.digest.unwrap().to_string(), digest(&system));
        assert_eq!(fs::read(shelf.tree(&digest(&system)).join("etc/hostname")).unwrap(), b"x");
    }
    let shelf = Shelf::new();
    let (kind, told) = shelf.refused(&shelf.file("notes", tar([TarEntry::file("notes.txt", "")])));
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(told.contains("neither an OCI layout, nor what `docker save` writes"), "{told}");
}

#[test]
fn layers_are_kept_once_and_go_with_the_last_that_needs_them() {
    let shelf = Shelf::new();
    let mut other = image();
    other.layers[1] = tar([TarEntry::file("other", "x")]);
    shelf.add("one", &shelf.file("one", archive(&image().saved_old()))).unwrap();
    shelf.add("two", &shelf.file("two", archive(&other.saved_old()))).unwrap();
    assert_eq!(shelf.layers().len(), 3);
    assert_eq!(shelf.templates.total_bytes().unwrap(), 7, "what both have counts once");
    shelf.templates.remove("one").unwrap().finish().unwrap();
    assert_eq!(shelf.layers().len(), 2);
    shelf.templates.remove("two").unwrap().finish().unwrap();
    assert_eq!(shelf.layers(), [] as [String; 0]);
    assert_eq!(shelf.templates.remove("two").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn adding_the_same_again_is_a_success_and_something_else_is_refused() {
    let shelf = Shelf::new();
    let file = shelf.file("one", archive(&image().saved_old()));
    let first = shelf.add("app", &file).unwrap();
    assert_eq!(shelf.add("app", &file).unwrap().digest, first.digest);
    let mut other = image();
    other.run = json!({"Cmd": ["other"]});
    let other = shelf.file("two", archive(&other.saved_old()));
    let err = shelf.add("app", &other).unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Conflict);
    assert_eq!(shelf.templates.find("app").unwrap().unwrap().digest, first.digest);
}

#[test]
fn many_who_add_the_same_image_at_once_all_succeed() {
    let shelf = Shelf::new();
    let file = shelf.file("one", archive(&image().saved_old()));
    thread::scope(|scope| {
        for number in 0..6 {
            let (shelf, file) = (&shelf, &file);
            let templates = shelf.machine.local().templates();
            scope.spawn(move || {
                let now = "2026-08-15T09:50:55Z".parse().unwrap();
                let name = format!("app{}", number % 2);
                let record = templates.add(Some(&name), file, now, &Progress::default());
                check(shelf, &record.unwrap(), &image());
            });
        }
    });
    assert_eq!(shelf.layers().len(), 2);
    assert_eq!(names(&shelf.root().join("images/staging")), [] as [String; 0]);
}

#[test]
fn bytes_that_are_not_what_their_digest_says_leave_nothing() {
    let image = TestImage { packed: Packed::Gzip, ..image() };
    let files = image.layout();
    for (name, bytes) in files.iter().filter(|(name, _)| name.starts_with("blobs/")) {
        for change in [flip as fn(&[u8]) -> Vec<u8>, cut, grow] {
            let shelf = Shelf::new();
            let mut files = files.clone();
            files.insert(name.clone(), change(bytes));
            let (kind, told) = shelf.refused(&shelf.file("image", archive(&files)));
            assert_eq!(kind, ErrorKind::Corrupt, "{name}: {told}");
        }
        let shelf = Shelf::new();
        let mut files = files.clone();
        files.remove(name);
        let (kind, told) = shelf.refused(&shelf.file("image", archive(&files)));
        assert_eq!(kind, ErrorKind::NotFound, "{told}");
    }
}

fn flip(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    bytes
}

fn cut(bytes: &[u8]) -> Vec<u8> {
    bytes[..bytes.len() - 1].to_vec()
}

fn grow(bytes: &[u8]) -> Vec<u8> {
    [bytes, b" "].concat()
}

#[test]
fn a_layer_that_is_not_what_the_configuration_says_leaves_nothing() {
    let mut files = image().saved_old();
    let layer = files.keys().find(|name| name.ends_with("layer.tar")).unwrap().clone();
    files.insert(layer, tar([TarEntry::file("etc/evil", "x")]));
    let shelf = Shelf::new();
    let (kind, told) = shelf.refused(&shelf.file("image", archive(&files)));
    assert_eq!(kind, ErrorKind::Corrupt);
    assert!(told.contains("is not what its digest says"), "{told}");
}

#[test]
fn an_archive_that_is_cut_short_leaves_nothing() {
    for packed in Packed::ALL {
        let whole = packed.pack(&archive(&image().saved_new()));
        for part in 1..8 {
            let shelf = Shelf::new();
            let (_, told) = shelf.refused(&shelf.file("image", &whole[..whole.len() * part / 9]));
            assert!(!told.is_empty());
        }
    }
}

#[test]
fn an_image_for_another_machine_names_both() {
    let shelf = Shelf::new();
    let image = TestImage { architecture: "s390x".to_owned(), ..image() };
    let (kind, told) = shelf.refused(&shelf.file("image", archive(&image.saved_old())));
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(told.contains("the image is for linux/s390x, and this machine is linux/"), "{told}");
}

fn with_index(image: &TestImage, manifests: &Value) -> BTreeMap<String, Vec<u8>> {
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests});
    let mut files = image.layout();
    files.insert("index.json".to_owned(), index.to_string().into_bytes());
    files
}

#[test]
fn the_image_for_this_machine_is_chosen_among_others() {
    let image = image();
    let blobs = image.blobs();
    let here = forkpoint_testkit::image::architecture();
    let of = |architecture: &str| {
        json!({"mediaType": MANIFEST, "digest": blobs.manifest,
            "size": blobs.blobs[&blobs.manifest].len(),
            "platform": {"os": "linux", "architecture": architecture}})
    };
    let unknown = json!({"mediaType": MANIFEST, "digest": digest(b"attestation"), "size": 3,
        "platform": {"os": "unknown", "architecture": "unknown"}});
    let shelf = Shelf::new();
    let files = with_index(&image, &json!([unknown, of("mips"), of(here)]));
    check(&shelf, &shelf.add("here", &shelf.file("image", archive(&files))).unwrap(), &image);

    let shelf = Shelf::new();
    let files = with_index(&image, &json!([of("mips"), of("s390x"), unknown]));
    let (kind, told) = shelf.refused(&shelf.file("image", archive(&files)));
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(told.contains("linux/mips, linux/s390x"), "{told}");

    let nested = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [of(here)]});
    let nested = nested.to_string().into_bytes();
    let mut files = with_index(
        &image,
        &json!([{"mediaType": INDEX, "digest": digest(&nested), "size": nested.len()}]),
    );
    files.insert(format!("blobs/{}", digest(&nested).replace(':', "/")), nested);
    check(&shelf, &shelf.add("nested", &shelf.file("image", archive(&files))).unwrap(), &image);
}

#[test]
fn layers_that_are_elsewhere_and_forms_that_nobody_knows_are_refused() {
    for (kind, reason) in [
        ("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", "kept elsewhere"),
        ("application/vnd.oci.image.layer.nondistributable.v1.tar", "kept elsewhere"),
        ("application/vnd.example.layer", "layers of the form `application/vnd.example.layer`"),
    ] {
        let image = image();
        let blobs = image.blobs();
        let manifest = String::from_utf8(blobs.blobs[&blobs.manifest].clone()).unwrap();
        let manifest =
            manifest.replace("application/vnd.oci.image.layer.v1.tar", kind).into_bytes();
        let mut files = with_index(
            &image,
            &json!([{"mediaType": MANIFEST, "digest": digest(&manifest), "size": manifest.len()}]),
        );
        files.insert(format!("blobs/{}", digest(&manifest).replace(':', "/")), manifest);
        let shelf = Shelf::new();
        let (found, told) = shelf.refused(&shelf.file("image", archive(&files)));
        assert_eq!(found, ErrorKind::Invalid);
        assert!(told.contains(reason), "{told}");
    }
}

/// Two images in what `docker save` wrote for years, and in a layout.
fn two_in_one(names: [&str; 2]) -> ([TestImage; 2], [BTreeMap<String, Vec<u8>>; 2]) {
    let mut images = names.map(|name| TestImage { tag: name.to_owned(), ..image() });
    images[1].run["Labels"] = json!({"it": "differs"});
    let both = |files: [BTreeMap<String, Vec<u8>>; 2], list: &str, at: &str| {
        let parsed = files.each_ref().map(|files| {
            let list: Value = serde_json::from_slice(&files[list]).unwrap();
            list
        });
        let mut merged = parsed[0].clone();
        let more = parsed[1].pointer(at).unwrap()[0].clone();
        merged.pointer_mut(at).unwrap().as_array_mut().unwrap().push(more);
        let mut all: BTreeMap<_, _> = files.into_iter().flatten().collect();
        all.insert(list.to_owned(), merged.to_string().into_bytes());
        all
    };
    let saved = both(images.each_ref().map(TestImage::saved_old), "manifest.json", "");
    let layout = both(images.each_ref().map(TestImage::layout), "index.json", "/manifests");
    (images, [saved, layout])
}

#[test]
fn of_several_images_one_has_to_be_named() {
    let (images, forms) = two_in_one(["a:1", "example.com/b:1"]);
    for files in forms {
        let shelf = Shelf::new();
        let file = shelf.file("two.tar", archive(&files));
        for source in [file.clone(), format!("archive:{file}:1")] {
            let (kind, told) = shelf.refused(&source);
            assert_eq!(kind, ErrorKind::Invalid);
            assert!(told.contains("a:1, example.com/b:1"), "{told}");
        }
        assert_eq!(shelf.refused(&format!("archive:{file}:2")).0, ErrorKind::NotFound);
        let tags = ["a:1", "example.com/b:1", "b:1"];
        let [a, b, short] = tags.map(|tag| {
            let name = tag.replace('/', "-");
            let record = shelf.add(&name, &format!("archive:{file}:{tag}")).unwrap();
            check(&shelf, &record, &images[0]);
            record.digest
        });
        assert_ne!(a, b);
        assert_eq!(short, b);
    }
}

#[test]
fn a_name_that_fits_as_a_whole_comes_before_one_that_ends_so() {
    let (_, forms) = two_in_one(["x:v1", "v1"]);
    for files in forms {
        let shelf = Shelf::new();
        let file = shelf.file("two.tar", archive(&files));
        let add = |tag: &str, name: &str| {
            shelf.add(name, &format!("archive:{file}:{tag}")).unwrap().digest
        };
        assert_ne!(add("v1", "whole"), add("x:v1", "other"));
    }
}

#[test]
fn a_layer_that_grows_without_end_is_stopped() {
    let bomb = tar([TarEntry::file("etc/zeros", vec![0; 300 << 20])]);
    let image = TestImage { packed: Packed::Zstd, ..TestImage::new(vec![bomb.clone()]) };
    for bytes in [Packed::Zstd.pack(&bomb), archive(&image.layout())] {
        let shelf = Shelf::new();
        let (kind, told) = shelf.refused(&shelf.file("bomb", bytes));
        assert_eq!(kind, ErrorKind::Invalid);
        assert!(told.contains("the limit of 1200 times what it is compressed"), "{told}");
    }
}

#[test]
fn a_stop_leaves_nothing() {
    let shelf = Shelf::new();
    let progress = Progress::default();
    progress.stop();
    let file = shelf.file("image", archive(&image().saved_old()));
    let now = "2026-08-15T09:50:55Z".parse().unwrap();
    assert!(shelf.templates.add(Some("bad"), &file, now, &progress).is_err());
    assert_eq!(shelf.layers(), [] as [String; 0]);
    assert_eq!(names(&shelf.root().join("images/staging")), [] as [String; 0]);
}

#[test]
fn what_somebody_left_half_done_is_swept() {
    let shelf = Shelf::new();
    fs::create_dir_all(shelf.root().join("images/staging/layer-dead/tree/etc")).unwrap();
    let unwanted = format!("sha256-{}", "0".repeat(64));
    fs::create_dir_all(shelf.root().join("images/layers").join(&unwanted).join("tree")).unwrap();
    shelf.add("one", &shelf.file("one", archive(&image().saved_old()))).unwrap();
    assert_eq!(names(&shelf.root().join("images/staging")), [] as [String; 0]);
    assert!(!shelf.layers().contains(&unwanted) && shelf.layers().len() == 2);
}

#[test]
fn fifos_links_and_directories_are_no_images() {
    let shelf = Shelf::new();
    let fifo = shelf.path("fifo");
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let (_, told) = shelf.refused(fifo.to_str().unwrap());
    assert!(told.contains("it is not a plain file"), "{told}");
    let layout = shelf.path("layout");
    write(&image().layout(), &layout);
    let secret = shelf.file("secret", "{\"manifests\": []}");
    fs::remove_file(layout.join("index.json")).unwrap();
    std::os::unix::fs::symlink(secret, layout.join("index.json")).unwrap();
    assert!(shelf.add("bad", layout.to_str().unwrap()).is_err(), "a link out of the layout");
    fs::remove_file(layout.join("index.json")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        layout.join("index.json"),
        rustix::fs::FileType::Fifo,
        mode,
        0,
    )
    .unwrap();
    assert!(shelf.add("bad", layout.to_str().unwrap()).is_err(), "nobody waits at a fifo");
    assert_eq!(shelf.refused("/nonexistent/x").0, ErrorKind::NotFound);
}
