//! Neighbours in every supported format. The texts follow the source of the tools that print
//! them.

use super::*;
use model::source_report::{ClaimBasis, NicReport, NodeGroup, NodeGroupKind};

const FABRIC: &str = "#\n# Topology file: generated on Fri Nov 20 10:00:00 2026\n#\n\n\
vendid=0x2c9\ndevid=0xd2f2\nsysimgguid=0xa1\nswitchguid=0xa1(a1)\n\
Switch\t65 \"S-00000000000000a1\"\t\t# \"MF0;leaf-1:MQM9700/U1\" enhanced port 0 lid 1 lmc 0\n\
[1]\t\"H-00000000000000c1\"[1](c1) \t\t# \"node0001 mlx5_0\" lid 10 4xNDR\n\
[2]\t\"H-00000000000000c2\"[1](c2) \t\t# \"node0002 mlx5_0\" lid 11 4xHDR s=4 w=2 v=4 e=4\n\
[3]\t\"H-00000000000000c3\"[1](c3) \t\t# \"MT4129 ConnectX7   Mellanox Technologies\" lid 12 4xNDR\n\
[33]\t\"S-00000000000000b1\"[1]\t\t# \"MF0;spine-1:MQM9700/U1\" lid 3 4xNDR\n\
[65]\t\"H-00000000000000d1\"[1](d1) \t\t# \"Mellanox Technologies Aggregation Node\" lid 4 4xNDR\n\n\
Switch\t65 \"S-00000000000000a2\"\t\t# \"MF0;leaf-2:MQM9700/U1\" enhanced port 0 lid 2 lmc 0\n\
[7]\t\"H-00000000000000c4\"[2](c5) \t\t# \"node0003 mlx5_3\" lid 13 4xNDR\n\
[33]\t\"S-00000000000000b1\"[2]\t\t# \"MF0;spine-1:MQM9700/U1\" lid 3 4xNDR\n\n\
Switch\t65 \"S-00000000000000b1\"\t\t# \"MF0;spine-1:MQM9700/U1\" enhanced port 0 lid 3 lmc 0\n\
[1]\t\"S-00000000000000a1\"[33]\t\t# \"MF0;leaf-1:MQM9700/U1\" lid 1 4xNDR\n\
[2]\t\"S-00000000000000a2\"[33]\t\t# \"MF0;leaf-2:MQM9700/U1\" lid 2 4xNDR\n\n\
caguid=0xc1\nCa\t1 \"H-00000000000000c1\"\t\t# \"node0001 mlx5_0\"\n\
[1](c1) \t\"S-00000000000000a1\"[1]\t\t# lid 10 lmc 0 \"MF0;leaf-1:MQM9700/U1\" lid 1 4xNDR\n";

fn nics<'s>(report: &'s SourceReport, node: &str) -> &'s [NicReport] {
    &report.nodes.get(&node.into()).unwrap_or_else(|| panic!("{node}: {report:?}")).nics
}

/// Device, leaf and port of every NIC of a node.
fn cables(report: &SourceReport, node: &str) -> Vec<String> {
    let word = |word: &Option<String>| word.clone().unwrap_or_else(|| "-".to_owned());
    nics(report, node)
        .iter()
        .map(|nic| format!("{} {} {}", word(&nic.device), word(&nic.leaf), word(&nic.port)))
        .collect()
}

fn group<'s>(report: &'s SourceReport, name: &str) -> &'s NodeGroup {
    report.groups.iter().find(|g| g.name == name).unwrap_or_else(|| panic!("{name}: {report:?}"))
}

fn kinds(report: &SourceReport) -> Vec<SourceProblemKind> {
    report.problems.iter().map(|problem| problem.kind).collect()
}

