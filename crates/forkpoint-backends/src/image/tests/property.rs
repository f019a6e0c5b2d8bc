//! Bytes that were changed at random: no panic, no hang, and nothing outside.

use proptest::prelude::*;

use super::*;
use crate::image::{
    ImageSource,
    manifest::{Configuration, Document},
};

/// Documents of an image with values that do not belong there.
fn document() -> impl Strategy<Value = String> {
    let value = prop::sample::select(vec![
        "null",
        "1",
        "-1",
        "1e99",
        "\"\"",
        "[]",
        "{}",
        "[null]",
        "[{}]",
        "true",
        "\"sha256:00\"",
        "{\"a\": 1}",
        "\"application/vnd.oci.image.manifest.v1+json\"",
        "[[[[]]]]",
        "\"..\"",
        "18446744073709551616",
    ]);
    let key = prop::sample::select(vec![
        "schemaVersion",
        "mediaType",
        "config",
        "layers",
        "manifests",
        "digest",
        "size",
        "platform",
        "architecture",
        "os",
        "rootfs",
        "diff_ids",
        "Env",
        "Cmd",
        "Entrypoint",
        "User",
        "WorkingDir",
        "annotations",
        "fsLayers",
    ]);
    let pairs = |value: BoxedStrategy<String>| {
        proptest::collection::vec((key.clone(), value), 0..6).prop_map(|pairs| object(&pairs))
    };
    let leaf = pairs(value.prop_map(str::to_owned).boxed());
    let inner = prop_oneof![leaf.clone(), leaf.prop_map(|leaf| format!("[{leaf}, {leaf}]"))];
    prop_oneof![pairs(inner.boxed()), any::<String>()]
}

fn object(pairs: &[(&str, String)]) -> String {
    let pairs: Vec<String> =
        pairs.iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
    format!("{{{}}}", pairs.join(", "))
}

fn good() -> Vec<u8> {
    tar([
        TarEntry::directory("a"),
        TarEntry::file("a/file", vec![3; 700]).record("mtime", "1600000000.5"),
        TarEntry::symlink("a/link", "../../secret"),
        TarEntry::hard_link("a/same", "a/file"),
        TarEntry::file("a/.wh.gone", ""),
        TarEntry::file("b/.wh..wh..opq", ""),
        TarEntry::file("l".repeat(140), "long").record("SCHILY.xattr.user.x", "y"),
        TarEntry::new("pipe", b'6'),
        TarEntry::new("null", b'3'),
    ])
}

#[derive(Clone, Debug)]
enum Change {
    Set(usize, u8),
    Cut(usize),
    Repeat(usize, usize),
    /// With a checksum that is right again: so it gets past the first check.
    Field(usize, usize, Vec<u8>),
}

fn change() -> impl Strategy<Value = Change> {
    let at = 0..good().len();
    prop_oneof![
        (at.clone(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        at.clone().prop_map(Change::Cut),
        (at.clone(), at.clone()).prop_map(|(from, to)| Change::Repeat(from, to)),
        (at, 0..500_usize, interesting()).prop_map(|(block, at, bytes)| Change::Field(
            block / 512,
            at,
            bytes
        )),
    ]
}

fn interesting() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(b"../secret".to_vec()),
        Just(b"a/link/secret".to_vec()),
        Just(b"/etc/passwd".to_vec()),
        Just(b".wh...".to_vec()),
        Just(vec![0xff; 12]),
        Just(b"77777777777".to_vec()),
        proptest::collection::vec(any::<u8>(), 1..16),
    ]
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Set(at, byte) => {
            if let Some(there) = bytes.get_mut(*at) {
                *there = *byte;
            }
        }
        Change::Cut(at) => bytes.truncate(*at),
        Change::Repeat(from, to) => {
            let (from, to) = (from / 512 * 512, to / 512 * 512);
            if let Some(part) = bytes.get(from.min(to)..from.max(to)).map(<[u8]>::to_vec) {
                bytes.extend(part);
            }
        }
        Change::Field(block, at, field) => {
            let Some(header) = bytes.get_mut(block * 512..block * 512 + 512) else { return };
            let len = field.len().min(512 - at);
            header[*at..at + len].copy_from_slice(&field[..len]);
            header[148..156].copy_from_slice(b"        ");
            let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
            header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_bytes_are_nothing_outside_changes(
        changes in proptest::collection::vec(change(), 1..6)
    ) {
        let mut bytes = good();
        for change in &changes {
            apply(&mut bytes, change);
        }
        let ground = Ground::new();
        let _ = ground.unpack(&bytes);
        ground.check_outside();
    }

    #[test]
    fn whatever_a_document_says_is_refused_or_read(text in document()) {
        let bytes = text.as_bytes();
        if let Ok(document) = Document::parse(bytes, "the test") {
            let _ = document.into_manifest("the test");
        }
        let _ = Configuration::parse(bytes, "the test");
    }

    #[test]
    fn whatever_is_typed_for_an_image_is_refused_or_read(
        text in prop_oneof![any::<String>(), "(oci|archive|docker|registry)?:{0,2}[a-z0-9:/@._-]{0,40}"]
    ) {
        let _ = ImageSource::parse(&text);
    }

    #[test]
    fn random_bytes_are_no_archive(bytes in proptest::collection::vec(any::<u8>(), 512..4096)) {
        let ground = Ground::new();
        prop_assert!(ground.unpack(&bytes).is_err());
        ground.check_outside();
    }
}

#[test]
fn what_is_changed_is_good_before() {
    Ground::new().unpack(&good()).unwrap();
}
