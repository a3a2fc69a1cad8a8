"""The SQL of vector stores in PostgreSQL."""

from __future__ import annotations

NOW = "extract(epoch FROM clock_timestamp())::float8"

# --- vector stores --------------------------------------------------------------------------------

CREATE = """
WITH tenant AS (
    INSERT INTO vector_tenants (name) VALUES ($1)
    ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING number
)
INSERT INTO vector_stores (tenant, id, created_at, last_active_at, expires_at, body)
SELECT number, $2, $3, $4, $5, $6 FROM tenant
"""

STORE_NUMBER = """
SELECT s.number FROM vector_stores s JOIN vector_tenants t ON t.number = s.tenant
WHERE t.name = $1 AND s.id = $2 AND NOT s.is_removed
"""

_STORES = """
SELECT s.number, s.id, s.created_at, s.last_active_at, s.expires_at, s.body
FROM vector_stores s JOIN vector_tenants t ON t.number = s.tenant
WHERE t.name = $1 AND NOT s.is_removed
"""

STORE = f"{_STORES} AND s.id = $2"

LIST_STORES = f"""
{_STORES} AND s.number > $2 AND s.number < $3 ORDER BY s.number {{order}} LIMIT $4
"""

COUNT_STORES = """
SELECT count(*) FROM vector_stores s JOIN vector_tenants t ON t.number = s.tenant
WHERE t.name = $1 AND NOT s.is_removed
"""

COUNT_FILES = """
SELECT store, status, count(*), sum(usage_bytes)::bigint FROM vector_files
WHERE store = ANY($1::bigint[]) AND NOT is_removed GROUP BY store, status
"""

UPDATE_STORE = """
UPDATE vector_stores SET last_active_at = $2, expires_at = $3, body = $4 WHERE number = $1
"""

TOUCH_STORE = "UPDATE vector_stores SET last_active_at = $2, expires_at = $3 WHERE number = $1"

REMOVE_STORE = """
WITH files AS (UPDATE vector_files SET is_removed = true WHERE store = $1 AND NOT is_removed)
UPDATE vector_stores SET is_removed = true WHERE number = $1
"""

USAGE = """
SELECT coalesce(sum(f.usage_bytes), 0)::bigint
FROM vector_tenants t JOIN vector_files f ON f.tenant = t.number
WHERE t.name = $1 AND NOT f.is_removed
"""

# --- files ----------------------------------------------------------------------------------------

# Waits for a deletion of the store that has begun, and keeps another from beginning.
LOCK_STORE = f"{STORE_NUMBER} FOR KEY SHARE OF s"

ADD_BATCH = "INSERT INTO vector_batches (id, store, created_at) VALUES ($1, $2, $3)"

REPLACE_FILES = """
UPDATE vector_files SET is_removed = true
WHERE store = $1 AND id = ANY($2::text[]) AND NOT is_removed
"""

ADD_FILES = f"""
INSERT INTO vector_files (store, tenant, id, filename, created_at, status, attributes, chunk_size,
    overlap, batch, due_at)
SELECT s.number, s.tenant, f.id, f.filename, f.created_at, 'in_progress', f.attributes,
    f.chunk_size, f.overlap, $2, {NOW}
FROM vector_stores s
CROSS JOIN unnest($3::text[], $4::text[], $5::bigint[], $6::bytea[], $7::int[], $8::int[])
    WITH ORDINALITY AS f (id, filename, created_at, attributes, chunk_size, overlap, place)
WHERE s.number = $1
ORDER BY f.place
"""

_FILES = """
SELECT f.id, s.id, f.created_at, f.status, f.last_error, f.usage_bytes, f.attributes, f.chunk_size,
    f.overlap
FROM vector_files f JOIN vector_stores s ON s.number = f.store
WHERE f.store = $1 AND NOT f.is_removed
"""

FILE = f"{_FILES} AND f.id = $2"

FILES = f"""
{_FILES} AND ($2::text IS NULL OR f.batch = $2) AND ($3::text IS NULL OR f.status = $3)
    AND f.number > $4 AND f.number < $5
ORDER BY f.number {{order}} LIMIT $6
"""

FILE_NUMBER = """
SELECT number FROM vector_files
WHERE store = $1 AND id = $2 AND NOT is_removed AND ($3::text IS NULL OR batch = $3)
"""

SET_ATTRIBUTES = """
UPDATE vector_files SET attributes = $3 WHERE store = $1 AND id = $2 AND NOT is_removed
"""

REMOVE_FILE = """
UPDATE vector_files SET is_removed = true WHERE store = $1 AND id = $2 AND NOT is_removed
RETURNING number
"""

