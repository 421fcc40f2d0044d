//! Combines the reports of all sources into one `Claims` value with their disagreements.
//!
//! Names are unified first. Then sources form layers: the one with the highest priority among
//! those with domains determines what is measured, later ones add nodes that it does not place.
//! All other reports are compared with that. No source is trusted here: the measurement decides
//! which one is right.

mod beliefs;
mod cables;
mod cliques;
mod context;
pub mod copies;
mod counts;
pub mod diff;
mod domains;
mod grouping_comparison;
mod grouping_conflicts;
mod groupings;
mod identity;
mod imex;
mod membership;
mod messages;
mod node_merge;
mod node_names;
mod normal_form;
mod out_of_service;
mod racks;
mod ranks;
mod slurm_consistency;
#[cfg(test)]
mod tests;

use super::reader_util::{push_problem, sanitize_text};
use super::single_node_domains;
use model::claims::{Claims, GroupAssertion, SourceSummary};
use model::disagreement::Disagreement;
use model::limits;
use model::source_report::{SourceFamily, SourceProblemKind, SourceReport};

use context::ReconcileContext;
pub use out_of_service::is_out_state;

/// Returns the platform (a name in `thresholds/`) for a product name and the number of GPUs.
pub type PlatformLookup<'p> = dyn Fn(&str, Option<u32>) -> Option<String> + 'p;

/// Returns whether NVLink ends at the node on the platform that a domain claims.
pub type NvlinkEndsAtNode<'p> = dyn Fn(Option<&str>) -> bool + 'p;

/// The priority of sources, and the operator's expectations for every node.
#[expect(missing_debug_implementations, reason = "holds a function")]
pub struct ReconcileRules<'r> {
    /// Families whose domains are measured, by priority. Families that are not listed are
    /// compared but never select what is measured; an empty list means all families in the order
    /// of [`SourceFamily::ALL`].
    pub order: Vec<SourceFamily>,
    /// Number of GPUs expected in every node by the operator.
    pub gpus_per_node: Option<u32>,
    /// Number of NICs of the compute network expected in every node by the operator.
    pub nics_per_node: Option<u32>,
    /// Returns the platform for a product name.
    pub platform_of: &'r PlatformLookup<'r>,
    /// Whether NVLink ends at the node on this claimed platform, or without one.
    pub ends_at_node: &'r NvlinkEndsAtNode<'r>,
}

/// One check, which appends its results.
type ReconcileCheck = fn(&ReconcileContext<'_>, &mut Vec<Disagreement>);

const CHECKS: &[ReconcileCheck] = &[
    grouping_conflicts::check_nodes_in_two_domains,
    grouping_conflicts::check_domains_against_groups,
    grouping_conflicts::check_split_fabrics,
    cliques::check_labels_against_drivers,
    cliques::check_mixed_gpus,
    cliques::check_sentinel_cliques,
    cliques::check_missing_labels,
    cliques::check_unattached_fabric,
    slurm_consistency::check_file_against_controller,
    slurm_consistency::check_overrides_against_file,
    slurm_consistency::check_imex_plugin,
    imex::check_domain_span,
    imex::check_compute_domain_sizes,
    imex::check_ready_without_clique,
    imex::check_status_against_label,
    membership::check_unknown_nodes,
    membership::check_unplaced_nodes,
    membership::check_missing_nodes,
    membership::check_extra_nodes,
    membership::check_domain_sizes,
    counts::check_gpu_counts,
    counts::check_nic_counts,
    counts::check_uniformity,
    counts::check_products,
    ranks::check_duplicate_ranks,
    ranks::check_unusable_ranks,
    ranks::check_rank_order,
    beliefs::check_ranks_per_domain,
    beliefs::check_multi_node_nvlink,
    cables::check_neighbours,
    cables::check_leaf_groups,
    racks::check_racks,
    racks::check_slots,
    out_of_service::check_opt_outs,
    out_of_service::check_out_of_service,
];

/// Drops counts above the limit and reports them: later allocations depend on such counts.
fn drop_excess_counts(report: &mut SourceReport) {
    let mut wrong = Vec::new();
    let mut drop_excess =
        |count: &mut Option<u32>, most, of: &str, at: &Option<String>, subject: &str| {
            let error = count.and_then(|count| limits::limit_error(count.into(), most, of));
            if let Some(why) = error {
                *count = None;
                wrong.push((at.clone(), format!("{subject}: {why}; the number is ignored")));
            }
        };
    for group in &mut report.groups {
        let subject = sanitize_text(&group.name);
        drop_excess(
            &mut group.gpus_per_node,
            limits::MAX_GPUS_PER_NODE,
            "GPUs per node",
            &group.at,
            &subject,
        );
        drop_excess(&mut group.size, limits::MAX_MEMBERS, "nodes", &group.at, &subject);
    }
    for (node, node_report) in &mut report.nodes {
        drop_excess(&mut node_report.gpus, limits::MAX_GPUS_PER_NODE, "GPUs", &None, node.as_str());
    }
    for belief in &mut report.beliefs {
        let (most, subject) = (limits::MAX_MEMBERS, sanitize_text(&belief.subject));
        drop_excess(
            &mut belief.ranks_per_domain,
            most,
            "ranks in one domain",
            &belief.at,
            &subject,
        );
    }
    for (at, message) in wrong {
        push_problem(report, SourceProblemKind::TooLarge, at, message);
    }
}

/// Combines the reports of the sources.
pub fn reconcile_reports(reports: Vec<SourceReport>, rules: &ReconcileRules<'_>) -> Claims {
    let mut reports = reports;
    reports.iter_mut().for_each(drop_excess_counts);
    let mut order: Vec<usize> = (0..reports.len()).collect();
    order.sort_by_key(|at| {
        let kind = reports[*at].source.kind;
        let family = groupings::family_rank(&rules.order, kind.family()).unwrap_or(usize::MAX);
        (family, groupings::kind_rank(kind), *at)
    });
    let mut found = Vec::new();
    node_names::unify_names(&mut reports, &order, &mut found);
    normal_form::normalise_reports(&mut reports);
    copies::mark_copies(&mut reports);
    let nodes = node_merge::merge_nodes(&reports, &order);

    let groupings = groupings::build_groupings(&reports, &rules.order);
    let placed = domains::place_domains(&reports, &groupings, rules);
    let leaves = domains::build_leaves(&groupings, &placed, rules);
    let rails = domains::build_rails(&reports, rules);
    let view = ReconcileContext::new(&reports, &groupings, &placed, rules);
    CHECKS.iter().for_each(|check| check(&view, &mut found));
    let domains = single_node_domains::split_domains(placed.domains, rules.ends_at_node);

    let mut claims = Claims { domains, leaves, rails, nodes, ..Claims::default() };
    for (source, one) in reports.into_iter().enumerate() {
        claims.beliefs.extend(one.beliefs);
        claims
            .assertions
            .extend(one.groups.into_iter().map(|group| GroupAssertion { source, group }));
        claims.sources.push(SourceSummary {
            source: one.source,
            settings: one.settings,
            notes: one.notes,
            problems: one.problems,
        });
    }
    claims.disagreements = messages::sort_and_merge(found);
    claims
}
