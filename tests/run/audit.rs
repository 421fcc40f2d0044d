//! `fabricgate audit` within a budget, night after night, over a simulated fleet.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

const FLEET: &str = "title = \"three domains\"\nseed = 7\n[noise]\nsigma = 0.002\n\
    [[domain]]\nname = \"d1\"\nnodes = \"a[1-4]\"\nplatform = \"gb200-nvl72\"\n\
    [[domain]]\nname = \"d2\"\nnodes = \"b[1-4]\"\nplatform = \"gb200-nvl72\"\n\
    [[domain]]\nname = \"d3\"\nnodes = \"c[1-2]\"\nplatform = \"gb200-nvl72\"\n";

const CLAIMS: &str = "[[domain]]\nname = \"d1\"\nnodes = \"a[1-4]\"\nplatform = \"gb200-nvl72\"\n\
    gpus_per_node = 4\n\
    [[domain]]\nname = \"d2\"\nnodes = \"b[1-4]\"\nplatform = \"gb200-nvl72\"\ngpus_per_node = 4\n\
    [[domain]]\nname = \"d3\"\nnodes = \"c[1-2]\"\nplatform = \"gb200-nvl72\"\ngpus_per_node = 4\n";

const CONFIG: &str = "claims = [\"claims.toml\", \"nodes.txt\"]\nrun_dir = \"runs\"\n\
    [launcher]\nkind = \"sim\"\nscenario = \"fleet.toml\"\n\
    [probes]\nrun = [\"nvidia-smi-q\", \"nvbandwidth-ce\", \"nvbandwidth-lane\"]\n\
    [audit]\nnodes_at_most = 4\n";

struct Site(tempfile::TempDir);

impl Site {
    fn new() -> Self {
        let site = Self(tempfile::tempdir().expect("a folder"));
        site.put("fleet.toml", FLEET);
        site.put("claims.toml", CLAIMS);
        site.put("fabricgate.toml", CONFIG);
        site.busy(&[]);
        site
    }

    fn put(&self, name: &str, text: &str) {
        fs::write(self.0.path().join(name), text).expect("written");
    }

    /// Slurm's report of the nodes: these run jobs.
    fn busy(&self, busy: &[&str]) {
        let mut text = String::new();
        for node in ["a1", "a2", "a3", "a4", "b1", "b2", "b3", "b4", "c1", "c2"] {
            let (state, cpus) = if busy.contains(&node) { ("ALLOCATED", 4) } else { ("IDLE", 0) };
            text += &format!(
                "NodeName={node} Arch=x86_64 CoresPerSocket=1 \n   CPUAlloc={cpus} CPUEfctv=4 \
                 CPUTot=4 CPULoad=0.1\n   NodeAddr={node} NodeHostName={node} Version=24.11.5\n   \
                 State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A\n\n"
            );
        }
        self.put("nodes.txt", &text);
    }

    fn run(&self, args: &[&str]) -> (Option<i32>, String, String) {
        run(self.0.path(), &[args, &["--config", "fabricgate.toml", "--no-progress"]].concat())
    }

    /// One audit: the measured nodes, and stderr.
    fn audit(&self, args: &[&str]) -> (BTreeSet<String>, String) {
        let (code, _, stderr) = self.run(&[&["audit"], args].concat());
        assert_eq!(code, Some(0), "{stderr}");
        let line = stderr.lines().find_map(|line| line.split("run folder ").nth(1));
        let run = self.0.path().join(line.expect("a run folder"));
        // Two audits are a day apart, not a second.
        let file = run.join("run.json");
        let made = fs::read_to_string(&file).expect("its kind");
        let mut made: Value = serde_json::from_str(&made).expect("JSON");
        let nights = fs::read_dir(self.0.path().join("runs")).expect("runs").count();
        made["info"]["created"] = format!("2026-01-{nights:02}T03:00:00Z").into();
        fs::write(&file, made.to_string()).expect("written");
        let text = fs::read_to_string(run.join("verdicts.json")).expect("verdicts");
        let verdicts: Value = serde_json::from_str(&text).expect("JSON");
        let nodes = verdicts["nodes"].as_array().expect("nodes");
        assert!(nodes.iter().all(|node| node["outcome"] == "pass"), "{verdicts}");
        let name = |node: &Value| node["node"].as_str().expect("a name").to_owned();
        (nodes.iter().map(name).collect(), stderr)
    }
}

