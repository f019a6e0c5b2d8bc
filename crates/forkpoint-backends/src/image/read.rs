//! From a source to an image: which layers, and how it wants to be run.

use std::{collections::HashSet, path::Path};

use super::{
    ImageSource, Limits, Progress,
    digest::Digest,
    error::{ImageError, ImageResult},
    files::{Archive, Blob, Blobs, Directory},
    limits::LAYERS_MAX,
    manifest::{
        Configuration, Descriptor, Document, ImageConfig, Manifest, Platform, Saved, choose,
    },
};

/// Indexes that lie in indexes.
const DEPTH_MAX: usize = 4;

/// An image that was looked at; its layers are still where they were.
pub(super) struct Image {
    /// Of its manifest, or where there is none, of its configuration.
    pub(super) digest: Option<Digest>,
    pub(super) config: ImageConfig,
    /// From the bottom up.
    pub(super) layers: Vec<ImageLayer>,
    pub(super) blobs: Box<dyn Blobs>,
}

#[derive(Clone, Debug)]
pub(super) struct ImageLayer {
    pub(super) blob: Blob,
    /// Unknown for an archive that is nothing but files.
    pub(super) diff_id: Option<Digest>,
}

/// Looks at an image. What has to be kept meanwhile is kept below `staging`, without a name.
pub(super) fn read(
    source: &ImageSource,
    staging: &Path,
    limits: Limits,
    progress: &Progress,
) -> ImageResult<Image> {
    let what = format!("`{source}`");
    match source {
        ImageSource::Layout { path, tag } => {
            layout(Box::new(Directory::open(path)?), tag.as_deref(), &what)
        }
        ImageSource::Archive { path, tag } => {
            let archive = Archive::open(path, staging, limits, progress)?;
            read_archive(archive, tag.as_deref(), &what)
        }
        ImageSource::Daemon(name) => {
            let stream = super::daemon::export(name)?;
            let archive = Archive::spool(stream, what.clone(), staging, limits, progress)?;
            read_archive(archive, None, &what)
        }
        #[cfg(feature = "registry")]
        ImageSource::Registry(name) => super::registry::read(name),
        #[cfg(not(feature = "registry"))]
        ImageSource::Registry(_) => Err(ImageError::Source {
            source_text: source.to_string(),
            reason: "this program was built without registries".to_owned(),
        }),
    }
}

fn read_archive(archive: Archive, tag: Option<&str>, what: &str) -> ImageResult<Image> {
    if archive.has("index.json") && archive.has("oci-layout") {
        return layout(Box::new(archive), tag, what);
    }
    if archive.has("manifest.json") {
        return saved(archive, tag, what);
    }
    if let Some(tag) = tag {
        return Err(ImageError::Missing { what: format!("image `{tag}` in {what}") });
    }
    whole(archive, what)
}

/// An archive of the files of a system, such as `tar` makes of one.
fn whole(archive: Archive, what: &str) -> ImageResult<Image> {
    let is_system = ["bin", "etc", "usr", "lib", "sbin", "busybox"];
    if !is_system.iter().any(|name| archive.holds(name)) {
        return Err(ImageError::Source {
            source_text: what.trim_matches('`').to_owned(),
            reason: "it is neither an OCI layout, nor what `docker save` writes, nor the files of \
                     a system"
                .to_owned(),
        });
    }
    let blob = Blob { len_bytes: archive.len_bytes(), ..Blob::named(WHOLE) };
    Ok(Image {
        digest: None,
        config: ImageConfig::default(),
        layers: vec![ImageLayer { blob, diff_id: None }],
        blobs: Box::new(archive),
    })
}

/// The archive itself: no file in one has an empty name.
pub(super) const WHOLE: &str = "";

fn layout(blobs: Box<dyn Blobs>, tag: Option<&str>, what: &str) -> ImageResult<Image> {
    let index = blobs.document(&Blob::named("index.json"))?;
    let index = Document::parse(&index, what)?;
    let mut among = index.manifests.unwrap_or_default();
    if let Some(tag) = tag {
        keep_called(&mut among, tag, Descriptor::names);
        if among.is_empty() {
            return Err(ImageError::Missing { what: format!("image `{tag}` in {what}") });
        }
    }
    if !is_one(&among) {
        return Err(several(what, among.iter().flat_map(Descriptor::names).collect()));
    }
    let found = choose(&among, what)?.clone();
    let (digest, manifest) = descend(&found, what, &|blob| blobs.document(blob))?;
    assemble(digest, &manifest, Blob::in_layout, blobs, what)
}

/// Whether all that could be run here is one image. One that is for several kinds of a machine is
/// there for each, under the same name.
fn is_one(among: &[Descriptor]) -> bool {
    let machine = Platform::of_machine();
    let fits = |each: &&Descriptor| each.platform.as_ref().is_none_or(|other| *other == machine);
    let fitting: Vec<&Descriptor> = among.iter().filter(fits).collect();
    let digests: HashSet<&Digest> = fitting.iter().map(|each| &each.digest).collect();
    let names: HashSet<Vec<String>> = fitting.iter().map(|each| each.names()).collect();
    let is_for_machines = fitting.iter().all(|each| each.platform.is_some());
    digests.len() <= 1 || (is_for_machines && names.len() == 1)
}

