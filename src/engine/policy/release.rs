//! Decides which of fabricgate's drains may be released, and which nodes are certified.
//!
//! Pure. A release needs clean runs after the drain and a node in the state that the drain left; a
//! tripped breaker never blocks one.

use std::collections::BTreeMap;

use super::action_policy::Policy;
use super::clean::{CleanRunCount, count_clean_runs, min_clean_gap_s};
use super::journal_state::OwnDrain;
use super::situation::SchedulerKind;
use super::situation::{EvidenceRun, Situation};
use super::{certificate, command_line, evidence_checks, marks, node_state};
use model::action::{Action, ActionKind, VerdictMark, WithheldAction};
use model::claim_index::ClaimIndex;
use model::id::NodeName;
use model::node_update::{NodeStateChange, NodeUpdate};
use model::profile::Profile;
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::text::clean;
use model::time_format::{DAY_S, format_rfc3339};
use model::verdict::{NodeVerdict, Outcome};

/// Proposes releases and certificates, and lists what is withheld.
pub fn propose_releases(
    situation: &Situation<'_>,
    policy: &Policy,
) -> (Vec<Action>, Vec<WithheldAction>) {
    let mut proposal = ReleasePlanner {
        situation,
        policy,
        verdicts: situation.verdicts.nodes.iter().map(|v| (&v.node, v)).collect(),
        claim_index: ClaimIndex::from_claims(situation.fleet),
        actions: Vec::new(),
        withheld: Vec::new(),
    };
    for (node, drain) in &situation.ledger.drains {
        match proposal.release(node, drain) {
            Ok(action) => proposal.actions.push(action),
            Err(why) => proposal.withhold(node.as_str(), why),
        }
    }
    if let Some(live) = situation.live {
        proposal.certify(live);
    }
    (proposal.actions, proposal.withheld)
}

/// Whether a run counts towards a release: a full run of real nodes, under a profile that
/// measures everything.
pub fn is_full_run(run: &EvidenceRun, policy: &Policy) -> bool {
    let profile = Profile::parse(&run.profile);
    let all = matches!(profile, Some(Profile::BurnIn | Profile::Recertify));
    all && run.complete && is_eligible_run(run, policy) && 0 < run.created_unix
}

/// Whether a run is evidence about the scheduler's nodes.
pub(super) fn is_eligible_run(run: &EvidenceRun, policy: &Policy) -> bool {
    run.real || policy.simulated
}

struct ReleasePlanner<'a> {
    situation: &'a Situation<'a>,
    policy: &'a Policy,
    verdicts: BTreeMap<&'a NodeName, &'a NodeVerdict>,
    claim_index: ClaimIndex<'a>,
    actions: Vec<Action>,
    withheld: Vec<WithheldAction>,
}

/// Runs that a drained node passed, by time of creation.
type CleanRunsByTime<'a> = BTreeMap<(i64, &'a str), ()>;

impl<'a> ReleasePlanner<'a> {
    fn withhold(&mut self, what: &str, why: String) {
        self.withheld.push(WithheldAction::new(what, why));
    }

    /// The release of one node, or the reason why not yet.
    fn release(&self, node: &NodeName, drain: &'a OwnDrain) -> Result<Action, String> {
        if !node.is_one_node() {
            return Err(node_state::explain_not_one_node(node));
        }
        let Some(live) = self.situation.live else {
            return Err("drained by fabricgate; the scheduler was not queried".to_owned());
        };
        let Some(live) = live.nodes.get(node) else {
            return Err("drained by fabricgate; the scheduler does not know it now".to_owned());
        };
        if let Some(why) = node_state::explain_no_release(live, self.situation.ledger) {
            return Err(why);
        }
        if !live.has_state("DRAIN") {
            return Err("it is not drained any more".to_owned());
        }
        let (clean, stale) = self.clean_runs(node, drain, live)?;
        self.check_last_run(node, drain, &clean)?;
        let wanted = self.policy.clean_sweeps.max(1) as usize;
        let counted = count_clean_runs(clean.keys().copied(), min_clean_gap_s(self.policy));
        if counted.runs.len() < wanted {
            let now = self.situation.now.unix;
            return Err(describe_missing(&counted, stale, wanted, live, now)
                + &self.describe_early_run(node, drain));
        }
        let runs: Vec<&str> = clean.keys().map(|(_, run)| *run).collect();
        let mark = self.mark_of(&clean, drain, live);
        let (kind, names) = (ActionKind::Release, &self.policy.marks);
        let change = NodeUpdate {
            state: Some(NodeStateChange::Resume),
            ..marks::change_beside_action(kind, live, &mark, names)
        };
        Ok(Action {
            command: command_line::to_command_line(node, &change, SchedulerKind::from_node(live)),
            mark: Some(mark),
            findings: drain.action.findings.clone(),
            why: format!("drained for run {}; passed {} since", drain.run, join_runs(&runs)),
            ..self.new_action(ActionKind::Release, node)
        })
    }

