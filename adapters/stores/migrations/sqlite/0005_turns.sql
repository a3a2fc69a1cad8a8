-- By tenant: tenants take turns when their waiting runs are leased.
DROP INDEX responses_running;
CREATE INDEX responses_running ON responses (owner, tenant, number)
    WHERE status IN ('queued', 'in_progress');
