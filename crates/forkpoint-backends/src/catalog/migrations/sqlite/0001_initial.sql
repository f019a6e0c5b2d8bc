-- `seq` is the order in which things were committed: never used twice, it is the cursor of lists.
-- Ids and names are text as printed. Times are text of one width (`2026-08-15T09:50:55.700000000Z`),
-- so that they keep their nanoseconds, sort by themselves, and cover every year that people write.
-- Unsigned numbers of 64 bits are kept bit by bit, and so are never compared or added here as they are.

CREATE TABLE sandbox (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    id      TEXT NOT NULL UNIQUE,
    driver  TEXT NOT NULL,
    name    TEXT,
    adopted TEXT,
    head    TEXT,
    created TEXT NOT NULL,
    labels  TEXT NOT NULL,
    spec    TEXT NOT NULL
) STRICT;

CREATE UNIQUE INDEX sandbox_by_name ON sandbox (driver, name) WHERE name IS NOT NULL;
CREATE INDEX sandbox_by_head ON sandbox (head) WHERE head IS NOT NULL;

CREATE TABLE sandbox_label (
    seq   INTEGER NOT NULL REFERENCES sandbox (seq) ON DELETE CASCADE,
    key   TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (seq, key)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER sandbox_is_labelled AFTER INSERT ON sandbox BEGIN
    INSERT INTO sandbox_label (seq, key, value) SELECT NEW.seq, key, value FROM json_each(NEW.labels);
END;

CREATE TABLE snapshot (
    seq               INTEGER PRIMARY KEY AUTOINCREMENT,
    id                TEXT NOT NULL UNIQUE,
    name              TEXT NOT NULL UNIQUE,
    sandbox           TEXT NOT NULL,
    sandbox_name      TEXT,
    parent            TEXT,
    driver            TEXT NOT NULL,
    kind              TEXT NOT NULL,
    trigger           TEXT NOT NULL,
    description       TEXT,
    context           TEXT,
    run_id            TEXT,
    step              INTEGER,
    labels            TEXT NOT NULL,
    agent_state_bytes INTEGER,
    spec              TEXT NOT NULL,
    own_bytes         INTEGER NOT NULL,
    total_bytes       INTEGER NOT NULL,
    file_count        INTEGER NOT NULL,
    created           TEXT NOT NULL,
    expires           TEXT,
    pinned            INTEGER NOT NULL,
    last_restored     TEXT,
    restore_count     INTEGER NOT NULL,
    durable           INTEGER NOT NULL,
    artifact          TEXT NOT NULL
) STRICT;

CREATE INDEX snapshot_by_sandbox ON snapshot (sandbox, seq, expires, pinned);
CREATE INDEX snapshot_by_sandbox_name ON snapshot (driver, sandbox_name) WHERE sandbox_name IS NOT NULL;
CREATE INDEX snapshot_by_parent ON snapshot (parent) WHERE parent IS NOT NULL;
CREATE INDEX snapshot_by_driver ON snapshot (driver);
CREATE INDEX snapshot_by_kind ON snapshot (kind);
CREATE INDEX snapshot_by_trigger ON snapshot (trigger);
CREATE INDEX snapshot_by_run ON snapshot (run_id) WHERE run_id IS NOT NULL;
CREATE INDEX snapshot_by_age ON snapshot (created, pinned);
CREATE INDEX snapshot_by_expiry ON snapshot (expires, pinned) WHERE expires IS NOT NULL;

CREATE TABLE snapshot_label (
    seq   INTEGER NOT NULL REFERENCES snapshot (seq) ON DELETE CASCADE,
    key   TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (seq, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX snapshot_label_by_value ON snapshot_label (key, value, seq);

CREATE TABLE agent_state (
    seq   INTEGER PRIMARY KEY REFERENCES snapshot (seq) ON DELETE CASCADE,
    bytes BLOB NOT NULL
) STRICT;

-- Deleted snapshots that something still hangs on, at their old places.
CREATE TABLE ghost (
    seq          INTEGER PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    parent       TEXT,
    name         TEXT NOT NULL,
    sandbox      TEXT NOT NULL,
    sandbox_name TEXT,
    kind         TEXT NOT NULL,
    trigger      TEXT NOT NULL,
    description  TEXT,
    own_bytes    INTEGER NOT NULL,
    created      TEXT NOT NULL
) STRICT;

CREATE INDEX ghost_by_parent ON ghost (parent) WHERE parent IS NOT NULL;

CREATE VIEW lineage AS
    SELECT seq, id, parent, name, sandbox, sandbox_name, kind, trigger, description, own_bytes, created, 0 AS deleted
    FROM snapshot
    UNION ALL
    SELECT seq, id, parent, name, sandbox, sandbox_name, kind, trigger, description, own_bytes, created, 1 AS deleted
    FROM ghost;

-- Counters, so that nothing has to look at every snapshot. A sum is kept in halves of 32 bits: the sum
-- of many sizes would not fit into what SQLite can add.
CREATE TABLE driver_usage (
    driver     TEXT PRIMARY KEY,
    snapshots  INTEGER NOT NULL,
    pinned     INTEGER NOT NULL,
    own_high   INTEGER NOT NULL,
    own_low    INTEGER NOT NULL,
    total_high INTEGER NOT NULL,
    total_low  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE sandbox_usage (
    sandbox   TEXT PRIMARY KEY,
    snapshots INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX sandbox_usage_by_count ON sandbox_usage (snapshots);

CREATE TABLE label_usage (
    key       TEXT NOT NULL,
    value     TEXT NOT NULL,
    snapshots INTEGER NOT NULL,
    PRIMARY KEY (key, value)
) STRICT, WITHOUT ROWID;

CREATE INDEX label_usage_by_count ON label_usage (key, snapshots);

CREATE TRIGGER snapshot_is_counted AFTER INSERT ON snapshot BEGIN
    INSERT INTO driver_usage VALUES (
        NEW.driver, 1, NEW.pinned,
        NEW.own_bytes >> 32 & 0xffffffff, NEW.own_bytes & 0xffffffff,
        NEW.total_bytes >> 32 & 0xffffffff, NEW.total_bytes & 0xffffffff
    )
    ON CONFLICT (driver) DO UPDATE SET
        snapshots = snapshots + 1,
        pinned = pinned + excluded.pinned,
        own_high = own_high + excluded.own_high,
        own_low = own_low + excluded.own_low,
        total_high = total_high + excluded.total_high,
        total_low = total_low + excluded.total_low;
    INSERT INTO sandbox_usage VALUES (NEW.sandbox, 1)
    ON CONFLICT (sandbox) DO UPDATE SET snapshots = snapshots + 1;
    INSERT INTO snapshot_label (seq, key, value) SELECT NEW.seq, key, value FROM json_each(NEW.labels);
END;

CREATE TRIGGER snapshot_is_uncounted AFTER DELETE ON snapshot BEGIN
    UPDATE driver_usage SET
        snapshots = snapshots - 1,
        pinned = pinned - OLD.pinned,
        own_high = own_high - (OLD.own_bytes >> 32 & 0xffffffff),
        own_low = own_low - (OLD.own_bytes & 0xffffffff),
        total_high = total_high - (OLD.total_bytes >> 32 & 0xffffffff),
        total_low = total_low - (OLD.total_bytes & 0xffffffff)
    WHERE driver = OLD.driver;
    DELETE FROM driver_usage WHERE driver = OLD.driver AND snapshots = 0;
    UPDATE sandbox_usage SET snapshots = snapshots - 1 WHERE sandbox = OLD.sandbox;
    DELETE FROM sandbox_usage WHERE sandbox = OLD.sandbox AND snapshots = 0;
END;

CREATE TRIGGER snapshot_is_pinned AFTER UPDATE OF pinned ON snapshot WHEN NEW.pinned <> OLD.pinned BEGIN
    UPDATE driver_usage SET pinned = pinned + NEW.pinned - OLD.pinned WHERE driver = NEW.driver;
END;

CREATE TRIGGER snapshot_is_relabelled AFTER UPDATE OF labels ON snapshot WHEN NEW.labels <> OLD.labels BEGIN
    DELETE FROM snapshot_label WHERE seq = NEW.seq;
    INSERT INTO snapshot_label (seq, key, value) SELECT NEW.seq, key, value FROM json_each(NEW.labels);
END;

CREATE TRIGGER label_is_counted AFTER INSERT ON snapshot_label BEGIN
    INSERT INTO label_usage VALUES (NEW.key, NEW.value, 1)
    ON CONFLICT (key, value) DO UPDATE SET snapshots = snapshots + 1;
END;

CREATE TRIGGER label_is_uncounted AFTER DELETE ON snapshot_label BEGIN
    UPDATE label_usage SET snapshots = snapshots - 1 WHERE key = OLD.key AND value = OLD.value;
    DELETE FROM label_usage WHERE key = OLD.key AND value = OLD.value AND snapshots = 0;
END;

-- What drivers' platforms hold for us, and for whom: a holder is the id of a sandbox or of a snapshot.
CREATE TABLE piece (
    seq    INTEGER PRIMARY KEY,
    driver TEXT NOT NULL,
    name   TEXT NOT NULL,
    over   TEXT,
    bytes  INTEGER NOT NULL,
    UNIQUE (driver, name)
) STRICT;

CREATE INDEX piece_by_over ON piece (driver, over) WHERE over IS NOT NULL;

CREATE TABLE piece_usage (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    stored_high INTEGER NOT NULL,
    stored_low  INTEGER NOT NULL
) STRICT;

INSERT INTO piece_usage VALUES (1, 0, 0);

CREATE TRIGGER piece_is_counted AFTER INSERT ON piece BEGIN
    UPDATE piece_usage SET
        stored_high = stored_high + (NEW.bytes >> 32 & 0xffffffff),
        stored_low = stored_low + (NEW.bytes & 0xffffffff);
END;

CREATE TRIGGER piece_is_uncounted AFTER DELETE ON piece BEGIN
    UPDATE piece_usage SET
        stored_high = stored_high - (OLD.bytes >> 32 & 0xffffffff),
        stored_low = stored_low - (OLD.bytes & 0xffffffff);
END;

CREATE TABLE hold (
    piece  INTEGER NOT NULL REFERENCES piece (seq),
    holder TEXT NOT NULL,
    PRIMARY KEY (piece, holder)
) STRICT, WITHOUT ROWID;

CREATE INDEX hold_by_holder ON hold (holder);

-- Operations that are open. Each is a lock on what it claims.
CREATE TABLE operation (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    id      TEXT NOT NULL UNIQUE,
    owner   TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    body    TEXT NOT NULL
) STRICT;

CREATE TABLE claim (
    resource  TEXT NOT NULL,
    operation INTEGER NOT NULL REFERENCES operation (seq) ON DELETE CASCADE,
    exclusive INTEGER NOT NULL,
    PRIMARY KEY (resource, operation)
) STRICT, WITHOUT ROWID;

CREATE INDEX claim_by_operation ON claim (operation);

-- The latest operations that took effect, for whoever lost the reply.
CREATE TABLE committed (
    seq       INTEGER PRIMARY KEY,
    operation TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE chore (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    driver TEXT NOT NULL,
    task   TEXT NOT NULL
) STRICT;
