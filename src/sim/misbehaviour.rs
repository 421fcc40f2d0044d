//! Unreachable nodes, and misbehaving tools.

use super::fault::SimFault;
use super::render::SimToolOutput;
use super::scenario::Scenario;

/// Misbehaviour of a tool on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolMisbehaviour {
    /// It never ends.
    Hangs,
    /// It prints more than the capture limit.
    Floods,
    /// It prints output that no parser recognizes.
    Garbage,
}

/// Bytes of a flood: more than the 64 MiB captured of any output.
pub const FLOOD: usize = 80 << 20;

/// One line of a flood.
pub const FLOOD_LINE: &str = "WARNING: the same message again, and again, and again, and again\n";

/// Output that no parser recognizes.
pub const GARBAGE: &str =
    "\u{fffd}\u{1}\u{2}%%% 0xdeadbeef ~~~ {\"half\": [1,2,\n\u{7}\u{fffd}@@\n";

/// The misbehaviour of this tool on any of these nodes.
pub fn find_misbehaviour(
    scenario: &Scenario,
    nodes: &[&str],
    name: &str,
) -> Option<ToolMisbehaviour> {
    scenario.faults.iter().find_map(|fault| {
        let (node, tool, ailment) = match fault {
            SimFault::ToolHangs { node, tool } => (node, tool, ToolMisbehaviour::Hangs),
            SimFault::ToolFloods { node, tool } => (node, tool, ToolMisbehaviour::Floods),
            SimFault::ToolGarbage { node, tool } => (node, tool, ToolMisbehaviour::Garbage),
            _ => return None,
        };
        (tool == name && nodes.contains(&node.as_str())).then_some(ailment)
    })
}

/// The first of these nodes without a tool of this name. `nccl-tests` stands for all its programs.
pub fn node_without_tool<'n>(
    scenario: &Scenario,
    nodes: &[&'n str],
    name: &str,
) -> Option<&'n str> {
    let is_it = |tool: &str| {
        tool == name
            || (tool == NCCL_TESTS
                && super::collective::SimCollective::from_program(name).is_some())
    };
    if scenario.tools.missing.iter().any(|tool| is_it(tool)) {
        return nodes.first().copied();
    }
    let lacks = |node: &str| {
        scenario.faults.iter().any(|fault| {
            matches!(fault, SimFault::ToolMissing { node: n, tool } if n == node && is_it(tool))
        })
    };
    nodes.iter().copied().find(|node| lacks(node))
}

/// Stands for all programs of nccl-tests in a scenario's list of missing tools.
pub const NCCL_TESTS: &str = "nccl-tests";

/// A shell's answer for a missing program.
pub fn not_found(name: &str) -> SimToolOutput {
    SimToolOutput::with_exit_code(String::new(), format!("sh: {name}: command not found\n"), 127)
}

/// True if a node is unreachable.
pub fn is_unreachable(scenario: &Scenario, node: &str) -> bool {
    scenario
        .faults
        .iter()
        .any(|fault| matches!(fault, SimFault::Unreachable { node: n } if n == node))
}

/// Why no worker starts on a node, as the remote shell reports it; the shell exits with
/// [`REFUSED`].
pub fn refuse_worker(scenario: &Scenario, node: &str) -> Option<String> {
    is_unreachable(scenario, node)
        .then(|| format!("ssh: connect to host {node} port 22: No route to host"))
}

/// The exit code of ssh(1) for a failed connection.
pub const REFUSED: u8 = 255;
