//! What a snapshot of a container would leave out.

use forkpoint_core::{
    driver::{DriverResult, Finding, Severity, SnapshotKind},
    id::SandboxId,
};

use super::{container::Container, host::Host, kept::volumes_of, rollback::stands_aside, volatile};

impl Host {
    pub(super) async fn findings(
        &self,
        id: SandboxId,
        kind: SnapshotKind,
    ) -> DriverResult<Vec<Finding>> {
        let container = self.container(id).await?;
        let mut findings = mount_findings(&container, kind);
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

fn mount_findings(container: &Container, kind: SnapshotKind) -> Vec<Finding> {
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
    if kind == SnapshotKind::Files {
        let left_out = volatile::left_out(container).into_iter();
        findings.extend(left_out.map(|text| finding(Severity::LeftOut, text)));
    }
    if let Some(other) =
        host["NetworkMode"].as_str().and_then(|mode| mode.strip_prefix("container:"))
    {
        let text = format!("it lives in the network of container `{other}`, and a copy will too");
        findings.push(finding(Severity::Note, text));
    }
    if host["AutoRemove"] == true {
        let text = match stands_aside(container) {
            true => "it is removed when it stops (`--rm`); its snapshots stay",
            false => {
                "it is removed when it stops (`--rm`), and so when it is rolled back: if it cannot be started again then, its snapshots are what is left"
            }
        };
        findings.push(finding(Severity::Note, text.to_owned()));
    }
    findings
}

fn finding(severity: Severity, message: String) -> Finding {
    Finding { severity, message }
}
