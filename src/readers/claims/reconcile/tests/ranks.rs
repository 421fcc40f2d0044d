//! Ranks, and assumptions of frameworks.

use super::*;
use model::source_report::JobAssumption;

/// Two domains of three, and a Ray cluster with these ranks; "" is none.
fn ray(ranks: &[&str]) -> Claims {
    let slurm = blocks(SourceKind::SlurmTopology, &[("a", nodes(1, 3)), ("b", nodes(4, 6))]);
    let mut ray = SourceReport::new(SourceKind::Ray, "ray.json");
    for (number, rank) in (1..).zip(ranks) {
        let words = ray.node_mut(&node(number));
        words.gpus = Some(4);
        words.topo_rank = Some((*rank).to_owned()).filter(|rank| !rank.is_empty());
    }
    reconciled(vec![slurm, ray])
}

#[test]
fn ranks_that_rise_along_the_domains_are_fine() {
    assert_eq!(ray(&["1", "2", "3", "10000000001", "10000000002", "1e1"][..5]).disagreements, []);
    assert_eq!(ray(&["4.0", "5.0", "6.0", "1", "2", "3"]).disagreements, []);
}

#[test]
fn duplicate_zero_text_and_missing_ranks_are_distinguished() {
    let claims = ray(&["1", "1", "3", "4", "5", "6"]);
    let disagreement = only(&claims, "topo-rank-duplicate");
    assert_eq!(
        (disagreement.severity, &disagreement.nodes),
        (DisagreementSeverity::Contradiction, &nodes(1, 2))
    );
    assert!(disagreement.summary.contains("1 on n[01-02]"), "{}", disagreement.summary);

    let claims = ray(&["0", "2", "3", "rack-A1", "5", "6"]);
    let disagreement = only(&claims, "topo-rank-unusable");
    assert_eq!(disagreement.nodes, [node(1), node(4)]);

    let claims = ray(&["", "2", "3", "4", "5", "6"]);
    assert_eq!(only(&claims, "topo-rank-missing").severity, DisagreementSeverity::Doubt);
}

#[test]
fn interleaved_domains_are_a_doubt_and_another_order_inside_is_a_note() {
    let claims = ray(&["1", "3", "5", "2", "4", "6"]);
    let disagreement = only(&claims, "topo-rank-order");
    assert_eq!((disagreement.severity, disagreement.nodes.len()), (DisagreementSeverity::Doubt, 6));
    let claims = ray(&["3", "2", "1", "4", "5", "6"]);
    let disagreement = only(&claims, "topo-rank-order");
    assert_eq!(
        (disagreement.severity, &disagreement.nodes),
        (DisagreementSeverity::Note, &nodes(1, 3))
    );
}

fn believing(belief: JobAssumption, platform: &str) -> Claims {
    let mut slurm = blocks(SourceKind::SlurmTopology, &[("a", nodes(1, 16)), ("b", nodes(17, 20))]);
    for group in &mut slurm.groups {
        group.platform = Some(platform.to_owned());
        group.gpus_per_node = Some(4);
    }
    let mut job = SourceReport::new(SourceKind::Job, "job.env");
    job.beliefs.push(belief);
    reconciled(vec![slurm, job])
}

fn hybrid(ranks: u32, nodes: Vec<NodeName>) -> JobAssumption {
    JobAssumption {
        subject: "HybridEP".to_owned(),
        ranks_per_domain: Some(ranks),
        multi_node_nvlink: None,
        nodes,
        at: Some("job.env:3".to_owned()),
        text: format!("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN={ranks}"),
    }
}

