//! The only place that knows all the parts: where the data is, which catalog and which driver.

use std::{
    fs::DirBuilder,
    io,
    os::unix::fs::DirBuilderExt as _,
    panic,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use forkpoint_backends::{
    catalog::SqliteCatalog,
    driver::{
        docker::{DockerConfig, DockerDriver, Endpoint},
        local::{LocalConfig, LocalDriver, Templates},
    },
    environment::SystemEnvironment,
};
use forkpoint_core::{Engine, EngineConfig, Error, ErrorKind, driver::Driver, engine::Notices};
use tokio::runtime::Handle;

use crate::{
    args::GlobalArgs,
    config::Config,
    output::{Output, record::shown},
};

/// Whose sandboxes a name without a driver in front means.
pub(crate) const DEFAULT_DRIVER: &str = "local";

/// Whose sandboxes are containers.
pub(crate) const DOCKER: &str = "docker";

const SYSTEM_DIR: &str = "/var/lib/forkpoint";

/// What a command is about to need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Records,
    /// What sandboxes are launched from takes a moment to start.
    Launcher,
    /// One after the other, by a process that stays: some are kept ready, if that is configured.
    Launches,
}

/// What works on a data directory.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) engine: Engine,
    /// Of the default driver.
    pub(crate) templates: Templates,
}

/// The engine on a data directory, which is made if need be. What others left half-done is cleared
/// up first.
pub(crate) async fn open(
    data: &Path,
    need: Need,
    config: &Config,
    out: &Output,
) -> Result<Opened, Error> {
    make_private(data)?;
    let file = data.join("catalog.db");
    // Each takes its time, and neither needs the other.
    let catalog = thread::spawn(|| SqliteCatalog::open_here(file));
    let warm = if need == Need::Launches { config.settings.warm } else { 0 };
    let share_memory = config.settings.share_memory;
    let local = LocalConfig { warm, share_memory, ..local(data) };
    let live_rotation = config.settings.live_rotation.unwrap_or(local.live_rotation);
    let driver = LocalDriver::open(LocalConfig { live_rotation, ..local })?;
    if need != Need::Records {
        // It starts while the catalog is opened.
        driver.warm_up();
    }
    let templates = driver.templates();
    let mut drivers: Vec<Arc<dyn Driver>> = vec![Arc::new(driver)];
    match docker(data) {
        // Opening it does not talk to an engine: whoever needs none does not notice.
        Ok(config) => drivers.push(Arc::new(DockerDriver::open(config)?)),
        Err(err) => out.detail(format!("containers have to wait: {}", err.chain())),
    }
    let catalog = catalog.join().unwrap_or_else(|panic| panic::resume_unwind(panic))?;
    let environment = Arc::new(SystemEnvironment::new(Handle::current()));
    let listener = *out;
    let notices = Notices::to(move |text| listener.warn(text));
    let config = EngineConfig { notices, ..config.engine() };
    if !drivers.iter().any(|driver| driver.name() == config.default_driver) {
        let wanted = &config.default_driver;
        let message =
            format!("there is no driver `{wanted}` here, only `{DEFAULT_DRIVER}` and `{DOCKER}`");
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let engine = Engine::new(drivers, Arc::new(catalog), environment, config)?;
    recover(&engine, out).await;
    expire(&engine, out).await;
    Ok(Opened { engine, templates })
}

pub(crate) fn local(data: &Path) -> LocalConfig {
    LocalConfig::new(data.join("local"))
}

/// Where the engine is, as the docker command would find it.
pub(crate) fn docker(data: &Path) -> Result<DockerConfig, Error> {
    let found = Endpoint::find(|name| std::env::var(name).ok());
    let endpoint = found.map_err(|err| Error::invalid(err.to_string()))?;
    Ok(DockerConfig::new(endpoint, data.join("docker")))
}

/// Whatever cannot be cleared up now is tried again at the next start: no reason to refuse work.
async fn recover(engine: &Engine, out: &Output) {
    let report = match engine.recover().await {
        Ok(report) => report,
        Err(err) => return out.detail(format!("recovery has to wait: {}", err.chain())),
    };
    for id in &report.finished {
        out.detail(format!("recovery finished operation `{id}`"));
    }
    for id in &report.undone {
        out.detail(format!("recovery undid operation `{id}`"));
    }
    for (id, err) in &report.failed {
        out.detail(format!("operation `{id}` waits for the next recovery: {}", err.chain()));
    }
    if report.chores_done + report.chores_waiting > 0 {
        let (done, waiting) = (report.chores_done, report.chores_waiting);
        out.detail(format!("clean-up: {done} done, {waiting} waiting"));
    }
}

/// There is no daemon: whoever comes next ends the sandboxes whose time is over.
async fn expire(engine: &Engine, out: &Output) {
    let report = match engine.expire().await {
        Ok(report) => report,
        Err(err) => return out.detail(format!("expiry has to wait: {}", err.chain())),
    };
    for record in &report.destroyed {
        out.note(format!("removed sandbox `{}`: its time was over", shown(record)));
    }
    for (record, err) in &report.failed {
        out.detail(format!("sandbox `{}` outlives its time: {}", shown(record), err.chain()));
    }
}

/// What was said now, else what was configured, else the usual place.
pub(crate) fn data_dir(args: &GlobalArgs, config: &Config) -> Result<PathBuf, Error> {
    let given = args.data_dir.as_ref().filter(|dir| !dir.as_os_str().is_empty());
    let given = given.or(config.settings.data_dir.as_ref());
    let dir = match given {
        Some(dir) => dir.clone(),
        None => default_dir()?,
    };
    std::path::absolute(&dir).map_err(|err| {
        Error::invalid(format!("`{}` cannot be a data directory", dir.display())).with_source(err)
    })
}

fn default_dir() -> Result<PathBuf, Error> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from(SYSTEM_DIR));
    }
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    let data = absolute("XDG_DATA_HOME");
    let data = data.or_else(|| absolute("HOME").map(|home| home.join(".local/share")));
    data.map(|dir| dir.join("forkpoint")).ok_or_else(|| {
        Error::invalid("neither XDG_DATA_HOME nor HOME says where data is kept: give `--data-dir`")
    })
}

/// Sandboxes hold what their users put there; others have no business in it.
fn make_private(dir: &Path) -> Result<(), Error> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|err| {
        let kind = match err.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                ErrorKind::Denied
            }
            io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => ErrorKind::Invalid,
            _ => ErrorKind::Unavailable,
        };
        Error::new(kind, format!("failed to make the data directory `{}`", dir.display()))
            .with_source(err)
    })
}
