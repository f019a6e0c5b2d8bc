//! Who uses what, and taking away what nobody does.

use std::path::{Component, Path, PathBuf};

use forkpoint_core::driver::DriverResult;

use super::{
    super::{
        host::{Host, layer_error},
        template::Base,
    },
    TemplateRecord, record,
};
use crate::{image::ImageStore, layer::LayerName};

/// What would be swept if a template went.
#[derive(Debug)]
pub(super) struct Stakes {
    pub(super) template: TemplateRecord,
    others: Vec<TemplateRecord>,
    images: ImageStore,
}

impl Stakes {
    /// Whether something that lies on `base` would lose a part of it.
    pub(super) fn are_under(&self, base: &Base) -> bool {
        let is_swept = |path: &Path| {
            let name = |part: Component<'_>| part.as_os_str().to_str()?.parse().ok();
            self.images.has_in_it(path)
                || path.components().filter_map(name).any(|layer| record::is_tagged(&layer))
        };
        let keeps = |template: &TemplateRecord, path: &Path| {
            template.layer.as_ref().is_some_and(|layer| is_in(path, layer))
                || template.layers.iter().any(|digest| self.images.tree(digest) == path)
                || template.under.iter().flat_map(Base::lowers).any(|lower| lower == path)
        };
        base.lowers().any(|path| {
            is_swept(&path)
                && keeps(&self.template, &path)
                && !self.others.iter().any(|other| keeps(other, &path))
        })
    }
}

impl Host {
    pub(super) fn stakes(&self, template: TemplateRecord) -> DriverResult<Stakes> {
        // If one of them cannot be read, nobody knows what it keeps.
        let mut others = self.template_records().unwrap_or_default();
        others.retain(|other| other.name != template.name);
        Ok(Stakes { template, others, images: self.images()? })
    }

    /// The sandboxes that were made from a template, or lie on what only it keeps.
    pub(super) fn sandboxes_on(&self, stakes: &Stakes) -> DriverResult<Vec<String>> {
        let mut users = Vec::new();
        for id in self.list()? {
            // One that cannot be read could be one of them.
            match self.find(id) {
                Ok(Some(record))
                    if record.spec.template.as_str() != stakes.template.name
                        && !stakes.are_under(&record.base) => {}
                Ok(None) => {}
                _ => users.push(id.to_string()),
            }
        }
        Ok(users)
    }

    /// Takes away what no template and no sandbox lies on. What a snapshot lies on is kept by a
    /// template, which cannot be removed before it.
    pub(super) fn sweep_images(&self) -> DriverResult<()> {
        let images = self.images()?;
        let Some(alone) = images.alone()? else { return Ok(()) };
        let records = self.template_records()?;
        let mut used: Vec<PathBuf> = Vec::new();
        for id in self.list()? {
            // If one cannot be read, nobody knows what it lies on.
            if let Some(record) = self.find(id)? {
                used.extend(record.base.0.into_iter().flat_map(|bottom| bottom.lowers));
            }
        }
        used.extend(
            records.iter().filter_map(|record| record.under.as_ref()).flat_map(Base::lowers),
        );
        images.sweep(&alone, |digest| {
            let tree = images.tree(digest);
            records.iter().any(|record| record.layers.contains(digest)) || used.contains(&tree)
        })?;
        let is_wanted = |layer: &LayerName| {
            records.iter().any(|record| record.layer.as_ref() == Some(layer))
                || used.iter().any(|path| is_in(path, layer))
        };
        let layers = self.store.list().map_err(layer_error("list the layers"))?;
        let forgotten = layers.iter().filter(|layer| record::is_tagged(layer) && !is_wanted(layer));
        self.discard_layers(forgotten);
        for layer in self.templates_with_memory() {
            let is_known = records.iter().any(|record| record.layer.as_ref() == Some(&layer));
            if record::is_tagged(&layer) && !is_known {
                let gone = self.store.throw_away(&self.template_memory(&layer));
                gone.map_err(layer_error("discard the memory of a template"))?;
            }
        }
        Ok(())
    }

    pub(super) fn templates_bytes(&self) -> DriverResult<u64> {
        let images = self.images()?;
        let mut digests = Vec::new();
        let mut bytes = 0;
        for record in self.template_records()? {
            digests.extend(record.layers);
            if let Some(layer) = &record.layer {
                bytes += self.store.measure(layer).map_or(0, |size| size.bytes);
            }
        }
        digests.sort_unstable();
        digests.dedup();
        let sizes = digests.iter().filter_map(|digest| images.note(digest));
        Ok(bytes + sizes.map(|note| note.unpacked.bytes).sum::<u64>())
    }
}

fn is_in(path: &Path, layer: &LayerName) -> bool {
    path.components().any(|part| part.as_os_str() == layer.as_str())
}
