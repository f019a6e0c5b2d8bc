//! From a snapshot to a template that does not need it any more.

use forkpoint_core::{
    Timestamp,
    driver::{Artifact, DriverError, DriverResult},
    spec::{SandboxSpec, WorkspaceMode},
};

use super::{
    super::{
        DRIVER,
        host::{Host, layer_error},
        template::Base,
    },
    TemplateKind, TemplateRecord, record,
};
use crate::{
    image::ImageConfig,
    layer::{Below, LayerName},
};

impl Host {
    /// A live workspace is somebody's directory, and no part of what the snapshot holds.
    pub(super) fn promote(
        &self,
        artifact: &Artifact,
        spec: &SandboxSpec,
        name: &str,
        now: Timestamp,
    ) -> DriverResult<TemplateRecord> {
        let images = self.images()?;
        let _busy = images.busy()?;
        if self.template_record(name)?.is_some() {
            return Err(DriverError::TemplateTaken { name: name.to_owned() });
        }
        if let Some(live) = spec.workspaces.iter().find(|each| each.mode == WorkspaceMode::Live) {
            let reason = format!(
                "snapshot `{}` lies over workspace `{}`, which is no part of it: a template needs \
                 one of a sandbox without a workspace, or with `--workspace-mode copy`",
                artifact.snapshot, live.source
            );
            return Err(DriverError::Invalid { driver: DRIVER, reason });
        }
        let data = self.read_artifact(artifact)?;
        let layer = self.flatten_for_template(artifact, &data.layer)?;
        let kept = self.keep_promoted(&layer, &data.base, spec, name, now, artifact);
        if kept.is_err() {
            self.discard_layers([&layer]);
        }
        kept
    }

    /// Hard links to everything that the snapshot holds over its template.
    fn flatten_for_template(
        &self,
        artifact: &Artifact,
        top: &LayerName,
    ) -> DriverResult<LayerName> {
        let chain = self.store.chain(top).map_err(layer_error("read the layers"))?;
        let tag = record::layer_tag();
        let name =
            LayerName::tagged(artifact.snapshot, &tag).map_err(layer_error("name a layer"))?;
        let flatten = || {
            let mut stage = self.store.stage(name.clone(), None)?;
            stage.flatten(&chain, Below::Something)?;
            // Whoever deletes the snapshot meanwhile takes files from under our hands.
            self.store.chain(top)?;
            stage.commit(true)
        };
        flatten().map_err(layer_error("copy the snapshot"))?;
        Ok(name)
    }

    fn keep_promoted(
        &self,
        layer: &LayerName,
        under: &Base,
        spec: &SandboxSpec,
        name: &str,
        now: Timestamp,
        artifact: &Artifact,
    ) -> DriverResult<TemplateRecord> {
        let source = format!("snapshot {} of {}", artifact.snapshot, spec.template);
        let mut record = TemplateRecord::new(name, TemplateKind::Snapshot, &source, now);
        let size = self.store.measure(layer).map_err(layer_error("count files"))?;
        let from = self.template_record(spec.template.as_str())?;
        record.bytes = size.bytes + from.as_ref().map_or(0, |from| from.bytes);
        record.layers = from.as_ref().map(|from| from.layers.clone()).unwrap_or_default();
        record.layer = Some(layer.clone());
        record.under = Some(under.clone());
        record.config = ImageConfig {
            env: spec.env.clone(),
            user: spec.user.clone(),
            workdir: spec.workdir.as_ref().map(ToString::to_string),
            ..from.map(|from| from.config).unwrap_or_default()
        };
        self.base_of_record(&record)?;
        self.keep_template(record)
    }
}
