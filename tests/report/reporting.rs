//! Content of reports in every form: that a run was simulated, the base of a ratio, why nothing
//! was measured, and the place of the files.

#[path = "../support/place.rs"]
mod place;
mod reach;
mod written;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use place::{Place, ProgramOutput};

/// A rack in the simulator, with monitoring and few probes.
const CONFIG: &str = "run_dir = \"runs\"\n[launcher]\nkind = \"sim\"\nscenario = \"rack.toml\"\n\
    [metrics]\ntextfile = \"fabricgate.prom\"\n\
    [probes]\nrun = [\"nvbandwidth-ce\", \"nvbandwidth-lane\"]\n";

/// A GPU of it that has lost two links.
const LOST: &str = "[[fault]]\nkind = \"lost-links\"\ngpu = \"n2:1\"\ncount = 2\n";

fn rack() -> Place {
    Place::with(&place::rack("n[1-4]", LOST), CONFIG)
}

/// The path of the single run folder, as an argument.
fn run_of(place: &Place) -> String {
    let listed = fs::read_dir(place.path().join("runs")).expect("runs");
    let runs: Vec<String> =
        listed.map(|it| it.expect("one").file_name().to_string_lossy().into_owned()).collect();
    let [run] = runs.as_slice() else { panic!("{runs:?}") };
    format!("runs/{run}")
}

#[test]
fn every_form_of_a_simulated_run_is_marked_and_offers_no_command() {
    let place = rack();
    let audit = ["audit", "--no-progress", "--html", "a.html", "--junit", "a.xml"];
    let output = place.run(&audit).expect(3);
    let run = run_of(&place);
    let run = run.as_str();
    let read = |name: &str| {
        fs::read_to_string(place.path().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    };
    let bundle = ["report", run, "--bundle", "n2", "--output", "n2.tar.gz", "--json"];
    let stdout = |words: &[&str]| place.run(words).stdout;
    let field = "\"simulated\": true";
    let forms: Vec<(&str, String, &str)> = vec![
        ("terminal", output.stdout, "SIMULATED"),
        ("page", read("a.html"), "SIMULATED"),
        ("junit, property", read("a.xml"), "name=\"simulated\" value=\"true\""),
        ("junit, message", read("a.xml"), "SIMULATED"),
        ("kept page", read(&format!("{run}/report.html")), "SIMULATED"),
        ("run.json", read(&format!("{run}/run.json")), field),
        ("verdicts.json", read(&format!("{run}/verdicts.json")), field),
        ("actions.json", read(&format!("{run}/actions.json")), field),
        ("metrics", read("fabricgate.prom"), "fabricgate_state_simulated 1"),
        ("report", stdout(&["report", run]), "SIMULATED"),
        ("report, json", stdout(&["report", run, "--json"]), field),
        ("report, html", stdout(&["report", run, "--format", "html"]), "SIMULATED"),
        ("report, junit", stdout(&["report", run, "--format", "junit"]), "SIMULATED"),
        ("apply", stdout(&["apply", run]), "SIMULATED"),
        ("apply, json", stdout(&["apply", run, "--json"]), field),
        ("explain, node", stdout(&["explain", run, "n2"]), "SIMULATED"),
        ("explain, GPU", stdout(&["explain", run, "n2:1"]), "SIMULATED"),
        ("explain, pair", stdout(&["explain", run, "n2:1 - n3:1"]), "SIMULATED"),
        ("explain, json", stdout(&["explain", run, "n2", "--json"]), field),
        ("replay", stdout(&["replay", run]), "SIMULATED"),
        ("replay, json", stdout(&["replay", run, "--json"]), field),
        ("history", stdout(&["history"]), "SIMULATED"),
        ("history, json", stdout(&["history", "--json"]), field),
        ("map", stdout(&["export", run, "--to", "nccl-env", "--even-if-simulated"]), "SIMULATED"),
        ("bundle", stdout(&bundle), ""),
    ];
    for (form, text, needle) in &forms {
        assert!(!text.is_empty() && text.contains(needle), "{form} does not say {needle}:\n{text}");
        // The page's script contains the names of its own classes.
        let page = text.split("<script").next().unwrap_or_default();
        for command in ["\n  $ ", "<pre class=\"command\"", "<code class=\"command\""] {
            assert!(!page.contains(command), "{form} offers a command:\n{page}");
        }
    }
}

/// Numbers of a CSV column by test: the platform's expectations.
fn expected_by_test(csv: &str) -> Vec<(String, f64)> {
    let mut lines = csv.lines();
    let head: Vec<&str> = lines.next().expect("a header").split(',').collect();
    let column = |name: &str| head.iter().position(|it| *it == name).expect(name);
    let (test, expected) = (column("testcase"), column("expected"));
    let rows = lines.map(|line| line.split(',').collect::<Vec<_>>());
    let found: BTreeSet<(String, String)> =
        rows.map(|row| (row[test].to_owned(), row[expected].to_owned())).collect();
    found.into_iter().filter_map(|(test, value)| Some((test, value.parse().ok()?))).collect()
}

#[test]
fn expected_is_the_platforms_number_and_every_form_states_the_base_of_a_ratio() {
    let (mut by_peers, mut by_both) = (0, 0);
    for scenario in
        ["rack-lost-link", "hgx-lost-link", "rail-half-rate", "host-link-x8", "plane-out"]
    {
        let place = rack();
        let example =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("examples/{scenario}.toml"));
        let example = example.display().to_string();
        place.run(&["sim", "record", &example, "rec"]).expect(0);
        let files = ["--csv", "m.csv", "--junit", "a.xml", "--html", "a.html"];
        let output = place.run(&[&["judge", "rec"][..], &files].concat());
        let json = place.run(&["judge", "rec", "--json"]).document();
        let read = |name: &str| fs::read_to_string(place.path().join(name)).expect(name);
        let known = expected_by_test(&read("m.csv"));
        let findings = json["findings"].as_array().expect("findings");
        assert!(!findings.is_empty(), "{scenario}: {json}");
        for finding in findings.iter().filter(|it| it["unit"] == "GB/s") {
            let number = |name: &str| finding[name].as_f64();
            let (measured, expected, peers) =
                (number("measured").expect("a rate"), number("expected"), number("peers"));
            by_peers += usize::from(peers.is_some());
            by_both += usize::from(peers.is_some() && expected.is_some());
            let is_of =
                |ratio: Option<f64>, of: f64| (ratio.expect("one") - measured / of).abs() < 1e-3;
            if let Some(expected) = expected {
                assert!(is_of(number("ratio"), expected), "{scenario}: {finding}");
                let tests: Vec<&str> = evidence(finding, "testcase");
                // Collectives have no cells.
                let mut of =
                    known.iter().filter(|(test, _)| tests.contains(&test.as_str())).peekable();
                assert!(
                    of.peek().is_none() || of.any(|(_, value)| (value - expected).abs() < 0.01),
                    "{scenario}: no threshold is {expected}: {finding}"
                );
            } else {
                assert!(finding["ratio"].is_null(), "{scenario}: {finding}");
            }
            if let Some(peers) = peers {
                assert!(is_of(number("ratio_to_peers"), peers), "{scenario}: {finding}");
            }
            assert!(expected.or(peers).or(number("own")).is_some(), "{scenario}: {finding}");
            forms(scenario, finding, &output, &read("a.xml"), &read("a.html"));
        }
    }
    assert!(0 < by_peers && 0 < by_both, "{by_peers}, {by_both}");
}

