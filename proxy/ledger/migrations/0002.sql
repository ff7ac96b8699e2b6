-- What a run's standing is (closed, revoked, its tokens) and an operation's approval, each as JSON;
-- NULL where there is none, so that a row of before keeps its hash.
ALTER TABLE runs ADD COLUMN standing TEXT;
ALTER TABLE operations ADD COLUMN approval TEXT;

CREATE INDEX operations_approval ON operations (created_at) WHERE approval IS NOT NULL;
CREATE INDEX runs_age ON runs (created_at);
CREATE INDEX runs_parent ON runs (parent) WHERE parent IS NOT NULL;
