-- What was done, in order, and by whom. Each hash is over the row and the hash
-- before it, so that no row can be changed, removed or put in between unseen.
CREATE TABLE audit (
	id       INTEGER PRIMARY KEY, -- without gaps
	time     INTEGER NOT NULL,
	conn     TEXT    NOT NULL, -- id of the connection; empty: of none
	remote   TEXT    NOT NULL, -- address of the client
	user_id  INTEGER NOT NULL, -- 0: nobody who was known then, or is now; not in the hash
	user     TEXT    NOT NULL, -- who did it, by the name they had or claimed
	owner_id INTEGER NOT NULL, -- of the sandbox; 0: of none; not in the hash
	sandbox  TEXT    NOT NULL, -- NAME.OWNER; empty: none
	kind     TEXT    NOT NULL,
	outcome  TEXT    NOT NULL,
	detail   TEXT    NOT NULL,
	hash     BLOB    NOT NULL
) STRICT;

CREATE INDEX audit_by_user ON audit (user_id, id);
CREATE INDEX audit_by_owner ON audit (owner_id, id);

-- Recordings of terminals. The files have the id's name.
CREATE TABLE recordings (
	id       TEXT    NOT NULL PRIMARY KEY,
	owner_id INTEGER NOT NULL, -- 0: of a user who is gone
	sandbox  TEXT    NOT NULL, -- NAME.OWNER
	user     TEXT    NOT NULL, -- whose terminal it was
	conn     TEXT    NOT NULL,
	started  INTEGER NOT NULL,
	ended    INTEGER NOT NULL, -- 0: not yet, or the gateway was killed
	size     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX recordings_by_owner ON recordings (owner_id, started);

-- The id of a user who is gone may be given to another.
CREATE TRIGGER audit_outlives_user AFTER DELETE ON users BEGIN
	UPDATE audit SET user_id = 0 WHERE user_id = old.id;
	UPDATE audit SET owner_id = 0 WHERE owner_id = old.id;
	UPDATE recordings SET owner_id = 0 WHERE owner_id = old.id;
END;
