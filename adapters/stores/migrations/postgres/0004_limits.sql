-- What API keys may do, and what they have used.

-- JSON; NULL is full access without limits.
ALTER TABLE api_keys ADD COLUMN policy BYTEA;

-- `start` is the start of the counter's window. Times are in seconds since the epoch.
CREATE TABLE key_counters (
    key_id TEXT NOT NULL,
    name TEXT NOT NULL,
    start BIGINT NOT NULL,
    amount BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (key_id, name, start)
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- One row for each run of a key with limits.
CREATE TABLE key_slots (
    key_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    response_id TEXT NOT NULL,
    owner TEXT NOT NULL,
    PRIMARY KEY (key_id, tenant, response_id)
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- Calls for one key wait for each other, so that they can read first. The lock ends with the
-- transaction.
CREATE FUNCTION lock_usage(for_key TEXT) RETURNS VOID LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(hashtextextended(current_schema() || '/' || for_key, 0));
$$;

CREATE FUNCTION add_usage(
    for_key TEXT, names TEXT[], starts BIGINT[], amounts BIGINT[], expiries BIGINT[]
) RETURNS VOID LANGUAGE sql AS $$
    INSERT INTO key_counters AS counter (key_id, name, start, amount, expires_at)
    SELECT for_key, c.name, c.start, c.amount, c.expires_at
    FROM unnest(names, starts, amounts, expiries) AS c (name, start, amount, expires_at)
    WHERE c.amount <> 0
    ON CONFLICT (key_id, name, start) DO UPDATE SET amount = counter.amount + excluded.amount;
    UPDATE key_counters SET amount = 0 WHERE key_id = for_key AND amount < 0;
$$;

CREATE FUNCTION reserve_usage(
    for_key TEXT, names TEXT[], starts BIGINT[], amounts BIGINT[], expiries BIGINT[],
    limits BIGINT[], for_tenant TEXT, for_response TEXT, by_owner TEXT, max_slots BIGINT,
    OUT accepted BOOLEAN, OUT counts BIGINT[], OUT taken BIGINT
) LANGUAGE plpgsql AS $$
BEGIN
    -- Each statement after this sees what the calls before it have committed.
    PERFORM lock_usage(for_key);
    DELETE FROM key_counters
    WHERE key_id = for_key AND expires_at <= extract(epoch FROM clock_timestamp());
    -- The slot of a stored response is taken while that is unfinished, any other while its owner
    -- lives.
    DELETE FROM key_slots AS slot WHERE slot.key_id = for_key AND NOT CASE
        WHEN EXISTS (
            SELECT 1 FROM responses AS r
            WHERE r.tenant = slot.tenant AND r.id = slot.response_id AND r.body IS NOT NULL
        ) THEN EXISTS (
            SELECT 1 FROM runs WHERE runs.tenant = slot.tenant AND runs.id = slot.response_id
        ) ELSE EXISTS (
            SELECT 1 FROM servers
            WHERE servers.owner = slot.owner AND servers.alive_until > clock_timestamp()
        ) END;
    taken := (SELECT count(*) FROM key_slots WHERE key_id = for_key);
    accepted := NOT EXISTS (
        SELECT 1 FROM unnest(names, starts, amounts, limits) AS c (name, start, amount, most)
        LEFT JOIN key_counters AS k
            ON k.key_id = for_key AND k.name = c.name AND k.start = c.start
        WHERE c.amount <> 0 AND coalesce(k.amount, 0) + c.amount > c.most
    ) AND (
        for_response IS NULL OR max_slots IS NULL OR taken < max_slots OR EXISTS (
            SELECT 1 FROM key_slots
            WHERE key_id = for_key AND tenant = for_tenant AND response_id = for_response)
    );
    IF accepted THEN
        PERFORM add_usage(for_key, names, starts, amounts, expiries);
        IF for_response IS NOT NULL THEN
            INSERT INTO key_slots (key_id, tenant, response_id, owner)
            VALUES (for_key, for_tenant, for_response, by_owner) ON CONFLICT DO NOTHING;
            taken := (SELECT count(*) FROM key_slots WHERE key_id = for_key);
        END IF;
    END IF;
    counts := ARRAY(
        SELECT coalesce(k.amount, 0)
        FROM unnest(names, starts) WITH ORDINALITY AS c (name, start, place)
        LEFT JOIN key_counters AS k
            ON k.key_id = for_key AND k.name = c.name AND k.start = c.start
        ORDER BY c.place
    );
END $$;

CREATE FUNCTION settle_usage(
    for_key TEXT, for_tenant TEXT, for_response TEXT,
    names TEXT[], starts BIGINT[], amounts BIGINT[], expiries BIGINT[]
) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lock_usage(for_key);
    DELETE FROM key_slots
    WHERE key_id = for_key AND tenant = for_tenant AND response_id = for_response;
    IF NOT FOUND THEN
        RETURN FALSE;
    END IF;
    PERFORM add_usage(for_key, names, starts, amounts, expiries);
    RETURN TRUE;
END $$;
