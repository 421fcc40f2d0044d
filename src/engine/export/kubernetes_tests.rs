//! The output of the Kubernetes and Ray targets for a simulated map, and its invariants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{ExportOptions, find_target};
use crate::place::map::{
    DomainBasis, MapDomain, MapGpu, MapMember, MapOrigin, MeasuredReach, VerifiedMap,
};
use crate::place::strength_matrix::StrengthMatrix;
use model::finding_class::FindingClass;
use model::id::NodeName;
use model::measured_cell::MeasuredCell;
use model::unit::Unit;
use model::verdict::Outcome;

fn uuid(node: u32, gpu: u32) -> String {
    format!("GPU-{node:08}-0000-0000-0000-{gpu:012}")
}

fn node(number: u32) -> NodeName {
    NodeName::from(format!("n{number}").as_str())
}

/// Ten nodes: 1 and 2 verified in `rack a/1`, 10 degraded there by its GPU 1; 3 passed
/// and is alone in `b`; 4 claimed for `b` and never measured; 5 failed in `b`.
fn map() -> VerifiedMap {
    let names =
        |numbers: &[u32]| -> BTreeSet<NodeName> { numbers.iter().map(|it| node(*it)).collect() };
    let domain = |name: &str, measured: &[u32], unmeasured: &[u32]| MapDomain {
        name: name.to_owned(),
        claimed: name.into(),
        basis: DomainBasis::Measured,
        measured: names(measured),
        unmeasured: names(unmeasured),
        platform: Some("hgx-h100".to_owned()),
        gpus_per_node: Some(2),
        nvlinks: Some(18),
    };
    let member = |number: u32, domain: &str, outcome: Outcome, worst: Option<f64>| {
        let mut gpus: BTreeMap<u32, MapGpu> = BTreeMap::new();
        for gpu in 0..2 {
            gpus.insert(gpu, MapGpu { uuid: Some(uuid(number, gpu)), ..MapGpu::default() });
        }
        if outcome == Outcome::Degraded
            && let Some(gpu) = gpus.get_mut(&1)
        {
            gpu.outcome = Some(outcome);
            gpu.classes = BTreeSet::from([FindingClass::NvlinkLow]);
            gpu.is_confirmed = true;
        }
        let clique = worst.map(|_| "c0ffee.7".to_owned());
        let member = MapMember {
            claimed: Some(domain.into()),
            domain: Some(domain.to_owned()),
            reach: if worst.is_some() { MeasuredReach::Across } else { MeasuredReach::Nothing },
            is_misplaced: false,
            is_apart: false,
            outcome,
            reason: "made up".to_owned(),
            findings: Vec::new(),
            classes: BTreeSet::new(),
            worst,
            cliques: clique.into_iter().collect(),
            gpus,
            rails: BTreeMap::new(),
            leaf: None,
            boot_id: None,
            device: Ok((outcome == Outcome::Degraded).then(|| (1, uuid(number, 1)))),
            detectable: None,
        };
        (node(number), member)
    };
    let test: Arc<str> = Arc::from("device_to_device_memcpy_read_ce");
    let cell = |number: u32, src: u32, dst: u32, share: f64| MeasuredCell {
        domain: None,
        stage: None,
        testcase: test.clone(),
        src_node: Some(node(number)),
        src_gpu: Some(src),
        dst_node: Some(node(number)),
        dst_gpu: Some(dst),
        rail: None,
        reading: 0,
        value: Some(400.0 * share),
        unit: Unit::GigabytesPerSecond,
        expected: Some(400.0),
        ratio: Some(share),
        outcome: Outcome::Pass,
    };
    let cells = [
        cell(1, 0, 1, 1.004),
        cell(1, 1, 0, 0.991),
        cell(2, 0, 1, 1.0),
        cell(10, 0, 1, 1.0),
        cell(10, 1, 0, 17.0 / 18.0),
    ];
    VerifiedMap {
        run: MapOrigin {
            id: "20260304-050607-abcdef".to_owned(),
            created: "2026-03-04T05:06:07Z".to_owned(),
            profile: "admit".to_owned(),
            version: "0.1.0".to_owned(),
            thresholds_digest: "5c0ffee5".to_owned(),
            is_complete: true,
            is_simulated: true,
        },
        outcome: Outcome::Failed,
        domains: vec![domain("b", &[3, 5], &[4]), domain("rack a/1", &[1, 2, 10], &[])],
        members: BTreeMap::from([
            member(1, "rack a/1", Outcome::Pass, Some(0.991)),
            member(2, "rack a/1", Outcome::Pass, Some(0.991)),
            member(10, "rack a/1", Outcome::Degraded, Some(0.944)),
            member(3, "b", Outcome::Pass, Some(0.96)),
            member(4, "b", Outcome::Unknown, None),
            member(5, "b", Outcome::Failed, Some(0.4)),
        ]),
        rails: BTreeMap::new(),
        leaves: BTreeMap::new(),
        matrix: StrengthMatrix::from_cells(&cells),
        partitions: None,
        block_sizes: Vec::new(),
    }
}

