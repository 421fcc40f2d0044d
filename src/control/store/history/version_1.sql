-- The tables of version 1, as fabricgate made them before collectives were kept: never changed.
CREATE TABLE runs (
    n          INTEGER PRIMARY KEY,
    run        TEXT NOT NULL UNIQUE,
    at         TEXT NOT NULL,
    at_unix    INTEGER NOT NULL,
    profile    TEXT NOT NULL,
    source     TEXT NOT NULL,
    version    TEXT NOT NULL,
    state      TEXT NOT NULL,
    outcome    TEXT,
    platform   TEXT,
    thresholds TEXT NOT NULL,
    tools      TEXT NOT NULL,
    folder     TEXT NOT NULL,
    signature  TEXT NOT NULL,
    simulated  INTEGER NOT NULL,
    thinned    INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX runs_at ON runs (at_unix);
CREATE VIEW counted AS
    SELECT * FROM runs WHERE simulated = (SELECT min(simulated) FROM runs);
CREATE TABLE identities (
    id     INTEGER PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    facts  TEXT NOT NULL
);
CREATE TABLE nodes (
    n        INTEGER NOT NULL REFERENCES runs (n) ON DELETE CASCADE,
    node     TEXT NOT NULL,
    domain   TEXT,
    outcome  TEXT NOT NULL,
    reason   TEXT NOT NULL,
    measured INTEGER NOT NULL,
    complete INTEGER NOT NULL,
    worst    REAL,
    identity INTEGER REFERENCES identities (id),
    PRIMARY KEY (n, node)
) WITHOUT ROWID;
CREATE INDEX nodes_by_name ON nodes (node, n);
CREATE TABLE series (
    id        INTEGER PRIMARY KEY,
    kind      TEXT NOT NULL,
    domain    TEXT NOT NULL DEFAULT '',
    node      TEXT NOT NULL DEFAULT '',
    gpu       INTEGER NOT NULL DEFAULT -1,
    rail      TEXT NOT NULL DEFAULT '',
    direction TEXT NOT NULL DEFAULT '',
    testcase  TEXT NOT NULL,
    unit      TEXT NOT NULL,
    UNIQUE (kind, domain, node, gpu, rail, direction, testcase, unit)
);
CREATE TABLE points (
    series   INTEGER NOT NULL REFERENCES series (id),
    n        INTEGER NOT NULL REFERENCES runs (n) ON DELETE CASCADE,
    value    REAL NOT NULL,
    error    REAL,
    expected REAL,
    outcome  TEXT,
    PRIMARY KEY (series, n)
) WITHOUT ROWID;
CREATE INDEX points_of_run ON points (n);
CREATE TABLE thinned (
    series  INTEGER NOT NULL REFERENCES series (id),
    from_unix INTEGER NOT NULL,
    days    INTEGER NOT NULL,
    median  REAL NOT NULL,
    least   REAL NOT NULL,
    count   INTEGER NOT NULL,
    guilty  INTEGER NOT NULL,
    run     TEXT NOT NULL,
    at      TEXT NOT NULL,
    at_unix INTEGER NOT NULL,
    PRIMARY KEY (series, from_unix)
) WITHOUT ROWID;
CREATE TABLE ends (
    id     INTEGER PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    pairs  TEXT NOT NULL
);
CREATE TABLE links (
    n        INTEGER NOT NULL REFERENCES runs (n) ON DELETE CASCADE,
    testcase TEXT NOT NULL,
    unit     TEXT NOT NULL,
    rail     TEXT NOT NULL DEFAULT '',
    ends     INTEGER NOT NULL REFERENCES ends (id),
    readings TEXT NOT NULL,
    PRIMARY KEY (n, testcase, unit, rail)
) WITHOUT ROWID;
CREATE VIEW link_points AS
    SELECT runs.run, runs.at, links.testcase, links.rail,
           json_extract(pairs.value, '$[0]') AS sender, json_extract(pairs.value, '$[1]') AS receiver,
           readings.value AS value, links.unit
    FROM links JOIN runs USING (n) JOIN ends ON ends.id = links.ends,
         json_each(ends.pairs) AS pairs, json_each(links.readings) AS readings
    WHERE pairs.key = readings.key AND readings.value IS NOT NULL;
CREATE TABLE findings (
    n         INTEGER NOT NULL REFERENCES runs (n) ON DELETE CASCADE,
    id        TEXT NOT NULL,
    outcome   TEXT NOT NULL,
    class     TEXT NOT NULL,
    kind      TEXT NOT NULL,
    domain    TEXT,
    node      TEXT,
    gpu       INTEGER,
    peer      TEXT,
    rail      TEXT,
    direction TEXT,
    measured  REAL,
    expected  REAL,
    unit      TEXT,
    ratio     REAL,
    confirmed INTEGER NOT NULL,
    summary   TEXT NOT NULL,
    PRIMARY KEY (n, id)
) WITHOUT ROWID;
CREATE TABLE alarms (
    series    INTEGER NOT NULL REFERENCES series (id),
    chart     TEXT NOT NULL,
    run       TEXT NOT NULL,
    at        TEXT NOT NULL,
    at_unix   INTEGER NOT NULL,
    since     TEXT NOT NULL,
    shift     REAL NOT NULL,
    statistic REAL NOT NULL,
    PRIMARY KEY (series, run, chart)
) WITHOUT ROWID;
PRAGMA application_id = 1718051188;
PRAGMA user_version = 1;
