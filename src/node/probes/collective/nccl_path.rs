//! The transport between ranks: NCCL's settings for it, the transport in NCCL's log, and whether it
//! is the requested one.
//!
//! This module only handles text; the caller that starts the processes sets the variables and reads
//! the log. Variables and log lines are those of NCCL 2.18 to 2.30 (its document "Environment
//! Variables", and the lines in its sources `transport/*.cc`, `mnnvl.cc`, `init.cc` and
//! `enqueue.cc`).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::failure::clean;
use super::formula::NcclCollective;
use model::parse_output::OutputProblemKind;
use model::probe_problem_class::ProbeProblemClass;
use model::probe_report::ProbeProblem;

/// A path between GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NcclPath {
    /// NVLink between nodes.
    Mnnvl,
    /// Reductions in the NVLink switch.
    Nvls,
    /// GPU to GPU in a node, without the host.
    P2p,
    /// InfiniBand or RoCE.
    Ib,
    /// TCP.
    Socket,
}

impl NcclPath {
    /// All paths.
    pub const ALL: [Self; 5] = [Self::Mnnvl, Self::Nvls, Self::P2p, Self::Ib, Self::Socket];

    /// Name on command lines and in documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mnnvl => "mnnvl",
            Self::Nvls => "nvls",
            Self::P2p => "p2p",
            Self::Ib => "ib",
            Self::Socket => "socket",
        }
    }

    /// The path of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name.to_ascii_lowercase())
    }

    /// The transport that must appear in NCCL's log.
    fn transport(self) -> &'static str {
        match self {
            Self::Mnnvl => "MNNVL",
            Self::Nvls => "NVLS",
            Self::P2p => "P2P/",
            Self::Ib => "NET/IB",
            Self::Socket => "NET/Socket",
        }
    }
}

/// Requested settings of NCCL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NcclPathRequest {
    /// The path; if absent, NCCL chooses.
    pub path: Option<NcclPath>,
    /// The only network device to use, `mlx5_3`, or several separated by commas.
    pub rail: Option<String>,
    /// The network interface for NCCL's bootstrap, `eth0`.
    pub interface: Option<String>,
    /// Use blocking communicators: launches are then as fast as those of nccl-tests, but a rank
    /// whose peers never join can only be killed.
    pub blocking: bool,
}

/// The variables to set for every rank, the same on all nodes.
///
/// They force a path and forbid, as far as NCCL allows, the silent fallbacks: NCCL then refuses to
/// start, which is a result, instead of measuring something else. [`check_path`] covers the
/// remaining cases.
pub fn nccl_environment(wanted: &NcclPathRequest) -> BTreeMap<String, String> {
    let mut set = BTreeMap::new();
    let mut put = |name: &str, value: &str| {
        set.insert(name.to_owned(), value.to_owned());
    };
    put("NCCL_DEBUG", "INFO");
    put("NCCL_DEBUG_SUBSYS", "INIT,ENV,NET,TUNING");
    // Standard output is reserved for the probe's own lines.
    put("NCCL_DEBUG_FILE", "/dev/stderr");
    match wanted.path {
        // Fails if IMEX does not work. With an incomplete fabric, NCCL still falls back to the
        // network: `check_path` detects that.
        Some(NcclPath::Mnnvl) => put("NCCL_MNNVL_ENABLE", "1"),
        // Skips the capability check, and fails if the GPU has no support.
        Some(NcclPath::Nvls) => put("NCCL_NVLS_ENABLE", "1"),
        Some(NcclPath::P2p) => {
            put("NCCL_NVLS_ENABLE", "0");
            put("NCCL_SHM_DISABLE", "1");
        }
        Some(NcclPath::Ib) => {
            put("NCCL_NET", "IB");
            put("NCCL_MNNVL_ENABLE", "0");
        }
        Some(NcclPath::Socket) => {
            put("NCCL_NET", "Socket");
            put("NCCL_IB_DISABLE", "1");
            put("NCCL_MNNVL_ENABLE", "0");
        }
        None => {}
    }
    if let Some(rail) = &wanted.rail {
        // Without = it is a prefix, and mlx5_1 also matches mlx5_10.
        put("NCCL_IB_HCA", &format!("={rail}"));
        // A rail is only measured if ranks of different nodes use it, and NCCL would silently fall
        // back to TCP if it is down.
        put("NCCL_NET", "IB");
        put("NCCL_MNNVL_ENABLE", "0");
    }
    if let Some(interface) = &wanted.interface {
        put("NCCL_SOCKET_IFNAME", &format!("={interface}"));
    }
    if wanted.blocking {
        put("NCCL_COMM_BLOCKING", "1");
    }
    set
}

