//! Templates with a name: images, snapshots that were promoted, and directories.
//!
//! `templates/<name>.json` tells what a name means. What it lies on is elsewhere: layers of images in
//! `images/`, the layer of a promoted snapshot among those of sandboxes. `templates/lock` is shared
//! by whoever makes a sandbox from a template, and held alone by whoever removes one.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use forkpoint_core::{
    Error, ErrorKind, Timestamp,
    driver::{Artifact, DriverError, DriverResult},
    path::SandboxPath,
    spec::{SandboxSpec, Template},
};
use rustix::fs::{FlockOperation, flock};

use super::{
    host::{ArtifactData, Host, io_error, layer_error},
    launch::Isolation,
    template::{self, Base, Bottom},
};
use crate::{
    image::{self, Digest, Fetched, ImageConfig, ImageError, ImageSource, ImageStore, Progress},
    layer::{LayerName, replace, unique_name},
};

mod promote;
mod record;
mod usage;

use usage::Stakes;

pub use record::{TemplateKind, TemplateRecord};

/// The templates of a local driver. Everything here blocks.
#[derive(Clone, Debug)]
pub struct Templates {
    host: Arc<Host>,
}

/// A template that nobody can begin to use, until this is dropped.
#[derive(Debug)]
pub struct Removal {
    templates: Templates,
    stakes: Stakes,
    _alone: File,
}

impl Templates {
    pub(super) fn new(host: Arc<Host>) -> Self {
        Self { host }
    }

    /// In the order of their names.
    pub fn list(&self) -> Result<Vec<TemplateRecord>, Error> {
        Ok(self.host.template_records()?)
    }

    pub fn find(&self, name: &str) -> Result<Option<TemplateRecord>, Error> {
        Ok(self.host.template_record(name)?)
    }

    /// What all templates and their layers occupy, each layer counted once.
    pub fn total_bytes(&self) -> Result<u64, Error> {
        Ok(self.host.templates_bytes()?)
    }

    /// Makes a template of `source`. Without a name it gets one that follows from what it is. Adding
    /// the same again is a success; a name that stands for something else is taken.
    pub fn add(
        &self,
        name: Option<&str>,
        source: &str,
        now: Timestamp,
        progress: &Progress,
    ) -> Result<TemplateRecord, Error> {
        if let Some(name) = name {
            record::check_name(name)?;
        }
        if source.starts_with("dir:") {
            return self.add_directory(name, source, now);
        }
        let image = ImageSource::parse(source).map_err(Error::from)?;
        let image = image.unwrap_or_else(|| ImageSource::of_path(PathBuf::from(source)));
        Ok(self.host.add_image(name, image, now, progress)?)
    }

    fn add_directory(
        &self,
        name: Option<&str>,
        source: &str,
        now: Timestamp,
    ) -> Result<TemplateRecord, Error> {
        let name = name.ok_or_else(|| Error::invalid("a directory needs a name as a template"))?;
        // Says what is wrong with it.
        template::resolve(source, &self.host.root).map_err(super::host::template_error)?;
        let record = TemplateRecord::new(name, TemplateKind::Directory, source, now);
        Ok(self.host.keep_template(record)?)
    }

    /// Makes a template of what a snapshot holds, which needs the snapshot no longer. The spec is
    /// that of the sandbox that it was taken of: its environment, directory and user stay.
    pub fn promote(
        &self,
        artifact: &Artifact,
        spec: &SandboxSpec,
        name: &str,
        now: Timestamp,
    ) -> Result<TemplateRecord, Error> {
        record::check_name(name)?;
        Ok(self.host.promote(artifact, spec, name, now)?)
    }

    /// Makes sure that no sandbox uses a template and that none begins to, until the answer is
    /// dropped or [`Removal::finish`]ed. Whether a snapshot does, only the caller can know.
    pub fn remove(&self, name: &str) -> Result<Removal, Error> {
        let _alone = self.host.templates_alone()?;
        let missing =
            || DriverError::from(ImageError::Missing { what: format!("template `{name}`") });
        let record = self.host.template_record(name)?.ok_or_else(missing)?;
        let stakes = self.host.stakes(record)?;
        let users = self.host.sandboxes_on(&stakes)?;
        if !users.is_empty() {
            let message =
                format!("template `{name}` is in use by sandbox `{}`", users.join("`, `"));
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        Ok(Removal { templates: self.clone(), stakes, _alone })
    }
}

/// The names of the templates of a driver that works in `root`, in order. Needs no driver.
pub fn template_names(root: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(root.join("templates")) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let name = |entry: io::Result<fs::DirEntry>| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        name.strip_suffix(".json").map(str::to_owned)
    };
    let mut names: Vec<String> = entries.filter_map(name).collect();
    names.sort_unstable();
    Ok(names)
}

