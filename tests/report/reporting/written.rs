//! Files for answers: opened before anything is measured, written whole or not at all, and
//! nowhere else.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::place::Place;
use super::{rack, run_of};

/// Every option that names a file, with its command. RUN is a run folder, REC recorded outputs.
const OPTIONS: &[(&[&str], &str)] = &[
    (&["audit"], "--html"),
    (&["audit"], "--csv"),
    (&["audit"], "--junit"),
    (&["admit"], "--html"),
    (&["recertify", "--all"], "--junit"),
    (&["burn-in"], "--csv"),
    (&["burn-in", "--rounds", "1"], "--html"),
    (&["burn-in", "--rounds", "1"], "--csv"),
    (&["burn-in", "--rounds", "1"], "--junit"),
    (&["burn-in", "--rounds", "1"], "--markdown"),
    (&["judge", "REC"], "--html"),
    (&["judge", "REC"], "--csv"),
    (&["judge", "REC"], "--junit"),
    (&["replay", "RUN"], "--html"),
    (&["replay", "RUN"], "--csv"),
    (&["replay", "RUN"], "--junit"),
    (&["report", "RUN", "--format", "html"], "--output"),
    (&["report", "RUN", "--bundle", "n2"], "--output"),
    (&["export", "RUN", "--to", "nccl-env", "--even-if-simulated"], "--output"),
    (&["history"], "--csv"),
    (&["capacity", "--nodes", "18"], "--plot"),
];

fn words<'w>(command: &[&'w str], run: &'w str) -> Vec<&'w str> {
    let word = |word: &&'w str| match *word {
        "RUN" => run,
        "REC" => "rec",
        other => other,
    };
    command.iter().map(word).collect()
}

/// A place with a run and recorded outputs.
fn measured() -> (Place, String) {
    let place = rack();
    place.run(&["audit", "--no-progress"]).expect(3);
    place.run(&["sim", "record", "rack.toml", "rec"]).expect(0);
    let run = run_of(&place);
    (place, run)
}

#[test]
fn an_unwritable_file_is_reported_before_anything_is_measured() {
    let (place, run) = measured();
    let runs = || fs::read_dir(place.path().join("runs")).expect("runs").count();
    let before = runs();
    for (command, option) in OPTIONS {
        let words = [&words(command, &run)[..], &[option, "none/there/file"]].concat();
        let output = place.run(&words).expect(5);
        assert_eq!(output.stdout, "", "{words:?}");
        assert!(output.stderr.contains("none/there/file"), "{words:?}: {}", output.stderr);
        assert_eq!(runs(), before, "{words:?} measured");
    }
    let twice = ["replay", &run, "--html", "a", "--csv", "a"];
    assert!(place.run(&twice).expect(2).stderr.contains("given for two output files"));
}

#[test]
fn a_hyphen_is_standard_output_of_every_option() {
    let (place, run) = measured();
    for (command, option) in OPTIONS.iter().filter(|(command, _)| {
        // The same code as in audit, and minutes longer.
        !matches!(command[0], "admit" | "recertify" | "burn-in") || command.contains(&"--rounds")
    }) {
        if *option == "--output" && command.contains(&"--bundle") {
            continue;
        }
        let words = [&words(command, &run)[..], &[option, "-", "--no-progress"]].concat();
        let output = place.run(&words);
        assert!(output.code < 5 && output.code != 2, "{words:?}: {}", output.stderr);
        let begins = match *option {
            "--html" => "<!doctype html>",
            "--junit" => "<?xml",
            "--csv" => "run,",
            "--markdown" => "# ",
            "--plot" => "<svg",
            _ => "",
        };
        assert!(
            output.stdout.starts_with(begins) && !output.stdout.is_empty(),
            "{words:?}: {}",
            output.stdout
        );
        assert!(!place.path().join("-").exists(), "{words:?}");
        // Messages are not mixed into it.
        assert!(!output.stdout.contains("\nDetectable\n"), "{words:?}: {}", output.stdout);
    }
    let two = ["replay", &run, "--html", "-", "--csv", "-"];
    place.run(&two).expect(2);
    place.run(&["replay", &run, "--json", "--html", "-"]).expect(2);
}