fn evidence<'v>(finding: &'v Value, field: &str) -> Vec<&'v str> {
    let all = finding["evidence"].as_array().expect("evidence");
    all.iter().filter_map(|it| it[field].as_str()).collect()
}

/// Every form has the same ratio, after the same number.
fn forms(scenario: &str, finding: &Value, output: &ProgramOutput, junit: &str, page: &str) {
    let shown =
        |value: f64| if value < 100.0 { format!("{value:.2}") } else { format!("{value:.1}") };
    for (name, value, ratio) in
        [("expected", "expected", "ratio"), ("peers' median", "peers", "ratio_to_peers")]
    {
        let (Some(value), Some(ratio)) = (finding[value].as_f64(), finding[ratio].as_f64()) else {
            continue;
        };
        let (value, ratio) = (shown(value), format!("{ratio:.3}"));
        let expected = format!("{name} {value} GB/s, ratio {ratio} of it");
        let escaped = expected.replace('\'', "&apos;");
        assert!(
            junit.contains(&expected) || junit.contains(&escaped),
            "{scenario}: JUnit lacks {expected}:\n{junit}"
        );
        let expected = format!("<dd>{value} GB&#x2f;s, {ratio} of it</dd>");
        assert!(page.contains(&expected), "{scenario}: the page lacks {expected}");
        let lines: Vec<&str> = output.stdout.lines().collect();
        let is_told = match name {
            // A row of the table under the titles `expected` and `of expected`.
            "expected" => lines.iter().any(|it| it.contains(&value) && it.contains(&ratio)),
            _ => output
                .stdout
                .replace("\n    ", " ")
                .contains(&format!("{name} {value} GB/s, ratio {ratio} of it")),
        };
        assert!(
            is_told,
            "{scenario}: the terminal lacks {name} {value}, {ratio}:\n{}",
            output.stdout
        );
    }
}
