//! Images of ours: made by a commit, or of the image before and what changed since.
//!
//! A commit holds all that was written since the container's own image. So the second snapshot of a
//! container is the first one's image and one more layer, where the engine's files are in reach: the
//! engine is given an image whose other layers it has already.

use std::{
    fs::File,
    io::{self, BufWriter, Seek as _, Write},
    path::Path,
};

use bytes::Bytes;
use forkpoint_core::{
    driver::{DriverError, DriverResult},
    id::SnapshotId,
    part::ByteStream,
};
use futures::{StreamExt as _, stream};
use rustix::fs::{CWD, Mode, OFlags, openat};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{
    DRIVER,
    container::{Container, NEXT},
    engine::{failed, query},
    host::{Host, blocking, io_error},
    http::{LONG, Request},
    label,
    make::told_error,
    tarball,
};
use crate::{
    driver::local::sandbox::read_file,
    tar::{
        BLOCK, Entry, EntryKind,
        write::{END, header},
    },
};

pub(super) const TURNS: &str = "turns";

/// What an image of ours is to say of itself.
#[derive(Clone, Debug)]
pub(super) struct Marked {
    pub(super) snapshot: SnapshotId,
    /// The how-manieth of its container it is.
    pub(super) sequence: u64,
    pub(super) labels: Vec<(&'static str, String)>,
}

/// A snapshot that the engine has an image of. Several may have one and the same.
#[derive(Clone, Debug)]
pub(super) struct Sealed {
    pub(super) snapshot: SnapshotId,
    pub(super) sequence: u64,
    pub(super) image: String,
    /// Of all its layers.
    pub(super) size: u64,
    /// How many of them were there before anything was written.
    pub(super) origin: Option<usize>,
}

/// A layer as an archive, on the disk without a name.
struct Packed {
    file: File,
    len_bytes: u64,
    digest: String,
}

impl Host {
    pub(super) async fn commit(
        &self,
        container: &Container,
        marked: &Marked,
    ) -> DriverResult<String> {
        let (repository, changes) =
            (label::repository(marked.snapshot), changes_of(&marked.labels));
        let mut pairs = vec![
            ("container", container.id()),
            ("repo", &repository),
            ("tag", "latest"),
            ("comment", "a snapshot of forkpoint"),
            ("pause", "0"),
        ];
        pairs.extend(changes.iter().map(|change| ("changes", change.as_str())));
        let path = format!("/commit{}", query(&pairs));
        let request = Request::new("POST", path).json(json!({})).patience(Some(LONG));
        let made = self.engine.ask(request).await.map_err(failed("commit a container"))?;
        match made["Id"].as_str() {
            Some(id) if id.starts_with("sha256:") => Ok(id.to_owned()),
            // As Podman says it here, and nowhere else.
            Some(id) => Ok(format!("sha256:{id}")),
            None => Err(odd("commit a container")),
        }
    }

    /// An image of the lowest `keep` layers of `below` and a new one, made from a directory in the form of
    /// overlayfs.
    pub(super) async fn stack(
        &self,
        below: &Value,
        keep: usize,
        tree: &Path,
        config: &Value,
        marked: &Marked,
    ) -> DriverResult<String> {
        let (tree, spool, snapshot) = (tree.to_owned(), self.place("spool")?, marked.snapshot);
        let packed =
            blocking(move || pack(&tree, &spool, snapshot).map_err(io_error("pack", &tree)))
                .await?;
        let layers = below["RootFS"]["Layers"].as_array().into_iter().flatten();
        let mut layers: Vec<String> =
            layers.filter_map(Value::as_str).take(keep).map(str::to_owned).collect();
        layers.push(format!("sha256:{}", packed.digest));
        self.load(below, &layers, Some(packed), config, marked).await
    }