#[test]
fn a_run_that_fails_leaves_the_file_of_before_whole() {
    let place = rack();
    place.put("a.html", "before");
    place.put("rack.toml", "not a fabric");
    assert_ne!(place.run(&["audit", "--html", "a.html"]).code, 0);
    assert_eq!(fs::read_to_string(place.path().join("a.html")).expect("there"), "before");
    let names: Vec<String> = tree(place.path()).into_keys().collect();
    assert!(names.iter().all(|name| !name.contains("tmp")), "{names:?}");
}

#[test]
fn a_run_folder_is_not_a_folder_of_recorded_outputs() {
    let (place, run) = measured();
    let output = place.run(&["judge", &run]).expect(2);
    let message = format!("{run}: this is a run folder; use `fabricgate replay {run}`");
    assert!(output.stderr.contains(&message), "{}", output.stderr);
    assert_eq!(output.stdout, "");
}

/// Every file and folder with its content.
fn tree(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.strip_prefix(root).expect("inside").display().to_string();
            if path.is_dir() {
                all.insert(name, Vec::new());
                left.push(path);
            } else {
                all.insert(name, fs::read(&path).unwrap_or_default());
            }
        }
    }
    all
}

/// Programs that answer as Slurm's do: the nodes are idle, and a job is granted or refused.
fn slurm(salloc: &str) -> Place {
    let worker = env!("CARGO_BIN_EXE_fabricgate");
    let place = Place::with(
        "",
        &format!(
            "claims = \"claims.toml\"\nrun_dir = \"runs\"\n[history]\nenabled = false\n\
             [launcher]\nkind = \"slurm\"\nworker = \"{worker}\"\nscontrol = [\"bin/scontrol\"]\n\
             connect_s = 20\n\
             [probes]\nrun = [\"nvidia-smi-q\"]\n"
        ),
    );
    let claims = "[[domain]]\nname = \"rack\"\nnodes = \"node[0001-0002]\"\n\
                  platform = \"gb200-nvl72\"\ngpus_per_node = 4\n";
    place.put("claims.toml", claims);
    place.put("nodes.json", include_str!("../../recorded/slurm/24.11-scontrol-show-node-2.json"));
    fs::create_dir(place.path().join("bin")).expect("made");
    let scontrol = "case \"$*\" in *ping*) echo 'Slurmctld(primary) at head is UP';; \
                    *) cat \"$(dirname \"$0\")/../nodes.json\";; esac";
    // The launcher's own options begin with a hyphen.
    let srun = "while [ $# -gt 0 ]; do case \"$1\" in -*) shift;; *) exec \"$@\";; esac; done";
    for (name, script) in [
        ("scontrol", scontrol),
        ("salloc", salloc),
        ("srun", srun),
        ("squeue", "exit 0"),
        ("scancel", "exit 0"),
    ] {
        let path = place.path().join("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    }
    place
}

#[test]
fn a_dry_run_writes_its_run_folder_and_nothing_else() {
    let granted = "echo 'salloc: Granted job allocation 42' >&2";
    let refused = "echo 'salloc: error: invalid partition specified: x' >&2; exit 1";
    for (what, salloc, scontrol, measures) in [
        ("measured", granted, true, true),
        ("no job", refused, true, false),
        ("no scontrol", granted, false, false),
    ] {
        let place = slurm(salloc);
        if !scontrol {
            fs::remove_file(place.path().join("bin/scontrol")).expect("removed");
        }
        let before = tree(place.path());
        let output = place.run(&["audit", "--no-progress"]);
        let is_of_run = |name: &String| measures && (name == "runs" || name.starts_with("runs/2"));
        let mut after = tree(place.path());
        let runs = after.keys().filter(|name| is_of_run(name)).count();
        assert_eq!(0 < runs, measures, "{what}: {}", output.stderr);
        after.retain(|name, _| !is_of_run(name));
        let names = |tree: &BTreeMap<String, Vec<u8>>| tree.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&after), names(&before), "{what}: {}", output.stderr);
        assert!(after == before, "{what}: a file was changed");
    }
}
