-- What a key may do beyond logging in, and for how long; 0: for ever.
ALTER TABLE keys ADD COLUMN scope    TEXT    NOT NULL DEFAULT '';
ALTER TABLE keys ADD COLUMN no_touch INTEGER NOT NULL DEFAULT 0;
ALTER TABLE keys ADD COLUMN expires  INTEGER NOT NULL DEFAULT 0;

-- An invite is deleted by whoever uses it. Its code is not kept, only a hash.
CREATE TABLE invites (
	hash    BLOB    NOT NULL PRIMARY KEY,
	user_id INTEGER NOT NULL REFERENCES users (id) ON DELETE CASCADE,
	created INTEGER NOT NULL,
	expires INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
