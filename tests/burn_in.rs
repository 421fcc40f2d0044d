//! Burn-ins from outside, over a simulated fabric: accepted, drifting, broken on
//! the way, killed, interrupted and gone on with.
//!
//! Time limits here only end a hang; nothing is asserted about how long something
//! takes.

use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Output;
use std::process::Stdio;
use std::time::Duration;
use std::time::Instant;

use rustix::process::Pid;
use rustix::process::Signal;
use serde_json::Value;

/// How long anything may take until it counts as hanging.
const HANG: Duration = Duration::from_secs(180);

/// Four nodes of a rack; `later` says what comes with time.
fn rack(later: &str) -> String {
    format!(
        "title = \"a rack\"\nseed = 7\n[noise]\nsigma = 0.002\n\
         [[domain]]\nname = \"rack\"\nnodes = \"n[1-4]\"\nplatform = \"gb200-nvl72\"\n{later}"
    )
}

/// Copies only, and one probe as load.
const CONFIG: &str = "run_dir = \"runs\"\n[launcher]\nkind = \"sim\"\nscenario = \"rack.toml\"\n\
    [probes]\nrun = [\"nvbandwidth-ce\", \"nvbandwidth-lane\"]\n\
    [burn_in]\nsoak = [\"soak-copy\"]\nsoak_minutes = 5\n";

struct Place {
    dir: tempfile::TempDir,
}

struct Told {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Told {
    fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().unwrap_or(-1);
        Self { code, stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}\n{}", self.stdout, self.stderr);
        self
    }

    fn document(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }
}

impl Place {
    fn new(later: &str) -> Self {
        let place = Self { dir: tempfile::tempdir().expect("a folder") };
        place.put("rack.toml", &rack(later));
        place.put("fabricgate.toml", CONFIG);
        place
    }

    fn put(&self, name: &str, text: &str) {
        fs::write(self.dir.path().join(name), text).expect("written");
    }

