"""The SQL statements of the PostgreSQL store.

Every transaction locks rows of `runs` first, then those of responses, conversations and items, so
there are no deadlocks. A row of `runs` exists until the run is over. A transaction that changes or
deletes it by its epoch has the lease until the transaction ends.

A statement that waited for a lock sees the new version of the locked row, but the old version of
everything else. Where that matters, a separate statement takes the lock.
"""

# --- responses ------------------------------------------------------------------------------------

# An unknown or deleted parent, or one of another tenant, is ignored. An existing parent stays until
# this is committed, and so does the required Idempotency-Key. A response that is already finished
# has no run.
CREATE = """
WITH own_key AS (
    SELECT 1 FROM idempotency_keys WHERE tenant = $1 AND key = $19 AND response_id = $2 FOR SHARE
), parent AS (
    SELECT number FROM responses WHERE tenant = $1 AND id = $3 AND body IS NOT NULL FOR KEY SHARE
), new AS (
    INSERT INTO responses (tenant, id, parent, status, created_at, expires_at, conversation,
                           context_end, logged, bytes, job, body)
    SELECT $1, $2, (SELECT number FROM parent), $4, $5, $6, c.number, c.next_place,
           CASE WHEN $9::int IS NOT NULL THEN 0 END, $12, $13, $14
    FROM (VALUES (1)) AS one LEFT JOIN conversations c ON c.tenant = $1 AND c.id = $7
    WHERE $19::text IS NULL OR EXISTS (SELECT 1 FROM own_key)
    RETURNING number
), run AS (
    INSERT INTO runs (response, tenant, id, owner, epoch, next_event, log_bytes)
    SELECT number, $1, $2, $8, CASE WHEN $8::text IS NULL THEN 0 ELSE 1 END, $9::int + $10::int,
           coalesce(octet_length($11::bytea), 0)
    FROM new WHERE $4 IN ('queued', 'in_progress')
), log AS (
    INSERT INTO events (response, first, count, body)
    SELECT number, $9, $10, $11 FROM new WHERE $9::int IS NOT NULL
), brought AS (
    INSERT INTO items (tenant, response, kind, position, item_id, body)
    SELECT $1, new.number, i.kind, i.position, i.item_id, i.body
    FROM new, unnest($15::int[], $16::int[], $17::text[], $18::bytea[])
        AS i (kind, position, item_id, body)
    ORDER BY i.kind, i.position
)
SELECT number FROM new
"""

# $6 is the number of events including the last ones, which are not written yet.
FINISH = """
WITH run AS (
    DELETE FROM runs WHERE tenant = $1 AND id = $2 AND epoch = $3 AND owner IS NOT NULL
    RETURNING response, next_event, log_bytes
), early AS (
    DELETE FROM items USING run WHERE items.response = run.response AND kind = 1
)
UPDATE responses SET status = $4, body = $5, job = NULL, finished_at = clock_timestamp(),
    bytes = bytes - octet_length(body) + run.log_bytes + $7,
    logged = CASE WHEN logged IS NOT NULL THEN greatest(run.next_event, $6::int) END
FROM run WHERE number = run.response
RETURNING number, run.next_event
"""

ADD_OUTPUT = """
WITH log AS (
    INSERT INTO events (response, first, count, body)
    SELECT $2, $3, $4, $5 WHERE $3::int IS NOT NULL
), deliveries AS (
    INSERT INTO webhook_deliveries (id, tenant, endpoint, body, attempts, due_at)
    SELECT *, clock_timestamp()
    FROM unnest($6::text[], $7::text[], $8::text[], $9::bytea[], $10::int[])
), output AS (
    INSERT INTO items (tenant, response, kind, position, item_id, body)
    SELECT $1, $2, i.kind, i.position, i.item_id, i.body
    FROM unnest($11::int[], $12::int[], $13::text[], $14::bytea[])
        AS i (kind, position, item_id, body)
    ORDER BY i.kind, i.position
)
SELECT pg_notify($15, $16) WHERE $15::text IS NOT NULL
"""

# One statement, so that body and output are consistent.
GET = """
SELECT r.body, i.body AS item FROM responses r
LEFT JOIN items i ON i.response = r.number AND i.kind = 1
WHERE r.tenant = $1 AND r.id = $2 AND r.body IS NOT NULL
ORDER BY i.position
"""

ITEM = """
SELECT body FROM items WHERE tenant = $1 AND item_id = $2 ORDER BY number DESC LIMIT 1
"""

# --- deleting -------------------------------------------------------------------------------------

DELETE_RUN = "DELETE FROM runs WHERE tenant = $1 AND id = $2"