#[test]
fn a_fabric_gives_the_leaf_of_every_cable() {
    assert!(recognises(FABRIC));
    let report = read("ib.txt", FABRIC);
    assert_eq!(cables(&report, "node0001"), ["mlx5_0 leaf-1 1"]);
    assert_eq!(cables(&report, "node0003"), ["mlx5_3:2 leaf-2 7"]);
    let first = &nics(&report, "node0001")[0];
    assert_eq!(first.guid.as_deref(), Some("00000000000000c1"));
    assert_eq!(
        (first.rate_mbit_s, first.basis.clone()),
        (Some(400_000), Some(ClaimBasis::Reported))
    );
    assert_eq!(first.at.as_deref(), Some("ib.txt:10"));
    assert_eq!(nics(&report, "node0002")[0].rate_mbit_s, Some(200_000));
    let leaf = group(&report, "leaf-1");
    assert_eq!(
        (leaf.kind, leaf.nodes.len(), &leaf.above),
        (NodeGroupKind::Leaf, 2, &vec!["spine-1".to_owned()])
    );
    let spine = group(&report, "spine-1");
    assert_eq!((spine.kind, spine.nodes.len()), (NodeGroupKind::Switch, 3));
    assert_eq!(report.groups.len(), 3);
    // The adapter without a host is named by its GUID; the one inside the switch belongs to no
    // host.
    assert_eq!(kinds(&report), [SourceProblemKind::Incomplete]);
    assert!(report.problems[0].message.starts_with("1 cabled adapters"), "{:?}", report.problems);
    assert!(report.problems[0].message.contains("00000000000000c3"));
    assert_eq!(report.nodes.len(), 3);
}

#[test]
fn contradictions_in_a_fabric_are_reported_with_their_lines() {
    let wrong = FABRIC
        .replace("[1](c1) \t\"S-00000000000000a1\"[1]", "[1](c1) \t\"S-00000000000000a1\"[2]");
    let report = read("ib.txt", &wrong);
    let contradictory =
        |p: &&model::source_report::SourceProblem| p.kind == SourceProblemKind::Contradictory;
    let messages: Vec<String> =
        report.problems.iter().filter(contradictory).map(ToString::to_string).collect();
    assert!(
        messages.iter().any(|t| t.starts_with("ib.txt:26: port 1 of \"node0001 mlx5_0\"")),
        "{messages:?}"
    );
    assert!(messages.iter().any(|t| t.contains("\"node0002 mlx5_0\" on line 11")), "{messages:?}");
    let same = read("ib.txt", &FABRIC.replace("node0002 mlx5_0", "node0001 mlx5_0"));
    assert!(same.problems.iter().any(|p| p.message.contains("two adapters are named")));
}

#[test]
fn switches_with_one_name_stay_separate() {
    let report = read("ib.txt", &FABRIC.replace("leaf-2", "leaf-1"));
    assert_eq!(cables(&report, "node0003"), ["mlx5_3:2 leaf-1 (00000000000000a2) 7"]);
    assert_eq!(cables(&report, "node0001"), ["mlx5_0 leaf-1 (00000000000000a1) 1"]);
}

#[test]
fn unreadable_parts_of_a_fabric_leave_the_rest() {
    let report = read(
        "ib.txt",
        &format!("{FABRIC}[9]\t\"H-zz\"[1]\n[x\nSwitch\tnone\n[1]\t\"S-b\"[1] # \"q\" x\n"),
    );
    let malformed =
        report.problems.iter().filter(|p| p.kind == SourceProblemKind::Malformed).count();
    assert_eq!(malformed, 4, "{:?}", report.problems);
    assert_eq!(report.nodes.len(), 3);
    let lone = read("ib.txt", "Ca\t1 \"H-00c1\"\t\t# \"n1 HCA-1\"\n");
    assert_eq!(kinds(&lone), [SourceProblemKind::Incomplete]);
    assert_eq!(cables(&lone, "n1"), ["HCA-1 - -"]);
    let mixed = format!("{FABRIC}Ca\t : 0xc1 ports 1 devid 0x1021 vendid 0x2c9 \"n1 mlx5_0\"\n");
    assert!(kinds(&read("ib.txt", &mixed)).contains(&SourceProblemKind::Unsupported));
}

