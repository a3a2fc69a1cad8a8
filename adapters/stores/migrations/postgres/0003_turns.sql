-- Tenants take turns when their waiting runs are leased.
CREATE INDEX runs_waiting ON runs (tenant, response) WHERE owner IS NULL;
