-- Recorded answers of model calls: the n-th answer that a run got at a step to the same request, given
-- again in a later start of the run. `heard` is the newest start that has had it whole, 0 for none. `hash`
-- covers every column before it; the answer is sealed under the name of its row, and stands last so
-- that looking for one never reads it. Retention deletes rows: what is not here is asked again.
CREATE TABLE journal (
    run TEXT NOT NULL,
    step TEXT NOT NULL,        -- empty for a call that names none
    fingerprint TEXT NOT NULL,
    number INTEGER NOT NULL,   -- from 1
    epoch INTEGER NOT NULL,    -- of the call that was answered
    created_at REAL NOT NULL,
    size INTEGER NOT NULL,     -- bytes of the body
    heard INTEGER NOT NULL,
    hash BLOB NOT NULL,
    sealed BLOB NOT NULL
);
CREATE UNIQUE INDEX journal_call ON journal (run, step, fingerprint, number);
CREATE INDEX journal_age ON journal (created_at);
