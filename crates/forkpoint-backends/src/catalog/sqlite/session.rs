//! A connection: how it is opened, prepared, migrated and used for one transaction at a time.

use std::{
    fs::{self, File, Permissions},
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use forkpoint_core::catalog::CatalogResult;
use rusqlite::{
    Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior, config::DbConfig,
    hooks::Wal,
};

use super::{
    change, owner,
    place::{Answer, Fault, Place},
};

/// `fkpt`, in the header of every file of ours.
const APPLICATION_ID: i64 = 0x666b_7074;

/// One for each version of the schema. A released one never changes.
const MIGRATIONS: [&str; 4] = [
    include_str!("../migrations/sqlite/0001_initial.sql"),
    include_str!("../migrations/sqlite/0002_switch.sql"),
    include_str!("../migrations/sqlite/0003_expiry.sql"),
    include_str!("../migrations/sqlite/0004_import.sql"),
];

const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// More than there are different statements.
const CACHED_STATEMENTS: usize = 128;

/// The log is kept short: the first to open the file after everybody left reads all of it. Writing it back takes syncs,
/// which take the longer the more others have written to the disk. So from the first length on it is done when nobody
/// waits, and only from the second on at the expense of whoever commits.
const LOG_PAGES: usize = 100;
const LOG_PAGES_MAX: usize = 1000;

const PRAGMAS: &str = "
    PRAGMA foreign_keys = ON;
    PRAGMA synchronous = NORMAL;
    PRAGMA trusted_schema = OFF;
    PRAGMA cell_size_check = ON;
    PRAGMA temp_store = MEMORY;
";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write {
        /// Whether it must survive a power cut, and with it all that was written before. Otherwise
        /// it survives the end of every process of ours.
        durable: bool,
    },
}

pub(super) struct Session {
    place: Arc<Place>,
    connection: Option<Connection>,
    syncs: bool,
    /// Pages in the log after our last commit.
    log: Arc<AtomicUsize>,
}

/// What a file says it is.
enum Content {
    /// Nothing has been written to it yet.
    Nothing,
    Ours {
        version: usize,
    },
}

impl Session {
    /// For reading and writing, in a file that is a catalog of this version when it returns.
    pub(super) fn create(path: &Path) -> CatalogResult<(Arc<Place>, Self)> {
        let explain = |fault| Place::new(path).explain("open the file", fault);
        let (place, mut connection) = create(path).map_err(explain)?;
        let log = watch_log(&mut connection).map_err(explain)?;
        let place = Arc::new(place);
        let connection = Some(connection);
        let session = Self { place: Arc::clone(&place), connection, syncs: false, log };
        Ok((place, session))
    }

    /// Opens the file when it is first asked something.
    pub(super) fn for_reading(place: Arc<Place>) -> Self {
        Self { place, connection: None, syncs: false, log: Arc::default() }
    }

    pub(super) fn has_long_log(&self) -> bool {
        self.log.load(Ordering::Relaxed) >= LOG_PAGES
    }

    /// Writes the log back if it is long, and begins it anew. For when nobody waits.
    pub(super) fn shorten_log(&mut self) {
        if self.has_long_log() {
            // What cannot be done now is done another time: nothing depends on it.
            let _ = self.begin_log_anew();
        }
    }

    fn begin_log_anew(&mut self) -> Answer<()> {
        self.connection()?.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
        // The first commit in a new log syncs its beginning.
        self.attempt(Access::Write { durable: false }, change::touch)
    }

    pub(super) fn transact<T>(
        &mut self,
        access: Access,
        operation: &'static str,
        job: impl FnOnce(&Transaction<'_>) -> Answer<T>,
    ) -> CatalogResult<T> {
        self.attempt(access, job).map_err(|fault| self.place.explain(operation, fault))
    }

    /// The same, if it has to wait neither for others who write nor for the disk. Else the job is given back.
    pub(super) fn transact_at_once<T, J>(
        &mut self,
        access: Access,
        operation: &'static str,
        job: J,
    ) -> Result<CatalogResult<T>, J>
    where
        J: FnOnce(&Transaction<'_>) -> Answer<T>,
    {
        let syncs = access == Access::Write { durable: true };
        // To open the file may take long, and a commit that makes the log longer than it may be writes it back.
        if syncs
            || self.connection.is_none()
            || self.log.load(Ordering::Relaxed) >= LOG_PAGES_MAX / 2
        {
            return Err(job);
        }
        let place = Arc::clone(&self.place);
        let answer = match self.begin_at_once(access) {
            Ok(Some(transaction)) => finish(transaction, job),
            Ok(None) => return Err(job),
            Err(fault) => Err(fault),
        };
        Ok(answer.map_err(|fault| place.explain(operation, fault)))
    }

    /// `None` where somebody else writes.
    fn begin_at_once(&mut self, access: Access) -> Answer<Option<Transaction<'_>>> {
        if access != Access::Read {
            self.sync_at_commit(false)?;
        }
        let connection: &Connection = self.connection()?;
        connection.busy_timeout(Duration::ZERO)?;
        let begun = Transaction::new_unchecked(connection, behavior(access));
        connection.busy_timeout(BUSY_TIMEOUT)?;
        match begun {
            Err(err) if err.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Ok(None),
            begun => Ok(Some(begun?)),
        }
    }

    fn attempt<T>(
        &mut self,
        access: Access,
        job: impl FnOnce(&Transaction<'_>) -> Answer<T>,
    ) -> Answer<T> {
        if let Access::Write { durable } = access {
            self.sync_at_commit(durable)?;
        }
        finish(self.connection()?.transaction_with_behavior(behavior(access))?, job)
    }

    fn connection(&mut self) -> Answer<&mut Connection> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => open_for_reading(&self.place)?,
        };
        Ok(self.connection.insert(connection))
    }

