//! A node's own InfiniBand ports (`ibstat`), and lists of hosts with the GUIDs of
//! their ports. Neither says what is at the other end of a cable; by the GUID
//! it can be found where another source does.

use crate::claims::reading::complain;
use crate::claims::reading::guid;
use crate::claims::reading::node_name;
use crate::claims::reading::plain;
use crate::claims::reading::quoted;
use model::id::NodeName;
use model::said::Basis;
use model::said::NicSaid;
use model::said::ProblemKind;
use model::said::Said;

/// What a host begins with in SuperBench's list of hosts and GUIDs.
const HOST: &str = "VM_hostname ";

/// Whether a text is what `ibstat` prints, or a list of hosts with GUIDs.
pub(super) fn recognises(text: &str) -> bool {
    let is_ibstat = text.lines().any(|line| device(line).is_some())
        && text.lines().any(|line| line.trim().starts_with("Port GUID:"));
    is_ibstat || is_list(text)
}

/// Whether a text is a list of hosts, each with GUIDs below it.
pub(super) fn is_list(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.next().is_some_and(|line| line.starts_with(HOST))
        && lines.next().is_some_and(|line| guid(line).is_some())
}

/// `CA 'mlx5_0'`
fn device(line: &str) -> Option<&str> {
    let (name, rest) = line.trim_end().strip_prefix("CA '")?.split_once('\'')?;
    Some(name).filter(|_| !plain(name).is_empty() && (rest.is_empty() || rest == ":"))
}

/// Reads `ibstat` of this node.
pub(super) fn read(said: &mut Said, node: &NodeName, text: &str) {
    let mut nics: Vec<NicSaid> = Vec::new();
    let mut current: Option<&str> = None;
    let mut is_port = false;
    for (at, line) in text.lines().enumerate() {
        if let Some(name) = device(line) {
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
            let device = plain(name);
            nics.push(NicSaid {
                device: Some(if port <= 1 { device } else { format!("{device}:{port}") }),
                basis: Some(Basis::Reported),
                at: Some(format!("{}:{}", said.source.place, at + 1)),
                ..NicSaid::default()
            });
            continue;
        }
        let Some(nic) = nics.last_mut().filter(|_| is_port) else { continue };
        match key {
            "State" => {
                nic.state = Some(plain(value).to_ascii_lowercase()).filter(|s| !s.is_empty());
            }
            // In Gbit/s, `2.5` and `40 (FDR10)` among them.
            "Rate" => {
                let number = value.split_whitespace().next().unwrap_or_default();
                nic.rate_mbit_s = match number {
                    "2.5" => Some(2_500),
                    whole => whole.parse::<u64>().ok().and_then(|gbps| gbps.checked_mul(1_000)),
                }
                .filter(|rate| 0 < *rate);
            }
            // Ports on Ethernet may have none, which prints as zero.
            "Port GUID" => nic.guid = guid(value).filter(|g| g.bytes().any(|b| b != b'0')),
            _ => {}
        }
    }
    if nics.is_empty() {
        let message = "no port, expected lines such as Port 1: below each CA";
        complain(said, ProblemKind::Incomplete, said.source.place.clone(), message);
    }
    said.node(node).nics = nics;
}

/// Reads a list of hosts with GUIDs.
pub(super) fn read_list(said: &mut Said, text: &str) {
    let mut current: Option<NodeName> = None;
    for (at, line) in text.lines().enumerate() {
        let (at, line) = (format!("{}:{}", said.source.place, at + 1), line.trim());
        if line.is_empty() {
            continue;
        }
        if let Some(name) = line.strip_prefix(HOST) {
            current = node_name(name.trim());
            if current.is_none() {
                let message = format!("{}: expected the name of a host", quoted(name));
                complain(said, ProblemKind::Malformed, at, message);
            }
            continue;
        }
        let Some(guid) = guid(line) else {
            let message = format!("{}: expected the GUID of a port", quoted(line));
            complain(said, ProblemKind::Malformed, at, message);
            continue;
        };
        if let Some(node) = &current {
            said.node(node).nics.push(NicSaid {
                guid: Some(guid),
                basis: Some(Basis::Reported),
                at: Some(at),
                ..NicSaid::default()
            });
        }
    }
}