const LINKS: &str = "CA: node0001 mlx5_0:\n      0x00000000000000c1     10    1[  ] ==( 4X        106.25 Gbps Active/  LinkUp)==>       1    1[  ] \"MF0;leaf-1:MQM9700/U1\" ( )\n\
CA: node0001 mlx5_1:\n      0x00000000000000c9      0    1[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )\n\
Switch: 0x00000000000000a1 MF0;leaf-1:MQM9700/U1:\n           1    1[  ] ==( 4X        106.25 Gbps Active/  LinkUp)==>      10    1[  ] \"node0001 mlx5_0\" ( )\n           1    2[  ] ==( 4X        53.125 Gbps Active/  LinkUp)==>      11    1[  ] \"node0002 mlx5_0\" ( Could be 106.25 Gbps)\n           1    3[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )\n           1   33[  ] ==( 4X        106.25 Gbps Active/  LinkUp)==>       3    1[  ] \"MF0;spine-1:MQM9700/U1\" ( )\n\
Switch: 0x00000000000000b1 MF0;spine-1:MQM9700/U1:\n           3    1[  ] ==( 4X        106.25 Gbps Active/  LinkUp)==>       1   33[  ] \"MF0;leaf-1:MQM9700/U1\" ( )\n";

#[test]
fn links_include_state_and_rate() {
    assert!(recognises(LINKS));
    let report = read("links.txt", LINKS);
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert_eq!(cables(&report, "node0001"), ["mlx5_0 leaf-1 1", "mlx5_1 - -"]);
    let [up, down] = nics(&report, "node0001") else { panic!("{report:?}") };
    assert_eq!((up.state.as_deref(), up.rate_mbit_s), (Some("active"), Some(400_000)));
    assert_eq!(up.guid.as_deref(), Some("00000000000000c1"));
    assert_eq!(
        (down.state.as_deref(), down.guid.as_deref()),
        (Some("down"), Some("00000000000000c9"))
    );
    assert_eq!(nics(&report, "node0002")[0].rate_mbit_s, Some(200_000));
    assert_eq!(group(&report, "leaf-1").above, ["spine-1"]);
    let short = "0x00000000000000a1 \"x\"     1    1[  ] ==( 4X 106.25 Gbps Active/ LinkUp)==>  0x00000000000000c1 10 1[  ] \"n1 mlx5_0\" ( )\n";
    assert_eq!(kinds(&read("l", short)), [SourceProblemKind::Unsupported]);
    let twins = LINKS.replace("0x00000000000000b1 MF0;spine-1", "0x00000000000000b1 MF0;leaf-1");
    assert!(kinds(&read("l", &twins)).contains(&SourceProblemKind::Contradictory));
}

const OWN: &str = "CA 'mlx5_0'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tNode GUID: 0xc1\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 400\n\t\tBase lid: 10\n\t\tPort GUID: 0x00000000000000c1\n\t\tLink layer: InfiniBand\n\
CA 'mlx5_1'\n\tNumber of ports: 2\n\tPort 1:\n\t\tState: Down\n\t\tRate: 40 (FDR10)\n\t\tPort GUID: 0x0000000000000000\n\tPort 2:\n\t\tState: Initializing\n\t\tRate: 2.5\n\t\tPort GUID: 0xc3\n";

#[test]
fn ibstat_ports_belong_to_the_node_of_their_file() {
    assert!(recognises(OWN));
    let report = read("run/nodes/n1/ibstat.txt", OWN);
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    let [first, second, third] = nics(&report, "n1") else { panic!("{report:?}") };
    assert_eq!((first.state.as_deref(), first.rate_mbit_s), (Some("active"), Some(400_000)));
    assert_eq!((second.guid.as_deref(), second.rate_mbit_s), (None, Some(40_000)));
    assert_eq!((third.device.as_deref(), third.rate_mbit_s), (Some("mlx5_1:2"), Some(2_500)));
    let unnamed = read("ibstat.txt", OWN);
    assert_eq!(kinds(&unnamed), [SourceProblemKind::Incomplete]);
    assert!(unnamed.nodes.is_empty());
    assert_eq!(nics(&read_for_node(Some(&"n2".into()), "ibstat.txt", OWN), "n2").len(), 3);
}