    /// The runs that count, and the number of those from an earlier boot.
    fn clean_runs(
        &self,
        node: &NodeName,
        drain: &'a OwnDrain,
        live: &SchedulerNode,
    ) -> Result<(CleanRunsByTime<'a>, usize), String> {
        let then = &drain.before;
        let moved = matches!((&then.instance, &live.instance), (Some(a), Some(b)) if a != b);
        let had_boot = then.booted.is_some() || then.boot_id.is_some();
        let is_untold = live.booted.is_none() && live.boot_id.is_none();
        if is_untold && (moved || had_boot) {
            let what = if moved { "it is another machine" } else { "it may have booted" };
            return Err(format!(
                "{what} since it was drained, and the scheduler reports no boot time, so it is \
                 unknown whether any run measured it"
            ));
        }
        if self.situation.now.unix < self.begun_unix(drain) {
            return Err(format!(
                "it was drained at {}, which is in the future: a clock was set back",
                drain.stamp.at
            ));
        }
        let run = self.situation.run;
        let passed = self.verdicts.get(node).is_some_and(|v| v.outcome == Outcome::Pass);
        let boot = self.situation.boots.get(node).map(String::as_str);
        let at_hand = (is_full_run(run, self.policy) && passed).then_some((
            run.created_unix,
            run.id.as_str(),
            boot,
        ));
        let noted = drain.clean.iter();
        let noted = noted.map(|it| (it.measured, it.run.as_str(), it.boot_id.as_deref()));
        let after: BTreeMap<&str, (i64, Option<&str>)> = noted
            .chain(at_hand)
            .filter(|(measured, run, _)| self.begun_unix(drain) < *measured && *run != drain.run)
            // A run with the same time may have been made before the drain.
            .filter(|(measured, ..)| {
                !evidence_checks::is_in_future(*measured, self.situation.now.unix)
            })
            .map(|(measured, run, boot)| (run, (measured, boot)))
            .collect();
        // A machine that booted since needs runs of its present boot: links train again, and it may
        // be another machine.
        let own = |(measured, boot): (i64, Option<&str>)| {
            evidence_checks::is_of_this_boot(live, boot, measured)
        };
        let all = after.len();
        let clean: CleanRunsByTime<'_> = after
            .into_iter()
            .filter(|(_, at)| own(*at))
            .map(|(run, (measured, _))| ((measured, run), ()))
            .collect();
        let stale = all - clean.len();
        Ok((clean, stale))
    }

    /// When a drain was started, by the present clock.
    fn begun_unix(&self, drain: &OwnDrain) -> i64 {
        evidence_checks::moment_unix(&drain.stamp, self.situation.now)
    }

    /// Describes a current run that started before the drain and would count otherwise.
    fn describe_early_run(&self, node: &NodeName, drain: &OwnDrain) -> String {
        let run = self.situation.run;
        let passed = self.verdicts.get(node).is_some_and(|v| v.outcome == Outcome::Pass);
        let is_early = run.created_unix <= self.begun_unix(drain) && run.id != drain.run;
        if !passed || !is_early || !is_full_run(run, self.policy) {
            return String::new();
        }
        let (id, created, drained) = (&run.id, clean(&run.created), &drain.stamp.at);
        format!(
            "; run {id} does not count: it was started at {created}, before the drain at {drained}"
        )
    }

    /// Earlier clean runs do not count if the current run measured the node and did not pass
    /// it.
    fn check_last_run(
        &self,
        node: &NodeName,
        drain: &OwnDrain,
        clean: &CleanRunsByTime<'_>,
    ) -> Result<(), String> {
        let run = self.situation.run;
        let newest =
            clean.keys().next_back().map_or(self.begun_unix(drain), |(measured, _)| *measured);
        let Some(verdict) = self.verdicts.get(node) else { return Ok(()) };
        let is_news =
            is_eligible_run(run, self.policy) && run.id != drain.run && newest <= run.created_unix;
        if is_news && verdict.outcome != Outcome::Pass {
            return Err(format!(
                "drained by fabricgate, and run {} reports {}: {}",
                run.id, verdict.outcome, verdict.reason
            ));
        }
        Ok(())
    }

