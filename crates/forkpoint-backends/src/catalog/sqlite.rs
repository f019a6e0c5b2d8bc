//! A catalog in one SQLite file, for any number of processes of one machine.
//!
//! Beside the file `x` lies the directory `x.owners`. Every handle keeps a locked file there, and
//! the kernel drops the lock when the process dies: that is how the others know that an owner is
//! gone. See [`owner`] for what must not be done to that directory.
//!
//! Writes go through one thread of the handle, reads after the first few through another, so that no executor waits
//! for a disk and no read waits for a write. What is small, and has neither others nor the disk to wait for, is done by
//! whoever asks: in less time than it takes to wake a thread. Both threads have ended when the handle is dropped. A program that does
//! one thing and leaves needs neither: see [`SqliteCatalog::open_here`].

use std::{
    fmt,
    path::Path,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use forkpoint_core::{
    catalog::{
        CandidateQuery, Catalog, CatalogError, CatalogResult, Change, Chore, ChoreId, Claim,
        LineageScope, OpenOperation, Operation, Page, Reclaimed, SandboxQuery, SandboxRecord,
        SnapshotQuery, SnapshotRecord, Usage,
    },
    driver::PieceName,
    id::{OwnerId, SandboxId, SnapshotId},
    lineage::LineageNode,
    retention::Candidate,
};
use rusqlite::Transaction;

/// The text of a statement under `sqlite/sql`.
macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/catalog/sqlite/sql/", $name, ".sql"))
    };
}

mod change;
mod find;
mod list;
mod operation;
mod owner;
mod piece;
mod place;
mod reader;
mod retention;
mod row;
mod session;
mod value;
mod worker;

#[cfg(test)]
mod tests;

use owner::Owner;
use place::{Answer, Fault, Place};
pub use reader::SqliteReader;
use session::{Access, Session};
use worker::Worker;

/// A process that asks no more than this does not need a second connection, which takes longer to
/// open than all of them to answer.
const READS_BY_WRITER: u64 = 24;

/// So many claims of an operation, or sandboxes of a commit, are written before anybody notices.
const FEW: usize = 8;

pub struct SqliteCatalog {
    // In the order in which they must end: what was asked for is done before the owner is gone.
    writer: Worker,
    reader: OnceLock<Worker>,
    reads: AtomicU64,
    owner: Owner,
    place: Arc<Place>,
}

impl SqliteCatalog {
    /// Opens the catalog, or makes one where there is no file. It can be read by its user only: a
    /// sandbox's environment often holds secrets.
    pub fn open(path: impl AsRef<Path>) -> CatalogResult<Self> {
        Self::open_with(path.as_ref(), |session| Worker::start("catalog-write", session))
    }

    /// The same without threads: whoever asks waits for the disk, and so does everything else on an executor of one
    /// thread. For a program that does one thing and leaves.
    pub fn open_here(path: impl AsRef<Path>) -> CatalogResult<Self> {
        Self::open_with(path.as_ref(), |session| Ok(Worker::Here(Mutex::new(session))))
    }

    fn open_with(
        path: &Path,
        worker: impl FnOnce(Session) -> CatalogResult<Worker>,
    ) -> CatalogResult<Self> {
        let (place, session) = Session::create(path)?;
        let owner = Owner::create(&place.owners())
            .map_err(|err| place.explain("register", Fault::file(&place.owners(), err)))?;
        let writer = worker(session)?;
        Ok(Self { writer, reader: OnceLock::new(), reads: AtomicU64::new(0), owner, place })
    }

    fn reader(&self) -> CatalogResult<&Worker> {
        if let Some(reader) = self.reader.get() {
            return Ok(reader);
        }
        let reader = Worker::start("catalog-read", Session::for_reading(Arc::clone(&self.place)))?;
        Ok(self.reader.get_or_init(|| reader))
    }

    fn whoever_reads(&self) -> CatalogResult<&Worker> {
        let few = self.reads.load(Ordering::Relaxed) < READS_BY_WRITER;
        self.reads.fetch_add(1, Ordering::Relaxed);
        match few || matches!(self.writer, Worker::Here(_)) {
            true => Ok(&self.writer),
            false => self.reader(),
        }
    }

    async fn read<T: Send + 'static>(
        &self,
        operation: &'static str,
        job: impl FnOnce(&Transaction<'_>) -> Answer<T> + Send + 'static,
    ) -> CatalogResult<T> {
        self.whoever_reads()?.run(Access::Read, operation, job).await
    }

    /// For one record.
    async fn read_one<T: Send + 'static>(
        &self,
        operation: &'static str,
        job: impl FnOnce(&Transaction<'_>) -> Answer<T> + Send + 'static,
    ) -> CatalogResult<T> {
        self.whoever_reads()?.run_soon(Access::Read, operation, job).await
    }

    async fn write<T: Send + 'static>(
        &self,
        operation: &'static str,
        job: impl FnOnce(&Transaction<'_>) -> Answer<T> + Send + 'static,
    ) -> CatalogResult<T> {
        self.writer.run(Access::Write { durable: false }, operation, job).await
    }

    /// For a few records.
    async fn write_few<T: Send + 'static>(
        &self,
        operation: &'static str,
        job: impl FnOnce(&Transaction<'_>) -> Answer<T> + Send + 'static,
    ) -> CatalogResult<T> {
        self.writer.run_soon(Access::Write { durable: false }, operation, job).await
    }
}

/// What a deletion frees is not known before.
fn is_small(change: &Change) -> bool {
    match change {
        Change::SandboxesAdded { sandboxes, .. } => sandboxes.len() <= FEW,
        Change::SnapshotDeleted { .. } | Change::SandboxRemoved { .. } => false,
        _ => true,
    }
}

