-- Commands that are kept running in a sandbox, in the order in which they were added.
CREATE TABLE services (
	id         INTEGER PRIMARY KEY,
	sandbox_id TEXT    NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
	name       TEXT    NOT NULL,
	command    TEXT    NOT NULL,
	dir        TEXT    NOT NULL,
	env        TEXT    NOT NULL, -- JSON: a list of NAME=VALUE
	created    INTEGER NOT NULL,
	UNIQUE (sandbox_id, name)
) STRICT;
