//! Hostile text in a run folder, through every command that displays one.
//!
//! Every text of a kind (`node`, `summary`, ...) gets a tail that would clear the screen, rename
//! the window, reverse the line, run a script, begin a formula and begin a new line. One kind at
//! a time: some of them end in a refusal, which must be as harmless.

use std::fs;

use serde_json::Value;

use super::place::Place;

/// Bell, clear, title, C1's CSI, right-to-left, markup, a quote, a formula, a line.
const TAIL: &str =
    "\u{1b}]0;OWNED\u{7}\u{1b}[2J\u{9b}1m\u{202e}<script>alert(1)</script>\"'=1+1\nX";

/// Keys of the texts in a run folder.
const KINDS: &[&str] = &[
    "rule",
    "summary",
    "notes",
    "what",
    "why",
    "detail",
    "source",
    "version",
    "id",
    "run",
    "node",
    "nodes",
    "src_node",
    "domain",
    "scope",
    "testcase",
    "file",
    "stdout",
    "hostname",
    "driver",
    "tool_version",
    "command",
    "parser",
];

/// The same value with the tail behind every text of this kind.
fn tainted(value: &mut Value, kind: &str, is_one: bool) {
    match value {
        Value::String(text) if is_one => text.push_str(TAIL),
        Value::Array(items) => items.iter_mut().for_each(|it| tainted(it, kind, is_one)),
        Value::Object(map) => {
            map.iter_mut().for_each(|(key, it)| tainted(it, kind, key == kind));
        }
        _ => {}
    }
}

fn taint(place: &Place, kind: &str) {
    let run = place.foreign_run();
    for entry in fs::read_dir(run).expect("a folder") {
        let path = entry.expect("an entry").path();
        let end = path.extension().map(|it| it.to_string_lossy().into_owned());
        let lines = match end.as_deref() {
            Some("json") => vec![fs::read_to_string(&path).expect("text")],
            Some("jsonl") => {
                let text = fs::read_to_string(&path).expect("text");
                text.lines().map(str::to_owned).collect()
            }
            _ => continue,
        };
        let mut text = String::new();
        for line in lines {
            let mut value: Value = serde_json::from_str(&line).expect("JSON");
            tainted(&mut value, kind, false);
            text.push_str(&value.to_string());
            text.push('\n');
        }
        fs::write(path, text).expect("written");
    }
}

/// The first part of a text that would affect a terminal.
fn steers(text: &str) -> Option<String> {
    let bad = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || ('\u{202a}'..='\u{202e}').contains(&c)
            || ('\u{2066}'..='\u{2069}').contains(&c)
    };
    let at = text.find(bad)?;
    Some(text[at..].chars().take(40).collect())
}

#[test]
fn no_text_of_an_untrusted_run_controls_a_terminal_or_a_page() {
    let all: &[&[&str]] = &[
        &["report", "runs/r"],
        &["report", "runs/r", "--json"],
        &["report", "runs/r", "--format", "csv"],
        &["report", "runs/r", "--format", "junit"],
        &["report", "runs/r", "--format", "html"],
        &["explain", "runs/r", "box2"],
        &["replay", "runs/r"],
        &["apply", "runs/r"],
    ];
    let mut shown = 0;
    for kind in KINDS {
        let place = Place::new();
        taint(&place, kind);
        for args in all {
            let ended = place.run(args);
            // A coloured report keeps its colours; none is requested here.
            for text in [&ended.stdout, &ended.stderr] {
                assert_eq!(steers(text), None, "{kind}: {args:?}");
            }
            if args.contains(&"html") && ended.code == Some(0) {
                assert!(!ended.stdout.contains("<script>alert"), "{kind}: a script on the page");
            }
            if args.contains(&"csv") && ended.code == Some(0) {
                let mut rows = csv::Reader::from_reader(ended.stdout.as_bytes());
                for row in rows.records() {
                    let row = row.expect("a row as wide as all others");
                    assert!(row.iter().all(|it| !it.starts_with(['=', '+', '@'])), "{row:?}");
                }
            }
            if args.contains(&"junit") && ended.code == Some(0) {
                roxmltree::Document::parse(&ended.stdout).expect("XML");
            }
            shown += usize::from(ended.stdout.contains("OWNED"));
        }
    }
    assert!(20 < shown, "only {shown} answers showed the hostile words at all");
}

#[test]
fn a_bundle_is_named_and_packed_without_leading_anywhere() {
    let place = Place::new();
    let run = place.foreign_run();
    super::place::change(&run.join("run.json"), |run| {
        let hostile = "../../../tmp/x\u{1b}[2J/..";
        let info = if run["info"].is_object() { &mut run["info"] } else { run };
        assert!(info["id"].is_string());
        info["id"] = hostile.into();
    });
    let ended = place.run(&["report", "runs/r", "--bundle", "box2"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let name = ended.stdout.split(": ").next().expect("a name").to_owned();
    assert!(!name.contains(['/', '\u{1b}']), "{name:?}");
    let packed = fs::File::open(place.path(&name)).expect("here and nowhere else");
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(packed));
    for entry in archive.entries().expect("entries") {
        let entry = entry.expect("an entry");
        let path = entry.path().expect("a name").into_owned();
        let is_below = |c| matches!(c, std::path::Component::Normal(_));
        assert!(path.components().all(is_below), "{}", path.display());
        assert!(entry.header().entry_type().is_file(), "{}", path.display());
    }
}
