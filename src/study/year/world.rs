//! One world over a year under one rule: audits at night, people by day.

mod levels;
mod people;

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::Setting;
use super::drift::Followed;
use super::fleet::Fleet;
use super::fleet::NODES;
use super::fleet::Spot;
use super::gate::Gate;
use super::gate::Ran;
use super::gate::unix;
use super::meter;
use super::meter::Meter;
use super::meter::Parts;
use super::meter::Seen;
use super::rule::Ours;
use super::rule::Rule;
use super::score::Cause;
use super::score::Score;
use super::trouble;
use super::trouble::Class;
use super::trouble::Trouble;
use super::weather::DAY_S;
use super::weather::Weather;
use super::weather::one_of;
use crate::sweep;
use crate::sweep::Against;
use crate::sweep::Swept;
use engine::judge::past;
use engine::plan;
use engine::plan::Limits;
use engine::plan::Request;
use engine::plan::stalest;
use engine::plan::stalest::Budget;
use engine::plan::stalest::Known;
use engine::plan::stalest::Question;
use engine::policy::policy::Policy;
use engine::thresholds::Catalogue;
use engine::thresholds::builtin;
use model::action::ActionKind;
use model::claims::Claims;
use model::history::History;
use model::id::NodeName;
use model::moment::rfc3339;
use model::probe::Probe;
use model::profile::Profile;
use model::verdict::Finding;
use model::verdict::LocusKind;
use model::verdict::Outcome;
use model::verdict::Verdicts;
use readers::probe_catalog::Catalog;
use sim::noise::Key;

/// When an audit begins, and when people come, in seconds of a day.
const AUDIT_S: f64 = 2.0 * 3_600.0;
const PEOPLE_S: f64 = 10.0 * 3_600.0;
/// How long people wait between two tests of a node that they repaired.
const BETWEEN_S: f64 = 5_400.0;

/// Days that a repair takes, each as likely; and a look that finds nothing.
const REPAIR: [f64; 8] = [0.5, 1.0, 1.0, 2.0, 2.0, 3.0, 5.0, 10.0];
const LOOK: [f64; 4] = [0.3, 0.5, 1.0, 2.0];
/// A fault that was not acted on in so many days is missed.
const MISSED_DAYS: f64 = 14.0;
/// Earlier runs that are references, where any are.
const HISTORY_RUNS: usize = 20;
/// Steps at the same time: more than there are pairs.
const PARALLEL: usize = 4_096;

/// Something that broke, and what became of it.
#[derive(Clone, Copy, Debug)]
struct Open {
    trouble: Trouble,
    told_s: Option<f64>,
    acted_s: Option<f64>,
    repaired_s: Option<f64>,
}

impl Open {
    fn is_there(&self, at_s: f64) -> bool {
        self.trouble.from_s <= at_s && self.repaired_s.is_none()
    }
}

/// A node that the rule took out.
#[derive(Clone, Copy, Debug)]
struct Out {
    since_s: f64,
    wrong: bool,
    /// When people are done with it.
    ready_s: f64,
    /// How often they were.
    turns: u64,
}

/// A world.
struct World<'r> {
    rule: &'r Rule,
    setting: &'r Setting,
    key: Key,
    fleet: Fleet,
    weather: Weather,
    troubles: Vec<Open>,
    parts: Parts,
    gate: Gate,
    out: BTreeMap<Spot, Out>,
    /// Until when people keep a node for themselves.
    by_hand: BTreeMap<Spot, f64>,
    known: BTreeMap<NodeName, Known>,
    /// Nodes that passed the last run that measured them.
    passed: BTreeSet<NodeName>,
    history: Vec<(String, past::Run)>,
    followed: Followed,
    catalog: Catalog,
    /// What this site expects.
    expected: Catalogue,
    /// Audits that found everything low alike, since when and what they showed.
    alike: Option<levels::Alike>,
    score: Score,
}

