-- How to find out whether a service is well, as JSON; empty: it is not looked at.
ALTER TABLE services ADD COLUMN health TEXT NOT NULL DEFAULT '';
