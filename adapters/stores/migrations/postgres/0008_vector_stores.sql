-- Vector stores. The words of all chunks are in one index, but each word begins with the number of
-- its tenant: what others have neither takes a search's time nor moves a score.
CREATE TEXT SEARCH DICTIONARY stems (TEMPLATE = pg_catalog.snowball, Language = english);
CREATE TEXT SEARCH CONFIGURATION stemmed (PARSER = pg_catalog."default");
ALTER TEXT SEARCH CONFIGURATION stemmed ADD MAPPING FOR
    asciiword, word, numword, asciihword, hword, numhword, hword_asciipart, hword_part,
    hword_numpart, int, uint, float, sfloat, version, file, host
    WITH stems;

-- `chunks` and `words` are those of all files of the tenant that are not erased yet.
CREATE TABLE vector_tenants (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name   TEXT NOT NULL UNIQUE,
    chunks BIGINT NOT NULL DEFAULT 0,
    words  BIGINT NOT NULL DEFAULT 0
);

-- What is removed is hidden at once, and erased a little at a time (sweep).
CREATE TABLE vector_stores (
    number         BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant         BIGINT NOT NULL,
    id             TEXT NOT NULL UNIQUE,
    created_at     BIGINT NOT NULL,
    last_active_at BIGINT NOT NULL,
    expires_at     BIGINT,
    described      BYTEA NOT NULL,
    is_removed     BOOLEAN NOT NULL DEFAULT false
);
CREATE INDEX vector_stores_of_tenant ON vector_stores (tenant, number) WHERE NOT is_removed;
CREATE INDEX vector_stores_that_expire ON vector_stores (expires_at)
    WHERE expires_at IS NOT NULL AND NOT is_removed;
CREATE INDEX vector_stores_removed ON vector_stores (number) WHERE is_removed;

-- `due_at` is in seconds since 1970, by the clock of the database.
CREATE TABLE vector_files (
    number      BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    store       BIGINT NOT NULL,
    tenant      BIGINT NOT NULL,
    id          TEXT NOT NULL,
    filename    TEXT NOT NULL,
    created_at  BIGINT NOT NULL,
    status      TEXT NOT NULL,
    last_error  BYTEA,
    attributes  BYTEA NOT NULL,
    chunk_size  INTEGER NOT NULL,
    overlap     INTEGER NOT NULL,
    usage_bytes BIGINT NOT NULL DEFAULT 0,
    chunks      INTEGER NOT NULL DEFAULT 0,
    batch       TEXT,
    due_at      DOUBLE PRECISION NOT NULL,
    attempts    INTEGER NOT NULL DEFAULT 0,
    is_removed  BOOLEAN NOT NULL DEFAULT false
);
CREATE UNIQUE INDEX vector_files_of_store ON vector_files (store, id) WHERE NOT is_removed;
CREATE INDEX vector_files_in_order ON vector_files (store, number);
CREATE INDEX vector_files_by_id ON vector_files (tenant, id) WHERE NOT is_removed;
CREATE INDEX vector_files_due ON vector_files (tenant, due_at, number)
    WHERE status = 'in_progress' AND NOT is_removed;
CREATE INDEX vector_files_of_batch ON vector_files (batch) WHERE batch IS NOT NULL;
CREATE INDEX vector_files_removed ON vector_files (number) WHERE is_removed;

CREATE TABLE vector_batches (
    id           TEXT PRIMARY KEY,
    store        BIGINT NOT NULL,
    created_at   BIGINT NOT NULL,
    is_cancelled BOOLEAN NOT NULL DEFAULT false
);
CREATE INDEX vector_batches_of_store ON vector_batches (store);

-- A chunk's number is made of the number of its file and its place there. Its first `repeats`
-- characters end the chunk before. `length` counts its words.
CREATE TABLE vector_chunks (
    number  BIGINT PRIMARY KEY,
    file    BIGINT NOT NULL,
    repeats INTEGER NOT NULL,
    text    TEXT NOT NULL,
    words   TSVECTOR NOT NULL,
    length  INTEGER NOT NULL
);
CREATE INDEX vector_chunks_by_word ON vector_chunks USING gin (words);

-- Vectors of `count` chunks, from the chunk `first` on, one after another as float32.
CREATE TABLE vector_parts (
    file    BIGINT NOT NULL,
    first   BIGINT NOT NULL,
    count   INTEGER NOT NULL,
    model   TEXT NOT NULL,
    content BYTEA NOT NULL,
    PRIMARY KEY (file, first)
);
ALTER TABLE vector_parts ALTER COLUMN content SET STORAGE EXTERNAL;
