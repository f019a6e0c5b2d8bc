//! The only place that knows all the parts: where the data is, which catalog and which driver.

use std::{
    fs::DirBuilder,
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use forkpoint_backends::{
    catalog::SqliteCatalog,
    driver::local::{LocalConfig, LocalDriver},
    environment::SystemEnvironment,
};
use forkpoint_core::{Engine, EngineConfig, Error, ErrorKind, driver::Driver};
use tokio::runtime::Handle;

use crate::{args::GlobalArgs, output::Output};

/// Whose sandboxes a name without a driver in front means.
pub(crate) const DEFAULT_DRIVER: &str = "local";

const SYSTEM_DIR: &str = "/var/lib/forkpoint";

/// What a command is about to need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Records,
    /// What sandboxes are launched from takes a moment to start.
    Launcher,
}

/// The engine on a data directory, which is made if need be. What others left half-done is cleared
/// up first.
pub(crate) async fn open(data: &Path, need: Need, out: &Output) -> Result<Engine, Error> {
    make_private(data)?;
    let driver = LocalDriver::open(local(data))?;
    if need == Need::Launcher {
        // It starts while the catalog is opened.
        driver.warm_up();
    }
    let driver: Arc<dyn Driver> = Arc::new(driver);
    let catalog = SqliteCatalog::open(data.join("catalog.db"))?;
    let environment = Arc::new(SystemEnvironment::new(Handle::current()));
    let config = EngineConfig::new(DEFAULT_DRIVER);
    let engine = Engine::new([driver], Arc::new(catalog), environment, config)?;
    recover(&engine, out).await;
    Ok(engine)
}

pub(crate) fn local(data: &Path) -> LocalConfig {
    LocalConfig::new(data.join("local"))
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

pub(crate) fn data_dir(args: &GlobalArgs) -> Result<PathBuf, Error> {
    let given = args.data_dir.as_ref().filter(|dir| !dir.as_os_str().is_empty());
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
