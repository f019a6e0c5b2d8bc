//! A directory of somebody else's, kept as it is now in a layer.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
    path::{Path, PathBuf},
};

use rustix::io::Errno;

use super::{
    LayerError, LayerResult,
    capture::{Source, Way, bring_changes},
    cursor::{DirCursor, KEEP},
    error::{At as _, During as _, Fault},
    stage::Stage,
    store::open_path,
};

const MOUNTED: &str = "something else is mounted there, which a copy would have to leave out";

impl Stage {
    /// Copies what `source` holds to `at` in the layer, where it hides whatever lies below. `like` tells
    /// which directory one on the way there should look like.
    pub fn pin(
        &mut self,
        source: &Path,
        at: &Path,
        like: impl Fn(&Path) -> Option<PathBuf>,
    ) -> LayerResult<()> {
        let (root, links) = self.openings()?;
        drop(root);
        let mut way = PathBuf::new();
        for name in at {
            way.push(name);
            self.make_dir(&way, like(&way).as_deref()).at(|| self.tree_path().join(&way))?;
        }
        let path = self.tree_path().join(at);
        let to = open_path(&path)?;
        self.marks().set_opaque(&to).at(|| path.clone())?;
        let cursor = DirCursor::new(path.clone(), to, KEEP);
        let way = Way {
            marks: self.marks(),
            links,
            to: cursor,
            base: None,
            sealed: false,
            packing: None,
        };
        let brought = Source::open(source).and_then(|source| bring_changes(source, None, way));
        self.add(brought.map_err(explained)?.1.copied);
        // Attributes of overlayfs are not among those that were copied.
        self.marks().set_opaque(open_path(&path)?).at(|| path)
    }

    fn make_dir(&self, way: &Path, like: Option<&Path>) -> Result<(), Fault> {
        let path = self.tree_path().join(way);
        match fs::create_dir(&path) {
            Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => return Ok(()),
            result => result.during("create")?,
        }
        let look = || -> std::io::Result<()> {
            let Some(like) = like else {
                return fs::set_permissions(&path, fs::Permissions::from_mode(0o755));
            };
            let there = fs::symlink_metadata(like)?;
            if rustix::process::geteuid().is_root() {
                chown(&path, Some(there.uid()), Some(there.gid()))?;
            }
            fs::set_permissions(&path, there.permissions())
        };
        look().during("set the mode of")
    }
}

pub(super) fn explained(err: LayerError) -> LayerError {
    match err {
        LayerError::Io { path, source, .. }
            if source.raw_os_error() == Some(Errno::XDEV.raw_os_error()) =>
        {
            LayerError::Unsupported { path, reason: MOUNTED }
        }
        err => err,
    }
}