    #[expect(clippy::disallowed_methods, reason = "a test starts the program itself")]
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fabricgate"));
        command.args(words).current_dir(self.dir.path());
        command.env("FABRICGATE_CONFIG", self.dir.path().join("fabricgate.toml"));
        command
    }

    fn run(&self, words: &[&str]) -> Told {
        Told::of(&self.command(words).output().expect("started"))
    }

    fn start(&self, words: &[&str]) -> Child {
        let mut command = self.command(words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started")
    }

    /// The folder of the only burn-in.
    fn burn_in(&self) -> Option<PathBuf> {
        let runs = fs::read_dir(self.dir.path().join("runs")).ok()?;
        let mut all = runs.map(|it| it.expect("a folder").path());
        all.find(|it| it.file_name().is_some_and(|it| it.to_string_lossy().starts_with("burn-in-")))
    }

    /// What its document says now, as far as there is one.
    fn document(&self) -> Option<Value> {
        let text = fs::read_to_string(self.burn_in()?.join("acceptance.json")).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Waits until the document says this.
    fn wait_until(&self, what: &str, is: impl Fn(&Value) -> bool) {
        let start = Instant::now();
        while !self.document().is_some_and(|document| is(&document)) {
            assert!(start.elapsed() < HANG, "waiting until {what}: {:?}", self.document());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn node<'a>(document: &'a Value, name: &str) -> &'a Value {
    let nodes = document["nodes"].as_array().expect("nodes");
    nodes.iter().find(|it| it["node"] == name).unwrap_or_else(|| panic!("no {name}: {document}"))
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid")).expect("a pid");
    rustix::process::kill_process(pid, signal).expect("it runs");
}

fn ended(child: Child) -> Told {
    Told::of(&child.wait_with_output().expect("it ended"))
}

#[test]
fn a_sound_rack_is_accepted_and_everybody_gets_the_document() {
    let place = Place::new("");
    let words = ["burn-in", "--rounds", "2", "--no-progress", "--json", "--junit", "a.xml"];
    let more = ["--html", "a.html", "--markdown", "a.md"];
    let told = place.run(&[&words[..], &more[..]].concat()).expect(0);
    let document = told.document();
    assert_eq!(document["format"], "fabricgate.acceptance/1");
    assert_eq!((&document["accepted"], &document["state"]), (&"pass".into(), &"complete".into()));
    assert_eq!(document["stop"]["rule"], "rounds");
    let rounds = document["rounds"].as_array().expect("rounds");
    assert_eq!((rounds.len(), &rounds[0]["seed"], &rounds[1]["seed"]), (2, &0.into(), &1.into()));
    assert_eq!(document["soaks"][0]["after_round"], 1);
    assert_eq!(document["real"], false);
    // Each round is an ordinary run, and the load is none of them.
    for round in rounds {
        let run = format!("runs/{}", round["run"].as_str().expect("an id"));
        place.run(&["replay", &run]).expect(0);
    }
    let runs = fs::read_dir(place.dir.path().join("runs")).expect("runs");
    assert_eq!(runs.count(), 3, "two rounds and the burn-in");
    assert_eq!(place.document().expect("kept"), document);
    for name in ["acceptance.md", "acceptance.html", "soak-1/results.jsonl"] {
        assert!(place.burn_in().expect("a folder").join(name).is_file(), "{name}");
    }
    let read = |name| fs::read_to_string(place.dir.path().join(name)).expect("written");
    let junit = read("a.xml");
    assert_eq!(junit.matches("name=\"n1\"").count(), 3, "one for all, one a round: {junit}");
    assert!(!junit.contains("<failure") && !junit.contains("<error"), "{junit}");
    assert!(read("a.md").starts_with("# PASS: 4 nodes after 2 rounds"), "{}", read("a.md"));
    assert!(read("a.html").contains("<h1>"));
    // What is complete cannot be gone on with.
    let folder = place.burn_in().expect("a folder").display().to_string();
    let told = place.run(&["burn-in", "--resume", &folder]).expect(2);
    assert!(told.stderr.contains("this burn-in is complete"), "{}", told.stderr);
}

#[test]
fn without_rounds_or_hours_it_is_one_sweep() {
    let place = Place::new("");
    let told = place.run(&["burn-in", "--no-progress", "--json"]).expect(0);
    assert_eq!(told.document()["format"], "fabricgate.report/1");
    assert!(place.burn_in().is_none());
    let told = place.run(&["burn-in", "--soak-minutes", "5"]).expect(2);
    assert!(told.stderr.contains("add --rounds or --hours"), "{}", told.stderr);
    let told = place.run(&["burn-in", "--rounds", "0"]).expect(2);
    assert!(told.stderr.contains("expected 1 to 10000"), "{}", told.stderr);
}

#[test]
fn a_fault_that_comes_in_the_last_round_is_found_and_named() {
    let place = Place::new(
        "[[later]]\nfrom_round = 2\nfault = { kind = \"lost-links\", gpu = \"n3:1\", count = 2 }\n",
    );
    let told = place.run(&["burn-in", "--rounds", "2", "--no-progress", "--json"]).expect(3);
    let document = told.document();
    assert_eq!(node(&document, "n3")["accepted"], "fail");
    assert!(node(&document, "n3")["reason"].as_str().expect("why").starts_with("round 2 (run "));
    assert_eq!(node(&document, "n1")["accepted"], "pass");
    let worst = &document["comparison"]["parts"][0];
    assert_eq!((&worst["part"]["node"], &worst["part"]["gpu"]), (&"n3".into(), &1.into()));
    assert_eq!(worst["difference"], "worse");
}

#[test]
fn what_gets_a_little_slower_with_heat_is_told_though_no_level_is_missed() {
    let place = Place::new(
        "[[later]]\nsoaked_minutes = 5\nfault = { kind = \"power-cap\", node = \"n2\", share = 0.98 }\n",
    );
    let told = place.run(&["burn-in", "--rounds", "2", "--no-progress", "--json"]).expect(0);
    let document = told.document();
    assert_eq!(document["rounds"][1]["outcome"], "pass", "no level is missed");
    let reason = node(&document, "n2")["reason"].as_str().expect("why").to_owned();
    assert!(reason.contains("less in the last round than in the first"), "{reason}");
    assert!(node(&document, "n1")["drift"].is_null(), "{}", node(&document, "n1"));
}

#[test]
fn a_hard_fault_takes_its_node_out_and_nobody_else() {
    let place =
        Place::new("[[later]]\nfrom_round = 2\nfault = { kind = \"corrupt\", gpu = \"n2:0\" }\n");
    let told = place.run(&["burn-in", "--rounds", "3", "--no-progress", "--json"]).expect(3);
    let document = told.document();
    let out = node(&document, "n2");
    assert_eq!((&out["accepted"], &out["out"]["rule"]), (&"fail".into(), &"hard_fault".into()));
    assert_eq!(out["out"]["after_round"], 2);
    // What it left open of the others is measured again without it.
    let rounds = document["rounds"].as_array().expect("rounds");
    assert_eq!(rounds[1]["set_aside"], true, "{document}");
    let nodes: Vec<usize> =
        rounds.iter().map(|round| round["nodes"].as_array().expect("nodes").len()).collect();
    assert_eq!(nodes, [4, 4, 3, 3]);
    assert_eq!(node(&document, "n1")["accepted"], "pass", "{document}");
    assert_ne!(rounds[1]["claims_digest"], rounds[2]["claims_digest"]);
}

#[test]
fn wrong_data_that_only_load_shows_is_not_missed() {
    let place = Place::new(
        "[[later]]\nwhile_soaking = true\nfault = { kind = \"corrupt\", gpu = \"n4:2\" }\n",
    );
    let told = place.run(&["burn-in", "--rounds", "2", "--no-progress", "--json"]).expect(3);
    let document = told.document();
    assert!(!document["soaks"][0]["found"]["n4"].is_null(), "{}", document["soaks"]);
    assert_eq!(node(&document, "n4")["accepted"], "fail");
    assert_eq!(node(&document, "n1")["accepted"], "pass");
}

#[test]
fn a_node_that_is_lost_on_the_way_is_not_known_and_keeps_no_other_from_passing() {
    let place = Place::new(
        "[[later]]\nfrom_round = 2\nfault = { kind = \"unreachable\", node = \"n3\" }\n",
    );
    let words = ["burn-in", "--rounds", "2", "--soak-minutes", "0", "--no-progress", "--json"];
    let document = place.run(&words).expect(5).document();
    let lost = node(&document, "n3");
    assert_eq!((&lost["accepted"], &lost["out"]["rule"]), (&"unknown".into(), &"lost".into()));
    assert_eq!(document["rounds"][1]["set_aside"], true, "{document}");
    for name in ["n1", "n2", "n4"] {
        let other = node(&document, name);
        assert_eq!((&other["accepted"], &other["passed"]), (&"pass".into(), &2.into()), "{other}");
    }
}

#[test]
fn a_node_of_which_nothing_is_left_ends_it() {
    let place = Place::new("[[fault]]\nkind = \"corrupt\"\ngpu = \"n1:0\"\n");
    let words = ["burn-in", "n1", "--rounds", "5", "--no-progress", "--json"];
    let document = place.run(&words).expect(3).document();
    assert_eq!(document["stop"]["rule"], "hard_fault");
    assert_eq!(document["rounds"].as_array().expect("rounds").len(), 1);
}

#[test]
fn clean_rounds_in_a_row_end_it_early() {
    let place = Place::new("");
    place.put("fabricgate.toml", &format!("{CONFIG}clean_rounds = 1\nrounds = 9\n"));
    let document = place.run(&["burn-in", "--no-progress", "--json"]).expect(0).document();
    assert_eq!(document["stop"]["rule"], "clean_rounds");
}

#[test]
fn a_kill_costs_at_most_the_round_under_way() {
    let place = Place::new("");
    let mut child = place.start(&["burn-in", "--rounds", "2", "--soak-minutes", "0"]);
    place.wait_until("round 2 is begun", |it| {
        it["rounds"].as_array().is_some_and(|it| it.len() == 2)
    });
    child.kill().expect("it runs");
    child.wait().expect("it ended");
    let first = place.document().expect("a document")["rounds"][0]["run"].clone();
    let folder = place.burn_in().expect("a folder").display().to_string();
    let words = ["burn-in", "--resume", &folder, "--no-progress", "--json"];
    let document = place.run(&words).expect(0).document();
    let rounds = document["rounds"].as_array().expect("rounds");
    assert_eq!((rounds.len(), &rounds[0]["run"]), (2, &first), "nothing is measured twice");
    assert_eq!((&document["accepted"], &document["state"]), (&"pass".into(), &"complete".into()));
}

#[test]
fn an_interrupt_keeps_what_there_is_and_says_how_to_go_on() {
    let place = Place::new("");
    let child = place.start(&["burn-in", "--rounds", "3", "--soak-minutes", "0", "--json"]);
    place.wait_until("round 1 is over", |it| it["rounds"][0]["ended"].is_string());
    signal(&child, Signal::INT);
    let told = ended(child).expect(4);
    let document = told.document();
    assert_eq!((&document["state"], &document["accepted"]), (&"partial".into(), &"unknown".into()));
    assert_eq!(document["stop"]["rule"], "interrupted");
    let line = told.stderr.lines().find(|line| line.contains("go on with")).expect("how");
    let folder = place.burn_in().expect("a folder");
    let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
    assert!(
        line.contains("burn-in") && line.contains("--resume") && line.contains(&name),
        "{line}"
    );
    let folder = folder.display().to_string();
    let words = ["burn-in", "--resume", &folder, "--no-progress", "--json"];
    let document = place.run(&words).expect(0).document();
    assert_eq!(document["rounds"].as_array().expect("rounds").len(), 3);
}

/// A burn-in that was interrupted in its second round.
fn interrupted(place: &Place) -> PathBuf {
    let child = place.start(&["burn-in", "--rounds", "2", "--soak-minutes", "0"]);
    place.wait_until("round 1 is over", |it| it["rounds"][0]["ended"].is_string());
    signal(&child, Signal::INT);
    ended(child).expect(4);
    place.burn_in().expect("a folder")
}

#[test]
fn what_cannot_be_read_or_written_is_named_and_loses_nothing() {
    let place = Place::new("");
    place.put("file", "");
    let told = place.run(&["burn-in", "--rounds", "2", "--run-dir", "file"]).expect(5);
    assert!(told.stderr.contains("the burn-in cannot be recorded: file"), "{}", told.stderr);

    let folder = interrupted(&place);
    let shown = folder.display().to_string();
    let resume = |code| place.run(&["burn-in", "--resume", &shown, "--no-progress"]).expect(code);
    let document = folder.join("acceptance.json");
    let good = fs::read_to_string(&document).expect("a document");
    let put = |text: &str| fs::write(&document, text).expect("written");
    put(&good.replace("fabricgate.acceptance/1", "fabricgate.acceptance/2"));
    let told = resume(2);
    assert!(
        told.stderr.contains("acceptance.json: written by a newer fabricgate"),
        "{}",
        told.stderr
    );
    put(&good[..good.len() / 2]);
    let told = resume(2);
    assert!(told.stderr.contains("acceptance.json:"), "{}", told.stderr);
    put(&good);
    // Nothing can be put in the place of a folder that is not empty.
    let text = folder.join("acceptance.md");
    fs::remove_file(&text).expect("it was there");
    fs::create_dir_all(text.join("full")).expect("made");
    let told = resume(5);
    assert!(told.stderr.contains("the burn-in cannot be recorded"), "{}", told.stderr);
    fs::remove_dir_all(&text).expect("it was there");
    resume(0);
    assert!(Path::new(&text).is_file());
}