CLEAR_RESPONSE = """
UPDATE responses SET status = 'deleted', body = NULL, job = NULL, logged = NULL
WHERE tenant = $1 AND id = $2 AND body IS NOT NULL
RETURNING number
"""

# The conversation may have been deleted and a new one created with its id. So a claim is released
# only where this response has it.
DELETE_LOG_AND_CLAIMS = """
WITH log AS (DELETE FROM events WHERE response = $3),
    keys AS (DELETE FROM idempotency_keys WHERE tenant = $1 AND response_id = $2),
    free AS (
        UPDATE conversations SET claimed_by = NULL, claim_owner = NULL
        WHERE tenant = $1 AND claimed_by = $2
    )
SELECT pg_notify($4, $2)
"""

# Taken before checking whether the response is deleted and which responses continue it. If two
# transactions delete related responses, the second sees what the first did.
LOCK_RESPONSE = "SELECT conversation, body IS NULL FROM responses WHERE number = $1 FOR UPDATE"

LOCK_CONVERSATION = "SELECT 1 FROM conversations WHERE number = $1 FOR UPDATE"

PURGE_RESPONSE = """
DELETE FROM responses
WHERE number = $1 AND NOT EXISTS (SELECT 1 FROM responses WHERE parent = $1)
RETURNING parent
"""

# Items of a conversation stay in it.
REMOVE_ITEMS = """
WITH left_alone AS (
    UPDATE items SET response = NULL, kind = NULL, position = NULL
    WHERE response = $1 AND conversation IS NOT NULL
)
DELETE FROM items WHERE response = $1 AND conversation IS NULL
"""

# A sweep need not wait for the disk at each commit: what a crash undoes is swept again.
COMMIT_WITHOUT_WAITING = "SET LOCAL synchronous_commit = off"

EXPIRED_RESPONSES = """
SELECT tenant, id FROM responses r
WHERE expires_at <= extract(epoch FROM clock_timestamp())
    AND body IS NOT NULL AND conversation IS NULL
    AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.response = r.number)
ORDER BY expires_at LIMIT $1
"""

SWEEP_LOGS = """
WITH old AS (
    SELECT number FROM responses
    WHERE finished_at <= clock_timestamp() - make_interval(secs => $1) AND logged IS NOT NULL
    ORDER BY finished_at LIMIT $2
    FOR NO KEY UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM events USING old WHERE response = old.number
    RETURNING response, octet_length(events.body) AS bytes
)
UPDATE responses r SET logged = NULL, bytes = bytes - coalesce(
    (SELECT sum(gone.bytes) FROM gone WHERE gone.response = r.number), 0)
FROM old WHERE r.number = old.number
RETURNING r.number
"""

SWEEP_RESERVATIONS = """
DELETE FROM idempotency_keys WHERE (tenant, key) IN (
    SELECT tenant, key FROM idempotency_keys
    WHERE expires_at <= extract(epoch FROM clock_timestamp())
    ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED)
RETURNING key
"""

# And the counters of keys that are not used any more; reserving deletes those of the others.
SWEEP_SERVERS = """
WITH counters AS (
    DELETE FROM key_counters WHERE expires_at <= extract(epoch FROM clock_timestamp())
)
DELETE FROM servers WHERE alive_until < clock_timestamp() - interval '1 day'
"""

USAGE = """
SELECT coalesce(sum(responses), 0)::bigint,
    coalesce(sum(bytes), 0)::bigint
    + (SELECT coalesce(sum(log_bytes), 0)::bigint FROM runs WHERE tenant = $1),
    (SELECT count(*) FROM runs WHERE tenant = $1 AND owner IS NULL)
FROM storage_usage WHERE tenant = $1
"""

# --- conversations --------------------------------------------------------------------------------

CREATE_CONVERSATION = """
INSERT INTO conversations (tenant, id, created_at, metadata, next_place, bytes)
VALUES ($1, $2, $3, $4, $5, octet_length($4::bytea))
RETURNING number
"""

GET_CONVERSATION = "SELECT created_at, metadata FROM conversations WHERE tenant = $1 AND id = $2"

UPDATE_CONVERSATION = """
UPDATE conversations SET metadata = $3 WHERE tenant = $1 AND id = $2 RETURNING created_at
"""

DELETE_CONVERSATION = "DELETE FROM conversations WHERE tenant = $1 AND id = $2 RETURNING number"

GET_AND_LOCK_CONVERSATION = """
SELECT number FROM conversations WHERE tenant = $1 AND id = $2 FOR NO KEY UPDATE
"""