/// The year of one world under one rule.
pub(super) fn year(setting: &Setting, rule: &Rule, world: usize) -> Score {
    let key = Key::of(setting.seed).named("year").with(world as u64);
    let fleet = Fleet::of(setting.racks);
    let weather = Weather::of(key, setting.climate, setting.days, setting.racks);
    let troubles = trouble::of_year(key, &fleet, setting.days, setting.troubles);
    let open = |trouble| Open { trouble, told_s: None, acted_s: None, repaired_s: None };
    let policy = match rule {
        Rule::Ours(ours) => ours.policy.clone(),
        Rule::Floor(_) | Rule::Retest(_) | Rule::Below(_) => Policy::default(),
    };
    let gate = Gate::of(policy, &fleet.claims);
    let mut world = World {
        rule,
        setting,
        key,
        fleet,
        weather,
        troubles: troubles.into_iter().map(open).collect(),
        parts: Parts::default(),
        gate,
        out: BTreeMap::new(),
        by_hand: BTreeMap::new(),
        known: BTreeMap::new(),
        passed: BTreeSet::new(),
        history: Vec::new(),
        followed: Followed::default(),
        catalog: Catalog::built_in(),
        expected: builtin::catalogue().clone(),
        alike: None,
        score: Score::default(),
    };
    for day in 0..setting.days {
        let begin = day as f64 * DAY_S;
        world.audit(begin + AUDIT_S);
        let after_s = match rule {
            Rule::Ours(ours) => ours.again_after_s,
            Rule::Floor(_) | Rule::Retest(_) | Rule::Below(_) => None,
        };
        // By day people come meanwhile.
        let (early, late) = match after_s.map(|after| AUDIT_S + after) {
            Some(at_s) if at_s < PEOPLE_S => (Some(at_s), None),
            at_s => (None, at_s),
        };
        early.into_iter().for_each(|at_s| world.again(begin + at_s));
        world.people(begin + PEOPLE_S);
        late.into_iter().for_each(|at_s| world.again(begin + at_s));
    }
    world.end()
}

