-- A secret without a sandbox is in its owner's vault, and reaches the sandboxes
-- that it is given to. One with a sandbox is that sandbox's alone.
CREATE TABLE secrets (
	id         INTEGER PRIMARY KEY,
	user_id    INTEGER NOT NULL REFERENCES users (id) ON DELETE CASCADE,
	sandbox_id TEXT             REFERENCES sandboxes (id) ON DELETE CASCADE,
	name       TEXT    NOT NULL,
	form       TEXT    NOT NULL CHECK (form IN ('env', 'file')),
	key_id     TEXT    NOT NULL,
	sealed     BLOB    NOT NULL,
	changed    INTEGER NOT NULL,
	last_used  INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX secrets_by_name ON secrets (user_id, coalesce(sandbox_id, ''), name);
CREATE INDEX secrets_by_sandbox ON secrets (sandbox_id);
CREATE INDEX secrets_by_key ON secrets (key_id);

CREATE TABLE secret_grants (
	sandbox_id TEXT    NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
	secret_id  INTEGER NOT NULL REFERENCES secrets (id) ON DELETE CASCADE,
	PRIMARY KEY (sandbox_id, secret_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX secret_grants_by_secret ON secret_grants (secret_id);
