//! What is measured, with the targets that it is measured against.

use tokio::runtime::Runtime;

use crate::{
    apart::Ground,
    figures::{Row, Samples},
    options::Options,
    peers::Peers,
    product::{Product, Settings},
};

mod command_line;
mod containers;
mod daily;
mod full;
mod lives;
mod memory;
mod snapshots;
mod templates;

/// Everything that a case needs.
#[derive(Debug)]
pub struct Bench<'a> {
    pub options: &'a Options,
    pub ground: &'a Ground,
    pub runtime: &'a Runtime,
    pub peers: &'a Peers,
}

pub type Case = (&'static str, fn(&Bench<'_>) -> Vec<Row>);

pub const ALL: [Case; 25] = [
    ("exec", lives::exec),
    ("create", lives::create),
    ("quiet", lives::create_after_quiet),
    ("fork", lives::fork),
    ("rollback", lives::rollback),
    ("destroy", lives::destroy),
    ("memory", memory::idle),
    ("idle", snapshots::idle),
    ("chain", snapshots::chain),
    ("busy", snapshots::busy),
    ("commit", snapshots::against_commit),
    ("cli", command_line::added),
    ("version", daily::version),
    ("log", daily::log),
    ("workspace", daily::workspace),
    ("image", templates::unpack),
    ("full-small", full::small),
    ("full-python", full::python),
    ("full-clean", full::clean),
    ("full-many", full::many),
    ("full-node", full::node),
    ("full-written", full::written),
    ("docker-commit", containers::beside_commit),
    ("docker-volume", containers::volume),
    ("docker-space", containers::space),
];

impl Bench<'_> {
    fn product(&self) -> Product<'_> {
        self.product_with(self.settings())
    }

    fn product_with(&self, settings: Settings) -> Product<'_> {
        Product::open(self.runtime, self.ground.directory(), settings)
    }

    fn settings(&self) -> Settings {
        Settings { warm: self.options.warm, share_memory: false, live_rotation: true }
    }

    /// With so many sandboxes kept ready.
    fn warm_product(&self, warm: usize) -> Product<'_> {
        self.product_with(Settings { warm, ..self.settings() })
    }

    /// Whose copies share memory.
    fn sharing_product(&self) -> Product<'_> {
        self.product_with(Settings { share_memory: true, ..self.settings() })
    }

    /// Who copies what a busy sandbox has written.
    fn copying_product(&self) -> Product<'_> {
        self.product_with(Settings { live_rotation: false, ..self.settings() })
    }

    /// How often, in full and in short.
    fn rounds(&self, full: usize, quick: usize) -> usize {
        if self.options.quick { quick } else { full }
    }
}

/// What a peer needs for the same, where it is there.
struct Rival<'a> {
    what: &'static str,
    samples: Samples,
    missing: Option<&'a str>,
}

impl<'a> Rival<'a> {
    fn new<T>(what: &'static str, peer: &'a Result<T, String>) -> Self {
        Self { what, samples: Samples::default(), missing: peer.as_ref().err().map(String::as_str) }
    }

    fn stand_beside(self, row: Row) -> Row {
        match self.missing {
            Some(why) => row.beside_missing(self.what, why),
            None => row.beside(self.what, self.samples),
        }
    }
}