/// Facts from NCCL's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NcclLogSummary {
    /// Transports: `MNNVL`, `NVLS`, `P2P/CUMEM`, `SHM`, `NET/IB`, ...
    pub transports: BTreeSet<String>,
    /// The algorithm of the largest message by test: `all_reduce_perf` to `NVLS`.
    pub algorithms: BTreeMap<String, String>,
    /// The first few warnings.
    pub warnings: Vec<String>,
}

/// Maximum number of warnings to keep.
const MAX_WARNINGS: usize = 8;

/// Parses NCCL's log. For several processes, concatenate their logs.
pub fn parse_log(text: &str) -> NcclLogSummary {
    let mut summary = NcclLogSummary::default();
    let mut largest: BTreeMap<NcclCollective, (u64, String)> = BTreeMap::new();
    for line in text.lines() {
        if let Some((_, message)) = line.split_once("NCCL INFO ") {
            let message = message.trim();
            summary.transports.extend(parse_transport(message));
            if let Some((test, bytes, algorithm)) = parse_algorithm(message) {
                let known = largest.entry(test).or_insert((bytes, String::new()));
                if known.0 <= bytes {
                    *known = (bytes, algorithm);
                }
            }
        } else if let Some((_, message)) = line.split_once("NCCL WARN ")
            && summary.warnings.len() < MAX_WARNINGS
        {
            let message = clean(message.trim());
            if !summary.warnings.contains(&message) {
                summary.warnings.push(message);
            }
        }
    }
    let named = largest.into_iter().map(|(test, (_, it))| (test.name().to_owned(), it));
    summary.algorithms = named.collect();
    summary
}

/// The transport that a log line reports.
fn parse_transport(message: &str) -> Option<String> {
    if let Some((_, via)) = message.split_once(" via ") {
        let mut words = via.split('/');
        let (kind, name) = (words.next()?, words.next().unwrap_or_default());
        let name = name.split([' ', '(', '[']).next().unwrap_or_default();
        return match kind {
            "P2P" if name == "MNNVL" => Some("MNNVL".to_owned()),
            "P2P" => Some(clean(&format!("P2P/{name}"))),
            "SHM" | "direct shared memory" => Some("SHM".to_owned()),
            "NET" | "COLLNET" if !name.is_empty() => Some(clean(&format!("{kind}/{name}"))),
            _ => None,
        };
    }
    let mnnvl = message.starts_with("MNNVL 1 ") || message.ends_with(" MNNVL 1");
    // Newer versions report in the same line that they do not use it; NCCL 2.32 also reports
    // there whether symmetric memory uses it, which has no effect on other memory.
    let nvls = message.starts_with("NVLS multicast support is available")
        && !message.contains("transport disabled");
    if mnnvl { Some("MNNVL".to_owned()) } else { nvls.then(|| "NVLS".to_owned()) }
}

/// Parses test, bytes and algorithm of `AllReduce: 8388608 Bytes -> Algo NVLS proto ...`.
fn parse_algorithm(message: &str) -> Option<(NcclCollective, u64, String)> {
    let (operation, rest) = message.split_once(" Bytes -> Algo ")?;
    let (function, bytes) = operation.rsplit_once(": ")?;
    let test = NcclCollective::from_nccl_function(function.split_whitespace().next()?)?;
    Some((test, bytes.parse().ok()?, clean(rest.split_whitespace().next()?)))
}

