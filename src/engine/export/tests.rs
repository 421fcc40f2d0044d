//! Targets on simulated runs: the exported measurements, identical bytes for the same run, and only
//! a node's own lines changed by a change to that node.

use super::{DegradedPlacement, ExportOptions, ExportOutput, TARGETS, find_target, fixture};
use crate::place::map::{DomainBasis, MeasuredReach, VerifiedMap};
use model::id::NodeName;
use model::run::Run;
use model::verdict::Outcome;

fn export(run: &Run, to: &str, options: &ExportOptions) -> ExportOutput {
    let target = find_target(to).expect("a target");
    (target.write)(&fixture::map(run), options).unwrap_or_else(|why| panic!("{to}: {why}"))
}

fn text(run: &Run, to: &str, options: &ExportOptions) -> String {
    let export = export(run, to, options);
    let text = String::from_utf8(export.files[0].bytes.clone()).expect("text");
    let remarks: String = export.remarks.iter().map(|it| format!("remark: {it}\n")).collect();
    format!("{text}{remarks}")
}

fn refusal(run: &Run, to: &str, options: &ExportOptions) -> String {
    let target = find_target(to).expect("a target");
    (target.write)(&fixture::map(run), options).expect_err("a refusal").to_string()
}

fn nodes(names: &[&str]) -> ExportOptions {
    ExportOptions {
        nodes: Some(names.iter().map(|it| NodeName::from(*it)).collect()),
        ..ExportOptions::default()
    }
}

/// The required options of each target.
fn options_for(to: &str) -> ExportOptions {
    match to {
        "ranks" | "nccl-env" => nodes(&["n01", "n02", "n03", "n05"]),
        _ => ExportOptions::default(),
    }
}

/// A degraded GPU, a slow rail, an unmeasured node.
fn troubled() -> Run {
    let mut run = fixture::racks();
    fixture::find(&mut run, "n02", Some(1), None, "nvlink-low", Outcome::Degraded);
    fixture::find(&mut run, "n05", None, Some("rail1"), "nic-low", Outcome::Degraded);
    fixture::forget(&mut run, "n07");
    run
}

fn split() -> Run {
    let mut run = fixture::racks();
    fixture::cut(&mut run, &["n01", "n02"]);
    run
}

/// Cuts the constant part of a filter out of a golden file.
fn shortened(text: &str) -> String {
    text.split("-- The largest block").next().unwrap_or(text).to_owned()
}

#[test]
fn every_target_exports_the_measurements() {
    for target in TARGETS.iter().filter(|target| OWN.contains(&target.name)) {
        let runs = [fixture::racks(), troubled(), fixture::misplaced()];
        for (name, run) in ["racks", "troubled", "misplaced"].into_iter().zip(runs) {
            let text = shortened(&text(&run, target.name, &options_for(target.name)));
            insta::assert_snapshot!(format!("{}-{name}", target.name), text);
        }
    }
    let text = text(&split(), "slurm-topology", &ExportOptions::default());
    insta::assert_snapshot!("slurm-topology-split", text);
}

/// The cluster's devices, each with its UUID, in the format of `kubectl get resourceslices -o
/// json`.
fn slices(map: &VerifiedMap) -> String {
    let slice = |(node, member): (&NodeName, &crate::place::map::MapMember)| {
        let devices = member.gpus.iter().filter_map(|(index, gpu)| {
            let uuid = gpu.uuid.as_ref()?;
            let attributes = serde_json::json!({"uuid": {"string": uuid}});
            Some(serde_json::json!({"name": format!("gpu-{index}"), "attributes": attributes}))
        });
        serde_json::json!({"kind": "ResourceSlice", "spec": {
            "driver": "gpu.nvidia.com", "nodeName": node, "pool": {"name": node},
            "devices": devices.collect::<Vec<_>>(),
        }})
    };
    let items: Vec<serde_json::Value> = map.members.iter().map(slice).collect();
    serde_json::json!({"kind": "List", "items": items}).to_string()
}

