//! The tables of the history, and the upgrade of a file of an older version.
//!
//! Everything here can be rebuilt from run folders, except thinned points and the runs whose
//! folders are missing. Operators also read the tables with the `sqlite3` shell: `docs/history.md`
//! describes them.

use rusqlite::{Connection, params};

use super::queries::parse_document_name;
use model::unit::Unit;

/// The version in `user_version`. A higher one was written by a newer program.
pub(super) const VERSION: i64 = 2;

/// `fgat` in `application_id`, by which `file(1)` and fabricgate recognize a history.
pub(super) const APPLICATION_ID: i64 = 0x6667_6174;

/// The schema of a new file.
const CREATE_TABLES: &str = "
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
";

/// Creates the tables in an empty file. Part of the caller's transaction.
pub(super) fn create_tables(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(CREATE_TABLES)?;
    connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    connection.pragma_update(None, "user_version", VERSION)
}

/// Upgrades a file of an older version, as far as its own tables allow: run folders may be missing,
/// and data that only the file holds is kept. Part of the caller's transaction, so that a failure
/// leaves the file unchanged.
///
/// A step never drops a table or a row. Data that only a run folder holds is marked to be read
/// again, and is added if the folder still exists.
pub(super) fn upgrade_schema(connection: &Connection, from: i64) -> rusqlite::Result<()> {
    if from < 2 {
        upgrade_1_to_2(connection)?;
    }
    connection.pragma_update(None, "user_version", VERSION)
}

/// From 1 to 2: the tables are the same. A node at the end of several rails had the value of the
/// first rail instead of the lowest; collectives were not stored.
fn upgrade_1_to_2(connection: &Connection) -> rusqlite::Result<()> {
    let units: Vec<String> = connection
        .prepare("SELECT DISTINCT unit FROM series WHERE kind = 'rail'")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for unit in units {
        let is_bandwidth = parse_document_name::<Unit>(&unit).is_none_or(Unit::is_bandwidth);
        // Next to min and max, SQLite returns the other columns of the same row.
        let least = if is_bandwidth { "min" } else { "max" };
        let ends = "FROM points AS ends JOIN series AS rail ON rail.id = ends.series
                    JOIN series AS own ON own.node = rail.node AND own.testcase = rail.testcase
                                      AND own.unit = rail.unit
                    WHERE rail.kind = 'rail' AND own.kind = 'node' AND own.unit = ?1";
        connection
            .prepare(&format!(
                "UPDATE points SET (value, error, expected) = (least, of_least, expected_of_least)
                 FROM (SELECT own.id AS id, ends.n AS n, {least}(ends.value) AS least,
                              ends.error AS of_least, ends.expected AS expected_of_least
                       {ends} GROUP BY own.id, ends.n) AS rolled
                 WHERE points.series = rolled.id AND points.n = rolled.n"
            ))?
            .execute(params![unit])?;
    }
    // This signature matches no folder, so the run is read again.
    connection.execute("UPDATE runs SET signature = '' WHERE NOT thinned", [])?;
    Ok(())
}
