//! Whole fleets as every source reports them, in full agreement: no node may be blamed. Then one
//! defect at a time: found, with both sides, on its node.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{Place, disagreements};

const RACKS: [&str; 2] =
    ["aaaaaaaa-0000-4000-8000-000000000001", "bbbbbbbb-0000-4000-8000-000000000002"];

/// A machine, and every source's claims about it.
#[derive(Clone)]
struct Machine {
    name: String,
    /// Its name in Kubernetes, where it has one.
    kubernetes: Option<String>,
    address: String,
    gpus: u32,
    /// As GPU feature discovery writes it.
    product: &'static str,
    /// The type in Slurm's `Gres=`.
    gres: &'static str,
    /// Clique by the driver.
    clique: Option<String>,
    /// Clique by the label.
    label: Option<String>,
    block: Option<usize>,
    rack: String,
    slot: usize,
    leaves: Vec<String>,
    driver: &'static str,
    state: &'static [&'static str],
    /// Additional labels.
    labels: Value,
    /// GPUs by the driver.
    seen: u32,
}

fn gb200() -> Vec<Machine> {
    let one = |at: usize| {
        let rack = at / 18;
        let clique = Some(format!("{}.1", RACKS[rack]));
        Machine {
            name: format!("gb{:03}", at + 1),
            kubernetes: Some(format!("gb{:03}", at + 1)),
            address: format!("10.1.{rack}.{}", at % 18 + 10),
            gpus: 4,
            product: "NVIDIA-GB200",
            gres: "gb200",
            clique: clique.clone(),
            label: clique,
            block: Some(rack),
            rack: format!("182122519004{rack}"),
            slot: at % 18 + 1,
            leaves: (0..4).map(|rail| format!("leaf-r{rail}")).collect(),
            driver: "580.95.05",
            state: &["IDLE"],
            labels: json!({}),
            seen: 4,
        }
    };
    (0..36).map(one).collect()
}

/// 32 servers in two units of eight leaves; Kubernetes uses their fully qualified names.
fn hgx() -> Vec<Machine> {
    let one = |at: usize| Machine {
        name: format!("h{:03}", at + 1),
        kubernetes: Some(format!("h{:03}.cluster.example.com", at + 1)),
        address: format!("10.2.0.{}", at + 10),
        gpus: 8,
        product: "NVIDIA-H100-80GB-HBM3",
        gres: "h100",
        clique: None,
        label: None,
        block: None,
        rack: format!("r{:02}", at / 4 + 1),
        slot: at % 4 + 1,
        leaves: (1..=8).map(|leaf| format!("su{}-leaf{leaf}", at / 16 + 1)).collect(),
        driver: "580.95.05",
        state: &["IDLE"],
        labels: json!({}),
        seen: 8,
    };
    (0..32).map(one).collect()
}

/// Machines without GPUs: login nodes are in Slurm only.
fn plain() -> Vec<Machine> {
    let one = |at: usize| Machine {
        name: format!("cpu{at:02}"),
        kubernetes: (2 < at).then(|| format!("cpu{at:02}")),
        address: format!("10.3.0.{at}"),
        gpus: 0,
        product: "",
        gres: "",
        rack: "infra".to_owned(),
        slot: at,
        leaves: Vec::new(),
        seen: 0,
        ..hgx()[0].clone()
    };
    (1..=6).map(one).collect()
}

fn names<'m>(fleet: impl IntoIterator<Item = &'m Machine>) -> String {
    fleet.into_iter().map(|m| m.name.as_str()).collect::<Vec<_>>().join(",")
}

fn block_names(fleet: &[Machine]) -> [String; 2] {
    [0, 1].map(|block| names(fleet.iter().filter(|m| m.block == Some(block))))
}

/// Slurm's file with these blocks, and an empty one for a future rack.
fn topology_yaml(fleet: &[Machine]) -> String {
    let mut text =
        "- topology: nvl\n  cluster_default: true\n  block:\n    block_sizes: [16]\n    \
        blocks:\n"
            .to_owned();
    for (at, nodes) in block_names(fleet).iter().enumerate() {
        let _ = write!(text, "      - block: b{at}\n        nodes: {nodes}\n");
    }
    text + "      - block: b2\n"
}

fn topology_in_force(fleet: &[Machine]) -> String {
    let lines = block_names(fleet).into_iter().enumerate();
    let line =
        |(at, nodes)| format!("BlockName=b{at} BlockIndex={at} Nodes={nodes} BlockSize=16\n");
    lines.map(line).collect()
}

