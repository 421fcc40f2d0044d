//! Checks which programs are on PATH and which probes need them.

use std::collections::{BTreeMap, BTreeSet};

use super::{CheckupContext, devices};
use crate::exec::executable;
use model::checkup::{CheckupArea, CheckupItem};
use model::probe::{Probe, placeholder};

/// Programs that start another program, which is then needed too.
const LAUNCHERS: [&str; 3] = ["env", "mpirun", "srun"];

/// Install hints by the prefix of a program's name.
const INSTALL_HINTS: &[(&str, &str)] = &[
    ("nvidia-smi", "install the NVIDIA driver; nvidia-smi comes with it"),
    ("nvidia-imex", "install nvidia-imex of the driver's version; only multi-node NVLink needs it"),
    (
        "nvbandwidth",
        "build NVIDIA/nvbandwidth (for more than one node with -DMULTINODE=1) and put it on PATH",
    ),
    ("nvloom", "build NVIDIA/nvloom and put nvloom_cli on PATH"),
    ("p2pBandwidthLatencyTest", "build it from NVIDIA/cuda-samples and put it on PATH"),
    ("mpirun", "install Open MPI, the one nccl-tests and nvbandwidth were built with"),
    ("srun", "install Slurm's client, or use probes started by mpirun"),
    ("ib_", "install perftest"),
    ("iperf3", "install iperf3"),
];

/// Hint for all other programs: nccl-tests names its programs after their collective.
const NCCL_TESTS: &str =
    "build NVIDIA/nccl-tests (with MPI=1 for more than one node) and put its programs on PATH";

/// Checks every program of the active probes.
pub(super) fn check_programs(context: &CheckupContext<'_>) -> Vec<CheckupItem> {
    let mut users: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for probe in &context.probes {
        for program in probe_programs(probe) {
            users.entry(program).or_default().insert(&probe.name);
        }
    }
    users
        .into_iter()
        .flat_map(|(program, probes)| check_program(context, program, probes))
        .collect()
}

/// The default probes that fabricgate runs natively because their tool is missing here.
pub(super) fn native_fallback_probes<'l>(
    context: &'l CheckupContext<'_>,
) -> impl Iterator<Item = &'l Probe> {
    context.probes.iter().copied().filter(|probe| {
        let lacks =
            |program: &&str| executable::find_program(program, Some(&context.path)).is_none();
        context.default_probes.contains(&probe.name.as_str())
            && probe.fallback.is_some()
            && probe_programs(probe).iter().any(lacks)
    })
}

/// Checks one program; if it is missing, lists the probes that cannot run and the probes that run
/// natively instead.
fn check_program(
    context: &CheckupContext<'_>,
    program: &str,
    probes: BTreeSet<&str>,
) -> Vec<CheckupItem> {
    if let Some(file) = executable::find_program(program, Some(&context.path)) {
        let found =
            CheckupItem::available(CheckupArea::Programs, program, file.display().to_string());
        return vec![mark_needed(context, found, &probes)];
    }
    let is_native = |name: &&str| {
        context.probes.iter().any(|probe| probe.name == *name && probe.fallback.is_some())
    };
    let (native, others): (BTreeSet<&str>, BTreeSet<&str>) =
        probes.into_iter().partition(is_native);
    let mut checks = Vec::new();
    if !native.is_empty() {
        let instead = if devices::has_driver(context) {
            let detail =
                "is not on PATH; fabricgate measures natively with the driver's libraries instead";
            CheckupItem::fallback(CheckupArea::Programs, program, detail)
        } else {
            let detail =
                "is not on PATH, and fabricgate cannot measure natively: no driver is loaded";
            CheckupItem::missing(CheckupArea::Programs, program, detail, install_hint(program))
        };
        checks.push(mark_needed(context, instead, &native));
    }
    if !others.is_empty() {
        let lacks = CheckupItem::missing(
            CheckupArea::Programs,
            program,
            "is not on PATH",
            install_hint(program),
        );
        checks.push(mark_needed(context, lacks, &others));
    }
    checks
}

fn mark_needed(
    context: &CheckupContext<'_>,
    found: CheckupItem,
    probes: &BTreeSet<&str>,
) -> CheckupItem {
    CheckupItem {
        needed: context.default_probes.iter().any(|name| probes.contains(name)),
        probes: probes.iter().map(|name| (*name).to_owned()).collect(),
        ..found
    }
}