/// The same map with GPU UUIDs from drivers.
fn named(mut map: VerifiedMap) -> VerifiedMap {
    for (node, member) in &mut map.members {
        for (index, gpu) in &mut member.gpus {
            gpu.uuid = Some(format!("GPU-{node}-{index}"));
        }
    }
    map
}

#[test]
fn every_target_for_kubernetes_and_ray_exports_the_measurements() {
    for to in KUBERNETES {
        let runs = [fixture::racks(), troubled(), fixture::misplaced()];
        for (name, run) in ["racks", "troubled", "misplaced"].into_iter().zip(runs) {
            let map = named(fixture::map(&run));
            let options = match *to {
                "device-taint-rules" => {
                    ExportOptions { slices: Some(slices(&map)), ..ExportOptions::default() }
                }
                _ => ExportOptions::default(),
            };
            let export = (find_target(to).expect("a target").write)(&map, &options);
            let export = export.unwrap_or_else(|why| panic!("{to}: {why}"));
            let mut text = String::new();
            for file in &export.files {
                let shown = String::from_utf8_lossy(&file.bytes);
                text.push_str(&format!("=== {}\n{shown}", file.name));
            }
            for remark in &export.remarks {
                text.push_str(&format!("=== remark: {remark}\n"));
            }
            insta::assert_snapshot!(format!("{to}-{name}"), text);
        }
    }
    let all: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    let listed: Vec<&str> = OWN.iter().chain(KUBERNETES).copied().chain(["map"]).collect();
    assert!(all.iter().all(|name| listed.contains(name)), "a target without a golden: {all:?}");
}

/// The targets for Kubernetes and Ray.
const KUBERNETES: &[&str] =
    &["device-taint-rules", "hami-scores", "kai", "kubernetes-labels", "kueue", "ray"];

/// The targets for Slurm and for jobs without a scheduler.
const OWN: &[&str] = &["nccl-env", "ranks", "slurm-cli-filter", "slurm-topology", "topograph"];

#[test]
fn the_order_of_cells_does_not_change_the_bytes() {
    let run = troubled();
    let mut turned = run.clone();
    turned.cells.reverse();
    turned.verdicts.findings.reverse();
    turned.verdicts.nodes.reverse();
    for target in TARGETS {
        let options = options_for(target.name);
        assert_eq!(fixture::map(&run).matrix, fixture::map(&turned).matrix);
        let written = |run: &Run| (target.write)(&fixture::map(run), &options);
        assert_eq!(written(&run), written(&turned), "{}", target.name);
    }
}

#[test]
fn one_node_that_gets_worse_changes_only_lines_that_are_about_it() {
    let healthy = fixture::racks();
    let mut worse = healthy.clone();
    fixture::find(&mut worse, "n02", Some(1), None, "nvlink-low", Outcome::Degraded);
    for (to, most) in [("slurm-topology", 1), ("slurm-cli-filter", 2), ("topograph", 0)] {
        let (before, after) =
            (text(&healthy, to, &options_for(to)), text(&worse, to, &options_for(to)));
        let diff = similar::TextDiff::from_lines(&before, &after);
        let changed: Vec<String> = diff
            .iter_all_changes()
            .filter(|it| it.tag() != similar::ChangeTag::Equal)
            .map(|it| it.value().to_owned())
            .collect();
        assert!(changed.len() <= most, "{to}: {changed:?}");
        assert!(changed.iter().all(|it| it.contains("n02") || it.contains("rack1")), "{changed:?}");
    }
}