fn tree() -> String {
    let leaf = |at: usize| format!("SwitchName=l{at} Nodes=h[{:03}-{:03}]\n", at * 8 - 7, at * 8);
    "SwitchName=spine Switches=l[1-4]\n".to_owned() + &(1..=4).map(leaf).collect::<String>()
}

fn slurm_nodes(fleet: &[Machine]) -> Value {
    let number = |number: u32| json!({"set": true, "infinite": false, "number": number});
    let one = |m: &Machine| {
        let gres =
            if m.gpus == 0 { String::new() } else { format!("gpu:{}:{}(S:0-1)", m.gres, m.gpus) };
        json!({
            "name": m.name, "hostname": m.name, "address": m.address, "gres": gres,
            "state": m.state, "reason": if m.state.len() == 1 { "" } else { "xid 79" },
            "partitions": ["batch"], "boot_time": number(1_795_233_403), "features": [],
            "active_features": [], "cpus": 144, "real_memory": 1_000_000, "version": "25.05.3",
        })
    };
    let nodes: Vec<Value> = fleet.iter().map(one).collect();
    json!({"nodes": nodes, "last_update": number(1_795_237_192), "meta": {"slurm": {"release": "25.05.3", "cluster": "prod"}}, "errors": [], "warnings": []})
}

fn kubernetes_nodes(fleet: &[Machine]) -> Value {
    let one = |m: &Machine| {
        let name = m.kubernetes.as_ref()?;
        let mut labels = json!({"kubernetes.io/hostname": name});
        let mut capacity = json!({"cpu": "144"});
        if 0 < m.gpus {
            labels["nvidia.com/gpu.present"] = json!("true");
            labels["nvidia.com/gpu.product"] = json!(m.product);
            labels["nvidia.com/gpu.count"] = json!(m.gpus.to_string());
            labels["nvidia.com/cuda.driver-version.full"] = json!(m.driver);
            capacity["nvidia.com/gpu"] = json!(m.gpus.to_string());
        }
        if let Some(clique) = &m.label {
            labels["nvidia.com/gpu.clique"] = json!(clique);
        }
        for (key, value) in m.labels.as_object().expect("labels") {
            labels[key] = value.clone();
        }
        Some(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
            "spec": {},
            "status": {
                "capacity": capacity, "allocatable": capacity,
                "conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [
                    {"type": "InternalIP", "address": m.address},
                    {"type": "Hostname", "address": name},
                ],
            },
        }))
    };
    let items: Vec<Value> = fleet.iter().filter_map(one).collect();
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// One ComputeDomain over these machines.
fn compute_domain(members: &[Machine]) -> Value {
    let one = |(at, m): (usize, &Machine)| {
        json!({
            "name": m.kubernetes, "cliqueID": m.clique.clone().unwrap_or_default(),
            "ipAddress": m.address, "index": at, "status": "Ready",
        })
    };
    let nodes: Vec<Value> = members.iter().enumerate().map(one).collect();
    json!({"apiVersion": "v1", "kind": "List", "items": [{
        "apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain",
        "metadata": {"name": "job", "namespace": "train", "uid": "u-1"},
        "spec": {"numNodes": nodes.len()}, "status": {"status": "Ready", "nodes": nodes},
    }]})
}

fn port(at: usize) -> String {
    format!("1/{}", at + 1)
}

fn cabling(fleet: &[Machine]) -> String {
    let mut text = "node,rack,slot,rail,device,leaf,port\n".to_owned();
    for (at, m) in fleet.iter().enumerate() {
        for (rail, leaf) in m.leaves.iter().enumerate() {
            let (name, rack, slot, port) = (&m.name, &m.rack, m.slot, port(at));
            let _ = writeln!(text, "{name},{rack},{slot},rail{rail},mlx5_{rail},{leaf},{port}");
        }
    }
    text
}