# All items, or those with one id if $2 is not NULL. Items that belong to the conversation alone are
# deleted; the others are only removed from it.
REMOVE_FROM_CONVERSATION = """
WITH own AS (
    DELETE FROM items
    WHERE conversation = $1 AND response IS NULL AND ($2::text IS NULL OR item_id = $2)
    RETURNING number, octet_length(body) AS bytes
), shared AS (
    UPDATE items SET conversation = NULL, place = NULL
    WHERE conversation = $1 AND response IS NOT NULL AND ($2::text IS NULL OR item_id = $2)
    RETURNING number
), lighter AS (
    UPDATE conversations SET bytes = bytes - (SELECT coalesce(sum(own.bytes), 0) FROM own)
    WHERE number = $1
)
SELECT number FROM own UNION ALL SELECT number FROM shared
"""

# A claim is valid while its owner is alive, or its response is stored and unfinished.
IS_UNCLAIMED = """
(claimed_by IS NULL OR NOT (
    EXISTS (SELECT 1 FROM servers
            WHERE owner = conversations.claim_owner AND alive_until > clock_timestamp())
    OR EXISTS (SELECT 1 FROM runs WHERE runs.tenant = $1 AND runs.id = conversations.claimed_by)))
"""

CLAIM = f"""
UPDATE conversations SET claimed_by = $3, claim_owner = $4
WHERE tenant = $1 AND id = $2 AND {IS_UNCLAIMED}
RETURNING number
"""

RESERVE_PLACES = f"""
UPDATE conversations SET next_place = next_place + $3
WHERE tenant = $1 AND id = $2 AND {IS_UNCLAIMED}
RETURNING number, next_place - $3::bigint
"""

# Returns the first of the places that were reserved for the items of the response.
RELEASE = """
UPDATE conversations SET claimed_by = NULL, claim_owner = NULL, next_place = next_place + $4
WHERE tenant = $1 AND id = $2 AND claimed_by = $3
RETURNING number, next_place - $4::bigint
"""

COUNT_ITEMS = "SELECT count(*) FROM items WHERE response = $1"

LINK_ITEMS = """
UPDATE items SET conversation = $2, place = $3 + brought.place
FROM (
    SELECT number, row_number() OVER (ORDER BY kind, position) - 1 AS place
    FROM items WHERE response = $1
) AS brought
WHERE items.number = brought.number
"""

ADD_OWN_ITEMS = """
WITH heavier AS (
    UPDATE conversations
    SET bytes = bytes + (SELECT coalesce(sum(octet_length(body)), 0) FROM unnest($5::bytea[]) body)
    WHERE number = $2
)
INSERT INTO items (tenant, conversation, place, item_id, body)
SELECT $1, $2, $3 + i.place - 1, i.item_id, i.body
FROM unnest($4::text[], $5::bytea[]) WITH ORDINALITY AS i (item_id, body, place)
ORDER BY i.place
"""

# --- runs -----------------------------------------------------------------------------------------

BEAT = """
INSERT INTO servers (owner, alive_until)
VALUES ($1, clock_timestamp() + make_interval(secs => $2))
ON CONFLICT (owner) DO UPDATE SET alive_until = excluded.alive_until
"""

LEAVE = "DELETE FROM servers WHERE owner = $1"

COUNT_WAITING = "SELECT count(*) FROM runs WHERE owner IS NULL"

# The response as it was created. Its output is normally empty.
SELECT_LEASED_RUNS = """
SELECT taken.tenant, taken.id, taken.epoch, r.job, r.body,
    ARRAY(SELECT i.body FROM items i WHERE i.response = r.number AND i.kind = 1 ORDER BY position)
FROM taken JOIN responses r ON r.number = taken.response
ORDER BY r.number
"""

_IS_FREE = """(owner IS NULL AND $3::boolean OR owner <> $1 AND NOT EXISTS (
        SELECT 1 FROM servers
        WHERE servers.owner = runs.owner AND alive_until > clock_timestamp()))"""

