//! Names that are options, lists, commands or invisible characters, from claims, labels or an
//! untrusted run: each reaches a program only as one name.
//!
//! Stand-ins on PATH record the arguments of the programs that are started.

use std::fs;

use serde_json::json;

use super::place::{Place, change};

/// Hostile names of a node.
const NAMES: &[&str] = &[
    "-x",
    "--help",
    "-oProxyCommand=touch PWNED",
    "n1;touch PWNED",
    "n1 -x",
    "$(touch PWNED)",
    "`touch PWNED`",
    "n1\n-x",
    "n1\u{0}x",
    "n\u{202e}1",
    "../../n1",
    "/etc/passwd",
    "ALL",
    "n[1-5],m",
    "{command}",
    "{node}",
];

/// Programs that are started with names among their arguments.
const PROGRAMS: &[&str] =
    &["ssh", "srun", "salloc", "squeue", "scancel", "scontrol", "sinfo", "kubectl", "mpirun"];

/// Stand-ins that record their arguments, one a line.
fn recorded(place: &Place) {
    let at = place.path("calls").display().to_string();
    for program in PROGRAMS {
        let answer = match *program {
            "scontrol" => {
                "case \"$*\" in *ping*) echo 'Slurmctld(primary) at head is UP';; *json*) cat nodes.json;; esac"
            }
            _ => "exit 1",
        };
        place.program(
            program,
            &format!("{{ echo 'CALL {program}'; for a in \"$@\"; do printf 'ARG %s\\n' \"$a\"; done; }} >> {at}\n{answer}"),
        );
    }
    place.put("nodes.json", "{\"nodes\": []}");
}

/// The arguments that programs here received.
fn arguments(place: &Place) -> Vec<String> {
    let text = fs::read_to_string(place.path("calls")).unwrap_or_default();
    text.lines().filter_map(|line| line.strip_prefix("ARG ")).map(str::to_owned).collect()
}

/// No argument contains a hostile name, whole or in part.
fn untouched(place: &Place, name: &str) {
    for argument in arguments(place) {
        let first = name.split(['\n', ' ', '\0']).next().expect("one");
        // `ALL` and a list are dangerous anywhere in a command, the others only as whole words.
        let is_it = argument == name || argument == first && first != "n1";
        let holds = argument.contains("PWNED")
            || (["ALL", "n[1-5],m"].contains(&name) && argument.contains(name));
        assert!(!is_it && !holds, "{name:?} became the argument {argument:?}");
    }
    let left = super::place::files(&place.path(""));
    assert!(left.iter().all(|it| !it.ends_with("PWNED")), "{name:?} was run");
}

#[test]
fn names_of_claims_are_names_or_refused() {
    for launcher in [
        "kind = \"command\"\ntemplate = [\"ssh\", \"{node}\"]",
        "kind = \"command\"\ntemplate = [\"ssh\", \"{node}\", \"{command}\"]",
        "kind = \"slurm\"",
    ] {
        for name in NAMES.iter().filter(|name| !["ALL", "n[1-5],m"].contains(*name)) {
            let place = Place::new();
            recorded(&place);
            let name = serde_json::to_string(name).expect("a text").replace("\\u0000", "\\u0001");
            place.put(
                "claims.toml",
                format!(
                    "[[domain]]\nname = \"a\"\nnodes = [\"n1\", {name}]\nplatform = \"hgx-h100\"\n"
                ),
            );
            let config =
                format!("claims = \"claims.toml\"\nrun_dir = \"runs\"\n[launcher]\n{launcher}\n");
            place.put("fabricgate.toml", config);
            let ended = place.run(&["audit", "--config", "fabricgate.toml"]);
            assert_eq!(ended.code, Some(2), "{name}: {ended:?}");
            assert_eq!(arguments(&place), [""; 0], "{name}: something was started");
        }
    }
}

#[test]
fn names_in_labels_and_answers_never_become_arguments() {
    let mut asked = 0;
    for name in NAMES {
        let place = Place::new();
        recorded(&place);
        // As the node's name, and as the name of the domain its label claims.
        let node = |name: &str, clique: &str| {
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {
                "nvidia.com/gpu.clique": clique, "nvidia.com/gpu.count": "8",
                "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}})
        };
        let items = [node("n1", name), node("n2", name), node(name, "c.1"), node("n3", "c.1")];
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        place.put("nodes.kubernetes.json", list.to_string());
        let slurm = json!({"nodes": [{"name": name, "hostname": name, "state": ["IDLE"]},
            {"name": "n1", "hostname": "n1", "state": ["IDLE"], "reason": name}]});
        place.put("nodes.json", slurm.to_string());
        for args in [
            &["claims", "nodes.kubernetes.json"][..],
            &["claims", "nodes.json"],
            &["claims", "--from", "slurm"],
        ] {
            let ended = place.run(args);
            let steers = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
            assert!(!(ended.stdout + &ended.stderr).contains(steers), "{name:?}: {args:?}");
        }
        asked += arguments(&place).len();
        untouched(&place, name);
    }
    assert!(NAMES.len() <= asked, "only {asked} words were given to any program");
}

#[test]
fn an_untrusted_run_names_only_single_nodes_to_the_scheduler() {
    let mut asked = 0;
    for name in NAMES {
        let place = Place::new();
        recorded(&place);
        let run = place.foreign_run();
        for entry in fs::read_dir(&run).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|it| it == "json" || it == "jsonl") {
                let word = serde_json::to_string(name).expect("a text");
                let text = fs::read_to_string(&path).expect("text").replace("\"box2\"", &word);
                fs::write(&path, text).expect("written");
            }
        }
        change(&run.join("run.json"), |run| run["state"] = "complete".into());
        place.put("claims.toml", "[[domain]]\nname = \"a\"\nnodes = \"box[1-2]\"\n");
        place.put("fabricgate.toml", "claims = \"claims.toml\"\n[gate]\nstate = \"gate\"\n");
        place.run(&["apply", "runs/r", "--config", "fabricgate.toml", "--apply"]);
        for program in ["slurm-topology", "kubernetes-labels", "nccl-env", "ranks"] {
            place.run(&["export", "--to", program, "runs/r"]);
        }
        asked += arguments(&place).len();
        untouched(&place, name);
    }
    assert!(NAMES.len() <= asked, "only {asked} words were given to any program");
}

#[test]
fn files_named_like_options_are_files() {
    let place = Place::new();
    place.put("--format", "not an output\n");
    place.put("-x.txt", "not an output\n");
    let ended = place.run(&["parse", "--", "--format", "-x.txt"]);
    assert_eq!(ended.code, Some(4), "{ended:?}");
    assert!(ended.stdout.contains("-x.txt"), "{ended:?}");
}
