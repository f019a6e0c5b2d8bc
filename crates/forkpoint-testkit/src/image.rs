//! Images to read, good ones and others: archives entry by entry, and the forms that images come in.

use std::{collections::BTreeMap, fs, io::Write as _, path::Path};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The digest of some bytes, as images write it.
#[must_use]
pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(bytes))
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// One entry of a tar archive, just as it is said, right or wrong.
#[derive(Clone, Debug)]
pub struct TarEntry {
    pub path: Vec<u8>,
    pub kind: u8,
    pub mode: u32,
    pub owner: (u32, u32),
    pub modified: u64,
    pub link: Vec<u8>,
    pub content: Vec<u8>,
    /// What the header says, if not the truth.
    pub len_bytes: Option<u64>,
    /// PAX records that stand before it.
    pub records: Vec<(Vec<u8>, Vec<u8>)>,
}

impl TarEntry {
    #[must_use]
    pub fn new(path: impl AsRef<[u8]>, kind: u8) -> Self {
        Self {
            path: path.as_ref().to_vec(),
            kind,
            mode: if kind == b'5' { 0o755 } else { 0o644 },
            owner: (0, 0),
            modified: 1_700_000_000,
            link: Vec::new(),
            content: Vec::new(),
            len_bytes: None,
            records: Vec::new(),
        }
    }

    #[must_use]
    pub fn file(path: impl AsRef<[u8]>, content: impl AsRef<[u8]>) -> Self {
        Self { content: content.as_ref().to_vec(), ..Self::new(path, b'0') }
    }

    #[must_use]
    pub fn directory(path: impl AsRef<[u8]>) -> Self {
        Self::new(path, b'5')
    }

    #[must_use]
    pub fn symlink(path: impl AsRef<[u8]>, link: impl AsRef<[u8]>) -> Self {
        Self { link: link.as_ref().to_vec(), ..Self::new(path, b'2') }
    }

    #[must_use]
    pub fn hard_link(path: impl AsRef<[u8]>, link: impl AsRef<[u8]>) -> Self {
        Self { link: link.as_ref().to_vec(), ..Self::new(path, b'1') }
    }

    #[must_use]
    pub fn mode(self, mode: u32) -> Self {
        Self { mode, ..self }
    }

    #[must_use]
    pub fn owner(self, uid: u32, gid: u32) -> Self {
        Self { owner: (uid, gid), ..self }
    }

    #[must_use]
    pub fn record(mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        self.records.push((key.as_ref().to_vec(), value.as_ref().to_vec()));
        self
    }
}

/// An archive of these.
#[must_use]
pub fn tar(entries: impl IntoIterator<Item = TarEntry>) -> Vec<u8> {
    let mut archive = Vec::new();
    for entry in entries {
        add(&mut archive, &entry);
    }
    archive.extend([0; 1024]);
    archive
}

fn add(archive: &mut Vec<u8>, entry: &TarEntry) {
    let records: Vec<u8> =
        entry.records.iter().flat_map(|(key, value)| record(key, value)).collect();
    if !records.is_empty() {
        archive.extend(header(&TarEntry::new("pax", b'x'), b"pax", b"", records.len() as u64));
        put(archive, &records);
    }
    for (kind, text) in [(b'L', &entry.path), (b'K', &entry.link)] {
        if text.len() > 100 {
            let long = [text.as_slice(), b"\0"].concat();
            let name = b"././@LongLink";
            archive.extend(header(&TarEntry::new("", kind), name, b"", long.len() as u64));
            put(archive, &long);
        }
    }
    let len = entry.len_bytes.unwrap_or(entry.content.len() as u64);
    archive.extend(header(entry, &entry.path, &entry.link, len));
    put(archive, &entry.content);
}

fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while len != rest + len.to_string().len() {
        len = rest + len.to_string().len();
    }
    [len.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

fn put(archive: &mut Vec<u8>, bytes: &[u8]) {
    archive.extend(bytes);
    archive.resize(archive.len().next_multiple_of(512), 0);
}

fn header(entry: &TarEntry, path: &[u8], link: &[u8], len: u64) -> [u8; 512] {
    let mut header = [0; 512];
    let mut field = |at: usize, room: usize, bytes: &[u8]| {
        let len = bytes.len().min(room);
        header[at..at + len].copy_from_slice(&bytes[..len]);
    };
    field(0, 100, path);
    field(100, 8, format!("{:07o}\0", entry.mode).as_bytes());
    field(108, 8, format!("{:07o}\0", entry.owner.0).as_bytes());
    field(116, 8, format!("{:07o}\0", entry.owner.1).as_bytes());
    match len < 1 << 33 {
        true => field(124, 12, format!("{len:011o}\0").as_bytes()),
        false => field(124, 12, &[&[0x80, 0, 0, 0], &len.to_be_bytes()[..]].concat()),
    }
    field(136, 12, format!("{:011o}\0", entry.modified).as_bytes());
    field(148, 8, b"        ");
    field(156, 1, &[entry.kind]);
    field(157, 100, link);
    field(257, 8, b"ustar  \0");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

/// How layers are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packed {
    Plain,
    Gzip,
    Zstd,
}

impl Packed {
    pub const ALL: [Self; 3] = [Self::Plain, Self::Gzip, Self::Zstd];

    /// # Panics
    ///
    /// When memory cannot be written to.
    #[must_use]
    pub fn pack(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Plain => bytes.to_vec(),
            Self::Gzip => {
                let mut encoder =
                    flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                encoder.write_all(bytes).expect("memory can be written to");
                encoder.finish().expect("memory can be written to")
            }
            Self::Zstd => zstd::encode_all(bytes, 1).expect("memory can be written to"),
        }
    }

    const fn media_type(self) -> &'static str {
        match self {
            Self::Plain => "application/vnd.oci.image.layer.v1.tar",
            Self::Gzip => "application/vnd.docker.image.rootfs.diff.tar.gzip",
            Self::Zstd => "application/vnd.oci.image.layer.v1.tar+zstd",
        }
    }
}

pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// This machine, in the words of images.
#[must_use]
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// An image to be written in one form or another.
#[derive(Clone, Debug)]
pub struct TestImage {
    /// Archives, from the bottom up.
    pub layers: Vec<Vec<u8>>,
    /// The part of the configuration that says how it wants to be run.
    pub run: Value,
    pub architecture: String,
    pub tag: String,
    pub packed: Packed,
}

/// Blobs by their digests, and the manifest among them.
#[derive(Clone, Debug)]
pub struct Blobs {
    pub blobs: BTreeMap<String, Vec<u8>>,
    pub manifest: String,
}

impl TestImage {
    #[must_use]
    pub fn new(layers: Vec<Vec<u8>>) -> Self {
        Self {
            layers,
            run: json!({}),
            architecture: architecture().to_owned(),
            tag: "test:v1".to_owned(),
            packed: Packed::Plain,
        }
    }

    #[must_use]
    pub fn config(&self) -> Vec<u8> {
        let diff_ids: Vec<String> = self.layers.iter().map(|layer| digest(layer)).collect();
        let config = json!({
            "architecture": self.architecture, "os": "linux", "config": self.run,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        config.to_string().into_bytes()
    }

    #[must_use]
    pub fn blobs(&self) -> Blobs {
        let config = self.config();
        let descriptor = |kind: &str, bytes: &[u8]| json!({"mediaType": kind, "digest": digest(bytes), "size": bytes.len()});
        let packed: Vec<Vec<u8>> =
            self.layers.iter().map(|layer| self.packed.pack(layer)).collect();
        let layers: Vec<Value> =
            packed.iter().map(|layer| descriptor(self.packed.media_type(), layer)).collect();
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": layers,
        });
        let manifest = manifest.to_string().into_bytes();
        let name = digest(&manifest);
        let all = packed.into_iter().chain([config, manifest]);
        Blobs { blobs: all.map(|bytes| (digest(&bytes), bytes)).collect(), manifest: name }
    }

    /// The files of an OCI layout.
    #[must_use]
    pub fn layout(&self) -> BTreeMap<String, Vec<u8>> {
        let Blobs { blobs, manifest } = self.blobs();
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [{
            "mediaType": MANIFEST, "digest": manifest, "size": blobs[&manifest].len(),
            "annotations": {"org.opencontainers.image.ref.name": self.tag},
        }]});
        let mut files = BTreeMap::from([
            ("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
            ("index.json".to_owned(), index.to_string().into_bytes()),
        ]);
        files.extend(blobs.into_iter().map(|(name, bytes)| (blob_path(&name), bytes)));
        files
    }

    /// What `docker save` wrote for years.
    #[must_use]
    pub fn saved_old(&self) -> BTreeMap<String, Vec<u8>> {
        let config = format!("{}.json", hex(&self.config()));
        let name = |number: usize| format!("{number:064x}/layer.tar");
        let layers: Vec<String> = (0..self.layers.len()).map(name).collect();
        let manifest = json!([{"Config": config, "RepoTags": [self.tag], "Layers": layers}]);
        let mut files = BTreeMap::from([
            ("manifest.json".to_owned(), manifest.to_string().into_bytes()),
            (config, self.config()),
        ]);
        files.extend(layers.into_iter().zip(self.layers.iter().cloned()));
        files
    }

    /// What `docker save` writes now: both forms in one.
    #[must_use]
    pub fn saved_new(&self) -> BTreeMap<String, Vec<u8>> {
        let mut files = self.layout();
        let packed = self.layers.iter().map(|layer| digest(&self.packed.pack(layer)));
        let layers: Vec<String> = packed.map(|name| blob_path(&name)).collect();
        let config = blob_path(&digest(&self.config()));
        let manifest = json!([{"Config": config, "RepoTags": [self.tag], "Layers": layers}]);
        files.insert("manifest.json".to_owned(), manifest.to_string().into_bytes());
        files
    }
}

fn blob_path(digest: &str) -> String {
    format!("blobs/{}", digest.replace(':', "/"))
}

/// Files as an archive, in the order of their names.
#[must_use]
pub fn archive(files: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
    tar(files.iter().map(|(name, bytes)| TarEntry::file(name, bytes)))
}

/// Files as a directory.
///
/// # Panics
///
/// When they cannot be written.
pub fn write(files: &BTreeMap<String, Vec<u8>>, to: &Path) {
    for (name, bytes) in files {
        let path = to.join(name);
        fs::create_dir_all(path.parent().expect("a file is in a directory")).expect("a directory");
        fs::write(path, bytes).expect("a file");
    }
}
