//! What the tests of containers do again and again.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use forkpoint_backends::driver::docker::DockerDriver;
use forkpoint_core::{
    driver::{
        Artifact, Command, Driver as _, DriverResult, ExitStatus, Sandbox, SnapshotKind, WriteMode,
    },
    id::{SandboxId, SnapshotId},
    path::SandboxPath,
    spec::SandboxSpec,
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::Value;

use super::{IMAGE, Machine, unique};

/// A first process that waits, and goes when it is asked to.
pub(super) const WAIT: &str = "trap 'exit 0' TERM; while :; do sleep 100 & wait $!; done";

pub(super) struct Scene {
    pub(super) machine: Machine,
    pub(super) driver: DockerDriver,
    /// In every name of this test.
    pub(super) mark: String,
}

impl Scene {
    pub(super) fn new() -> Self {
        Self::on(Machine::new())
    }

    pub(super) fn on(machine: Machine) -> Self {
        let driver = machine.docker();
        Self { machine, driver, mark: format!("t{:x}", unique()) }
    }

    pub(super) fn name(&self, what: &str) -> String {
        format!("{what}-{}", self.mark)
    }

    pub(super) fn docker(&self, args: &[&str]) -> String {
        self.machine.engine.docker(args)
    }

    pub(super) fn inspect(&self, name: &str) -> Value {
        let text = self.docker(&["inspect", name]);
        serde_json::from_str::<Value>(&text).unwrap()[0].take()
    }

    /// Where the only volume of a container is on this disk.
    pub(super) fn volume(&self, name: &str) -> std::path::PathBuf {
        self.inspect(name)["Mounts"][0]["Source"].as_str().unwrap().into()
    }

    /// Starts a container that is not ours.
    pub(super) fn start(&self, what: &str, args: &[&str]) -> String {
        let name = self.name(what);
        let mut all = vec!["run", "-d", "--name", &name];
        all.extend(args);
        all.extend([IMAGE, "sh", "-c", WAIT]);
        self.docker(&all);
        name
    }

    pub(super) fn sh(&self, name: &str, script: &str) -> String {
        self.docker(&["exec", name, "sh", "-c", script])
    }

    pub(super) async fn adopt(&self, name: &str) -> (Arc<dyn Sandbox>, SandboxSpec) {
        let adopted = self.driver.adopt(name).await.unwrap();
        (self.driver.attach(adopted.id).await.unwrap(), adopted.spec)
    }

    pub(super) async fn seal(&self, sandbox: &dyn Sandbox) -> Artifact {
        try_seal(sandbox, SnapshotId::from_u128(unique())).await.unwrap()
    }

    /// Every container, image and volume that says it is ours.
    pub(super) fn ours(&self) -> Vec<String> {
        let id = std::fs::read_to_string(self.machine.directory.path().join("docker/id")).unwrap();
        let filter = format!("label=forkpoint.data={id}");
        let lists: [&[&str]; 3] = [
            &["ps", "-a", "--format", "container {{.Names}}"],
            &["images", "--format", "image {{.Repository}} {{.ID}}"],
            &["volume", "ls", "--format", "volume {{.Name}}"],
        ];
        let list =
            |args: &[&str]| self.machine.engine.docker(args.iter().chain(&["--filter", &filter]));
        lists
            .iter()
            .flat_map(|args| list(args).lines().map(str::to_owned).collect::<Vec<_>>())
            .collect()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let filter = format!("name={}", self.mark);
        let lists: [(&[&str], &[&str]); 3] = [
            (&["ps", "-aq"], &["rm", "-fv"]),
            (&["volume", "ls", "-q"], &["volume", "rm", "-f"]),
            (&["network", "ls", "-q"], &["network", "rm"]),
        ];
        let engine = &self.machine.engine;
        for (list, remove) in lists {
            let output = engine.command().args(list).args(["--filter", &filter]).output();
            let listed = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
            for id in listed.unwrap_or_default().split_whitespace() {
                let _ = engine.command().args(remove).arg(id).output();
            }
            // What is ours may be in a network of theirs.
            self.machine.clear();
        }
    }
}

pub(super) fn new_id() -> SandboxId {
    SandboxId::from_u128(unique())
}

pub(super) fn path(text: &str) -> SandboxPath {
    SandboxPath::new(text).unwrap()
}

pub(super) async fn try_seal(
    sandbox: &dyn Sandbox,
    snapshot: SnapshotId,
) -> DriverResult<Artifact> {
    seal_paused(sandbox, snapshot, SnapshotKind::Files).await
}

/// Its files, with a pause of this kind.
pub(super) async fn seal_paused(
    sandbox: &dyn Sandbox,
    snapshot: SnapshotId,
    pause: SnapshotKind,
) -> DriverResult<Artifact> {
    let mut paused = sandbox.pause(pause).await?;
    let artifact = paused.seal(snapshot, SnapshotKind::Files).await;
    paused.resume().await?;
    artifact
}

pub(super) async fn write(sandbox: &dyn Sandbox, at: &str, text: &str) {
    let bytes = stream::iter([Ok(Bytes::from(text.to_owned()))]).boxed();
    sandbox.write(&path(at), bytes, WriteMode::Replace).await.unwrap();
}

pub(super) async fn shell(sandbox: &dyn Sandbox, script: &str) -> String {
    let process = sandbox.exec(&Command::new(["sh", "-c", script])).await.unwrap();
    let collect = async |stream| -> String {
        let bytes: BytesMut = forkpoint_core::part::ByteStream::try_collect(stream).await.unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (out, err) = futures::join!(collect(process.stdout), collect(process.stderr));
    assert_eq!(process.control.wait().await.unwrap(), ExitStatus::Code(0), "{script}: {err}");
    out
}

/// How many pieces of an artifact are more than a count of bytes.
pub(super) fn things(artifact: &Artifact) -> usize {
    artifact.pieces.iter().filter(|piece| !piece.name.0.starts_with("bytes:")).count()
}

/// An error with all that caused it.
pub(super) fn told(err: &dyn std::error::Error) -> String {
    let mut text = err.to_string();
    let mut source = err.source();
    while let Some(err) = source {
        text.push_str(&format!(": {err}"));
        source = err.source();
    }
    text
}
