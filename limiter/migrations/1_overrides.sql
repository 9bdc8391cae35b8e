-- The tier of each tenant, for services that do not keep it elsewhere in this database.
CREATE TABLE rate_limit_tenants (
    tenant TEXT PRIMARY KEY,
    tier TEXT NOT NULL
);

-- Quotas of single tenants, over those of their tier; written as `100/minute, burst 20`.
CREATE TABLE rate_limit_overrides (
    tenant TEXT NOT NULL,
    class TEXT NOT NULL,
    quota TEXT NOT NULL,
    PRIMARY KEY (tenant, class)
);