FORGET_FILE = """
UPDATE vector_files SET is_removed = true
WHERE tenant = (SELECT number FROM vector_tenants WHERE name = $1) AND id = $2 AND NOT is_removed
"""

TEXTS = """
SELECT c.text, c.overlap_chars FROM vector_files f
JOIN vector_chunks c ON c.number BETWEEN f.number << 24 AND (f.number + 1 << 24) - 1
WHERE f.store = $1 AND f.id = $2 AND NOT f.is_removed AND f.status = 'completed'
ORDER BY c.number
"""

BATCH = "SELECT created_at, is_cancelled FROM vector_batches WHERE store = $1 AND id = $2"

COUNT_BATCH = """
SELECT status, count(*) FROM vector_files WHERE batch = $1 AND NOT is_removed GROUP BY status
"""

CANCEL_BATCH = """
WITH batch AS (UPDATE vector_batches SET is_cancelled = true WHERE id = $1)
UPDATE vector_files SET status = 'cancelled'
WHERE batch = $1 AND status = 'in_progress' AND NOT is_removed
"""

# --- jobs -----------------------------------------------------------------------------------------

UNFINISHED = "status = 'in_progress' AND NOT is_removed"

# The tenants with due jobs, and since when: two look-ups in the index for each tenant.
DUE_TENANTS = f"""
WITH RECURSIVE unfinished (tenant) AS (
    SELECT min(tenant) FROM vector_files WHERE {UNFINISHED}
    UNION ALL
    SELECT (SELECT min(tenant) FROM vector_files
            WHERE {UNFINISHED} AND vector_files.tenant > unfinished.tenant)
    FROM unfinished WHERE unfinished.tenant IS NOT NULL
)
SELECT t.number, t.name, oldest.due_at
FROM unfinished u JOIN vector_tenants t ON t.number = u.tenant
CROSS JOIN LATERAL (
    SELECT due_at FROM vector_files WHERE tenant = t.number AND due_at <= {NOW} AND {UNFINISHED}
    ORDER BY due_at, number LIMIT 1
) AS oldest
"""

# One server after the other claims jobs.
LOCK_JOBS = "SELECT pg_advisory_xact_lock(hashtextextended($1, 1))"

DUE_JOBS = f"""
SELECT f.number, f.attempts + 1, t.name, f.id, f.filename, f.chunk_size, f.overlap
FROM vector_files f JOIN vector_tenants t ON t.number = f.tenant
WHERE f.tenant = $1 AND f.due_at <= {NOW} AND f.status = 'in_progress' AND NOT f.is_removed
ORDER BY f.due_at, f.number LIMIT $2
"""

CLAIM = f"""
UPDATE vector_files SET due_at = {NOW} + $2::float8, attempts = attempts + 1
WHERE number = ANY($1::bigint[])
"""

JOB_IS_VALID = f"number = $1 AND attempts = $2 AND {UNFINISHED}"

EXTEND_CLAIM = f"""
UPDATE vector_files SET due_at = {NOW} + $3::float8 WHERE {JOB_IS_VALID} RETURNING 1
"""

LOCK_JOB = f"SELECT tenant, chunks FROM vector_files WHERE {JOB_IS_VALID} FOR UPDATE"

RESET_FILE = "UPDATE vector_files SET usage_bytes = 0, chunks = 0 WHERE number = $1"

FINISH = f"""
UPDATE vector_files SET status = $3, last_error = $4 WHERE {JOB_IS_VALID} RETURNING 1
"""

# --- chunks ---------------------------------------------------------------------------------------

# `plain` has the words of a chunk with spaces between them. Each word of the index begins with the
# number of the tenant. Words consist of letters and digits, so they need no escaping.
ADD_CHUNKS = """
WITH added AS (
    INSERT INTO vector_chunks (number, file, overlap_chars, text, words, length)
    SELECT c.number, $1, c.overlap_chars, c.text, coalesce(w.words, ''), coalesce(w.length, 0)
    FROM unnest($3::bigint[], $4::int[], $5::text[], $6::text[])
        AS c (number, overlap_chars, text, plain)
    CROSS JOIN LATERAL (
        SELECT sum(cardinality(positions))::int AS length,
            string_agg('''' || $2::bigint || ':' || lexeme || ''':'
                || array_to_string(positions, ','), ' ')::tsvector AS words
        FROM unnest(to_tsvector('stemmed', c.plain))
    ) AS w
    RETURNING length
), counted AS (
    UPDATE vector_tenants SET chunks = chunks + (SELECT count(*) FROM added),
        words = words + (SELECT coalesce(sum(length), 0) FROM added)
    WHERE number = $2
)
UPDATE vector_files SET chunks = chunks + (SELECT count(*) FROM added),
    usage_bytes = usage_bytes + $7
WHERE number = $1
"""

