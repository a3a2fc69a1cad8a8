-- Batches of requests. `due_at` says when a batch that has not ended may be claimed; each claim has
-- the next number in `attempts`.
CREATE TABLE batches (
    key       INTEGER PRIMARY KEY,
    tenant    TEXT NOT NULL,
    id        TEXT NOT NULL,
    caller    BLOB NOT NULL,
    body      BLOB NOT NULL,
    completed INTEGER NOT NULL DEFAULT 0,
    failed    INTEGER NOT NULL DEFAULT 0,
    due_at    REAL NOT NULL,
    attempts  INTEGER NOT NULL DEFAULT 0,
    ended_at  REAL,
    UNIQUE (tenant, id)
) STRICT;
CREATE INDEX batches_in_order ON batches (tenant, key);
CREATE INDEX batches_open ON batches (due_at, key) WHERE ended_at IS NULL;
CREATE INDEX batches_open_of_tenant ON batches (tenant) WHERE ended_at IS NULL;
CREATE INDEX batches_ended ON batches (ended_at) WHERE ended_at IS NOT NULL;

-- The results of lines, until they are in the files of their batch.
CREATE TABLE batch_results (
    batch      INTEGER NOT NULL,
    line       INTEGER NOT NULL,
    is_failure INTEGER NOT NULL,
    bytes      INTEGER NOT NULL,
    body       BLOB NOT NULL,
    PRIMARY KEY (batch, line)
) STRICT;
CREATE INDEX batch_results_by_file ON batch_results (batch, is_failure, line, bytes);
