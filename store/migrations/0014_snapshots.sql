-- Disks of sandboxes as they once were. The driver knows them by their ids.
CREATE TABLE snapshots (
	id      TEXT    NOT NULL PRIMARY KEY,
	user_id INTEGER NOT NULL REFERENCES users (id) ON DELETE CASCADE,
	name    TEXT    NOT NULL,
	driver  TEXT    NOT NULL,
	spec    BLOB    NOT NULL, -- of the sandbox, then
	sandbox TEXT    NOT NULL, -- its name, then
	created INTEGER NOT NULL,
	UNIQUE (user_id, name)
) STRICT;

-- Secrets that commands of a sandbox were given since it was last started anew, and
-- that may be in its memory.
CREATE TABLE exposures (
	sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
	secret     TEXT NOT NULL, -- its name
	PRIMARY KEY (sandbox_id, secret)
) STRICT, WITHOUT ROWID;