impl Removal {
    #[must_use]
    pub fn record(&self) -> &TemplateRecord {
        &self.stakes.template
    }

    /// Whether a snapshot lies on something that would go with the template, whatever it was made
    /// from: a rollback may have put a sandbox of another template on it.
    #[must_use]
    pub fn is_under(&self, artifact: &Artifact) -> bool {
        // One that cannot be read is of another driver, or cannot be restored anyway.
        serde_json::from_value::<ArtifactData>(artifact.data.clone())
            .is_ok_and(|data| self.stakes.are_under(&data.base))
    }

    /// Takes the template away, and what nobody else needs of it: other templates may lie on its
    /// layer.
    pub fn finish(self) -> Result<(), Error> {
        let host = &self.templates.host;
        let path = host.template_path(&self.record().name);
        fs::remove_file(&path).map_err(io_error("remove", &path))?;
        // It is gone; what stays of it is swept the next time.
        let _ = host.sweep_images();
        host.sweep_later(None);
        Ok(())
    }
}

impl Host {
    fn template_path(&self, name: &str) -> PathBuf {
        self.root.join("templates").join(format!("{name}.json"))
    }

    pub(super) fn template_record(&self, name: &str) -> DriverResult<Option<TemplateRecord>> {
        if record::check_name(name).is_err() {
            return Ok(None);
        }
        TemplateRecord::read(&self.template_path(name))
    }

    pub(super) fn template_records(&self) -> DriverResult<Vec<TemplateRecord>> {
        let directory = self.root.join("templates");
        let names = template_names(&self.root).map_err(io_error("list", &directory))?;
        let records = names.iter().map(|name| self.template_record(name));
        Ok(records.collect::<DriverResult<Vec<_>>>()?.into_iter().flatten().collect())
    }

    fn templates_lock(&self, how: FlockOperation) -> DriverResult<File> {
        let directory = self.root.join("templates");
        let lock = || -> io::Result<File> {
            fs::create_dir_all(&directory)?;
            let path = directory.join("lock");
            let file = File::options().write(true).create(true).truncate(false).open(path)?;
            flock(&file, how)?;
            Ok(file)
        };
        lock().map_err(io_error("lock", &directory))
    }

    fn templates_alone(&self) -> DriverResult<File> {
        self.templates_lock(FlockOperation::LockExclusive)
    }

    /// Keeps templates from being removed while a sandbox is made from one. `host` and directories
    /// cannot be.
    pub(super) fn hold_templates(&self, template: &Template) -> DriverResult<Option<File>> {
        match is_built_in(template) {
            true => Ok(None),
            false => self.templates_lock(FlockOperation::LockShared).map(Some),
        }
    }

    pub(super) fn images(&self) -> DriverResult<ImageStore> {
        ImageStore::open(self.root.join("images"), self.store.clone()).map_err(DriverError::from)
    }

    /// What a template means now.
    pub(super) fn base_of(&self, template: &Template) -> DriverResult<Base> {
        if is_built_in(template) {
            return template::resolve(template.as_str(), &self.root)
                .map_err(super::host::template_error);
        }
        let record = self.template_record(template.as_str())?;
        let record = record.ok_or_else(|| missing(template.as_str()))?;
        self.base_of_record(&record)
    }

    pub(super) fn base_of_record(&self, record: &TemplateRecord) -> DriverResult<Base> {
        let base = match (&record.kind, &record.under, &record.layer) {
            (TemplateKind::Directory, ..) => {
                return template::resolve(&record.source, &self.root)
                    .map_err(super::host::template_error);
            }
            (TemplateKind::Image, ..) => {
                let images = self.images()?;
                let points = template::mount_points(&self.root)
                    .map_err(io_error("make mount points in", &self.root))?;
                let lowers = images.stack(&record.layers).into_iter().chain([points]).collect();
                Base(vec![Bottom { at: PathBuf::new(), lowers }])
            }
            (TemplateKind::Snapshot, Some(under), Some(layer)) => {
                let layer = self.store.layer(layer).map_err(layer_error("find a template"))?;
                under.clone().covered(&layer.tree_path())
            }
            (TemplateKind::Snapshot, ..) => {
                return Err(damaged(&record.name, "it does not say what it lies on"));
            }
        };
        match base.is_there() {
            true => Ok(base),
            false => Err(damaged(&record.name, "what it lies on is gone")),
        }
    }

