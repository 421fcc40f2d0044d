//! Re-certifications from outside, over a simulated fabric: a fault, a repair that
//! helped, one that did not, and what is told of each.

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
    /// A rack that nobody measured yet, with this wrong.
    fn new(wrong: &str) -> Self {
        Self { place: place::Place::with(&rack(wrong), CONFIG) }
    }

    /// A rack that was measured whole, once, with this wrong.
    fn measured(wrong: &str) -> Self {
        let place = Self::new(wrong);
        let code = if wrong.is_empty() { 0 } else { 3 };
        place.run(&["recertify", "--all", "--no-progress"]).expect(code);
        place
    }

    /// What is wrong from now on.
    fn now(&self, wrong: &str) {
        self.put("rack.toml", &rack(wrong));
    }

    /// Re-certifies n2 and gives what is told of it.
    fn again(&self, code: i32) -> (Value, String) {
        let told = self.run(&["recertify", "n2", "--no-progress", "--json"]).expect(code);
        let document = told.document();
        assert_eq!(document["format"], "fabricgate.report/1");
        let repair = document["comparison"]["nodes"][0].clone();
        assert_eq!(repair["node"], "n2", "{document}");
        let says: Vec<String> = repair["says"]
            .as_array()
            .expect("sentences")
            .iter()
            .map(|it| it.as_str().expect("a sentence").to_owned())
            .collect();
        (repair, says.join("\n"))
    }

    fn runs(&self) -> Vec<PathBuf> {
        let listed = fs::read_dir(self.path().join("runs")).expect("runs");
        let mut runs: Vec<PathBuf> = listed.map(|it| it.expect("a run").path()).collect();
        runs.sort();
        runs
    }
}

#[test]
fn a_repair_that_helped_is_told_with_the_fewest_cleared_partners() {
    let place = Place::measured(&lost("n2:1", 2));
    place.now("[[fault]]\nkind = \"gpu-swapped\"\ngpu = \"n2:1\"\n");
    let words = ["recertify", "n2", "--no-progress", "--json", "--junit", "a.xml"];
    let told = place.run(&words).expect(0);
    assert!(
        told.stderr.contains("measured against n[") && told.stderr.contains("which are cleared"),
        "{}",
        told.stderr
    );
    let document = told.document();
    assert_eq!(document["verdicts"]["nodes"].as_array().expect("nodes").len(), 4);
    let repair = &document["comparison"]["nodes"][0];
    assert_eq!((&repair["before"], &repair["after"]), (&"degraded".into(), &"pass".into()));
    let says = repair["says"].to_string();
    assert!(says.contains("passes now") && says.contains("at its expected level"), "{says}");
    assert!(says.contains("it has other hardware: GPU 1"), "{says}");
    assert_eq!(repair["changes"][0]["kind"], "hardware", "{repair}");
    assert_eq!(repair["comparison"]["parts"][0]["difference"], "better");
    let junit = fs::read_to_string(place.path().join("a.xml")).expect("written");
    assert!(junit.contains("<testsuite name=\"repair\" tests=\"1\""), "{junit}");
    let kept = place.runs().pop().expect("a run").join("comparison.json");
    assert!(fs::read_to_string(kept).expect("kept").contains("fabricgate.comparison/1"));
    // And the page of the folder, with the numbers of then behind a switch.
    let run = place.runs().pop().expect("a run");
    let page = fs::read_to_string(run.join("report.html")).expect("a page");
    for said in ["What the repair changed", "passes now", "it has other hardware: GPU 1"] {
        assert!(page.contains(said), "{said}");
    }
    let before = place.runs()[0].file_name().expect("a name").to_string_lossy().into_owned();
    assert!(page.contains(&format!(", compared with {before}")), "the page names the run before");
    let shown = run.display().to_string();
    let again = place.run(&["report", &shown, "--format", "html"]).expect(0).stdout;
    assert!(again.contains("What the repair changed") && again.contains(&before));
    let text = place.run(&["report", &shown]).expect(0).stdout;
    assert!(text.contains("What the repair changed"), "{text}");
    // For people, the same words.
    let told = place.run(&["recertify", "n2", "--no-progress", "--partners", "0"]);
    assert!(told.stdout.contains("What the repair changed"), "{}", told.stdout);
    assert!(!told.stderr.contains("measured against"), "{}", told.stderr);
}

#[test]
fn better_and_still_below_same_and_worse_are_told_apart() {
    let place = Place::measured(&lost("n2:1", 4));
    place.now(&lost("n2:1", 2));
    let (repair, says) = place.again(3);
    assert_eq!(repair["after"], "degraded");
    assert!(says.contains("better in") && says.contains("still below"), "{says}");
    let (_, says) = place.again(3);
    assert!(says.contains("changed no measurement"), "{says}");
    assert!(says.contains("are unchanged"), "{says}");
    place.now(&lost("n2:1", 6));
    let (_, says) = place.again(3);
    assert!(says.contains("the blamed part is worse than before"), "{says}");
    place.now(&lost("n2:3", 2));
    let (_, says) = place.again(3);
    assert!(says.contains("the blamed part is better") && says.contains("elsewhere"), "{says}");
}

#[test]
fn the_run_before_may_be_named_and_must_be_one() {
    let place = Place::measured("");
    let before = place.runs().pop().expect("a run");
    let shown = before.display().to_string();
    let with = |before: &str, code| {
        place.run(&["recertify", "n2", "--no-progress", "--json", "--before", before]).expect(code)
    };
    let told = with("/no/such/run", 5);
    assert!(told.stderr.contains("--before: /no/such/run"), "{}", told.stderr);
    let compared = with(&shown, 0).document();
    let id = before.file_name().expect("a name").to_string_lossy().into_owned();
    assert_eq!(compared["comparison"]["nodes"][0]["comparison"]["before"], id.as_str());
    let record = before.join("run.json");
    let good = fs::read_to_string(&record).expect("a record");
    fs::write(&record, good.replace("fabricgate.run/1", "fabricgate.run/2")).expect("written");
    let told = with(&shown, 2);
    assert!(told.stderr.contains("run.json: written by a newer fabricgate"), "{}", told.stderr);
    fs::write(&record, "{").expect("written");
    let told = with(&shown, 2);
    assert!(told.stderr.contains("run.json:"), "{}", told.stderr);
    // One damaged folder among others is told and passed over.
    let told = place.run(&["recertify", "n2", "--no-progress", "--json"]).expect(0);
    assert!(told.stderr.contains("passed over: ") && told.stderr.contains("run.json"));
}

#[test]
fn a_node_that_nobody_measured_before_is_not_compared() {
    let place = Place::new("");
    let told = place.run(&["recertify", "n[1-2]", "--no-progress", "--json"]);
    let document = told.document();
    assert_eq!(document["comparison"]["nodes"].as_array().map(Vec::len), Some(0));
    assert_eq!(
        document["comparison"]["without"][0]["why"],
        "no earlier run in run_dir measured it"
    );
    assert!(
        told.stderr.contains("measured against n[3-6], none of them cleared"),
        "{}",
        told.stderr
    );
    let told = place.run(&["recertify", "n[1-6]", "--no-progress"]).expect(0);
    assert!(!told.stderr.contains("measured against"), "{}", told.stderr);
}