/// All files and notes of a target, in one text.
fn written(name: &str, options: &ExportOptions) -> String {
    let target = find_target(name).expect("a target");
    let export = (target.write)(&map(), options).expect("it can be written");
    let again = (target.write)(&map(), options).expect("it can be written");
    assert_eq!(export, again, "the same map gives the same bytes");
    let mut out = String::new();
    for file in &export.files {
        out.push_str(&format!("=== {}\n{}", file.name, String::from_utf8_lossy(&file.bytes)));
    }
    for remark in &export.remarks {
        out.push_str(&format!("=== remark: {remark}\n"));
    }
    // The version changes with every release.
    out.replace(concat!("fabricgate ", env!("CARGO_PKG_VERSION")), "fabricgate VERSION")
}

fn refusal(name: &str, options: &ExportOptions) -> String {
    let target = find_target(name).expect("a target");
    (target.write)(&map(), options).expect_err("it is refused").to_string()
}

#[test]
fn labels_have_the_prefix_and_an_unmeasured_node_has_none() {
    let text = written("kubernetes-labels", &ExportOptions::default());
    for word in [
        "fabricgate.io/verdict=pass",
        "fabricgate.io/verdict=degraded",
        "fabricgate.io/verified-domain-",
        "n4",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(!text.contains("nvidia.com/") && !text.contains("\"node\":\"n4\""), "{text}");
}

#[test]
fn a_node_at_fault_that_gave_no_number_loses_the_labels_of_an_earlier_pass() {
    let written = |outcome: Outcome| {
        let mut map = map();
        let member = map.members.get_mut(&node(4)).expect("n4");
        assert_eq!(member.reach, MeasuredReach::Nothing);
        member.outcome = outcome;
        let target = find_target("kubernetes-labels").expect("a target");
        let export = (target.write)(&map, &ExportOptions::default()).expect("it can be written");
        String::from_utf8(export.files[1].bytes.clone()).expect("text")
    };
    let of_n4 = |patches: &str| -> Option<serde_json::Value> {
        let read = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("JSON");
        let found = patches.lines().map(read).find(|it| it["node"] == "n4")?;
        Some(found["patch"]["metadata"]["labels"].clone())
    };
    for outcome in [Outcome::Failed, Outcome::Degraded] {
        let labels = of_n4(&written(outcome)).expect("it is labelled");
        assert_eq!(labels["fabricgate.io/verdict"], outcome.as_str());
        assert!(labels["fabricgate.io/verified-domain"].is_null(), "{labels}");
        assert!(labels["fabricgate.io/measured-domain"].is_null(), "{labels}");
    }
    for outcome in [Outcome::Unknown, Outcome::Pass] {
        assert_eq!(of_n4(&written(outcome)), None, "{outcome}: nothing was measured");
    }
}

#[test]
fn topologies_point_at_labels_of_verified_nodes() {
    let kueue = written("kueue", &ExportOptions::default());
    for word in
        ["kind: Topology", "kind: ResourceFlavor", "nodeLabel: fabricgate.io/verified-domain"]
    {
        assert!(kueue.contains(word), "{word}: {kueue}");
    }
    let kai = written("kai", &ExportOptions::default());
    assert!(kai.contains("kai.scheduler/v1alpha1"), "{kai}");
}

#[test]
fn a_rule_is_made_of_a_device_that_slices_know_and_no_other() {
    let device = |name: &str, uuid: &str| serde_json::json!({"name": name, "attributes": {"uuid": {"string": uuid}, "type": {"string": "gpu"}}});
    let slices = serde_json::json!({"kind": "List", "items": [{
        "kind": "ResourceSlice",
        "spec": {"driver": "gpu.nvidia.com", "nodeName": "n10", "pool": {"name": "n10"},
            "devices": [device("gpu-0", &uuid(10, 0)), device("gpu-1", &uuid(10, 1))]},
    }]});
    let options = ExportOptions { slices: Some(slices.to_string()), ..ExportOptions::default() };
    let text = written("device-taint-rules", &options);
    assert!(text.contains("effect: None") && text.contains("device: gpu-1"), "{text}");
    let hard = ExportOptions { effect: Some("NoSchedule".to_owned()), ..options };
    assert!(written("device-taint-rules", &hard).contains("effect: NoSchedule"));

    // One GPU in parts, one twice, one missing: no rule, and the reason is reported.
    let none = |items: serde_json::Value| {
        let text = serde_json::json!({ "items": items }).to_string();
        let options = ExportOptions { slices: Some(text), ..ExportOptions::default() };
        let text = written("device-taint-rules", &options);
        assert!(!text.contains("DeviceTaintRule\n"), "{text}");
        text
    };
    let slice = |pool: &str, devices: serde_json::Value| serde_json::json!({"spec": {"driver": "d", "pool": {"name": pool}, "devices": devices}});
    let twice = none(serde_json::json!([
        slice("p", serde_json::json!([device("a", &uuid(10, 1))])),
        slice("q", serde_json::json!([device("a", &uuid(10, 1))])),
    ]));
    assert!(twice.contains("2 devices have the UUID"), "{twice}");
    let part =
        serde_json::json!({"name": "m", "attributes": {"parentUUID": {"string": uuid(10, 1)}}});
    let parted =
        none(serde_json::json!([slice("p", serde_json::json!([device("a", &uuid(10, 1)), part]))]));
    assert!(parted.contains("no slice has a device"), "{parted}");
    assert!(
        refusal("device-taint-rules", &ExportOptions::default()).contains("--slices is missing")
    );
    let wrong = ExportOptions { slices: Some("{}".to_owned()), ..ExportOptions::default() };
    assert!(refusal("device-taint-rules", &wrong).contains("expected a list of ResourceSlices"));
}

#[test]
fn scores_are_links_that_were_measured_and_beliefs_above_them_are_named() {
    let beliefs = |number: u32, score: u32| {
        let (a, b) = (uuid(number, 0), uuid(number, 1));
        serde_json::json!([{"uuid": a, "score": {b.clone(): score}}, {"uuid": b, "score": {a: score}}])
    };
    let nodes = serde_json::json!({"items": [
        {"metadata": {"name": "n1", "annotations": {"hami.io/node-nvidia-score": beliefs(1, 1820).to_string()}}},
        {"metadata": {"name": "n2", "annotations": {"hami.io/node-nvidia-score": beliefs(2, 1820).to_string()}}},
        {"metadata": {"name": "n10", "annotations": {"hami.io/node-nvidia-score": beliefs(10, 1820).to_string()}}},
        {"metadata": {"name": "n11"}},
    ]});
    let options = ExportOptions { hami: Some(nodes.to_string()), ..ExportOptions::default() };
    let text = written("hami-scores", &options);
    assert!(text.contains(",lower\n") && text.contains("1700"), "{text}");
    // A score in a single direction is detected, whichever direction it is.
    for (from, to) in [(0, 1), (1, 0)] {
        let score = serde_json::json!({ uuid(1, to): 1820 });
        let beliefs = serde_json::json!({"n1": [{"uuid": uuid(1, from), "score": score}]});
        let options = ExportOptions { hami: Some(beliefs.to_string()), ..ExportOptions::default() };
        let text = written("hami-scores", &options);
        assert!(text.contains(",1820,18,") && text.contains(",hami-asymmetric\n"), "{text}");
    }
    for wrong in ["", "[]", "{\"items\": []}", "{\"n1\": 7}"] {
        let options = ExportOptions { hami: Some(wrong.to_owned()), ..ExportOptions::default() };
        assert!(refusal("hami-scores", &options).contains("--hami: "), "{wrong}");
    }
}

#[test]
fn ray_nodes_have_measured_domains_and_unique_ranks() {
    let all = written("ray", &ExportOptions::default());
    assert!(all.contains("nvlink_domain_") && !all.contains("\"topo_rank\":0}"), "{all}");
    let few = ExportOptions { nodes: Some(BTreeSet::from([node(10)])), ..ExportOptions::default() };
    let text = written("ray", &few);
    assert!(text.contains("\"topo_rank\": 5") && !text.contains("\"n1\""), "{text}");
}

#[test]
fn a_node_or_a_domain_that_the_run_does_not_have_is_refused_and_not_passed_over() {
    let slices = || Some("{\"items\": []}".to_owned());
    let strange = BTreeSet::from([node(1), node(99)]);
    let nodes =
        ExportOptions { nodes: Some(strange), slices: slices(), ..ExportOptions::default() };
    let domain = Some("nowhere".to_owned());
    let domain = ExportOptions { domain, slices: slices(), ..ExportOptions::default() };
    for to in ["device-taint-rules", "hami-scores", "kai", "kubernetes-labels", "kueue", "ray"] {
        let takes = find_target(to).expect("a target").takes;
        if takes.contains(&"nodes") {
            assert_eq!(refusal(to, &nodes), "--nodes: the run has no n99", "{to}");
        }
        if takes.contains(&"domain") {
            let message = refusal(to, &domain);
            assert_eq!(message, "--domain nowhere: the run has b, rack a/1", "{to}");
        }
    }
}
