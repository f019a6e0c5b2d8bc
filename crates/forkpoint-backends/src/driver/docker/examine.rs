//! What an engine can do for us, found out by asking it.

use serde_json::Value;

use super::{DockerConfig, host::Host};
use crate::driver::local::{Check, Verdict};

pub(super) async fn examine(config: &DockerConfig) -> Vec<Check> {
    let host = Host::new(config.clone());
    let mut checks = vec![engine(&host).await];
    if checks[0].verdict == Verdict::No {
        return checks;
    }
    match host.engine.get("/info").await {
        Ok(info) => {
            checks.push(files(&host, &info));
            checks.push(checkpoints(&host).await);
        }
        Err(err) => checks.push(check("storage", Verdict::No, err.to_string(), None)),
    }
    checks
}

fn check(name: &'static str, verdict: Verdict, detail: String, way_out: Option<&str>) -> Check {
    Check { name, verdict, detail, way_out: way_out.map(str::to_owned) }
}

async fn engine(host: &Host) -> Check {
    let endpoint = host.engine.endpoint().to_string();
    let told = match host.engine.facts().await {
        Ok(_) => host.engine.get("/version").await,
        Err(err) => Err(err),
    };
    match told {
        Ok(told) => {
            let text = |key: &str| told[key].as_str().unwrap_or("?").to_owned();
            let detail = format!("{} at {endpoint}, API {}", text("Version"), text("ApiVersion"));
            check("engine", Verdict::Yes, detail, None)
        }
        Err(err) => {
            let detail = forkpoint_core::error::Chain(&err).to_string();
            let way_out = "start it, or say with DOCKER_HOST or DOCKER_CONTEXT where it listens";
            check("engine", Verdict::No, detail, Some(way_out))
        }
    }
}

/// Whether its files are in reach: then a snapshot costs what changed.
fn files(host: &Host, info: &Value) -> Check {
    let driver = info["Driver"].as_str().unwrap_or("?");
    let root = info["DockerRootDir"].as_str().unwrap_or("?");
    let detail = format!("storage driver {driver}, files in {root}");
    let near = host.engine.endpoint().is_near() && std::path::Path::new(root).is_dir();
    let is_root = rustix::process::geteuid().is_root();
    let way_out = match (driver.starts_with("overlay"), near, is_root) {
        (true, true, true) => return check("storage", Verdict::Yes, detail, None),
        (false, _, _) => {
            "with storage driver overlay2 a second snapshot would cost what changed since"
        }
        (_, false, _) => {
            "on the engine's own machine a second snapshot would cost what changed since"
        }
        (_, _, false) => "as root a second snapshot would cost what changed since",
    };
    check("storage", Verdict::Limited, detail, Some(way_out))
}

async fn checkpoints(host: &Host) -> Check {
    let detail = match host.engine_refusal().await {
        Ok(None) => {
            let detail = "processes and memory can be kept, with `--full`".to_owned();
            return check("checkpoints", Verdict::Yes, detail, None);
        }
        Ok(Some(reason)) => reason,
        Err(err) => forkpoint_core::error::Chain(&err).to_string(),
    };
    let way_out = "snapshots of files, without `--full`, need none of it";
    check("checkpoints", Verdict::Limited, detail, Some(way_out))
}
