//! One `Claims` value from what all sources say, with their disagreements.
//!
//! Names are unified first, then sources lie in layers: the weightiest that says
//! domains says what is measured, later ones add nodes that it does not place.
//! Every other word is held against that. Nobody is believed here: who is right
//! is measured later.

mod beliefs;
mod blocks;
mod cables;
mod cliques;
mod compare;
pub mod copies;
mod counts;
pub mod diff;
mod domains;
mod groupings;
mod identity;
mod imex;
mod in_force;
mod marks;
mod members;
mod merge;
mod names;
mod normal;
mod racks;
mod ranks;
#[cfg(test)]
mod tests;
mod view;
mod words;

use super::per_node;
use super::reading::complain;
use super::reading::plain;
use model::claims::Assertion;
use model::claims::Claims;
use model::claims::SourceRead;
use model::disagreement::Disagreement;
use model::limits;
use model::said::Family;
use model::said::ProblemKind;
use model::said::Said;

pub use marks::is_out;
use view::View;

/// Tells the platform (a name in `thresholds/`) from a product name and the
/// number of GPUs.
pub type PlatformOf<'p> = dyn Fn(&str, Option<u32>) -> Option<String> + 'p;

/// Tells from the platform that a domain claims whether NVLink ends at the node.
pub type EndsAtNode<'p> = dyn Fn(Option<&str>) -> bool + 'p;

/// How sources are weighed, and what a person expects of every node.
#[expect(missing_debug_implementations, reason = "holds a function")]
pub struct Rules<'r> {
    /// Whose domains are measured: the first family that says any. Families
    /// that are left out are compared and never measured by; without any, all
    /// count in the order of [`Family::ALL`].
    pub order: Vec<Family>,
    /// GPUs every node must have, where a person said.
    pub gpus_per_node: Option<u32>,
    /// NICs of the compute network every node must have, where a person said.
    pub nics_per_node: Option<u32>,
    /// Tells the platform from a product name.
    pub platform_of: &'r PlatformOf<'r>,
    /// Whether NVLink ends at the node where a domain claims this platform, or none.
    pub ends_at_node: &'r EndsAtNode<'r>,
}

/// One check: what it finds, it adds.
type Check = fn(&View<'_>, &mut Vec<Disagreement>);

/// All checks.
const CHECKS: &[Check] = &[
    blocks::twice,
    blocks::domains_against_groups,
    blocks::split_fabrics,
    cliques::labels_against_drivers,
    cliques::mixed_gpus,
    cliques::sentinels,
    cliques::missing_labels,
    cliques::not_attached,
    in_force::file_against_controller,
    in_force::overrides_against_file,
    in_force::imex_plugin,
    imex::larger_than_domain,
    imex::sizes,
    imex::ready_without_clique,
    imex::status_against_label,
    members::unknown_to_scheduler,
    members::in_no_domain,
    members::missing,
    members::extra,
    members::sizes,
    counts::gpus,
    counts::nics,
    counts::alike,
    counts::products,
    ranks::duplicates,
    ranks::unusable,
    ranks::order,
    beliefs::ranks,
    beliefs::multi_node,
    cables::against_neighbours,
    cables::leaves,
    racks::shared,
    racks::slots,
    marks::opted_out,
    marks::out_of_service,
];

/// Leaves out counts beyond what is taken in, and says so: whatever is made of a count
/// later is of that size.
fn within_limits(said: &mut Said) {
    let mut wrong = Vec::new();
    let mut held = |count: &mut Option<u32>, most, of: &str, at: &Option<String>, who: &str| {
        let told = count.and_then(|count| limits::over(count.into(), most, of));
        if let Some(why) = told {
            *count = None;
            wrong.push((at.clone(), format!("{who}: {why}; the number is left out")));
        }
    };
    for group in &mut said.groups {
        let who = plain(&group.name);
        held(&mut group.gpus_per_node, limits::GPUS_PER_NODE, "GPUs per node", &group.at, &who);
        held(&mut group.size, limits::MEMBERS, "nodes", &group.at, &who);
    }
    for (node, says) in &mut said.nodes {
        held(&mut says.gpus, limits::GPUS_PER_NODE, "GPUs", &None, node.as_str());
    }
    for belief in &mut said.beliefs {
        let (most, who) = (limits::MEMBERS, plain(&belief.who));
        held(&mut belief.ranks_per_domain, most, "ranks in one domain", &belief.at, &who);
    }
    for (at, message) in wrong {
        complain(said, ProblemKind::TooLarge, at, message);
    }
}

/// Weighs what the sources say.
pub fn reconcile(said: Vec<Said>, rules: &Rules<'_>) -> Claims {
    let mut said = said;
    said.iter_mut().for_each(within_limits);
    let mut order: Vec<usize> = (0..said.len()).collect();
    order.sort_by_key(|at| {
        let kind = said[*at].source.kind;
        let family = groupings::family_rank(&rules.order, kind.family()).unwrap_or(usize::MAX);
        (family, groupings::kind_rank(kind), *at)
    });
    let mut found = Vec::new();
    names::unify(&mut said, &order, &mut found);
    normal::normalise(&mut said);
    copies::mark(&mut said);
    let nodes = merge::nodes(&said, &order);

    let groupings = groupings::groupings(&said, &rules.order);
    let placed = domains::domains(&said, &groupings, rules);
    let leaves = domains::leaves(&groupings, &placed, rules);
    let rails = domains::rails(&said, rules);
    let view = View::of(&said, &groupings, &placed, rules);
    CHECKS.iter().for_each(|check| check(&view, &mut found));
    let domains = per_node::split(placed.domains, rules.ends_at_node);

    let mut claims = Claims { domains, leaves, rails, nodes, ..Claims::default() };
    for (source, one) in said.into_iter().enumerate() {
        claims.beliefs.extend(one.beliefs);
        claims.assertions.extend(one.groups.into_iter().map(|group| Assertion { source, group }));
        claims.sources.push(SourceRead {
            source: one.source,
            settings: one.settings,
            notes: one.notes,
            problems: one.problems,
        });
    }
    claims.disagreements = words::ordered(found);
    claims
}
