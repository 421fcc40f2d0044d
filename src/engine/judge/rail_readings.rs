//! The scale-out network as measured: per rail, the rates between nodes and the failed pairs.
//!
//! Readings are stored in the direction in which the data moved, in GB/s. `network` compares them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::domain_recordings::DomainRecordings;
use super::fabric_group::PairReading;
use super::host_index::HostIndex;
use super::nic;
use crate::thresholds::{MeasurementConditions, Platform};
use model::claim_index::ClaimIndex;
use model::claims::{ClaimedRail, Claims};
use model::id::NodeName;
use model::measurement::{Measurement, MeasurementSeries};
use model::parse_output::{OutputProblem, OutputProblemKind, Tool};
use model::tool_recording::{RecordingScope, ToolRecording};
use model::unit::Unit;
use readers::outputs::unreached;

/// The latency test of fabricgate's own probe.
const LATENCY: &str = "tcp_latency";

/// The conditions under which readings of a rail can be compared with each other.
#[derive(Clone, Debug)]
pub(super) struct RailGroup<'a> {
    pub(super) testcase: Arc<str>,
    /// Streams or queue pairs.
    pub(super) settings: String,
    /// The NIC class at both ends, if it is the same and known.
    pub(super) nic: Option<&'a Platform>,
    /// The ends sit under different leaves.
    pub(super) crosses_leaves: bool,
    /// The smallest message behind a reading, if messages have a size.
    pub(super) bytes: Option<u64>,
}

impl RailGroup<'_> {
    pub(super) fn conditions(&self) -> MeasurementConditions<'_> {
        MeasurementConditions::new(&self.testcase, self.bytes)
    }

    fn is_same(&self, other: &Self) -> bool {
        self.crosses_leaves == other.crosses_leaves && self.is_same_kind(other)
    }

    /// The same test over the same NIC class, independent of the ends' location.
    pub(super) fn is_same_kind(&self, other: &Self) -> bool {
        let class = |g: &Self| g.nic.map(|nic| nic.name.clone());
        (&self.testcase, &self.settings) == (&other.testcase, &other.settings)
            && class(self) == class(other)
    }
}

/// A pair without a number, or with wrong data.
#[derive(Debug)]
pub(super) struct PairFailure<'a> {
    pub(super) ends: (usize, usize),
    pub(super) file: &'a str,
    pub(super) kind: OutputProblemKind,
    pub(super) testcase: Option<&'a str>,
    pub(super) what: String,
    /// The tool reports that it did not reach its peer.
    pub(super) unreached: bool,
}

#[derive(Debug, Default)]
pub(super) struct RailReadings<'a> {
    pub(super) name: Option<String>,
    pub(super) nodes: Vec<NodeName>,
    /// The index of each node in `nodes`.
    positions: BTreeMap<NodeName, usize>,
    pub(super) groups: Vec<RailGroup<'a>>,
    pub(super) readings: Vec<PairReading>,
    /// Files by pair, lower end first.
    pub(super) files: BTreeMap<(usize, usize), Vec<&'a str>>,
    /// Median round trips, in microseconds.
    pub(super) latencies: Vec<(usize, usize, f64)>,
    pub(super) failures: Vec<PairFailure<'a>>,
}

/// The readings of each end of a rail.
pub(super) type ReadingsByEnd<'r> = Vec<Vec<&'r PairReading>>;

/// The readings of every cell, by source, destination and group.
pub(super) type RailCells = BTreeMap<(usize, usize, usize), Vec<f64>>;

impl<'a> RailReadings<'a> {
    fn end_index(&mut self, node: &NodeName) -> usize {
        if let Some(at) = self.positions.get(node) {
            return *at;
        }
        self.positions.insert(node.clone(), self.nodes.len());
        self.nodes.push(node.clone());
        self.nodes.len() - 1
    }

