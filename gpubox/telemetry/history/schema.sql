-- The braces stand for the names of the columns.
CREATE TABLE launches (
    id INTEGER PRIMARY KEY,
    identity TEXT NOT NULL UNIQUE,
    profile TEXT NOT NULL,
    started REAL NOT NULL,
    seen REAL NOT NULL,
    ended REAL,
    how TEXT NOT NULL DEFAULT '',
    message TEXT NOT NULL DEFAULT '',
    engine_path TEXT NOT NULL DEFAULT '',
    engine_version TEXT NOT NULL DEFAULT '',
    driver TEXT NOT NULL DEFAULT '',
    argv TEXT NOT NULL DEFAULT '[]',
    measured INTEGER NOT NULL DEFAULT 0,
    log_bytes INTEGER NOT NULL DEFAULT 0,
    log_requests INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX launches_started ON launches (started);
CREATE TABLE requests (launch, client, {requests}, PRIMARY KEY (launch, task)) WITHOUT ROWID;
CREATE INDEX requests_at ON requests (at);
CREATE TABLE minutes (minute, launch, {minutes}, PRIMARY KEY (minute, launch)) WITHOUT ROWID;
CREATE TABLE judged (day INTEGER NOT NULL, slowdowns TEXT NOT NULL);