#[expect(clippy::disallowed_methods, reason = "a test is not part of the program")]
fn run(folder: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_fabricgate"));
    command.args(args).current_dir(folder).env_remove("FABRICGATE_CONFIG").env("NO_COLOR", "1");
    let output = command.output().expect("the program");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn night_after_night_a_fleet_is_measured_in_turn_also_where_nodes_are_busy_now_and_then() {
    let site = Site::new();
    let mut seen = BTreeSet::new();
    let mut nights = Vec::new();
    // All of d1 is busy in the first two nights.
    for busy in [&["a1", "a2", "a3", "a4"][..], &["a1", "a2", "a3", "a4"], &[], &[], &[]] {
        site.busy(busy);
        let (nodes, stderr) = site.audit(&[]);
        assert!(nodes.len() <= 4, "{nodes:?}");
        assert!(busy.iter().all(|node| !nodes.contains(*node)), "{nodes:?}");
        if let [first, ..] = busy {
            let line = stderr
                .lines()
                .find(|line| line.contains("not selected: a[1-4]"))
                .expect("a reason");
            assert!(line.contains("busy"), "{first}: {line}");
        }
        seen.extend(nodes.clone());
        nights.push(nodes);
    }
    assert_eq!(seen.len(), 10, "{nights:?}");
    // Busy nodes come first as soon as their jobs have ended.
    let d1: BTreeSet<String> = ["a1", "a2", "a3", "a4"].map(str::to_owned).into();
    assert_eq!(nights[2], d1, "{nights:?}");
    // Next are the nodes whose last measurement is the oldest.
    let longest: Vec<&String> = nights[0].difference(&nights[1]).collect();
    assert!(longest.iter().all(|node| nights[3].contains(*node)), "{nights:?}");
    assert!(!longest.is_empty(), "{nights:?}");
}

#[test]
fn a_budget_for_a_resumed_run_is_refused_and_not_ignored() {
    let site = Site::new();
    for options in [&["--minutes", "5"][..], &["--all"], &["--share", "0.5"]] {
        let (code, stdout, stderr) = site.run(&[&["audit", "--resume", "x"], options].concat());
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
        assert!(stderr.contains("--resume: the run's nodes were selected"), "{stderr}");
    }
}

#[test]
fn the_budget_of_minutes_is_kept_in_the_plan_and_shown_with_the_others() {
    let site = Site::new();
    let plan = |options: &[&str]| {
        let args = [&["--json", "plan", "audit", "--all"][..], options].concat();
        let args: Vec<&str> = match options {
            [] => args,
            _ => args.into_iter().filter(|word| *word != "--all").collect(),
        };
        let (code, stdout, stderr) = site.run(&args);
        assert_eq!(code, Some(0), "{stderr}");
        (serde_json::from_str::<Value>(&stdout).expect("a plan"), stderr)
    };
    let nodes = |plan: &Value| {
        let steps = plan["rounds"].as_array().expect("rounds").iter();
        let steps = steps.flat_map(|round| round["steps"].as_array().expect("steps"));
        let names = steps.flat_map(|step| step["nodes"].as_array().expect("nodes"));
        names.map(ToString::to_string).collect::<BTreeSet<_>>()
    };
    let (whole, _) = plan(&[]);
    assert_eq!(nodes(&whole).len(), 10);
    // Domains are measured concurrently: the number of measured nodes per domain determines the
    // time.
    let seconds = |plan: &Value| plan["estimate_s"].as_f64().expect("a number");
    let (two, _) = plan(&["--nodes-at-most", "2"]);
    let limit = (seconds(&two) + seconds(&whole)) / 2.0;
    assert!(seconds(&two) < limit, "{two} {whole}");
    let minutes = (limit / 60.0).to_string();
    let (part, part_stderr) = plan(&["--minutes", &minutes]);
    let chosen = nodes(&part);
    assert!((2..10).contains(&chosen.len()), "{chosen:?}");
    assert!(seconds(&part) <= limit);
    assert!(
        part_stderr.contains("take the whole limit of") || part_stderr.contains("no more than 4"),
        "{part_stderr}"
    );
    let (code, _, stderr) = site.run(&["plan", "audit", "--minutes", "0.001"]);
    assert_eq!(code, Some(4), "{stderr}");
    assert!(stderr.contains("no node is measured"), "{stderr}");
    let (code, _, stderr) = site.run(&["plan", "burn-in", "--minutes", "5"]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("expected the profile audit"), "{stderr}");
    let (code, _, stderr) = site.run(&["audit", "--share", "1.5"]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("for '--share <SHARE>': 1.5, expected more than 0, to 1"), "{stderr}");
}

#[test]
fn named_nodes_are_all_measured_and_a_fleet_at_work_is_left_alone() {
    let site = Site::new();
    let (nodes, _) = site.audit(&["a[1-4],b[1-2]", "--partners", "0"]);
    assert_eq!(nodes.len(), 6);
    let (nodes, stderr) = site.audit(&["a[1-4],b[1-2]"]);
    assert_eq!(nodes.len(), 8, "b1 and b2 are shown to be of their domain: {stderr}");
    site.busy(&["a1", "a2", "a3", "a4", "b1", "b2", "b3", "b4", "c1", "c2"]);
    let (code, _, stderr) = site.run(&["audit"]);
    assert_eq!(code, Some(4), "{stderr}");
    assert!(stderr.contains("no node can be measured now"), "{stderr}");
}

#[test]
fn nodes_simulated_inside_the_program_answer_all_default_probes_of_an_audit() {
    let place = tempfile::tempdir().expect("a folder");
    let put = |name: &str, text: &str| fs::write(place.path().join(name), text).expect("written");
    let domain = "[[domain]]\nname = \"pod\"\nnodes = \"n[1-3]\"\nplatform = \"hgx-h100\"\nper_node = true\n";
    put("fleet.toml", &format!("title = \"a pod\"\nseed = 3\n[network]\nrails = 8\n{domain}"));
    put(
        "fabricgate.toml",
        "claims = [\"claims.toml\"]\nrun_dir = \"runs\"\n[launcher]\nkind = \"sim\"\n\
         scenario = \"fleet.toml\"\nworkers = false\n",
    );
    let (code, claims, stderr) = run(place.path(), &["sim", "claims", "fleet.toml"]);
    assert_eq!(code, Some(0), "{stderr}");
    put("claims.toml", &claims);
    let audit = ["audit", "--config", "fabricgate.toml", "--no-progress", "--json"];
    let (code, out, stderr) = run(place.path(), &audit);
    assert_eq!(code, Some(0), "{stderr}\n{out}");
    let document: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(document["verdicts"]["unknown"].as_array().map_or(0, Vec::len), 0, "{out}");
    let plan = fs::read_dir(place.path().join("runs")).expect("runs").next().expect("a run");
    let plan =
        fs::read_to_string(plan.expect("an entry").path().join("plan.json")).expect("a plan");
    assert!(plan.contains("all_reduce_perf"), "no collective was asked for");
}