#[test]
fn a_host_list_gives_the_guids_of_each_host() {
    let text = "VM_hostname n1\n0xc1\nVM_hostname n2\nc2\nzz\nVM_hostname -x\nc3\n";
    assert!(recognises(text));
    let report = read("guids", text);
    assert_eq!(nics(&report, "n2")[0].guid.as_deref(), Some("00000000000000c2"));
    assert_eq!(report.nodes.len(), 2);
    assert_eq!(kinds(&report), [SourceProblemKind::Malformed; 2]);
}

const TEXT: &str = "-------------------------------------------------------------------------------\nLLDP neighbors:\n-------------------------------------------------------------------------------\n\
Interface:    eth1, via: LLDP, RID: 1, Time: 0 day, 00:01:00\n  Chassis:     \n    ChassisID:    mac 50:00:00:00:00:01\n    SysName:      leaf-1\n    SysDescr:     a switch\n                  of two lines\n    Capability:   Bridge, on\n    Capability:   Router, off\n  Port:        \n    PortID:       ifname Ethernet1/7\n    PortDescr:    to node0001\n    TTL:          120\n\
-------------------------------------------------------------------------------\n\
Interface:    eth2.100, via: LLDP, RID: 2, Time: 0 day, 00:01:00\n  Chassis:     \n    ChassisID:    mac 50:00:00:00:00:02\n  Port:        \n    PortID:       mac 50:00:00:00:00:22\n    PortDescr:    Ethernet9\n\
-------------------------------------------------------------------------------\n";

const KEYS: &str = "lldp.eth1.via=LLDP\nlldp.eth1.rid=1\nlldp.eth1.age=0 day, 00:01:00\nlldp.eth1.chassis.mac=50:00:00:00:00:01\nlldp.eth1.chassis.name=leaf-1\nlldp.eth1.chassis.descr=a switch\nof two lines\nlldp.eth1.chassis.Bridge.enabled=on\nlldp.eth1.port.ifname=Ethernet1/7\nlldp.eth1.port.descr=to node0001\n\
lldp.eth2.100.via=LLDP\nlldp.eth2.100.chassis.mac=50:00:00:00:00:02\nlldp.eth2.100.port.mac=50:00:00:00:00:22\nlldp.eth2.100.port.descr=Ethernet9\n";

const JSON: &str = r#"{ "lldp": { "interface": [
  { "eth1": { "via": "LLDP", "rid": "1", "age": "0 day, 00:01:00",
    "chassis": { "leaf-1": { "id": { "type": "mac", "value": "50:00:00:00:00:01" },
      "capability": [ { "type": "Bridge", "enabled": true }, { "type": "Router", "enabled": false } ] } },
    "port": { "id": { "type": "ifname", "value": "Ethernet1/7" }, "descr": "to node0001", "ttl": "120" } } },
  { "eth2.100": { "via": "LLDP", "rid": "2", "age": "0 day, 00:01:00",
    "chassis": { "id": { "type": "mac", "value": "50:00:00:00:00:02" } },
    "port": { "id": { "type": "mac", "value": "50:00:00:00:00:22" }, "descr": "Ethernet9" } } } ] } }"#;

const JSON0: &str = r#"{ "lldp": [ { "interface": [
  { "name": "eth1", "via": "LLDP", "rid": "1", "age": "0 day, 00:01:00",
    "chassis": [ { "id": [ { "type": "mac", "value": "50:00:00:00:00:01" } ], "name": [ { "value": "leaf-1" } ],
      "capability": [ { "type": "Bridge", "enabled": true } ] } ],
    "port": [ { "id": [ { "type": "ifname", "value": "Ethernet1/7" } ], "descr": [ { "value": "to node0001" } ] } ] },
  { "name": "eth2.100", "via": "LLDP",
    "chassis": [ { "id": [ { "type": "mac", "value": "50:00:00:00:00:02" } ] } ],
    "port": [ { "id": [ { "type": "mac", "value": "50:00:00:00:00:22" } ], "descr": [ { "value": "Ethernet9" } ] } ] } ] } ] }"#;