ADD_VECTORS = """
INSERT INTO vector_parts (file, first, count, model, content) VALUES ($1, $2, $3, $4, $5)
"""

# Up to $3 chunks. Returns how many they were.
ERASE_CHUNKS = """
WITH old AS (
    SELECT number FROM vector_chunks
    WHERE number BETWEEN $1::bigint << 24 AND ($1::bigint + 1 << 24) - 1
    ORDER BY number LIMIT $3
), erased AS (
    DELETE FROM vector_chunks USING old WHERE vector_chunks.number = old.number RETURNING length
), vectors AS (
    DELETE FROM vector_parts WHERE file = $1
), counted AS (
    UPDATE vector_tenants SET chunks = chunks - (SELECT count(*) FROM erased),
        words = words - (SELECT coalesce(sum(length), 0) FROM erased)
    WHERE number = $2 AND EXISTS (SELECT 1 FROM erased)
)
SELECT count(*) FROM erased
"""

EXPIRE_FILES = """
UPDATE vector_files SET is_removed = true
WHERE NOT is_removed AND store IN (
    SELECT number FROM vector_stores WHERE expires_at <= $1 AND NOT is_removed)
"""

REMOVED_FILES = "SELECT number, tenant FROM vector_files WHERE is_removed ORDER BY number LIMIT $1"

ERASE_FILE = "DELETE FROM vector_files WHERE number = $1 AND is_removed"

ERASE_STORES = """
WITH gone AS (
    SELECT number FROM vector_stores s WHERE is_removed
        AND NOT EXISTS (SELECT 1 FROM vector_files WHERE store = s.number)
    LIMIT $1
), batches AS (
    DELETE FROM vector_batches USING gone WHERE vector_batches.store = gone.number
)
DELETE FROM vector_stores USING gone WHERE vector_stores.number = gone.number RETURNING 1
"""

# --- search ---------------------------------------------------------------------------------------

SEARCHED_FILES = """
SELECT f.number, f.attributes, f.tenant
FROM vector_tenants t JOIN vector_stores s ON s.tenant = t.number
JOIN vector_files f ON f.store = s.number
WHERE t.name = $1 AND s.id = ANY($2::text[]) AND NOT s.is_removed
    AND f.status = 'completed' AND NOT f.is_removed
"""

STEMS = "SELECT lexeme FROM unnest(to_tsvector('stemmed', $1::text)) ORDER BY positions"

# How many chunks of the tenant have each word.
COUNT_MATCHES = """
SELECT (SELECT count(*) FROM vector_chunks
        WHERE words @@ ('''' || $1::bigint || ':' || word || '''')::tsquery)
FROM unnest($2::text[]) WITH ORDINALITY AS w (word, place) ORDER BY place
"""

TENANT_TOTALS = "SELECT chunks, words FROM vector_tenants WHERE number = $1"

# BM25 as Lucene computes it, as a share of the highest score that any text could have.
_SCORES = """
SELECT c.number, least(1, sum(
    ($3::float8[])[array_position($2::text[], w.lexeme)] * cardinality(w.positions)
    / (cardinality(w.positions) + 1.2 * (0.25 + 0.75 * c.length / $4::float8))
) / $5::float8) AS score
FROM vector_chunks c CROSS JOIN LATERAL unnest(c.words) AS w (lexeme, positions, weights)
WHERE c.words @@ $1::text::tsquery AND w.lexeme = ANY($2::text[]) AND {condition}
GROUP BY c.number ORDER BY score DESC, c.number LIMIT $7
"""
BEST_CHUNKS = _SCORES.format(condition="c.file = ANY($6::bigint[])")
SCORES_OF = _SCORES.format(condition="c.number = ANY($6::bigint[])")

VECTOR_PARTS = """
SELECT first, count FROM vector_parts
WHERE file = ANY($1::bigint[]) AND model = $2 AND octet_length(content) = count * $3::bigint
ORDER BY first
"""

VECTOR_CONTENTS = """
SELECT first, content FROM vector_parts
WHERE (file, first) IN (SELECT first >> 24, first FROM unnest($1::bigint[]) AS first)
"""

PASSAGES = """
SELECT c.number, f.id, f.filename, f.attributes, c.text
FROM vector_chunks c JOIN vector_files f ON f.number = c.file
WHERE c.number = ANY($1::bigint[]) AND NOT f.is_removed
"""