    fn add_image(
        &self,
        name: Option<&str>,
        source: ImageSource,
        now: Timestamp,
        progress: &Progress,
    ) -> DriverResult<TemplateRecord> {
        let images = self.images()?;
        let source = source.absolute()?;
        // Best effort: what stays wastes room and nothing else.
        let _ = self.sweep_images();
        let _busy = images.busy()?;
        if let Some(digest) = image::known_digest(&source)?
            && let Some(there) = self.image_with(&digest)?
        {
            let name = name.map_or_else(|| derived_name(&digest), str::to_owned);
            let source = source.to_string();
            return self.keep_template(TemplateRecord { name, source, created: now, ..there });
        }
        let Fetched { digest, config, layers } = image::fetch(&source, &images, progress)?;
        let derived = derived_name(&digest);
        let name = name.unwrap_or(&derived);
        let mut record = TemplateRecord::new(name, TemplateKind::Image, &source.to_string(), now);
        record.digest = Some(digest);
        record.config = config;
        record.bytes = layers.iter().map(|layer| layer.unpacked.bytes).sum();
        record.devices_left_out = layers.iter().map(|layer| layer.unpacked.devices).sum();
        record.layers = layers.into_iter().map(|layer| layer.digest).collect();
        self.keep_template(record)
    }

    /// A template of an image, whatever it is called.
    fn image_with(&self, digest: &Digest) -> DriverResult<Option<TemplateRecord>> {
        let mut records = self.template_records()?.into_iter();
        Ok(records.find(|record| {
            record.kind == TemplateKind::Image && record.digest.as_ref() == Some(digest)
        }))
    }

    /// The one that is there, if it is the same.
    pub(super) fn keep_template(&self, record: TemplateRecord) -> DriverResult<TemplateRecord> {
        let _alone = self.templates_alone()?;
        if let Some(there) = self.template_record(&record.name)? {
            return match there.is_same(&record) {
                true => Ok(there),
                false => Err(DriverError::TemplateTaken { name: record.name }),
            };
        }
        self.write_template(&record)?;
        Ok(record)
    }

    fn write_template(&self, record: &TemplateRecord) -> DriverResult<()> {
        let path = self.template_path(&record.name);
        let write = || -> io::Result<()> {
            let bytes = serde_json::to_vec_pretty(record)?;
            let spare = path.with_file_name(unique_name("new"));
            replace(&path, &spare, &bytes)?;
            File::open(&path)?.sync_all()?;
            File::open(self.root.join("templates"))?.sync_all()
        };
        write().map_err(io_error("write", &path))
    }

    /// Fills in what a spec leaves to its template, and puts a name for where an image comes from.
    pub(super) fn complete(&self, spec: &SandboxSpec, now: Timestamp) -> DriverResult<SandboxSpec> {
        if is_built_in(&spec.template) {
            return Ok(spec.clone());
        }
        let text = spec.template.as_str();
        let record = match ImageSource::parse(text)? {
            Some(source) => self.add_image(None, source, now, &Progress::default())?,
            None => self.template_record(text)?.ok_or_else(|| missing(text))?,
        };
        self.with_defaults(spec, &record)
    }

    fn with_defaults(
        &self,
        spec: &SandboxSpec,
        record: &TemplateRecord,
    ) -> DriverResult<SandboxSpec> {
        let bad = |err: Error| damaged(&record.name, &err.to_string());
        let ImageConfig { env, user, workdir, .. } = &record.config;
        let mut spec = spec.clone();
        spec.template = record.name.parse().map_err(bad)?;
        let own = std::mem::replace(&mut spec.env, env.clone());
        spec.env.extend(own);
        if spec.workdir.is_none()
            && let Some(workdir) = workdir
        {
            spec.workdir = Some(SandboxPath::new(Path::new("/").join(workdir)).map_err(bad)?);
        }
        // Without root there is one user inside, and no other can be had.
        if spec.user.is_none() && self.isolation() != Isolation::Rootless {
            spec.user = user.clone();
        }
        Ok(spec)
    }
}

/// Whether it is the layer of a template.
pub(super) fn is_of_template(layer: &LayerName) -> bool {
    record::is_tagged(layer)
}

pub(super) fn is_built_in(template: &Template) -> bool {
    template.as_str() == "host" || template.as_str().starts_with("dir:")
}

fn derived_name(digest: &Digest) -> String {
    format!("img-{}", digest.short())
}

fn missing(name: &str) -> DriverError {
    ImageError::Missing { what: format!("template `{name}`") }.into()
}

fn damaged(name: &str, reason: &str) -> DriverError {
    let (what, reason) = (format!("template `{name}`"), reason.to_owned());
    ImageError::Damaged { what, reason }.into()
}

impl From<ImageError> for DriverError {
    fn from(err: ImageError) -> Self {
        Self::Template(Box::new(Error::from(err)))
    }
}
