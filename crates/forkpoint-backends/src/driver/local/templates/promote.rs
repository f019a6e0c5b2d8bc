//! From a snapshot to a template that does not need it any more.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use forkpoint_checkpoint::image;
use forkpoint_core::{
    Timestamp,
    driver::{Artifact, DriverError, DriverResult},
    spec::{SandboxSpec, Template, WorkspaceMode},
};

use super::{
    super::{
        DRIVER,
        host::{Host, io_error, layer_error},
        template::Base,
    },
    TemplateKind, TemplateRecord, damaged, is_built_in, record,
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
        let under = self.base_under(Some(&data), spec)?;
        let layer = self.flatten_for_template(artifact, &data.layer)?;
        let kept = self.keep_memory(&layer, artifact).and_then(|memory| {
            self.keep_promoted(&layer, memory, &under, spec, name, now, artifact)
        });
        if kept.is_err() {
            self.discard_layers([&layer]);
            // What cannot go now is swept with what no template knows.
            let _ = self.store.throw_away(&self.template_memory(&layer));
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

    /// Links to the images of a snapshot with processes. Answers how many there are, and how long they are.
    fn keep_memory(&self, layer: &LayerName, artifact: &Artifact) -> DriverResult<(usize, u64)> {
        let images = self.images_from(artifact)?;
        if images.is_empty() {
            return Ok((0, 0));
        }
        let directory = self.template_memory(layer);
        let mut bytes = 0;
        for (number, image) in images.iter().enumerate() {
            let to = directory.join(number.to_string());
            bytes += link_image(image, &to).map_err(io_error("copy", image))?;
        }
        Ok((images.len(), bytes))
    }

    /// Where a template has its images of processes, the lowest first.
    pub(in super::super) fn template_images(
        &self,
        template: &Template,
    ) -> DriverResult<Vec<PathBuf>> {
        if is_built_in(template) {
            return Ok(Vec::new());
        }
        let Some(record) = self.template_record(template.as_str())? else { return Ok(Vec::new()) };
        let Some(layer) = record.layer.as_ref() else { return Ok(Vec::new()) };
        let directory = self.template_memory(layer);
        let images: Vec<PathBuf> =
            (0..record.memory).map(|number| directory.join(number.to_string())).collect();
        if let Some(top) = images.last() {
            self.check_runs_here(top).map_err(|reason| damaged(&record.name, &reason))??;
        }
        Ok(images)
    }

    #[expect(clippy::too_many_arguments, reason = "all of it is in the record")]
    fn keep_promoted(
        &self,
        layer: &LayerName,
        (memory, memory_bytes): (usize, u64),
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
        record.memory = memory;
        record.bytes = size.bytes + memory_bytes + from.as_ref().map_or(0, |from| from.bytes);
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

/// The same bytes under another name: an image is never changed. Answers how long it is.
fn link_image(from: &Path, to: &Path) -> io::Result<u64> {
    fs::DirBuilder::new().mode(0o700).recursive(true).create(to)?;
    let mut bytes = 0;
    for name in image::FILES {
        fs::hard_link(from.join(name), to.join(name))?;
        bytes += fs::metadata(to.join(name))?.len();
    }
    image::sync(to).map_err(io::Error::other)?;
    Ok(bytes)
}