/// Facts of nodes and LLDP data of their switches, a line each.
fn facts(fleet: &[Machine]) -> String {
    let one = |(at, m): (usize, &Machine)| {
        let fabric = match m.clique.as_deref().and_then(|clique| clique.split_once('.')) {
            Some((uuid, id)) => json!({
                "state": "completed", "status": "success", "cluster_uuid": uuid,
                "clique_id": id.parse::<u32>().expect("a number"), "source": "driver",
            }),
            None => json!({
                "state": "completed", "status": "success", "clique_id": 0, "source": "driver",
                "cluster_uuid": "00000000-0000-0000-0000-000000000000",
            }),
        };
        let gpus: Vec<Value> = (0..m.seen)
            .map(|gpu| {
                let mut gpu = json!({
                    "index": gpu, "product": m.product.replace('-', " "), "fabric": fabric,
                });
                if m.clique.is_some() {
                    gpu["platform"] = json!({"chassis_serial": m.rack, "slot": m.slot});
                }
                gpu
            })
            .collect();
        let rails = || m.leaves.iter().enumerate();
        let nics: Vec<Value> = rails()
            .map(|(rail, _)| {
                json!({
                    "device": format!("mlx5_{rail}"), "rdma": true, "port": 1,
                    "net_devices": [format!("eth{rail}")], "state": "active",
                })
            })
            .collect();
        let neighbours: Vec<Value> = rails()
            .map(|(rail, leaf)| {
                let port = format!("Ethernet{}", port(at));
                json!({"device": format!("eth{rail}"), "switch": leaf, "port": port})
            })
            .collect();
        let facts = json!({
            "format": "fabricgate.node-facts/1", "hostname": m.name,
            "driver": {"version": m.driver}, "gpus": gpus, "nics": nics, "neighbours": neighbours,
        });
        json!({"node": m.name, "facts": facts}).to_string() + "\n"
    };
    fleet.iter().enumerate().map(one).collect()
}

fn ray(fleet: &[Machine]) -> Value {
    let one = |(at, m): (usize, &Machine)| {
        let mut resources = json!({"CPU": 144.0, "GPU": f64::from(m.gpus)});
        if let Some((uuid, _)) = m.clique.as_deref().and_then(|clique| clique.split_once('.')) {
            resources[format!("nvlink_domain_{uuid}")] = json!(1.0);
            resources["topo_rank"] = json!(at + 1);
        }
        json!({
            "node_id": format!("{at:056x}"), "node_ip": m.address, "node_name": m.address,
            "hostname": m.name, "state": "ALIVE", "resources_total": resources,
        })
    };
    fleet.iter().enumerate().map(one).collect::<Vec<_>>().into()
}

/// All sources' claims about a fleet, in files.
fn sources_of(fleet: &[Machine]) -> Place {
    let place = Place::new();
    let with_gpus: Vec<Machine> = fleet.iter().filter(|m| 0 < m.gpus).cloned().collect();
    let placed: Vec<Machine> = fleet.iter().filter(|m| m.block.is_some()).cloned().collect();
    if !placed.is_empty() {
        place.put("topology.yaml", &topology_yaml(fleet));
        place.put("in-force.txt", &topology_in_force(fleet));
        place.put("domains.json", &compute_domain(&placed[..4]).to_string());
    } else {
        place.put("topology.conf", &tree());
    }
    place.put("slurm.json", &slurm_nodes(fleet).to_string());
    place.put("kubernetes.json", &kubernetes_nodes(fleet).to_string());
    place.put("cabling.csv", &cabling(&with_gpus));
    place.put("facts.jsonl", &facts(&with_gpus));
    place.put("ray.json", &ray(&with_gpus).to_string());
    place
}

/// Class, severity and nodes of every disagreement above a remark.
fn blamed(claims: &Value) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let nodes = |one: &Value| {
        let nodes = one["nodes"].as_array().cloned().unwrap_or_default();
        nodes.iter().map(text).collect::<Vec<_>>().join(",")
    };
    let all = disagreements(claims);
    let all = all.iter().filter(|one| one["severity"] != "note");
    all.map(|one| (text(&one["class"]), text(&one["severity"]), nodes(one))).collect()
}

/// No node is blamed, and every machine with GPUs has a platform.
fn agrees(fleet: &[Machine], what: &str) -> Value {
    let claims = sources_of(fleet).claims(&["."], 0);
    assert_eq!(blamed(&claims), [], "{what}: {}", claims["disagreements"]);
    for source in claims["sources"].as_array().expect("sources") {
        assert!(source["problems"].is_null(), "{what}: {source}");

        assert_ne!(source["kind"], "unrecognised", "{what}: {source}");
    }
    for domain in claims["domains"].as_array().expect("domains") {
        assert!(domain["platform"].is_string(), "{what}: {domain}");
    }
    claims
}

#[test]
fn fleets_with_consistent_sources_blame_no_node() {
    let claims = agrees(&gb200(), "two racks");
    assert_eq!(claims["domains"].as_array().expect("domains").len(), 2);
    let claims = agrees(&hgx(), "servers");
    assert_eq!(claims["domains"].as_array().expect("domains").len(), 32);
    assert_eq!(claims["domains"][0]["platform"], "hgx-h100");
    let all: Vec<Machine> = gb200().into_iter().chain(hgx()).chain(plain()).collect();
    let place = sources_of(&all);
    let with_tree = super::fs::read_to_string(place.path("topology.yaml")).expect("read");
    let tree = "- topology: tree\n  cluster_default: false\n  tree:\n    switches:\n      \
        - switch: spine\n        children: l1\n      - switch: l1\n        nodes: h[001-032]\n";
    place.put("topology.yaml", &(with_tree + tree));
    // Ray runs on the racks only.
    place.put("ray.json", &ray(&all[..36]).to_string());
    let claims = place.claims(&["."], 0);
    assert_eq!(blamed(&claims), [], "{}", claims["disagreements"]);
}