    /// The mark for a node that passed these runs; the newest decides.
    fn mark_of(
        &self,
        clean: &CleanRunsByTime<'_>,
        drain: &OwnDrain,
        live: &SchedulerNode,
    ) -> VerdictMark {
        let run = self.situation.run;
        let (measured, id) = clean.keys().next_back().copied().unwrap_or_default();
        // The profile of an earlier run is not recorded, so the shorter validity counts.
        let days = match Profile::parse(&run.profile).filter(|_| id == run.id) {
            Some(profile) => certificate::certificate_days(profile, self.policy),
            None => [Profile::BurnIn, Profile::Recertify]
                .map(|profile| certificate::certificate_days(profile, self.policy))
                .into_iter()
                .fold(u32::MAX, u32::min),
        };
        let days = i64::from(days);
        let at = if id == run.id { run.created.clone() } else { format_rfc3339(measured) };
        let mark = VerdictMark {
            outcome: Outcome::Pass,
            class: None,
            run: id.to_owned(),
            at,
            expires: Some(format_rfc3339(measured.saturating_add(days.saturating_mul(DAY_S)))),
            boot_id: None,
            domain: None,
        };
        let verdict = self.verdicts.get(&live.name).and_then(|verdict| verdict.domain.as_ref());
        let mark = marks::with_domain_and_boot(
            mark,
            self.situation,
            live,
            verdict.or(drain.action.domain.as_ref()),
        );
        // Every run that counts is of the node's present boot; the current run may be of an
        // earlier one.
        let boot_id = live.kubernetes.as_ref().and(live.boot_id.clone());
        VerdictMark { boot_id: boot_id.filter(|_| self.policy.certificate_void.boot), ..mark }
    }

    /// Certificates for nodes that passed. `marks` restores earlier marks that Slurm forgot.
    fn certify(&mut self, live: &'a SchedulerSnapshot) {
        let situation = self.situation;
        let run = situation.run;
        let now = situation.now.unix;
        let mark = match certificate::remaining_validity_s(run, self.policy, now) {
            Ok(seconds) => VerdictMark {
                outcome: Outcome::Pass,
                class: None,
                run: run.id.clone(),
                at: run.created.clone(),
                expires: Some(format_rfc3339(run.created_unix.saturating_add(seconds))),
                boot_id: None,
                domain: None,
            },
            Err(why) => {
                if self.verdicts.values().any(|v| v.outcome == Outcome::Pass) {
                    self.withhold("certificates", why);
                }
                return;
            }
        };
        let passed: Vec<&'a NodeName> = self
            .verdicts
            .iter()
            .filter(|(_, verdict)| verdict.outcome == Outcome::Pass)
            .map(|(node, _)| *node)
            .collect();
        for node in passed {
            // The release marks it, or its drain contradicts a pass.
            if situation.ledger.drains.contains_key(node) {
                continue;
            }
            match self.certify_node(node, &mark, live) {
                Ok(Some(action)) => self.actions.push(action),
                Ok(None) => {}
                Err(why) => self.withhold(node.as_str(), format!("passed, not certified: {why}")),
            }
        }
    }

