-- Batches of requests. `due_at` says when a batch that has not ended may be claimed, in seconds since
-- 1970, by the clock of the database; each claim has the next number in `attempts`.
CREATE TABLE batches (
    number    BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant    TEXT NOT NULL,
    id        TEXT NOT NULL,
    caller    BYTEA NOT NULL,
    body      BYTEA NOT NULL,
    completed BIGINT NOT NULL DEFAULT 0,
    failed    BIGINT NOT NULL DEFAULT 0,
    due_at    DOUBLE PRECISION NOT NULL,
    attempts  INTEGER NOT NULL DEFAULT 0,
    ended_at  DOUBLE PRECISION,
    UNIQUE (tenant, id)
);
CREATE INDEX batches_in_order ON batches (tenant, number);
CREATE INDEX batches_open ON batches (due_at, number) WHERE ended_at IS NULL;
CREATE INDEX batches_open_of_tenant ON batches (tenant) WHERE ended_at IS NULL;
CREATE INDEX batches_ended ON batches (ended_at) WHERE ended_at IS NOT NULL;

-- The results of lines, until they are in the files of their batch.
CREATE TABLE batch_results (
    batch      BIGINT NOT NULL,
    line       INTEGER NOT NULL,
    is_failure BOOLEAN NOT NULL,
    bytes      INTEGER NOT NULL,
    body       BYTEA NOT NULL,
    PRIMARY KEY (batch, line)
);
