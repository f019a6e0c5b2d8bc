//! What the planner makes of the statements that must not look at every snapshot, what is synced, and who does it.

use std::sync::mpsc;

use forkpoint_core::{
    Timestamp,
    catalog::{
        CandidateQuery, CandidateScope, Catalog as _, Change, Cursor, Operation, SandboxQuery,
        SnapshotQuery,
    },
    driver::SnapshotKind,
    id::SandboxId,
    label::Labels,
    retention::{KeepGroup, KeepLast, RetentionPolicy},
    trigger::Trigger,
};
use forkpoint_testkit::conformance::catalog::scene::*;
use futures::{FutureExt as _, executor::block_on};
use rusqlite::{StatementStatus, Transaction, params_from_iter, types::Value};

use super::{
    SqliteCatalog,
    list::{self, Composed},
    place::Answer,
    retention,
    session::{Access, Session},
};

/// A hundred thousand snapshots of a thousand sandboxes, a tenth with a label.
const MANY: &str = "
    WITH RECURSIVE number (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM number LIMIT 100000)
    INSERT INTO snapshot
    SELECT
        n, printf('snp%026d', n), printf('name-%d', n), printf('sbx%026d', n % 1000), NULL,
        CASE WHEN n > 1000 THEN printf('snp%026d', n - 1000) END, 'local', 'files',
        CASE WHEN n % 7 = 0 THEN 'periodic' ELSE 'manual' END, NULL, NULL,
        printf('run-%d', n % 500), n, iif(n % 10 = 0, printf('{\"task\":\"t%d\"}', n % 50), '{}'), NULL,
        '{\"template\":\"host\",\"workdir\":null,\"user\":null}', n, n, n,
        strftime('%Y-%m-%dT%H:%M:%S.000000000Z', 1700000000 + n, 'unixepoch'),
        iif(n % 20 = 0, strftime('%Y-%m-%dT%H:%M:%S.000000000Z', 1700000000 + 2 * n, 'unixepoch'), NULL),
        n % 30 = 0, NULL, 0, 0,
        printf('{\"snapshot\":\"snp%026d\",\"kind\":\"files\",\"version\":1,\"data\":null,\"pieces\":[],\"own_bytes\":1,\"total_bytes\":1,\"file_count\":1,\"durable\":false}', n)
    FROM number";

struct Large {
    session: Session,
    _directory: tempfile::TempDir,
}

