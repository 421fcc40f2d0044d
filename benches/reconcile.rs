//! The time to reconcile the claims of nine kinds of sources about ten thousand nodes.
//!
//! The sources are made once, in memory; every node's facts are a separate source, as they are
//! when they come from files. A few nodes are misplaced, so that there are disagreements.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use model::id::NodeName;
use model::source_report::{
    FabricReport, NicReport, NodeGroup, NodeGroupKind, SourceKind, SourceReport,
};
use readers::claims::reconcile::diff::diff_claims;
use readers::claims::reconcile::{ReconcileRules, reconcile_reports};

/// Racks, and nodes in each: 10,008 nodes.
const RACKS: u32 = 556;
const NODES: u32 = 18;

fn node(rack: u32, at: u32) -> NodeName {
    NodeName::from(format!("r{rack:03}n{at:02}"))
}

fn fabric(rack: u32, gpu: Option<u32>) -> FabricReport {
    FabricReport {
        gpu,
        cluster_uuid: Some(format!("{rack:08x}-c8aa-45e1-9e07-e1e51be99c31")),
        clique_id: Some("1".to_owned()),
        state: gpu.map(|_| "completed".to_owned()),
        ..FabricReport::default()
    }
}

fn nics(rack: u32, at: u32) -> Vec<NicReport> {
    (0..4)
        .map(|rail| NicReport {
            device: Some(format!("mlx5_{rail}")),
            rail: Some(format!("rail{rail}")),
            leaf: Some(format!("leaf{:02}-{rail}", rack / 2)),
            port: Some(format!("Ethernet1/{}", (rack % 2) * NODES + at)),
            ..NicReport::default()
        })
        .collect()
}

/// Claims of all sources. `moved` racks have lost their last node to the next.
fn fleet(moved: u32) -> Vec<SourceReport> {
    let mut all = Vec::new();
    for (kind, scheme) in [
        (SourceKind::ClaimsFile, "domain"),
        (SourceKind::SlurmTopologyYaml, "block"),
        (SourceKind::SlurmTopology, "block"),
    ] {
        let mut report = SourceReport::new(kind, scheme);
        for rack in 0..RACKS {
            let nodes = (1..=NODES).map(|at| node(rack, at)).collect();
            report.groups.push(NodeGroup::new(
                NodeGroupKind::Domain,
                scheme,
                format!("rack{rack:03}"),
                nodes,
            ));
        }
        all.push(report);
    }
    let kinds = [
        SourceKind::SlurmNodes,
        SourceKind::KubernetesNodes,
        SourceKind::Cabling,
        SourceKind::Neighbours,
        SourceKind::Ray,
    ];
    let mut whole: Vec<SourceReport> =
        kinds.map(|kind| SourceReport::new(kind, kind.label())).into();
    for rack in 0..RACKS {
        for at in 1..=NODES {
            let name = node(rack, at);
            let home = if at == NODES && rack < moved { rack + 1 } else { rack };
            for report in &mut whole {
                let words = report.nodes.entry(name.clone()).or_default();
                match report.source.kind {
                    SourceKind::SlurmNodes => {
                        words.gpus = Some(4);
                        words.state = vec!["IDLE".to_owned()];
                        words.aliases = vec![format!("10.{}.{}.{at}", rack / 256, rack % 256)];
                    }
                    SourceKind::KubernetesNodes => {
                        words.gpus = Some(4);
                        words.product = Some("NVIDIA-GB200".to_owned());
                        words.fabric = vec![fabric(home, None)];
                    }
                    SourceKind::Ray => words.topo_rank = Some((rack * 100 + at).to_string()),
                    _ => words.nics = nics(rack, at),
                }
            }
            let mut own = SourceReport::new(SourceKind::NodeFacts, format!("{name}.json"));
            let words = own.node_mut(&NodeName::from(format!("{name}.cluster.example")));
            words.gpus = Some(4);
            words.product = Some("NVIDIA GB200".to_owned());
            words.driver = Some("580.1".to_owned());
            words.fabric = (0..4).map(|gpu| fabric(home, Some(gpu))).collect();
            all.push(own);
        }
    }
    all.extend(whole);
    all
}

fn claims(c: &mut Criterion) {
    let platform = |product: &str, _| product.contains("GB200").then(|| "gb200-nvl72".to_owned());
    let rules = ReconcileRules {
        order: vec![],
        gpus_per_node: Some(4),
        nics_per_node: None,
        platform_of: &platform,
        ends_at_node: &|_| false,
    };
    let fleet_reports = fleet(12);
    let old = reconcile_reports(fleet(0), &rules);
    let new = reconcile_reports(fleet_reports.clone(), &rules);
    assert_eq!(old.disagreements.len(), 0, "{:#?}", old.disagreements.first());
    assert_eq!(new.disagreements.len(), 12, "{:#?}", new.disagreements.first());
    let mut group = c.benchmark_group("claims of 10,008 nodes");
    group.sample_size(10).measurement_time(Duration::from_secs(20));
    group.bench_function("reconcile", |b| {
        b.iter_batched(
            || fleet_reports.clone(),
            |fleet_reports| reconcile_reports(fleet_reports, &rules),
            BatchSize::LargeInput,
        );
    });
    group.bench_function("diff", |b| b.iter(|| diff_claims(black_box(&old), black_box(&new))));
    group.finish();
}

criterion_group!(benches, claims);
criterion_main!(benches);
