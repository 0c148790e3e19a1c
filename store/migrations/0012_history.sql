-- What users typed at the lobby's prompt, for them to find again.
CREATE TABLE history (
	id      INTEGER PRIMARY KEY,
	user_id INTEGER NOT NULL REFERENCES users (id) ON DELETE CASCADE,
	line    TEXT    NOT NULL
) STRICT;

CREATE INDEX history_of_user ON history (user_id, id);
