//! Fuzz targets for fabricgate's stored files: run folders, the history's file, and workers'
//! messages. A file from another party may have any content.
//!
//! Folders are encoded as one text: files, each after a line `%% NAME`. `kept` tests the gate's
//! files.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use control::store::history::{RunHistory, SeriesSelection};
use control::store::{file, lenient_reader, run_reader};
use engine::report;
use engine::report::TerminalStyle;
use model::run::Run;
use model::trend::FabricPartKind;
use model::worker_protocol::{CoordinatorMessage, WorkerMessage};

use super::dice::Dice;
use super::fuzz;
use super::mutation::mutate;

/// Separator between the files of a folder.
const FILE: &str = "%% ";

const TOKENS: &[&str] = &[
    "null",
    "[]",
    "{}",
    "-1",
    "1e999",
    "18446744073709551616",
    "\"\\u001b]0;x\\u0007\"",
    "\"\\u202e\"",
    "\"=1+1\"",
    "\"<script>\"",
    "\"../../../etc/passwd\"",
    "\"/etc/passwd\"",
    "\"fabricgate.run/2\"",
    "\"fabricgate.verdicts/1\"",
    "\"state\": \"running\"",
    "\"step\":18446744073709551615",
    "\"node\":\"\"",
    "\"degraded\"",
    "\"readings\":[]",
    "\n%% verdicts.json\n",
    "\n%% results.jsonl\n",
    "{\"a\":{\"a\":{\"a\":",
    ",",
    ":",
];

/// A temporary folder, in memory where such a place exists.
pub(super) fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a folder")
}

/// The program that makes the runs that are mutated.
fn program() -> PathBuf {
    // Cargo passes its path to this test, and not to the crate of ci/fuzz.d.
    let built = || option_env!("CARGO_BIN_EXE_fabricgate").map(Into::into);
    let named = std::env::var_os("FABRICGATE_FUZZ_PROGRAM").or_else(built);
    named.expect("FABRICGATE_FUZZ_PROGRAM names a program").into()
}

/// A slow node and a healthy one: small, with findings and proposals.
const MACHINES: &str = "title = \"t\"\nseed = 5\n[[domain]]\nnodes = \"box[1-2]\"\n\
    platform = \"hgx-h100\"\ngpus_per_node = 2\nper_node = true\n\
    [[fault]]\nkind = \"lost-links\"\ngpu = \"box2:1\"\ncount = 3\n";

/// Two nodes that are certified.
const RACK: &str = "title = \"t\"\nseed = 7\n[noise]\nsigma = 0.002\n[[domain]]\nname = \"rack\"\n\
    nodes = \"n[1-2]\"\nplatform = \"gb200-nvl72\"\n";

/// Simulated nodes are certified only where the site's configuration allows it, which exists for
/// this purpose.
const CONFIG: &str = "run_dir = \"good\"\n[launcher]\nkind = \"sim\"\nscenario = \"rack.toml\"\n\
    [probes]\nrun = [\"nvidia-smi-q\", \"nvbandwidth-ce\", \"nvbandwidth-lane\"]\n\
    [policy]\nsimulated = true\n";

/// Files of one run and its gate, as texts.
#[derive(Debug, Default)]
pub(super) struct Left {
    runs: Vec<Vec<u8>>,
    pub(super) certificates: Vec<Vec<u8>>,
    history: Vec<Vec<u8>>,
}

pub(super) fn left() -> &'static Left {
    static LEFT: OnceLock<Left> = OnceLock::new();
    LEFT.get_or_init(|| {
        let place = folder();
        let at = |name: &str| place.path().join(name);
        for (name, text) in
            [("machines.toml", MACHINES), ("rack.toml", RACK), ("fabricgate.toml", CONFIG)]
        {
            fs::write(at(name), text).expect("written");
        }
        measure(place.path(), &["audit", "--sim", "machines.toml"]);
        measure(place.path(), &["burn-in", "--rounds", "1", "--config", "fabricgate.toml"]);
        let mut left = Left::default();
        for run in run_reader::find_run_folders(&at("runs")).expect("a folder of runs") {
            left.runs.push(packed(&run));
        }
        for run in run_reader::find_run_folders(&at("good")).expect("a folder of runs") {
            let found = fs::read_dir(run.join("certificates"));
            for entry in found.into_iter().flatten() {
                left.certificates.push(fs::read(entry.expect("an entry").path()).expect("read"));
            }
        }
        for entry in fs::read_dir(at("good")).expect("a folder") {
            let document = entry.expect("an entry").path().join("acceptance.json");
            left.certificates.extend(fs::read(document));
        }
        left.history.push(fs::read(rebuilt(place.path())).expect("a history"));
        let counts = [left.runs.len(), left.certificates.len()];
        assert!(0 < counts[0] && 2 < counts[1], "{counts:?}");
        left
    })
}

