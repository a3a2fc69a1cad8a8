-- What all servers of the schema have in common.

CREATE TABLE agreed (
    name TEXT PRIMARY KEY,
    value BYTEA NOT NULL
);
