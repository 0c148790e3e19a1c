-- The last run of a sandbox's setup command.
CREATE TABLE setups (
	sandbox_id TEXT    NOT NULL PRIMARY KEY REFERENCES sandboxes (id) ON DELETE CASCADE,
	done       INTEGER NOT NULL CHECK (done IN (0, 1)),
	how        TEXT    NOT NULL,
	ended      INTEGER NOT NULL,
	log        BLOB    NOT NULL
) STRICT, WITHOUT ROWID;