#[test]
fn a_map_has_measured_locations_and_marks_unmeasured_nodes() {
    let map = fixture::map(&fixture::misplaced());
    let node = &map.members[&NodeName::from("n04")];
    assert_eq!((node.domain.as_deref(), node.is_misplaced), (Some("rack2"), true));
    assert_eq!(map.domains.len(), 2);
    assert_eq!(map.domain("rack2").expect("it").measured.len(), 5);

    let map = fixture::map(&split());
    let names: Vec<&str> = map.domains.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["rack1.part1", "rack1.part2", "rack2"], "no half is the rack");

    let mut run = fixture::racks();
    fixture::cut(&mut run, &["n04"]);
    let map = fixture::map(&run);
    let node = &map.members[&NodeName::from("n04")];
    assert_eq!((node.domain.as_deref(), node.is_apart), (Some("rack1.part2"), true));
    assert!(!map.members[&NodeName::from("n01")].is_apart);

    let map = fixture::map(&troubled());
    let node = &map.members[&NodeName::from("n07")];
    assert_eq!((node.reach, node.is_verified()), (MeasuredReach::Nothing, false));
    let domain = map.domain("rack2").expect("it");
    let own = NodeName::from("n07");
    assert!(domain.unmeasured.contains(&own) && !domain.measured.contains(&own));
    for name in ["n05", "n06", "n07", "n08"] {
        fixture::forget(&mut run, name);
    }
    let map = fixture::map(&run);
    assert_eq!(map.domain("rack2").expect("claimed").basis, DomainBasis::Claimed);
}

#[test]
fn a_topology_separates_or_omits_degraded_nodes_as_requested() {
    let run = troubled();
    let with = |degraded, form: &str| ExportOptions {
        degraded,
        form: Some(form.to_owned()),
        ..ExportOptions::default()
    };
    let kept = text(&run, "slurm-topology", &with(DegradedPlacement::Keep, "conf"));
    assert!(kept.contains("BlockName=rack1 Nodes=n[01-04]\n") && kept.contains("BlockSizes=4"));
    let own = text(&run, "slurm-topology", &with(DegradedPlacement::OwnBlock, "conf"));
    assert!(own.contains("BlockName=rack1.degraded Nodes=n02\n"), "{own}");
    assert!(own.contains("BlockSizes=1\n"), "as many as the smallest block: {own}");
    let out = text(&run, "slurm-topology", &with(DegradedPlacement::LeaveOut, "yaml"));
    assert!(out.contains("\"n[01,03-04]\"") && out.contains("remark: n02 is in no block"), "{out}");
    let size = ExportOptions { block_size: Some(3), ..with(DegradedPlacement::OwnBlock, "conf") };
    assert!(refusal(&run, "slurm-topology", &size).contains("expected 1 or less"));
    let size = ExportOptions { block_size: Some(5), ..ExportOptions::default() };
    assert!(refusal(&run, "slurm-topology", &size).contains("the largest block has 4 nodes"));
}

#[test]
fn an_existing_topology_keeps_every_letter_but_those_of_misplaced_nodes() {
    let file = "# ours since 2024\nBlockName=rack1  Nodes=n[01-04]  # row A\nBlockName=rack2 Nodes=n[05-08]\nBlockSizes=3\n";
    let from =
        |text: &str| ExportOptions { from: Some(text.to_owned()), ..ExportOptions::default() };
    let after = export(&fixture::misplaced(), "slurm-topology", &from(file));
    let after = String::from_utf8(after.files[0].bytes.clone()).expect("text");
    assert!(after.starts_with("# made by fabricgate "), "{after}");
    assert!(
        after.contains("# ours since 2024\nBlockName=rack1  Nodes=n[01-03]  # row A\n"),
        "{after}"
    );
    assert!(after.contains("BlockName=rack2 Nodes=n[04-08]\n"), "{after}");
    // A second export does not repeat the header.
    let again = export(&fixture::misplaced(), "slurm-topology", &from(&after));
    assert_eq!(String::from_utf8(again.files[0].bytes.clone()).expect("text"), after);
    assert!(refusal(&fixture::racks(), "slurm-topology", &from("{}")).contains("neither"));
}

#[test]
fn a_form_that_the_existing_file_does_not_have_is_refused_and_not_passed_over() {
    let file = "BlockName=rack1 Nodes=n[01-04]\nBlockName=rack2 Nodes=n[05-08]\nBlockSizes=3\n";
    let options = |form: &str| ExportOptions {
        from: Some(file.to_owned()),
        form: Some(form.to_owned()),
        ..ExportOptions::default()
    };
    let run = fixture::racks();
    assert_eq!(export(&run, "slurm-topology", &options("conf")).files[0].name, "topology.conf");
    let message = refusal(&run, "slurm-topology", &options("yaml"));
    assert!(message.contains("--form: the file of --from is a topology.conf"), "{message}");
    let message = refusal(&run, "slurm-topology", &options("json"));
    assert!(message.contains("expected yaml or conf"), "{message}");
}