/// Those that are called `tag`; where none is, those whose name ends with it.
fn keep_called<T>(among: &mut Vec<T>, tag: &str, names: impl Fn(&T) -> Vec<String>) {
    let is_called = |each: &T| names(each).iter().any(|name| name == tag);
    let ends_so =
        |name: &String| name.strip_suffix(tag).is_some_and(|before| before.ends_with([':', '/']));
    match among.iter().any(is_called) {
        true => among.retain(is_called),
        false => among.retain(|each| names(each).iter().any(ends_so)),
    }
}

fn several(what: &str, mut names: Vec<String>) -> ImageError {
    // One that several have says nothing.
    let all = names.clone();
    names.retain(|name| all.iter().filter(|other| *other == name).count() == 1);
    let reason = match names.is_empty() {
        true => "it holds several images without names of their own".to_owned(),
        false => {
            format!("it holds several images: put one of these behind `:`: {}", names.join(", "))
        }
    };
    ImageError::Source { source_text: what.trim_matches('`').to_owned(), reason }
}

/// From whatever a name stands for to the manifest for this machine.
pub(super) fn descend(
    from: &Descriptor,
    what: &str,
    document: &dyn Fn(&Blob) -> ImageResult<Vec<u8>>,
) -> ImageResult<(Digest, Manifest)> {
    let mut at = from.clone();
    for _ in 0..DEPTH_MAX {
        let parsed = Document::parse(&document(&Blob::in_layout(&at))?, what)?;
        match &parsed.manifests {
            Some(manifests) if at.is_index() || !manifests.is_empty() => {
                at = choose(manifests, what)?.clone();
            }
            _ => return Ok((at.digest.clone(), parsed.into_manifest(what)?)),
        }
    }
    Err(ImageError::damaged(what, "its indexes lead to more and more indexes"))
}

/// Everything that is said twice must be said alike.
pub(super) fn assemble(
    digest: Digest,
    manifest: &Manifest,
    blob: impl Fn(&Descriptor) -> Blob,
    blobs: Box<dyn Blobs>,
    what: &str,
) -> ImageResult<Image> {
    let config = Configuration::parse(&blobs.document(&blob(&manifest.config))?, what)?;
    let found = manifest.layers.iter().map(blob).collect();
    let layers = pair(found, &config, what)?;
    Ok(Image { digest: Some(digest), config: config.run, layers, blobs })
}

fn pair(blobs: Vec<Blob>, config: &Configuration, what: &str) -> ImageResult<Vec<ImageLayer>> {
    let told = config.diff_ids.len();
    if told != blobs.len() {
        let reason =
            format!("it has {} layers, and its configuration tells of {told}", blobs.len());
        return Err(ImageError::damaged(what, reason));
    }
    if told == 0 || told > LAYERS_MAX {
        let reason = format!("it has {told} layers, and 1 to {LAYERS_MAX} are possible");
        return Err(ImageError::Refused { what: what.to_owned(), reason });
    }
    let layers = blobs.into_iter().zip(&config.diff_ids);
    Ok(layers.map(|(blob, id)| ImageLayer { blob, diff_id: Some(id.clone()) }).collect())
}

/// What `docker save` writes, old and new.
fn saved(archive: Archive, tag: Option<&str>, what: &str) -> ImageResult<Image> {
    let bytes = archive.document(&Blob::named("manifest.json"))?;
    let mut images: Vec<Saved> =
        serde_json::from_slice(&bytes).map_err(|err| ImageError::damaged(what, err))?;
    let names = |saved: &Saved| saved.repo_tags.clone().unwrap_or_default();
    if let Some(tag) = tag {
        keep_called(&mut images, tag, names);
    }
    if images.iter().map(|saved| &saved.config).collect::<HashSet<_>>().len() > 1 {
        return Err(several(what, images.iter().flat_map(names).collect()));
    }
    let Some(image) = images.first() else {
        let tag = tag.map(|tag| format!(" `{tag}`")).unwrap_or_default();
        return Err(ImageError::Missing { what: format!("image{tag} in {what}") });
    };
    let bytes = archive.document(&by_name(&archive, &image.config))?;
    let config = Configuration::parse(&bytes, what)?;
    let blobs = image.layers.iter().map(|name| by_name(&archive, name)).collect();
    let layers = pair(blobs, &config, what)?;
    let digest = Some(Digest::of(&bytes));
    Ok(Image { digest, config: config.run, layers, blobs: Box::new(archive) })
}

/// Newer ones name files after their content, and older ones the configuration.
fn by_name(archive: &Archive, name: &str) -> Blob {
    let last = name.rsplit('/').next().unwrap_or(name);
    let last = last.strip_suffix(".json").unwrap_or(last);
    let digest = format!("sha256:{last}").parse().ok();
    Blob { name: name.to_owned(), digest, len_bytes: archive.len_of(name) }
}
