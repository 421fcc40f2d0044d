//! Marks that differ from the journal or no longer count, and the changes that correct them without
//! a measurement.
//!
//! Pure. `marks` decides what is removed. A site may also request that a node with an expired
//! certificate takes no new pods until it is measured, within a budget: certificates of one day all
//! end on one day.

use std::collections::{BTreeMap, BTreeSet};

use super::eligibility;
use crate::policy::action_policy::Policy;
use crate::policy::journal_state::JournalState;
use crate::policy::{evidence_checks, marks, node_state};
use model::action::{ActionKind, VerdictMark};
use model::claim_index::ClaimIndex;
use model::claims::Claims;
use model::id::{DomainName, NodeName};
use model::journal::ClockStamp;
use model::kubernetes_node::{KubernetesNodeUpdate, NO_SCHEDULE, TaintEdit, UNVERIFIED};
use model::node_update::NodeUpdate;
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};

/// The changes to write, with their reasons.
pub fn collect_mark_edits(
    live: &SchedulerSnapshot,
    ledger: &JournalState,
    policy: &Policy,
    now: &ClockStamp,
) -> Vec<(NodeName, String)> {
    let edit_reason = |change: &NodeUpdate| {
        let condition = change.kubernetes.as_ref().and_then(|it| it.condition.as_ref());
        match condition {
            Some(it) if it.status == "Unknown" => it.message.clone(),
            _ if change.kubernetes.is_none() && removes_marks(change, policy) => {
                "its certificate has expired, or it has booted since".to_owned()
            }
            _ => "they differ from fabricgate's journal".to_owned(),
        }
    };
    let wrong = marks::find_lost_marks(live, ledger, policy, now);
    wrong.into_iter().map(|(node, change)| (node, edit_reason(&change))).collect()
}

fn removes_marks(change: &NodeUpdate, policy: &Policy) -> bool {
    let lists = [&change.available_features, &change.active_features];
    let lists_name = |name: &String| lists.iter().copied().flatten().flatten().any(|it| it == name);
    lists.iter().any(|list| list.is_some())
        && !lists_name(&policy.marks.verified)
        && !lists_name(&policy.marks.degraded)
}

/// Nodes that get the start-up taint again because their certificate no longer counts: in service,
/// and not held by others. The share of the fleet that may be drained also limits the nodes kept
/// from jobs in this way, regardless of the party that set the taint; the limit per domain applies
/// too. None while the breaker is tripped.
pub fn collect_taint_edits(
    live: &SchedulerSnapshot,
    fleet: &Claims,
    ledger: &JournalState,
    policy: &Policy,
    now: &ClockStamp,
) -> Vec<(NodeName, NodeUpdate)> {
    if ledger.breaker.is_some() {
        return Vec::new();
    }
    let claim_index = ClaimIndex::from_claims(fleet);
    let open = ledger.open_intents.iter().map(|open| &open.action);
    let open = open.filter(|action| action.kind == ActionKind::Drain).map(|action| &action.node);
    let begun: BTreeSet<&NodeName> = open.chain(ledger.drains.keys()).collect();
    let mut out: BTreeMap<&DomainName, usize> = BTreeMap::new();
    let mut tainted = 0;
    for (name, node) in &live.nodes {
        let is_out = eligibility::is_unverified(node) || begun.contains(name);
        tainted += usize::from(is_out);
        if let Some(domain) = claim_index.domain_name_of(name)
            && is_out
        {
            *out.entry(domain).or_default() += 1;
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a fleet has far fewer than 2^52 nodes")]
    let share = claim_index.node_count() as f64 * policy.outstanding;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a fleet is neither negative nor beyond it"
    )]
    let share = share.floor().max(0.0) as usize;
    let most = if policy.outstanding <= 0.0 { 0 } else { share.max(1) };
    let edit = TaintEdit {
        key: UNVERIFIED.to_owned(),
        effect: NO_SCHEDULE.to_owned(),
        value: Some(String::new()),
    };
    let marks = KubernetesNodeUpdate { taints: vec![edit], ..KubernetesNodeUpdate::default() };
    let change = NodeUpdate { kubernetes: Some(marks), ..NodeUpdate::default() };
    let mut named = Vec::new();
    for name in ledger.marks.keys() {
        let (Some(node), Some(domain)) = (live.nodes.get(name), claim_index.domain_name_of(name))
        else {
            continue;
        };
        let of_domain = out.entry(domain).or_default();
        let is_free = *of_domain < policy.per_domain && tainted + named.len() < most;
        if is_free && !begun.contains(name) && can_taint(node, ledger, policy, now) {
            *of_domain += 1;
            named.push((name.clone(), change.clone()));
        }
    }
    named
}

