//! NVML through the real program: `node facts`, and the process that watches GPUs around a probe.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Output, Stdio};

use model::gpu_facts::{FabricState, LinkState};
use model::node_facts::NodeFacts;
use model::probe_report::DriverTelemetry;
use node::facts::telemetry;

use crate::stub::{Library, Machine};
use model::throttle_reason::ThrottleReason;

fn fabricgate(machine: &Machine, folder: &tempfile::TempDir, arguments: &[&str]) -> Command {
    #[expect(clippy::disallowed_methods, reason = "a test starts the program under test")]
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("fabricgate"));
    command.args(arguments).envs(machine.write(folder.path()));
    command
}

fn facts(machine: &Machine, limit: &str) -> (Output, NodeFacts) {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().display().to_string();
    let words = ["node", "facts", "--json", "--root", &root, "--limit", limit];
    let output = fabricgate(machine, &folder, &words).output().expect("started");
    let facts = serde_json::from_slice(&output.stdout).expect("exactly one document");
    (output, facts)
}

/// Watches until the process printed these strings, in one line or several, and summarizes its
/// output until its end.
fn watched(machine: &Machine, until: &[&str], own: &[u32]) -> DriverTelemetry {
    let folder = tempfile::tempdir().expect("a folder");
    let library = machine.write(folder.path());
    let nvml = library.iter().find(|(name, _)| *name == Library::Nvml.variable());
    let nvml = nvml.expect("there is a source").1.display().to_string();
    let mut child = fabricgate(machine, &folder, &["node", "gpu-around", "--nvml", &nvml])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    let input = child.stdin.take().expect("piped");
    let mut reader = BufReader::new(child.stdout.take().expect("piped"));
    let mut output = String::new();
    let mut begun = false;
    while !begun || !until.iter().all(|it| output.contains(it)) {
        let mut line = String::new();
        assert_ne!(reader.read_line(&mut line).expect("read"), 0, "it ended: {output}");
        begun |= telemetry::has_begun(&line);
        output += &line;
    }
    drop(input);
    reader.read_to_string(&mut output).expect("read");
    assert!(child.wait().expect("ended").success());
    telemetry::summarize_telemetry(&output, own, None)
}

/// A sample of each of two GPUs was taken.
const BOTH: [&str; 2] = [r#"{"type":"load","index":0"#, r#"{"type":"load","index":1"#];

#[test]
fn facts_are_complete_where_the_driver_reports_all() {
    let machine = Machine::of(4).with("gpu name = Stub H200").with("nvml 2 link 13 = down");
    let (output, facts) = facts(&machine, "60");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let gpus = facts.gpus.expect("counted");
    assert_eq!(gpus.len(), 4);
    let first = &gpus[0];
    assert_eq!(first.product.as_deref(), Some("Stub H200"));
    assert_eq!(first.pci_address.as_deref(), Some("0000:1b:00.0"));
    assert_eq!(first.uuid.as_deref(), Some("GPU-abababab-abab-abab-0000-0000abababab"));
    assert_eq!(first.fabric.as_ref().map(|it| it.state.clone()), Some(FabricState::Completed));
    assert_eq!((first.pcie.generation, first.pcie.generation_max), (Some(1), Some(5)));
    let down = gpus[2].nvlinks.iter().filter(|it| it.state == Some(LinkState::Inactive));
    assert_eq!(down.map(|it| it.link).collect::<Vec<_>>(), [13]);
    // A GPU without a processor in its package reports this, this root has no kernel log, and
    // there is no other gap.
    let lacks: Vec<&str> = facts.missing.iter().map(|it| it.what.as_str()).collect();
    assert_eq!(lacks, ["link to the processor (C2C)", "Xid errors"]);
}

#[test]
fn forbidden_hanging_and_lost_values_are_distinguished() {
    let machine = Machine::of(2).with("fail nvmlDeviceGetSerial = 4");
    let (output, facts_of) = facts(&machine, "60");
    assert_eq!(output.status.code(), Some(0));
    let serial = facts_of.missing.iter().find(|it| it.what == "serial number").expect("reported");
    assert_eq!((serial.why.as_str(), serial.gpus.as_slice()), ("no permission", &[0, 1][..]));

    // The second GPU's first link: 18 states were read of the first.
    let machine = Machine::of(2).with("hang nvmlDeviceGetNvLinkVersion = 19");
    let machine = machine.without(Library::Nvml, &["nvmlDeviceGetFieldValues"]);
    let (output, facts_of) = facts(&machine, "4");
    assert_eq!(output.status.code(), Some(5));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("did not answer within 4 s during: GPU 1: NVLinks"), "{stderr}");
    let uuids: Vec<bool> =
        facts_of.gpus.expect("counted").iter().map(|gpu| gpu.uuid.is_some()).collect();
    assert_eq!(uuids, [true, false]);

    let (output, facts_of) = facts(&Machine::of(2).with("nvml 1 lost = 40"), "60");
    assert_eq!(output.status.code(), Some(0));
    let lost: Vec<_> =
        facts_of.missing.iter().filter(|it| it.why.contains("fell off the bus")).collect();
    assert_eq!(lost.len(), 1, "{:?}", facts_of.missing);
    assert_eq!(lost[0].gpus, [1]);
    assert!(facts_of.gpus.expect("counted")[1].uuid.is_some(), "it was asked first");
}

