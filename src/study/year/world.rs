//! One world over a year under one rule: audits at night, operators by day.

mod levels;
mod operators;

use std::collections::{BTreeMap, BTreeSet};

use super::drift::DriftTracker;
use super::fault::{YearFault, YearFaultClass};
use super::fleet::{FleetPosition, NODES, YearFleet};
use super::gate::{YearGate, YearRun, to_unix};
use super::meter::{ReadingRatio, YearMeter, YearPartState};
use super::rule::{SchemeSettings, YearRule};
use super::score::{WrongDrainCause, YearScore};
use super::transients::{DAY_S, TransientSchedule, draw_one};
use super::{YearSetting, fault, meter};
use crate::sweep;
use crate::sweep::{StudyReference, StudySweep};
use engine::judge::run_summary;
use engine::plan;
use engine::plan::audit_selection::{AuditBudget, AuditNodeState, AuditSelectionRequest};
use engine::plan::{PlanLimits, PlanRequest, audit_selection};
use engine::policy::action_policy::Policy;
use engine::thresholds::{PlatformCatalogue, builtin};
use model::action::ActionKind;
use model::claims::Claims;
use model::id::NodeName;
use model::part_history::PartHistory;
use model::probe::Probe;
use model::profile::Profile;
use model::time_format::format_rfc3339;
use model::verdict::{Finding, LocusKind, Outcome, Verdicts};
use readers::probe_catalog::ProbeCatalog;
use sim::noise::NoiseKey;

/// Start of an audit and of the operators' day, in seconds of a day.
const AUDIT_S: f64 = 2.0 * 3_600.0;
const OPERATORS_S: f64 = 10.0 * 3_600.0;
/// Time between two tests of a repaired node, in seconds.
const RETEST_GAP_S: f64 = 5_400.0;

/// Duration of a repair in days, with equal probability; and of an inspection without a result.
const REPAIR_DAYS: [f64; 8] = [0.5, 1.0, 1.0, 2.0, 2.0, 3.0, 5.0, 10.0];
const INSPECTION_DAYS: [f64; 4] = [0.3, 0.5, 1.0, 2.0];
/// A fault without an action for this many days is missed.
const MISSED_DAYS: f64 = 14.0;
/// Number of earlier runs used as references, if any.
const HISTORY_RUNS: usize = 20;
/// Concurrent steps: more than the number of pairs.
const PARALLEL: usize = 4_096;

#[derive(Clone, Copy, Debug)]
struct FaultRecord {
    fault: YearFault,
    reported_s: Option<f64>,
    acted_s: Option<f64>,
    repaired_s: Option<f64>,
}

impl FaultRecord {
    fn is_present(&self, at_s: f64) -> bool {
        self.fault.from_s <= at_s && self.repaired_s.is_none()
    }
}

/// A node that the rule drained.
#[derive(Clone, Copy, Debug)]
struct DrainedNode {
    since_s: f64,
    is_wrong: bool,
    /// When the operators have finished.
    ready_s: f64,
    repair_count: u64,
}

struct YearWorld<'r> {
    rule: &'r YearRule,
    setting: &'r YearSetting,
    key: NoiseKey,
    fleet: YearFleet,
    transients: TransientSchedule,
    faults: Vec<FaultRecord>,
    parts: YearPartState,
    gate: YearGate,
    drained: BTreeMap<FleetPosition, DrainedNode>,
    /// End of the operators' own use of a node.
    manual_holds: BTreeMap<FleetPosition, f64>,
    known: BTreeMap<NodeName, AuditNodeState>,
    /// Nodes that passed the last run that measured them.
    passed: BTreeSet<NodeName>,
    history: Vec<(String, run_summary::RunSummary)>,
    drift: DriftTracker,
    catalog: ProbeCatalog,
    expected: PlatformCatalogue,
    /// Audits that found everything low by the same share.
    uniform_low: Option<levels::UniformLowAudits>,
    score: YearScore,
}

