-- Runs that outlive their process, what is kept for a time only, webhooks, API keys.

-- `owner` runs the response; NULL waits for one. Each that takes it raises `epoch`, which fences the
-- others out. `logged`: its events are kept here. Times are in seconds since the epoch.
ALTER TABLE responses ADD COLUMN owner TEXT;
ALTER TABLE responses ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;
ALTER TABLE responses ADD COLUMN logged INTEGER NOT NULL DEFAULT 0;
ALTER TABLE responses ADD COLUMN finished_at REAL;
ALTER TABLE responses ADD COLUMN expires_at REAL;

-- Each holds few rows, and all that its queries need.
DROP INDEX responses_unfinished;
CREATE INDEX responses_running ON responses (owner, number, tenant)
    WHERE status IN ('queued', 'in_progress');
CREATE INDEX responses_expiring ON responses (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX responses_logged ON responses (finished_at) WHERE logged;

-- What begins a run anew: apart from its response, whose row is written often.
CREATE TABLE jobs (
    response INTEGER PRIMARY KEY,
    body BLOB NOT NULL
) STRICT;

-- Chunks of a log. `response` is the response's `number`. With a rowid, a large chunk costs half of
-- what it does without (measured).
CREATE TABLE events (
    response INTEGER NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (response, first)
) STRICT;

-- `beat_at` is by the machine's clock since its start, which all its processes share.
CREATE TABLE servers (
    owner TEXT PRIMARY KEY,
    beat_at REAL NOT NULL,
    ttl_s REAL NOT NULL
) STRICT, WITHOUT ROWID;

-- Whose `held_by` is. That of an older version is nobody's: its server is gone.
ALTER TABLE conversations ADD COLUMN holder TEXT;

CREATE TABLE repeats (
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    response_id TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    owner TEXT NOT NULL,
    expires_at REAL NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX repeats_by_response ON repeats (tenant, response_id);
CREATE INDEX repeats_expiring ON repeats (expires_at);

CREATE TABLE notices (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    body BLOB NOT NULL,
    attempts INTEGER NOT NULL,
    due_at REAL NOT NULL
) STRICT;

CREATE INDEX notices_due ON notices (due_at);

CREATE TABLE api_keys (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    tenant TEXT NOT NULL,
    hash BLOB NOT NULL UNIQUE,
    created_at INTEGER NOT NULL
) STRICT;

-- What each tenant has here. Kept by triggers, so that nothing is written past it: counting it
-- anew would read everything.
CREATE TABLE uses (
    tenant TEXT PRIMARY KEY,
    responses INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO uses (tenant, responses, bytes)
SELECT tenant, sum(responses), sum(bytes) FROM (
    SELECT tenant, 1 AS responses, length(body) AS bytes FROM responses WHERE body IS NOT NULL
    UNION ALL
    SELECT tenant, 0, length(body) FROM items
)
GROUP BY tenant;

CREATE TRIGGER responses_come AFTER INSERT ON responses BEGIN
    INSERT INTO uses (tenant, responses, bytes) VALUES (new.tenant, 1, length(new.body))
    ON CONFLICT (tenant) DO UPDATE
    SET responses = responses + 1, bytes = bytes + excluded.bytes;
END;

CREATE TRIGGER responses_change AFTER UPDATE OF body ON responses BEGIN
    UPDATE uses
    SET responses = responses - (new.body IS NULL AND old.body IS NOT NULL),
        bytes = bytes + coalesce(length(new.body), 0) - coalesce(length(old.body), 0)
    WHERE tenant = new.tenant;
END;

CREATE TRIGGER items_come AFTER INSERT ON items BEGIN
    INSERT INTO uses (tenant, responses, bytes) VALUES (new.tenant, 0, length(new.body))
    ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + excluded.bytes;
END;

CREATE TRIGGER items_go AFTER DELETE ON items BEGIN
    UPDATE uses SET bytes = bytes - length(old.body) WHERE tenant = old.tenant;
END;

CREATE TRIGGER events_come AFTER INSERT ON events BEGIN
    UPDATE uses SET bytes = bytes + length(new.body)
    WHERE tenant = (SELECT tenant FROM responses WHERE number = new.response);
END;

CREATE TRIGGER events_go AFTER DELETE ON events BEGIN
    UPDATE uses SET bytes = bytes - length(old.body)
    WHERE tenant = (SELECT tenant FROM responses WHERE number = old.response);
END;
