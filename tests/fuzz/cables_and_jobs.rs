//! Fuzz targets for cabling files, LLDP neighbours, frameworks and jobs: for any text, a reader
//! returns a sound report or names the error.

use model::source_report::SourceReport;
use readers::claims::{cabling, job, nccl_topology, neighbours, ray};

use super::dice::Dice;
use super::fuzz;
use super::mutation::mutate;

/// Invariants of every reader's report.
fn is_sound(report: &SourceReport) {
    let shown = |text: &str| !text.is_empty() && !text.contains(|c: char| c.is_control());
    assert!(report.problems.len() <= 201, "{} problems", report.problems.len());
    for problem in &report.problems {
        assert!(shown(&problem.message), "{problem:?}");
        assert!(problem.at.as_deref().is_none_or(|at| at.starts_with("nodes/n1/f")), "{problem:?}");
    }
    assert!(report.notes.iter().all(|note| shown(note)), "{:?}", report.notes);
    for group in &report.groups {
        assert!(shown(&group.name) && group.at.is_some(), "{group:?}");
        let mut once = group.nodes.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), group.nodes.len(), "{group:?}");
    }
    for (name, node) in &report.nodes {
        assert!(!name.as_str().is_empty() && !name.as_str().starts_with(['-', '.']), "{name}");
        assert!(!name.as_str().contains(['/', ' ', '\0', '\n']), "{name}");
        for nic in &node.nics {
            let words = [&nic.device, &nic.rail, &nic.leaf, &nic.port, &nic.guid, &nic.state];
            assert!(words.into_iter().flatten().all(|word| shown(word)), "{nic:?}");
        }
    }
    assert!(report.beliefs.iter().all(|belief| shown(&belief.text)), "{:?}", report.beliefs);
}

/// One reader, with mutations of texts that it reads.
fn reader(
    target: &'static str,
    own: &[&str],
    tokens: &'static [&'static str],
    recognises: fn(&str) -> bool,
    read: fn(&str, &str) -> SourceReport,
) {
    for good in own {
        assert!(recognises(good), "{target}: {good}");
        is_sound(&read("nodes/n1/f", good));
    }
    let own: Vec<Vec<u8>> = own.iter().map(|text| text.as_bytes().to_vec()).collect();
    let make = move |dice: &mut Dice| mutate(dice, &own, &own, tokens);
    fuzz(target, 600, make, move |bytes| {
        let text = String::from_utf8_lossy(bytes);
        recognises(&text);
        let report = read("nodes/n1/f", &text);
        is_sound(&report);
        assert_eq!(report, read("nodes/n1/f", &text), "the same text reads the same");
    });
}

#[test]
fn cabling_files_give_sound_reports() {
    const TOKENS: &[&str] = &[
        ",",
        ";",
        "\t",
        "\"",
        "\"\"",
        "#",
        "\r\n",
        "\r",
        "\u{feff}",
        "node",
        "n[1-9]",
        "n[1-100000]",
        "port",
        "rail",
        "[[node]]",
        "[[node.nic]]",
        "[[leaf]]",
        "name = 1",
        "leaf = \"a\"",
        "\0",
    ];
    let own = [
        include_str!("../../examples/cabling.csv"),
        "Node;Leaf;Port;Owner\r\n\"n[1-3]\";l1;;x\r\nn4;l1;7;y\r\n",
        "[[leaf]]\nname = \"l\"\nrail = 0\nnodes = \"n[1-2]\"\n[[node]]\nname = \"n1\"\nrack = \"r\"\n\
         slot = 1\n[[node.nic]]\nrail = 0\nleaf = \"l\"\nport = \"1/1\"\ndevice = \"eth1\"\n",
    ];
    reader("cabling", &own, TOKENS, cabling::recognises, cabling::read);
}

#[test]
fn lldp_neighbours_give_sound_reports() {
    const TOKENS: &[&str] = &[
        "[1]",
        "[4294967296]",
        "\"H-00000000000000c1\"",
        "\"S-00000000000000a1\"",
        "Switch\t65 ",
        "Ca\t1 ",
        "# \"node0001 mlx5_0\" lid 1 4xNDR",
        "# \"",
        "(c1)",
        "[ext 1]",
        "==(",
        ")==>",
        "Down/ Polling",
        "CA: ",
        "Switch: 0xa1 x:",
        "lldp.eth0.via=LLDP\n",
        "lldp..chassis.name=x",
        "\"lldp\"",
        "Interface: a, via: b",
        "PortID: mac ",
        "SysName:",
        "CA 'mlx5_0'",
        "Port 1:",
        "Port GUID:",
        "VM_hostname ",
        "\0",
        "\u{1b}[0m",
    ];
    let own = [
        "Switch\t65 \"S-00000000000000a1\"\t\t# \"MF0;leaf:M/U1\" enhanced port 0 lid 1 lmc 0\n\
         [1]\t\"H-00000000000000c1\"[1](c1) \t\t# \"n1 mlx5_0\" lid 10 4xNDR\n\
         [33]\t\"S-00000000000000b1\"[1]\t\t# \"MF0;spine:M/U1\" lid 3 4xNDR\n\
         Ca\t1 \"H-00000000000000c1\"\t\t# \"n1 mlx5_0\"\n\
         [1](c1) \t\"S-00000000000000a1\"[1]\t\t# lid 10 lmc 0 \"MF0;leaf:M/U1\" lid 1 4xNDR\n",
        "CA: n1 mlx5_0:\n      0x00c1     10    1[  ] ==( 4X        106.25 Gbps Active/  LinkUp)==>       1    1[  ] \"leaf\" ( )\n\
         Switch: 0x00a1 leaf:\n           1    2[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )\n",
        "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tRate: 400\n\t\tPort GUID: 0xc1\n",
        "VM_hostname n1\n0xc1\n",
        "lldp.eth1.via=LLDP\nlldp.eth1.chassis.name=sw\nlldp.eth1.port.ifname=E1\nlldp.eth1.chassis.Bridge.enabled=on\n",
        "{\"lldp\":{\"interface\":[{\"eth1\":{\"chassis\":{\"sw\":{\"id\":{\"type\":\"mac\",\"value\":\"m\"}}},\
         \"port\":{\"id\":{\"type\":\"ifname\",\"value\":\"E1\"}}}}]}}",
        "{\"lldp\":[{\"interface\":[{\"name\":\"eth1\",\"chassis\":[{\"id\":[{\"type\":\"mac\",\"value\":\"m\"}],\
         \"name\":[{\"value\":\"sw\"}]}],\"port\":[{\"id\":[{\"type\":\"local\",\"value\":\"7\"}]}]}]}]}",
        "LLDP neighbors:\nInterface:    eth1, via: LLDP, RID: 1, Time: x\n  Chassis:\n    ChassisID:    mac m\n\
         \x20   SysName:      sw\n    Capability:   Bridge, on\n  Port:\n    PortID:       ifname E1\n",
    ];
    reader("neighbours", &own, TOKENS, neighbours::recognises, neighbours::read);
}

