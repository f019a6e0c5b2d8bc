//! What a snapshot of a container would leave out.

use forkpoint_core::{
    driver::{DriverResult, Finding, Severity, SnapshotKind},
    id::SandboxId,
};

use super::{container::Container, host::Host, kept::volumes_of};

impl Host {
    pub(super) async fn findings(
        &self,
        id: SandboxId,
        kind: SnapshotKind,
    ) -> DriverResult<Vec<Finding>> {
        let container = self.container(id).await?;
        let mut findings = mount_findings(&container);
        for volume in volumes_of(&container) {
            if self.volume_path(&volume.name).await?.is_none() {
                let text = format!(
                    "volume `{}` at `{}` is out of reach (driver `{}`): the engine sends all of it each time, with times to the second; a copy's is a local one",
                    volume.name,
                    volume.places.join("`, `"),
                    volume.driver
                );
                findings.push(finding(Severity::Note, text));
            }
        }
        if self.reachable(&container.graph()).is_none() {
            let text = "the engine's own files are out of reach: a commit keeps times to the second, fills holes in files and drops extended attributes, and each snapshot holds all that was written";
            findings.push(finding(Severity::Note, text.to_owned()));
        }
        if kind == SnapshotKind::Full {
            let refusal = self.full_refusal(&container).await?;
            findings.extend(refusal.map(|reason| finding(Severity::Blocks, reason)));
        }
        Ok(findings)
    }
}

fn mount_findings(container: &Container) -> Vec<Finding> {
    let mut findings = Vec::new();
    for mount in container.mounts() {
        let text = |key: &str| mount[key].as_str().unwrap_or_default();
        if mount["Type"] == "bind" {
            let (source, place) = (text("Source"), text("Destination"));
            let text = format!(
                "`{place}` is `{source}` of the host: it is mounted again, and what is in it is not kept"
            );
            findings.push(finding(Severity::Note, text));
        }
    }
    let host = container.host_config();
    let tmpfs = host["Tmpfs"].as_object().into_iter().flatten().map(|(place, _)| place.as_str());
    let mounts = container.mounts().iter().filter(|mount| mount["Type"] == "tmpfs");
    let mounts = mounts.filter_map(|mount| mount["Destination"].as_str());
    for place in tmpfs.chain(mounts) {
        let text = format!("`{place}` is in memory (tmpfs): what is in it is not kept");
        findings.push(finding(Severity::LeftOut, text));
    }
    if let Some(other) =
        host["NetworkMode"].as_str().and_then(|mode| mode.strip_prefix("container:"))
    {
        let text = format!("it lives in the network of container `{other}`, and a copy will too");
        findings.push(finding(Severity::Note, text));
    }
    if host["AutoRemove"] == true {
        let text = "it is removed when it stops (`--rm`): a rollback that fails after that leaves the new one";
        findings.push(finding(Severity::Note, text.to_owned()));
    }
    findings
}

fn finding(severity: Severity, message: String) -> Finding {
    Finding { severity, message }
}
