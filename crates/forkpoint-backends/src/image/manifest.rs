//! What images say of themselves, in the forms of OCI and of Docker.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    digest::Digest,
    error::{ImageError, ImageResult},
};

const INDEXES: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];

const MANIFESTS: [&str; 2] = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

const LAYERS: [&str; 5] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
];

/// What a registry is asked for.
#[cfg(feature = "registry")]
pub(super) fn accepted() -> String {
    [MANIFESTS, INDEXES].concat().join(", ")
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    pub(super) media_type: String,
    pub(super) digest: Digest,
    pub(super) size: u64,
    #[serde(default)]
    pub(super) platform: Option<Platform>,
    #[serde(default)]
    pub(super) annotations: Option<BTreeMap<String, String>>,
}

impl Descriptor {
    pub(super) fn is_index(&self) -> bool {
        INDEXES.contains(&self.media_type.as_str())
    }

    /// Each once.
    pub(super) fn names(&self) -> Vec<String> {
        let names = ["org.opencontainers.image.ref.name", "io.containerd.image.name"];
        let annotations = self.annotations.iter();
        let names = annotations.flat_map(|all| names.into_iter().filter_map(|name| all.get(name)));
        let mut names: Vec<String> = names.cloned().collect();
        names.dedup();
        names
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Platform {
    pub(super) architecture: String,
    pub(super) os: String,
}

impl Platform {
    /// In the words of images.
    pub(super) fn of_machine() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "x86" => "386",
            "aarch64" => "arm64",
            "powerpc64" => "ppc64le",
            other => other,
        };
        Self { architecture: architecture.to_owned(), os: "linux".to_owned() }
    }

    pub(super) fn shown(&self) -> String {
        format!("{}/{}", self.os, self.architecture)
    }

    pub(super) fn check(&self) -> ImageResult<()> {
        let machine = Self::of_machine();
        match *self == machine {
            true => Ok(()),
            false => {
                Err(ImageError::OtherPlatform { found: self.shown(), machine: machine.shown() })
            }
        }
    }
}

/// An index or a manifest: registries and layouts hand out both under one name.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Document {
    #[serde(default)]
    media_type: Option<String>,
    #[serde(default)]
    pub(super) manifests: Option<Vec<Descriptor>>,
    #[serde(default)]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Option<Vec<Descriptor>>,
}

#[derive(Clone, Debug)]
pub(super) struct Manifest {
    pub(super) config: Descriptor,
    pub(super) layers: Vec<Descriptor>,
}

impl Document {
    pub(super) fn parse(bytes: &[u8], what: &str) -> ImageResult<Self> {
        let document: Self =
            serde_json::from_slice(bytes).map_err(|err| ImageError::damaged(what, err))?;
        match document.media_type.as_deref() {
            Some(kind) if !INDEXES.contains(&kind) && !MANIFESTS.contains(&kind) => {
                let reason = format!("manifests of the form `{kind}` are not read");
                Err(ImageError::Refused { what: what.to_owned(), reason })
            }
            _ => Ok(document),
        }
    }

    pub(super) fn into_manifest(self, what: &str) -> ImageResult<Manifest> {
        let (Some(config), Some(layers)) = (self.config, self.layers) else {
            return Err(ImageError::damaged(what, "it has no configuration or no layers"));
        };
        for layer in &layers {
            if !LAYERS.contains(&layer.media_type.as_str()) {
                let reason = match layer.media_type.contains("foreign")
                    || layer.media_type.contains("nondistributable")
                {
                    true => "layers that are kept elsewhere are not fetched".to_owned(),
                    false => format!("layers of the form `{}` are not read", layer.media_type),
                };
                return Err(ImageError::Refused { what: what.to_owned(), reason });
            }
        }
        Ok(Manifest { config, layers })
    }
}

/// The one for this machine, and else why there is none.
pub(super) fn choose<'a>(among: &'a [Descriptor], what: &str) -> ImageResult<&'a Descriptor> {
    let machine = Platform::of_machine();
    let fits = |each: &&Descriptor| each.platform.as_ref() == Some(&machine);
    let open = |each: &&Descriptor| each.platform.is_none();
    if let Some(found) = among.iter().find(fits).or_else(|| among.iter().find(open)) {
        return Ok(found);
    }
    let others = among.iter().filter_map(|each| each.platform.as_ref());
    let others = others.filter(|other| other.os != "unknown").map(Platform::shown);
    let others: Vec<String> = others.collect();
    match others.is_empty() {
        true => Err(ImageError::Missing { what: format!("image in {what}") }),
        false => {
            Err(ImageError::OtherPlatform { found: others.join(", "), machine: machine.shown() })
        }
    }
}

/// What an image says about how it wants to be run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub entrypoint: Vec<String>,
    #[serde(default)]
    pub cmd: Vec<String>,
    #[serde(default)]
    pub user: Option<String>,
    #[serde(default)]
    pub workdir: Option<String>,
    /// Such as `80/tcp`.
    #[serde(default)]
    pub ports: Vec<String>,
}

