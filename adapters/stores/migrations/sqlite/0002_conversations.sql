-- Conversations. An item is one row, for the response that brought it and for its conversation.

-- `metadata` is JSON. `held_by` is the response that has the conversation to itself. `next_place`
-- never goes back, so that places tell what came later also after items were removed.
CREATE TABLE conversations (
    number INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    metadata BLOB NOT NULL,
    held_by TEXT,
    next_place INTEGER NOT NULL,
    UNIQUE (tenant, id)
) STRICT;

CREATE INDEX conversations_held ON conversations (tenant, held_by) WHERE held_by IS NOT NULL;

-- The conversation that the response was made in: it was given the items at places below `given`.
ALTER TABLE responses ADD COLUMN conversation TEXT;
ALTER TABLE responses ADD COLUMN given INTEGER;

-- An item that no response brought, or whose response is gone, has the conversation's id as its
-- response_id, 2 as its kind and its place as its position.
ALTER TABLE items ADD COLUMN conversation_id TEXT;
ALTER TABLE items ADD COLUMN place INTEGER;

CREATE INDEX items_by_conversation ON items (tenant, conversation_id, place)
    WHERE conversation_id IS NOT NULL;