/// The programs of a probe: the ones it starts on either side, and the programs that those start.
fn probe_programs(probe: &Probe) -> BTreeSet<&str> {
    let serve = probe.serve.as_ref().map(|serve| &*serve.argv);
    let mut programs = BTreeSet::new();
    for argv in std::iter::once(probe.argv.as_slice()).chain(serve) {
        let Some(first) = argv.first() else { continue };
        if first == placeholder::SELF {
            continue;
        }
        if first != "env" {
            programs.insert(first.as_str());
        }
        if LAUNCHERS.contains(&first.as_str()) {
            let known = |word: &&str| {
                word.ends_with("_perf")
                    || INSTALL_HINTS.iter().any(|(start, _)| word.starts_with(start))
            };
            programs.extend(argv.iter().skip(1).map(String::as_str).filter(known));
        }
    }
    programs
}

fn install_hint(program: &str) -> &'static str {
    INSTALL_HINTS
        .iter()
        .find(|(start, _)| program.starts_with(start))
        .map_or(NCCL_TESTS, |(_, remedy)| remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::checkup::CheckupState;
    use readers::probe_catalog::ProbeCatalog;

    #[test]
    fn a_program_started_by_a_launcher_is_required_too() {
        let catalog = ProbeCatalog::built_in();
        let of = |name: &str| probe_programs(catalog.get(name).expect("built in"));
        assert_eq!(of("nccl-all-reduce-domain"), BTreeSet::from(["all_reduce_perf", "mpirun"]));
        let under_slurm = BTreeSet::from(["all_reduce_perf", "srun"]);
        assert_eq!(of("nccl-all-reduce-domain-srun"), under_slurm);
        assert_eq!(of("nvbandwidth"), BTreeSet::from(["nvbandwidth"]));
        assert!(of("tcp").is_empty(), "it is built in");
    }

    #[test]
    fn a_missing_tool_with_a_native_fallback_is_not_a_missing_requirement() {
        let catalog = ProbeCatalog::built_in();
        let folder = tempfile::tempdir().expect("a folder");
        let mut context = CheckupContext::with_root(folder.path());
        let probes = ["nvbandwidth", "nvbandwidth-ce"].map(|name| catalog.get(name));
        context.probes = probes.into_iter().flatten().collect();
        context.default_probes = vec!["nvbandwidth-ce"];
        // Without a driver no native probe can replace the tool.
        let without = check_programs(&context);
        assert!(without.iter().all(|it| it.state == CheckupState::Lacks), "{without:?}");
        assert!(without.iter().any(|it| it.needed && it.probes == ["nvbandwidth-ce"]));
        let driver = folder.path().join("proc/driver/nvidia");
        std::fs::create_dir_all(&driver).expect("made");
        std::fs::write(driver.join("version"), "NVRM version: 580.1\n").expect("written");
        let checks = check_programs(&context);
        let of = |state| checks.iter().find(|it| it.what == "nvbandwidth" && it.state == state);
        let fallback = of(CheckupState::Fallback).expect("a native fallback");
        assert!(fallback.needed && fallback.detail.contains("fabricgate measures natively"));
        assert_eq!(fallback.probes, ["nvbandwidth-ce"]);
        let lacks = of(CheckupState::Lacks).expect("the full list is the tool's own");
        assert!(!lacks.needed && lacks.probes == ["nvbandwidth"], "{checks:?}");
        let here: Vec<&str> = native_fallback_probes(&context).map(|it| it.name.as_str()).collect();
        assert_eq!(here, ["nvbandwidth-ce"]);
    }

    #[test]
    fn a_missing_program_names_its_probes_and_its_source() {
        let mut catalog = ProbeCatalog::built_in();
        catalog.probes.values_mut().for_each(|probe| probe.fallback = None);
        let folder = tempfile::tempdir().expect("a folder");
        let context = CheckupContext {
            machine: "n1".to_owned(),
            root: folder.path().to_owned(),
            path: folder.path().display().to_string(),
            probes: catalog.probes.values().collect(),
            default_probes: vec!["nvidia-smi-q"],
            libraries: None,
        };
        let checks = check_programs(&context);
        let one = |what: &str| checks.iter().find(|c| c.what == what).expect("checked").clone();
        let smi = one("nvidia-smi");
        assert_eq!((smi.state, smi.needed), (CheckupState::Lacks, true));
        assert!(smi.probes.contains(&"nvidia-smi-q".to_owned()));
        assert!(smi.remedy.expect("a remedy").contains("driver"));
        let perf = one("all_reduce_perf");
        assert!(!perf.needed && perf.remedy.expect("a remedy").contains("nccl-tests"));
        // Every probe has its own install hint or belongs to nccl-tests.
        for check in &checks {
            let is_nccl = check.what.ends_with("_perf");
            assert_eq!(check.remedy.as_deref() == Some(NCCL_TESTS), is_nccl, "{}", check.what);
        }
    }
}