#[test]
fn a_block_notes_nodes_measured_only_inside() {
    let mut run = fixture::racks();
    let is_n03 = |it: &Option<NodeName>| it.as_ref().is_some_and(|it| it.as_str() == "n03");
    run.cells.retain(|cell| is_n03(&cell.src_node) == is_n03(&cell.dst_node));
    let member = &fixture::map(&run).members[&NodeName::from("n03")];
    assert_eq!(member.reach, MeasuredReach::Inside);
    for form in ["yaml", "conf"] {
        let options = ExportOptions { form: Some(form.to_owned()), ..ExportOptions::default() };
        let text = text(&run, "slurm-topology", &options);
        assert!(text.contains("# n03: as claimed, not measured against the others\n"), "{text}");
        assert_eq!(text.matches("as claimed").count(), 1, "{text}");
    }
}

#[test]
fn a_node_with_unknown_gpus_does_not_hide_one_with_too_few() {
    let mut run = fixture::racks();
    run.claims.domains[1].gpus_per_node = None;
    fixture::forget(&mut run, "n05");
    let options = ExportOptions { gpus_per_node: Some(8), ..nodes(&["n01", "n05"]) };
    let message = refusal(&run, "ranks", &options);
    assert!(message.contains("--gpus-per-node 8: a node has 4"), "{message}");
}

#[test]
fn ranks_warn_where_a_layout_does_not_fit_the_measured_domains() {
    let layout =
        |tp, pp, names: &[&str]| ExportOptions { tp: Some(tp), pp: Some(pp), ..nodes(names) };
    let warnings =
        |options: &ExportOptions| export(&fixture::racks(), "ranks", options).remarks.join("\n");
    assert_eq!(warnings(&layout(4, 2, &["n01", "n02", "n05", "n06"])), "");
    let crossing = warnings(&layout(8, 1, &["n01", "n05"]));
    assert!(crossing.contains("ranks 0 to 7 reaches from another domain into rack2"), "{crossing}");
    let uneven = warnings(&layout(4, 2, &["n01", "n02", "n03"]));
    assert!(
        uneven.contains(
            "TP x PP = 8 does not divide the 12 GPUs in rack1; 2 of its nodes hold 1 whole"
        ),
        "{uneven}"
    );
    assert!(refusal(&fixture::racks(), "ranks", &nodes(&["n01", "n99"])).contains("has no n99"));
    let asked = ExportOptions { gpus_per_node: Some(9), ..nodes(&["n01"]) };
    assert!(refusal(&fixture::racks(), "ranks", &asked).contains("a node has 4"));
    assert!(
        refusal(&fixture::racks(), "ranks", &ExportOptions::default())
            .contains("--domain, one of rack1")
    );
}

#[test]
fn a_job_of_fewer_gpus_takes_those_that_no_finding_blames() {
    let options = ExportOptions { gpus_per_node: Some(3), form: None, ..nodes(&["n02"]) };
    let document: serde_json::Value =
        serde_json::from_slice(&export(&troubled(), "ranks", &options).files[0].bytes)
            .expect("JSON");
    let gpus: Vec<u64> = document["ranks"]
        .as_array()
        .expect("ranks")
        .iter()
        .filter_map(|it| it["gpu"].as_u64())
        .collect();
    assert_eq!(gpus, [0, 2, 3]);
}

/// The GPUs that a job uses on a node, and its warnings.
fn allocated_gpus(run: &Run, node: &str, gpus: u32) -> (Vec<u64>, String) {
    let options = ExportOptions { gpus_per_node: Some(gpus), ..nodes(&[node]) };
    let document: serde_json::Value =
        serde_json::from_slice(&export(run, "ranks", &options).files[0].bytes).expect("JSON");
    let ranks = document["ranks"].as_array().expect("ranks").iter();
    (ranks.filter_map(|it| it["gpu"].as_u64()).collect(), document["warnings"].to_string())
}

