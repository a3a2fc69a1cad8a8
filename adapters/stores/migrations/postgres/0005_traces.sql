-- What the models of some responses read and wrote, sealed. `responses.bytes` counts it.

CREATE TABLE traces (
    response BIGINT PRIMARY KEY,
    body BYTEA NOT NULL
);

-- A sealed trace cannot be compressed.
ALTER TABLE traces ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE FUNCTION remove_trace() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM traces WHERE response = NEW.number;
    RETURN NULL;
END $$;

-- A response that others continue stays as a row without a body.
CREATE TRIGGER remove_trace AFTER UPDATE OF body ON responses
    FOR EACH ROW WHEN (NEW.body IS NULL) EXECUTE FUNCTION remove_trace();
