//! `fabricgate node facts` from outside: the real program on machines that are
//! made up of files, without a driver, and with one that hangs.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::process::Output;
use std::time::Duration;
use std::time::Instant;

use fabricgate::model::node_facts::NODE_FACTS_FORMAT;
use fabricgate::model::node_facts::NodeFacts;

/// How long a test waits for what must end, before it says that it hangs.
const HANGS: Duration = Duration::from_secs(90);

const NO_LIBRARY: &str = "/no/such/folder/libnvidia-ml.so.1";

fn facts(arguments: &[&str]) -> Output {
    #[expect(clippy::disallowed_methods, reason = "a test starts the program under test")]
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("fabricgate"));
    command.args(["node", "facts"]).args(arguments).output().expect("started")
}

fn document(output: &Output) -> NodeFacts {
    serde_json::from_slice(&output.stdout).expect("exactly one document")
}

fn write(root: &Path, path: &str, text: &str) {
    let file = root.join(path);
    fs::create_dir_all(file.parent().expect("a folder")).expect("made");
    fs::write(file, text).expect("written");
}

#[test]
fn without_a_driver_it_says_what_it_can_and_what_to_do_and_ends_with_5() {
    let root = tempfile::tempdir().expect("a folder");
    write(root.path(), "proc/sys/kernel/hostname", "n1\n");
    write(root.path(), "proc/sys/kernel/random/boot_id", "b-1\n");
    write(root.path(), "proc/driver/nvidia/version", "NVRM version: NVIDIA  570.86.15  x\n");
    write(root.path(), "sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
    let root = root.path().display().to_string();
    let output = facts(&["--json", "--root", &root, "--nvml", NO_LIBRARY]);
    assert_eq!(output.status.code(), Some(5));
    let told = document(&output);
    assert_eq!(told.format, NODE_FACTS_FORMAT);
    assert_eq!((told.hostname.as_deref(), told.boot_id.as_deref()), (Some("n1"), Some("b-1")));
    // Its kernel module is there, and its GPUs are unknown, not none.
    assert_eq!(told.driver.and_then(|it| it.version).as_deref(), Some("570.86.15"));
    assert_eq!(told.gpus, None);
    assert_eq!(told.nics[0].rate_mbit_s, Some(400_000));
    assert_eq!(told.missing[0].what, "GPUs");
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(complaint.contains("there is no NVIDIA driver"), "{complaint}");
    assert!(complaint.contains("install the driver"), "{complaint}");
    let shown = facts(&["--root", &root, "--nvml", NO_LIBRARY]);
    assert_eq!(shown.status.code(), Some(5));
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("n1\n") && shown.contains("400 Gbit/s"), "{shown}");
}

#[test]
fn a_driver_that_hangs_is_given_up_with_a_clear_message() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = folder.path().join("libnvidia-ml.so.1");
    // Whoever opens a pipe that nobody writes to waits for ever, as in a call
    // that hangs.
    let mode = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &library, rustix::fs::FileType::Fifo, mode, 0)
        .expect("a pipe");
    let began = Instant::now();
    let library = library.display().to_string();
    let output = facts(&["--json", "--nvml", &library, "--limit", "1"]);
    assert!(began.elapsed() < HANGS, "it waited for the driver");
    assert_eq!(output.status.code(), Some(5));
    let told = document(&output);
    assert_eq!(told.gpus, None);
    assert!(told.hostname.is_some(), "the rest is said all the same");
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(complaint.contains("did not answer within 1 s"), "{complaint}");
}

#[test]
fn a_simulated_node_does_not_pass_off_this_machine_as_its_own() {
    #[expect(clippy::disallowed_methods, reason = "a test starts the program under test")]
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("fabricgate"));
    let output = command
        .args(["node", "facts", "--json"])
        .env("FABRICGATE_SIM", "/no/scenario.toml")
        .env("FABRICGATE_SIM_NODE", "node0001")
        .output()
        .expect("started");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(5), 0));
}

#[test]
fn limits_that_make_no_sense_are_usage_errors() {
    for limit in ["0", "3601", "soon"] {
        assert_eq!(facts(&["--limit", limit]).status.code(), Some(2), "{limit}");
    }
}
