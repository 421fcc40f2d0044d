//! `fabricgate node facts` from outside: the real program on machines that consist of files:
//! without a driver, with a hanging one, and with stub libraries that are loaded and called as a
//! driver's are.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use control::launch::Launcher;
use control::sources::nodes;
use control::sources::nodes::NodeCommandRunner;
use model::gpu_facts::{GpuFacts, LinkState};
use model::id::NodeName;
use model::node_facts::{NODE_FACTS_FORMAT, NodeFacts};

/// Time limit of a test for a process that must end; after it the test reports a hang.
const HANGS: Duration = Duration::from_secs(90);

/// The ClusterUUID of the stub library's versioned call.
const TWOS: &str = "22222222-2222-2222-2222-222222222222";

/// The reason of a value whose call the library lacks.
const OLD: &str = "this driver is too old to report it";

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

/// A stub management library (`tests/nvml/library.c`), built with this switch, as a driver has
/// one: loaded by name, called by symbol.
fn library(switch: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let built = folder.path().join("libnvidia-ml.so.1");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nvml/library.c");
    #[expect(clippy::disallowed_methods, reason = "a test builds what it loads")]
    // It also builds some of fabricgate's dependencies, so it exists.
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", &format!("-D{switch}"), "-o"])
        .args([&built, &source])
        .status()
        .expect("a C compiler");
    assert!(status.success());
    (folder, built.display().to_string())
}

/// Facts of a machine with this library, which has two GPUs: a Hopper and a Blackwell.
fn reported_facts(switch: &str, limit: &str) -> (Output, NodeFacts, Vec<GpuFacts>) {
    let (_folder, library) = library(switch);
    let root = tempfile::tempdir().expect("a folder");
    let root = root.path().display().to_string();
    let output = facts(&["--json", "--root", &root, "--nvml", &library, "--limit", limit]);
    let mut document = document(&output);
    let gpus = document.gpus.take().expect("GPUs were counted");
    (output, document, gpus)
}

fn states(gpu: &GpuFacts) -> Vec<(u32, LinkState)> {
    let odd = gpu.nvlinks.iter().filter(|link| link.state != Some(LinkState::Active));
    odd.filter_map(|link| Some((link.link, link.state.clone()?))).collect()
}

#[test]
fn a_real_library_is_queried_for_each_link_by_its_number_and_its_counters_by_architecture() {
    let (output, facts, gpus) = reported_facts("NEW", "60");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(facts.driver.and_then(|it| it.version).as_deref(), Some("580.95.05"));
    for gpu in &gpus {
        assert_eq!(gpu.nvlink_count, Some(18));
        assert_eq!(states(gpu), [(5, LinkState::Sleep), (13, LinkState::Inactive)]);
        let speeds: Vec<_> = gpu.nvlinks.iter().map(|link| link.speed_mbyte_s).collect();
        assert_eq!((speeds[4], speeds[17]), (Some(26_004), Some(26_017)));
        assert_eq!(gpu.nvlinks[0].version.as_deref(), Some("4.0"));
        assert_eq!(gpu.nvlinks[0].remote_kind.as_deref(), Some("switch"));
    }
    let [hopper, blackwell] = &gpus[..] else { panic!("two GPUs: {gpus:?}") };
    assert_eq!(hopper.nvlinks[12].errors["dl_ecc_data"], 124);
    assert_eq!(
        hopper.nvlinks[12].errors_source.as_deref(),
        Some("nvmlDeviceGetNvLinkErrorCounter")
    );
    assert_eq!(blackwell.nvlinks[12].errors.len(), 1);
    assert_eq!(blackwell.nvlinks[12].errors["symbol_errors"], 5_000_000_012);
    assert_eq!((blackwell.nvlink_mode, blackwell.nvlink_mode_is_best), (Some(4), Some(false)));
    assert_eq!(hopper.nvlink_mode, None);
    let fabric = blackwell.fabric.as_ref().expect("fabric");
    assert_eq!((fabric.clique_id, fabric.cluster_uuid.as_deref()), (Some(3), Some(TWOS)));
    assert_eq!(fabric.health.as_ref().and_then(|it| it.summary.as_deref()), Some("healthy"));
    let place = blackwell.platform.as_ref().expect("a place");
    assert_eq!(place.chassis_serial.as_deref(), Some("1821225190042"));
    assert_eq!((place.slot, place.tray, place.host, place.module), (7, 3, 1, 2));
    // Calls that this library lacks are reported, and nothing panics.
    let lacks = |what: &str| facts.missing.iter().any(|it| it.what == what && it.why == OLD);
    assert!(lacks("module id") && lacks("remapped rows"), "{:?}", facts.missing);
}

