//! A node's own InfiniBand ports (`ibstat`), and lists of hosts with the GUIDs of their ports.
//! Neither names the other end of a cable; the GUID finds it in another source.

use crate::claims::reader_util::{
    normalise_guid, parse_node_name, push_problem, quote_text, sanitize_text,
};
use model::id::NodeName;
use model::source_report::{ClaimBasis, NicReport, SourceProblemKind, SourceReport};

/// Prefix of a host in SuperBench's list of hosts and GUIDs.
const HOST_PREFIX: &str = "VM_hostname ";

/// Whether a text is the output of `ibstat`, or a list of hosts with GUIDs.
pub(super) fn recognises(text: &str) -> bool {
    let is_ibstat = text.lines().any(|line| parse_device(line).is_some())
        && text.lines().any(|line| line.trim().starts_with("Port GUID:"));
    is_ibstat || is_host_list(text)
}

/// Whether a text is a list of hosts, each with GUIDs below it.
pub(super) fn is_host_list(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.next().is_some_and(|line| line.starts_with(HOST_PREFIX))
        && lines.next().is_some_and(|line| normalise_guid(line).is_some())
}

/// Parses `CA 'mlx5_0'`.
fn parse_device(line: &str) -> Option<&str> {
    let (name, rest) = line.trim_end().strip_prefix("CA '")?.split_once('\'')?;
    Some(name).filter(|_| !sanitize_text(name).is_empty() && (rest.is_empty() || rest == ":"))
}

pub(super) fn read(report: &mut SourceReport, node: &NodeName, text: &str) {
    let mut nics: Vec<NicReport> = Vec::new();
    let mut current: Option<&str> = None;
    let mut is_port = false;
    for (at, line) in text.lines().enumerate() {
        if let Some(name) = parse_device(line) {
            current = Some(name);
            is_port = false;
            continue;
        }
        let (Some(name), Some((key, value))) = (current, line.trim().split_once(':')) else {
            continue;
        };
        let (key, value) = (key.trim(), value.trim());
        if let Some(port) = key.strip_prefix("Port ").filter(|_| value.is_empty())
            && let Ok(port) = port.parse::<u32>()
        {
            is_port = true;
            let device = sanitize_text(name);
            nics.push(NicReport {
                device: Some(if port <= 1 { device } else { format!("{device}:{port}") }),
                basis: Some(ClaimBasis::Reported),
                at: Some(format!("{}:{}", report.source.place, at + 1)),
                ..NicReport::default()
            });
            continue;
        }
        let Some(nic) = nics.last_mut().filter(|_| is_port) else { continue };
        match key {
            "State" => {
                nic.state =
                    Some(sanitize_text(value).to_ascii_lowercase()).filter(|s| !s.is_empty());
            }
            // In Gbit/s, with forms such as `2.5` and `40 (FDR10)`.
            "Rate" => {
                let number = value.split_whitespace().next().unwrap_or_default();
                nic.rate_mbit_s = match number {
                    "2.5" => Some(2_500),
                    whole => whole.parse::<u64>().ok().and_then(|gbps| gbps.checked_mul(1_000)),
                }
                .filter(|rate| 0 < *rate);
            }
            // An Ethernet port may have none, which prints as zero.
            "Port GUID" => {
                nic.guid = normalise_guid(value).filter(|g| g.bytes().any(|b| b != b'0'));
            }
            _ => {}
        }
    }
    if nics.is_empty() {
        let message = "no port, expected lines such as Port 1: below each CA";
        push_problem(report, SourceProblemKind::Incomplete, report.source.place.clone(), message);
    }
    report.node_mut(node).nics = nics;
}

/// Parses a list of hosts with GUIDs.
pub(super) fn read_host_list(report: &mut SourceReport, text: &str) {
    let mut current: Option<NodeName> = None;
    for (at, line) in text.lines().enumerate() {
        let (at, line) = (format!("{}:{}", report.source.place, at + 1), line.trim());
        if line.is_empty() {
            continue;
        }
        if let Some(name) = line.strip_prefix(HOST_PREFIX) {
            current = parse_node_name(name.trim());
            if current.is_none() {
                let message = format!("{}: expected the name of a host", quote_text(name));
                push_problem(report, SourceProblemKind::Malformed, at, message);
            }
            continue;
        }
        let Some(guid) = normalise_guid(line) else {
            let message = format!("{}: expected the GUID of a port", quote_text(line));
            push_problem(report, SourceProblemKind::Malformed, at, message);
            continue;
        };
        if let Some(node) = &current {
            report.node_mut(node).nics.push(NicReport {
                guid: Some(guid),
                basis: Some(ClaimBasis::Reported),
                at: Some(at),
                ..NicReport::default()
            });
        }
    }
}