#[test]
fn ray_clusters_give_sound_reports() {
    const TOKENS: &[&str] = &[
        "\"topo_rank\": 1e308",
        "\"topo_rank\": -0",
        "null",
        "\"GPU\": 1e9",
        "\"raylet\": {",
        "\"data\": {",
        "[",
        "]",
        "{",
        "}",
        ",",
        "\"node_ip\": \"::1\"",
        "\"Alive\": false",
        "nvlink_domain_",
        "\\u0000",
        "1e400",
    ];
    let own = [
        "[{\"node_id\": \"i\", \"node_ip\": \"10.0.0.1\", \"node_name\": \"n1\", \"state\": \"ALIVE\", \
         \"resources_total\": {\"GPU\": 4.0, \"topo_rank\": 7, \
         \"nvlink_domain_11111111-2222-3333-4444-555555555555\": 1.0}}]",
        "{\"result\": true, \"data\": {\"summary\": [{\"hostname\": \"n1\", \"ip\": \"10.0.0.1\", \"raylet\": \
         {\"nodeId\": \"i\", \"state\": \"ALIVE\", \"resourcesTotal\": {\"GPU\": 4.0, \"nvlink_domain_x\": 1}}}]}}",
    ];
    reader("ray", &own, TOKENS, ray::recognises, ray::read);
}

#[test]
fn nccl_topologies_give_sound_reports() {
    const TOKENS: &[&str] = &[
        "<",
        ">",
        "/>",
        "</cpu>",
        "<cpu host_hash=\"0x2\">",
        "<gpu dev=\"1\"/>",
        "<nvlink count=\"-1\"/>",
        "<net name=\"a\" guid=\"0xffffffffffffffff\"/>",
        "<!DOCTYPE a [<!ENTITY b \"c\">]>",
        "&b;",
        "&#0;",
        "]]>",
        "<!--",
        "\"",
        "xmlns=\"\"",
    ];
    let own = [
        "<system version=\"1\">\n <cpu numaid=\"0\" host_hash=\"0x1\">\n  <pci busid=\"0000:18:00.0\">\n\
        <gpu dev=\"0\" sm=\"90\" rank=\"0\"><nvlink target=\"0000:05:00.0\" count=\"18\"/></gpu></pci>\n\
        <pci><nic><net name=\"mlx5_0\" dev=\"0\" speed=\"400000\" port=\"1\" guid=\"0xa87cb10003e1a258\" \
        rail=\"0\" plane=\"1\"/></nic></pci>\n </cpu>\n</system>\n",
    ];
    reader("nccl-topology", &own, TOKENS, nccl_topology::recognises, nccl_topology::read);
}

#[test]
fn jobs_give_sound_reports() {
    const TOKENS: &[&str] = &[
        "NCCL_MNNVL_ENABLE=1",
        "NCCL_CUMEM_ENABLE=0",
        "USE_MNNVL",
        "=",
        "$",
        "${X:-8}",
        "`",
        "'",
        "\"",
        "\\\n",
        ";",
        "#SBATCH ",
        "--segment=",
        "--nodelist n[1-4] ",
        "unset ",
        "- name: ",
        "  value: ",
        "---\n",
        "&a ",
        "*a",
        "!!x ",
        "{{ x }}",
        "valueFrom",
        "SLURM_JOB_NODELIST=n[1-100000]",
        "\0",
        "\t",
        ": |\n  ",
    ];
    let own = [
        include_str!("../../examples/job.sbatch"),
        "SLURM_JOB_NODELIST=n[1-2]\nNCCL_MNNVL_ENABLE=2\nSLURM_TOPOLOGY_ADDR=b.n1\nSLURM_TOPOLOGY_ADDR_PATTERN=block.node\n",
        "spec:\n  nodeName: n1\n  containers:\n  - env:\n    - name: USE_MNNVL\n      value: \"1\"\n\
         \x20   - {name: NCCL_MNNVL_UUID, valueFrom: {}}\n    command: [sh, -c, \"NVLINK_DOMAIN_SIZE=72 x\"]\n",
        "{\"env\": [{\"name\": \"NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN\", \"value\": \"8\"}]}",
    ];
    reader("job", &own, TOKENS, job::recognises, job::read);
}