#[expect(clippy::disallowed_methods, reason = "a test starts the program itself")]
fn measure(folder: &Path, args: &[&str]) {
    let mut command = std::process::Command::new(program());
    command.args(args).current_dir(folder).env_remove("FABRICGATE_CONFIG");
    let ended = command.output().expect("the program starts");
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!([Some(0), Some(3)].contains(&ended.status.code()), "{args:?}: {stderr}");
}

/// The history of the runs of a folder.
fn rebuilt(place: &Path) -> PathBuf {
    let path = place.join("h.db");
    let mut history = RunHistory::open(&path).expect("a new one");
    history.rebuild(&place.join("runs")).expect("rebuilt");
    path
}

/// A folder as a text; only the first few raw outputs.
fn packed(run: &Path) -> Vec<u8> {
    let mut text = Vec::new();
    let mut put = |name: &str, path: &Path| {
        if let Ok(bytes) = fs::read(path)
            && bytes.len() < 60_000
        {
            text.extend(format!("{FILE}{name}\n").into_bytes());
            text.extend(bytes);
        }
    };
    for name in file::READ {
        put(name, &run.join(name));
    }
    text
}

/// Writes a text of [`packed`] into a folder.
fn unpacked(bytes: &[u8], to: &Path) {
    let text = String::from_utf8_lossy(bytes);
    let mut file: Option<(&str, String)> = None;
    let put = |file: Option<(&str, String)>| {
        let Some((name, content)) = file else { return };
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '.';
        if !name.is_empty() && name.len() < 40 && name.chars().all(is_name) && name != ".." {
            let _ = fs::write(to.join(name), content);
        }
    };
    for line in text.split_inclusive('\n') {
        if let Some(name) = line.strip_prefix(FILE) {
            put(file.take());
            file = Some((name.trim_end(), String::new()));
        } else if let Some((_, content)) = &mut file {
            content.push_str(line);
        }
    }
    put(file);
}

/// Text for a terminal that controls only its own lines.
pub(super) fn is_quiet(text: &str) {
    let steers = |c: char| c != '\n' && (c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c));
    if let Some(at) = text.find(steers) {
        let around: String = text[at..].chars().take(60).collect();
        panic!("a terminal would be steered by {around:?}");
    }
}

pub(super) const STYLE: TerminalStyle = TerminalStyle { width: 100, colour: false };

