-- Responses, and items kept once with the response that brought them.

-- `body` is the response's JSON without its output; NULL once the response is deleted while others
-- still continue it. `parent` is the stored response of the same tenant that this one continues.
CREATE TABLE responses (
    number INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    parent TEXT,
    status TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    body BLOB,
    UNIQUE (tenant, id)
) STRICT;

CREATE INDEX responses_by_parent ON responses (tenant, parent) WHERE parent IS NOT NULL;

-- Holds the running ones alone, so that it stays small.
CREATE INDEX responses_unfinished ON responses (status) WHERE status IN ('queued', 'in_progress');

-- A higher `number` was written later. `kind` is 0 for input, 1 for output: the order of reading.
CREATE TABLE items (
    number INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    response_id TEXT NOT NULL,
    kind INTEGER NOT NULL,
    position INTEGER NOT NULL,
    item_id TEXT,
    body BLOB NOT NULL,
    UNIQUE (tenant, response_id, kind, position)
) STRICT;

CREATE INDEX items_by_id ON items (tenant, item_id);
