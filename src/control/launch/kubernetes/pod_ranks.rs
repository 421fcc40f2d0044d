//! Adapts a command that starts ranks with `mpirun` to pods as its hosts.
//!
//! Pure. Only the hosts change: `mpirun` itself starts its ranks, in the way that the image
//! supports.

use std::collections::BTreeMap;

use super::{KubernetesLauncher, RankLaunchMode};
use crate::launch::LaunchError;
use crate::launch::{HeldNodes, WorkerTarget};
use model::id::NodeName;

/// Why ranks do not start in other pods.
pub const NO_RANKS: &str = "its ranks would have to start in several pods, which mpirun cannot do \
                            there unless the image lets it: see ranks of [launcher.kubernetes]";

/// The same command with the host names of the pods.
pub fn rewrite_hosts(
    argv: &[String],
    nodes: &[NodeName],
    held: &HeldNodes,
    kubernetes: &KubernetesLauncher,
) -> Result<Vec<String>, LaunchError> {
    // `env NAME=VALUE mpirun ...`
    let is_env = argv.first().is_some_and(|word| word == "env");
    let set = argv.iter().skip(1).take_while(|word| is_env && word.contains('=')).count();
    let start = if is_env { set + 1 } else { 0 };
    if argv.get(start).is_none_or(|word| word != "mpirun") {
        return Ok(argv.to_vec());
    }
    match kubernetes.ranks {
        RankLaunchMode::Names => return Ok(argv.to_vec()),
        RankLaunchMode::None if 1 < nodes.len() => {
            return Err(LaunchError::NotHeld { why: NO_RANKS.to_owned() });
        }
        // A pod does not know the name of its node, but it does know its own address.
        RankLaunchMode::None | RankLaunchMode::Addresses => {}
    }
    let mut addresses = BTreeMap::new();
    for node in nodes {
        let Some(WorkerTarget::Pod { address: Some(address), .. }) = held.targets.get(node) else {
            let why = format!("the pod on {node} has no address that mpirun could use");
            return Err(LaunchError::NotHeld { why });
        };
        addresses.insert(node.as_str(), address.as_str());
    }
    // Every option of mpirun that the probes use has a value (`launch::ranks`); the first argument
    // that is not an option starts the tool, whose arguments stay unchanged.
    let mut words = argv.to_vec();
    let mut at = start + 1;
    while words.get(at).is_some_and(|word| word.starts_with('-')) && at + 1 < words.len() {
        if matches!(words[at].as_str(), "--host" | "-host" | "-H") {
            words[at + 1] = replace_hosts(&words[at + 1], &addresses);
        }
        at += 2;
    }
    Ok(words)
}

/// `A:4,B:4` with addresses instead of names.
fn replace_hosts(list: &str, addresses: &BTreeMap<&str, &str>) -> String {
    let one = |host: &str| {
        let (name, slots) = host.split_once(':').unwrap_or((host, ""));
        let name = addresses.get(name).copied().unwrap_or(name);
        if slots.is_empty() { name.to_owned() } else { format!("{name}:{slots}") }
    };
    list.split(',').map(one).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    fn held() -> HeldNodes {
        let target = |address: &str| WorkerTarget::Pod {
            name: "p".to_owned(),
            address: Some(address.to_owned()).filter(|it| !it.is_empty()),
        };
        let targets = [("n1", target("10.0.0.1")), ("n2", target("10.0.0.2")), ("n3", target(""))];
        HeldNodes { targets: targets.map(|(n, s)| (n.into(), s)).into(), ..HeldNodes::default() }
    }

    fn by(ranks: RankLaunchMode, line: &str, nodes: &[&str]) -> Result<String, String> {
        let nodes: Vec<NodeName> = nodes.iter().map(|node| (*node).into()).collect();
        let kubernetes = KubernetesLauncher { ranks, ..KubernetesLauncher::default() };
        let argv = rewrite_hosts(&split_words(line), &nodes, &held(), &kubernetes);
        argv.map(|argv| argv.join(" ")).map_err(|error| error.to_string())
    }

    #[test]
    fn hosts_become_addresses_and_nothing_else_changes() {
        let line = "env A=1 mpirun -np 8 --host n1:4,n2:4 -x B=n1 tool --host n1";
        let own = "env A=1 mpirun -np 8 --host 10.0.0.1:4,10.0.0.2:4 -x B=n1 tool --host n1";
        assert_eq!(by(RankLaunchMode::Addresses, line, &["n1", "n2"]).as_deref(), Ok(own));
        assert_eq!(by(RankLaunchMode::Names, line, &["n1", "n2"]).as_deref(), Ok(line));
        let without = by(RankLaunchMode::Addresses, "mpirun --host n3 tool", &["n3"]);
        assert!(without.is_err_and(|why| why.contains("n3")));
    }

    #[test]
    fn ranks_on_several_nodes_are_refused_without_a_configured_mode() {
        assert!(by(RankLaunchMode::None, "mpirun --host n1:4,n2:4 tool", &["n1", "n2"]).is_err());
        let one = by(RankLaunchMode::None, "mpirun --host n1:4 tool", &["n1"]);
        assert_eq!(one.as_deref(), Ok("mpirun --host 10.0.0.1:4 tool"));
        let plain = by(RankLaunchMode::None, "nvbandwidth --host n1", &["n1", "n2"]);
        assert_eq!(plain.as_deref(), Ok("nvbandwidth --host n1"));
    }
}
