//! The arguments of a command that only the nodes know: addresses and devices on a rail, the port
//! of the server, and the node's own name if several nodes run the same command.
//!
//! Pure: reports of workers about their machines in, arguments out.

use std::net::IpAddr;

use model::claims::ClaimedRail;
use model::id::NodeName;
use model::probe::placeholder;
use model::worker_protocol::MachineEnvironment;

/// One end of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlaceholderEnd<'a> {
    pub(super) node: &'a NodeName,
    /// The worker's report; `None` for simulated nodes, whose names serve as
    /// their addresses.
    pub(super) environment: Option<&'a MachineEnvironment>,
}

/// The values of the placeholders for one side of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlaceholderValues<'a> {
    pub(super) own: PlaceholderEnd<'a>,
    pub(super) peer: Option<PlaceholderEnd<'a>>,
    pub(super) rail: Option<&'a ClaimedRail>,
    pub(super) port: u16,
}

/// Interfaces that exist on many machines and do not lead to other nodes.
const LOCAL_INTERFACES: &[&str] = &["docker", "virbr", "cni", "veth", "br-", "lxc", "podman"];

/// The command with every placeholder filled.
pub(super) fn fill_command(
    argv: &[String],
    with: &PlaceholderValues<'_>,
) -> Result<Vec<String>, String> {
    let contains = |what: &str| argv.iter().any(|word| word.contains(what));
    let mut own = String::new();
    let mut peer = String::new();
    let mut device = "-".to_owned();
    if contains(placeholder::ADDRESS) {
        own = resolve_address(with.own, with.rail)?.1;
    }
    if contains(placeholder::DEVICE) && with.rail.is_some() && with.own.environment.is_some() {
        device = resolve_address(with.own, with.rail)?.0;
    }
    if contains(placeholder::PEER_ADDRESS) {
        let end = with.peer.ok_or("the step has no other node whose address could be filled in")?;
        peer = resolve_address(end, with.rail)?.1;
    }
    let port = with.port.to_string();
    let before_port = format!("{}:", placeholder::PEER_ADDRESS);
    let fill = |word: &String| {
        word.replace(&before_port, &format!("{}:", bracket_ipv6(&peer)))
            .replace(placeholder::PEER_ADDRESS, &peer)
            .replace(placeholder::ADDRESS, &own)
            .replace(placeholder::DEVICE, &device)
            .replace(placeholder::PORT, &port)
            .replace(placeholder::NODE, with.own.node.as_str())
    };
    Ok(argv.iter().map(fill).collect())
}

/// The device and the address of a node on a rail; without a rail, the first address that leads out
/// of the machine.
fn resolve_address(
    end: PlaceholderEnd<'_>,
    rail: Option<&ClaimedRail>,
) -> Result<(String, String), String> {
    let Some(environment) = end.environment else {
        return Ok(("-".to_owned(), end.node.to_string()));
    };
    let fits = |device: &str, ip: IpAddr| match rail {
        Some(rail) if rail.device.is_some() || rail.network.is_some() => {
            rail.device.as_deref().is_none_or(|d| d == device)
                && rail.contains_address(ip).unwrap_or(true)
        }
        _ => !LOCAL_INTERFACES.iter().any(|inward| device.starts_with(inward)),
    };
    let all = environment.interfaces.iter().flat_map(|(device, addresses)| {
        addresses.iter().filter_map(move |text| Some((device, text.parse::<IpAddr>().ok()?)))
    });
    let mut fitting: Vec<(&String, IpAddr)> =
        all.filter(|(device, ip)| is_routable(*ip) && fits(device, *ip)).collect();
    // Tools of every age understand IPv4.
    fitting.sort_by_key(|(_, ip)| ip.is_ipv6());
    let has: Vec<&str> = environment.interfaces.keys().map(String::as_str).collect();
    match (fitting.first(), rail) {
        (Some((device, ip)), _) => Ok(((*device).clone(), ip.to_string())),
        (None, Some(rail)) => Err(format!(
            "{} has no address on rail {}{}{}; its devices: {}",
            end.node,
            rail.name,
            rail.device.as_deref().map_or(String::new(), |d| format!(", device {d}")),
            rail.network.as_deref().map_or(String::new(), |n| format!(", network {n}")),
            has.join(", ")
        )),
        (None, None) => Err(format!(
            "{} has no address that leads to other nodes; its devices: {}",
            end.node,
            has.join(", ")
        )),
    }
}

/// An IPv6 address before a port is in brackets (RFC 3986, 3.2.2).
fn bracket_ipv6(address: &str) -> String {
    match address.contains(':') {
        true => format!("[{address}]"),
        false => address.to_owned(),
    }
}

/// Whether an address is routable beyond its link.
fn is_routable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local() && !ip.is_unspecified(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local() && !ip.is_unspecified(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(interfaces: &[(&str, &[&str])]) -> MachineEnvironment {
        let own = |list: &[&str]| list.iter().map(|a| (*a).to_owned()).collect();
        MachineEnvironment {
            interfaces: interfaces.iter().map(|(d, a)| ((*d).to_owned(), own(a))).collect(),
            ..MachineEnvironment::default()
        }
    }

    fn rail(device: Option<&str>, network: Option<&str>) -> ClaimedRail {
        ClaimedRail {
            name: "rail0".to_owned(),
            device: device.map(str::to_owned),
            network: network.map(str::to_owned),
            rdma: None,
        }
    }

    fn fill_argument(
        word: &str,
        machine: &MachineEnvironment,
        rail: Option<&ClaimedRail>,
    ) -> Result<String, String> {
        let node = NodeName::from("a");
        let end = PlaceholderEnd { node: &node, environment: Some(machine) };
        let with = PlaceholderValues { own: end, peer: Some(end), rail, port: 4711 };
        fill_command(&[word.to_owned()], &with).map(|words| words[0].clone())
    }

    #[test]
    fn a_rail_is_a_device_or_a_network() {
        let machine = machine(&[
            ("docker0", &["172.17.0.1"]),
            ("eth0", &["192.168.1.5", "fe80::1"]),
            ("eth1", &["fd00::5", "10.7.0.5"]),
        ]);
        let word = "{peer_address}:{port} {address} {device}";
        let by_device = rail(Some("eth1"), None);
        assert_eq!(
            fill_argument(word, &machine, Some(&by_device)).expect("filled"),
            "10.7.0.5:4711 10.7.0.5 eth1"
        );
        let by_network = rail(None, Some("fd00::/64"));
        assert_eq!(
            fill_argument(word, &machine, Some(&by_network)).expect("filled"),
            "[fd00::5]:4711 fd00::5 eth1"
        );
        assert_eq!(
            fill_argument(word, &machine, None).expect("filled"),
            "192.168.1.5:4711 192.168.1.5 -"
        );
        let error = fill_argument(word, &machine, Some(&rail(Some("eth7"), None)))
            .expect_err("no such device");
        assert_eq!(
            error,
            "a has no address on rail rail0, device eth7; its devices: docker0, eth0, eth1"
        );
    }

    #[test]
    fn a_simulated_node_has_its_name_as_address() {
        let (a, b) = (NodeName::from("a"), NodeName::from("b"));
        let end = |node| PlaceholderEnd { node, environment: None };
        let rail = rail(Some("eth1"), None);
        let with =
            PlaceholderValues { own: end(&a), peer: Some(end(&b)), rail: Some(&rail), port: 1 };
        let words = fill_command(&["{address} {peer_address} {device}".to_owned()], &with);
        assert_eq!(words.expect("filled"), ["a b -"]);
    }
}