#[test]
fn a_blamed_gpu_is_taken_last_and_not_in_silence() {
    let mut run = troubled();
    fixture::find(&mut run, "n02", Some(0), None, "nvlink-low", Outcome::Degraded);
    let (gpus, warnings) = allocated_gpus(&run, "n02", 3);
    assert_eq!(gpus, [0, 2, 3]);
    assert!(
        warnings.contains("n02: only 2 of its GPUs are without a finding, and 3 are requested"),
        "{warnings}"
    );

    // Two healthy GPUs were not measured with each other.
    let mut run = troubled();
    run.cells
        .retain(|cell| cell.src_node != cell.dst_node || cell.src_gpu.max(cell.dst_gpu) != Some(3));
    let (gpus, warnings) = allocated_gpus(&run, "n02", 3);
    assert_eq!(gpus, [0, 2, 3]);
    assert!(warnings.contains("n02: its GPUs were not all measured"), "{warnings}");
}

#[test]
fn nothing_is_set_that_was_not_measured() {
    let set = |run: &Run, names: &[&str]| -> Vec<String> {
        let text = text(run, "nccl-env", &nodes(names));
        text.lines().filter_map(|it| it.strip_prefix("export ").map(str::to_owned)).collect()
    };
    let sound = [
        "NCCL_MNNVL_ENABLE=1",
        "NCCL_IB_HCA==mlx5_0,mlx5_1",
        "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=8",
        "USE_MNNVL=1",
    ];
    assert_eq!(set(&fixture::racks(), &["n01", "n02"]), sound);
    let troubled = troubled();
    assert_eq!(set(&troubled, &["n06", "n07"]), Vec::<String>::new(), "n07 was not measured");
    let without = set(&troubled, &["n05", "n06"]);
    assert!(without.contains(&"NCCL_IB_HCA==mlx5_0".to_owned()), "{without:?}");
    assert!(!without.iter().any(|it| it.starts_with("NCCL_MNNVL")), "n05 is not verified");
    let two = set(&fixture::racks(), &["n01", "n02", "n03", "n05", "n06"]);
    assert!(two.contains(&"NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=4".to_owned()), "{two:?}");
}

