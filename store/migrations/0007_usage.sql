-- What was used, by sandbox and day in UTC. The rows stay when the sandbox, its
-- name or its owner goes. NULL is what could not be measured.
CREATE TABLE usage (
	user_id            INTEGER NOT NULL, -- 0: of a user who is gone
	day                TEXT    NOT NULL, -- 2006-01-02
	sandbox_id         TEXT    NOT NULL,
	user               TEXT    NOT NULL, -- their names, then
	sandbox            TEXT    NOT NULL,
	running_ms         INTEGER NOT NULL,
	cpu_ms             INTEGER,
	memory_peak        INTEGER,
	bytes_in           INTEGER NOT NULL,
	bytes_out          INTEGER NOT NULL,
	sessions           INTEGER NOT NULL,
	jobs               INTEGER NOT NULL,
	tokens_in          INTEGER NOT NULL, -- uncached
	tokens_cache_read  INTEGER NOT NULL,
	tokens_cache_write INTEGER NOT NULL,
	tokens_out         INTEGER NOT NULL,
	cost_micros        INTEGER NOT NULL, -- millionths of a US dollar
	PRIMARY KEY (user_id, day, sandbox_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX usage_by_sandbox ON usage (sandbox_id, day);
CREATE INDEX usage_by_day ON usage (day);

-- The id of a user who is gone may be given to another.
CREATE TRIGGER usage_outlives_user AFTER DELETE ON users BEGIN
	UPDATE usage SET user_id = 0 WHERE user_id = old.id;
END;

-- Sandboxes that run, and up to when that is in usage. Both change together.
CREATE TABLE running (
	sandbox_id TEXT    NOT NULL PRIMARY KEY REFERENCES sandboxes (id) ON DELETE CASCADE,
	charged    INTEGER NOT NULL,
	cpu_ms     INTEGER NOT NULL -- of its processors' time, since it was started
) STRICT, WITHOUT ROWID;
