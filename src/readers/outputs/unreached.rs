//! Whether a tool's message reports an unreachable peer.

use model::parse_output::{OutputProblem, OutputProblemKind};

/// Tools' texts for an unreachable peer, or a port without link.
const PEER_UNREACHABLE: &[&str] = &[
    "refused",
    "unreachable",
    "no route",
    "timed out",
    "timeout",
    "couldn't connect",
    "unable to connect",
    "unable to init the socket connection",
    "connection reset",
    "host is down",
    "couldn't set the link layer",
];

/// A NIC's status for a message whose peer never answered.
const NO_ANSWER: &[&str] = &["IBV_WC_RETRY_EXC_ERR"];

/// Whether a problem is an unreachable peer.
pub fn is_peer_unreachable(problem: &OutputProblem) -> bool {
    let text = problem.detail.to_ascii_lowercase();
    let code = problem.code.as_deref();
    problem.kind == OutputProblemKind::Error
        && (PEER_UNREACHABLE.iter().any(|words| text.contains(words))
            || code.is_some_and(|code| NO_ANSWER.contains(&code)))
}