    /// The readings of every end, in order: sent and received.
    pub(super) fn by_end(&self) -> ReadingsByEnd<'_> {
        let mut by_end = vec![Vec::new(); self.nodes.len()];
        for reading in &self.readings {
            by_end[reading.src].push(reading);
            if reading.dst != reading.src {
                by_end[reading.dst].push(reading);
            }
        }
        by_end
    }

    pub(super) fn cells(&self) -> RailCells {
        self.cells_of(|_| true)
    }

    /// The cells of the selected groups.
    pub(super) fn cells_of(&self, is_wanted: impl Fn(usize) -> bool) -> RailCells {
        let mut cells = RailCells::new();
        for r in self.readings.iter().filter(|r| is_wanted(r.group)) {
            cells.entry((r.src, r.dst, r.group)).or_default().push(r.value);
        }
        cells
    }

    fn group_index(&mut self, wanted: &RailGroup<'a>) -> usize {
        if let Some(at) = self.groups.iter().position(|g| g.is_same(wanted)) {
            let known = &mut self.groups[at];
            known.bytes = known.bytes.into_iter().chain(wanted.bytes).min();
            return at;
        }
        self.groups.push(wanted.clone());
        self.groups.len() - 1
    }

    /// Its nodes that reached at least one other.
    pub(super) fn reached_nodes(&self) -> impl Iterator<Item = &NodeName> {
        self.readings.iter().flat_map(|r| [&self.nodes[r.src], &self.nodes[r.dst]])
    }

    /// The files in which two ends were measured together.
    pub(super) fn files_of(&self, a: usize, b: usize) -> &[&'a str] {
        self.files.get(&order_pair(a, b)).map_or(&[], Vec::as_slice)
    }

    /// The rail's name in sentences: empty, or ` over rail0`.
    pub(super) fn sentence_suffix(&self) -> String {
        self.name.as_ref().map_or(String::new(), |name| format!(" over {name}"))
    }
}

/// A pair, lower end first.
pub(super) fn order_pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

/// Whether a recording covers the scale-out network and at least two nodes.
pub(super) fn is_of_network(recording: &ToolRecording) -> bool {
    matches!(recording.scope, RecordingScope::Pair(..))
        || recording.parsed.tool == Some(Tool::FabricgateTcp)
}

/// The rail of a recording, as the sweep or its output names it.
pub(super) fn rail_of(recording: &ToolRecording) -> Option<String> {
    let parameter = || recording.parsed.facts.parameters.get("rail").cloned();
    recording.rail.clone().or_else(parameter)
}

/// The device of the end that ran the command.
fn device_of(recording: &ToolRecording) -> Option<&str> {
    recording.parsed.facts.parameters.get("device").map(String::as_str)
}

/// The GID of the end that ran the command, if it is a routable address: a GID that a port
/// generates itself is the same on every rail.
fn gid_of(recording: &ToolRecording) -> Option<IpAddr> {
    let gid = recording.parsed.facts.parameters.get("gid")?;
    let address: IpAddr = gid.split(", ").next()?.parse().ok()?;
    let is_own = match address {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_unspecified(),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_unspecified(),
    };
    (!is_own).then_some(address)
}

/// The network of an address, as far as the address shows it: InfiniBand's subnet prefix and IPv6
/// prefixes have 64 bits; for IPv4, 24 are usual.
fn subnet(address: IpAddr) -> String {
    match address {
        IpAddr::V4(ip) => format!("{}/24", Ipv4Addr::from_bits(ip.to_bits() & !0xff)),
        IpAddr::V6(ip) => format!("{}/64", Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64)),
    }
}

/// The port on the end that ran the command: its device, else the network of its GID.
fn port_of(recording: &ToolRecording) -> Option<String> {
    let device = device_of(recording).map(str::to_owned);
    device.or_else(|| gid_of(recording).map(subnet))
}

/// The rail names of recordings. If neither the sweep nor the output names the rail, the name comes
/// from the claim for its device, else from the claim for the network of its GID; without claims,
/// it is the device, or the GID's network if no device is printed.
pub(super) struct RailNames<'c> {
    claims: &'c Claims,
    /// At least one node ran over several ports, so a port is a rail. If every node has one port,
    /// all belong to one rail, independent of the port names.
    has_several_ports: bool,
    only_name: Option<String>,
}

impl<'c> RailNames<'c> {
    pub(super) fn new(claims: &'c Claims, recordings: &[ToolRecording]) -> Self {
        let mut names = Self { claims, has_several_ports: false, only_name: None };
        let mut ports: BTreeMap<Option<NodeName>, BTreeSet<String>> = BTreeMap::new();
        let mut known: BTreeSet<String> = BTreeSet::new();
        for recording in recordings.iter().filter(|r| is_of_network(r)) {
            if let Some(name) = names.reported_rail(recording) {
                known.insert(name);
            } else if let Some(port) = port_of(recording) {
                known.insert(port.clone());
                let client = named_nodes(recording).into_iter().next();
                ports.entry(client).or_default().insert(port);
            }
        }
        names.has_several_ports = ports.values().any(|own| 1 < own.len());
        names.only_name = known.pop_first().filter(|_| known.is_empty());
        names
    }

    pub(super) fn rail_of(&self, recording: &ToolRecording) -> Option<String> {
        let own = port_of(recording);
        let port = || own.clone().filter(|_| self.has_several_ports);
        // A truncated output names no rail; the output of another tool names its own.
        let may_be = own.is_some() || recording.parsed.measurements.is_empty();
        let only = || self.only_name.clone().filter(|_| may_be);
        self.reported_rail(recording).or_else(port).or_else(only)
    }