/// The file that tells of an image.
#[derive(Clone, Debug)]
pub(super) struct Configuration {
    pub(super) diff_ids: Vec<Digest>,
    pub(super) run: ImageConfig,
}

#[derive(Deserialize)]
struct Written {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    #[serde(default)]
    config: Option<WrittenRun>,
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    diff_ids: Vec<Digest>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct WrittenRun {
    env: Option<Vec<String>>,
    entrypoint: Option<Words>,
    cmd: Option<Words>,
    user: Option<String>,
    working_dir: Option<String>,
    exposed_ports: Option<BTreeMap<String, serde_json::Value>>,
}

impl WrittenRun {
    /// No process can be given a NUL byte.
    fn check(&self, what: &str) -> ImageResult<()> {
        let words = |words: &Option<Words>| words.as_ref().is_some_and(Words::has_nul);
        let part = match self {
            _ if self.env.iter().flatten().any(|word| word.contains('\0')) => "environment",
            _ if words(&self.entrypoint) || words(&self.cmd) => "command",
            _ if self.user.iter().any(|user| user.contains('\0')) => "user",
            _ if self.working_dir.iter().any(|path| path.contains('\0')) => "work directory",
            _ => return Ok(()),
        };
        let reason = format!("there is a NUL byte in its {part}");
        Err(ImageError::Refused { what: what.to_owned(), reason })
    }
}

/// As Docker takes it: from the root, and `..` takes back the name before it.
fn from_root(path: &str) -> String {
    let mut names = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    format!("/{}", names.join("/"))
}

/// Very old images have one line for a shell.
#[derive(Deserialize)]
#[serde(untagged)]
enum Words {
    Many(Vec<String>),
    Line(String),
}

impl Words {
    fn has_nul(&self) -> bool {
        match self {
            Self::Many(words) => words.iter().any(|word| word.contains('\0')),
            Self::Line(line) => line.contains('\0'),
        }
    }

    fn split(self) -> Vec<String> {
        match self {
            Self::Many(words) => words,
            Self::Line(line) => vec!["/bin/sh".to_owned(), "-c".to_owned(), line],
        }
    }
}

impl Configuration {
    pub(super) fn parse(bytes: &[u8], what: &str) -> ImageResult<Self> {
        let written: Written = serde_json::from_slice(bytes)
            .map_err(|err| ImageError::damaged(format!("the configuration of {what}"), err))?;
        let Written { architecture, os, config, rootfs } = written;
        Platform { architecture, os }.check()?;
        let run = config.unwrap_or_default();
        run.check(what)?;
        let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
        let env = run.env.unwrap_or_default().into_iter();
        let run = ImageConfig {
            env: env
                .filter_map(|word| {
                    let (key, value) = word.split_once('=')?;
                    Some((key.to_owned(), value.to_owned()))
                })
                .filter(|(key, _)| !key.is_empty())
                .collect(),
            entrypoint: run.entrypoint.map(Words::split).unwrap_or_default(),
            cmd: run.cmd.map(Words::split).unwrap_or_default(),
            user: filled(run.user),
            workdir: filled(run.working_dir).map(|path| from_root(&path)),
            ports: run.exposed_ports.unwrap_or_default().into_keys().collect(),
        };
        Ok(Self { diff_ids: rootfs.diff_ids, run })
    }
}

/// The list in an archive of `docker save`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Saved {
    pub(super) config: String,
    #[serde(default)]
    pub(super) repo_tags: Option<Vec<String>>,
    pub(super) layers: Vec<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(run: serde_json::Value) -> ImageResult<ImageConfig> {
        let Platform { architecture, os } = Platform::of_machine();
        let written = json!({
            "architecture": architecture, "os": os, "config": run, "rootfs": {"diff_ids": []},
        });
        let parsed = Configuration::parse(written.to_string().as_bytes(), "the test")?;
        Ok(parsed.run)
    }

    #[test]
    fn a_work_directory_is_taken_from_the_root() {
        for (written, expected) in [
            ("a/../b", "/b"),
            ("srv", "/srv"),
            ("/srv//app/./", "/srv/app"),
            ("../..", "/"),
            ("/", "/"),
        ] {
            let config = run(json!({"WorkingDir": written})).unwrap();
            assert_eq!(config.workdir.as_deref(), Some(expected), "{written}");
        }
        assert_eq!(run(json!({"WorkingDir": ""})).unwrap().workdir, None);
    }

    #[test]
    fn what_no_process_can_be_given_is_refused() {
        for (bad, part) in [
            (json!({"Env": ["A=1", "B=\0"]}), "environment"),
            (json!({"Cmd": ["a\0b"]}), "command"),
            (json!({"Entrypoint": "a\0b"}), "command"),
            (json!({"User": "\0"}), "user"),
            (json!({"WorkingDir": "/a\0"}), "work directory"),
        ] {
            let told = run(bad).unwrap_err().to_string();
            assert!(told.contains(&format!("a NUL byte in its {part}")), "{told}");
        }
    }
}
