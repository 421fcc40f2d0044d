//! Re-certifications from outside, over a simulated fabric: a fault, a repair that helped, one
//! that did not, and the report of each.

mod named;
mod scope;

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::place;

const CONFIG: &str = "run_dir = \"runs\"\n[launcher]\nkind = \"sim\"\nscenario = \"rack.toml\"\n\
    [probes]\nrun = [\"nvbandwidth-ce\", \"nvbandwidth-lane\"]\n";

/// A GPU that lost this many links.
fn lost(gpu: &str, count: u32) -> String {
    format!("[[fault]]\nkind = \"lost-links\"\ngpu = \"{gpu}\"\ncount = {count}\n")
}

fn json_of(path: &std::path::Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON")
}

struct Place {
    place: place::Place,
}

impl std::ops::Deref for Place {
    type Target = place::Place;

    fn deref(&self) -> &place::Place {
        &self.place
    }
}

fn rack(wrong: &str) -> String {
    place::rack("n[1-6]", wrong)
}

impl Place {
    /// An unmeasured rack with this fault.
    fn new(wrong: &str) -> Self {
        Self { place: place::Place::with(&rack(wrong), CONFIG) }
    }

    /// A rack that was measured once as a whole, with this fault.
    fn measured(wrong: &str) -> Self {
        let place = Self::new(wrong);
        let code = if wrong.is_empty() { 0 } else { 3 };
        place.run(&["recertify", "--all", "--no-progress"]).expect(code);
        place
    }

    /// The fault from now on.
    fn now(&self, wrong: &str) {
        self.put("rack.toml", &rack(wrong));
    }

    /// Re-certifies n2 and returns its comparison and sentences.
    fn again(&self, code: i32) -> (Value, String) {
        let output = self.run(&["recertify", "n2", "--no-progress", "--json"]).expect(code);
        let document = output.document();
        assert_eq!(document["format"], "fabricgate.report/1");
        let repair = document["comparison"]["nodes"][0].clone();
        assert_eq!(repair["node"], "n2", "{document}");
        let sentences: Vec<String> = repair["says"]
            .as_array()
            .expect("sentences")
            .iter()
            .map(|it| it.as_str().expect("a sentence").to_owned())
            .collect();
        (repair, sentences.join("\n"))
    }

    fn runs(&self) -> Vec<PathBuf> {
        let listed = fs::read_dir(self.path().join("runs")).expect("runs");
        let mut runs: Vec<PathBuf> = listed.map(|it| it.expect("a run").path()).collect();
        runs.sort();
        runs
    }
}

#[test]
fn a_repair_that_helped_is_reported_with_the_fewest_cleared_partners() {
    let place = Place::measured(&lost("n2:1", 2));
    place.now("[[fault]]\nkind = \"gpu-swapped\"\ngpu = \"n2:1\"\n");
    let words = ["recertify", "n2", "--no-progress", "--json", "--junit", "a.xml"];
    let output = place.run(&words).expect(0);
    assert!(
        output.stderr.contains("measured against n[")
            && output.stderr.contains("which are cleared"),
        "{}",
        output.stderr
    );
    let document = output.document();
    assert_eq!(document["verdicts"]["nodes"].as_array().expect("nodes").len(), 4);
    let repair = &document["comparison"]["nodes"][0];
    assert_eq!((&repair["before"], &repair["after"]), (&"degraded".into(), &"pass".into()));
    let sentences = repair["says"].to_string();
    assert!(
        sentences.contains("passes now") && sentences.contains("at its expected level"),
        "{sentences}"
    );
    assert!(sentences.contains("it has other hardware: GPU 1"), "{sentences}");
    assert_eq!(repair["changes"][0]["kind"], "hardware", "{repair}");
    assert_eq!(repair["comparison"]["parts"][0]["difference"], "better");
    let junit = fs::read_to_string(place.path().join("a.xml")).expect("written");
    assert!(junit.contains("<testsuite name=\"repair\" tests=\"1\""), "{junit}");
    let kept = place.runs().pop().expect("a run").join("comparison.json");
    assert!(fs::read_to_string(kept).expect("kept").contains("fabricgate.comparison/1"));
    // And the page of the folder, with the earlier numbers behind a switch.
    let run = place.runs().pop().expect("a run");
    let page = fs::read_to_string(run.join("report.html")).expect("a page");
    for sentence in ["What the repair changed", "passes now", "it has other hardware: GPU 1"] {
        assert!(page.contains(sentence), "{sentence}");
    }
    let before = place.runs()[0].file_name().expect("a name").to_string_lossy().into_owned();
    assert!(page.contains(&format!(", compared with {before}")), "the page names the run before");
    let shown = run.display().to_string();
    let again = place.run(&["report", &shown, "--format", "html"]).expect(0).stdout;
    assert!(again.contains("What the repair changed") && again.contains(&before));
    let text = place.run(&["report", &shown]).expect(0).stdout;
    assert!(text.contains("What the repair changed"), "{text}");
    // The text report has the same sentences.
    let output = place.run(&["recertify", "n2", "--no-progress", "--partners", "0"]);
    assert!(output.stdout.contains("What the repair changed"), "{}", output.stdout);
    assert!(!output.stderr.contains("measured against"), "{}", output.stderr);
}

