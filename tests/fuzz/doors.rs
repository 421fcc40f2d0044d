//! Every entry point for text from outside, by name: for a guided fuzzer (`ci/fuzz`), which finds
//! inputs by itself and needs only seeds and invariants.

use model::parse_output::Tool;
use readers::claims::format_detection;
use readers::outputs;

use super::corpus::corpus;
use super::{documents, kept, slurm, stored, tools};

/// One entry point.
pub(crate) struct Door {
    pub(crate) name: &'static str,
    /// Valid inputs as seeds.
    pub(crate) seeds: fn() -> Vec<Vec<u8>>,
    /// The invariants of every input; it panics if one is broken.
    pub(crate) check: fn(&[u8]),
}

/// The entry point of one tool's parser.
macro_rules! tool {
    ($name:literal, $corpus:ident, $tool:expr, $parser:path) => {
        Door {
            name: $name,
            seeds: || corpus().$corpus.clone(),
            check: |bytes| {
                use $parser as m;
                tools::one_tool(bytes, $tool, m::recognises, m::parse);
            },
        }
    };
}

pub(crate) const ALL: &[Door] = &[
    tool!("nvbandwidth", nvbandwidth, Tool::Nvbandwidth, outputs::nvbandwidth),
    tool!("nccl", nccl, Tool::NcclTests, outputs::nccl),
    tool!("p2p", p2p, Tool::P2pBandwidthLatencyTest, outputs::p2p),
    tool!("perftest", perftest, Tool::Perftest, outputs::perftest),
    tool!("nvlink", nvlink, Tool::NvidiaSmiNvlink, outputs::smi::nvlink),
    tool!("topo", topo, Tool::NvidiaSmiTopo, outputs::smi::topo),
    tool!("query", query, Tool::NvidiaSmiQ, outputs::smi::query),
    tool!("imex", imex, Tool::NvidiaImexCtl, outputs::imex),
    tool!("dcgm", dcgm, Tool::DcgmDiag, outputs::dcgm),
    tool!("nvloom", nvloom, Tool::Nvloom, outputs::nvloom),
    tool!("iperf3", iperf3, Tool::Iperf3, outputs::iperf3),
    tool!("copy", copy, Tool::FabricgateCopy, outputs::copy),
    tool!("collective", collective, Tool::FabricgateCollective, outputs::collective),
    tool!("tcp", tcp, Tool::FabricgateTcp, outputs::tcp),
    Door { name: "tools", seeds: || corpus().any.clone(), check: tools::any_tool },
    Door { name: "json", seeds: || corpus().dcgm.clone(), check: documents::almost_json },
    Door { name: "hostlist", seeds: documents::host_list_seeds, check: documents::host_lists },
    Door {
        name: "kubernetes",
        seeds: documents::kubernetes_seeds,
        check: documents::kubernetes_objects,
    },
    Door { name: "slurm", seeds: slurm::seeds, check: slurm::all_readers },
    Door { name: "sources", seeds: source_seeds, check: sources },
    Door { name: "claims", seeds: documents::claims_seeds, check: documents::claims_files },
    Door {
        name: "thresholds",
        seeds: documents::threshold_seeds,
        check: documents::threshold_files,
    },
    Door { name: "probes", seeds: || documents::texts("probes"), check: documents::probe_files },
    Door {
        name: "configuration",
        seeds: documents::configuration_seeds,
        check: documents::configuration_files,
    },
    Door {
        name: "scenarios",
        seeds: || documents::texts("examples"),
        check: documents::scenario_files,
    },
    Door { name: "run-folders", seeds: stored::run_seeds, check: stored::run_folders },
    Door { name: "journals", seeds: kept::journal_seeds, check: kept::journals },
    Door { name: "certificates", seeds: kept::certificate_seeds, check: kept::certificates },
    Door { name: "histories", seeds: stored::history_seeds, check: stored::histories },
    Door { name: "workers", seeds: stored::worker_seeds, check: stored::workers },
];

/// A file of claims of any kind, as `claims` receives it.
fn sources(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut include = |_: &str| Err("no such file".to_owned());
    for report in format_detection::read_text("f", &text, &mut include) {
        documents::speaks_sense(&report);
    }
}

fn source_seeds() -> Vec<Vec<u8>> {
    let jobs = include_str!("../../examples/job.sbatch");
    let mut seeds = slurm::seeds();
    seeds.extend(documents::kubernetes_seeds());
    seeds.push(jobs.as_bytes().to_vec());
    seeds
}

#[test]
fn every_door_has_a_name_of_its_own_and_good_inputs() {
    let mut names: Vec<&str> = ALL.iter().map(|door| door.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), ALL.len());
    for door in ALL {
        let seeds = (door.seeds)();
        assert!(!seeds.is_empty(), "{}", door.name);
        seeds.iter().for_each(|seed| (door.check)(seed));
    }
}