/// Whether a node may get the start-up taint again: in service, with a certificate that no
/// longer counts.
pub fn can_taint(
    node: &SchedulerNode,
    ledger: &JournalState,
    policy: &Policy,
    now: &ClockStamp,
) -> bool {
    let counts_no_more =
        |mark: &VerdictMark| marks::explain_expired(node, mark, policy, now).is_some();
    node.kubernetes.as_ref().is_some_and(|it| it.left_alone.is_empty())
        && !node_state::is_out(node)
        && !ledger.drains.contains_key(&node.name)
        && evidence_checks::explain_slurm_owned(node, policy).is_none()
        && ledger.marks.get(&node.name).is_some_and(counts_no_more)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::action_policy::SlinkyOwner;
    use crate::policy::fixture::PolicyFixture;
    use crate::policy::journal_state::BreakerTrip;
    use model::kubernetes_node::{FabricNodeCondition, KubernetesNode, VERDICT};
    use model::time_format::format_rfc3339;
    use model::verdict::Outcome;

    /// Nodes that passed a day ago, with one hour of validity.
    fn expired(nodes: usize) -> PolicyFixture {
        let mut world = PolicyFixture::with_blocks(1, nodes);
        world.now.at = format_rfc3339(world.now.unix);
        for at in 0..nodes {
            let name = format!("d0n{at}");
            let mark = VerdictMark {
                outcome: Outcome::Pass,
                class: None,
                run: "r1".to_owned(),
                at: format_rfc3339(world.now.unix - 86_400),
                expires: Some(format_rfc3339(world.now.unix - 82_800)),
                domain: None,
                boot_id: None,
            };
            let (status, reason) = ("True".to_owned(), "Verified".to_owned());
            let condition = Some(FabricNodeCondition { status, reason, message: String::new() });
            let labels = [(VERDICT.to_owned(), "pass".to_owned())].into();
            let node = KubernetesNode { condition, labels, ..KubernetesNode::default() };
            world.node(&name).kubernetes = Some(Box::new(node));
            world.ledger.marks.insert(name.into(), mark);
        }
        world
    }

    #[test]
    fn an_expired_pass_is_withdrawn_with_its_end_and_only_after_it() {
        let mut world = expired(2);
        let live = world.live.clone().expect("a scheduler");
        let edits = collect_mark_edits(&live, &world.ledger, &world.policy, &world.now);
        assert_eq!(edits.len(), 2);
        assert!(edits[0].1.contains("which counted until"), "{edits:?}");
        let mark = world.ledger.marks.get_mut(&NodeName::from("d0n0")).expect("a mark");
        mark.expires = Some(format_rfc3339(world.now.unix + 60));
        let edits = collect_mark_edits(&live, &world.ledger, &world.policy, &world.now);
        let ended = edits.iter().filter(|(_, why)| why.contains("counted until"));
        assert_eq!(ended.map(|it| it.0.as_str()).collect::<Vec<_>>(), ["d0n1"]);
    }

    #[test]
    fn slurms_feature_of_what_expired_is_taken_off_and_others_stay() {
        let mut world = expired(1);
        let mark = world.ledger.marks[&NodeName::from("d0n0")].clone();
        let node = world.node("d0n0");
        node.kubernetes = None;
        node.available_features = ["ib", "fabric_verified"].map(str::to_owned).into();
        node.active_features.clone_from(&node.available_features);
        let marked = marks::mark_change(node, &mark, &Policy::default().marks);
        node.extra = marked.extra.expect("an entry");
        let live = world.live.clone().expect("a scheduler");
        let edits = collect_mark_edits(&live, &world.ledger, &world.policy, &world.now);
        let why = "its certificate has expired, or it has booted since".to_owned();
        assert_eq!(edits, [("d0n0".into(), why)]);
        let changes = marks::find_lost_marks(&live, &world.ledger, &world.policy, &world.now);
        assert_eq!(changes[0].1.active_features, Some(vec!["ib".to_owned()]));
        assert_eq!(changes[0].1.extra, None);
        // Applied: no further change is needed.
        let node = world.node("d0n0");
        node.available_features = vec!["ib".to_owned()];
        node.active_features = vec!["ib".to_owned()];
        let live = world.live.clone().expect("a scheduler");
        assert_eq!(collect_mark_edits(&live, &world.ledger, &world.policy, &world.now), []);
    }

    #[test]
    fn the_taint_comes_back_for_a_share_of_the_fleet_at_most() {
        let mut world = expired(10);
        world.policy.outstanding = 0.3;
        world.policy.per_domain = 10;
        let live = world.live.clone().expect("a scheduler");
        let get = |world: &PolicyFixture, live: &SchedulerSnapshot| {
            collect_taint_edits(live, &world.fleet, &world.ledger, &world.policy, &world.now).len()
        };
        assert_eq!(get(&world, &live), 3);
        world.state("d0n9", &["IDLE", "UNVERIFIED"]);
        let live = world.live.clone().expect("a scheduler");
        assert_eq!(get(&world, &live), 2, "regardless of its author");
        world.policy.outstanding = 0.0;
        assert_eq!(get(&world, &live), 0);
    }

    fn tainted(world: &PolicyFixture) -> Vec<String> {
        let live = world.live.as_ref().expect("a scheduler");
        let got = collect_taint_edits(live, &world.fleet, &world.ledger, &world.policy, &world.now);
        got.into_iter().map(|(node, _)| node.to_string()).collect()
    }

    #[test]
    fn drains_count_against_the_share_too() {
        let mut world = expired(10);
        (world.policy.outstanding, world.policy.per_domain) = (0.3, 10);
        world.drained("d0n9", "nvlink-low", 0.9, 60);
        assert_eq!(tainted(&world), ["d0n0", "d0n1"]);
    }

    #[test]
    fn the_taint_comes_back_after_a_boot_too_and_never_on_what_is_out_or_others() {
        let mut world = expired(4);
        (world.policy.outstanding, world.policy.per_domain) = (1.0, 10);
        world.policy.slinky = SlinkyOwner::Kubernetes;
        for (at, mark) in world.ledger.marks.values_mut().enumerate() {
            mark.expires = Some(format_rfc3339(world.now.unix + 3_600));
            mark.boot_id = Some("b-1".to_owned());
            let boot = if at == 0 { "b-1" } else { "b-2" };
            let live = world.live.as_mut().expect("a scheduler");
            let node =
                live.nodes.get_mut(&NodeName::from(format!("d0n{at}").as_str())).expect("there");
            node.boot_id = Some(boot.to_owned());
        }
        assert_eq!(tainted(&world), ["d0n1", "d0n2", "d0n3"]);
        world.state("d0n1", &["IDLE", "CORDONED"]);
        world.node("d0n2").kubernetes.as_mut().expect("one").left_alone = vec!["k=v".to_owned()];
        let slinky = world.node("d0n3").kubernetes.as_mut().expect("one");
        slinky.slinky = true;
        assert_eq!(tainted(&world), ["d0n3"]);
        world.policy.slinky = SlinkyOwner::Slurm;
        assert_eq!(tainted(&world), [""; 0], "the gate of Slurm has it");
    }

    #[test]
    fn no_domain_loses_more_to_the_taint_than_to_drains_and_none_anything_to_a_tripped_breaker() {
        let mut world = expired(6);
        (world.policy.outstanding, world.policy.per_domain) = (1.0, 2);
        assert_eq!(tainted(&world), ["d0n0", "d0n1"]);
        world.state("d0n5", &["IDLE", "UNVERIFIED"]);
        assert_eq!(tainted(&world), ["d0n0"]);
        world.ledger.breaker = Some(BreakerTrip {
            stamp: ClockStamp::default(),
            why: String::new(),
            run: String::new(),
        });
        assert_eq!(tainted(&world), [""; 0]);
    }
}