#[test]
fn nodes_in_repair_slices_and_racks_with_the_default_clique_blame_no_node() {
    let mut repair = gb200();
    repair[3].state = &["IDLE", "DRAIN"];
    repair[20].state = &["DOWN", "NOT_RESPONDING"];
    repair[20].kubernetes = None;
    agrees(&repair, "a drained node, and one in repair");
    let mut sliced = hgx();
    for m in &mut sliced[..4] {
        m.labels = json!({
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb",
            "nvidia.com/gpu.count": "56", "nvidia.com/mig.strategy": "single",
        });
    }
    for m in &mut sliced[4..8] {
        m.labels = json!({
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED",
            "nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/gpu.replicas": "4",
        });
    }
    agrees(&sliced, "GPUs that are cut or shared");
    let mut default = gb200();
    for m in &mut default {
        m.clique = m.clique.as_ref().map(|clique| format!("{clique}.").replace(".1.", ".32766"));
        m.label.clone_from(&m.clique);
    }
    agrees(&default, "CliqueId 32766 under a ClusterUUID for each rack");
    let mut whole = gb200();
    whole.iter_mut().for_each(|m| m.kubernetes = Some(format!("{}.dc1.example.com", m.name)));
    agrees(&whole, "whole names in Kubernetes");
    let mut foreign = gb200();
    foreign.iter_mut().for_each(|m| m.kubernetes = Some(m.address.replace('.', "-")));
    agrees(&foreign, "other names in Kubernetes, at the same addresses");
    let mut turned = gb200();
    turned.iter_mut().for_each(|m| m.block = m.block.map(|block| 1 - block));
    agrees(&turned, "blocks in another order");
}

/// The effect of one change of two racks on their claims.
fn after(change: impl FnOnce(&mut Vec<Machine>), code: i32) -> Vec<(String, String, String)> {
    let mut fleet = gb200();
    change(&mut fleet);
    let place = sources_of(&fleet);
    let claims = place.claims(&["."], code);
    for one in disagreements(&claims) {
        assert!(!one["sides"].as_array().expect("sides").is_empty(), "{one}");
        assert!(one["remedy"].is_string(), "{one}");
    }
    blamed(&claims)
}

fn one(class: &str, severity: &str, nodes: &str) -> Vec<(String, String, String)> {
    vec![(class.to_owned(), severity.to_owned(), nodes.to_owned())]
}

#[test]
fn one_defect_is_reported_once_and_on_its_node() {
    let bad = "contradiction";
    let other = format!("{}.1", RACKS[1]);
    let stale = after(|fleet| fleet[4].label = Some(other.clone()), 3);
    assert_eq!(stale, one("stale-label", bad, "gb005"));
    let unlabelled = after(|fleet| fleet[4].label = None, 0);
    assert_eq!(unlabelled, one("label-missing", "doubt", "gb005"));
    let lost = after(|fleet| fleet[7].seen = 3, 3);
    assert_eq!(lost, one("gpu-count", bad, "gb008"));
    // The scheduler runs without it, so all sources agree.
    let written_off = after(|fleet| (fleet[7].seen, fleet[7].gpus) = (3, 3), 0);
    assert_eq!(written_off, one("gpu-count", "doubt", "gb008"));
    let old = after(|fleet| fleet[7].driver = "570.86.15", 0);
    assert_eq!(old, one("driver-mixed", "doubt", "gb008"));
    let foreign = after(|fleet| (fleet[3].product, fleet[3].gres) = ("NVIDIA-GB300", "gb300"), 3);
    assert_eq!(foreign, one("product-mixed", bad, "gb004"));
}

#[test]
fn two_nodes_swapped_between_blocks_are_reported_without_the_others() {
    let swapped = after(|fleet| (fleet[5].block, fleet[22].block) = (Some(1), Some(0)), 3);
    let nodes = |class: &str| -> Vec<&str> {
        swapped.iter().filter(|one| one.0 == class).map(|one| one.2.as_str()).collect()
    };
    assert_eq!(nodes("block-against-clique"), ["gb023", "gb006"]);
    assert_eq!(nodes("rack-against-domain"), ["gb023", "gb006"]);
    assert_eq!(nodes("topo-rank-order"), ["gb006,gb023"]);
    assert_eq!(swapped.len(), 5, "{swapped:?}");
}

