//! `nvidia-imex-ctl -N`, as text and as JSON, run on the first reachable node.

use super::{SimToolOutput, node_address};
use crate::fabric::SimNode;
use crate::invocation::ToolInvocation;

const VERSION: &str = "570.133.20";
const STAMP: &str = "1/15/2026 08:00:00.250";

/// The nodes of the claimed domain, with their index in the fabric.
fn domain_nodes<'a>(bench: &ToolInvocation<'a>) -> Vec<(usize, &'a SimNode)> {
    let fabric = bench.fabric;
    let claim = fabric.claims.iter().find(|claim| {
        claim.name == bench.scope || claim.nodes.iter().any(|node| node == bench.scope)
    });
    let names = claim.map_or(&[][..], |claim| &claim.nodes[..]);
    names.iter().filter_map(|name| fabric.node(name).ok()).map(|n| (n, &fabric.nodes[n])).collect()
}

/// True if the daemons of these two nodes can connect.
fn are_connected(a: &SimNode, b: &SimNode) -> bool {
    a.imex && b.imex
}

fn domain_state(nodes: &[(usize, &SimNode)]) -> &'static str {
    match nodes.iter().filter(|(_, node)| node.imex).count() {
        0 => "DOWN",
        up if up < nodes.len() => "DEGRADED",
        _ => "UP",
    }
}

/// The text form.
pub fn render_text(bench: &ToolInvocation<'_>) -> SimToolOutput {
    let nodes = domain_nodes(bench);
    let mut out = String::from(
        "Connectivity Table Legend:\n\
         I - Invalid - no status, the node was not reachable\n\
         N - Never Connected\n\
         R - Recovering - lost, not cleaned up yet\n\
         D - Disconnected - lost and cleaned up\n\
         A - Authenticating\n\
         !V! - Version mismatch\n\
         !M! - Node map mismatch\n\
         C - Connected\n\n",
    );
    out.push_str(&format!("{STAMP}\nNodes:\n"));
    for (number, (place, node)) in nodes.iter().enumerate() {
        let (number, address) = (format!("#{number}"), node_address(*place));
        out.push_str(&match node.imex {
            true => {
                format!("Node {number:<4} - {address:<15} - {:<20} - Version: {VERSION}\n", "READY")
            }
            false => format!("Node {number:<4} - {address:<15} - UNAVAILABLE\n"),
        });
    }
    out.push_str("\n Nodes From\\To ");
    for column in 0..nodes.len() {
        out.push_str(&format!(" {column:<3}"));
    }
    out.push('\n');
    for (row, (_, from)) in nodes.iter().enumerate() {
        out.push_str(&format!("{row:>8}       "));
        for (_, to) in &nodes {
            let letter = match (are_connected(from, to), from.imex) {
                (true, _) => 'C',
                (false, true) => 'N',
                (false, false) => 'I',
            };
            out.push_str(&format!(" {letter}  "));
        }
        out.push('\n');
    }
    out.push_str(&format!("Domain State: {}\n", domain_state(&nodes)));
    SimToolOutput::success(out)
}

/// The JSON form.
pub fn render_json(bench: &ToolInvocation<'_>) -> SimToolOutput {
    let nodes = domain_nodes(bench);
    let mut entries = serde_json::Map::new();
    for (number, (place, node)) in nodes.iter().enumerate() {
        let links: serde_json::Map<_, _> = nodes
            .iter()
            .enumerate()
            .map(|(other, (there, to))| {
                let status = if are_connected(node, to) { "CONNECTED" } else { "INVALID" };
                let link = serde_json::json!({
                    "host": node_address(*there), "status": status, "changed": true });
                (other.to_string(), link)
            })
            .collect();
        let (status, version) = if node.imex { ("READY", VERSION) } else { ("UNAVAILABLE", "") };
        let entry = serde_json::json!({
            "status": status, "host": node_address(*place), "hostName": node.name,
            "version": version, "changed": true, "connections": links });
        entries.insert(number.to_string(), entry);
    }
    let document = serde_json::json!({
        "nodes": entries, "timestamp": STAMP, "status": domain_state(&nodes) });
    SimToolOutput::success(format!("{document:#}\n"))
}
