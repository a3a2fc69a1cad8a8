-- What API keys may do, and what they have used.

-- JSON; NULL is full access without limits.
ALTER TABLE api_keys ADD COLUMN policy BLOB;

-- `start` is the start of the counter's window. Times are in seconds since the epoch.
CREATE TABLE key_counters (
    key_id TEXT NOT NULL,
    name TEXT NOT NULL,
    start INTEGER NOT NULL,
    amount INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (key_id, name, start)
) STRICT, WITHOUT ROWID;

-- One row for each run of a key with limits.
CREATE TABLE key_slots (
    key_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    response_id TEXT NOT NULL,
    owner TEXT NOT NULL,
    PRIMARY KEY (key_id, tenant, response_id)
) STRICT, WITHOUT ROWID;
