-- Each tenant has a full-text index of its own, words_KEY, which is made with its first file: what
-- others have neither takes its time nor moves a score. It keeps words of what was erased until its
-- parts are merged: `to_merge` is 2 when that has to begin, 1 while it goes on.
CREATE TABLE tenants (
    key      INTEGER PRIMARY KEY,
    name     TEXT NOT NULL UNIQUE,
    to_merge INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX tenants_to_merge ON tenants (key) WHERE to_merge;

-- What is removed is hidden at once, and erased a little at a time (sweep).
CREATE TABLE stores (
    key            INTEGER PRIMARY KEY,
    tenant         INTEGER NOT NULL REFERENCES tenants,
    id             TEXT NOT NULL UNIQUE,
    created_at     INTEGER NOT NULL,
    last_active_at INTEGER NOT NULL,
    expires_at     INTEGER,
    described      BLOB NOT NULL,
    is_removed     INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX stores_of_tenant ON stores (tenant, key);
CREATE INDEX stores_that_expire ON stores (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX stores_removed ON stores (key) WHERE is_removed;

CREATE TABLE files (
    key         INTEGER PRIMARY KEY,
    store       INTEGER NOT NULL REFERENCES stores,
    id          TEXT NOT NULL,
    filename    TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    status      TEXT NOT NULL,
    last_error  BLOB,
    attributes  BLOB NOT NULL,
    chunk_size  INTEGER NOT NULL,
    overlap     INTEGER NOT NULL,
    usage_bytes INTEGER NOT NULL DEFAULT 0,
    batch       TEXT,
    due_at      REAL NOT NULL,
    attempts    INTEGER NOT NULL DEFAULT 0,
    is_removed  INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE UNIQUE INDEX files_of_store ON files (store, id) WHERE NOT is_removed;
CREATE INDEX files_by_id ON files (id);
CREATE INDEX files_due ON files (due_at) WHERE status = 'in_progress' AND NOT is_removed;
CREATE INDEX files_of_batch ON files (batch) WHERE batch IS NOT NULL;
CREATE INDEX files_of_status ON files (store, status, is_removed);
CREATE INDEX files_removed ON files (key) WHERE is_removed;

CREATE TABLE batches (
    id           TEXT PRIMARY KEY,
    store        INTEGER NOT NULL REFERENCES stores,
    created_at   INTEGER NOT NULL,
    is_cancelled INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX batches_of_store ON batches (store);

-- A chunk's key is its row in the full-text index. Its first `repeats` characters end the chunk
-- before.
CREATE TABLE chunks (
    key     INTEGER PRIMARY KEY,
    file    INTEGER NOT NULL REFERENCES files,
    repeats INTEGER NOT NULL,
    text    TEXT NOT NULL
) STRICT;
CREATE INDEX chunks_of_file ON chunks (file);

-- Vectors of `count` chunks, from the chunk `first` on, one after another as float32.
CREATE TABLE vectors (
    key     INTEGER PRIMARY KEY,
    file    INTEGER NOT NULL REFERENCES files,
    first   INTEGER NOT NULL,
    count   INTEGER NOT NULL,
    model   TEXT NOT NULL,
    content BLOB NOT NULL
) STRICT;
CREATE INDEX vectors_of_file ON vectors (file);