/// Simulates the year of one world under one rule.
pub(super) fn run_year(setting: &YearSetting, rule: &YearRule, world: usize) -> YearScore {
    let key = NoiseKey::from_seed(setting.seed).with_name("year").with_part(world as u64);
    let fleet = YearFleet::new(setting.racks);
    let transients =
        TransientSchedule::new(key, setting.transient_rates, setting.days, setting.racks);
    let troubles = fault::draw_faults(key, &fleet, setting.days, setting.fault_factor);
    let open =
        |trouble| FaultRecord { fault: trouble, reported_s: None, acted_s: None, repaired_s: None };
    let policy = match rule {
        YearRule::Scheme(scheme) => scheme.policy.clone(),
        YearRule::Floor(_) | YearRule::Retest(_) | YearRule::BelowMedian(_) => Policy::default(),
    };
    let gate = YearGate::new(policy, &fleet.claims);
    let mut world = YearWorld {
        rule,
        setting,
        key,
        fleet,
        transients,
        faults: troubles.into_iter().map(open).collect(),
        parts: YearPartState::default(),
        gate,
        drained: BTreeMap::new(),
        manual_holds: BTreeMap::new(),
        known: BTreeMap::new(),
        passed: BTreeSet::new(),
        history: Vec::new(),
        drift: DriftTracker::default(),
        catalog: ProbeCatalog::built_in(),
        expected: builtin::builtin_catalogue().clone(),
        uniform_low: None,
        score: YearScore::default(),
    };
    for day in 0..setting.days {
        let begin = day as f64 * DAY_S;
        world.run_audit(begin + AUDIT_S);
        let after_s = match rule {
            YearRule::Scheme(scheme) => scheme.repeat_after_s,
            YearRule::Floor(_) | YearRule::Retest(_) | YearRule::BelowMedian(_) => None,
        };
        // Operators work by day in the meantime.
        let (early, late) = match after_s.map(|after| AUDIT_S + after) {
            Some(at_s) if at_s < OPERATORS_S => (Some(at_s), None),
            at_s => (None, at_s),
        };
        early.into_iter().for_each(|at_s| world.remeasure_suspects(begin + at_s));
        world.run_operators(begin + OPERATORS_S);
        late.into_iter().for_each(|at_s| world.remeasure_suspects(begin + at_s));
    }
    world.finish()
}

