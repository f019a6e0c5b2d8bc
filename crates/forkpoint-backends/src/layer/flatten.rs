//! Many layers into one that shows the same.
//!
//! Files are hard links to those of the layers, so the content of a file costs nothing. It follows
//! that nothing may ever be changed in a layer: its files are in other layers too.

use std::{
    ffi::{CStr, CString},
    path::PathBuf,
};

use rustix::{
    fs::{AtFlags, Mode, fstat, linkat, mkdirat, statat},
    io::Errno,
};

use super::{
    Layer, LayerError, LayerResult, Marks,
    attributes::{Place, set_times},
    copy::Copier,
    cursor::DirCursor,
    error::{At as _, During as _, Fault},
    marks::put_whiteout,
    merged::{Found, Kind, look},
    site::Site,
    stage::Stage,
    store::open_path,
};

/// Descriptors of ancestors that all layers together keep open.
const KEEP_ALL: usize = 256;

/// Whether something lies below the layers that are flattened: more layers, or a template. If so,
/// what they hide must stay hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    Nothing,
    Something,
}

impl Stage {
    /// Merges `layers`, the top first, into this one. After a failure the stage is of no use, and
    /// should be dropped.
    pub fn flatten(&mut self, layers: &[Layer], below: Below) -> LayerResult<()> {
        for layer in layers {
            expect(layer, self.marks())?;
        }
        let trees: Vec<PathBuf> = layers.iter().map(Layer::tree_path).collect();
        self.flatten_trees(&trees, below)
    }

    /// The same for directories in the form of overlayfs that are no layers of a store, but whose marks
    /// are those of this one. Nothing may write to them.
    pub fn flatten_trees(&mut self, trees: &[PathBuf], below: Below) -> LayerResult<()> {
        let keep = KEEP_ALL / trees.len().max(1);
        let open = |tree: &PathBuf| Ok(DirCursor::new(tree.clone(), open_path(tree)?, keep));
        let cursors = trees.iter().map(open).collect::<LayerResult<Vec<_>>>()?;
        let (to, links) = self.openings()?;
        let site = Site::new(self.marks(), links, None).at(|| self.path())?;
        let mut merger = Merger { layers: cursors, to, copier: Copier::new(&site), below };
        merger.merge()?;
        let done = merger.copier.done;
        self.add(done.copied);
        Ok(())
    }
}

pub(super) fn expect(layer: &Layer, marks: Marks) -> LayerResult<()> {
    let record = layer.record();
    if record.marks == marks {
        return Ok(());
    }
    Err(LayerError::MixedMarks {
        name: record.name.to_string(),
        found: record.marks.as_str(),
        expected: marks.as_str(),
    })
}

struct Merger<'a> {
    layers: Vec<DirCursor>,
    to: DirCursor,
    copier: Copier<'a>,
    below: Below,
}

/// A directory that is being merged.
struct Merging {
    /// The layers that it is in, the top first.
    parts: Vec<usize>,
    /// Whether it hides what lies below all layers: itself, or because its parent does.
    opaque: bool,
    hidden: bool,
    whiteouts: bool,
    /// Directories in it that are still to be merged.
    pending: Vec<(CString, Found)>,
}

impl Merger<'_> {
    fn merge(&mut self) -> LayerResult<()> {
        let root =
            Found { kind: Kind::Directory, parts: (0..self.layers.len()).collect(), ended: false };
        let mut way = vec![self.fill(root.parts, false, self.below == Below::Nothing)?];
        while let Some(directory) = way.last_mut() {
            if let Some((name, found)) = directory.pending.pop() {
                let hidden = directory.hidden;
                let (parts, covered) = self.enter(&name, found)?;
                way.push(self.fill(parts, covered && !hidden, covered || hidden)?);
            } else if let Some(done) = way.pop() {
                self.finish(&done).at(|| self.to.path())?;
                self.leave(&done).at(|| self.to.path())?;
            }
        }
        Ok(())
    }

    /// Goes into a directory in each layer down to the first in which it is opaque.
    fn enter(&mut self, name: &CStr, found: Found) -> LayerResult<(Vec<usize>, bool)> {
        let mut parts = Vec::new();
        let mut opaque = false;
        for part in found.parts {
            let cursor = &mut self.layers[part];
            cursor.enter(name).at(|| cursor.path_of(name))?;
            opaque = self.copier.attributes.marks.is_opaque(cursor.fd()).at(|| cursor.path())?;
            parts.push(part);
            if opaque {
                break;
            }
        }
        mkdirat(self.to.fd(), name, Mode::RWXU).during("create").at(|| self.to.path_of(name))?;
        self.to.enter(name).at(|| self.to.path_of(name))?;
        Ok((parts, opaque || found.ended))
    }

    fn leave(&mut self, directory: &Merging) -> Result<(), Fault> {
        for part in &directory.parts {
            self.layers[*part].leave()?;
        }
        self.to.leave().map(drop)
    }

    /// Everything in a directory but the directories in it.
    fn fill(&mut self, parts: Vec<usize>, opaque: bool, hidden: bool) -> LayerResult<Merging> {
        let mut merging = Merging { opaque, hidden, whiteouts: false, pending: Vec::new(), parts };
        for (name, found) in look(&self.layers, merging.parts.iter().copied())? {
            match found.kind {
                Kind::Directory => merging.pending.push((name, found)),
                Kind::Whiteout if hidden => {}
                Kind::Whiteout => {
                    put_whiteout(self.to.fd(), &name).at(|| self.to.path_of(&name))?;
                    merging.whiteouts = true;
                }
                Kind::Other => {
                    let part = found.parts.first().copied().unwrap_or_default();
                    self.link(part, &name).at(|| self.layers[part].path_of(&name))?;
                }
            }
        }
        Ok(merging)
    }

    fn link(&mut self, part: usize, name: &CStr) -> Result<(), Fault> {
        let from = self.layers[part].fd();
        match linkat(from, name, self.to.fd(), name, AtFlags::empty()) {
            Ok(()) => {
                let stat = statat(from, name, AtFlags::SYMLINK_NOFOLLOW).during("inspect")?;
                self.copier.count(&stat);
                Ok(())
            }
            // Another file system, too many links, or a file of somebody else's.
            Err(Errno::XDEV | Errno::MLINK | Errno::PERM) => {
                self.copier.copy(from, self.to.fd(), name, |_| true).map(drop)
            }
            Err(err) => Err(err).during("link"),
        }
    }

    fn finish(&mut self, directory: &Merging) -> Result<(), Fault> {
        let Some(top) = directory.parts.first() else { return Ok(()) };
        let from = self.layers[*top].fd();
        let stat = fstat(from).during("inspect")?;
        let to = Place::Open(self.to.fd());
        self.copier.attributes.copy(Place::Open(from), &stat, to, false)?;
        let marks = self.copier.attributes.marks;
        if directory.opaque {
            marks.set_opaque(self.to.fd())?;
        }
        if directory.whiteouts {
            marks.set_whiteouts(self.to.fd())?;
        }
        set_times(to, &stat)
    }
}
