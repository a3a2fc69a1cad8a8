-- Names that the field uses, for what had others.

ALTER TABLE repeats RENAME TO idempotency_keys;
DROP INDEX repeats_by_response;
CREATE INDEX idempotency_keys_by_response ON idempotency_keys (tenant, response_id);
DROP INDEX repeats_expiring;
CREATE INDEX idempotency_keys_expiring ON idempotency_keys (expires_at);

ALTER TABLE notices RENAME TO webhook_deliveries;
DROP INDEX notices_due;
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (due_at);

ALTER TABLE agreed RENAME TO shared_values;

-- The context of a response has the items of its conversation at places below this.
ALTER TABLE responses RENAME COLUMN given TO context_end;

-- The response that has claimed the conversation, and the server that claimed it for that.
ALTER TABLE conversations RENAME COLUMN held_by TO claimed_by;
ALTER TABLE conversations RENAME COLUMN holder TO claim_owner;
DROP INDEX conversations_held;
CREATE INDEX conversations_claimed ON conversations (tenant, claimed_by)
    WHERE claimed_by IS NOT NULL;

-- SQLite would make `excluded` in a trigger the table that is renamed: so they are written anew.
DROP TRIGGER responses_come;
DROP TRIGGER responses_change;
DROP TRIGGER items_come;
DROP TRIGGER items_go;
DROP TRIGGER events_come;
DROP TRIGGER events_go;
DROP TRIGGER traces_come;
DROP TRIGGER traces_go;
ALTER TABLE uses RENAME TO storage_usage;

CREATE TRIGGER response_added AFTER INSERT ON responses BEGIN
    INSERT INTO storage_usage (tenant, responses, bytes) VALUES (new.tenant, 1, length(new.body))
    ON CONFLICT (tenant) DO UPDATE
    SET responses = responses + 1, bytes = bytes + excluded.bytes;
END;

CREATE TRIGGER response_changed AFTER UPDATE OF body ON responses BEGIN
    UPDATE storage_usage
    SET responses = responses - (new.body IS NULL AND old.body IS NOT NULL),
        bytes = bytes + coalesce(length(new.body), 0) - coalesce(length(old.body), 0)
    WHERE tenant = new.tenant;
END;

CREATE TRIGGER item_added AFTER INSERT ON items BEGIN
    INSERT INTO storage_usage (tenant, responses, bytes) VALUES (new.tenant, 0, length(new.body))
    ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + excluded.bytes;
END;

CREATE TRIGGER item_removed AFTER DELETE ON items BEGIN
    UPDATE storage_usage SET bytes = bytes - length(old.body) WHERE tenant = old.tenant;
END;

CREATE TRIGGER event_added AFTER INSERT ON events BEGIN
    UPDATE storage_usage SET bytes = bytes + length(new.body)
    WHERE tenant = (SELECT tenant FROM responses WHERE number = new.response);
END;

CREATE TRIGGER event_removed AFTER DELETE ON events BEGIN
    UPDATE storage_usage SET bytes = bytes - length(old.body)
    WHERE tenant = (SELECT tenant FROM responses WHERE number = old.response);
END;

CREATE TRIGGER trace_added AFTER INSERT ON traces BEGIN
    UPDATE storage_usage SET bytes = bytes + length(new.body)
    WHERE tenant = (SELECT tenant FROM responses WHERE number = new.response);
END;

CREATE TRIGGER trace_removed AFTER DELETE ON traces BEGIN
    UPDATE storage_usage SET bytes = bytes - length(old.body)
    WHERE tenant = (SELECT tenant FROM responses WHERE number = old.response);
END;