    /// An image of layers that the engine has.
    pub(super) async fn relabel(&self, image: &Value, marked: &Marked) -> DriverResult<String> {
        if self.engine.is_podman().await.map_err(failed("load an image"))? {
            return self.recommit(image, marked).await;
        }
        let layers = image["RootFS"]["Layers"].as_array().into_iter().flatten();
        let layers: Vec<String> = layers.filter_map(Value::as_str).map(str::to_owned).collect();
        self.load(image, &layers, None, &image["Config"], marked).await
    }

    /// The same of an engine that takes no archive without its layers: a commit of a container that
    /// never runs.
    async fn recommit(&self, image: &Value, marked: &Marked) -> DriverResult<String> {
        let name = format!("{NEXT}{}", marked.snapshot);
        let body = json!({ "Image": image["Id"], "Cmd": ["true"] });
        let path = format!("/containers/create{}", query(&[("name", &name)]));
        let made = self.engine.post(path, body).await.map_err(failed("create a container"))?;
        let container = Container(made);
        let committed = self.commit(&container, marked).await;
        self.remove_container(container.id(), true).await?;
        committed
    }

    async fn load(
        &self,
        like: &Value,
        layers: &[String],
        packed: Option<Packed>,
        config: &Value,
        marked: &Marked,
    ) -> DriverResult<String> {
        let config = configuration(like, layers, config, marked).to_string();
        let digest = hex(&Sha256::digest(&config));
        let name = format!("{digest}.json");
        let paths: Vec<String> =
            (0..layers.len()).map(|index| format!("{index}/layer.tar")).collect();
        let manifest = json!([{
            "Config": name,
            "RepoTags": [label::tag(marked.snapshot)],
            "Layers": paths,
        }]);
        let mut parts: Vec<ByteStream> = Vec::new();
        if let Some(packed) = packed {
            let path = paths.last().cloned().unwrap_or_default();
            parts.push(bytes(file_header(&path, packed.len_bytes)));
            parts.push(read_file(packed.file));
        }
        for (name, text) in [(name.as_str(), config), ("manifest.json", manifest.to_string())] {
            let mut all = file_header(name, text.len() as u64);
            all.extend_from_slice(text.as_bytes());
            all.resize(all.len().next_multiple_of(BLOCK), 0);
            parts.push(bytes(all));
        }
        parts.push(bytes(END.to_vec()));
        self.load_archive(stream::iter(parts).flatten().boxed()).await?;
        Ok(format!("sha256:{digest}"))
    }

    /// Gives an archive of images to the engine; what it said.
    pub(super) async fn load_archive(&self, archive: ByteStream) -> DriverResult<String> {
        let request = Request::new("POST", "/images/load?quiet=1").stream(archive);
        let answer = self.engine.send(request.patience(Some(LONG))).await;
        let answer = answer.map_err(failed("load an image"))?;
        let told = answer.body.all().await.map_err(|err| failure("load an image", err))?;
        match told_error(&told) {
            Some(reason) => Err(failure("load an image", io::Error::other(reason))),
            None => Ok(String::from_utf8_lossy(&told).into_owned()),
        }
    }

    /// What was sealed of a container, the last one first.
    pub(super) async fn sealed_of(&self, container: &str) -> DriverResult<Vec<Sealed>> {
        let data = self.data()?;
        // Podman finds no image by two labels.
        let filter = label::filter(&[(label::SOURCE, container)]);
        let mut sealed = Vec::new();
        for image in self.list_images(&filter).await? {
            if label::of(&image["Labels"], label::DATA) != Some(data.0.as_str()) {
                continue;
            }
            let number = |key: &str| label::of(&image["Labels"], key)?.parse().ok();
            let made = number(label::SEQUENCE).unwrap_or(0);
            let origin = number(label::ORIGIN).and_then(|origin| usize::try_from(origin).ok());
            let size = image["Size"].as_u64().unwrap_or(0);
            for snapshot in label::snapshots_of(&image["RepoTags"], &image["Labels"]) {
                let sequence = self.turn(snapshot)?.unwrap_or(made);
                let image = image["Id"].as_str().unwrap_or_default().to_owned();
                sealed.push(Sealed { snapshot, sequence, image, size, origin });
            }
        }
        sealed.sort_by_key(|one| std::cmp::Reverse(one.sequence));
        Ok(sealed)
    }