# Seeks each tenant in the index, and reads as many of its runs as may be leased: one tenant's
# thousand runs cost no more than these. In each round, each tenant gets its oldest run.
# `free` asks again whether a run is free: if another transaction changed the row meanwhile,
# PostgreSQL evaluates that condition again.
LEASE_RUNS = f"""
WITH RECURSIVE tenants (tenant) AS (
    SELECT min(tenant) FROM runs WHERE owner IS NULL AND $3::boolean
    UNION ALL
    SELECT (SELECT min(tenant) FROM runs WHERE owner IS NULL AND runs.tenant > tenants.tenant)
    FROM tenants WHERE tenants.tenant IS NOT NULL
), candidates AS (
    SELECT oldest.* FROM tenants CROSS JOIN LATERAL (
        SELECT response, tenant FROM runs WHERE owner IS NULL AND runs.tenant = tenants.tenant
        ORDER BY response LIMIT $2
    ) AS oldest
    UNION ALL
    SELECT response, tenant FROM runs WHERE owner IS NOT NULL AND {_IS_FREE}
), turns AS (
    SELECT response, coalesce(held.count, 0)
        + row_number() OVER (PARTITION BY tenant ORDER BY response) AS round
    FROM candidates LEFT JOIN unnest($4::text[], $5::integer[]) AS held (tenant, count)
        USING (tenant)
), free AS (
    SELECT runs.response FROM runs JOIN turns USING (response)
    WHERE {_IS_FREE} AND round <= coalesce($6::integer, round)
    ORDER BY round, runs.response LIMIT $2
    FOR UPDATE OF runs SKIP LOCKED
), taken AS (
    UPDATE runs SET owner = $1, epoch = epoch + 1
    FROM free WHERE runs.response = free.response
    RETURNING runs.*
)
{SELECT_LEASED_RUNS}
"""

TAKE_OVER = f"""
WITH taken AS (
    UPDATE runs SET owner = $1, epoch = epoch + 1 WHERE tenant = $2 AND id = $3
    RETURNING runs.*
)
{SELECT_LEASED_RUNS}
"""

RESPONSE_EXISTS = "SELECT 1 FROM responses WHERE tenant = $1 AND id = $2 AND body IS NOT NULL"

GIVE_BACK = """
UPDATE runs SET owner = NULL
WHERE tenant = $1 AND id = $2 AND epoch = $3 AND owner IS NOT NULL
RETURNING response
"""

HELD_LEASES = "SELECT tenant, id, epoch FROM runs WHERE owner = $1"

# Chunks of several runs, one per run. Returns the places of the chunks that were written.
APPEND = """
WITH written AS (
    UPDATE runs SET next_event = g.first + g.count, log_bytes = log_bytes + octet_length(g.body)
    FROM unnest($1::text[], $2::text[], $3::int[], $4::int[], $5::int[], $6::bytea[])
        WITH ORDINALITY AS g (tenant, id, epoch, first, count, body, place)
    WHERE runs.tenant = g.tenant AND runs.id = g.id AND runs.epoch = g.epoch
        AND runs.owner IS NOT NULL AND runs.next_event = g.first
    RETURNING runs.response, g.id, g.first, g.count, g.body, g.place
), log AS (
    INSERT INTO events (response, first, count, body)
    SELECT response, first, count, body FROM written
)
SELECT place, pg_notify($7, id || ' ' || first) FROM written
"""

GET_LEASED_RUN = """
SELECT response, next_event FROM runs
WHERE tenant = $1 AND id = $2 AND epoch = $3 AND owner IS NOT NULL
"""

HAS_CHUNK = "SELECT 1 FROM events WHERE response = $1 AND first = $2 AND count = $3"

# One statement, so that the log and its end are consistent. Returns chunks, starting with the one
# that contains event $3: at least one, then up to $5 bytes.
EVENTS = """
SELECT r.finished_at IS NOT NULL AS over, r.logged, page.first, page.count, page.body
FROM responses r LEFT JOIN LATERAL (
    SELECT first, count, body, sum(octet_length(body)) OVER (ORDER BY first) AS so_far
    FROM (
        SELECT first, count, body FROM events
        WHERE response = r.number AND first >= coalesce(
            (SELECT max(first) FROM events WHERE response = r.number AND first <= $3::bigint), 0)
        ORDER BY first LIMIT $4
    ) AS rest
) AS page ON page.so_far - octet_length(page.body) < $5 AND page.first + page.count > $3::bigint
WHERE r.tenant = $1 AND r.id = $2 AND r.body IS NOT NULL AND r.logged IS NOT NULL
ORDER BY page.first
"""

# Returns the logs that have events after the given number, or are over, or are gone.
LOGS_WITH_NEWS = """
SELECT g.id FROM unnest($1::text[], $2::text[], $3::bigint[]) AS g (tenant, id, after)
LEFT JOIN runs ON runs.tenant = g.tenant AND runs.id = g.id
WHERE runs.response IS NULL OR runs.next_event IS NULL OR runs.next_event > g.after + 1
"""

# --- Idempotency-Keys -----------------------------------------------------------------------------

# Taken before checking whether the key's response exists, to wait for one that is being created.
LOCK_RESERVATION = "SELECT 1 FROM idempotency_keys WHERE tenant = $1 AND key = $2 FOR UPDATE"

