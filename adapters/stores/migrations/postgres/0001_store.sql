-- All that is kept. JSON is BYTEA: so it stays as it came, byte for byte.

-- `body` is the response's JSON without its output; NULL once the response is deleted while others
-- still continue it. `parent` is the stored response of the same tenant that this one continues.
-- It was made in `conversation` and given the items at places below `given` there. `job` is all
-- that any server needs to begin its run. `logged` is NULL where no log is kept here; once the
-- response is over, it is the number of events in it. `bytes` counts body, items and log, about.
CREATE TABLE responses (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    parent BIGINT,
    status TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at DOUBLE PRECISION,
    finished_at TIMESTAMPTZ,
    conversation BIGINT,
    given BIGINT,
    logged INTEGER,
    bytes BIGINT NOT NULL,
    job BYTEA,
    body BYTEA,
    UNIQUE (tenant, id)
);

CREATE INDEX responses_by_parent ON responses (parent) WHERE parent IS NOT NULL;

CREATE INDEX responses_expiring ON responses (expires_at)
    WHERE expires_at IS NOT NULL AND body IS NOT NULL;

CREATE INDEX responses_logged ON responses (finished_at)
    WHERE finished_at IS NOT NULL AND logged IS NOT NULL;

-- One row for each unfinished response, and no other: to write a run is to change or to delete it.
-- Rows are narrow and often changed: room is left in their pages, so that no index is touched.
CREATE TABLE runs (
    response BIGINT PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    owner TEXT,
    epoch INTEGER NOT NULL,
    next_event INTEGER,
    log_bytes BIGINT NOT NULL,
    UNIQUE (tenant, id)
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX runs_by_owner ON runs (owner);

CREATE TABLE servers (
    owner TEXT PRIMARY KEY,
    alive_until TIMESTAMPTZ NOT NULL
) WITH (fillfactor = 50);

-- Logs come and go: what was deleted is cleared away early.
CREATE TABLE events (
    response BIGINT NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (response, first)
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0.02, toast.autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE conversations (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    metadata BYTEA NOT NULL,
    held_by TEXT,
    held_owner TEXT,
    next_place BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    UNIQUE (tenant, id)
);

CREATE INDEX conversations_held ON conversations (tenant, held_by) WHERE held_by IS NOT NULL;

-- A higher `number` was written later. `kind` is 0 for input, 1 for output: the order of reading.
-- An item is one row, for the response that brought it and for its conversation; `response` is NULL
-- where no response brought it, or that is gone.
CREATE TABLE items (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant TEXT NOT NULL,
    response BIGINT,
    kind SMALLINT,
    position INTEGER,
    conversation BIGINT,
    place BIGINT,
    item_id TEXT,
    body BYTEA NOT NULL,
    UNIQUE (response, kind, position)
);

CREATE INDEX items_by_id ON items (tenant, item_id) WHERE item_id IS NOT NULL;

CREATE INDEX items_by_conversation ON items (conversation, place) WHERE conversation IS NOT NULL;

CREATE TABLE repeats (
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    response_id TEXT NOT NULL,
    fingerprint BYTEA NOT NULL,
    owner TEXT NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (tenant, key)
);

CREATE INDEX repeats_by_response ON repeats (tenant, response_id);

CREATE INDEX repeats_expiring ON repeats (expires_at);

CREATE TABLE notices (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    body BYTEA NOT NULL,
    attempts INTEGER NOT NULL,
    due_at TIMESTAMPTZ NOT NULL
);

CREATE INDEX notices_due ON notices (due_at);

CREATE TABLE api_keys (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    tenant TEXT NOT NULL,
    hash BYTEA NOT NULL UNIQUE,
    created_at BIGINT NOT NULL
);

-- What each tenant has, in several rows that are added up, so that transactions seldom wait for
-- each other.
CREATE TABLE uses (
    tenant TEXT NOT NULL,
    slot INTEGER NOT NULL,
    responses BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    PRIMARY KEY (tenant, slot)
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE FUNCTION add_use(tenant TEXT, responses BIGINT, bytes BIGINT) RETURNS VOID
LANGUAGE sql BEGIN ATOMIC
    INSERT INTO uses VALUES (add_use.tenant, pg_backend_pid() % 16, add_use.responses, add_use.bytes)
    ON CONFLICT ON CONSTRAINT uses_pkey DO UPDATE SET
        responses = uses.responses + excluded.responses, bytes = uses.bytes + excluded.bytes;
END;

CREATE FUNCTION count_response() RETURNS TRIGGER LANGUAGE plpgsql AS $$
DECLARE
    before INTEGER := (TG_OP <> 'INSERT' AND OLD.body IS NOT NULL)::INTEGER;
    after INTEGER := (TG_OP <> 'DELETE' AND NEW.body IS NOT NULL)::INTEGER;
BEGIN
    IF before + after > 0 THEN
        PERFORM add_use(
            coalesce(NEW.tenant, OLD.tenant), after - before,
            coalesce(NEW.bytes, 0) * after - coalesce(OLD.bytes, 0) * before);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION count_conversation() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    PERFORM add_use(
        coalesce(NEW.tenant, OLD.tenant), 0, coalesce(NEW.bytes, 0) - coalesce(OLD.bytes, 0));
    RETURN NULL;
END $$;

-- Deferred to the end of each transaction: what all share is locked last, and shortest.
CREATE CONSTRAINT TRIGGER count_response AFTER INSERT OR DELETE OR UPDATE OF bytes, body
    ON responses DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_response();

CREATE CONSTRAINT TRIGGER count_conversation AFTER INSERT OR DELETE OR UPDATE OF bytes
    ON conversations DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_conversation();
