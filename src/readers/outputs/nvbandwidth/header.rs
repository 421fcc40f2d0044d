//! nvbandwidth's header: its version and the machine, before the tests.
//!
//! Reads lines into facts. Device lists come in three layouts: per host (v0.1 on), per rank (MPI
//! build, v0.7 on), and as strings in JSON (v0.8 on).

use super::errors::is_host;
use crate::outputs::facts_builder::FactsBuilder;
use model::parse_output::{OutputProblem, OutputProblemKind};
use model::text;
use model::tool_facts::{ToolDevice, ToolFacts, ToolRank};

/// The content of one header line.
#[derive(Debug, PartialEq)]
pub(super) enum NvbandwidthHeadItem {
    /// The version, without a leading v.
    Version(Option<String>),
    /// A fact, already stored in `facts`.
    Fact,
    /// A GPU of this host; the line does not name the host.
    Device(ToolDevice),
    Rank(ToolRank),
    Mpi,
}

/// Reads one line; `None` if it is not a header line.
pub(super) fn parse_head_line(line: &str, facts: &mut ToolFacts) -> Option<NvbandwidthHeadItem> {
    let (key, value) = line.split_once(':')?;
    let value = value.trim();
    let once = |place: &mut Option<String>| {
        if place.is_none() && !value.is_empty() {
            *place = Some(text::clean(value));
        }
        Some(NvbandwidthHeadItem::Fact)
    };
    match key {
        "nvbandwidth Version" => Some(NvbandwidthHeadItem::Version(parse_version(value))),
        "Built from Git version" => keep_parameter(facts, "git_version", value),
        "MPI version" => {
            keep_parameter(facts, "mpi_version", value).map(|_| NvbandwidthHeadItem::Mpi)
        }
        "CUDA Runtime Version" => once(&mut facts.cuda_runtime),
        "CUDA Driver Version" | "CUDA Driver Version (API)" => once(&mut facts.cuda_driver),
        "Driver Version" => once(&mut facts.driver),
        _ if key.starts_with("Device ") => parse_device(line).map(NvbandwidthHeadItem::Device),
        _ if key.starts_with("Process ") => parse_rank(line).map(NvbandwidthHeadItem::Rank),
        _ => None,
    }
}

/// Stores a parameter by name; the first of several values counts.
pub(super) fn keep_parameter(
    facts: &mut ToolFacts,
    name: &str,
    value: &str,
) -> Option<NvbandwidthHeadItem> {
    if !value.is_empty() {
        facts.parameters.entry(name.to_owned()).or_insert_with(|| text::clean(value));
    }
    Some(NvbandwidthHeadItem::Fact)
}

/// A version without a leading v; `None` if it is not a version.
pub(super) fn parse_version(text: &str) -> Option<String> {
    let word = text.split_whitespace().next()?;
    let word = word.strip_prefix(['v', 'V']).unwrap_or(word);
    let plain = word.starts_with(|c: char| c.is_ascii_digit())
        && word
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'+'));
    plain.then(|| word.to_owned())
}

/// The minor number of a 0.x version.
pub(super) fn minor_version(version: &str) -> Option<u32> {
    let rest = version.strip_prefix("0.")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    rest[..digits].parse().ok()
}

/// `Device 0: NVIDIA H100 (00000000:1b:00)`; the bus ID since v0.6.
fn parse_device(line: &str) -> Option<ToolDevice> {
    let (index, product) = line.strip_prefix("Device ")?.split_once(": ")?;
    let (name, bus_id) = split_product_and_bus(product)?;
    Some(ToolDevice { index: index.trim().parse().ok()?, name, bus_id, ..ToolDevice::default() })
}

/// `Process  7 (host): device 3: NVIDIA GB200 (00000019:01:00)`; ranks are padded with blanks to
/// the width of the last one.
fn parse_rank(line: &str) -> Option<ToolRank> {
    let rest = line.strip_prefix("Process ")?.trim_start();
    let (rank, rest) = rest.split_once(" (")?;
    let (host, rest) = rest.split_once("): device ")?;
    let (device, product) = rest.split_once(": ")?;
    let (name, bus_id) = split_product_and_bus(product)?;
    if !is_host(host) {
        return None;
    }
    Some(ToolRank {
        rank: rank.trim().parse().ok()?,
        host: host.to_owned(),
        device: device.trim().parse().ok()?,
        name,
        bus_id,
        group: None,
    })
}

/// `NAME (BUS)`; without brackets the whole text is the name.
fn split_product_and_bus(product: &str) -> Option<(Option<String>, Option<String>)> {
    let product = product.trim();
    let split = product.strip_suffix(')').and_then(|p| p.rsplit_once(" ("));
    let (name, bus_id) = match split {
        Some((name, bus)) if bus.contains(':') && is_bus(bus) => (name, Some(bus.to_owned())),
        _ => (product, None),
    };
    let name = text::clean(name);
    (!name.is_empty()).then_some((Some(name), bus_id))
}

fn is_bus(bus: &str) -> bool {
    bus.bytes().all(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.'))
}

/// An entry of the JSON list: `0: NVIDIA GB200 (00000008:01:00): (host)`.
pub(super) fn parse_listed_device(entry: &str) -> Option<NvbandwidthHeadItem> {
    if entry.starts_with("Process ") {
        return parse_rank(entry).map(NvbandwidthHeadItem::Rank);
    }
    let (entry, host) = match entry.strip_suffix(')').and_then(|e| e.rsplit_once(": (")) {
        Some((entry, host)) if is_host(host) => (entry, Some(host.to_owned())),
        _ => (entry, None),
    };
    let (index, product) = entry.split_once(": ")?;
    let (name, bus_id) = split_product_and_bus(product)?;
    Some(NvbandwidthHeadItem::Device(ToolDevice {
        index: index.trim().parse().ok()?,
        name,
        bus_id,
        host,
        ..ToolDevice::default()
    }))
}

/// Adds a rank and its GPU once. A rank that was listed elsewhere before is a problem: the file's
/// matrices cannot be mapped to machines.
pub(super) fn add_rank(
    roster: &mut FactsBuilder,
    facts: &mut ToolFacts,
    rank: &ToolRank,
) -> Option<OutputProblem> {
    let device = ToolDevice {
        index: rank.device,
        name: rank.name.clone(),
        bus_id: rank.bus_id.clone(),
        host: Some(rank.host.clone()),
        ..ToolDevice::default()
    };
    roster.add_device(facts, device);
    let moved = roster.first_rank(facts, rank.rank).map(|known| {
        format!(
            "rank {} is {} device {} and later {} device {}",
            rank.rank, known.host, known.device, rank.host, rank.device
        )
    });
    let is_new = roster.add_rank(facts, rank);
    moved
        .filter(|_| is_new)
        .map(|detail| OutputProblem::new(OutputProblemKind::Inconsistent, detail))
}
