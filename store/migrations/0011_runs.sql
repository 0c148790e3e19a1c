-- A run of the agent belongs to a sandbox and goes with it.
CREATE TABLE runs (
	id         TEXT    NOT NULL PRIMARY KEY,
	user_id    INTEGER NOT NULL REFERENCES users (id) ON DELETE CASCADE,
	sandbox_id TEXT    NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
	title      TEXT    NOT NULL,
	options    BLOB    NOT NULL,
	state      TEXT    NOT NULL CHECK (state IN ('working', 'asking', 'idle')),
	created    INTEGER NOT NULL,
	changed    INTEGER NOT NULL
) STRICT;

CREATE INDEX runs_by_user ON runs (user_id, changed);
CREATE INDEX runs_by_sandbox ON runs (sandbox_id);
CREATE INDEX runs_at_work ON runs (state) WHERE state <> 'idle';

CREATE TABLE run_events (
	run_id TEXT    NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
	seq    INTEGER NOT NULL,
	event  BLOB    NOT NULL,
	PRIMARY KEY (run_id, seq)
) STRICT, WITHOUT ROWID;
