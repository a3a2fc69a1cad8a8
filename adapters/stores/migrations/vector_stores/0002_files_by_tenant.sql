-- The files that are due, by tenant: servers take those of each tenant in turn.
ALTER TABLE files ADD COLUMN tenant INTEGER REFERENCES tenants;
UPDATE files SET tenant = (SELECT tenant FROM stores WHERE key = files.store);
DROP INDEX files_due;
CREATE INDEX files_due ON files (tenant, due_at, key) WHERE status = 'in_progress' AND NOT is_removed;
