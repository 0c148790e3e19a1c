-- Times are milliseconds since 1970 in UTC; 0 means never.

CREATE TABLE users (
	id      INTEGER PRIMARY KEY,
	name    TEXT    NOT NULL UNIQUE,
	role    TEXT    NOT NULL CHECK (role IN ('admin', 'user')),
	created INTEGER NOT NULL
) STRICT;

CREATE TABLE keys (
	fingerprint TEXT    NOT NULL PRIMARY KEY,
	user_id     INTEGER NOT NULL REFERENCES users (id) ON DELETE CASCADE,
	type        TEXT    NOT NULL,
	blob        BLOB    NOT NULL,
	name        TEXT    NOT NULL,
	created     INTEGER NOT NULL,
	last_used   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX keys_by_user ON keys (user_id);

-- A user cannot be deleted before their sandboxes: the rows are how the
-- gateway knows what is left on the hosts.
CREATE TABLE sandboxes (
	id        TEXT    NOT NULL PRIMARY KEY,
	user_id   INTEGER NOT NULL REFERENCES users (id),
	name      TEXT    NOT NULL,
	driver    TEXT    NOT NULL,
	spec      BLOB    NOT NULL,
	desired   TEXT    NOT NULL CHECK (desired IN ('running', 'stopped')),
	created   INTEGER NOT NULL,
	last_used INTEGER NOT NULL,
	UNIQUE (user_id, name)
) STRICT;