# This leaves an existing row alone, because it may be newer than the snapshot of the statement, in
# which its response would seem to be missing.
RESERVE_NEW = """
INSERT INTO idempotency_keys (tenant, key, response_id, fingerprint, owner, expires_at)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (tenant, key) DO NOTHING
RETURNING response_id
"""

# A key is free if it has expired, or if its response does not exist and its owner is dead, so that
# the response will never be created.
RESERVE = """
UPDATE idempotency_keys AS k SET response_id = $3, fingerprint = $4, owner = $5, expires_at = $6
WHERE tenant = $1 AND key = $2 AND (expires_at <= extract(epoch FROM clock_timestamp()) OR NOT (
    EXISTS (SELECT 1 FROM servers s WHERE s.owner = k.owner AND alive_until > clock_timestamp())
    OR EXISTS (
        SELECT 1 FROM responses r
        WHERE r.tenant = $1 AND r.id = k.response_id AND r.body IS NOT NULL)))
"""

GET_RESERVATION = """
SELECT response_id, fingerprint, EXISTS (
    SELECT 1 FROM responses r
    WHERE r.tenant = $1 AND r.id = k.response_id AND body IS NOT NULL)
FROM idempotency_keys k WHERE tenant = $1 AND key = $2
"""

UNRESERVE = """
DELETE FROM idempotency_keys WHERE tenant = $1 AND key = $2 AND response_id = $3 AND NOT EXISTS (
    SELECT 1 FROM responses r WHERE r.tenant = $1 AND r.id = $3 AND r.body IS NOT NULL)
"""

# --- webhooks -------------------------------------------------------------------------------------

CLAIM_DUE = """
WITH due AS (
    SELECT id, due_at FROM webhook_deliveries
    WHERE due_at <= clock_timestamp() AND endpoint <> ALL ($3::text[])
    ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED
), held AS (
    UPDATE webhook_deliveries AS d
    SET attempts = attempts + 1, due_at = clock_timestamp() + make_interval(secs => $2)
    FROM due WHERE d.id = due.id
    RETURNING d.*, due.due_at AS was_due_at
)
SELECT id, tenant, endpoint, body, attempts - 1 FROM held ORDER BY was_due_at, id
"""

DELAY_DELIVERY = """
UPDATE webhook_deliveries SET due_at = clock_timestamp() + make_interval(secs => $2) WHERE id = $1
"""

REMOVE_DELIVERY = "DELETE FROM webhook_deliveries WHERE id = $1"

# --- API keys -------------------------------------------------------------------------------------

ADD_KEY = """
INSERT INTO api_keys (id, name, tenant, hash, created_at, policy) VALUES ($1, $2, $3, $4, $5, $6)
"""

LIST_KEYS = "SELECT id, name, tenant, hash, created_at, policy FROM api_keys ORDER BY number"

GET_KEY = "SELECT id, name, tenant, hash, created_at, policy FROM api_keys WHERE hash = $1"

UPDATE_KEY = "UPDATE api_keys SET policy = $2 WHERE id = $1 RETURNING id"

REVOKE_KEY = "DELETE FROM api_keys WHERE id = $1 RETURNING id"

RESERVE_USAGE = """
SELECT accepted, counts, taken FROM reserve_usage($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
"""

SETTLE_USAGE = "SELECT settle_usage($1, $2, $3, $4, $5, $6, $7)"

# --- traces ---------------------------------------------------------------------------------------

SAVE_TRACE = """
WITH run AS (
    SELECT response FROM runs
    WHERE tenant = $1 AND id = $2 AND epoch = $3 AND owner IS NOT NULL FOR UPDATE
), old AS (
    SELECT octet_length(traces.body) AS bytes FROM traces JOIN run USING (response)
), counted AS (
    UPDATE responses SET bytes = bytes + octet_length($4::bytea)
        - coalesce((SELECT old.bytes FROM old), 0)
    FROM run WHERE number = run.response
)
INSERT INTO traces (response, body) SELECT response, $4 FROM run
ON CONFLICT (response) DO UPDATE SET body = excluded.body
RETURNING response
"""

GET_TRACE = """
SELECT traces.body FROM responses r LEFT JOIN traces ON traces.response = r.number
WHERE r.tenant = $1 AND r.id = $2 AND r.body IS NOT NULL
"""

# --- shared values --------------------------------------------------------------------------------

COMPARE_AND_SET = """
INSERT INTO shared_values (name, value) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE shared_values.value = $3
"""

GET_SHARED_VALUE = "SELECT value FROM shared_values WHERE name = $1"