#[test]
fn a_library_with_older_structures_gets_those() {
    let (_, _, gpus) = reported_facts("SECOND", "60");
    let fabric = gpus[0].fabric.as_ref().expect("fabric");
    assert_eq!((fabric.clique_id, fabric.cluster_uuid.as_deref()), (Some(2), Some(TWOS)));
    let health = fabric.health.as_ref().expect("health");
    assert_eq!((health.mask, health.summary.as_deref()), (0x1aa, None));
    assert_eq!(gpus[1].platform.as_ref().map(|it| (it.slot, it.module)), Some((7, 2)));
}

#[test]
fn a_driver_without_the_versioned_call_gets_the_old_call() {
    let (output, facts, gpus) = reported_facts("OLD", "60");
    assert_eq!(output.status.code(), Some(0));
    let fabric = gpus[0].fabric.as_ref().expect("fabric");
    assert_eq!((fabric.clique_id, fabric.health.as_ref()), (Some(1), None));
    assert_eq!(fabric.source, "nvmlDeviceGetGpuFabricInfo");
    // It does not count its links, and has no field values.
    assert_eq!(gpus[0].nvlink_count, Some(18));
    assert_eq!(states(&gpus[0]), [(5, LinkState::Sleep), (13, LinkState::Inactive)]);
    assert_eq!(gpus[0].nvlinks[0].speed_mbyte_s, None);
    assert!(facts.missing.iter().any(|it| it.what == "NVLink speed" && it.why == OLD));
}

#[test]
fn a_gpu_that_hangs_or_crashes_the_library_is_named_and_the_others_are_kept() {
    for (switch, limit, why) in [
        ("HANG", "5", "did not answer within 5 s during: GPU 1: NVLinks"),
        ("CRASH", "60", "killed by signal 6 during: GPU 1: NVLinks"),
    ] {
        let (output, facts, gpus) = reported_facts(switch, limit);
        assert_eq!(output.status.code(), Some(5));
        let uuids: Vec<_> = gpus.iter().map(|gpu| gpu.uuid.as_deref()).collect();
        assert_eq!(uuids, [Some("GPU-0"), None]);
        let missing = facts.missing.iter().find(|it| it.what == "everything").expect("reported");
        assert_eq!(missing.gpus, [1]);
        assert!(missing.why.contains(why), "{}", missing.why);
    }
}

#[test]
fn a_librarys_answers_can_be_stored() {
    let (folder, library) = library("NEW");
    let kept = folder.path().join("kept.json");
    let path = kept.display().to_string();
    let output = facts(&["--json", "--nvml", &library, "--record", &path]);
    assert_eq!(output.status.code(), Some(0));
    let kept: serde_json::Value =
        serde_json::from_slice(&fs::read(kept).expect("a file")).expect("json");
    assert_eq!(kept["gpus"][1]["field 165 scope 13"], 0);
    assert_eq!(kept["gpus"][1]["module id"]["refused"], "missing-symbol");
    // Where they cannot be stored, the output must say so.
    let output = facts(&["--json", "--nvml", &library, "--record", "/no/such/folder/kept.json"]);
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(document(&output).gpus.expect("counted").len(), 2);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        stderr.contains("not recorded") && stderr.contains("/no/such/folder/kept.json: "),
        "{stderr}"
    );
}