#[test]
fn a_driver_without_a_call_is_reported_as_too_old_for_it() {
    let lacks = ["nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetRemappedRows"];
    let (output, facts) = facts(&Machine::of(1).without(Library::Nvml, &lacks), "60");
    assert_eq!(output.status.code(), Some(0));
    let rows = facts.missing.iter().find(|it| it.what == "remapped rows").expect("reported");
    assert_eq!(rows.why, "this driver is too old to report it");
    let gpus = facts.gpus.expect("counted");
    let fabric = gpus[0].fabric.as_ref().expect("by the older call");
    assert_eq!(fabric.source, "nvmlDeviceGetGpuFabricInfo");
}

#[test]
fn load_growth_of_errors_and_other_processes_are_reported_around_a_probe() {
    let machine = Machine::of(2)
        .with("nvml 0 throttled = 4")
        .with("nvml 1 pcie = 3 16")
        .with("nvml 0 errors 5 0 = 10 3")
        .with("nvml 1 errors 7 1 = 9 -4")
        .with("nvml 1 replays = 2 1")
        .with("nvml 0 processes = 4711 4712");
    let around = watched(&machine, &BOTH, &[4712]);
    assert!(0 < around.samples);
    let [first, second] = around.gpus.as_slice() else { panic!("two GPUs: {around:?}") };
    let clock = |gpu: &model::probe_report::GpuTelemetry| {
        let at = |it: &Option<model::probe_report::GpuTelemetrySample>| it.as_ref()?.sm_mhz;
        (at(&gpu.before), at(&gpu.under_load))
    };
    assert_eq!((clock(first), clock(second)), ((Some(345), Some(1_980)), (Some(345), Some(1_980))));
    let generation = |at: &Option<model::probe_report::GpuTelemetrySample>| {
        at.as_ref().and_then(|it| it.pcie_generation)
    };
    assert_eq!((generation(&second.before), generation(&second.under_load)), (Some(1), Some(3)));
    let throttled = &first.under_load.as_ref().expect("sampled").throttled;
    assert_eq!(throttled.as_slice(), [ThrottleReason::SoftwarePowerCap]);
    assert_eq!(first.link_errors[&5]["dl_replay"], 3);
    assert_eq!((first.link_errors.len(), second.link_errors.len()), (1, 0));
    assert_eq!(second.pcie_replays, Some(1));
    // In a container the driver uses other process IDs, and none is of this program.
    assert!(first.others == [4711] || first.others == [4711, 4712], "{:?}", first.others);
    // A counter that was set back is reported and not counted.
    let [back] = around.missing.as_slice() else { panic!("{:?}", around.missing) };
    assert_eq!((back.gpus.as_slice(), back.links.as_slice()), (&[1][..], &[7][..]));
    assert!(back.why.contains("(from 9 to 5)"), "{}", back.why);
}

