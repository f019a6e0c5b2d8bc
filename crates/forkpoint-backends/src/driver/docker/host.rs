//! What all of the driver works with: the engine, and a directory for what the engine cannot keep.
//!
//! ```text
//!   id                the data directory's own id, on every label
//!   pauses/CONTAINER  a pause of ours, to be ended by whoever finds it
//!   freezes/CONTAINER the same, made without the engine
//!   rollbacks/SANDBOX how things were before a rollback began
//!   manifests/…       what an upper directory was when it was sealed
//!   looks/…           what else there was of a container then
//!   counts/…          whose bytes are in an image or a layer of a volume
//!   turns/…           the place in the order, of a snapshot whose image is an earlier one's
//! ```

use std::{
    collections::HashMap,
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{Mutex, OnceLock},
};

use forkpoint_core::{
    driver::{DriverError, DriverResult},
    id::SandboxId,
};

use super::{DRIVER, DockerConfig, engine::Engine, label::DataId};
use crate::layer::{self, LayerError, LayerStore};

#[derive(Debug)]
pub(super) struct Host {
    pub(super) engine: Engine,
    pub(super) layers_max: usize,
    directory: PathBuf,
    data: OnceLock<DataId>,
    store: OnceLock<LayerStore>,
    notices: Mutex<HashMap<SandboxId, Vec<String>>>,
}

impl Host {
    pub(super) fn new(config: DockerConfig) -> Self {
        Self {
            engine: Engine::new(config.endpoint),
            layers_max: config.layers_max,
            directory: config.dir,
            data: OnceLock::new(),
            store: OnceLock::new(),
            notices: Mutex::default(),
        }
    }

    /// Made at the first use: opening a data directory costs nothing.
    pub(super) fn data(&self) -> DriverResult<&DataId> {
        if let Some(data) = self.data.get() {
            return Ok(data);
        }
        let path = self.directory.join("id");
        let id = read_or_make_id(&self.directory, &path).map_err(io_error("read", &path))?;
        Ok(self.data.get_or_init(|| DataId(id)))
    }

    /// A directory of ours, made if need be.
    pub(super) fn place(&self, name: &str) -> DriverResult<PathBuf> {
        let path = self.directory.join(name);
        fs::create_dir_all(&path).map_err(io_error("create", &path))?;
        Ok(path)
    }

    /// For what a seal copies before the engine gets it.
    pub(super) fn store(&self) -> DriverResult<&LayerStore> {
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        let opened =
            LayerStore::open(&self.place("layers")?).map_err(layer_error("open layers"))?;
        Ok(self.store.get_or_init(|| opened))
    }

    pub(super) fn notice(&self, about: SandboxId, text: String) {
        let mut notices = self.notices.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        notices.entry(about).or_default().push(text);
    }

    pub(super) fn take_notices(&self, about: SandboxId) -> Vec<String> {
        let mut notices = self.notices.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        notices.remove(&about).unwrap_or_default()
    }

    pub(super) fn write_note(&self, kind: &str, name: &str, text: &[u8]) -> DriverResult<()> {
        let path = self.place(kind)?.join(name);
        let spare = path.with_file_name(layer::unique_name("new"));
        fs::write(&spare, text).map_err(io_error("write", &path))?;
        fs::rename(&spare, &path).map_err(io_error("write", &path))
    }

    pub(super) fn read_note(&self, kind: &str, name: &str) -> DriverResult<Option<Vec<u8>>> {
        let path = self.directory.join(kind).join(name);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(err) => Err(io_error("read", &path)(err)),
        }
    }

    pub(super) fn drop_note(&self, kind: &str, name: &str) -> DriverResult<()> {
        let path = self.directory.join(kind).join(name);
        match fs::remove_file(&path) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => {
                Err(io_error("remove", &path)(err))
            }
            _ => Ok(()),
        }
    }
}

/// Two processes may come at once: one of them makes it.
fn read_or_make_id(directory: &Path, path: &Path) -> io::Result<String> {
    loop {
        match fs::read_to_string(path) {
            Ok(text) if text.len() == 32 => return Ok(text),
            Ok(_) => return Err(io::Error::other("it is not an id; restore it from a backup")),
            Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
            Err(_) => {}
        }
        fs::create_dir_all(directory)?;
        let mut random = [0; 16];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let spare = directory.join(layer::unique_name("id"));
        let mut file = fs::File::create_new(&spare)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        let linked = fs::hard_link(&spare, path);
        fs::remove_file(&spare)?;
        match linked {
            Err(err) if err.kind() != io::ErrorKind::AlreadyExists => return Err(err),
            _ => {}
        }
    }
}

pub(super) fn io_error(
    operation: &'static str,
    path: &Path,
) -> impl Fn(io::Error) -> DriverError + use<> {
    let path = path.to_owned();
    move |source| DriverError::Io { operation, path: path.clone(), source }
}

pub(super) fn layer_error(operation: &'static str) -> impl Fn(LayerError) -> DriverError {
    move |err| DriverError::Failed { driver: DRIVER, operation, source: err.into() }
}

/// Runs what blocks on a thread that may.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> DriverResult<T> + Send + 'static,
) -> DriverResult<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(err) => Err(DriverError::Failed {
            driver: DRIVER,
            operation: "finish its work",
            source: err.into(),
        }),
    }
}