#[test]
fn without_a_driver_it_reports_known_facts_and_a_remedy_and_ends_with_5() {
    let root = tempfile::tempdir().expect("a folder");
    write(root.path(), "proc/sys/kernel/hostname", "n1\n");
    write(root.path(), "proc/sys/kernel/random/boot_id", "b-1\n");
    write(root.path(), "proc/driver/nvidia/version", "NVRM version: NVIDIA  570.86.15  x\n");
    write(root.path(), "sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
    let root = root.path().display().to_string();
    let output = facts(&["--json", "--root", &root, "--nvml", NO_LIBRARY]);
    assert_eq!(output.status.code(), Some(5));
    let document = document(&output);
    assert_eq!(document.format, NODE_FACTS_FORMAT);
    assert_eq!(
        (document.hostname.as_deref(), document.boot_id.as_deref()),
        (Some("n1"), Some("b-1"))
    );
    // Its kernel module is loaded, and its GPUs are unknown, not none.
    assert_eq!(document.driver.and_then(|it| it.version).as_deref(), Some("570.86.15"));
    assert_eq!(document.gpus, None);
    assert_eq!(document.nics[0].rate_mbit_s, Some(400_000));
    assert_eq!(document.missing[0].what, "GPUs");
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(complaint.contains("no NVIDIA driver found"), "{complaint}");
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
    // A process that opens a pipe without a writer waits for ever, as in a hanging call.
    let mode = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &library, rustix::fs::FileType::Fifo, mode, 0)
        .expect("a pipe");
    let began = Instant::now();
    let library = library.display().to_string();
    let output = facts(&["--json", "--nvml", &library, "--limit", "1"]);
    assert!(began.elapsed() < HANGS, "it waited for the driver");
    assert_eq!(output.status.code(), Some(5));
    let document = document(&output);
    assert_eq!(document.gpus, None);
    assert!(document.hostname.is_some(), "the other facts are reported");
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(complaint.contains("did not answer within 1 s"), "{complaint}");
}

/// Under DRA the host has no IMEX daemon, and its tool may wait for one for ever.
#[test]
fn a_hanging_tool_leaves_a_gap_with_its_name_and_the_rest_is_reported() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    for (tool, gap) in [("nvidia-imex-ctl", "IMEX domain"), ("lldpctl", "LLDP neighbours")] {
        let file = folder.path().join(tool);
        fs::write(&file, "#!/bin/sh\necho '{'\nsleep 300\n").expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("executable");
        #[expect(clippy::disallowed_methods, reason = "a test starts the program under test")]
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("fabricgate"));
        let path = std::env::var("PATH").expect("a path");
        command.env("PATH", format!("{}:{path}", folder.path().display()));
        let began = Instant::now();
        let output = command.args(["node", "facts", "--json", "--nvml", NO_LIBRARY]).output();
        assert!(began.elapsed() < HANGS, "it waited for {tool}");
        let document = document(&output.expect("started"));
        assert!(document.hostname.is_some(), "the other facts are reported");
        let missing = document.missing.iter().find(|it| it.what == gap).expect(gap);
        assert!(missing.why.contains(tool), "{missing:?}");
        let state = document.imex.as_ref().and_then(|it| it.domain_state.as_ref());
        assert_eq!(state, None);
        fs::remove_file(file).expect("removed");
    }
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

#[test]
fn nodes_that_are_asked_through_a_launcher_answer_with_the_same_document() {
    let template = ["env", "NODE={node}"].map(str::to_owned).to_vec();
    let launcher = Launcher::Command { template };
    let worker = assert_cmd::cargo::cargo_bin!("fabricgate").display().to_string();
    let nodes = NodeCommandRunner {
        launcher: &launcher,
        worker: &worker,
        parallel: 2,
        limit: HANGS,
        allocation: None,
    };
    let names = ["n1", "n2", "n3"].map(NodeName::from);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let fetched = runtime.block_on(nodes::fetch_facts(&nodes, &names));
    assert_eq!(fetched.nodes.keys().collect::<Vec<_>>(), names.iter().collect::<Vec<_>>());
    // All of them are this machine, which knows its boot with a driver or without.
    let boots: Vec<_> = fetched.nodes.values().map(|node| node.boot_id.as_deref()).collect();
    assert!(boots[0].is_some() && boots.windows(2).all(|two| two[0] == two[1]), "{boots:?}");
}
