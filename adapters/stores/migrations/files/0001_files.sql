-- What the folder of uploaded files holds, so that a page of a list and the use of a tenant need not
-- read all descriptions. The folder has the truth: the server repairs this index when it starts.
CREATE TABLE files (
    key        INTEGER PRIMARY KEY,
    folder     TEXT NOT NULL,
    id         TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    purpose    TEXT NOT NULL,
    bytes      INTEGER NOT NULL,
    described  BLOB NOT NULL,
    UNIQUE (folder, id)
) STRICT;
CREATE INDEX files_in_order ON files (folder, created_at, key);
CREATE INDEX files_of_purpose ON files (folder, purpose, created_at, key);

CREATE TABLE usage (
    folder TEXT PRIMARY KEY,
    files  INTEGER NOT NULL,
    bytes  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TRIGGER file_added AFTER INSERT ON files BEGIN
    INSERT INTO usage VALUES (new.folder, 1, new.bytes)
    ON CONFLICT DO UPDATE SET files = files + 1, bytes = usage.bytes + new.bytes;
END;
CREATE TRIGGER file_removed AFTER DELETE ON files BEGIN
    UPDATE usage SET files = files - 1, bytes = usage.bytes - old.bytes WHERE folder = old.folder;
    DELETE FROM usage WHERE folder = old.folder AND files = 0;
END;