#[test]
fn blackwell_counts_by_other_fields_and_a_gpu_without_links_counts_none() {
    let machine = Machine::of(2)
        .with("nvml 0 architecture = 10")
        .with("nvml 0 errors 2 221 = 0 7")
        .with("nvml 1 links = 0");
    let around = watched(&machine, &BOTH, &[]);
    assert_eq!(around.gpus[0].link_errors[&2]["symbol_errors"], 7);
    assert!(around.gpus[1].link_errors.is_empty());
    assert_eq!(around.missing, []);
}

#[test]
fn a_gpu_that_is_lost_while_a_probe_runs_is_reported_and_the_other_is_read() {
    // The first reading takes more than a hundred calls.
    let around = watched(&Machine::of(2).with("nvml 1 lost = 150"), &["fell off the bus"], &[]);
    let lost: Vec<_> =
        around.missing.iter().filter(|it| it.why.contains("fell off the bus")).collect();
    assert_eq!(lost.len(), 1, "{:?}", around.missing);
    assert_eq!(lost[0].gpus, [1]);
    assert!(around.gpus[0].after.is_some() && around.gpus[1].before.is_some());
    assert_eq!(around.gpus[1].after, None);
}

#[test]
fn doctor_reports_each_library_and_survives_those_that_hang_or_crash() {
    let lines = |machine: &Machine| {
        let folder = tempfile::tempdir().expect("a folder");
        let output = fabricgate(machine, &folder, &["doctor", "--all"]).output().expect("started");
        String::from_utf8(output.stdout).expect("text")
    };
    let old = ["cuMemCreate", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"];
    let text = lines(&Machine::of(2).with("cuda = 12020").without(Library::Cuda, &old));
    assert!(text.contains("has      driver     libcuda.so.1: CUDA 12.2, reports 2 GPUs"), "{text}");
    assert!(
        text.contains("cuMemImportFromShareableHandle: copies to GPUs of other nodes"),
        "{text}"
    );
    assert!(text.contains("fabric handles: need CUDA 12.3"), "{text}");
    assert!(text.contains("has      driver     libnvidia-ml.so.1: driver 580.95.05"), "{text}");
    assert!(text.contains("fabric registration: GPUs 0, 1: completed"), "{text}");
    let text = lines(&Machine::of(1).with("die cuInit = 1").with("nvml fabric = 2"));
    assert!(text.contains("ended the process that queried it"), "{text}");
    assert!(text.contains("during: cuInit"), "{text}");
    assert!(text.contains("fabric registration: GPU 0: in progress"), "{text}");
    assert!(text.contains("nvidia-fabricmanager"), "{text}");
    let text = lines(&Machine::of(1).with("fail cuInit = 802"));
    assert!(text.contains("(802)") && text.contains("start nvidia-fabricmanager"), "{text}");
}

#[test]
fn a_process_whose_input_is_closed_immediately_ends() {
    let around = watched(&Machine::of(1), &[], &[]);
    assert!(around.gpus[0].before.is_some() && around.gpus[0].after.is_some());
    assert_eq!(around.missing, []);
    // Input does not start anything.
    let folder = tempfile::tempdir().expect("a folder");
    let machine = Machine::of(1);
    let mut child = fabricgate(&machine, &folder, &["node", "gpu-around"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    child.stdin.take().expect("piped").write_all(b"nonsense\n").expect("written");
    assert!(child.wait().expect("ended").success());
}
