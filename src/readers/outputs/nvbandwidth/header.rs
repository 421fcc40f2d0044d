//! What nvbandwidth prints about itself and the machine before its tests.
//!
//! Lines in, facts out. Device lists come in three layouts: per host (v0.1 on),
//! per rank (MPI build, v0.7 on), and as strings in JSON (v0.8 on).

use super::errors::is_host;
use crate::outputs::roster::Roster;
use model::facts::Device;
use model::facts::Facts;
use model::facts::Rank;
use model::parsed::Problem;
use model::parsed::ProblemKind;
use model::text;

/// What one line of the head of an output says.
#[derive(Debug, PartialEq)]
pub(super) enum Said {
    /// The version, without a leading v.
    Version(Option<String>),
    /// A fact that is now in `facts`.
    Fact,
    /// A GPU of this host, its host not known from this line.
    Device(Device),
    /// A rank.
    Rank(Rank),
    /// The MPI build.
    Mpi,
}

/// Reads one line; `None` where it says nothing of that kind.
pub(super) fn line(line: &str, facts: &mut Facts) -> Option<Said> {
    let (key, value) = line.split_once(':')?;
    let value = value.trim();
    let once = |place: &mut Option<String>| {
        if place.is_none() && !value.is_empty() {
            *place = Some(text::clean(value));
        }
        Some(Said::Fact)
    };
    match key {
        "nvbandwidth Version" => Some(Said::Version(version(value))),
        "Built from Git version" => keep(facts, "git_version", value),
        "MPI version" => keep(facts, "mpi_version", value).map(|_| Said::Mpi),
        "CUDA Runtime Version" => once(&mut facts.cuda_runtime),
        "CUDA Driver Version" | "CUDA Driver Version (API)" => once(&mut facts.cuda_driver),
        "Driver Version" => once(&mut facts.driver),
        _ if key.starts_with("Device ") => device(line).map(Said::Device),
        _ if key.starts_with("Process ") => rank(line).map(Said::Rank),
        _ => None,
    }
}

/// Keeps a parameter by name, the first value of several.
pub(super) fn keep(facts: &mut Facts, name: &str, value: &str) -> Option<Said> {
    if !value.is_empty() {
        facts.parameters.entry(name.to_owned()).or_insert_with(|| text::clean(value));
    }
    Some(Said::Fact)
}

/// A version without a leading v; `None` where it is no version.
pub(super) fn version(text: &str) -> Option<String> {
    let word = text.split_whitespace().next()?;
    let word = word.strip_prefix(['v', 'V']).unwrap_or(word);
    let plain = word.starts_with(|c: char| c.is_ascii_digit())
        && word
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'+'));
    plain.then(|| word.to_owned())
}

/// The minor number of a 0.x version.
pub(super) fn minor(version: &str) -> Option<u32> {
    let rest = version.strip_prefix("0.")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    rest[..digits].parse().ok()
}

/// `Device 0: NVIDIA H100 (00000000:1b:00)`; the bus id since v0.6.
fn device(line: &str) -> Option<Device> {
    let (index, product) = line.strip_prefix("Device ")?.split_once(": ")?;
    let (name, bus_id) = product_and_bus(product)?;
    Some(Device { index: index.trim().parse().ok()?, name, bus_id, ..Device::default() })
}

/// `Process  7 (host): device 3: NVIDIA GB200 (00000019:01:00)`; ranks are
/// padded with blanks to the width of the last one.
fn rank(line: &str) -> Option<Rank> {
    let rest = line.strip_prefix("Process ")?.trim_start();
    let (rank, rest) = rest.split_once(" (")?;
    let (host, rest) = rest.split_once("): device ")?;
    let (device, product) = rest.split_once(": ")?;
    let (name, bus_id) = product_and_bus(product)?;
    if !is_host(host) {
        return None;
    }
    Some(Rank {
        rank: rank.trim().parse().ok()?,
        host: host.to_owned(),
        device: device.trim().parse().ok()?,
        name,
        bus_id,
        group: None,
    })
}

/// `NAME (BUS)`; without brackets it is all name.
fn product_and_bus(product: &str) -> Option<(Option<String>, Option<String>)> {
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
pub(super) fn listed(entry: &str) -> Option<Said> {
    if entry.starts_with("Process ") {
        return rank(entry).map(Said::Rank);
    }
    let (entry, host) = match entry.strip_suffix(')').and_then(|e| e.rsplit_once(": (")) {
        Some((entry, host)) if is_host(host) => (entry, Some(host.to_owned())),
        _ => (entry, None),
    };
    let (index, product) = entry.split_once(": ")?;
    let (name, bus_id) = product_and_bus(product)?;
    Some(Said::Device(Device { index: index.trim().parse().ok()?, name, bus_id, uuid: None, host }))
}

/// Enters a rank and its GPU once. A rank that was somewhere else before is a
/// problem: the file's matrices cannot be mapped to machines.
pub(super) fn add_rank(roster: &mut Roster, facts: &mut Facts, rank: &Rank) -> Option<Problem> {
    let device = Device {
        index: rank.device,
        name: rank.name.clone(),
        bus_id: rank.bus_id.clone(),
        uuid: None,
        host: Some(rank.host.clone()),
    };
    roster.device(facts, device);
    let moved = roster.first(facts, rank.rank).map(|known| {
        format!(
            "rank {} is {} device {} and later {} device {}",
            rank.rank, known.host, known.device, rank.host, rank.device
        )
    });
    let is_new = roster.rank(facts, rank);
    moved.filter(|_| is_new).map(|detail| Problem::new(ProblemKind::Inconsistent, detail))
}
