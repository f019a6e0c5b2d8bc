//! Images of processes on their way: the two files of each, as they are.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use bytes::BytesMut;
use forkpoint_checkpoint::{
    Chain,
    image::{FILES, Image, ImageError},
};
use forkpoint_core::{
    driver::{DriverError, DriverResult},
    id::SnapshotId,
    part::{ByteStream, Part, PartFormat},
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use super::{
    super::{
        host::{Host, failed, io_error},
        memory::KeptMemory,
    },
    bytes, invalid,
};

const CHUNK: usize = 1 << 20;

/// Longer headers are read by nobody.
const HEADER_MAX: u64 = 256 << 20;

/// Chains are much shorter.
const IMAGES_MAX: usize = 256;

/// Of what [FILES] are.
pub(super) fn formats() -> [PartFormat; 2] {
    ["process-image", "process-pages"].map(|name| PartFormat { name: name.to_owned(), version: 1 })
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ToldImage {
    id: String,
    /// Of its pages.
    len_bytes: u64,
}

pub(super) fn told(images: &[PathBuf], snapshot: SnapshotId) -> DriverResult<Vec<ToldImage>> {
    let told = |path: &PathBuf| {
        let image = Image::open(path).map_err(damaged(snapshot))?;
        Ok(ToldImage { id: image.id.to_string(), len_bytes: image.pages_len_bytes })
    };
    images.iter().map(told).collect()
}

pub(super) fn parts(image: PathBuf) -> [Part; 2] {
    let [header, pages] = formats();
    let [at_header, at_pages] = FILES.map(|name| image.join(name));
    [bytes(header, read(at_header)), bytes(pages, read(at_pages))]
}

/// Opened when somebody asks for it.
fn read(path: PathBuf) -> ByteStream {
    stream::try_unfold((path, None), |(path, open): (_, Option<File>)| async {
        let next = move || {
            let mut file = match open {
                Some(file) => file,
                None => File::open(&path)?,
            };
            let mut chunk = BytesMut::zeroed(CHUNK);
            let mut len = 0;
            // Full chunks, so that pages stay on the boundaries of pages.
            while len < CHUNK {
                match file.read(&mut chunk[len..]) {
                    Ok(0) => break,
                    Ok(more) => len += more,
                    Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                    Err(err) => return Err(err),
                }
            }
            chunk.truncate(len);
            Ok((len > 0).then(|| (chunk.freeze(), (path, Some(file)))))
        };
        tokio::task::spawn_blocking(next).await.map_err(io::Error::other)?
    })
    .boxed()
}

/// Images that came and were checked, and are still where they were received.
pub(super) struct Images {
    directory: PathBuf,
    /// The length of the pages of each, the lowest first.
    lens: Vec<u64>,
}

impl Images {
    pub(super) fn receive(
        directory: &Path,
        snapshot: SnapshotId,
        told: &[ToldImage],
        came: Vec<(ByteStream, ByteStream)>,
        handle: &Handle,
    ) -> DriverResult<Self> {
        if came.len() > IMAGES_MAX {
            return invalid("it has more than 256 images of processes");
        }
        let mut images = Self { directory: directory.to_owned(), lens: Vec::new() };
        for (number, (told, (header, pages))) in told.iter().zip(came).enumerate() {
            let place = images.place(number);
            // Memory holds secrets.
            let made = DirBuilder::new().mode(0o700).recursive(true).create(&place);
            made.map_err(io_error("create", &place))?;
            let [at_header, at_pages] = FILES.map(|name| place.join(name));
            write(&at_header, HEADER_MAX, header, handle)?;
            write(&at_pages, told.len_bytes, pages, handle)?;
            images.lens.push(told.len_bytes);
        }
        if !told.is_empty() {
            images.check(told).map_err(damaged(snapshot))?;
        }
        Ok(images)
    }

    fn place(&self, number: usize) -> PathBuf {
        self.directory.join(number.to_string())
    }

    /// Every byte and every number.
    fn check(&self, told: &[ToldImage]) -> Result<(), ImageError> {
        let chain = Chain::open((0..told.len()).map(|number| self.place(number)))?;
        for (image, told) in chain.images().iter().zip(told) {
            if image.id.to_string() != told.id {
                let why = format!("its description tells of image `{}`", told.id);
                return Err(ImageError::Damaged { path: image.path.clone(), why });
            }
        }
        Ok(())
    }
}

impl Host {
    /// Puts them where images are kept, the newest under the snapshot's own name. `kept` gets what is there now.
    pub(super) fn keep_images(
        &self,
        images: &Images,
        snapshot: SnapshotId,
        kept: &mut Vec<PathBuf>,
    ) -> DriverResult<Vec<KeptMemory>> {
        let mut memory = Vec::new();
        if images.lens.is_empty() {
            return Ok(memory);
        }
        self.make_memory()?;
        for (number, bytes) in images.lens.iter().enumerate() {
            let below = (number + 1 < images.lens.len()).then_some(number);
            let number_of_it = below.and_then(|number| u32::try_from(number).ok());
            let new = KeptMemory { image: snapshot, number: number_of_it, bytes: *bytes };
            let to = self.image_place(&new);
            if to.exists() {
                return invalid(&format!("there is an image `{}` already", to.display()));
            }
            fs::rename(images.place(number), &to).map_err(io_error("keep", &to))?;
            kept.push(to);
            memory.push(new);
        }
        let emptied = fs::remove_dir(&images.directory);
        emptied.map_err(io_error("remove", &images.directory))?;
        Ok(memory)
    }
}

fn write(path: &Path, max: u64, mut bytes: ByteStream, handle: &Handle) -> DriverResult<()> {
    let file = File::options().write(true).create_new(true).mode(0o600).open(path);
    let mut file = file.map_err(io_error("create", path))?;
    let mut len = 0;
    while let Some(chunk) = handle.block_on(bytes.try_next()).map_err(failed("receive a part"))? {
        len += chunk.len() as u64;
        if len > max {
            return invalid(&format!("an image of processes is longer than {max} bytes"));
        }
        file.write_all(&chunk).map_err(io_error("write", path))?;
    }
    Ok(())
}

fn damaged(snapshot: SnapshotId) -> impl Fn(ImageError) -> DriverError {
    move |err| match err {
        ImageError::Newer { .. } => {
            DriverError::Invalid { driver: super::DRIVER, reason: err.to_string() }
        }
        err => DriverError::Damaged { snapshot, reason: err.to_string() },
    }
}