    /// SQLite takes this setting between transactions only.
    fn sync_at_commit(&mut self, wanted: bool) -> Answer<()> {
        if wanted != self.syncs {
            let level = if wanted { "FULL" } else { "NORMAL" };
            self.connection()?.pragma_update(None, "synchronous", level)?;
            self.syncs = wanted;
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shorten_log();
    }
}

fn watch_log(connection: &mut Connection) -> Answer<Arc<AtomicUsize>> {
    let log = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&log);
    connection.wal_hook(Some(move |wal: &mut Wal, pages| {
        let pages = usize::try_from(pages).unwrap_or(0);
        seen.store(pages, Ordering::Relaxed);
        if pages >= LOG_PAGES_MAX {
            // What was committed is committed, whatever becomes of this.
            let _ = wal.checkpoint();
        }
        Ok(())
    }))?;
    Ok(log)
}

/// Opens and never touches a file that is not ours. Nothing here opens the file except SQLite:
/// closing any other descriptor of it would drop the locks of this process's other handles.
fn create(path: &Path) -> Answer<(Place, Connection)> {
    if path.is_dir() {
        return Err(Fault::Foreign);
    }
    let mut connection = connect(path, OpenFlags::SQLITE_OPEN_CREATE)?;
    let content = look(&connection)?;
    let place = Place::new(fs::canonicalize(path).map_err(|err| Fault::file(path, err))?);
    let owners = place.owners();
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&owners)
        .map_err(|err| Fault::file(&owners, err))?;
    if needs_preparing(&connection, &content)? {
        prepare(&mut connection, &place)?;
    }
    let named = super::operation::owners(&connection)?;
    owner::sweep(&owners, &named);
    Ok((place, connection))
}

fn open_for_reading(place: &Place) -> Answer<Connection> {
    let connection = connect(place.path(), OpenFlags::empty())?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

fn connect(path: &Path, more: OpenFlags) -> Answer<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | more;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // Else every command line writes the log back when it leaves, and syncs it three times.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // Else a statement whose plan could depend on a parameter is compiled anew each time one is bound, which takes longer
    // than to run it. None of ours does.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.set_prepared_statement_cache_capacity(CACHED_STATEMENTS);
    connection.execute_batch(PRAGMAS)?;
    Ok(connection)
}

fn look(connection: &Connection) -> Answer<Content> {
    let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let (application, version, tables): (i64, i64, i64) =
        connection.query_row(sql!("look"), [], row)?;
    match (application, tables) {
        (APPLICATION_ID, _) => Ok(Content::Ours { version: known(version)? }),
        (0, 0) if version == 0 => Ok(Content::Nothing),
        _ => Err(Fault::Foreign),
    }
}

fn known(version: i64) -> Answer<usize> {
    match usize::try_from(version) {
        Ok(version) if version > MIGRATIONS.len() => {
            Err(Fault::TooNew { found: version as u64, known: MIGRATIONS.len() as u64 })
        }
        Ok(version) => Ok(version),
        Err(_) => Err(Fault::Damaged(format!("its version is {version}"))),
    }
}

fn behavior(access: Access) -> TransactionBehavior {
    match access {
        Access::Read => TransactionBehavior::Deferred,
        Access::Write { .. } => TransactionBehavior::Immediate,
    }
}

fn finish<T>(
    transaction: Transaction<'_>,
    job: impl FnOnce(&Transaction<'_>) -> Answer<T>,
) -> Answer<T> {
    check_version(&transaction)?;
    let answer = job(&transaction)?;
    transaction.commit()?;
    Ok(answer)
}

/// A newer process may have migrated the file since we opened it.
fn check_version(transaction: &Transaction<'_>) -> Answer<()> {
    let version = transaction
        .prepare_cached("PRAGMA user_version")?
        .query_row([], |row| row.get::<_, i64>(0))?;
    known(version).map(drop)
}

fn needs_preparing(connection: &Connection, content: &Content) -> Answer<bool> {
    let journal: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
    let current = matches!(content, Content::Ours { version } if *version == MIGRATIONS.len());
    Ok(!current || journal != "wal")
}

/// Several processes may come at once to a new file. They take turns by a lock on the directory of
/// owners: switching to a write-ahead log is not something that SQLite waits its turn for.
fn prepare(connection: &mut Connection, place: &Place) -> Answer<()> {
    let owners = place.owners();
    let turn = File::open(&owners).map_err(|err| Fault::file(&owners, err))?;
    turn.lock().map_err(|err| Fault::file(&owners, err))?;
    if matches!(look(connection)?, Content::Nothing) {
        fs::set_permissions(place.path(), Permissions::from_mode(0o600))
            .map_err(|err| Fault::file(place.path(), err))?;
    }
    connection.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
    migrate(connection)?;
    // So that the file itself says what it is, also to whoever finds it without its log.
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
    Ok(())
}

fn migrate(connection: &mut Connection) -> Answer<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let done = match look(&transaction)? {
        Content::Nothing => 0,
        Content::Ours { version } => version,
    };
    for migration in &MIGRATIONS[done..] {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", MIGRATIONS.len() as i64)?;
    Ok(transaction.commit()?)
}
