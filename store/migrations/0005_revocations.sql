-- What is never to be accepted again: the fingerprint of a key or of an
-- authority, or what certificates have in common, as in serial=7 and id=bob.
CREATE TABLE revocations (
	what    TEXT    NOT NULL PRIMARY KEY,
	created INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
