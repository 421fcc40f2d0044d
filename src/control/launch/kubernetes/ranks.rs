//! A command that starts ranks with `mpirun`, where its hosts are pods.
//!
//! Pure. Nothing but the hosts is changed: `mpirun` starts its ranks itself, as
//! the image lets it.

use std::collections::BTreeMap;

use super::Kubernetes;
use super::Ranks;
use crate::launch::LaunchError;
use crate::launch::held::Held;
use crate::launch::held::Seat;
use model::id::NodeName;

/// Why ranks do not start in other pods.
pub const NO_RANKS: &str = "its ranks would have to start in several pods, which mpirun cannot do \
                            there unless the image lets it: see ranks of [launcher.kubernetes]";

/// The same command with hosts as they are called there.
pub fn in_pods(
    argv: &[String],
    nodes: &[NodeName],
    held: &Held,
    kubernetes: &Kubernetes,
) -> Result<Vec<String>, LaunchError> {
    // `env NAME=VALUE mpirun ...`
    let is_env = argv.first().is_some_and(|word| word == "env");
    let set = argv.iter().skip(1).take_while(|word| is_env && word.contains('=')).count();
    let start = if is_env { set + 1 } else { 0 };
    if argv.get(start).is_none_or(|word| word != "mpirun") {
        return Ok(argv.to_vec());
    }
    match kubernetes.ranks {
        Ranks::Names => return Ok(argv.to_vec()),
        Ranks::None if 1 < nodes.len() => {
            return Err(LaunchError::NotHeld { why: NO_RANKS.to_owned() });
        }
        // A pod does not know the name of its node: by its address it is itself.
        Ranks::None | Ranks::Addresses => {}
    }
    let mut addresses = BTreeMap::new();
    for node in nodes {
        let Some(Seat::Pod { address: Some(address), .. }) = held.seats.get(node) else {
            let why = format!("the pod on {node} has no address that mpirun could use");
            return Err(LaunchError::NotHeld { why });
        };
        addresses.insert(node.as_str(), address.as_str());
    }
    // Every option of mpirun that the probes use has a value (`launch::ranks`); the
    // first word that is none begins the tool, whose words are its own.
    let mut words = argv.to_vec();
    let mut at = start + 1;
    while words.get(at).is_some_and(|word| word.starts_with('-')) && at + 1 < words.len() {
        if matches!(words[at].as_str(), "--host" | "-host" | "-H") {
            words[at + 1] = hosts(&words[at + 1], &addresses);
        }
        at += 2;
    }
    Ok(words)
}

/// `A:4,B:4` with addresses in the place of names.
fn hosts(list: &str, addresses: &BTreeMap<&str, &str>) -> String {
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

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    fn held() -> Held {
        let seat = |address: &str| Seat::Pod {
            name: "p".to_owned(),
            address: Some(address.to_owned()).filter(|it| !it.is_empty()),
        };
        let seats = [("n1", seat("10.0.0.1")), ("n2", seat("10.0.0.2")), ("n3", seat(""))];
        Held { seats: seats.map(|(n, s)| (n.into(), s)).into(), ..Held::default() }
    }

    fn by(ranks: Ranks, line: &str, nodes: &[&str]) -> Result<String, String> {
        let nodes: Vec<NodeName> = nodes.iter().map(|node| (*node).into()).collect();
        let kubernetes = Kubernetes { ranks, ..Kubernetes::default() };
        let argv = in_pods(&words(line), &nodes, &held(), &kubernetes);
        argv.map(|argv| argv.join(" ")).map_err(|error| error.to_string())
    }

    #[test]
    fn hosts_become_addresses_and_nothing_else_changes() {
        let line = "env A=1 mpirun -np 8 --host n1:4,n2:4 -x B=n1 tool --host n1";
        let own = "env A=1 mpirun -np 8 --host 10.0.0.1:4,10.0.0.2:4 -x B=n1 tool --host n1";
        assert_eq!(by(Ranks::Addresses, line, &["n1", "n2"]).as_deref(), Ok(own));
        assert_eq!(by(Ranks::Names, line, &["n1", "n2"]).as_deref(), Ok(line));
        let without = by(Ranks::Addresses, "mpirun --host n3 tool", &["n3"]);
        assert!(without.is_err_and(|why| why.contains("n3")));
    }

    #[test]
    fn ranks_on_several_nodes_are_refused_unless_somebody_says_how() {
        assert!(by(Ranks::None, "mpirun --host n1:4,n2:4 tool", &["n1", "n2"]).is_err());
        let one = by(Ranks::None, "mpirun --host n1:4 tool", &["n1"]);
        assert_eq!(one.as_deref(), Ok("mpirun --host 10.0.0.1:4 tool"));
        let plain = by(Ranks::None, "nvbandwidth --host n1", &["n1", "n2"]);
        assert_eq!(plain.as_deref(), Ok("nvbandwidth --host n1"));
    }
}