    /// The rail that the sweep, the output or a claim names.
    fn reported_rail(&self, recording: &ToolRecording) -> Option<String> {
        let only = |matches: &dyn Fn(&ClaimedRail) -> bool| {
            let mut claimed = self.claims.rails.iter().filter(|rail| matches(rail));
            claimed.next().filter(|_| claimed.next().is_none()).map(|rail| rail.name.clone())
        };
        let by_device = || {
            let device = device_of(recording)?;
            only(&|rail| rail.rdma.as_deref() == Some(device))
        };
        let by_gid = || {
            let address = gid_of(recording)?;
            only(&|rail| rail.contains_address(address) == Some(true))
        };
        rail_of(recording).or_else(by_device).or_else(by_gid)
    }
}

/// The nodes that a network recording names.
pub(super) fn named_nodes(recording: &ToolRecording) -> Vec<NodeName> {
    match &recording.scope {
        RecordingScope::Pair(a, b) => vec![a.clone(), b.clone()],
        _ => recording.parsed.facts.hosts.iter().map(|h| NodeName::from(h.as_str())).collect(),
    }
}

pub(super) struct NetworkRate<'a> {
    pub(super) from: NodeName,
    pub(super) to: NodeName,
    pub(super) testcase: &'a str,
    /// GB/s, or microseconds for a latency.
    pub(super) value: f64,
    pub(super) unit: Unit,
    /// The message size, if messages have one.
    pub(super) bytes: Option<u64>,
}

/// All rates of a network recording, in the direction of the data.
pub(super) fn collect_rates<'r, T>(
    recording: &'r ToolRecording,
    known: &HostIndex<T>,
) -> Vec<NetworkRate<'r>> {
    let node = |name: &str| known.find_name(name).cloned().unwrap_or_else(|| NodeName::from(name));
    let pair = match &recording.scope {
        RecordingScope::Pair(a, b) => Some((node(a.as_str()), node(b.as_str()))),
        _ => None,
    };
    let mut rates = Vec::new();
    for measurement in &recording.parsed.measurements {
        let Some(testcase) = measurement.testcase() else { continue };
        let mut bytes = None;
        if let Measurement::Series(series) = measurement {
            bytes = largest_message_rate(series).map(|(bytes, ..)| bytes);
        }
        let mut add = |from: &NodeName, to: &NodeName, value: f64, unit: Unit| {
            let in_gb = unit.to_gigabytes_per_second(value).map(|v| (v, Unit::GigabytesPerSecond));
            let (value, unit) = in_gb.unwrap_or((value, unit));
            if from != to && 0.0 < value && value.is_finite() {
                let (from, to) = (from.clone(), to.clone());
                rates.push(NetworkRate { from, to, testcase, value, unit, bytes });
            }
        };
        match (measurement, &pair) {
            (Measurement::Matrix(matrix), _) => {
                let Some(unit) = matrix.unit else { continue };
                // The document may name the two nodes differently from the claims.
                let end = |at: usize, label: &str| match &pair {
                    Some((a, b)) if a.matches_host(label) || b.matches_host(label) => {
                        if a.matches_host(label) { a.clone() } else { b.clone() }
                    }
                    Some((a, b)) if matrix.rows.len() == 2 => [a, b][at.min(1)].clone(),
                    _ => node(label),
                };
                for (row, col, value) in matrix.numbers() {
                    let (from, to) = (end(row, &matrix.rows[row]), end(col, &matrix.cols[col]));
                    add(&from, &to, value, unit);
                }
            }
            (Measurement::Scalar(scalar), Some((a, b))) => {
                let Some(unit) = scalar.unit else { continue };
                let turned = testcase.ends_with("_reverse");
                let (from, to) = if turned { (b, a) } else { (a, b) };
                add(from, to, scalar.value, unit);
            }
            (Measurement::Series(series), Some((a, b))) => {
                let Some((_, value, unit)) = largest_message_rate(series) else { continue };
                // A read pulls from the server; a bidirectional sum counts for both.
                let both = testcase.contains("_bidirectional");
                if both || !testcase.contains("_read_") {
                    add(a, b, value, unit);
                }
                if both || testcase.contains("_read_") {
                    add(b, a, value, unit);
                }
            }
            _ => {}
        }
    }
    rates
}

/// The largest message and its average rate, if the unit is known.
fn largest_message_rate(series: &MeasurementSeries) -> Option<(u64, f64, Unit)> {
    let unit = series.unit.filter(|unit| unit.is_bandwidth())?;
    let point = series.points.iter().filter(|p| p.algbw.is_some()).max_by_key(|p| p.bytes)?;
    Some((point.bytes, point.algbw?, unit))
}