#[test]
fn a_belief_larger_than_the_domain_of_its_job_is_reported_with_both() {
    let rack = "gb200-nvl72";
    assert_eq!(believing(hybrid(64, nodes(1, 16)), rack).disagreements, []);
    let claims = believing(hybrid(64, nodes(1, 8)), rack);
    let disagreement = only(&claims, "belief-beyond-domain");
    assert_eq!(disagreement.severity, DisagreementSeverity::Contradiction);
    assert!(
        disagreement.summary.contains("at most 32 GPUs for its nodes"),
        "{}",
        disagreement.summary
    );
    assert_eq!(disagreement.sides[0].at.as_deref(), Some("job.env:3"));
    // A job without node names may fit into one domain and not the other.
    let claims = believing(hybrid(64, vec![]), rack);
    assert_eq!(only(&claims, "belief-beyond-domain").severity, DisagreementSeverity::Doubt);
    let claims = believing(hybrid(72, vec![]), rack);
    assert_eq!(only(&claims, "belief-beyond-domain").severity, DisagreementSeverity::Contradiction);
    // On servers a node is the domain.
    let claims = believing(hybrid(8, nodes(1, 16)), "hgx-h100");
    assert_eq!(only(&claims, "belief-beyond-domain").severity, DisagreementSeverity::Contradiction);
    assert_eq!(believing(hybrid(4, nodes(1, 16)), "hgx-h100").disagreements, []);
}

#[test]
fn multi_node_nvlink_is_expected_where_it_exists() {
    let belief = |wanted| JobAssumption {
        ranks_per_domain: None,
        multi_node_nvlink: Some(wanted),
        ..hybrid(0, nodes(1, 4))
    };
    let of = |wanted, platform| believing(belief(wanted), platform);
    assert_eq!(of(true, "gb200-nvl72").disagreements, []);
    assert_eq!(of(false, "hgx-h100").disagreements, []);
    let claims = of(true, "hgx-h100");
    assert_eq!(
        only(&claims, "belief-multi-node-nvlink").severity,
        DisagreementSeverity::Contradiction
    );
    let claims = of(false, "gb200-nvl72");
    assert_eq!(only(&claims, "belief-multi-node-nvlink").severity, DisagreementSeverity::Note);
}

#[test]
fn ray_that_keys_on_the_uuid_alone_contradicts_the_cliques_of_a_rack_and_not_of_servers() {
    let ray = |name: &str| {
        let mut ray = SourceReport::new(SourceKind::Ray, "ray.json");
        let group = NodeGroup::new(NodeGroupKind::Domain, "nvlink_domain", name, nodes(1, 4));
        ray.groups.push(group);
        ray.beliefs.push(JobAssumption {
            subject: "Ray nvlink_domain".to_owned(),
            ranks_per_domain: Some(16),
            multi_node_nvlink: Some(true),
            nodes: nodes(1, 4),
            at: None,
            text: "nvlink_domain on 4 nodes".to_owned(),
        });
        ray
    };
    let mut kubernetes = labelled(&[(UUID, 1, nodes(1, 2)), (UUID, 2, nodes(3, 4))]);
    nodes(1, 4).iter().for_each(|node| kubernetes.node_mut(node).gpus = Some(4));
    let claims = reconciled(vec![kubernetes, ray(UUID)]);
    let found: Vec<(&str, DisagreementSeverity)> = classes(&claims);
    assert_eq!(
        found,
        [
            ("belief-beyond-domain", DisagreementSeverity::Contradiction),
            ("domains-nested", DisagreementSeverity::Contradiction),
            ("split-clique", DisagreementSeverity::Note)
        ]
    );
    let mut slurm = SourceReport::new(SourceKind::SlurmNodes, "scontrol");
    for node in nodes(1, 4) {
        slurm.node_mut(&node).gpus = Some(8);
        slurm.node_mut(&node).product = Some("NVIDIA H100".to_owned());
    }
    let mut ray = ray("leaf7");
    ray.beliefs[0].ranks_per_domain = Some(32);
    let claims = reconcile_reports(
        vec![slurm, ray],
        &ReconcileRules { order: vec![SourceFamily::Slurm], ..rules() },
    );
    assert!(
        claims.disagreements.iter().all(|d| d.severity == DisagreementSeverity::Note),
        "{claims:#?}"
    );
}

#[test]
fn a_head_without_gpus_needs_no_rank() {
    let mut ray = SourceReport::new(SourceKind::Ray, "ray.json");
    ray.node_mut(&"head".into());
    for (number, rank) in [(1, "1"), (2, "2")] {
        let words = ray.node_mut(&node(number));
        (words.gpus, words.topo_rank) = (Some(4), Some(rank.to_owned()));
    }
    let slurm = blocks(SourceKind::SlurmTopology, &[("a", nodes(1, 2))]);
    assert_eq!(reconciled(vec![slurm, ray]).disagreements, []);
}
