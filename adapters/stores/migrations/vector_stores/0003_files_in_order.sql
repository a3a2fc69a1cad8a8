-- A page of a store's files is read from here.
CREATE INDEX files_in_order ON files (store, key) WHERE NOT is_removed;