/// The measured network, one entry per rail.
pub(super) fn collect_rails<'a>(
    domains: &[DomainRecordings<'a>],
    claims: &Claims,
    recordings: &'a [ToolRecording],
) -> Vec<RailReadings<'a>> {
    let known: HostIndex<()> = domains.iter().flat_map(|d| &d.nodes).collect();
    let claim_index = ClaimIndex::from_claims(claims);
    let mut classes: BTreeMap<&NodeName, &'a Platform> = BTreeMap::new();
    for domain in domains {
        let nic = domain.nic.into_iter();
        classes.extend(nic.flat_map(|nic| domain.nodes.iter().map(move |n| (n, nic))));
    }
    let names = RailNames::new(claims, recordings);
    let mut rails: BTreeMap<Option<String>, RailReadings<'a>> = BTreeMap::new();
    for recording in recordings.iter().filter(|r| is_of_network(r)) {
        let parameter = |key: &str| recording.parsed.facts.parameters.get(key).cloned();
        let name = names.rail_of(recording);
        let rail = rails
            .entry(name.clone())
            .or_insert_with(|| RailReadings { name, ..RailReadings::default() });
        let settings = ["streams", "num_streams", "number_of_qps"].into_iter().find_map(parameter);
        let mut numbers = 0;
        let mut small = None;
        for rate in collect_rates(recording, &known) {
            let (src, dst) = (rail.end_index(&rate.from), rail.end_index(&rate.to));
            let files = rail.files.entry(order_pair(src, dst)).or_default();
            if !files.contains(&recording.file.as_str()) {
                files.push(&recording.file);
            }
            if rate.testcase == LATENCY {
                rail.latencies.push((src, dst, rate.value));
                continue;
            }
            // Latencies of other tools are not bandwidth.
            if !rate.unit.is_bandwidth() {
                continue;
            }
            let leaf = |node| claim_index.leaf_position_of(node);
            let nic = |node| classes.get(node).copied();
            let same = nic(&rate.from).zip(nic(&rate.to)).filter(|(a, b)| a.name == b.name);
            let least = Platform::min_bytes(same.map(|(nic, _)| nic), rate.testcase);
            if let Some(bytes) = rate.bytes.filter(|bytes| *bytes < least) {
                small = Some(nic::explain_too_small(rate.testcase, bytes, least));
                continue;
            }
            numbers += 1;
            let group = rail.group_index(&RailGroup {
                testcase: Arc::from(rate.testcase),
                settings: settings.clone().unwrap_or_default(),
                nic: same.map(|(nic, _)| nic),
                crosses_leaves: leaf(&rate.from) != leaf(&rate.to),
                bytes: rate.bytes,
            });
            rail.readings.push(PairReading { src, dst, group, value: rate.value });
        }
        let no_rate = small.unwrap_or_else(|| "it holds no rate".to_owned());
        add_failures(rail, recording, &known, (numbers == 0).then_some(no_rate));
    }
    rails.into_values().collect()
}

/// Adds the failures in a recording of two nodes.
fn add_failures<'a>(
    rail: &mut RailReadings<'a>,
    recording: &'a ToolRecording,
    known: &HostIndex<()>,
    no_rate: Option<String>,
) {
    // A problem of one node is judged with its other outputs.
    if matches!(recording.scope, RecordingScope::Node(_)) {
        return;
    }
    let ends: Vec<usize> = named_nodes(recording)
        .iter()
        .map(|n| known.find_name(n.as_str()).unwrap_or(n).clone())
        .map(|node| rail.end_index(&node))
        .collect();
    let &[a, b] = ends.as_slice() else { return };
    let parsed = &recording.parsed;
    let mut fail = |kind, testcase, what: String, unreached| {
        let file = recording.file.as_str();
        rail.failures.push(PairFailure { ends: (a, b), file, kind, testcase, what, unreached });
    };
    let describe = |p: &OutputProblem| format!("{}: {}", p.kind.as_str(), p.detail);
    let (corrupt, others): (Vec<&OutputProblem>, Vec<&OutputProblem>) =
        parsed.problems.iter().partition(|p| p.kind == OutputProblemKind::Corrupt);
    for problem in corrupt {
        fail(problem.kind, problem.testcase.as_deref(), describe(problem), false);
    }
    // A run counts as one failure, however many lines report it.
    let rank = |p: &&&OutputProblem| {
        (!unreached::is_peer_unreachable(p), p.kind != OutputProblemKind::Error)
    };
    if let Some(problem) = others.iter().min_by_key(rank) {
        let testcase = others.iter().find_map(|p| p.testcase.as_deref());
        fail(problem.kind, testcase, describe(problem), unreached::is_peer_unreachable(problem));
    }
    if parsed.problems.is_empty() && (!parsed.complete || no_rate.is_some()) {
        let what = no_rate.unwrap_or_else(|| "it is not complete".to_owned());
        fail(OutputProblemKind::Truncated, None, what, false);
    }
}