impl YearWorld<'_> {
    fn moment_key(&self, what: &str, at_s: f64) -> NoiseKey {
        self.key.with_name(what).with_part(at_s.to_bits())
    }

    /// Applies the faults of a moment to the fabric.
    fn apply_faults(&mut self, at_s: f64) {
        let day = super::transients::day_of(at_s);
        let mut faults = vec![Vec::new(); self.fleet.rack_count()];
        self.parts.drifted.clear();
        for open in self.faults.iter().filter(|open| open.is_present(at_s)) {
            let trouble = &open.fault;
            faults[trouble.position.rack].extend(trouble.sim_fault(day));
            if trouble.class == YearFaultClass::Drift {
                self.parts
                    .drifted
                    .insert((trouble.position, trouble.gpu), trouble.drift_share(at_s));
            }
        }
        for (rack, faults) in faults.into_iter().enumerate() {
            self.fleet.set_faults(rack, faults);
        }
    }

    /// True if a node has a permanent fault.
    fn is_faulty(&self, spot: FleetPosition, at_s: f64) -> bool {
        let own = self.faults.iter().filter(|open| open.fault.position == spot);
        own.clone().any(|open| open.is_present(at_s) && !open.fault.is_shared())
    }

    /// The cause of a wrong drain.
    fn wrong_drain_cause(&self, spot: FleetPosition, at_s: f64) -> WrongDrainCause {
        let shared = self.faults.iter().any(|open| {
            open.fault.is_shared() && open.fault.position.rack == spot.rack && open.is_present(at_s)
        });
        if shared {
            WrongDrainCause::Shared
        } else if self.transients.is_bad_host_day(super::transients::day_of(at_s)) {
            WrongDrainCause::Host
        } else if self.transients.is_affected(spot, at_s) {
            WrongDrainCause::Transient
        } else {
            WrongDrainCause::Noise
        }
    }

    /// The nodes of tonight's audit: the idle nodes with the oldest measurement.
    fn choose_nodes(&mut self, at_s: f64) -> Claims {
        let busy = self.moment_key("busy", at_s);
        for spot in self.fleet.positions() {
            let name = NodeName::from(spot.name());
            let is_busy = busy.with_part(spot.number()).fraction() < self.setting.busy;
            let is_out = self.drained.contains_key(&spot) || !self.gate.is_in_service(&name);
            let unfit = (is_busy || is_out).then(|| "not idle in service".to_owned());
            self.known.entry(name).or_default().unfit = unfit;
        }
        let suspected: BTreeSet<&NodeName> = self.gate.suspected_nodes(at_s).collect();
        for (node, known) in &mut self.known {
            known.suspected = suspected.contains(node);
        }
        let budget =
            AuditBudget { share_of_domain: self.setting.share_of_domain, ..AuditBudget::default() };
        let choice = audit_selection::select_nodes(&AuditSelectionRequest {
            claims: &self.fleet.claims,
            known: &self.known,
            budget,
            seed: self.moment_key("choice", at_s).value(),
            // No time limit.
            cost: &|_| 0.0,
        });
        choice.restrict_claims(&self.fleet.claims)
    }

    fn run_audit(&mut self, at_s: f64) {
        self.apply_faults(at_s);
        let claims = self.choose_nodes(at_s);
        let nodes: usize = claims.domains.iter().map(|domain| domain.nodes.len()).sum();
        self.score.measured += nodes as u64;
        if nodes == 0 {
            return;
        }
        match self.rule.clone() {
            YearRule::Scheme(scheme) => self.audit_with_scheme(&scheme, &claims, at_s),
            simple => self.audit_with_rule(&simple, &claims, at_s),
        }
    }

    fn audit_with_scheme(&mut self, scheme: &SchemeSettings, claims: &Claims, at_s: f64) {
        let (swept, to_s) = self.run_sweep(scheme, claims, Profile::Audit, at_s);
        for verdict in &swept.final_verdicts.nodes {
            let known = self.known.entry(verdict.node.clone()).or_default();
            known.tried = Some(to_unix(at_s));
            if verdict.outcome == Outcome::Unknown {
                known.misses += 1;
            } else {
                (known.measured, known.misses) = (Some(to_unix(at_s)), 0);
            }
        }
        self.run_gate(claims, Profile::Audit, &swept.final_verdicts, [at_s, to_s]);
        self.note_uniform_low(claims, &swept, at_s);
        if scheme.history || scheme.drift {
            let case = sweep::build_case(claims, &swept.recordings, &self.expected, swept.sampled);
            let (at, shown) = (to_unix(at_s), run_summary::summarize_sound_parts(&case));
            if scheme.drift {
                self.drift.add_run(&at.to_string(), at, &shown);
            }
            if scheme.history {
                self.history.push((format_rfc3339(at), shown));
                let old = self.history.len().saturating_sub(HISTORY_RUNS);
                self.history.drain(..old);
            }
        }
    }

    /// Sweeps these nodes; returns the end time.
    fn run_sweep(
        &mut self,
        scheme: &SchemeSettings,
        claims: &Claims,
        profile: Profile,
        at_s: f64,
    ) -> (StudySweep, f64) {
        let key = self.moment_key("run", at_s);
        let names = plan::default_probes(profile, claims, &self.fleet.nvlink_domains);
        let probes: Vec<&Probe> = names.iter().filter_map(|name| self.catalog.get(name)).collect();
        let across = self.fleet.nvlink_domains.clone();
        let request = PlanRequest {
            claims,
            profile,
            probes: &probes,
            readings: scheme.readings[0],
            most_readings: scheme.readings[1],
            parallel: PARALLEL,
            seed: key.with_name("plan").value(),
            nvlink_across: &across,
            limits: PlanLimits::default(),
        };
        let history = match scheme.history {
            true => run_summary::build_history(&self.history),
            false => PartHistory::default(),
        };
        let mut meter = YearMeter {
            fleet: &mut self.fleet,
            transients: &self.transients,
            parts: &self.parts,
            key,
            at_s,
            ratios: None,
        };
        let against = StudyReference {
            catalogue: &self.expected,
            history: &history,
            confirm_after_s: scheme.confirm_after_s,
        };
        let swept = sweep::run_sweep_against(&request, &mut meter, against);
        let to_s = meter.at_s;
        (swept, to_s)
    }

    /// Lets the gate handle a run, and records its actions.
    fn run_gate(
        &mut self,
        claims: &Claims,
        profile: Profile,
        verdicts: &Verdicts,
        [from_s, to_s]: [f64; 2],
    ) {
        for verdict in &verdicts.nodes {
            match verdict.outcome {
                Outcome::Pass => self.passed.insert(verdict.node.clone()),
                _ => self.passed.remove(&verdict.node),
            };
        }
        let day = super::transients::day_of(from_s);
        let nodes = claims.domains.iter().flat_map(|domain| &domain.nodes);
        let driver = |node: &NodeName| {
            meter::driver_version(self.transients.driver_count(FleetPosition::from_name(node), day))
        };
        let drivers = nodes.map(|node| (node.clone(), driver(node))).collect();
        let ran = YearRun { profile, verdicts, drivers: &drivers, from_s, to_s };
        let turned = self.gate.reconcile(&self.fleet.claims, ran);
        self.record_findings(&verdicts.findings, to_s);
        self.score.tripped += u64::from(turned.tripped);
        turned.plan.frozen.iter().for_each(|why| self.score.count_freeze(why));
        self.score.stopped += turned.plan.withheld.iter().filter(|it| it.budget).count() as u64;
        let unconfirmed = turned.plan.withheld.iter().filter(|it| it.unconfirmed);
        self.score.unconfirmed += unconfirmed.count() as u64;
        let waiting = turned.plan.withheld.iter().filter(|it| it.again.is_some());
        self.score.deferred += waiting.count() as u64;
        for action in &turned.plan.actions {
            let spot = FleetPosition::from_name(&action.node);
            match action.kind {
                ActionKind::Drain => {
                    let mut findings = verdicts.findings.iter();
                    let found = findings.find(|it| action.findings.contains(&it.id));
                    self.drain_node(spot, found.map_or("", |it| it.class.as_str()), [from_s, to_s]);
                }
                ActionKind::Release => self.return_node(spot, to_s),
                ActionKind::Relabel | ActionKind::Certify => {}
            }
        }
    }

    /// Measures the nodes again that one run found slow, each with cleared partners.
    fn remeasure_suspects(&mut self, at_s: f64) {
        let YearRule::Scheme(scheme) = self.rule else { return };
        let suspected: Vec<FleetPosition> =
            self.gate.suspected_nodes(at_s).map(FleetPosition::from_name).collect();
        self.apply_faults(at_s);
        for (turn, spot) in suspected.into_iter().enumerate() {
            if self.drained.contains_key(&spot) || !self.gate.is_in_service(&spot.name().into()) {
                continue;
            }
            let claims = self.partner_claims(spot);
            let from_s = at_s + turn as f64;
            let (swept, to_s) = self.run_sweep(scheme, &claims, Profile::Audit, from_s);
            self.run_gate(&claims, Profile::Audit, &swept.final_verdicts, [from_s, to_s]);
        }
    }

    /// Records the faults that a run reports.
    fn record_findings(&mut self, findings: &[Finding], at_s: f64) {
        let reported: Vec<&Finding> =
            findings.iter().filter(|found| Outcome::Unknown < found.outcome).collect();
        for open in self.faults.iter_mut().filter(|open| open.is_present(at_s)) {
            let spot = open.fault.position;
            let (node, rack) = (spot.name(), format!("r{:03}", spot.rack));
            let is_shared = open.fault.is_shared();
            let names = |found: &&&Finding| {
                let locus = &found.locus;
                if is_shared {
                    let wide = matches!(locus.kind, LocusKind::Plane | LocusKind::Domain);
                    return wide && locus.domain.as_ref().is_some_and(|it| it.as_str() == rack);
                }
                let peer = locus.peer.as_deref().unwrap_or_default();
                let own = locus.node.as_ref().is_some_and(|it| it.as_str() == node);
                own || peer.starts_with(&node)
            };
            if reported.iter().any(|found| names(&found)) {
                open.reported_s.get_or_insert(at_s);
                if is_shared {
                    open.acted_s.get_or_insert(at_s);
                }
            }
        }
    }

    /// Drains a node by the rule.
    fn drain_node(&mut self, spot: FleetPosition, class: &str, [measured_s, at_s]: [f64; 2]) {
        if self.drained.contains_key(&spot) {
            return;
        }
        let is_faulty = self.is_faulty(spot, at_s);
        self.score.drains += 1;
        if !is_faulty {
            *self
                .score
                .wrong_by_cause
                .entry(self.wrong_drain_cause(spot, measured_s))
                .or_default() += 1;
            *self.score.wrong_by_class.entry(class.to_owned()).or_default() += 1;
        }
        for open in &mut self.faults {
            if open.fault.position == spot && open.is_present(at_s) && !open.fault.is_shared() {
                open.acted_s.get_or_insert(at_s);
                open.reported_s.get_or_insert(at_s);
            }
        }
        let ready_s = at_s + self.repair_seconds(spot, at_s, is_faulty);
        self.drained.insert(
            spot,
            DrainedNode { since_s: at_s, is_wrong: !is_faulty, ready_s, repair_count: 0 },
        );
        self.score.most_out = self.score.most_out.max(self.drained.len() as u64);
    }

    /// Duration of the operators' work on a node in seconds.
    fn repair_seconds(&self, spot: FleetPosition, at_s: f64, is_faulty: bool) -> f64 {
        let key = self.moment_key("takes", at_s).with_part(spot.number());
        let days: &[f64] = if is_faulty { &REPAIR_DAYS } else { &INSPECTION_DAYS };
        draw_one(key, days) * DAY_S
    }

    fn return_node(&mut self, spot: FleetPosition, at_s: f64) {
        let Some(out) = self.drained.remove(&spot) else { return };
        let hours = (at_s - out.since_s) / 3_600.0;
        self.score.hours += hours;
        self.score.wrong_hours += if out.is_wrong { hours } else { 0.0 };
    }

    /// A node and its cleared partners in the rack.
    fn partner_claims(&self, spot: FleetPosition) -> Claims {
        let others =
            (1..NODES).map(|step| FleetPosition { node: (spot.node + step) % NODES, ..spot });
        let is_fit = |other: &FleetPosition| {
            let name = NodeName::from(other.name());
            let passed = self.passed.contains(&name) && self.gate.is_in_service(&name);
            passed && !self.drained.contains_key(other)
        };
        let partners = others.filter(is_fit).take(PlanLimits::default().partners);
        let names: BTreeSet<NodeName> =
            std::iter::once(spot).chain(partners).map(|it| it.name().into()).collect();
        self.fleet.claims.with_nodes(|node| names.contains(node))
    }

    /// One run of `recertify`, and the gate's turn.
    fn recertify(&mut self, scheme: &SchemeSettings, spot: FleetPosition, at_s: f64) {
        let claims = self.partner_claims(spot);
        // A repaired node is measured without its history.
        let scheme = SchemeSettings { history: false, ..scheme.clone() };
        let (swept, to_s) = self.run_sweep(&scheme, &claims, Profile::Recertify, at_s);
        self.run_gate(&claims, Profile::Recertify, &swept.final_verdicts, [at_s, to_s]);
    }

    /// The input of a simple rule for some nodes, and the end time of the measurement.
    fn read_ratios(&mut self, claims: &Claims, at_s: f64) -> (Vec<ReadingRatio>, f64) {
        let names = plan::default_probes(Profile::Audit, claims, &self.fleet.nvlink_domains);
        let probes: Vec<&Probe> = names.iter().filter_map(|name| self.catalog.get(name)).collect();
        let key = self.moment_key("run", at_s);
        let across = self.fleet.nvlink_domains.clone();
        let planned = plan::plan_sweep(&PlanRequest {
            claims,
            profile: Profile::Audit,
            probes: &probes,
            readings: 1,
            most_readings: 1,
            parallel: PARALLEL,
            seed: key.with_name("plan").value(),
            nvlink_across: &across,
            limits: PlanLimits::default(),
        });
        let mut meter = YearMeter {
            fleet: &mut self.fleet,
            transients: &self.transients,
            parts: &self.parts,
            key,
            at_s,
            ratios: Some(Vec::new()),
        };
        sweep::run_rounds(&planned, &mut meter, &mut sweep::StudyReadings::default());
        let to_s = meter.at_s;
        (meter.ratios.unwrap_or_default(), to_s)
    }

    fn audit_with_rule(&mut self, rule: &YearRule, claims: &Claims, at_s: f64) {
        let (seen, mut to_s) = self.read_ratios(claims, at_s);
        let nodes = || claims.domains.iter().flat_map(|domain| &domain.nodes);
        for node in nodes() {
            let known = self.known.entry(node.clone()).or_default();
            (known.measured, known.tried) = (Some(to_unix(at_s)), Some(to_unix(at_s)));
        }
        let mut blamed = rule.accused_nodes(&seen);
        self.passed.extend(
            nodes().filter(|node| !blamed.contains(&FleetPosition::from_name(node))).cloned(),
        );
        for spot in &blamed {
            self.passed.remove(&NodeName::from(spot.name()));
        }
        if let YearRule::Retest(_) = rule {
            let again: Vec<FleetPosition> = blamed.iter().copied().collect();
            blamed.clear();
            let begin = to_s + sweep::CONFIRM_AFTER_S;
            for spot in again {
                let claims = self.partner_claims(spot);
                let (seen, end) = self.read_ratios(&claims, begin);
                to_s = to_s.max(end);
                if rule.accused_nodes(&seen).contains(&spot) {
                    blamed.insert(spot);
                }
            }
        }
        for spot in blamed {
            self.drain_node(spot, "below the line", [at_s, to_s]);
        }
    }

    /// Tests a node by a simple rule before it returns to service.
    fn retest(&mut self, rule: &YearRule, spot: FleetPosition, at_s: f64) {
        let claims = self.partner_claims(spot);
        let (seen, to_s) = self.read_ratios(&claims, at_s);
        if !rule.accused_nodes(&seen).contains(&spot) {
            self.passed.insert(spot.name().into());
            self.return_node(spot, to_s);
        }
    }

    /// Completes the score at the end of the year.
    fn finish(mut self) -> YearScore {
        let end = self.setting.days as f64 * DAY_S;
        let still: Vec<FleetPosition> = self.drained.keys().copied().collect();
        for spot in still {
            self.return_node(spot, end);
        }
        let rung = std::mem::take(&mut self.drift).into_alarms();
        self.score.drift_alarms[0] = rung.len() as u64;
        for one in &rung {
            let is_behind = |open: &&FaultRecord| {
                let trouble = &open.fault;
                let here = trouble.position == one.spot
                    || (trouble.is_shared() && trouble.position.rack == one.spot.rack);
                // Includes a delay, because the end of a fault is noticed later and drift charts
                // lag.
                let until = open.repaired_s.unwrap_or(end) + MISSED_DAYS * DAY_S;
                here && trouble.from_s <= one.at_s && one.at_s < until
            };
            self.score.drift_alarms[1] +=
                u64::from(!self.faults.iter().any(|open| is_behind(&open)));
        }
        for open in &self.faults {
            let own = rung.iter().filter(|one| {
                (one.spot, one.gpu) == (open.fault.position, open.fault.gpu)
                    && open.fault.from_s <= one.at_s
                    && one.at_s <= open.repaired_s.unwrap_or(end)
            });
            let first = own.map(|one| one.at_s).min_by(f64::total_cmp);
            let found = self.score.by_class.entry(open.fault.class).or_default();
            let days = |at: f64| (at - open.fault.from_s) / DAY_S;
            found.faults += 1;
            found.reported.extend(open.reported_s.map(days));
            found.drift_alarms.extend(first.map(days));
            match open.acted_s {
                Some(at) => found.acted_on.push(days(at)),
                None if MISSED_DAYS <= days(end) => found.missed += 1,
                None => found.open += 1,
            }
        }
        self.score.days = self.setting.days as u64;
        self.score.gpu_days =
            (self.setting.days * self.setting.racks * NODES * super::fleet::GPUS) as u64;
        self.score
    }
}
