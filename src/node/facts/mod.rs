//! Collects facts about this machine: GPUs, fabric, NICs, IMEX, system.
//!
//! Reads hardware through NVML and sysfs, and judges nothing. Unreadable facts are reported with
//! the reason; an unsupported property of a GPU is normal and not a sign of a fault.

pub mod driver;
pub mod gpu_library;
pub mod library_record;
pub mod nvml;
pub mod telemetry;

mod fabric;
mod gpu;
mod imex;
mod infiniband;
mod link;
mod nic;
#[cfg(test)]
mod nvml_header_tests;
mod nvml_names;
mod pci;
mod query;
mod sysfs;
mod system;
mod xid;

use std::path::Path;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::exec;
use crate::exec::{ProcessRequest, executable};
use model::node_facts::{DriverFacts, MissingFact, NODE_FACTS_FORMAT, NicNeighbour, NodeFacts};
use readers::claims::neighbours;

/// Exists while the driver's kernel module is loaded, and names its version.
pub(crate) const DRIVER_VERSION_FILE: &str = "proc/driver/nvidia/version";

/// True if the driver's kernel module is loaded on the machine with this root.
pub(crate) fn is_driver_loaded(root: &Path) -> bool {
    root.join(DRIVER_VERSION_FILE).exists()
}

/// Time limit of a tool other than the driver. Each one answers from a daemon's memory.
const TOOL_LIMIT: Duration = Duration::from_secs(10);

/// Bytes of a tool's answer to keep.
const TOOL_OUTPUT_BYTES: usize = 4 * 1024 * 1024;

/// Parameters of a collection.
#[derive(Clone, Copy, Debug)]
pub struct FactsRequest<'g> {
    /// This program, which queries the driver in a separate process.
    pub executable: &'g Path,
    /// The driver's library; absent to use the one that the loader finds.
    pub nvml: Option<&'g Path>,
    /// Where the child process records every answer of the library.
    pub record: Option<&'g Path>,
    /// The folder that contains `/proc`, `/sys` and `/dev`. Tools run only if it is the machine's
    /// root.
    pub root: &'g Path,
    /// Time limit of the driver queries.
    pub limit: Duration,
}

/// Result of a collection.
#[derive(Clone, Debug)]
pub struct FactsResult {
    /// The collected facts.
    pub facts: NodeFacts,
    /// Why the driver's facts are incomplete, with the remedy.
    pub trouble: Option<String>,
}

/// Collects all facts about this machine.
pub async fn collect_facts(request: &FactsRequest<'_>) -> FactsResult {
    // Tools report on this machine, not on a copy of its files.
    collect_all(request, request.root == Path::new("/")).await
}

/// Collects the facts of driver and kernel, and runs no other tool.
pub async fn collect_gpu_facts(request: &FactsRequest<'_>) -> FactsResult {
    collect_all(request, false).await
}

async fn collect_all(request: &FactsRequest<'_>, runs_tools: bool) -> FactsResult {
    let mut facts = NodeFacts {
        format: NODE_FACTS_FORMAT.to_owned(),
        fabricgate: env!("CARGO_PKG_VERSION").to_owned(),
        ..NodeFacts::default()
    };
    let (driver_report, lldp, imex) = tokio::join!(
        driver::query_driver(request),
        run_tool(runs_tools, &["lldpctl", "-f", "json"]),
        run_tool(runs_tools, &["nvidia-imex-ctl", "-N", "-j"]),
    );
    system::add_system_facts(request.root, &mut facts);
    facts.driver = driver_report.driver.or_else(|| {
        let version = Some(system::read_driver_version(request.root)?);
        Some(DriverFacts { version, ..DriverFacts::default() })
    });
    facts.missing = driver_report.missing;
    if let (None, Some(why)) = (&driver_report.gpus, &driver_report.trouble)
        && !facts.missing.iter().any(|missing| missing.what == "GPUs")
    {
        note_missing(&mut facts, "GPUs", why);
    }
    facts.gpus = driver_report.gpus;
    let sys = request.root.join("sys");
    facts.nics = nic::read_nics(&sys);
    nic::add_gpu_distances(&sys, &mut facts.nics, facts.gpus.as_deref_mut().unwrap_or_default());
    if let Some(gpus) = facts.gpus.as_mut().filter(|gpus| !gpus.is_empty())
        && let Err(why) = xid::add_xids(request.root, gpus)
    {
        note_missing(&mut facts, "Xid errors", &why);
    }
    match lldp {
        ToolAttempt::Absent => {}
        ToolAttempt::Output(output) => {
            let (neighbours, problems) = parse_lldp(&output);
            facts.neighbours = neighbours;
            for problem in problems {
                note_missing(&mut facts, "LLDP neighbours", &problem);
            }
        }
        ToolAttempt::Failed(why) => note_missing(&mut facts, "LLDP neighbours", &why),
    }
    let (cables, problems) =
        infiniband::query_neighbours(runs_tools, &infiniband::list_active_ports(&facts.nics)).await;
    facts.neighbours.extend(cables);
    for problem in problems {
        note_missing(&mut facts, "InfiniBand neighbours", &problem);
    }
    facts.imex = imex::read_channels(request.root);
    match imex {
        ToolAttempt::Absent => {}
        ToolAttempt::Failed(why) => note_missing(&mut facts, "IMEX domain", &why),
        ToolAttempt::Output(output) => {
            if let Err(why) = imex::add_imex_domain(&output, &mut facts.imex) {
                note_missing(&mut facts, "IMEX domain", &format!("nvidia-imex-ctl: {why}"));
            }
        }
    }
    FactsResult { facts, trouble: driver_report.trouble }
}