/// Checks that the ranks use the requested path: returns a problem if they do not, or if the log
/// does not report the path. A measurement over another path contains no information about this
/// one.
pub fn check_path(
    expected: NcclPath,
    summary: &NcclLogSummary,
    nodes: usize,
) -> Option<ProbeProblem> {
    let transports: Vec<&str> = summary.transports.iter().map(String::as_str).collect();
    let has = |prefix: &str| transports.iter().any(|it| it.starts_with(prefix));
    if transports.is_empty() {
        let detail = format!(
            "NCCL did not log the path that it uses, so it is unknown whether it was {}",
            expected.name()
        );
        return Some(ProbeProblem::new(
            OutputProblemKind::Unverified,
            ProbeProblemClass::PathUnknown,
            detail,
        ));
    }
    let wanted = match summary.algorithms.get(NcclCollective::AllReduce.name()) {
        // Support for reduction in the switch does not mean that NCCL used it.
        Some(algorithm) if expected == NcclPath::Nvls => algorithm.starts_with("NVLS"),
        _ => has(expected.transport()),
    };
    let instead = match expected {
        // Between nodes, all traffic must stay on NVLink.
        NcclPath::Mnnvl => has("NET/"),
        NcclPath::P2p => has("SHM") || (nodes <= 1 && has("NET/")),
        NcclPath::Ib => has("NET/Socket") || has("MNNVL"),
        NcclPath::Socket => has("NET/IB") || has("MNNVL"),
        NcclPath::Nvls => false,
    };
    if wanted && !instead {
        return None;
    }
    let algorithm = summary.algorithms.get(NcclCollective::AllReduce.name());
    let algorithm = algorithm.map_or(String::new(), |it| format!(" with algorithm {it}"));
    let detail = format!(
        "{} was requested but NCCL uses {}{algorithm}: these numbers do not measure {0}",
        expected.name(),
        transports.join(", ")
    );
    Some(ProbeProblem::new(OutputProblemKind::Error, ProbeProblemClass::AnotherPath, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MNNVL: &str = "\
n1:10:11 [0] NCCL INFO NVLS multicast support is available on dev 0
n1:10:11 [0] NCCL INFO MNNVL 1 cliqueId 7ffe cliqueSize 8 cliqueRank 0 nvlDomainSize 8
n1:10:11 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
n1:10:11 [0] NCCL INFO Channel 01/0 : 0[0] -> 4[0] via P2P/MNNVL/CE
n1:10:11 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}
n1:10:11 [0] NCCL INFO AllReduce: 8388608 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}
n1:10:11 [0] NCCL INFO AllReduce: 64 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
";
    const NETWORK: &str = "\
n1:10:11 [0] NCCL INFO NVLS multicast support is not available on dev 0
n1:10:11 [0] NCCL INFO comm 0x5 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0
n1:10:11 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/3/GDRDMA
n1:10:11 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/3(0)/GDRDMA

[2026-01-01 00:00:00] n1:10:11 [0] transport/net_ib.cc:1 NCCL WARN NET/IB : something\u{7} odd
";

    #[test]
    fn nvls_counts_only_where_its_transport_is_on() {
        let line = |transport: &str, multimem: &str| {
            let text = format!(
                "n1:10:11 [0] NCCL INFO NVLS multicast support is available on dev 0, \
                 transport {transport}, symmetric multimem {multimem}"
            );
            parse_log(&text).transports.contains("NVLS")
        };
        assert!(line("enabled", "disabled") && line("enabled", "enabled"));
        assert!(!line("disabled", "enabled"));
    }

    #[test]
    fn transports_and_algorithms_are_read_from_the_log() {
        let summary = parse_log(MNNVL);
        let transports: Vec<&str> = summary.transports.iter().map(String::as_str).collect();
        assert_eq!(transports, ["MNNVL", "NVLS", "P2P/CUMEM"]);
        assert_eq!(summary.algorithms["all_reduce_perf"], "NVLS", "that of the largest message");
    }

    #[test]
    fn a_network_is_named_without_its_device_and_warnings_are_clean() {
        let summary = parse_log(NETWORK);
        assert_eq!(summary.transports.iter().collect::<Vec<_>>(), ["NET/IB"]);
        assert_eq!(summary.warnings, ["NET/IB : something odd"]);
    }

    #[test]
    fn another_path_than_the_expected_one_is_a_problem_and_never_wrong_data() {
        let (mnnvl, network) = (parse_log(MNNVL), parse_log(NETWORK));
        assert_eq!(check_path(NcclPath::Mnnvl, &mnnvl, 2), None);
        assert_eq!(check_path(NcclPath::Nvls, &mnnvl, 2), None);
        assert_eq!(check_path(NcclPath::Ib, &network, 2), None);
        for (path, summary) in [
            (NcclPath::Ib, &mnnvl),
            (NcclPath::Mnnvl, &network),
            (NcclPath::Socket, &network),
            (NcclPath::P2p, &network),
        ] {
            let problem = check_path(path, summary, 2).expect("another path");
            assert_eq!(
                (problem.class.as_str(), problem.kind),
                ("another-path", OutputProblemKind::Error)
            );
        }
        let silent =
            check_path(NcclPath::Ib, &NcclLogSummary::default(), 2).expect("an unverified path");
        assert_eq!(silent.kind, OutputProblemKind::Unverified);
    }

    #[test]
    fn a_switch_that_does_not_reduce_is_reported() {
        let ring = MNNVL.replace("Algo NVLS", "Algo RING");
        let problem = check_path(NcclPath::Nvls, &parse_log(&ring), 2).expect("NCCL used a ring");
        assert!(problem.detail.contains("with algorithm RING"), "{}", problem.detail);
    }

    #[test]
    fn nvlink_between_nodes_mixed_with_a_network_is_a_problem() {
        let both = parse_log(&format!("{MNNVL}{NETWORK}"));
        let problem =
            check_path(NcclPath::Mnnvl, &both, 2).expect("some of it went over the network");
        assert!(problem.detail.contains("NET/IB"), "{}", problem.detail);
    }

    #[test]
    fn a_rail_is_pinned_exactly_and_tcp_forbidden() {
        let rail = Some("mlx5_1".to_owned());
        let interface = Some("eth0".to_owned());
        let set =
            nccl_environment(&NcclPathRequest { rail, interface, ..NcclPathRequest::default() });
        assert_eq!(set["NCCL_IB_HCA"], "=mlx5_1");
        assert_eq!(set["NCCL_NET"], "IB");
        assert_eq!(set["NCCL_SOCKET_IFNAME"], "=eth0");
        assert_eq!(set["NCCL_MNNVL_ENABLE"], "0");
    }

    #[test]
    fn every_path_keeps_standard_output_clean_and_forbids_another() {
        for path in NcclPath::ALL {
            let set = nccl_environment(&NcclPathRequest {
                path: Some(path),
                ..NcclPathRequest::default()
            });
            assert_eq!(set["NCCL_DEBUG_FILE"], "/dev/stderr");
            assert!(4 <= set.len(), "{path:?} sets something: {set:?}");
            assert_eq!(NcclPath::from_name(path.name()), Some(path));
        }
        assert_eq!(nccl_environment(&NcclPathRequest::default()).len(), 3, "NCCL chooses");
        let blocking =
            nccl_environment(&NcclPathRequest { blocking: true, ..NcclPathRequest::default() });
        assert_eq!(blocking["NCCL_COMM_BLOCKING"], "1");
        assert_eq!(NcclPath::from_name("MNNVL"), Some(NcclPath::Mnnvl));
    }
}
