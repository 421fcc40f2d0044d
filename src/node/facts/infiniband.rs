//! Neighbors of this machine's InfiniBand ports: one hop down each cable, queried with `smpquery`
//! of infiniband-diags.
//!
//! A directed route of one hop reaches the switch at the other end without a subnet manager; its
//! NodeInfo contains the switch port that received the query (InfiniBand architecture
//! specification, 14.2.5.3). No other device is queried.

use super::{ToolAttempt, run_tool};
use model::node_facts::{NicFacts, NicNeighbour};
use readers::claims::neighbours;

/// A port whose link is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InfinibandPort {
    device: String,
    port: u32,
}

/// The ports with an active link.
pub(super) fn list_active_ports(nics: &[NicFacts]) -> Vec<InfinibandPort> {
    let is_up = |nic: &&NicFacts| {
        nic.rdma
            && nic.link_layer.as_deref() == Some("InfiniBand")
            && nic.physical_state.as_deref() == Some("linkup")
    };
    let port =
        |nic: &NicFacts| InfinibandPort { device: nic.device.clone(), port: nic.port.unwrap_or(1) };
    nics.iter().filter(is_up).map(port).collect()
}

/// Returns the neighbors, and for each failed port the reason.
pub(super) async fn query_neighbours(
    is_own: bool,
    ports: &[InfinibandPort],
) -> (Vec<NicNeighbour>, Vec<String>) {
    let mut found = Vec::new();
    let mut problems = Vec::new();
    for port in ports {
        let what = format!("{} port {}", port.device, port.port);
        let answers = tokio::join!(
            run_smpquery(is_own, port, "nodeinfo"),
            run_smpquery(is_own, port, "nodedesc")
        );
        match answers {
            // Not installed, which is not a gap.
            (ToolAttempt::Absent, _) | (_, ToolAttempt::Absent) => break,
            (ToolAttempt::Failed(why), _) | (_, ToolAttempt::Failed(why)) => {
                problems.push(format!("{what}: {why}"));
            }
            (ToolAttempt::Output(info), ToolAttempt::Output(description)) => {
                let (info, description) =
                    (String::from_utf8_lossy(&info), String::from_utf8_lossy(&description));
                match parse_neighbour(port, &info, &description) {
                    Ok(neighbour) => found.push(neighbour),
                    Err(why) => problems.push(format!("{what}: {why}")),
                }
            }
        }
    }
    (found, problems)
}

async fn run_smpquery(is_own: bool, port: &InfinibandPort, what: &str) -> ToolAttempt {
    let number = port.port.to_string();
    let route = format!("0,{number}");
    run_tool(is_own, &["smpquery", "-C", &port.device, "-P", &number, what, "-D", &route]).await
}

/// The other end of a cable, parsed from its NodeInfo and NodeDescription.
fn parse_neighbour(
    port: &InfinibandPort,
    info: &str,
    description: &str,
) -> Result<NicNeighbour, String> {
    let kind = field_value(info, "NodeType").ok_or("smpquery nodeinfo names no NodeType")?;
    // infiniband-diags prints the name, other tools with the same command print the number.
    if !matches!(kind, "Switch" | "2") {
        return Err(format!("is not cabled to a switch (NodeType {kind})"));
    }
    let switch = field_value(description, "Node Description");
    let switch = switch.ok_or("smpquery nodedesc names no switch")?;
    Ok(NicNeighbour {
        device: port.device.clone(),
        device_port: (port.port != 1).then_some(port.port),
        switch: Some(neighbours::switch_name(switch)),
        port: field_value(info, "LocalPort").map(str::to_owned),
    })
}

/// The value after the dots of a line, as in `LocalPort:.......69`.
fn field_value<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let value = lines.next()?.trim_start_matches('.').trim();
    (!value.is_empty()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Node info: DR path slid 65535; dlid 65535; 0,2\n\
        BaseVers:........................1\nNodeType:........................Switch\n\
        Guid:............................0x00000000000000a1\n\
        LocalPort:.......................17\n";
    const NAME: &str = "Node Description:......................MF0;leaf-1:MQM9700/U1\n";

    fn nic(device: &str, port: u32, layer: &str, state: &str) -> NicFacts {
        NicFacts {
            device: device.to_owned(),
            rdma: true,
            port: Some(port),
            link_layer: Some(layer.to_owned()),
            physical_state: Some(state.to_owned()),
            ..NicFacts::default()
        }
    }

    #[test]
    fn only_infiniband_ports_with_an_active_link_are_queried() {
        let nics = [
            nic("mlx5_0", 1, "InfiniBand", "linkup"),
            nic("mlx5_1", 1, "InfiniBand", "polling"),
            nic("mlx5_2", 1, "Ethernet", "linkup"),
            nic("mlx5_3", 2, "InfiniBand", "linkup"),
        ];
        let queried: Vec<(String, u32)> =
            list_active_ports(&nics).into_iter().map(|port| (port.device, port.port)).collect();
        assert_eq!(queried, [("mlx5_0".to_owned(), 1), ("mlx5_3".to_owned(), 2)]);
    }

    #[test]
    fn a_switch_is_named_with_the_port_that_received_the_query() {
        let port = InfinibandPort { device: "mlx5_0".to_owned(), port: 2 };
        let found = parse_neighbour(&port, INFO, NAME).expect("a switch");
        assert_eq!(found.switch.as_deref(), Some("leaf-1"));
        assert_eq!((found.port.as_deref(), found.device_port), (Some("17"), Some(2)));
    }

    #[test]
    fn another_host_or_an_incomplete_answer_is_not_a_neighbour() {
        let port = InfinibandPort { device: "mlx5_0".to_owned(), port: 1 };
        let host = INFO.replace("Switch", "Channel Adapter");
        let why = parse_neighbour(&port, &host, NAME).expect_err("no switch");
        assert!(why.contains("Channel Adapter"), "{why}");
        assert!(parse_neighbour(&port, "", NAME).is_err());
        assert!(parse_neighbour(&port, INFO, "Node Description:.......\n").is_err());
    }

    #[tokio::test]
    async fn without_the_tool_nothing_is_missing() {
        let port = InfinibandPort { device: "mlx5_0".to_owned(), port: 1 };
        assert_eq!(query_neighbours(false, &[port]).await, (Vec::new(), Vec::new()));
    }
}