    /// The certificate of one node; `None` if the node is marked with it already.
    fn certify_node(
        &self,
        node: &NodeName,
        mark: &VerdictMark,
        live: &SchedulerSnapshot,
    ) -> Result<Option<Action>, String> {
        if !node.is_one_node() {
            return Err(node_state::explain_not_one_node(node));
        }
        let live = live.nodes.get(node).ok_or("the scheduler does not know it")?;
        let measured = self.situation.boots.get(node);
        let refusal = node_state::explain_no_certificate(live)
            .or_else(|| {
                certificate::explain_refusal(live, measured, self.situation.run, self.policy)
            })
            // A mark must not claim more than its certificate.
            .or_else(|| self.situation.run.unsure.get(node).cloned());
        if let Some(why) = refusal {
            return Err(why);
        }
        let names = &self.policy.marks;
        let run = self.situation.run;
        let mut why = format!("passed run {} ({})", run.id, run.profile);
        let domain = self.verdicts.get(node).and_then(|verdict| verdict.domain.as_ref());
        let mut mark = marks::with_domain_and_boot(mark.clone(), self.situation, live, domain);
        if !self.policy.certificate_void.boot {
            // If a boot does not void it, the mark names no boot and counts in the next boot as
            // well.
            mark.boot_id = None;
        }
        if let Some((existing, longer)) = self.longer_mark(live, &mark) {
            // Restores lost entries and removes the start-up taint; on Slurm,
            // `marks::find_lost_marks` restores them.
            if live.kubernetes.is_none() || marks::has_mark(live, existing, names) {
                return Err(longer);
            }
            why = format!("{why}; {longer}");
            mark = existing.clone();
        }
        let change = marks::change_beside_action(ActionKind::Certify, live, &mark, names);
        if change.is_empty() {
            let unwritable = marks::explain_unwritable(live, &mark, names);
            return unwritable.into_iter().next().map_or(Ok(None), Err);
        }
        Ok(Some(Action {
            command: command_line::to_command_line(node, &change, SchedulerKind::from_node(live)),
            mark: Some(mark),
            why,
            ..self.new_action(ActionKind::Certify, node)
        }))
    }

    /// Why the earlier mark stays: it counts for longer.
    fn longer_mark(
        &self,
        live: &SchedulerNode,
        mark: &VerdictMark,
    ) -> Option<(&'a VerdictMark, String)> {
        let existing = self.situation.ledger.marks.get(&live.name)?;
        let (until, new) = (existing.expires.as_deref()?, mark.expires.as_deref()?);
        let by_time =
            || live.booted.is_none_or(|booted| is_later(&existing.at, &format_rfc3339(booted)));
        let of_this_boot =
            evidence_checks::is_of_boot(live, existing.boot_id.as_deref()).unwrap_or_else(by_time);
        let why = || {
            format!(
                "an earlier certificate counts for longer: until {until} by run {}",
                existing.run
            )
        };
        (existing.outcome == Outcome::Pass && of_this_boot && is_later(until, new))
            .then(|| (existing, why()))
    }

    /// An action with only its kind, node and control plane set.
    fn new_action(&self, kind: ActionKind, node: &NodeName) -> Action {
        Action {
            domain: self.claim_index.domain_name_of(node).cloned(),
            ..Action::new(kind, node.clone())
        }
    }
}

/// Describes the runs still missing for a release.
fn describe_missing(
    clean: &CleanRunCount<'_>,
    stale: usize,
    wanted: usize,
    live: &SchedulerNode,
    now: i64,
) -> String {
    let runs: Vec<&str> = clean.runs.iter().map(|(_, run)| *run).collect();
    let has = match runs.as_slice() {
        [] => "drained by fabricgate, and has passed no full run since".to_owned(),
        runs => format!("drained by fabricgate, and has passed {} since", join_runs(runs)),
    };
    let mut why = format!(
        "{has}; {wanted} under recertify or burn-in release it, {} missing",
        match wanted - runs.len() {
            1 => "one is".to_owned(),
            more => format!("{more} are"),
        }
    );
    if !clean.early.is_empty() {
        let were = if clean.early.len() == 1 { "was" } else { "were" };
        why.push_str(&format!("; {} {were} made too soon after it", join_runs(&clean.early)));
    }
    if let Some(wait) = clean.explain_wait(now) {
        why.push_str(&format!("; {wait} (clean_hours)"));
    }
    if 0 < stale {
        let when = match live.boot_id {
            Some(_) => "in another or an unknown boot",
            None => "before its last boot",
        };
        why.push_str(&format!("; {stale} made {when} do not count"));
    }
    why
}

/// A list of runs as text for users.
fn join_runs(runs: &[&str]) -> String {
    match runs {
        [] => "no run".to_owned(),
        [one] => format!("run {one}"),
        [first, .., last] if 3 < runs.len() => {
            format!("{} runs from {first} to {last}", runs.len())
        }
        [before @ .., last] => format!("runs {} and {last}", before.join(", ")),
    }
}

/// Whether one time, RFC 3339 in UTC, is after another, to the second.
fn is_later(a: &str, b: &str) -> bool {
    let second = |text: &str| text.get(.."2026-03-04T05:06:07".len()).map(str::to_owned);
    matches!((second(a), second(b)), (Some(a), Some(b)) if b < a)
}

#[cfg(test)]
#[path = "release_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "release_kubernetes_tests.rs"]
mod kubernetes_tests;