#[test]
fn names_that_another_system_would_read_otherwise_are_escaped_or_refused() {
    let mut run = fixture::racks();
    for (at, name) in ["no", "a\"]] os.exit() --\n"].into_iter().enumerate() {
        run.claims.domains[at].name = name.into();
    }
    let lua = text(&run, "slurm-cli-filter", &ExportOptions::default());
    assert!(lua.contains(r#"name = "a\"]] os.exit() --\010""#), "{lua}");
    let yaml = text(&run, "slurm-topology", &ExportOptions::default());
    assert!(
        yaml.contains("- block: block-no\n") && yaml.contains("- block: a____os.exit___--_\n"),
        "{yaml}"
    );
    let model = text(&run, "topograph", &ExportOptions::default());
    assert!(model.contains(r#": "no""#) && !model.contains("exit() --\n\""), "{model}");
    run.claims.domains[0].nodes[0] = "n[1-9]".into();
    run.claims.leaves.clear();
    for to in ["slurm-topology", "topograph"] {
        assert!(
            refusal(&run, to, &ExportOptions::default()).contains("not the name of one node"),
            "{to}"
        );
    }
}

#[test]
fn every_file_names_the_run_and_marks_simulated_and_partial_ones() {
    let mut map: VerifiedMap = fixture::map(&fixture::racks());
    (map.run.is_simulated, map.run.is_complete) = (true, false);
    for target in TARGETS.iter().filter(|it| it.name == "map" || OWN.contains(&it.name)) {
        let export = (target.write)(&map, &options_for(target.name)).expect("written");
        for file in &export.files {
            let text = String::from_utf8_lossy(&file.bytes);
            for word in ["20260304-050607-abcdef", "2026-03-04T05:06:07Z", "SIMULATED", "PARTIAL"] {
                assert!(text.contains(word), "{}: {} lacks {word}", target.name, file.name);
            }
        }
    }
}

#[test]
fn a_placement_has_no_smallest_loss_if_one_node_has_none() {
    use crate::place;
    let request = place::PlacementRequest {
        count: 2,
        level: place::PlacementLevel::Node,
        node: None,
        domain: Some("rack1".to_owned()),
        rules: vec![place::PlacementRule::Best],
        allow_degraded: false,
    };
    let detectable = |run: &Run| {
        place::choose_placement(&fixture::map(run), &request).expect("two of four").detectable
    };
    let mut run = fixture::racks();
    assert_eq!(detectable(&run), Some(0.02));
    run.verdicts.nodes[1].detectable = None;
    assert_eq!(detectable(&run), None, "the detectable loss of n02 is unknown");
}

/// Defect 9 of the operator's review.
#[test]
fn a_topology_that_lacks_what_partitions_name_is_never_written() {
    let run = fixture::racks();
    let written = |partitions: Option<&[(&str, &str)]>, options: &ExportOptions| {
        let mut map = fixture::map(&run);
        map.partitions = partitions.map(|all| {
            all.iter()
                .map(|(name, topology)| ((*name).to_owned(), (*topology).to_owned()))
                .collect()
        });
        (find_target("slurm-topology").expect("a target").write)(&map, options)
    };
    let plain = ExportOptions::default();
    let refused = |partitions: &[(&str, &str)], options: &ExportOptions| {
        written(Some(partitions), options).expect_err("refused").to_string()
    };
    let flat: &[(&str, &str)] = &[("main", "default"), ("probe", "topo-flat")];
    let message = refused(flat, &plain);
    assert!(message.contains("partition probe names topology topo-flat"), "{message}");
    assert!(message.contains("--from FILE") && !message.contains("--topology"), "{message}");
    let conf = ExportOptions { form: Some("conf".to_owned()), ..ExportOptions::default() };
    assert!(refused(flat, &conf).contains("--from FILE"));
    // The site's only topology has a custom name: with that name the file is complete.
    let message = refused(&[("main", "racks")], &plain);
    assert!(message.contains("expected --topology racks, or --from FILE"), "{message}");
    let named = ExportOptions { topology: Some("racks".to_owned()), ..ExportOptions::default() };
    for (partitions, options) in [
        (Some(&[("main", "racks")][..]), &named),
        (Some(&[("main", "default")]), &plain),
        (Some(&[]), &plain),
    ] {
        let export = written(partitions, options).expect("written");
        assert!(!export.remarks.iter().any(|it| it.contains("partitions name")), "{export:?}");
    }
    // The partitions were not read: the output notes that.
    let export = written(None, &plain).expect("written");
    assert!(export.remarks.iter().any(|it| it.contains("--from FILE")), "{:?}", export.remarks);
}

#[test]
fn block_sizes_of_several_levels_are_written_as_they_were_read() {
    let run = fixture::racks();
    let written = |sizes: &[usize], form: &str, size: Option<u32>| {
        let map = VerifiedMap { block_sizes: sizes.to_vec(), ..fixture::map(&run) };
        let options = ExportOptions {
            form: Some(form.to_owned()),
            block_size: size,
            ..ExportOptions::default()
        };
        let export = (find_target("slurm-topology").expect("a target").write)(&map, &options);
        let export = export.expect("written");
        (String::from_utf8(export.files[0].bytes.clone()).expect("text"), export.remarks)
    };
    assert!(written(&[4, 8], "yaml", None).0.contains("block_sizes: [4, 8]\n"));
    assert!(written(&[2, 4, 8], "conf", None).0.contains("BlockSizes=2,4,8\n"));
    // The requested size is a single level.
    assert!(written(&[4, 8], "yaml", Some(3)).0.contains("block_sizes: [3]\n"));
    assert!(written(&[], "yaml", None).0.contains("block_sizes: [4]\n"));
    // Blocks are smaller than the base size.
    let (text, remarks) = written(&[6, 12], "yaml", None);
    assert!(text.contains("block_sizes: [4]\n"), "{text}");
    assert!(remarks.iter().any(|it| it.contains("block sizes are 6, 12")), "{remarks:?}");
}
