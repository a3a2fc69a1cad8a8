-- Uploaded files. A file is 'writing' until all of its content is there, and 'deleted' until all of
-- it is gone: what a killed server leaves in either state is swept, wherever the content is.
CREATE TABLE files (
    number     BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant     TEXT NOT NULL,
    id         TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    purpose    TEXT NOT NULL,
    bytes      BIGINT NOT NULL,
    described  BYTEA NOT NULL,
    place      TEXT NOT NULL,
    state      TEXT NOT NULL,
    changed_at TIMESTAMPTZ NOT NULL
);
CREATE UNIQUE INDEX files_by_id ON files (tenant, id) WHERE state <> 'deleted';
CREATE INDEX files_in_order ON files (tenant, created_at, number) WHERE state = 'stored';
CREATE INDEX files_of_purpose ON files (tenant, purpose, created_at, number)
    WHERE state = 'stored';
CREATE INDEX files_unfinished ON files (place, changed_at) WHERE state <> 'stored';

CREATE TABLE file_usage (
    tenant TEXT PRIMARY KEY,
    files  BIGINT NOT NULL,
    bytes  BIGINT NOT NULL
);

-- The contents of files that are kept here and not in an object store.
CREATE TABLE file_parts (
    file    BIGINT NOT NULL,
    part    INTEGER NOT NULL,
    content BYTEA NOT NULL,
    PRIMARY KEY (file, part)
);

-- Parts are read one by one and whole; most uploads are compressed already.
ALTER TABLE file_parts ALTER COLUMN content SET STORAGE EXTERNAL;
