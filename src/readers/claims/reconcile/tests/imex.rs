//! ComputeDomains.

use super::*;

/// Nodes, and their clique in the status.
type ComputeDomainNode<'t> = (&'t [NodeName], Option<(&'t str, u32)>);

/// A ComputeDomain over these nodes, with their cliques in the status.
fn compute_domain(list: &[ComputeDomainNode<'_>], size: Option<u32>) -> SourceReport {
    let mut report = SourceReport::new(SourceKind::ComputeDomains, "computedomains.json");
    let all = list.iter().flat_map(|(nodes, _)| nodes.iter().cloned()).collect();
    let mut group = NodeGroup::new(NodeGroupKind::Imex, "ComputeDomain", "jobs/train", all);
    group.size = size;
    group.at = Some("computedomains.json: jobs/train".to_owned());
    report.groups.push(group);
    for (nodes, clique) in list {
        for node in *nodes {
            let clique_words = if clique.is_some() { "a clique" } else { "no clique" };
            let mark = ("ComputeDomain jobs/train".to_owned(), format!("Ready, {clique_words}"));
            report.node_mut(node).marks.extend([mark]);
            if let Some((uuid, id)) = clique {
                report.node_mut(node).fabric.push(label(uuid, *id));
            }
        }
    }
    report
}

fn racks() -> SourceReport {
    labelled(&[(UUID, 1, nodes(1, 4)), (OTHER, 1, nodes(5, 8))])
}

#[test]
fn inside_one_domain_a_compute_domain_is_fine() {
    let own = nodes(1, 3);
    let claims = reconciled(vec![racks(), compute_domain(&[(&own, Some((UUID, 1)))], Some(3))]);
    assert_eq!(claims.disagreements, [], "{:#?}", claims.disagreements);
    assert_eq!(claims.domains.len(), 2);
}

#[test]
fn over_two_domains_it_is_larger_than_the_fabric() {
    let (one, other) = (nodes(1, 3), nodes(5, 5));
    let report = compute_domain(&[(&one, Some((UUID, 1))), (&other, Some((OTHER, 1)))], None);
    let claims = reconciled(vec![racks(), report]);
    let disagreement = only(&claims, "imex-beyond-domain");
    assert_eq!(
        (disagreement.severity, &disagreement.nodes),
        (DisagreementSeverity::Contradiction, &other)
    );
    assert_eq!(disagreement.sides.len(), 3);
}

#[test]
fn fewer_nodes_than_requested_are_a_doubt_and_zero_requests_none() {
    let own = nodes(1, 3);
    let with =
        |size| reconciled(vec![racks(), compute_domain(&[(&own, Some((UUID, 1)))], Some(size))]);
    assert_eq!(only(&with(4), "imex-size").severity, DisagreementSeverity::Doubt);
    assert_eq!(with(0).disagreements, []);
}

#[test]
fn ready_without_a_clique_is_a_hidden_fallback() {
    let (good, bad) = (nodes(1, 3), nodes(4, 4));
    let report = compute_domain(&[(&good, Some((UUID, 1))), (&bad, None)], None);
    let claims = reconciled(vec![racks(), report]);
    let disagreement = only(&claims, "ready-without-clique");
    assert_eq!(disagreement.nodes, bad);
    assert!(disagreement.sides.iter().any(|side| side.text.contains(UUID)), "{disagreement:#?}");
}

#[test]
fn a_status_with_another_clique_than_the_label_is_reported() {
    let own = nodes(1, 3);
    let claims = reconciled(vec![racks(), compute_domain(&[(&own, Some((UUID, 2)))], None)]);
    assert!(
        claims
            .disagreements
            .iter()
            .any(|d| d.class.as_str() == "imex-against-clique" && d.nodes == own),
        "{:#?}",
        claims.disagreements
    );
}
