//! Access rights of the files that runs leave on disk, under any umask.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use super::place::{Place, files};

const MACHINES: &str = "title = \"t\"\nseed = 5\n[noise]\nsigma = 0.002\n[[domain]]\nname = \"rack\"\nnodes = \"n[1-2]\"\n\
    platform = \"gb200-nvl72\"\n";

const CONFIG: &str = "run_dir = \"runs\"\n[launcher]\nkind = \"sim\"\nscenario = \"rack.toml\"\n\
    [probes]\nrun = [\"nvidia-smi-q\", \"nvbandwidth-ce\", \"nvbandwidth-lane\"]\n[policy]\nsimulated = true\n\
    [certificates]\nkey = \"key.pem\"\n";

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("there").permissions().mode() & 0o777
}

fn site(umask: &'static str) -> Place {
    let mut place = Place::new();
    place.umask = Some(umask);
    place.put("rack.toml", MACHINES);
    place.put("fabricgate.toml", CONFIG);
    let ended = place.run(&["certificate", "keygen", "key.pem"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let ended = place.run(&["burn-in", "--config", "fabricgate.toml", "--html", "out.html"]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    place
}

fn folders(path: &Path) -> Vec<std::path::PathBuf> {
    let mut found = vec![path.to_owned()];
    for entry in fs::read_dir(path).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(folders(&path));
        }
    }
    found
}

#[test]
fn only_the_owner_may_write_a_runs_files_and_read_a_key() {
    for (umask, folder, file) in [("000", 0o755, 0o644), ("077", 0o700, 0o600)] {
        let place = site(umask);
        assert_eq!(mode(&place.path("key.pem")), 0o600, "{umask}");
        for path in folders(&place.path("runs")) {
            assert_eq!(mode(&path), folder, "{umask}: {}", path.display());
        }
        let written = files(&place.path("runs"));
        assert!(20 < written.len());
        for path in written.iter().chain([&place.path("out.html")]) {
            assert_eq!(mode(path) & !file, 0, "{umask}: {}", path.display());
        }
    }
}

#[test]
fn a_private_key_that_others_may_read_is_refused() {
    let place = site("022");
    for open in [0o640, 0o604, 0o644, 0o660] {
        fs::set_permissions(place.path("key.pem"), fs::Permissions::from_mode(open)).expect("set");
        let ended = place.run(&["burn-in", "--config", "fabricgate.toml"]);
        let output = ended.stdout + &ended.stderr;
        assert!(output.contains("others may read this private key"), "{open:o}: {output}");
    }
}

#[test]
fn the_gates_journal_is_private_under_any_umask() {
    let mut place = Place::new();
    place.umask = Some("000");
    place.program(
        "scontrol",
        "case \"$*\" in *ping*) echo 'Slurmctld(primary) at head is UP';; *json*) echo '{\"nodes\": []}';; esac",
    );
    place.foreign_run();
    place.put("claims.toml", "[[domain]]\nname = \"a\"\nnodes = \"box[1-2]\"\n");
    place.put("fabricgate.toml", "claims = \"claims.toml\"\n[gate]\nstate = \"gate\"\n");
    let ended = place.run(&["apply", "runs/r", "--config", "fabricgate.toml", "--apply"]);
    let journal = place.path("gate/journal.jsonl");
    assert!(journal.exists(), "{ended:?}");
    assert_eq!(mode(&place.path("gate")), 0o700);
    for path in files(&place.path("gate")) {
        assert_eq!(mode(&path) & 0o022, 0, "{}", path.display());
    }
    assert_eq!(mode(&journal), 0o600);
}

#[test]
fn a_file_at_a_predicted_name_is_replaced_and_not_followed() {
    let place = Place::new();
    let run = place.foreign_run();
    let precious = place.put("precious", "mine");
    // An attacker can predict the next process ID: the last argument here is the latest one.
    let load = fs::read_to_string("/proc/loadavg").expect("Linux");
    let next: u32 = load.split_whitespace().last().expect("a word").parse().expect("a number");
    for pid in next..next + 4_000 {
        symlink(&precious, place.path(&format!(".out.html.{pid}.tmp"))).expect("a link");
    }
    let args = ["report", "runs/r", "--format", "html", "--output", "out.html"];
    let ended = place.run(&args);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(fs::read_to_string(&precious).expect("there"), "mine");
    assert!(fs::read_to_string(place.path("out.html")).expect("a page").contains("<html"));
    assert_eq!(fs::metadata(run).expect("there").uid(), rustix::process::getuid().as_raw());
}

#[test]
fn temporary_folders_are_private() {
    let mut place = Place::new();
    place.umask = Some("000");
    let tmp = place.path("tmp");
    fs::create_dir(&tmp).expect("made");
    place.env.insert("TMPDIR".to_owned(), tmp.display().to_string());
    place.put("rack.toml", MACHINES);
    // Checked while it runs: a launcher and a probe list the files.
    place.put(
        "probes/spy.toml",
        "name = \"spy\"\ntitle = \"ours\"\nparser = \"nvbandwidth\"\nargv = [\"spy\"]\n\
         scope = \"node\"\nstage = 1\ncost_s = 1\ntimeout_s = 20\ndisturbs = \"nothing\"\n",
    );
    place.put(
        "sim.toml",
        "run_dir = \"runs\"\n[launcher]\nkind = \"sim\"\nscenario = \"rack.toml\"\n\
         [probes]\ndir = \"probes\"\nrun = [\"spy\"]\n",
    );
    let spy = format!("ls -ln {} >> {}; exit 1", tmp.display(), place.path("seen").display());
    place.program("spy", &spy);
    place.put("claims.toml", "[[domain]]\nname = \"a\"\nnodes = \"n1\"\nplatform = \"hgx-h100\"\n");
    place.put(
        "fabricgate.toml",
        "claims = \"claims.toml\"\n[launcher]\nkind = \"command\"\ntemplate = [\"spy\", \"{node}\"]\n",
    );
    place.run(&["audit", "--config", "fabricgate.toml"]);
    let ended = place.run(&["audit", "--config", "sim.toml"]);
    let seen = fs::read_to_string(place.path("seen")).expect("a process listed the files");
    let folders: Vec<&str> = seen.lines().filter(|line| line.starts_with('d')).collect();
    assert!(!folders.is_empty(), "nothing lay there: {seen}{ended:?}");
    for line in folders {
        assert!(line.starts_with("drwx------"), "{line}");
    }
    assert_eq!(files(&tmp), Vec::<std::path::PathBuf>::new(), "something was left behind");
}
