//! `iblinkinfo`: the ports of every switch and adapter of an InfiniBand fabric, with state and
//! peer.
//!
//! The format is that of rdma-core's infiniband-diags. Peers are identified only by their
//! description, so two nodes with the same name are indistinguishable.

use std::collections::BTreeMap;

use super::ib_fabric::{IbAdapterPort, IbFabric};
use super::node_description;
use crate::claims::reader_util::{normalise_guid, push_problem, quote_text, sanitize_text};
use model::source_report::{SourceProblemKind, SourceReport};

/// Whether a text is the output of `iblinkinfo`.
pub(super) fn recognises(text: &str) -> bool {
    text.lines().any(|line| line.contains("==(") && line.contains(")==>"))
}

/// `Switch: 0x<guid> <name>:` or `CA: <host> <device>:`
fn parse_heading(line: &str) -> Option<(bool, &str)> {
    let inside = |kind: &str| line.strip_prefix(kind)?.strip_suffix(':').map(str::trim);
    if let Some(rest) = inside("Switch: ") {
        let (number, name) = rest.split_once(' ')?;
        return Some((true, name.trim())).filter(|_| normalise_guid(number).is_some());
    }
    inside("CA: ").map(|name| (false, name))
}

struct IblinkPort<'t> {
    guid: Option<String>,
    port: u32,
    state: String,
    rate: Option<u64>,
    peer: Option<(u32, &'t str)>,
}

/// `[0x<guid>] <lid> <port>[<ext>] ==( 4X 106.25 Gbps Active/ LinkUp)==> <lid> <port>[ ] "<peer>" ...`
fn parse_port(line: &str) -> Option<IblinkPort<'_>> {
    let (left, rest) = line.split_once("==(")?;
    let (middle, right) = rest.split_once(")==>")?;
    let own =
        left.split_whitespace().next().filter(|w| w.starts_with("0x")).and_then(normalise_guid);
    let (number, _) = left.split_once('[')?;
    let number = number.split_whitespace().last()?.parse().ok()?;
    let (before, _) = middle.split_once('/')?;
    let state = sanitize_text(before.split_whitespace().last()?).to_ascii_lowercase();
    if state.is_empty() {
        return None;
    }
    let mut words = before.split_whitespace();
    let width = words.next().and_then(|w| node_description::parse_width(w.strip_suffix('X')?));
    let speed = words.next().and_then(|w| w.parse::<f64>().ok());
    let rate = width.zip(speed.and_then(lane_rate)).map(|(width, lane)| width * lane);
    let peer = (|| {
        let (number, rest) = right.split_once('[')?;
        let number = number.split_whitespace().last()?.parse().ok()?;
        let first = rest.find('"')?;
        let last = rest.rfind('"').filter(|last| first + 1 < *last)?;
        Some((number, &rest[first + 1..last]))
    })();
    Some(IblinkPort { guid: own, port: number, state, rate, peer })
}

/// The data rate in Mbit/s of a lane with this signalling rate in Gbit/s: the tool prints
/// 25.78125 for EDR and 106.25 for NDR, encoding included.
fn lane_rate(gbps: f64) -> Option<u64> {
    const LANES: [(f64, u64); 8] = [
        (2.5, 2_500),
        (5.0, 5_000),
        (10.0, 10_000),
        (14.0625, 14_062),
        (25.78125, 25_000),
        (53.125, 50_000),
        (106.25, 100_000),
        (212.5, 200_000),
    ];
    LANES.iter().find(|(signalled, _)| (signalled - gbps).abs() < 0.001).map(|(_, data)| *data)
}

pub(super) fn read(report: &mut SourceReport, text: &str) {
    let mut web = IbFabric::default();
    let mut numbers: BTreeMap<&str, &str> = BTreeMap::new();
    let lines = || text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    let place = |report: &SourceReport, line: usize| format!("{}:{line}", report.source.place);
    // Switches first: only their headings distinguish a switch from an adapter.
    for (at, line) in lines() {
        let Some((true, name)) = parse_heading(line) else { continue };
        web.add_switch(name, name, at);
        let number = line.split_whitespace().nth(1).unwrap_or_default();
        if let Some(other) = numbers.insert(name, number)
            && other != number
        {
            let message = format!(
                "switches {other} and {number} are both named {}: iblinkinfo cannot distinguish \
                 their cables, ibnetdiscover can",
                quote_text(name)
            );
            push_problem(report, SourceProblemKind::Contradictory, place(report, at), message);
        }
    }
    let mut current: Option<(bool, &str)> = None;
    for (at, line) in lines() {
        if !line.contains("==(") {
            current = parse_heading(line).or(current.filter(|_| line.is_empty()));
            continue;
        }
        let Some(port) = parse_port(line) else {
            let message = format!("{}: expected a port and its peer", quote_text(line));
            push_problem(report, SourceProblemKind::Malformed, place(report, at), message);
            continue;
        };
        let Some((is_switch, name)) = current else {
            // One line per port (-l) does not identify switches.
            let message =
                "a port before any \"Switch:\" or \"CA:\", expected iblinkinfo without -l";
            push_problem(report, SourceProblemKind::Unsupported, place(report, at), message);
            if numbers.is_empty() {
                return;
            }
            continue;
        };
        let end = |id: String, number: u32, name: &str| IbAdapterPort {
            id,
            port: number,
            description: name.to_owned(),
            rate: port.rate,
            state: Some(port.state.clone()),
            line: at,
            ..IbAdapterPort::default()
        };
        match (is_switch, port.peer) {
            (true, Some((number, peer))) if !numbers.contains_key(peer) => {
                let id = adapter_id(peer, name, port.port);
                web.add_cable(report, name, port.port, end(id, number, peer));
            }
            (true, Some((_, peer))) => web.add_trunk(name, peer),
            (true, None) => {}
            (false, Some((number, peer))) if numbers.contains_key(peer) => {
                let id = adapter_id(name, peer, number);
                let own = IbAdapterPort { guid: port.guid.clone(), ..end(id, port.port, name) };
                web.add_cable(report, peer, number, own);
            }
            (false, _) => {
                let end = end(name.to_owned(), port.port, name);
                web.add_adapter(IbAdapterPort { guid: port.guid.clone(), ..end });
            }
        }
    }
    web.add_to_report(report);
}

/// Identifies an adapter: by a description with a host. Aggregation nodes and unnamed adapters
/// share descriptions, so their switch port identifies them.
fn adapter_id(name: &str, switch: &str, port: u32) -> String {
    match node_description::parse_adapter_owner(name) {
        node_description::AdapterOwner::Host(..) => name.to_owned(),
        _ => format!("{name} at port {port} of {switch}"),
    }
}
