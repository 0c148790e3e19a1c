CREATE TABLE quotas (
	subject INTEGER NOT NULL, -- a user's id; 0: each user who has none of their own; -1: all users together
	measure TEXT    NOT NULL,
	value   INTEGER NOT NULL,
	PRIMARY KEY (subject, measure)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER quotas_end_with_user AFTER DELETE ON users BEGIN
	DELETE FROM quotas WHERE subject = old.id;
END;