impl World<'_> {
    fn of_moment(&self, what: &str, at_s: f64) -> Key {
        self.key.named(what).with(at_s.to_bits())
    }

    /// Makes the fabric what it is at a moment.
    fn come_true(&mut self, at_s: f64) {
        let day = super::weather::day_of(at_s);
        let mut faults = vec![Vec::new(); self.fleet.racks()];
        self.parts.drifted.clear();
        for open in self.troubles.iter().filter(|open| open.is_there(at_s)) {
            let trouble = &open.trouble;
            faults[trouble.spot.rack].extend(trouble.fault(day));
            if trouble.class == Class::Drift {
                self.parts.drifted.insert((trouble.spot, trouble.gpu), trouble.drifted(at_s));
            }
        }
        for (rack, faults) in faults.into_iter().enumerate() {
            self.fleet.set(rack, faults);
        }
    }

    /// Whether anything that stays is wrong with a node itself.
    fn is_guilty(&self, spot: Spot, at_s: f64) -> bool {
        let own = self.troubles.iter().filter(|open| open.trouble.spot == spot);
        own.clone().any(|open| open.is_there(at_s) && !open.trouble.is_shared())
    }

    /// Why a drain of a node that is not at fault came.
    fn cause(&self, spot: Spot, at_s: f64) -> Cause {
        let shared = self.troubles.iter().any(|open| {
            open.trouble.is_shared() && open.trouble.spot.rack == spot.rack && open.is_there(at_s)
        });
        if shared {
            Cause::Shared
        } else if self.weather.is_bad(super::weather::day_of(at_s)) {
            Cause::Host
        } else if self.weather.touches(spot, at_s) {
            Cause::Passing
        } else {
            Cause::Noise
        }
    }

    /// Whom tonight's audit measures: those that wait longest among the idle ones.
    fn chosen(&mut self, at_s: f64) -> Claims {
        let busy = self.of_moment("busy", at_s);
        for spot in self.fleet.spots() {
            let name = NodeName::from(spot.name());
            let is_busy = busy.with(spot.number()).fraction() < self.setting.busy;
            let is_out = self.out.contains_key(&spot) || !self.gate.is_in_service(&name);
            let unfit = (is_busy || is_out).then(|| "not idle in service".to_owned());
            self.known.entry(name).or_default().unfit = unfit;
        }
        let suspected: BTreeSet<&NodeName> = self.gate.suspected(at_s).collect();
        for (node, known) in &mut self.known {
            known.suspected = suspected.contains(node);
        }
        let budget = Budget { share_of_domain: self.setting.share_of_domain, ..Budget::default() };
        let choice = stalest::choose(&Question {
            claims: &self.fleet.claims,
            known: &self.known,
            budget,
            seed: self.of_moment("choice", at_s).value(),
            // Nothing limits the time.
            cost: &|_| 0.0,
        });
        choice.claims(&self.fleet.claims)
    }

    fn audit(&mut self, at_s: f64) {
        self.come_true(at_s);
        let claims = self.chosen(at_s);
        let nodes: usize = claims.domains.iter().map(|domain| domain.nodes.len()).sum();
        self.score.measured += nodes as u64;
        if nodes == 0 {
            return;
        }
        match self.rule.clone() {
            Rule::Ours(ours) => self.audit_ours(&ours, &claims, at_s),
            simple => self.audit_simple(&simple, &claims, at_s),
        }
    }

    fn audit_ours(&mut self, ours: &Ours, claims: &Claims, at_s: f64) {
        let (swept, to_s) = self.swept(ours, claims, Profile::Audit, at_s);
        for verdict in &swept.last.nodes {
            let known = self.known.entry(verdict.node.clone()).or_default();
            known.tried = Some(unix(at_s));
            if verdict.outcome == Outcome::Unknown {
                known.misses += 1;
            } else {
                (known.measured, known.misses) = (Some(unix(at_s)), 0);
            }
        }
        self.turn(claims, Profile::Audit, &swept.last, [at_s, to_s]);
        self.hear(claims, &swept, at_s);
        if ours.history || ours.drift {
            let case = sweep::case(claims, &swept.recordings, &self.expected, swept.sampled);
            let (at, shown) = (unix(at_s), past::shown(&case));
            if ours.drift {
                self.followed.add(&at.to_string(), at, &shown);
            }
            if ours.history {
                self.history.push((rfc3339(at), shown));
                let old = self.history.len().saturating_sub(HISTORY_RUNS);
                self.history.drain(..old);
            }
        }
    }

    /// Sweeps these nodes; says until when.
    fn swept(&mut self, ours: &Ours, claims: &Claims, profile: Profile, at_s: f64) -> (Swept, f64) {
        let key = self.of_moment("run", at_s);
        let names = plan::default_probes(profile, claims, &self.fleet.across);
        let probes: Vec<&Probe> = names.iter().filter_map(|name| self.catalog.get(name)).collect();
        let across = self.fleet.across.clone();
        let request = Request {
            claims,
            profile,
            probes: &probes,
            readings: ours.readings[0],
            most_readings: ours.readings[1],
            parallel: PARALLEL,
            seed: key.named("plan").value(),
            nvlink_across: &across,
            limits: Limits::default(),
        };
        let history = match ours.history {
            true => past::history(&self.history),
            false => History::default(),
        };
        let mut meter = Meter {
            fleet: &mut self.fleet,
            weather: &self.weather,
            parts: &self.parts,
            key,
            at_s,
            seen: None,
        };
        let against = Against {
            catalogue: &self.expected,
            history: &history,
            confirm_after_s: ours.confirm_after_s,
        };
        let swept = sweep::sweep_against(&request, &mut meter, against);
        let to_s = meter.at_s;
        (swept, to_s)
    }

    /// Lets the gate act on a run, and writes down what it did.
    fn turn(
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
        let day = super::weather::day_of(from_s);
        let nodes = claims.domains.iter().flat_map(|domain| &domain.nodes);
        let driver = |node: &NodeName| meter::version(self.weather.drivers(Spot::of(node), day));
        let drivers = nodes.map(|node| (node.clone(), driver(node))).collect();
        let ran = Ran { profile, verdicts, drivers: &drivers, from_s, to_s };
        let turned = self.gate.turn(&self.fleet.claims, ran);
        self.tell(&verdicts.findings, to_s);
        self.score.tripped += u64::from(turned.tripped);
        turned.plan.frozen.iter().for_each(|why| self.score.freeze(why));
        self.score.stopped += turned.plan.withheld.iter().filter(|it| it.budget).count() as u64;
        let unconfirmed = turned.plan.withheld.iter().filter(|it| it.unconfirmed);
        self.score.unconfirmed += unconfirmed.count() as u64;
        let waiting = turned.plan.withheld.iter().filter(|it| it.again.is_some());
        self.score.waited += waiting.count() as u64;
        for action in &turned.plan.actions {
            let spot = Spot::of(&action.node);
            match action.kind {
                ActionKind::Drain => {
                    let mut findings = verdicts.findings.iter();
                    let found = findings.find(|it| action.findings.contains(&it.id));
                    self.take_out(spot, found.map_or("", |it| it.class.as_str()), [from_s, to_s]);
                }
                ActionKind::Release => self.give_back(spot, to_s),
                ActionKind::Relabel | ActionKind::Certify => {}
            }
        }
    }

    /// Measures again whom one run found slow, each with cleared partners.
    fn again(&mut self, at_s: f64) {
        let Rule::Ours(ours) = self.rule else { return };
        let suspected: Vec<Spot> = self.gate.suspected(at_s).map(Spot::of).collect();
        self.come_true(at_s);
        for (turn, spot) in suspected.into_iter().enumerate() {
            if self.out.contains_key(&spot) || !self.gate.is_in_service(&spot.name().into()) {
                continue;
            }
            let claims = self.with_partners(spot);
            let from_s = at_s + turn as f64;
            let (swept, to_s) = self.swept(ours, &claims, Profile::Audit, from_s);
            self.turn(&claims, Profile::Audit, &swept.last, [from_s, to_s]);
        }
    }

    /// Which faults a run tells of.
    fn tell(&mut self, findings: &[Finding], at_s: f64) {
        let told: Vec<&Finding> =
            findings.iter().filter(|found| Outcome::Unknown < found.outcome).collect();
        for open in self.troubles.iter_mut().filter(|open| open.is_there(at_s)) {
            let spot = open.trouble.spot;
            let (node, rack) = (spot.name(), format!("r{:03}", spot.rack));
            let is_shared = open.trouble.is_shared();
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
            if told.iter().any(|found| names(&found)) {
                open.told_s.get_or_insert(at_s);
                if is_shared {
                    open.acted_s.get_or_insert(at_s);
                }
            }
        }
    }

    /// A node is drained by the rule.
    fn take_out(&mut self, spot: Spot, class: &str, [measured_s, at_s]: [f64; 2]) {
        if self.out.contains_key(&spot) {
            return;
        }
        let guilty = self.is_guilty(spot, at_s);
        self.score.drains += 1;
        if !guilty {
            *self.score.wrong.entry(self.cause(spot, measured_s)).or_default() += 1;
            *self.score.wrong_by.entry(class.to_owned()).or_default() += 1;
        }
        for open in &mut self.troubles {
            if open.trouble.spot == spot && open.is_there(at_s) && !open.trouble.is_shared() {
                open.acted_s.get_or_insert(at_s);
                open.told_s.get_or_insert(at_s);
            }
        }
        let ready_s = at_s + self.takes(spot, at_s, guilty);
        self.out.insert(spot, Out { since_s: at_s, wrong: !guilty, ready_s, turns: 0 });
        self.score.most_out = self.score.most_out.max(self.out.len() as u64);
    }

    /// How long people take with a node, in seconds.
    fn takes(&self, spot: Spot, at_s: f64, guilty: bool) -> f64 {
        let key = self.of_moment("takes", at_s).with(spot.number());
        let days: &[f64] = if guilty { &REPAIR } else { &LOOK };
        one_of(key, days) * DAY_S
    }

    fn give_back(&mut self, spot: Spot, at_s: f64) {
        let Some(out) = self.out.remove(&spot) else { return };
        let hours = (at_s - out.since_s) / 3_600.0;
        self.score.hours += hours;
        self.score.wrong_hours += if out.wrong { hours } else { 0.0 };
    }

    /// Cleared partners of a node in its rack, and itself.
    fn with_partners(&self, spot: Spot) -> Claims {
        let others = (1..NODES).map(|step| Spot { node: (spot.node + step) % NODES, ..spot });
        let is_fit = |other: &Spot| {
            let name = NodeName::from(other.name());
            let passed = self.passed.contains(&name) && self.gate.is_in_service(&name);
            passed && !self.out.contains_key(other)
        };
        let partners = others.filter(is_fit).take(Limits::default().partners);
        let names: BTreeSet<NodeName> =
            std::iter::once(spot).chain(partners).map(|it| it.name().into()).collect();
        self.fleet.claims.with_nodes(|node| names.contains(node))
    }

    /// One run of `recertify`, and the gate's turn.
    fn recertify(&mut self, ours: &Ours, spot: Spot, at_s: f64) {
        let claims = self.with_partners(spot);
        // What is repaired is measured without its past.
        let ours = Ours { history: false, ..ours.clone() };
        let (swept, to_s) = self.swept(&ours, &claims, Profile::Recertify, at_s);
        self.turn(&claims, Profile::Recertify, &swept.last, [at_s, to_s]);
    }

    /// What a simple rule sees of some nodes, and when it was done.
    fn seen(&mut self, claims: &Claims, at_s: f64) -> (Vec<Seen>, f64) {
        let names = plan::default_probes(Profile::Audit, claims, &self.fleet.across);
        let probes: Vec<&Probe> = names.iter().filter_map(|name| self.catalog.get(name)).collect();
        let key = self.of_moment("run", at_s);
        let across = self.fleet.across.clone();
        let planned = plan::sweep(&Request {
            claims,
            profile: Profile::Audit,
            probes: &probes,
            readings: 1,
            most_readings: 1,
            parallel: PARALLEL,
            seed: key.named("plan").value(),
            nvlink_across: &across,
            limits: Limits::default(),
        });
        let mut meter = Meter {
            fleet: &mut self.fleet,
            weather: &self.weather,
            parts: &self.parts,
            key,
            at_s,
            seen: Some(Vec::new()),
        };
        sweep::run(&planned, &mut meter, &mut sweep::Taken::default());
        let to_s = meter.at_s;
        (meter.seen.unwrap_or_default(), to_s)
    }

    fn audit_simple(&mut self, rule: &Rule, claims: &Claims, at_s: f64) {
        let (seen, mut to_s) = self.seen(claims, at_s);
        let nodes = || claims.domains.iter().flat_map(|domain| &domain.nodes);
        for node in nodes() {
            let known = self.known.entry(node.clone()).or_default();
            (known.measured, known.tried) = (Some(unix(at_s)), Some(unix(at_s)));
        }
        let mut accused = rule.accuses(&seen);
        self.passed.extend(nodes().filter(|node| !accused.contains(&Spot::of(node))).cloned());
        for spot in &accused {
            self.passed.remove(&NodeName::from(spot.name()));
        }
        if let Rule::Retest(_) = rule {
            let again: Vec<Spot> = accused.iter().copied().collect();
            accused.clear();
            let begin = to_s + sweep::CONFIRM_AFTER_S;
            for spot in again {
                let claims = self.with_partners(spot);
                let (seen, end) = self.seen(&claims, begin);
                to_s = to_s.max(end);
                if rule.accuses(&seen).contains(&spot) {
                    accused.insert(spot);
                }
            }
        }
        for spot in accused {
            self.take_out(spot, "below the line", [at_s, to_s]);
        }
    }

    /// A node is tested by a simple rule before it is given back.
    fn retest(&mut self, rule: &Rule, spot: Spot, at_s: f64) {
        let claims = self.with_partners(spot);
        let (seen, to_s) = self.seen(&claims, at_s);
        if !rule.accuses(&seen).contains(&spot) {
            self.passed.insert(spot.name().into());
            self.give_back(spot, to_s);
        }
    }

    /// Adds up what the year leaves.
    fn end(mut self) -> Score {
        let end = self.setting.days as f64 * DAY_S;
        let still: Vec<Spot> = self.out.keys().copied().collect();
        for spot in still {
            self.give_back(spot, end);
        }
        let rung = std::mem::take(&mut self.followed).rung();
        self.score.rung[0] = rung.len() as u64;
        for one in &rung {
            let is_behind = |open: &&Open| {
                let trouble = &open.trouble;
                let here = trouble.spot == one.spot
                    || (trouble.is_shared() && trouble.spot.rack == one.spot.rack);
                // What ended is seen to have ended, and a chart rings late.
                let until = open.repaired_s.unwrap_or(end) + MISSED_DAYS * DAY_S;
                here && trouble.from_s <= one.at_s && one.at_s < until
            };
            self.score.rung[1] += u64::from(!self.troubles.iter().any(|open| is_behind(&open)));
        }
        for open in &self.troubles {
            let own = rung.iter().filter(|one| {
                (one.spot, one.gpu) == (open.trouble.spot, open.trouble.gpu)
                    && open.trouble.from_s <= one.at_s
                    && one.at_s <= open.repaired_s.unwrap_or(end)
            });
            let first = own.map(|one| one.at_s).min_by(f64::total_cmp);
            let found = self.score.found.entry(open.trouble.class).or_default();
            let days = |at: f64| (at - open.trouble.from_s) / DAY_S;
            found.faults += 1;
            found.told.extend(open.told_s.map(days));
            found.rung.extend(first.map(days));
            match open.acted_s {
                Some(at) => found.acted.push(days(at)),
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
