-- What all servers of the file have in common.

CREATE TABLE agreed (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;
