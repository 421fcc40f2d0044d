//! Burn-ins from outside, over a simulated fabric: accepted, drifting, failing midway, killed,
//! interrupted and resumed.
//!
//! Time limits here only end a hang; the tests assert no duration.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::place;
use crate::place::ProgramOutput;

/// Time after which a command counts as hanging.
const HANG: Duration = Duration::from_secs(180);

/// Copies only, and one probe as load.
const CONFIG: &str = "run_dir = \"runs\"\n[launcher]\nkind = \"sim\"\nscenario = \"rack.toml\"\n\
    [probes]\nrun = [\"nvbandwidth-ce\", \"nvbandwidth-lane\"]\n\
    [burn_in]\nsoak = [\"soak-copy\"]\nsoak_minutes = 5\n";

/// Four nodes of a rack; `later` adds faults that begin with time.
struct Place {
    place: place::Place,
}

impl std::ops::Deref for Place {
    type Target = place::Place;

    fn deref(&self) -> &place::Place {
        &self.place
    }
}

impl Place {
    fn new(later: &str) -> Self {
        Self { place: place::Place::with(&place::rack("n[1-4]", later), CONFIG) }
    }

    /// The folder of the only burn-in.
    fn burn_in(&self) -> Option<PathBuf> {
        let runs = fs::read_dir(self.path().join("runs")).ok()?;
        let mut all = runs.map(|it| it.expect("a folder").path());
        all.find(|it| it.file_name().is_some_and(|it| it.to_string_lossy().starts_with("burn-in-")))
    }

