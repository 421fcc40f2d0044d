//! `fabricgate claims` against a real Slurm, as a user would run it.

use model::source_report::SourceKind;
use serde_json::Value;

use super::*;

/// The program under test, by default the one built with these tests.
const BINARY: &str = "FABRICGATE_LAB_BINARY";

/// Result of the program.
struct ProgramOutput {
    code: i32,
    stdout: String,
    stderr: String,
}

impl ProgramOutput {
    fn claims(&self) -> Value {
        let document: Value = serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.stdout, self.stderr));
        assert_eq!(document["format"], "fabricgate.claims/1");
        document["claims"].clone()
    }
}

/// A folder with a configuration that names the lab.
fn site(lab: &Lab) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let Lab { run, socket, .. } = lab;
    let config = format!(
        "[sources.slurm]\nscontrol = [{run:?}, \"scontrol\"]\nsinfo = [{run:?}, \"sinfo\"]\n\
         [sources.slurmrestd]\naddress = \"unix:{socket}\"\ntoken_file = \"token\"\n"
    );
    std::fs::write(folder.path().join("fabricgate.toml"), config).expect("written");
    std::fs::write(folder.path().join("token"), lab.token()).expect("written");
    folder
}

/// Runs `fabricgate claims --json` with these additional arguments.
fn claims(site: &tempfile::TempDir, arguments: &[&str]) -> ProgramOutput {
    let binary = std::env::var(BINARY).unwrap_or(env!("CARGO_BIN_EXE_fabricgate").to_owned());
    let config = site.path().join("fabricgate.toml").display().to_string();
    let argv = [&[&binary, "claims", "--json", "--config", &config], arguments].concat();
    let argv = argv.into_iter().map(str::to_owned).collect();
    let request = ProcessRequest { argv, limit: Duration::from_secs(120), capture: exec::CAPTURE };
    let (_sender, stop) = tokio::sync::watch::channel(false);
    let finished = now(exec::run(&request, stop)).expect("the program");
    let ProcessEnding::Exited { code } = finished.ending else { panic!("{}", finished.ending) };
    let text = |bytes| String::from_utf8(bytes).expect("text");
    ProgramOutput { code, stdout: text(finished.stdout.bytes), stderr: text(finished.stderr.bytes) }
}

/// Names, nodes and GPUs of the domains that would be measured.
fn domains(claims: &Value) -> Vec<(String, Vec<String>, Option<u64>)> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let domains = claims["domains"].as_array().expect("domains");
    let nodes = |it: &Value| it["nodes"].as_array().expect("nodes").iter().map(text).collect();
    domains.iter().map(|it| (text(&it["name"]), nodes(it), it["gpus_per_node"].as_u64())).collect()
}

fn block(name: &str, numbers: std::ops::RangeInclusive<u32>) -> (String, Vec<String>, Option<u64>) {
    let nodes = numbers.map(|number| format!("node{number:04}")).collect();
    (name.to_owned(), nodes, Some(4))
}

#[test]
fn the_program_takes_its_domains_from_the_controller() {
    let Some(lab) = lab() else { return };
    let site = site(&lab);
    let output = claims(&site, &["--from", "slurm"]);
    assert_eq!(output.code, 0, "{} {}", output.stdout, output.stderr);
    let expected = [block("block01", 1..=18), block("block02", 19..=36)];
    assert_eq!(domains(&output.claims()), expected);

    // Both ways to query it agree, and the token appears nowhere.
    let output = claims(&site, &[]);
    assert_eq!(output.code, 0, "{} {}", output.stdout, output.stderr);
    assert_eq!(domains(&output.claims()), expected);
    let token = std::fs::read_to_string(site.path().join("token")).expect("a token");
    let token = token.trim().trim_start_matches("SLURM_JWT=");
    assert!(!output.stdout.contains(token) && !output.stderr.contains(token));
    assert!(output.stdout.contains("/nodes/"), "slurmrestd was asked: {}", output.stdout);
}

#[test]
fn the_program_sees_that_a_file_and_the_controller_disagree() {
    let Some(lab) = lab() else { return };
    if !lab.has_yaml() {
        println!("SKIPPED: this Slurm has no topology of a node that its file contradicts");
        return;
    }
    let site = site(&lab);
    let file = site.path().join("topology.yaml");
    std::fs::write(&file, lab.run(&["cat", "/etc/slurm/topology.yaml"])).expect("written");
    let file = file.display().to_string();
    let arguments = ["--from", "slurm", "--from", &file];
    assert_eq!(claims(&site, &arguments).code, 0, "they agree at first");

    lab.run(&["scontrol", "update", "NodeName=node0018", "Topology=topo-block:block02"]);
    let output = claims(&site, &arguments);
    lab.run(&["scontrol", "reconfigure"]);
    assert_eq!(output.code, 3, "{} {}", output.stdout, output.stderr);
    let found = output.claims()["disagreements"].clone();
    let contradiction = found
        .as_array()
        .expect("disagreements")
        .iter()
        .find(|it| it["severity"] == "contradiction")
        .unwrap_or_else(|| panic!("{found}"))
        .clone();
    assert_eq!(contradiction["nodes"], serde_json::json!(["node0018"]), "{contradiction}");
    let sides = contradiction["sides"].to_string();
    assert!(sides.contains(&file) && sides.contains("scontrol"), "both are named: {sides}");
}

#[test]
fn the_program_claims_nothing_for_a_missing_controller() {
    let Some(lab) = lab() else { return };
    let site = site(&lab);
    lab.signal("KILL");
    let output = claims(&site, &[]);
    lab.run(&["slurmctld"]);
    lab.settle();
    assert_eq!(output.code, 5, "{} {}", output.stdout, output.stderr);
    let claims = output.claims();
    assert!(domains(&claims).is_empty(), "{claims}");
    let sources = claims["sources"].as_array().expect("sources").clone();
    let kind = serde_json::to_value(SourceKind::SlurmTopology).expect("a kind");
    assert!(sources.iter().any(|it| it["kind"] == kind), "{claims}");
    for source in &sources {
        assert_eq!(source["problems"][0]["kind"], "unreachable", "{source}");
    }
}