fn note_missing(facts: &mut NodeFacts, what: &str, why: &str) {
    let (what, why) = (what.to_owned(), why.to_owned());
    facts.missing.push(MissingFact { what, why, ..MissingFact::default() });
}

/// The LLDP neighbors of the network interfaces, and the problems in reading them.
fn parse_lldp(output: &[u8]) -> (Vec<NicNeighbour>, Vec<String>) {
    // The answer does not contain the node's name, so pass it in the path, like the path of a
    // stored file.
    let claims = neighbours::read("nodes/this/lldpctl.json", &String::from_utf8_lossy(output));
    let nics = claims.nodes.into_values().flat_map(|node| node.nics);
    let cables = nics.filter_map(|nic| {
        let device = nic.device?;
        Some(NicNeighbour { device, switch: nic.leaf, port: nic.port, device_port: None })
    });
    (cables.collect(), claims.problems.iter().map(ToString::to_string).collect())
}

enum ToolAttempt {
    /// The tool is not installed, which is not a gap.
    Absent,
    /// Its standard output.
    Output(Vec<u8>),
    /// Why it has no usable output.
    Failed(String),
}

async fn run_tool(is_own: bool, words: &[&str]) -> ToolAttempt {
    if !is_own
        || words.first().is_none_or(|program| executable::find_program(program, None).is_none())
    {
        return ToolAttempt::Absent;
    }
    let argv: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let name = words.join(" ");
    let request = ProcessRequest { argv, limit: TOOL_LIMIT, capture: TOOL_OUTPUT_BYTES };
    let (_keep, stop) = watch::channel(false);
    match timeout(2 * TOOL_LIMIT, exec::run(&request, stop)).await {
        Err(_) => ToolAttempt::Failed(format!("{name}: did not end")),
        Ok(Err(error)) => ToolAttempt::Failed(error.to_string()),
        Ok(Ok(finished)) if finished.ending.is_success() => {
            ToolAttempt::Output(finished.stdout.bytes)
        }
        Ok(Ok(finished)) => {
            let stderr = String::from_utf8_lossy(&finished.stderr.bytes).into_owned();
            let stderr = stderr.lines().next().map(query::to_printable).unwrap_or_default();
            ToolAttempt::Failed(format!("{name}: {}; {stderr}", finished.ending))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbour_is_recorded_at_the_interface_that_received_it() {
        let answer = br#"{"lldp":{"interface":{"eth1":{"via":"LLDP","chassis":{"leaf01":{
            "id":{"type":"mac","value":"50:00:00:00:00:01"}}},
            "port":{"id":{"type":"ifname","value":"Ethernet8"}}}}}}"#;
        let (cables, problems) = parse_lldp(answer);
        let expected = NicNeighbour {
            device: "eth1".to_owned(),
            device_port: None,
            switch: Some("leaf01".to_owned()),
            port: Some("Ethernet8".to_owned()),
        };
        assert_eq!((cables, problems), (vec![expected], Vec::new()));
    }

    #[test]
    fn no_neighbours_are_not_a_problem_and_invalid_output_is() {
        assert_eq!(parse_lldp(br#"{"lldp":{}}"#), (Vec::new(), Vec::new()));
        let (cables, problems) = parse_lldp(b"connection refused");
        assert_eq!((cables.len(), problems.len()), (0, 1));
    }
}
