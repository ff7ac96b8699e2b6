-- What agents save of their runs, to go on from. `hash` covers every column before it; the content
-- is sealed under the name of its row, hash included, and stands last so that lists never read it.
-- NULL: retention took it. `previous` is the hash of the version before, so that a missing one in
-- between shows; the oldest ones go as new ones come.
CREATE TABLE checkpoints (
    run TEXT NOT NULL,
    version INTEGER NOT NULL,
    step TEXT,
    created_at REAL NOT NULL,
    size INTEGER NOT NULL,     -- bytes of the content
    after INTEGER NOT NULL,    -- events.seq: the last one when it was saved
    generation TEXT NOT NULL,  -- the ledger's generation in which it was saved
    previous BLOB NOT NULL,
    hash BLOB NOT NULL,
    sealed BLOB
);
CREATE UNIQUE INDEX checkpoints_run ON checkpoints (run, version);
CREATE INDEX checkpoints_age ON checkpoints (created_at) WHERE sealed IS NOT NULL;