    /// The current content of its document, if it exists.
    fn document(&self) -> Option<Value> {
        let text = fs::read_to_string(self.burn_in()?.join("acceptance.json")).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Waits until the document has this value.
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

fn ended(child: Child) -> ProgramOutput {
    ProgramOutput::of(&child.wait_with_output().expect("it ended"))
}

#[test]
fn a_healthy_rack_is_accepted_and_every_node_gets_the_document() {
    let place = Place::new("");
    let words = ["burn-in", "--rounds", "2", "--no-progress", "--json", "--junit", "a.xml"];
    let more = ["--html", "a.html", "--markdown", "a.md"];
    let output = place.run(&[&words[..], &more[..]].concat()).expect(0);
    let document = output.document();
    assert_eq!(document["format"], "fabricgate.acceptance/1");
    assert_eq!((&document["accepted"], &document["state"]), (&"pass".into(), &"complete".into()));
    assert_eq!(document["stop"]["rule"], "rounds");
    let rounds = document["rounds"].as_array().expect("rounds");
    assert_eq!((rounds.len(), &rounds[0]["seed"], &rounds[1]["seed"]), (2, &0.into(), &1.into()));
    assert_eq!(document["soaks"][0]["after_round"], 1);
    assert_eq!(document["real"], false);
    // Each round is an ordinary run, and the load is not a run.
    for round in rounds {
        let run = format!("runs/{}", round["run"].as_str().expect("an id"));
        place.run(&["replay", &run]).expect(0);
    }
    let runs = fs::read_dir(place.path().join("runs")).expect("runs");
    assert_eq!(runs.count(), 3, "two rounds and the burn-in");
    assert_eq!(place.document().expect("kept"), document);
    for name in ["acceptance.md", "acceptance.html", "soak-1/results.jsonl"] {
        assert!(place.burn_in().expect("a folder").join(name).is_file(), "{name}");
    }
    let read = |name| fs::read_to_string(place.path().join(name)).expect("written");
    let junit = read("a.xml");
    assert_eq!(junit.matches("name=\"n1\"").count(), 3, "one for all, one a round: {junit}");
    assert!(!junit.contains("<failure") && !junit.contains("<error"), "{junit}");
    assert!(
        read("a.md")
            .starts_with("# PASS: SIMULATED: no hardware was measured; 4 nodes after 2 rounds"),
        "{}",
        read("a.md")
    );
    assert!(read("a.html").contains("<h1>"));
    // A complete burn-in cannot be resumed.
    let folder = place.burn_in().expect("a folder").display().to_string();
    let output = place.run(&["burn-in", "--resume", &folder]).expect(2);
    assert!(output.stderr.contains("this burn-in is complete"), "{}", output.stderr);
}

#[test]
fn without_rounds_or_hours_it_is_one_sweep() {
    let place = Place::new("");
    let output = place.run(&["burn-in", "--no-progress", "--json"]).expect(0);
    assert_eq!(output.document()["format"], "fabricgate.report/1");
    assert!(place.burn_in().is_none());
    let output = place.run(&["burn-in", "--soak-minutes", "5"]).expect(2);
    assert!(output.stderr.contains("add --rounds or --hours"), "{}", output.stderr);
    let output = place.run(&["burn-in", "--rounds", "0"]).expect(2);
    assert!(output.stderr.contains("expected 1 to 10000"), "{}", output.stderr);
}

#[test]
fn a_fault_that_comes_in_the_last_round_is_found_and_named() {
    let place = Place::new(
        "[[later]]\nfrom_round = 2\nfault = { kind = \"lost-links\", gpu = \"n3:1\", count = 2 }\n",
    );
    let output = place.run(&["burn-in", "--rounds", "2", "--no-progress", "--json"]).expect(3);
    let document = output.document();
    assert_eq!(node(&document, "n3")["accepted"], "fail");
    assert!(node(&document, "n3")["reason"].as_str().expect("why").starts_with("round 2 (run "));
    assert_eq!(node(&document, "n1")["accepted"], "pass");
    let worst = &document["comparison"]["parts"][0];
    assert_eq!((&worst["part"]["node"], &worst["part"]["gpu"]), (&"n3".into(), &1.into()));
    assert_eq!(worst["difference"], "worse");
}

#[test]
fn a_slight_slowdown_with_heat_is_reported_although_every_level_is_met() {
    let place = Place::new(
        "[[later]]\nsoaked_minutes = 5\nfault = { kind = \"power-cap\", node = \"n2\", share = 0.98 }\n",
    );
    let output = place.run(&["burn-in", "--rounds", "2", "--no-progress", "--json"]).expect(0);
    let document = output.document();
    assert_eq!(document["rounds"][1]["outcome"], "pass", "no level is missed");
    let reason = node(&document, "n2")["reason"].as_str().expect("why").to_owned();
    assert!(reason.contains("slower in the last round than in the first"), "{reason}");
    assert!(node(&document, "n1")["drift"].is_null(), "{}", node(&document, "n1"));
}

#[test]
fn a_hard_fault_takes_only_its_node_out() {
    let place =
        Place::new("[[later]]\nfrom_round = 2\nfault = { kind = \"corrupt\", gpu = \"n2:0\" }\n");
    let output = place.run(&["burn-in", "--rounds", "3", "--no-progress", "--json"]).expect(3);
    let document = output.document();
    let out = node(&document, "n2");
    assert_eq!((&out["accepted"], &out["out"]["rule"]), (&"fail".into(), &"hard_fault".into()));
    assert_eq!(out["out"]["after_round"], 2);
    // The others met each other in that round, so it leaves no pair of theirs open.
    let rounds = document["rounds"].as_array().expect("rounds");
    assert!(rounds[1]["set_aside"].is_null(), "{document}");
    let nodes: Vec<usize> =
        rounds.iter().map(|round| round["nodes"].as_array().expect("nodes").len()).collect();
    assert_eq!(nodes, [4, 4, 3]);
    assert_eq!(node(&document, "n1")["accepted"], "pass", "{document}");
    assert_ne!(rounds[1]["claims_digest"], rounds[2]["claims_digest"]);
}

#[test]
fn wrong_data_that_only_load_shows_is_not_missed() {
    let place = Place::new(
        "[[later]]\nwhile_soaking = true\nfault = { kind = \"corrupt\", gpu = \"n4:2\" }\n",
    );
    let output = place.run(&["burn-in", "--rounds", "2", "--no-progress", "--json"]).expect(3);
    let document = output.document();
    assert!(!document["soaks"][0]["found"]["n4"].is_null(), "{}", document["soaks"]);
    assert_eq!(node(&document, "n4")["accepted"], "fail");
    assert_eq!(node(&document, "n1")["accepted"], "pass");
}

#[test]
fn a_node_that_is_lost_during_the_burn_in_is_unknown_and_the_others_pass() {
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
fn a_node_without_any_measurement_ends_the_burn_in() {
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
fn an_interrupt_keeps_the_results_and_prints_how_to_resume() {
    let place = Place::new("");
    let child = place.start(&["burn-in", "--rounds", "3", "--soak-minutes", "0", "--json"]);
    place.wait_until("round 1 is over", |it| it["rounds"][0]["ended"].is_string());
    signal(&child, Signal::INT);
    let output = ended(child).expect(4);
    let document = output.document();
    assert_eq!((&document["state"], &document["accepted"]), (&"partial".into(), &"unknown".into()));
    assert_eq!(document["stop"]["rule"], "interrupted");
    let line = output.stderr.lines().find(|line| line.contains("continue with")).expect("how");
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

#[test]
fn an_interrupt_under_load_ends_the_load_and_is_gone_on_with() {
    // Load that would hang for its whole time limit, unless it is ended.
    let hangs = "[[later]]\nwhile_soaking = true\n\
        fault = { kind = \"tool-hangs\", node = \"n2\", tool = \"fabricgate-copy\" }\n";
    for (name, ending) in [("SIGINT", Signal::INT), ("SIGTERM", Signal::TERM)] {
        let place = Place::new(hangs);
        let child = place.start(&["burn-in", "--rounds", "2", "--json"]);
        place.wait_until("round 1 is over", |it| it["rounds"][0]["ended"].is_string());
        let folder = place.burn_in().expect("a folder");
        let start = Instant::now();
        while fs::read_to_string(folder.join("soak-1/results.jsonl")).unwrap_or_default().is_empty()
        {
            assert!(start.elapsed() < HANG, "waiting until load has begun");
            std::thread::sleep(Duration::from_millis(20));
        }
        signal(&child, ending);
        let output = ended(child).expect(4);
        let document = output.document();
        assert_eq!(
            (&document["state"], &document["stop"]["rule"]),
            (&"partial".into(), &"interrupted".into())
        );
        assert_eq!(
            (&document["stop"]["after_round"], &document["accepted"]),
            (&1.into(), &"unknown".into())
        );
        assert!(document.get("soaks").is_none(), "{name}: what was interrupted counts for nothing");
        assert!(document.get("signature").is_none(), "{name}");
        assert!(output.stderr.contains("continue with `fabricgate burn-in"), "{}", output.stderr);
        let scenario = folder.join("scenario.toml");
        let text = fs::read_to_string(&scenario).expect("the scenario is kept");
        fs::write(&scenario, text.replace(hangs, "")).expect("written");
        let shown = folder.display().to_string();
        let words = ["burn-in", "--resume", &shown, "--no-progress", "--json"];
        let document = place.run(&words).expect(0).document();
        assert_eq!(document["accepted"], "pass", "{name}: {document}");
        assert_eq!(document["soaks"].as_array().map(Vec::len), Some(1), "{name}");
        assert!(folder.join("soak-1-2").is_dir(), "earlier output stays");
    }
}

#[test]
fn a_node_that_rebooted_is_reported_and_checked_against_its_boot() {
    let place = Place::new("");
    let folder = interrupted(&place);
    // As if n2 had a different boot then: all simulated nodes are this machine.
    let path = folder.join("acceptance.json");
    let text = fs::read_to_string(&path).expect("a document");
    let mut then: Value = serde_json::from_str(&text).expect("JSON");
    let nodes = then["rounds"][0]["nodes"].as_array_mut().expect("nodes");
    let n2 = nodes.iter_mut().find(|it| it["node"] == "n2").expect("n2");
    assert!(n2["boot_id"].is_string(), "its worker reported its boot: {n2}");
    n2["boot_id"] = "another-boot".into();
    fs::write(&path, then.to_string()).expect("written");
    let shown = folder.display().to_string();
    let output = place.run(&["burn-in", "--resume", &shown, "--no-progress", "--json"]).expect(4);
    let document = output.document();
    let booted = node(&document, "n2");
    assert_eq!(
        (&booted["accepted"], &booted["anew"]["rule"]),
        (&"unknown".into(), &"rebooted".into())
    );
    assert_eq!(booted["anew"]["after_round"], 1);
    let reason = booted["reason"].as_str().expect("why");
    assert!(reason.contains("it has rebooted since the round before"), "{reason}");
    assert!(output.stderr.contains("n2 restarts (rebooted)"), "{}", output.stderr);
    assert_eq!(node(&document, "n1")["accepted"], "pass");
    let parts = document["comparison"]["parts"].as_array().expect("parts");
    let of = |name: &str| parts.iter().filter(|it| it["part"]["node"] == name).count();
    assert!(0 < of("n1") && of("n2") == 0, "two boots are not taken for one machine");
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
fn unreadable_and_unwritable_files_are_named_and_nothing_is_lost() {
    let place = Place::new("");
    place.put("file", "");
    let output = place.run(&["burn-in", "--rounds", "2", "--run-dir", "file"]).expect(5);
    assert!(output.stderr.contains("the burn-in cannot be recorded: file"), "{}", output.stderr);

    let folder = interrupted(&place);
    let shown = folder.display().to_string();
    let resume = |code| place.run(&["burn-in", "--resume", &shown, "--no-progress"]).expect(code);
    let document = folder.join("acceptance.json");
    let good = fs::read_to_string(&document).expect("a document");
    let put = |text: &str| fs::write(&document, text).expect("written");
    put(&good.replace("fabricgate.acceptance/1", "fabricgate.acceptance/2"));
    let output = resume(2);
    assert!(
        output.stderr.contains("acceptance.json: written by a newer fabricgate"),
        "{}",
        output.stderr
    );
    put(&good[..good.len() / 2]);
    let output = resume(2);
    assert!(output.stderr.contains("acceptance.json:"), "{}", output.stderr);
    put(&good);
    // A folder that is not empty cannot be replaced.
    let text = folder.join("acceptance.md");
    fs::remove_file(&text).expect("it was there");
    fs::create_dir_all(text.join("full")).expect("made");
    let output = resume(5);
    assert!(output.stderr.contains("the burn-in cannot be recorded"), "{}", output.stderr);
    fs::remove_dir_all(&text).expect("it was there");
    resume(0);
    assert!(Path::new(&text).is_file());
}
