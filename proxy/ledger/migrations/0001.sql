-- The first schema of a SQLite ledger. Every file here runs once, in order of its number, in one
-- transaction; a released file is never edited.

-- What the ledger knows of itself: its generation, how many lives it had, and the key canary.
CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;

-- `revision` and the columns after `created_at` belong to budgets, resume and authority.
CREATE TABLE runs (
    run TEXT PRIMARY KEY,
    epoch INTEGER NOT NULL,
    status TEXT NOT NULL,
    generation TEXT NOT NULL,  -- the ledger's generation in which the run began
    created_at REAL NOT NULL,
    parent TEXT,
    input_digest TEXT,
    token_digest TEXT,
    limits TEXT NOT NULL,      -- JSON
    counters TEXT NOT NULL,    -- JSON
    revision INTEGER NOT NULL,
    hash BLOB NOT NULL         -- SHA-256 over all other columns
) WITHOUT ROWID;

-- The projection of each operation's events. `hash` covers every column before it; `place` is a
-- checksum that keeps indexes small; the contents guard their own identity. The wide indexes begin
-- with the run: entries made together lie together, which keeps a commit small.
CREATE TABLE operations (
    id INTEGER PRIMARY KEY,    -- in order of the first commits
    key TEXT NOT NULL UNIQUE,  -- RUN/STEP/OPERATION/vN
    run TEXT NOT NULL,
    step TEXT NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    service TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    method TEXT NOT NULL,
    url TEXT NOT NULL,
    state TEXT NOT NULL,
    blocked_by TEXT,
    account TEXT,
    external_id TEXT,
    caller_key TEXT,
    started_at REAL,           -- start of the newest attempt that may have been sent
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    delivered_epoch INTEGER,
    revision INTEGER NOT NULL,
    intent TEXT NOT NULL,      -- JSON
    attempts TEXT NOT NULL,    -- JSON
    outcome TEXT,              -- JSON
    hash BLOB NOT NULL,
    place INTEGER NOT NULL,    -- CRC-32 of the URL
    request_id INTEGER,        -- contents.id
    answer_id INTEGER
);
CREATE INDEX operations_alike ON operations (run, step, place);
CREATE INDEX operations_place ON operations (place, started_at);
CREATE INDEX operations_age ON operations (created_at);
CREATE INDEX operations_caller ON operations (service, caller_key) WHERE caller_key IS NOT NULL;
CREATE INDEX operations_external ON operations (external_id) WHERE external_id IS NOT NULL;
CREATE INDEX operations_unsettled ON operations (state) WHERE state IN ('in_flight', 'unknown');

CREATE TRIGGER operations_kept BEFORE DELETE ON operations
WHEN old.state IN ('in_flight', 'unknown')
BEGIN
    SELECT RAISE(ABORT, 'an unsettled operation is never deleted');
END;

-- How many operations are in each state, so that no metric has to count the table. Written once per
-- batch; triggers would cost as much as the row itself.
CREATE TABLE tallies (
    state TEXT PRIMARY KEY,
    number INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO tallies VALUES
    ('awaiting_approval', 0), ('in_flight', 0), ('unknown', 0),
    ('not_applied', 0), ('succeeded', 0), ('failed', 0);

CREATE TRIGGER operations_tally_delete AFTER DELETE ON operations
BEGIN
    UPDATE tallies SET number = number - 1 WHERE state = old.state;
END;

-- Sealed requests and answers. `sealed` is NULL once retention has taken the bytes; a row that an
-- operation points to is never missing.
CREATE TABLE contents (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    kind TEXT NOT NULL,        -- request | answer
    sealed BLOB
);

-- The history. `row` is the hash that the operation's row had after the event (NULL where the event
-- left it alone); `hash` chains the event to the run's previous one; `head`, on the last event of a
-- batch, chains the batch to the one before it.
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    run TEXT NOT NULL,
    key TEXT NOT NULL,
    kind TEXT NOT NULL,
    at REAL NOT NULL,
    data TEXT NOT NULL,        -- JSON
    row BLOB,
    hash BLOB NOT NULL,
    head BLOB
);
-- A key begins with its run, so this index also finds a run's events.
CREATE INDEX events_key ON events (key);

CREATE TRIGGER events_update BEFORE UPDATE ON events
BEGIN
    SELECT RAISE(ABORT, 'events are append-only');
END;
CREATE TRIGGER events_delete BEFORE DELETE ON events
BEGIN
    SELECT RAISE(ABORT, 'events are append-only');
END;