#[test]
fn a_misspelt_name_in_the_topology_is_reported_as_such() {
    let place = sources_of(&gb200());
    for file in ["topology.yaml", "in-force.txt"] {
        let text = super::fs::read_to_string(place.path(file)).expect("read");
        place.put(file, &text.replace("gb018", "gb118"));
    }
    let named = blamed(&place.claims(&["."], 0));
    let classes: Vec<(&str, &str)> = named.iter().map(|t| (t.0.as_str(), t.2.as_str())).collect();
    assert_eq!(classes, [("node-extra", "gb018"), ("unknown-to-scheduler", "gb118")]);
}

#[test]
fn wrong_cables_and_ranks_are_reported_with_their_hosts() {
    let place = sources_of(&gb200());
    let text = super::fs::read_to_string(place.path("cabling.csv")).expect("read");
    place.put("cabling.csv", &text.replace("leaf-r2,1/5\n", "leaf-r1,1/50\n"));
    let cable = blamed(&place.claims(&["."], 3));
    assert_eq!(cable, one("leaf-against-neighbour", "contradiction", "gb005"));
    let swap = text.replace("gb005", "gb00x").replace("gb006", "gb005").replace("gb00x", "gb006");
    let swap = swap.replace("gb006,1821225190040,5", "gb006,1821225190040,6.");
    let swap = swap.replace("gb005,1821225190040,6,", "gb005,1821225190040,5,");
    place.put("cabling.csv", &swap.replace(",6.,", ",6,"));
    let hosts = blamed(&place.claims(&["."], 3));
    assert_eq!(hosts, one("hosts-swapped", "contradiction", "gb005,gb006"));
    place.put("cabling.csv", &text);
    let text = super::fs::read_to_string(place.path("ray.json")).expect("read");
    place.put("ray.json", &text.replace("\"topo_rank\":7}", "\"topo_rank\":6}"));
    let ranks = blamed(&place.claims(&["."], 3));
    assert_eq!(ranks, one("topo-rank-duplicate", "contradiction", "gb006,gb007"));
    place.put("ray.json", &text.replace("\"topo_rank\":7}", "\"topo_rank\":77}"));
    let order = blamed(&place.claims(&["."], 0));
    assert_eq!(order, one("topo-rank-order", "doubt", "gb007"));
}

#[test]
fn half_a_rack_as_a_block_is_a_doubt_and_a_moved_cable_its_host() {
    // Labels and drivers report that both halves reach each other, and so does Ray.
    let place = sources_of(&gb200()[..18]);
    let halves = "BlockName=b0 Nodes=gb[001-009]\nBlockName=b1 Nodes=gb[010-018]\nBlockSizes=8\n";
    place.put("topology.conf", halves);
    let files = ["topology.conf", "kubernetes.json", "facts.jsonl", "ray.json", "slurm.json"];
    let found = blamed(&place.claims(&files, 0));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].0.as_str(), found[0].1.as_str()), ("merged-cliques", "doubt"));
    let place = sources_of(&hgx());
    let text = super::fs::read_to_string(place.path("cabling.csv")).expect("read");
    place.put("cabling.csv", &text.replace("mlx5_2,su1-leaf3,1/5\n", "mlx5_2,su2-leaf3,1/50\n"));
    let cable = blamed(&place.claims(&["."], 3));
    assert_eq!(cable, one("leaf-against-neighbour", "contradiction", "h005"));
}

#[test]
fn sources_that_are_read_twice_count_once() {
    let place = sources_of(&gb200());
    place.put("domains-again.json", &compute_domain(&gb200()[..4]).to_string());
    let claims = place.claims(&[".", "topology.yaml", "./domains.json"], 0);
    assert_eq!(blamed(&claims), []);
    assert_eq!(claims["sources"].as_array().expect("sources").len(), 9);
}

#[test]
fn a_missing_token_hides_no_other_source() {
    let place = sources_of(&gb200());
    place.put(
        "fabricgate.toml",
        "claims = \"topology.yaml\"\n[sources.slurmrestd]\naddress = \"unix:/none\"\n\
         token_file = \"none\"\n",
    );
    let claims = place.claims(&["--config", "fabricgate.toml"], 4);
    assert_eq!(super::of_domain(&claims, "b0").len(), 18);
    assert!(claims["sources"].to_string().contains("token_file"), "{}", claims["sources"]);
}
