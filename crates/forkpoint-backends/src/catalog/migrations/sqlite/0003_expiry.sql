-- When a sandbox's time is over. Those that have no end are in no index.
ALTER TABLE sandbox ADD COLUMN expires TEXT;

CREATE INDEX sandbox_by_expiry ON sandbox (expires) WHERE expires IS NOT NULL;
