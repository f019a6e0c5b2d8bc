//! A volume goes back to what it was, in place.
//!
//! The directory of a volume stays the one that it is, for others may have it mounted; what is in it
//! changes places with what was made beside it. That is done in a directory in the volume itself, the
//! one place that is on the same file system for sure (`swap.rs`). Where an exchange stands can be
//! told after a kill at any moment, and from there both ends can be reached.
//!
//! An exchange is written down before it begins, in `exchanges/<digest of the volume's identity>/`, with
//! what the volume's directory looks like before and after. What looks like an exchange and is
//! not written down is somebody's content.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    VolumeStore,
    notes::{self, Note, digest},
    swap::Swap,
};
use crate::layer::{
    Layer, LayerError, LayerName, LayerResult, describe_tree, dress, replace, unique_name,
};

const RECORD: &str = "exchange.json";
/// What the volume looked like when it became what it was to become.
const NOTE: &str = "note";

/// An exchange that is neither finished nor undone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// Who the volume is.
    pub volume: String,
    /// Where it is.
    pub path: PathBuf,
    /// What it is to become.
    pub layer: LayerName,
    /// Device and inode of the volume's directory: another one at its place is not the volume.
    root: (u64, u64),
    /// The directory in the volume.
    directory: String,
    /// Which of the two the volume is, once nothing is left to do but to clear up.
    #[serde(default)]
    end: Option<End>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum End {
    Old,
    New,
}

impl End {
    const fn look(self) -> &'static str {
        match self {
            Self::Old => "old-look",
            Self::New => "new-look",
        }
    }
}

impl Exchange {
    fn is_there(&self) -> bool {
        identity(&self.path).is_ok_and(|found| found == self.root)
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let meta = fs::metadata(path)?;
    Ok((meta.dev(), meta.ino()))
}

impl VolumeStore {
    /// Makes a volume what a layer is, and keeps what it was beside it until [`VolumeStore::finish`] or
    /// [`VolumeStore::undo`]. Nothing may use the volume meanwhile. After a failure it is as it was, or
    /// the exchange is there to be undone.
    pub fn exchange(&self, layer: &LayerName, volume: &str, path: &Path) -> LayerResult<()> {
        self.expect_settled(volume)?;
        let exchange = Exchange {
            volume: volume.to_owned(),
            path: path.to_owned(),
            layer: layer.clone(),
            root: identity(path).map_err(notes::io("inspect", path))?,
            directory: unique_name(".forkpoint"),
            end: None,
        };
        let layer = self.layer(layer)?;
        self.keep_looks(&exchange, &layer)?;
        self.write_exchange(&exchange)?;
        match self.carry_out(&exchange, &layer) {
            Err(err) => self.undo(volume).and(Err(err)),
            done => done,
        }
    }

    fn carry_out(&self, exchange: &Exchange, layer: &Layer) -> LayerResult<()> {
        let swap = Swap::make(&exchange.path, &exchange.directory)?;
        layer.fill(&swap.part_path())?;
        swap.filled()?;
        self.go_through(exchange, &swap)
    }

    /// What the volume looks like is noted now, while nobody uses it: when the exchange is finished,
    /// somebody may.
    fn go_through(&self, exchange: &Exchange, swap: &Swap) -> LayerResult<()> {
        swap.forward(|| dress(&self.look(exchange, End::New), &exchange.path))?;
        let note = Note::new(&exchange.path, describe_tree(&exchange.path)?)?;
        note.write(&self.exchange_path(&exchange.volume).join(NOTE))
    }

    /// Whatever somebody else began must have come to an end.
    pub(super) fn expect_settled(&self, volume: &str) -> LayerResult<()> {
        match self.exchange_of(volume)? {
            Some(open) => Err(LayerError::Unsettled { path: open.path }),
            None => Ok(()),
        }
    }

    /// Every exchange that somebody began and that has not come to an end.
    pub fn exchanges(&self) -> LayerResult<Vec<Exchange>> {
        let directory = self.exchanges_path();
        let entries = match fs::read_dir(&directory) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(notes::io("list", &directory))?,
        };
        let read = |entry: fs::DirEntry| read(&entry.path().join(RECORD)).transpose();
        entries.flatten().filter_map(read).collect()
    }

    pub fn exchange_of(&self, volume: &str) -> LayerResult<Option<Exchange>> {
        read(&self.exchange_path(volume).join(RECORD))
    }

