//! Finding layers, and what they lie on.

use std::{
    collections::HashSet,
    ffi::CStr,
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
};

use rustix::{
    fs::{AtFlags, statat},
    io::Errno,
};

use super::{
    Layer, LayerError, LayerName, LayerRecord, LayerResult, LayerStore,
    bundle::{MADE, PACKED},
    cursor::{names, open_directory},
    error::{At as _, During as _},
    seen::Print,
    stage::{TREE, to_c},
    store::Directories,
};

/// More layers than overlayfs can put on each other.
const CHAIN_MAX: usize = 500;

impl LayerStore {
    /// With all its files.
    pub fn layer(&self, name: &LayerName) -> LayerResult<Layer> {
        let layer = self.known(name)?;
        if layer.packed { self.unpack(name) } else { Ok(layer) }
    }

    /// For one who looks at no file of it: small ones may still be in bundles.
    pub fn known(&self, name: &LayerName) -> LayerResult<Layer> {
        let Directories { layers, seen, .. } = self.directories();
        let print = Print::in_layers(layers, name);
        if let Some(record) = print.and_then(|print| seen.get(name, print)) {
            return Ok(self.found(record, false));
        }
        let (directory, packed) = self.directory_of(name)?;
        let record = LayerRecord::read(&directory, name)?;
        if let Some(print) = print.filter(|_| !packed) {
            seen.add(print, &record);
        }
        Ok(self.found(record, packed))
    }

    pub(super) fn found(&self, record: LayerRecord, packed: bool) -> Layer {
        Layer::new(self.directories(), record, packed)
    }

    pub(super) fn path_of(&self, name: &LayerName) -> PathBuf {
        self.directories().layers_path().join(name.as_str())
    }

    /// Every layer that is complete, in the order of their names.
    pub fn list(&self) -> LayerResult<Vec<LayerName>> {
        let directories = self.directories();
        let path = || directories.layers_path();
        let mut found = Vec::new();
        for (name, _) in names(directories.layers().at(path)?.as_fd()).at(path)? {
            if let Some(name) = name.to_str().ok().and_then(|name| name.parse().ok())
                && self.directory_of(&name).is_ok()
            {
                found.push(name);
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// A layer and all that it lies on, the top first.
    pub fn chain(&self, top: &LayerName) -> LayerResult<Vec<Layer>> {
        let mut chain = self.known_chain(top)?;
        for packed in chain.iter_mut().filter(|layer| layer.packed) {
            *packed = self.unpack(packed.name())?;
        }
        Ok(chain)
    }

    /// The same for one who looks at no file of it.
    pub fn known_chain(&self, top: &LayerName) -> LayerResult<Vec<Layer>> {
        let damaged = |reason: String| LayerError::Damaged { name: top.to_string(), reason };
        let mut chain = vec![self.known(top)?];
        let mut seen = HashSet::from([top.clone()]);
        while let Some(next) = chain.last().and_then(|layer| layer.record().over.clone()) {
            if !seen.insert(next.clone()) {
                return Err(damaged(format!("it lies on `{next}` twice")));
            }
            if chain.len() == CHAIN_MAX {
                return Err(damaged(format!("it lies on more than {CHAIN_MAX} layers")));
            }
            chain.push(match self.known(&next) {
                Err(LayerError::Missing { name }) => {
                    return Err(damaged(format!("there is no layer `{name}` below it")));
                }
                result => result?,
            });
        }
        Ok(chain)
    }

    /// Also whether small files of it are still in bundles.
    pub(super) fn directory_of(&self, name: &LayerName) -> LayerResult<(OwnedFd, bool)> {
        let path = || self.path_of(name);
        let missing = || LayerError::Missing { name: name.to_string() };
        let directory = match open_directory(&self.directories().layers, &to_c(name)) {
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Err(missing()),
            result => result.during("open").at(path)?,
        };
        let form = form_of(&directory).during("inspect").at(path)?.ok_or_else(missing)?;
        Ok((directory, form != TREE))
    }
}

/// What a layer has of `tree/`, `packed/` and `made/`. `None` for what is none, or only promised.
pub(super) fn form_of(layer: &OwnedFd) -> rustix::io::Result<Option<&'static CStr>> {
    // The one becomes the other, and may do so between two looks.
    for form in [TREE, PACKED, MADE, TREE] {
        match statat(layer, form, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => return Ok(Some(form)),
            Err(Errno::NOENT) => {}
            Err(err) => return Err(err),
        }
    }
    Ok(None)
}
