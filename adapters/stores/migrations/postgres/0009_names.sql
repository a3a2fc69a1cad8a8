-- Names that the field uses, for what had others.

-- Servers of the version before would not find their tables.
DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM servers WHERE alive_until > clock_timestamp()) THEN
        RAISE EXCEPTION 'servers of an older version are using it; stop them first';
    END IF;
END $$;

ALTER TABLE repeats RENAME TO idempotency_keys;
ALTER INDEX repeats_pkey RENAME TO idempotency_keys_pkey;
ALTER INDEX repeats_by_response RENAME TO idempotency_keys_by_response;
ALTER INDEX repeats_expiring RENAME TO idempotency_keys_expiring;

ALTER TABLE notices RENAME TO webhook_deliveries;
ALTER INDEX notices_pkey RENAME TO webhook_deliveries_pkey;
ALTER INDEX notices_due RENAME TO webhook_deliveries_due;

ALTER TABLE agreed RENAME TO shared_values;
ALTER INDEX agreed_pkey RENAME TO shared_values_pkey;

-- The context of a response has the items of its conversation at places below this.
ALTER TABLE responses RENAME COLUMN given TO context_end;

-- The response that has claimed the conversation, and the server that claimed it for that.
ALTER TABLE conversations RENAME COLUMN held_by TO claimed_by;
ALTER TABLE conversations RENAME COLUMN held_owner TO claim_owner;
ALTER INDEX conversations_held RENAME TO conversations_claimed;

ALTER TABLE files RENAME COLUMN described TO body;
ALTER TABLE vector_stores RENAME COLUMN described TO body;
ALTER TABLE vector_chunks RENAME COLUMN repeats TO overlap_chars;

ALTER TABLE uses RENAME TO storage_usage;
ALTER INDEX uses_pkey RENAME TO storage_usage_pkey;
ALTER FUNCTION add_use RENAME TO add_storage_usage;

CREATE OR REPLACE FUNCTION count_response() RETURNS TRIGGER LANGUAGE plpgsql AS $$
DECLARE
    before INTEGER := (TG_OP <> 'INSERT' AND OLD.body IS NOT NULL)::INTEGER;
    after INTEGER := (TG_OP <> 'DELETE' AND NEW.body IS NOT NULL)::INTEGER;
BEGIN
    IF before + after > 0 THEN
        PERFORM add_storage_usage(
            coalesce(NEW.tenant, OLD.tenant), after - before,
            coalesce(NEW.bytes, 0) * after - coalesce(OLD.bytes, 0) * before);
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION count_conversation() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    PERFORM add_storage_usage(
        coalesce(NEW.tenant, OLD.tenant), 0, coalesce(NEW.bytes, 0) - coalesce(OLD.bytes, 0));
    RETURN NULL;
END $$;
