-- What the models of some responses read and wrote, sealed. `response` is the response's `number`.

CREATE TABLE traces (
    response INTEGER PRIMARY KEY,
    body BLOB NOT NULL
) STRICT;

CREATE TRIGGER traces_come AFTER INSERT ON traces BEGIN
    UPDATE uses SET bytes = bytes + length(new.body)
    WHERE tenant = (SELECT tenant FROM responses WHERE number = new.response);
END;

CREATE TRIGGER traces_go AFTER DELETE ON traces BEGIN
    UPDATE uses SET bytes = bytes - length(old.body)
    WHERE tenant = (SELECT tenant FROM responses WHERE number = old.response);
END;

-- A response that others continue stays as a row without a body.
CREATE TRIGGER traces_go_with_response AFTER UPDATE OF body ON responses WHEN new.body IS NULL BEGIN
    DELETE FROM traces WHERE response = new.number;
END;