impl fmt::Debug for SqliteCatalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteCatalog")
            .field("place", &self.place)
            .field("owner", &self.owner.id())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Catalog for SqliteCatalog {
    fn owner(&self) -> OwnerId {
        self.owner.id()
    }

    async fn begin(&self, operation: &Operation) -> CatalogResult<Claim> {
        let (us, wanted) = (self.owner(), operation.clone());
        let (doing, begin) =
            ("begin an operation", move |tx: &Transaction<'_>| operation::begin(tx, us, &wanted));
        let begun = match operation.claims().len() <= FEW {
            true => self.write_few(doing, begin).await?,
            false => self.write(doing, begin).await?,
        };
        match begun {
            Ok(claim) => Ok(claim),
            Err(busy) => {
                let by = Box::new(self.owner.describe(busy.by));
                Err(CatalogError::Busy { resource: busy.resource, by })
            }
        }
    }

    async fn commit(&self, claim: &Claim, change: &Change) -> CatalogResult<Vec<Chore>> {
        let is_small = is_small(change);
        let (us, claim, change) = (self.owner(), *claim, change.clone());
        let durable = change.must_be_durable();
        let job = move |tx: &Transaction<'_>| change::commit(tx, us, &claim, &change);
        let (access, doing) = (Access::Write { durable }, "commit an operation");
        let committed = match is_small {
            true => self.writer.run_soon(access, doing, job).await?,
            false => self.writer.run(access, doing, job).await?,
        };
        if !durable && !committed.is_empty() {
            // What the chores name is about to be destroyed for good. A commit that a power cut
            // took back must not be left without it.
            let durable = Access::Write { durable: true };
            self.writer.run(durable, "sync a commit", change::touch).await?;
        }
        Ok(committed)
    }

    async fn abort(&self, claim: &Claim) -> CatalogResult<()> {
        let (us, claim) = (self.owner(), *claim);
        let aborted = move |tx: &Transaction<'_>| operation::close(tx, us, &claim).map(drop);
        self.write("abort an operation", aborted).await
    }

    async fn unfinished(&self) -> CatalogResult<Vec<OpenOperation>> {
        let rows = self.read("list open operations", operation::unfinished).await?;
        Ok(rows.into_iter().map(|row| self.owner.describe(row)).collect())
    }

    async fn reclaim(&self, claim: &Claim) -> CatalogResult<Reclaimed> {
        let (us, claim) = (self.owner(), *claim);
        self.write("take over an operation", move |tx| operation::reclaim(tx, us, &claim)).await
    }

    async fn chores(&self) -> CatalogResult<Vec<Chore>> {
        self.read("list chores", change::chores).await
    }

    async fn chore_done(&self, id: ChoreId) -> CatalogResult<()> {
        self.write("strike off a chore", move |tx| change::chore_done(tx, id)).await
    }

    async fn sandbox(&self, id: SandboxId) -> CatalogResult<SandboxRecord> {
        self.read_one("find a sandbox", move |tx| find::sandbox(tx, id)).await
    }

    async fn find_sandbox(&self, driver: &str, reference: &str) -> CatalogResult<SandboxRecord> {
        let (driver, reference) = (driver.to_owned(), reference.to_owned());
        let job = move |tx: &Transaction<'_>| find::find_sandbox(tx, &driver, &reference);
        self.read_one("find a sandbox", job).await
    }

    async fn find_former_sandbox(
        &self,
        driver: &str,
        reference: &str,
    ) -> CatalogResult<Option<SandboxId>> {
        let (driver, reference) = (driver.to_owned(), reference.to_owned());
        let job = move |tx: &Transaction<'_>| find::find_former_sandbox(tx, &driver, &reference);
        self.read("find a former sandbox", job).await
    }

    async fn sandboxes(&self, query: &SandboxQuery) -> CatalogResult<Page<SandboxRecord>> {
        let query = query.clone();
        self.read("list sandboxes", move |tx| list::sandboxes(tx, &query)).await
    }

    async fn snapshot(&self, id: SnapshotId) -> CatalogResult<SnapshotRecord> {
        self.read_one("find a snapshot", move |tx| find::snapshot(tx, id)).await
    }

    async fn find_snapshot(&self, reference: &str) -> CatalogResult<SnapshotRecord> {
        let reference = reference.to_owned();
        self.read_one("find a snapshot", move |tx| find::find_snapshot(tx, &reference)).await
    }

    async fn snapshots(&self, query: &SnapshotQuery) -> CatalogResult<Page<SnapshotRecord>> {
        let query = query.clone();
        self.read("list snapshots", move |tx| list::snapshots(tx, &query)).await
    }

    async fn agent_state(&self, id: SnapshotId) -> CatalogResult<Option<Bytes>> {
        self.read("read an agent's state", move |tx| find::agent_state(tx, id)).await
    }

    async fn lineage(&self, scope: &LineageScope) -> CatalogResult<Vec<LineageNode>> {
        let scope = *scope;
        self.read("read the lineage", move |tx| list::lineage(tx, &scope)).await
    }

    async fn usage(&self) -> CatalogResult<Usage> {
        self.read("sum up", list::usage).await
    }

    async fn candidates(&self, query: &CandidateQuery) -> CatalogResult<Vec<Candidate>> {
        let query = query.clone();
        self.read("list what may go", move |tx| retention::candidates(tx, &query)).await
    }

    async fn pieces(&self, driver: &str) -> CatalogResult<Vec<PieceName>> {
        let driver = driver.to_owned();
        self.read("list pieces", move |tx| piece::all(tx, &driver)).await
    }
}