impl Large {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (_, session) = Session::create(&directory.path().join("catalog.db")).unwrap();
        let mut large = Self { session, _directory: directory };
        large.write(|tx| Ok(tx.execute_batch(MANY)?));
        large
    }

    fn write<T>(&mut self, job: impl FnOnce(&Transaction<'_>) -> Answer<T>) -> T {
        self.session.transact(Access::Write { durable: false }, "test", job).unwrap()
    }

    /// The steps that touch the snapshots' table or one of its indices.
    fn plan(&mut self, sql: &str, values: &[Value]) -> Vec<String> {
        self.write(|tx| {
            let mut statement = tx.prepare(&format!("EXPLAIN QUERY PLAN {sql}"))?;
            let steps = statement.query_map(params_from_iter(values), |row| row.get("detail"))?;
            Ok(steps.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// No step goes through a whole table of ours, and no list is sorted after it was read.
    fn assert_indexed(&mut self, what: &str, sql: &str, values: &[Value]) {
        let plan = self.plan(sql, values);
        // What was computed on the way is at most a page long.
        let own = ["page", "chosen", "full_", "(", "chain", "tree", "CONSTANT ROW"];
        let scans = |step: &&String| {
            step.strip_prefix("SCAN ").is_some_and(|of| !own.iter().any(|own| of.starts_with(own)))
        };
        assert!(!plan.iter().any(|step| scans(&step)), "{what} scans: {plan:#?}");
        assert!(plan.iter().any(|step| step.starts_with("SEARCH")), "{what}: {plan:#?}");
    }

    fn assert_list(&mut self, what: &str, Composed { sql, values }: &Composed) {
        self.assert_indexed(what, sql, values);
        let plan = self.plan(sql, values);
        assert!(!plan.iter().any(|step| step.contains("TEMP B-TREE")), "{what} sorts: {plan:#?}");
    }
}

fn labels() -> Labels {
    Labels::new([("task", "t10")]).unwrap()
}

#[test]
fn lists_are_read_from_an_index() {
    let mut large = Large::new();
    let page = || SnapshotQuery { limit: Some(50), ..SnapshotQuery::default() };
    let sandbox = Some("sbx00000000000000000000000007".parse::<SandboxId>().unwrap());
    for (what, query) in [
        ("all", page()),
        ("a later page", SnapshotQuery { after: Some(Cursor(50_000)), ..page() }),
        ("by sandbox", SnapshotQuery { sandbox, ..page() }),
        ("by sandbox, later", SnapshotQuery { sandbox, after: Some(Cursor(50_000)), ..page() }),
        ("by driver", SnapshotQuery { driver: Some("local".to_owned()), ..page() }),
        ("by trigger", SnapshotQuery { trigger: Some(Trigger::Periodic), ..page() }),
        ("by kind", SnapshotQuery { kind: Some(SnapshotKind::Full), ..page() }),
        ("by run", SnapshotQuery { run_id: Some("run-7".to_owned()), ..page() }),
        ("by label", SnapshotQuery { labels: labels(), ..page() }),
        ("by two", SnapshotQuery { sandbox, labels: labels(), after: Some(Cursor(9)), ..page() }),
        ("by three", SnapshotQuery { sandbox, trigger: Some(Trigger::Manual), ..page() }),
    ] {
        large.assert_list(what, &list::snapshots_sql(&query));
        large.write(|tx| list::snapshots(tx, &query));
    }
    large.assert_list("sandboxes", &list::sandboxes_sql(&SandboxQuery::default()));
    // Asked at every start, and mostly about nothing.
    let expired = Some("2026-08-15T09:50:55Z".parse().unwrap());
    let due = list::sandboxes_sql(&SandboxQuery { expired, ..SandboxQuery::default() });
    large.assert_indexed("expired", &due.sql, &due.values);

    let text = |text: &str| Value::from(text.to_owned());
    let prefix = [text("snp0000000000000000000000001"), text("snp0000000000000000000000001~")];
    large.assert_indexed("by prefix", sql!("snapshots_like"), &prefix);
    large.assert_indexed("sandbox by prefix", sql!("sandboxes_like"), &prefix);
    large.assert_indexed("former by prefix", sql!("former_sandboxes_like"), &prefix);
    large.assert_indexed("former by name", sql!("former_sandbox_named"), &prefix);
    large.assert_indexed("by id", sql!("snapshot"), &prefix[..1]);
    large.assert_indexed("ancestors", sql!("lineage_ancestors"), &prefix[..1]);
    large.assert_indexed("tree", sql!("lineage_tree"), &prefix[..1]);
    large.assert_indexed("children", sql!("lineage_children"), &prefix[..1]);

    let three = [prefix.as_slice(), &prefix[..1]].concat();
    for (sql, values) in [(sql!("held"), &three[..2]), (sql!("hold_as"), &three)] {
        let plan = large.plan(sql, values);
        assert!(plan[0].contains("hold_by_holder"), "{plan:#?}");
    }

    let totals = large.plan(sql!("usage_totals"), &[]);
    assert!(!totals.iter().any(|step| step.starts_with("SCAN snapshot")), "{totals:#?}");
    let usage = large.write(list::usage);
    assert_eq!((usage.snapshots, usage.pinned, usage.own_bytes), (100_000, 3333, 5_000_050_000));
}

#[test]
fn retention_looks_only_at_what_is_due() {
    let mut large = Large::new();
    let now = Timestamp::from_second(1_700_050_000).unwrap();
    let age = now.duration_since(Timestamp::from_second(1_700_000_900).unwrap());
    let none = RetentionPolicy::default;
    let label = || KeepGroup::Label("task".to_owned());
    let keep = |group| Some(KeepLast { count: 90, group });
    // 834 are expired and not pinned, whatever the policy says.
    for (due, policy) in [
        (834..=834, none()),
        (834..=834, RetentionPolicy { max_per_sandbox: Some(1_000), ..none() }),
        (1_600..=1_700, RetentionPolicy { max_age: Some(age), ..none() }),
        (10_000..=15_000, RetentionPolicy { max_per_sandbox: Some(90), ..none() }),
        (10_000..=15_000, RetentionPolicy { keep_last: keep(KeepGroup::Sandbox), ..none() }),
        (6_000..=6_600, RetentionPolicy { keep_last: keep(label()), ..none() }),
    ] {
        let mut query =
            CandidateQuery { policy, now, scope: CandidateScope::Oldest, after: None, limit: 500 };
        let (sql, values) = retention::candidates_sql(&query);
        large.assert_indexed(&format!("{query:?}"), sql, &values);
        assert_eq!(large.write(|tx| retention::candidates(tx, &query)).len(), 500);

        query.scope = CandidateScope::Due;
        let (sql, values) = retention::candidates_sql(&query);
        large.assert_indexed(&format!("{query:?}"), sql, &values);
        let mut found = 0;
        loop {
            let page = large.write(|tx| retention::candidates(tx, &query));
            found += page.len();
            query.after = page.last().map(|last| last.cursor);
            if page.len() < query.limit {
                break;
            }
        }
        assert!(due.contains(&found), "{found} for {query:?}");
    }
}

/// How the writer's last commit went to the disk.
fn synced(catalog: &SqliteCatalog) -> bool {
    let level = |tx: &Transaction<'_>| {
        Ok(tx.query_row("PRAGMA synchronous", [], |row| row.get::<_, i64>(0))?)
    };
    block_on(catalog.writer.run(Access::Read, "test", level)).unwrap() == 2
}

#[test]
fn what_is_followed_by_destruction_is_synced_first() {
    let directory = tempfile::tempdir().unwrap();
    let catalog = SqliteCatalog::open(directory.path().join("catalog.db")).unwrap();
    let run = |operation: &Operation, change: &Change| {
        let claim = block_on(catalog.begin(operation)).unwrap();
        block_on(catalog.commit(&claim, change)).unwrap()
    };
    run(&creation(&sandbox(1)), &created(&sandbox(1)));
    let first = with_pieces(snapshot(1, 1), &[("a", None)]);
    run(&snapshotting(&first), &taken(&first));
    assert!(!synced(&catalog), "a snapshot that promises nothing");
    let second = with_pieces(snapshot(2, 1), &[("b", Some("a"))]);
    run(&snapshotting(&second), &taken(&second));
    let gone = |number| Change::SnapshotDeleted { snapshot: snapshot_id(number) };
    assert!(run(&deletion(1), &gone(1)).is_empty());
    assert!(!synced(&catalog), "nothing is destroyed: the second lies over it");
    assert!(run(&deletion(2), &gone(2)).is_empty());
    let removed = Change::SandboxRemoved { sandbox: sandbox_id(1) };
    assert_eq!(run(&destruction(1), &removed).len(), 2);
    assert!(synced(&catalog), "two pieces are about to be discarded");

    run(&creation(&sandbox(2)), &created(&sandbox(2)));
    assert!(!synced(&catalog), "back to the usual");
    let mut durable = snapshot(3, 2);
    durable.durable = true;
    run(&snapshotting(&durable), &taken(&durable));
    assert!(synced(&catalog), "a snapshot that promises to survive a power cut");
}

/// More pages than a log should have, and fewer than nobody waits with.
const PAGES: &str = "CREATE TABLE pages AS SELECT randomblob(800000)";

fn write_pages(catalog: &SqliteCatalog) {
    let write = |tx: &Transaction<'_>| Ok(tx.execute_batch(PAGES)?);
    block_on(catalog.writer.run(Access::Write { durable: false }, "test", write)).unwrap();
}

#[test]
fn a_commit_leaves_a_long_log_to_a_moment_when_nobody_waits() {
    let directory = tempfile::tempdir().unwrap();
    let (_, mut session) = Session::create(&directory.path().join("catalog.db")).unwrap();
    let pages = |tx: &Transaction<'_>| Ok(tx.execute_batch(PAGES)?);
    session.transact(Access::Write { durable: false }, "test", pages).unwrap();
    assert!(session.has_long_log());
    session.shorten_log();
    assert!(!session.has_long_log());
}

#[test]
fn a_long_log_is_written_back_by_the_thread_and_at_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("catalog.db");
    let len = || std::fs::metadata(&path).unwrap().len();
    let catalog = SqliteCatalog::open(&path).unwrap();
    let before = len();
    write_pages(&catalog);
    while len() == before {
        std::thread::yield_now();
    }
    drop(catalog);

    let path = directory.path().join("here.db");
    let len = || std::fs::metadata(&path).unwrap().len();
    let catalog = SqliteCatalog::open_here(&path).unwrap();
    let before = len();
    write_pages(&catalog);
    assert_eq!(len(), before, "the commit waited for it");
    drop(catalog);
    assert!(len() > before);
}

/// With other values each time, and for those of which SQLite would rather make another plan.
#[test]
fn statements_are_compiled_once() {
    let directory = tempfile::tempdir().unwrap();
    let (_, mut session) = Session::create(&directory.path().join("catalog.db")).unwrap();
    let answer = session.transact(Access::Write { durable: false }, "test", |tx| {
        for (sql, values) in [
            (sql!("blocker"), [["a", "1"].as_slice(), &["b", "0"]]),
            (sql!("hold_as"), [&["local", "a", "b"], &["local", "c", "d"]]),
        ] {
            for values in values {
                let mut statement = tx.prepare_cached(sql)?;
                let mut rows = statement.query(params_from_iter(values))?;
                assert!(rows.next()?.is_none());
            }
            let anew = tx.prepare_cached(sql)?.get_status(StatementStatus::RePrepare);
            assert_eq!(anew, 0, "{sql}");
        }
        Ok(())
    });
    answer.unwrap();
}

#[test]
fn what_is_small_is_done_by_whoever_asks() {
    let directory = tempfile::tempdir().unwrap();
    let catalog = SqliteCatalog::open(directory.path().join("catalog.db")).unwrap();
    let made = sandbox(1);
    let claim = catalog.begin(&creation(&made)).now_or_never().expect("nothing is in its way");
    let committed = catalog.commit(&claim.unwrap(), &created(&made)).now_or_never();
    committed.expect("nothing is in its way").unwrap();
    let found = catalog.sandbox(made.id).now_or_never().expect("nothing is in its way");
    assert_eq!(found.unwrap(), made);
}

#[test]
fn whoever_asks_waits_for_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("catalog.db");
    let catalog = SqliteCatalog::open(&path).unwrap();
    let (_, mut other) = Session::create(&path).unwrap();
    // Another process writes: the thread waits for it.
    let (write, written) = mpsc::channel();
    let (begun, begins) = mpsc::channel();
    let writes = std::thread::spawn(move || {
        let wait = |tx: &Transaction<'_>| {
            tx.execute(sql!("touch"), [])?;
            begun.send(()).unwrap();
            written.recv().unwrap();
            Ok(())
        };
        other.transact(Access::Write { durable: false }, "test", wait).unwrap();
    });
    begins.recv().unwrap();
    let operation = creation(&sandbox(1));
    let mut begin = catalog.begin(&operation);
    assert!((&mut begin).now_or_never().is_none());
    write.send(()).unwrap();
    let claim = block_on(begin).unwrap();
    writes.join().unwrap();

    // What must survive a power cut waits for the disk.
    let mut durable = sandbox(1);
    durable.labels = labels();
    block_on(catalog.commit(&claim, &created(&durable))).unwrap();
    let mut snapshot = snapshot(1, 1);
    snapshot.durable = true;
    let claim = block_on(catalog.begin(&snapshotting(&snapshot))).unwrap();
    let change = taken(&snapshot);
    let mut commit = catalog.commit(&claim, &change);
    assert!((&mut commit).now_or_never().is_none());
    block_on(commit).unwrap();
}

/// Whoever asks does not write it back, and the thread that does is asleep.
#[test]
fn a_log_that_others_made_long_is_written_back_by_the_thread() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("catalog.db");
    let len = || std::fs::metadata(&path).unwrap().len();
    let catalog = SqliteCatalog::open(&path).unwrap();
    let before = len();
    let write = |tx: &Transaction<'_>| Ok(tx.execute_batch(PAGES)?);
    let access = Access::Write { durable: false };
    let written = catalog.writer.run_soon(access, "test", write).now_or_never();
    written.expect("nothing is in its way").unwrap();
    while len() == before {
        std::thread::yield_now();
    }
}