    /// The how-manieth of its container a snapshot is that has its image from an earlier one: the
    /// image tells of that one.
    fn turn(&self, snapshot: SnapshotId) -> DriverResult<Option<u64>> {
        let note = self.read_note(TURNS, &snapshot.to_string())?;
        Ok(note.and_then(|text| String::from_utf8(text).ok()?.parse().ok()))
    }

    /// Makes an image of ours be another snapshot too.
    pub(super) async fn share(&self, image: &str, marked: &Marked) -> DriverResult<()> {
        let turn = marked.sequence.to_string();
        self.write_note(TURNS, &marked.snapshot.to_string(), turn.as_bytes())?;
        self.retag(image, marked.snapshot).await
    }

    pub(super) async fn list_images(&self, filter: &str) -> DriverResult<Vec<Value>> {
        let path = format!("/images/json{}", query(&[("filters", filter)]));
        match self.engine.get(path).await.map_err(failed("list images"))? {
            Value::Array(images) => Ok(images),
            _ => Ok(Vec::new()),
        }
    }
}

fn odd(operation: &'static str) -> DriverError {
    failure(operation, io::Error::other("the engine answers something else"))
}

fn failure(operation: &'static str, source: io::Error) -> DriverError {
    DriverError::Failed { driver: DRIVER, operation, source: source.into() }
}

fn bytes(bytes: Vec<u8>) -> ByteStream {
    stream::once(async move { Ok(Bytes::from(bytes)) }).boxed()
}

fn file_header(name: &str, len_bytes: u64) -> Vec<u8> {
    header(&Entry { len_bytes, ..Entry::new(name.as_bytes().to_vec(), EntryKind::File) })
}

/// As lines of a Dockerfile, one for each: Podman takes a line for one label.
fn changes_of(labels: &[(&'static str, String)]) -> Vec<String> {
    labels.iter().map(|(key, value)| format!("LABEL {key}={value:?}")).collect()
}

fn configuration(like: &Value, layers: &[String], config: &Value, marked: &Marked) -> Value {
    let mut config = config.clone();
    if !config["Labels"].is_object() {
        config["Labels"] = json!({});
    }
    for (key, value) in &marked.labels {
        config["Labels"][key] = json!(value);
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let now = i32::try_from(now.tv_nsec)
        .ok()
        .and_then(|nanos| jiff::Timestamp::new(now.tv_sec, nanos).ok());
    let created = now.unwrap_or_default().to_string();
    let history = json!({ "created": created, "created_by": "forkpoint" });
    let mut all = json!({
        "architecture": like["Architecture"],
        "os": like["Os"],
        "created": created,
        "config": config,
        "rootfs": { "type": "layers", "diff_ids": layers },
        "history": vec![history; layers.len()],
    });
    if let Some(variant) = like["Variant"].as_str().filter(|variant| !variant.is_empty()) {
        all["variant"] = json!(variant);
    }
    all
}

fn pack(tree: &Path, spool: &Path, snapshot: SnapshotId) -> io::Result<Packed> {
    let file = nameless(spool)?;
    let mut writer =
        Hashing { file: BufWriter::with_capacity(256 << 10, &file), hash: Sha256::new(), len: 0 };
    tarball::write(tree, snapshot, &mut writer)?;
    writer.file.flush()?;
    let (len_bytes, digest) = (writer.len, hex(&writer.hash.finalize_reset()));
    drop(writer);
    let mut file = file;
    file.rewind()?;
    Ok(Packed { file, len_bytes, digest })
}

/// A file that goes with its descriptor.
pub(super) fn nameless(directory: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(File::from(openat(CWD, directory, flags, Mode::RUSR | Mode::WUSR)?))
}

struct Hashing<'a> {
    file: BufWriter<&'a File>,
    hash: Sha256,
    len: u64,
}

impl Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.file.write(bytes)?;
        self.hash.update(&bytes[..len]);
        self.len += len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
