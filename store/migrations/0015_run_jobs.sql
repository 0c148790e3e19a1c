-- A command of a run that went on when its call had returned. It is here until the
-- run's log says how it ended.
CREATE TABLE run_jobs (
	run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
	job    TEXT NOT NULL,
	PRIMARY KEY (run_id, job)
) STRICT, WITHOUT ROWID;