#[test]
fn better_but_still_below_same_and_worse_are_distinguished() {
    let place = Place::measured(&lost("n2:1", 4));
    place.now(&lost("n2:1", 2));
    let (repair, sentences) = place.again(3);
    assert_eq!(repair["after"], "degraded");
    assert!(sentences.contains("better in") && sentences.contains("still below"), "{sentences}");
    let (_, sentences) = place.again(3);
    assert!(sentences.contains("changed no measurement"), "{sentences}");
    assert!(sentences.contains("are unchanged"), "{sentences}");
    place.now(&lost("n2:1", 6));
    let (_, sentences) = place.again(3);
    assert!(sentences.contains("the blamed part is worse than before"), "{sentences}");
    place.now(&lost("n2:3", 2));
    let (_, sentences) = place.again(3);
    assert!(
        sentences.contains("the blamed part is better") && sentences.contains("elsewhere"),
        "{sentences}"
    );
}

#[test]
fn the_earlier_run_may_be_named_and_must_be_a_run() {
    let place = Place::measured("");
    let before = place.runs().pop().expect("a run");
    let shown = before.display().to_string();
    let with = |before: &str, code| {
        place.run(&["recertify", "n2", "--no-progress", "--json", "--before", before]).expect(code)
    };
    let output = with("/no/such/run", 5);
    assert!(output.stderr.contains("--before: /no/such/run"), "{}", output.stderr);
    let compared = with(&shown, 0).document();
    let id = before.file_name().expect("a name").to_string_lossy().into_owned();
    assert_eq!(compared["comparison"]["nodes"][0]["comparison"]["before"], id.as_str());
    let record = before.join("run.json");
    let good = fs::read_to_string(&record).expect("a record");
    fs::write(&record, good.replace("fabricgate.run/1", "fabricgate.run/2")).expect("written");
    let output = with(&shown, 2);
    assert!(output.stderr.contains("run.json: written by a newer fabricgate"), "{}", output.stderr);
    fs::write(&record, "{").expect("written");
    let output = with(&shown, 2);
    assert!(output.stderr.contains("run.json:"), "{}", output.stderr);
    // One damaged folder among others is reported and skipped.
    let output = place.run(&["recertify", "n2", "--no-progress", "--json"]).expect(0);
    assert!(output.stderr.contains("skipped: ") && output.stderr.contains("run.json"));
}

#[test]
fn a_node_without_an_earlier_measurement_is_not_compared() {
    let place = Place::new("");
    let output = place.run(&["recertify", "n[1-2]", "--no-progress", "--json"]);
    let document = output.document();
    assert_eq!(document["comparison"]["nodes"].as_array().map(Vec::len), Some(0));
    assert_eq!(
        document["comparison"]["without"][0]["why"],
        "no earlier run in run_dir measured it"
    );
    assert!(
        output.stderr.contains("measured against n[3-6], none of them cleared"),
        "{}",
        output.stderr
    );
    let output = place.run(&["recertify", "n[1-6]", "--no-progress"]).expect(0);
    assert!(!output.stderr.contains("measured against"), "{}", output.stderr);
}