    /// Goes through with an exchange wherever it stands, and throws away what the volume was. Answers
    /// whether the volume is what it was to become: one that was never filled is undone. Nothing to
    /// finish is a success.
    pub fn finish(&self, volume: &str) -> LayerResult<bool> {
        let Some(exchange) = self.exchange_of(volume)? else { return Ok(true) };
        if exchange.end.is_none() {
            match self.swap_of(&exchange)? {
                Some(swap) if swap.is_done()? => {}
                Some(swap) if swap.is_filled()? => self.go_through(&exchange, &swap)?,
                // Not filled, or not even begun.
                _ => return self.undo(volume).map(|()| false),
            }
        }
        let end = self.end(exchange, End::New)?;
        Ok(end == End::New)
    }

    /// Makes the volume what it was, wherever the exchange stands. Nothing to undo is a success; what
    /// was finished already stays so.
    pub fn undo(&self, volume: &str) -> LayerResult<()> {
        let Some(exchange) = self.exchange_of(volume)? else { return Ok(()) };
        if let (Some(swap), None) = (self.swap_of(&exchange)?, exchange.end) {
            swap.back()?;
        }
        self.end(exchange, End::Old).map(drop)
    }

    /// From here on there is one way.
    fn end(&self, mut exchange: Exchange, end: End) -> LayerResult<End> {
        let end = *exchange.end.get_or_insert(end);
        self.write_exchange(&exchange)?;
        if let Some(swap) = self.swap_of(&exchange)? {
            swap.remove(&self.layers)?;
        }
        match end {
            End::Old if exchange.is_there() => {
                dress(&self.look(&exchange, end), &exchange.path)?;
            }
            End::Old => {}
            // It looks as it should since it is done. Whoever uses it since may have changed that.
            End::New => {
                let note = self.exchange_path(&exchange.volume).join(NOTE);
                self.notes.take(&exchange.volume, &exchange.layer, &note)?;
            }
        }
        self.forget_exchange(&exchange.volume)?;
        Ok(end)
    }

    /// `None` when the volume is gone, or nothing was made in it, or everything was taken away.
    fn swap_of(&self, exchange: &Exchange) -> LayerResult<Option<Swap>> {
        match exchange.is_there() {
            true => Swap::find(&exchange.path, &exchange.directory),
            false => Ok(None),
        }
    }

    fn exchanges_path(&self) -> PathBuf {
        self.directory.join("exchanges")
    }

    fn exchange_path(&self, volume: &str) -> PathBuf {
        self.exchanges_path().join(digest(volume))
    }

    fn look(&self, exchange: &Exchange, end: End) -> PathBuf {
        self.exchange_path(&exchange.volume).join(end.look())
    }

    fn keep_looks(&self, exchange: &Exchange, layer: &Layer) -> LayerResult<()> {
        // What was never written down.
        self.forget_exchange(&exchange.volume)?;
        for (end, like) in [(End::Old, exchange.path.clone()), (End::New, layer.tree_path())] {
            let look = self.look(exchange, end);
            fs::create_dir_all(&look).map_err(notes::io("create", &look))?;
            dress(&like, &look)?;
        }
        Ok(())
    }

    fn write_exchange(&self, exchange: &Exchange) -> LayerResult<()> {
        let path = self.exchange_path(&exchange.volume).join(RECORD);
        let bytes = serde_json::to_vec(exchange).map_err(io::Error::from);
        let written = bytes.and_then(|bytes| replace(&path, &path.with_extension("new"), &bytes));
        written.map_err(notes::io("write", &path))
    }

    /// The record goes first: without it the rest is nothing.
    fn forget_exchange(&self, volume: &str) -> LayerResult<()> {
        let path = self.exchange_path(volume);
        notes::remove(&path.join(RECORD))?;
        notes::remove(&path.join(RECORD).with_extension("new"))?;
        notes::remove(&path.join(NOTE))?;
        for end in [End::Old, End::New] {
            let _ = fs::remove_dir(path.join(end.look()));
        }
        let _ = fs::remove_dir(path);
        Ok(())
    }
}

fn read(path: &Path) -> LayerResult<Option<Exchange>> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|err| notes::io("read", path)(err.into())),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(notes::io("read", path)(err)),
    }
}