/// A run folder, through every reader, and in every form of a report.
pub(crate) fn run_folders(bytes: &[u8]) {
    let place = folder();
    unpacked(bytes, place.path());
    if let Ok(salvage) = lenient_reader::read_partial_run(place.path()) {
        assert!(salvage.missing.iter().all(|it| !it.is_empty()));
    }
    let run = match run_reader::open_run(place.path()) {
        Ok(run) => run,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let _ = (run.machines(), run.recordings());
    for result in run.results().into_iter().flatten() {
        let name = result.stdout.unwrap_or_default();
        if name.starts_with('/') || name.contains("..") {
            assert!(run.read_raw(&name).is_err(), "{name} was read");
        }
    }
    let (Ok(Some(verdicts)), Ok(cells), Ok(actions)) = (run.verdicts(), run.cells(), run.actions())
    else {
        return;
    };
    let run = Run { info: run.record.info, claims: run.claims, cells, verdicts, actions };
    is_quiet(&report::terminal::render(&run, &STYLE));
    is_quiet(&report::junit::render(&run));
    let page =
        report::html::render(&run, &report::html::HtmlPageContext::default()).expect("a page");
    assert_eq!(page.matches("<script").count(), page.matches("</script").count());
    let table = report::csv::render_matrix(&run);
    let mut rows = csv::Reader::from_reader(table.as_slice());
    assert_eq!(rows.records().filter(Result::is_ok).count(), run.cells.len());
}

/// A history's file, read as `history` reads it.
pub(crate) fn histories(bytes: &[u8]) {
    let place = folder();
    let path = place.path().join("history.db");
    fs::write(&path, bytes).expect("written");
    let history = match RunHistory::open_read_only(&path) {
        Ok(history) => history,
        Err(error) => return assert!(error.to_string().contains("history.db"), "{error}"),
    };
    let _ = (history.runs(), history.nodes(), history.run_ids(), history.last_measured());
    let every = [
        FabricPartKind::Link,
        FabricPartKind::Gpu,
        FabricPartKind::Node,
        FabricPartKind::Rail,
        FabricPartKind::Domain,
    ];
    let trends = history.trends(&SeriesSelection::with_kinds(every));
    if let Ok(trends) = trends {
        assert!(trends.iter().all(|it| !it.points.is_empty()), "a series of nothing");
    }
    let _ = history.changes(&std::collections::BTreeSet::new());
}

/// Lines between a coordinator and its workers, both ways.
pub(crate) fn workers(bytes: &[u8]) {
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Ok(message) = serde_json::from_slice::<WorkerMessage>(line) {
            if let WorkerMessage::Output { data, .. } = &message {
                let _ = BASE64_STANDARD.decode(data);
            }
            let again = serde_json::to_vec(&message).expect("plain data");
            let back: WorkerMessage = serde_json::from_slice(&again).expect("read back");
            assert_eq!(back, message);
        }
        if let Ok(asked) = serde_json::from_slice::<CoordinatorMessage>(line) {
            let again = serde_json::to_vec(&asked).expect("plain data");
            let back: CoordinatorMessage = serde_json::from_slice(&again).expect("read back");
            assert_eq!(back, asked);
        }
    }
}

pub(crate) fn run_seeds() -> Vec<Vec<u8>> {
    left().runs.clone()
}

pub(crate) fn history_seeds() -> Vec<Vec<u8>> {
    left().history.clone()
}

pub(crate) fn worker_seeds() -> Vec<Vec<u8>> {
    let lines = [
        r#"{"type":"hello","protocol":2,"version":"0.1.0","environment":{"hostname":"n1","load":0.5,"interfaces":{"eth0":["10.0.0.1"]},"gpus":["0, GPU-1"]}}"#,
        r#"{"type":"ready","id":1,"port":5201}"#,
        r#"{"type":"output","id":1,"stream":"stdout","data":"aGVsbG8K"}"#,
        r#"{"type":"done","id":1,"ending":{"how":"exited","code":0},"duration_s":1.5}"#,
        r#"{"type":"refused","id":1,"why":"busy"}"#,
        r#"{"type":"run","id":1,"argv":["{self}","node"],"limit_s":5.0,"capture":100}"#,
        r#"{"type":"hello","protocol":2,"version":"0.1.0","node":"n1"}"#,
    ];
    vec![(lines.join("\n") + "\n").into_bytes()]
}

/// One of these, with mutations of its seeds.
pub(super) fn target(name: &'static str, iterations: u64, own: Vec<Vec<u8>>, check: fn(&[u8])) {
    own.iter().for_each(|good| check(good));
    let make = move |dice: &mut Dice| mutate(dice, &own, &own, TOKENS);
    fuzz(name, iterations, make, check);
}

#[test]
fn foreign_run_folders_never_break_a_reader_or_a_report() {
    target("run-folders", 150, run_seeds(), run_folders);
}

#[test]
fn a_history_with_any_bytes_changed_never_breaks_its_reader() {
    let own = history_seeds();
    own.iter().for_each(|good| histories(good));
    let make = move |dice: &mut Dice| {
        let mut bytes = dice.pick(&own).clone();
        for _ in 0..=dice.below(12) {
            let at = dice.below(bytes.len());
            bytes[at] = u8::try_from(dice.below(256)).expect("a byte");
        }
        if dice.once_in(6) {
            bytes.truncate(dice.below(bytes.len()));
        }
        bytes
    };
    fuzz("histories", 200, make, histories);
}

#[test]
fn workers_messages_are_read_or_refused_line_by_line() {
    target("workers", 800, worker_seeds(), workers);
}