#[test]
fn the_same_neighbours_read_the_same_in_every_format() {
    for text in [TEXT, KEYS, JSON, JSON0] {
        assert!(recognises(text), "{text}");
        let report = read("nodes/n1/lldp", text);
        assert!(report.problems.is_empty() && report.groups.is_empty(), "{text}: {report:?}");
        assert_eq!(
            cables(&report, "n1"),
            ["eth1 leaf-1 Ethernet1/7", "eth2.100 50:00:00:00:00:02 Ethernet9"],
            "{text}"
        );
        assert_eq!(nics(&report, "n1")[0].at.as_deref(), Some("nodes/n1/lldp: eth1"));
    }
}

#[test]
fn a_single_neighbour_is_unwrapped_and_none_is_valid() {
    let one = r#"{"lldp":{"interface":{"eth0":{"chassis":{"sw":{"id":{"type":"mac","value":"m"}}},"port":{"id":{"type":"local","value":"7"}}}}}}"#;
    assert_eq!(cables(&read("nodes/n1/x", one), "n1"), ["eth0 sw 7"]);
    for none in [r#"{"lldp":{}}"#, r#"{ "lldp": [ {} ] }"#, "LLDP neighbors:\n"] {
        assert!(recognises(none));
        let report = read("nodes/n1/x", none);
        assert!(report.problems.is_empty() && report.notes.len() == 1, "{none}");
    }
}

#[test]
fn a_neighbour_other_than_a_switch_is_not_a_leaf_and_two_are_a_contradiction() {
    let host = TEXT.replace("Bridge, on", "Station, on");
    let report = read("nodes/n1/x", &host);
    assert_eq!(cables(&report, "n1").len(), 1);
    assert!(
        report.notes[0].contains("does not advertise itself as a switch"),
        "{:?}",
        report.notes
    );
    let both = format!("{KEYS}lldp.eth1.via=LLDP\nlldp.eth1.chassis.name=leaf-9\n");
    let report = read("nodes/n1/x", &both);
    assert_eq!(kinds(&report), [SourceProblemKind::Contradictory]);
    assert!(
        report.problems[0].message.contains("\"leaf-1\" and \"leaf-9\""),
        "{:?}",
        report.problems
    );
}

#[test]
fn broken_documents_are_reported_with_their_position() {
    let cut = read("nodes/n1/x", &JSON[..JSON.len() - 8]);
    assert_eq!(kinds(&cut), [SourceProblemKind::Malformed]);
    assert!(
        cut.problems[0].at.as_deref().is_some_and(|at| at.starts_with("nodes/n1/x:8:")),
        "{cut:?}"
    );
    // As lldpd writes a line end inside a description.
    let raw = JSON.replace("to node0001", "to\\\nnode0001");
    assert!(read("nodes/n1/x", &raw).problems.is_empty());
    assert_eq!(kinds(&read("x", "nothing of the kind")), [SourceProblemKind::Unsupported]);
}

#[test]
fn adapters_of_one_description_on_several_ports_are_several() {
    let up = "==( 4X        106.25 Gbps Active/  LinkUp)==>";
    let (sharp, bare) =
        ("Mellanox Technologies Aggregation Node", "MT4129 ConnectX7   Mellanox Technologies");
    let mut text = LINKS.to_owned();
    for at in [2, 3] {
        text += &format!(
            "CA: {sharp}:\n      0x00000000000000d{at}  4  1[  ] {up}  {at} 65[  ] \"leaf-{at}\" ( )\n\
             Switch: 0x00000000000000a{at} leaf-{at}:\n      {at}  1[  ] {up}  9  1[  ] \"{bare}\" ( )\n\
                   {at} 65[  ] {up}  4  1[  ] \"{sharp}\" ( )\n"
        );
    }
    let report = read("links.txt", &text);
    assert_eq!(kinds(&report), [SourceProblemKind::Incomplete], "{:?}", report.problems);
    assert!(report.problems[0].message.starts_with("2 cabled adapters"), "{:?}", report.problems);
}
