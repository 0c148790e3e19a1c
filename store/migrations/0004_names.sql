-- Who may use somebody else's sandbox.
CREATE TABLE grants (
	sandbox_id TEXT    NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
	user_id    INTEGER NOT NULL REFERENCES users (id) ON DELETE CASCADE,
	read_only  INTEGER NOT NULL,
	created    INTEGER NOT NULL,
	PRIMARY KEY (sandbox_id, user_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX grants_by_user ON grants (user_id);

-- What a user calls a sandbox besides its name; also an address of the gateway.
CREATE TABLE aliases (
	user_id    INTEGER NOT NULL REFERENCES users (id) ON DELETE CASCADE,
	name       TEXT    NOT NULL,
	sandbox_id TEXT    NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
	created    INTEGER NOT NULL,
	PRIMARY KEY (user_id, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX aliases_by_sandbox ON aliases (sandbox_id);
