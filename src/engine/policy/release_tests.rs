//! Tests of releases and certificates, and of the reasons for all other nodes.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::policy::journal_state::{BreakerTrip, CleanRun, JournalState};
use model::claims::Claims;
use model::journal::ClockStamp;
use model::verdict::Verdicts;

const HOUR: i64 = 3_600;
/// When nodes were drained: 2026-03-04T05:00:00Z.
const DRAINED: i64 = 1_772_600_400;
const NOW: i64 = DRAINED + 10 * HOUR;

/// All inputs of a decision, owned.
#[derive(Clone)]
struct ReleaseFixture {
    verdicts: Verdicts,
    fleet: Claims,
    run: EvidenceRun,
    live: Option<SchedulerSnapshot>,
    ledger: JournalState,
    now: ClockStamp,
    policy: Policy,
}

impl ReleaseFixture {
    /// A complete recertify run, made an hour ago.
    fn new() -> Self {
        Self {
            verdicts: Verdicts::empty(Outcome::Pass),
            fleet: Claims::default(),
            run: run("recertify", NOW - HOUR),
            live: Some(SchedulerSnapshot::default()),
            ledger: JournalState::default(),
            now: ClockStamp { at: format_rfc3339(NOW), unix: NOW, ..ClockStamp::default() },
            policy: Policy::default(),
        }
    }

    /// A node that fabricgate drained, still drained, with this outcome in the run.
    fn drained(mut self, node: &str, outcome: Option<Outcome>, clean: &[(&str, i64)]) -> Self {
        let before = SchedulerNode {
            booted: Some(DRAINED - 9 * HOUR),
            ..SchedulerNode::new(node, &["IDLE"])
        };
        let live = SchedulerNode {
            state: vec!["IDLE".to_owned(), "DRAIN".to_owned()],
            reason: Some("fabricgate:nvlink-low:bad-run e1".to_owned()),
            ..before.clone()
        };
        let drain = OwnDrain {
            id: format!("bad-run/{node}/drain"),
            epoch: 1,
            stamp: ClockStamp {
                at: format_rfc3339(DRAINED),
                unix: DRAINED,
                ..ClockStamp::default()
            },
            run: "bad-run".to_owned(),
            action: Action {
                reason: "fabricgate:nvlink-low:bad-run e1".to_owned(),
                findings: vec!["the-finding".to_owned()],
                ..Action::new(ActionKind::Drain, node)
            },
            before,
            clean: clean
                .iter()
                .map(|(run, measured)| CleanRun {
                    run: (*run).to_owned(),
                    measured: *measured,
                    boot_id: None,
                })
                .collect(),
        };
        self.ledger.drains.insert(node.into(), drain);
        self.live.get_or_insert_default().nodes.insert(node.into(), live);
        if let Some(outcome) = outcome {
            self.verdicts.nodes.push(verdict(node, outcome));
        }
        self
    }

    /// A node in this state, with this outcome in the run.
    fn node(mut self, node: &str, outcome: Outcome, state: &[&str]) -> Self {
        self.live
            .get_or_insert_default()
            .nodes
            .insert(node.into(), SchedulerNode::new(node, state));
        self.verdicts.nodes.push(verdict(node, outcome));
        self
    }

    fn live(&mut self, node: &str) -> &mut SchedulerNode {
        let live = self.live.as_mut().expect("asked");
        live.nodes.get_mut(&NodeName::from(node)).expect("told of")
    }

    fn propose(&self) -> (Vec<Action>, Vec<WithheldAction>) {
        let situation = Situation {
            verdicts: &self.verdicts,
            fleet: &self.fleet,
            coverage: None,
            run: &self.run,
            live: self.live.as_ref(),
            ledger: &self.ledger,
            controls: &BTreeSet::new(),
            drivers: &BTreeMap::new(),
            now: &self.now,
            boots: &BTreeMap::new(),
        };
        propose_releases(&situation, &self.policy)
    }

    fn released(&self) -> Vec<String> {
        let (actions, _) = self.propose();
        let releases = actions.into_iter().filter(|a| a.kind == ActionKind::Release);
        releases.map(|a| a.node.to_string()).collect()
    }

    fn why(&self, what: &str) -> String {
        let (_, withheld) = self.propose();
        let own: Vec<String> =
            withheld.into_iter().filter(|w| w.what == what).map(|w| w.why).collect();
        assert_eq!(own.len(), 1, "{what}: {own:?}");
        own.into_iter().next().expect("one")
    }
}

fn run(profile: &str, made: i64) -> EvidenceRun {
    EvidenceRun {
        id: "this-run".to_owned(),
        profile: profile.to_owned(),
        created: format_rfc3339(made),
        created_unix: made,
        complete: true,
        real: true,
        simulated: false,
        unsigned: None,
        unsure: BTreeMap::new(),
    }
}

fn verdict(node: &str, outcome: Outcome) -> NodeVerdict {
    NodeVerdict {
        node: node.into(),
        domain: None,
        outcome,
        reason: "as measured".to_owned(),
        kept_by: None,
        detectable: None,
        detectable_together: None,
        fabric_detectable: None,
        scope: None,
    }
}

#[test]
fn a_node_that_passed_twice_since_its_drain_is_given_back_with_the_exact_line() {
    let world =
        ReleaseFixture::new().drained("n1", Some(Outcome::Pass), &[("first", DRAINED + HOUR)]);
    let (actions, withheld) = world.propose();
    let [action] = actions.as_slice() else { panic!("{actions:?} {withheld:?}") };
    assert_eq!(action.kind, ActionKind::Release);
    assert_eq!(action.command[..4], ["scontrol", "update", "NodeName=n1", "State=RESUME"]);
    assert_eq!(action.why, "drained for run bad-run; passed runs first and this-run since");
    assert_eq!(action.findings, ["the-finding"]);
    let mark = action.mark.as_ref().expect("the node has the mark");
    assert_eq!((mark.outcome, mark.run.as_str()), (Outcome::Pass, "this-run"));
    assert_eq!(mark.expires.as_deref(), Some("2026-03-11T14:00:00Z"), "a week after the run");
    assert!(withheld.is_empty(), "{withheld:?}");
}

#[test]
fn missing_runs_are_reported() {
    let world = ReleaseFixture::new().drained("n1", Some(Outcome::Pass), &[]);
    assert_eq!(
        world.why("n1"),
        "drained by fabricgate, and has passed run this-run since; 2 under recertify or burn-in \
         release it, one is missing"
    );
    let world = ReleaseFixture::new().drained("n1", None, &[]);
    assert_eq!(
        world.why("n1"),
        "drained by fabricgate, and has passed no full run since; 2 under recertify or burn-in \
         release it, 2 are missing"
    );
}

/// Defect 7 of the operator's review.
#[test]
fn runs_that_are_not_clean_hours_apart_give_nothing_back() {
    let at = |made| ReleaseFixture::new().drained("n1", Some(Outcome::Pass), &[("first", made)]);
    let close = at(NOW - HOUR - 43);
    assert!(close.released().is_empty());
    let why = close.why("n1");
    assert!(why.contains("has passed run first since; 2 under recertify"), "{why}");
    assert!(
        why.contains("; run this-run was made too soon after it; the next run counts from"),
        "{why}"
    );
    assert_eq!(at(NOW - 2 * HOUR).released(), ["n1"]);
    for (hours, released) in [(0.0, true), (0.01, true), (0.02, false), (2.0, false)] {
        let mut world = at(NOW - HOUR - 43);
        world.policy.clean_hours = hours;
        assert_eq!(!world.released().is_empty(), released, "{hours}");
    }
    // If a run counts and the next one is not due yet, the reason names the time.
    let why = ReleaseFixture::new().drained("n1", Some(Outcome::Pass), &[]).why("n1");
    assert!(!why.contains("the next run counts"), "an hour is over: {why}");
    let mut world = ReleaseFixture::new().drained("n1", Some(Outcome::Pass), &[]);
    world.policy.clean_hours = 2.0;
    assert!(
        world.why("n1").contains("one is missing; the next run counts from"),
        "{}",
        world.why("n1")
    );
}

#[test]
fn one_clean_run_suffices_if_configured_and_none_never_does() {
    for (wanted, outcome, given_back) in [
        (1, Some(Outcome::Pass), true),
        (1, None, false),
        (0, None, false),
        (0, Some(Outcome::Pass), true),
        (3, Some(Outcome::Pass), false),
    ] {
        let mut world = ReleaseFixture::new().drained("n1", outcome, &[]);
        world.policy.clean_sweeps = wanted;
        assert_eq!(!world.released().is_empty(), given_back, "{wanted} {outcome:?}");
    }
}

#[test]
fn the_run_at_hand_counts_once_though_the_journal_has_it_already() {
    let noted = [("this-run", NOW - HOUR)];
    let world = ReleaseFixture::new().drained("n1", Some(Outcome::Pass), &noted);
    assert!(world.released().is_empty());
    assert!(world.why("n1").contains("has passed run this-run since"), "{}", world.why("n1"));
}

#[test]
fn only_whole_runs_of_real_nodes_made_after_the_drain_count() {
    let clean = [("first", DRAINED + HOUR)];
    let base = || ReleaseFixture::new().drained("n1", Some(Outcome::Pass), &clean);
    assert_eq!(base().released(), ["n1"]);
    let with = |change: fn(&mut EvidenceRun)| {
        let mut world = base();
        change(&mut world.run);
        world
    };
    for (what, world) in [
        ("audit", with(|run| run.profile = "audit".to_owned())),
        ("admit", with(|run| run.profile = "admit".to_owned())),
        ("judge", with(|run| run.profile = "judge".to_owned())),
        ("partial", with(|run| run.complete = false)),
        ("simulated", with(|run| run.real = false)),
        ("before", with(|run| run.created_unix = DRAINED - 1)),
        ("not yet", with(|run| run.created_unix = NOW + HOUR)),
        ("the drain's own", with(|run| run.id = "bad-run".to_owned())),
    ] {
        assert!(world.released().is_empty(), "{what}");
        assert!(world.why("n1").contains("one is missing"), "{what}: {}", world.why("n1"));
        let is_early = what == "before";
        assert_eq!(world.why("n1").contains("it was started at"), is_early, "{}", world.why("n1"));
    }
    assert_eq!(with(|run| run.profile = "burn-in".to_owned()).released(), ["n1"]);
    // A clean run that the journal dates before the drain does not count either.
    let early =
        ReleaseFixture::new().drained("n1", Some(Outcome::Pass), &[("early", DRAINED - HOUR)]);
    assert!(early.released().is_empty());
}

#[test]
fn a_run_that_did_not_pass_keeps_the_drain_despite_earlier_passes() {
    let clean = [("first", DRAINED + HOUR), ("second", DRAINED + 2 * HOUR)];
    for outcome in [Outcome::Unknown, Outcome::Degraded, Outcome::Failed] {
        let mut world = ReleaseFixture::new().drained("n1", Some(outcome), &clean);
        assert!(world.released().is_empty(), "{outcome}");
        let why = format!("drained by fabricgate, and run this-run reports {outcome}: as measured");
        assert_eq!(world.why("n1"), why);
        // A run from before the clean runs, such as the one that found the fault, is too old.
        world.run.created_unix = DRAINED - HOUR;
        assert_eq!(world.released(), ["n1"], "{outcome}");
    }
    // The current run did not measure the node.
    assert_eq!(ReleaseFixture::new().drained("n1", None, &clean).released(), ["n1"]);
}

#[test]
fn a_machine_that_booted_since_is_judged_on_what_it_did_since() {
    let clean = [("first", DRAINED + HOUR)];
    let mut world = ReleaseFixture::new().drained("n1", Some(Outcome::Pass), &clean);
    world.live("n1").booted = Some(DRAINED + 2 * HOUR);
    assert!(world.released().is_empty());
    assert!(world.why("n1").ends_with("1 made before its last boot do not count"));
    world.policy.clean_sweeps = 1;
    assert_eq!(world.released(), ["n1"], "its own run is clean");
    world.live("n1").booted = Some(NOW - 1);
    assert!(world.released().is_empty(), "it booted after the run");
}

#[test]
fn another_machine_with_an_unknown_boot_is_not_released() {
    let clean = [("first", DRAINED + HOUR)];
    let mut world = ReleaseFixture::new().drained("n1", Some(Outcome::Pass), &clean);
    world.live("n1").booted = None;
    assert!(world.why("n1").starts_with("it may have booted since it was drained"));
    let drain = world.ledger.drains.get_mut(&NodeName::from("n1")).expect("ours");
    (drain.before.booted, drain.before.instance) = (None, Some("i-1".to_owned()));
    world.live("n1").instance = Some("i-2".to_owned());
    assert!(world.why("n1").starts_with("it is another machine since it was drained"));
    // Without any reported boot it counts as the same boot.
    world.live("n1").instance = Some("i-1".to_owned());
    assert_eq!(world.released(), ["n1"]);
}

#[test]
fn without_an_answer_of_the_scheduler_nothing_is_given_back_or_certified() {
    let clean = [("first", DRAINED + HOUR)];
    let mut world = ReleaseFixture::new().drained("n1", Some(Outcome::Pass), &clean);
    world = world.node("n2", Outcome::Pass, &["IDLE"]);
    world.live.as_mut().expect("asked").nodes.clear();
    let (actions, _) = world.propose();
    assert!(actions.is_empty());
    assert!(world.why("n1").contains("does not know it"));
    assert!(world.why("n2").contains("does not know it"));
    world.live = None;
    let (actions, withheld) = world.propose();
    assert!(actions.is_empty());
    assert_eq!(withheld.len(), 1, "{withheld:?}");
    assert!(world.why("n1").contains("was not queried"));
}

#[test]
fn a_node_returned_by_another_party_is_left_unchanged() {
    let clean = [("first", DRAINED + HOUR)];
    let mut world = ReleaseFixture::new().drained("n1", Some(Outcome::Pass), &clean);
    world.live("n1").state = vec!["IDLE".to_owned()];
    world.live("n1").reason = None;
    assert!(world.released().is_empty());
}

#[test]
fn a_tripped_breaker_holds_no_release_back() {
    let clean = [("first", DRAINED + HOUR)];
    let mut world = ReleaseFixture::new().drained("n1", Some(Outcome::Pass), &clean);
    let stamp = ClockStamp { at: format_rfc3339(NOW), unix: NOW, ..ClockStamp::default() };
    let (why, run) = ("too many".to_owned(), "r".to_owned());
    world.ledger.breaker = Some(BreakerTrip { stamp, why, run });
    assert_eq!(world.released(), ["n1"]);
}

#[test]
fn a_clock_that_was_put_back_gives_nothing_back() {
    let mut world =
        ReleaseFixture::new().drained("n1", Some(Outcome::Pass), &[("first", DRAINED + HOUR)]);
    world.now.unix = DRAINED - HOUR;
    assert!(world.why("n1").contains("a clock was set back"));
}

#[test]
fn nodes_in_service_that_passed_are_certified_and_others_are_not() {
    let world = ReleaseFixture::new()
        .node("a", Outcome::Pass, &["IDLE"])
        .node("b", Outcome::Pass, &["MIXED", "PLANNED"])
        .node("c", Outcome::Pass, &["IDLE", "DRAIN"])
        .node("d", Outcome::Pass, &["DOWN", "NOT_RESPONDING"])
        .node("e", Outcome::Pass, &["IDLE", "A_WORD_OF_NEXT_YEAR"])
        .node("f", Outcome::Pass, &[])
        .node("g", Outcome::Unknown, &["IDLE"])
        .node("h", Outcome::Degraded, &["IDLE"])
        .node("all", Outcome::Pass, &["IDLE"])
        .drained("z", Some(Outcome::Pass), &[]);
    let (actions, withheld) = world.propose();
    let certified: Vec<&str> = actions.iter().map(|a| a.node.as_str()).collect();
    assert_eq!(certified, ["a", "b"]);
    assert!(actions.iter().all(|a| a.kind == ActionKind::Certify));
    assert!(actions.iter().all(|a| a.mark == actions[0].mark), "one mark, so that one call does");
    assert!(actions[0].command.iter().any(|word| word.starts_with("Extra=")));
    let left: Vec<&str> = withheld.iter().map(|w| w.what.as_str()).collect();
    assert_eq!(left, ["z", "all", "c", "d", "e", "f"]);
    assert_eq!(world.why("c"), "passed, not certified: it is out of service (IDLE+DRAIN)");
}

#[test]
fn a_node_that_was_not_one_machine_in_the_run_gets_no_mark() {
    let mut world = ReleaseFixture::new().node("a", Outcome::Pass, &["IDLE"]).node(
        "b",
        Outcome::Pass,
        &["IDLE"],
    );
    let why = "it had other GPUs during the run than before";
    world.run.unsure.insert("b".into(), why.to_owned());
    let (actions, _) = world.propose();
    let certified: Vec<&str> = actions.iter().map(|a| a.node.as_str()).collect();
    assert_eq!(certified, ["a"]);
    assert_eq!(world.why("b"), format!("passed, not certified: {why}"));
}

#[test]
fn old_and_future_runs_certify_nothing() {
    let world = ReleaseFixture::new().node("n1", Outcome::Pass, &["IDLE"]);
    for (made, why) in [
        (NOW - 7 * 24 * HOUR, "the run is too old to certify"),
        (NOW + HOUR, "which is in the future"),
    ] {
        let mut world = world.clone();
        world.run = run("recertify", made);
        assert!(world.propose().0.is_empty());
        assert!(world.why("certificates").contains(why), "{}", world.why("certificates"));
    }
    let mut booted = world.clone();
    booted.live("n1").booted = Some(NOW - HOUR + 1);
    assert!(booted.propose().0.is_empty());
    assert!(booted.why("n1").contains("booted since it was measured"), "{}", booted.why("n1"));
    let mut booted = world;
    booted.live("n1").booted = Some(NOW - HOUR - 1);
    assert_eq!(booted.propose().0.len(), 1);
}

#[test]
fn a_node_with_the_mark_is_not_written_again() {
    let mut world = ReleaseFixture::new().node("a", Outcome::Pass, &["IDLE"]);
    let (actions, _) = world.propose();
    let mark = actions[0].mark.clone().expect("a mark");
    let names = world.policy.marks.clone();
    let change = marks::mark_change(world.live("a"), &mark, &names);
    let live = world.live("a");
    live.extra = change.extra.expect("an entry");
    live.available_features = change.available_features.expect("features");
    live.active_features = change.active_features.expect("features");
    assert_eq!(world.propose(), (Vec::new(), Vec::new()));
}

#[test]
fn an_audit_certifies_nothing_and_an_admission_for_a_day() {
    let mut world = ReleaseFixture::new().node("a", Outcome::Pass, &["IDLE"]);
    world.run.profile = "audit".to_owned();
    assert!(world.propose().0.is_empty());
    assert!(world.why("certificates").starts_with("an audit measures too little"));
    world.run.profile = "admit".to_owned();
    let expires =
        |world: &ReleaseFixture| world.propose().0[0].mark.clone().expect("a mark").expires;
    assert_eq!(expires(&world).as_deref(), Some("2026-03-05T14:00:00Z"));
    world.run.profile = "burn-in".to_owned();
    assert_eq!(expires(&world).as_deref(), Some("2026-03-11T14:00:00Z"));
    for change in [|r: &mut EvidenceRun| r.complete = false, |r: &mut EvidenceRun| r.real = false] {
        let mut world = world.clone();
        change(&mut world.run);
        assert!(world.propose().0.is_empty());
        assert!(!world.why("certificates").is_empty());
    }
}

#[test]
fn an_admission_does_not_shorten_a_longer_certificate() {
    let mut world = ReleaseFixture::new().node("a", Outcome::Pass, &["IDLE"]);
    world.run.profile = "admit".to_owned();
    let mark = VerdictMark {
        outcome: Outcome::Pass,
        class: None,
        run: "whole".to_owned(),
        at: format_rfc3339(NOW - 2 * HOUR),
        expires: Some(format_rfc3339(NOW + 100 * HOUR)),
        boot_id: None,
        domain: None,
    };
    world.ledger.marks.insert("a".into(), mark);
    assert!(world.propose().0.is_empty());
    assert!(world.why("a").contains("for longer: until 2026-03-08T19:00:00Z by run whole"));
    // A machine that booted since does not count.
    world.live("a").booted = Some(NOW - 90 * 60);
    assert_eq!(world.propose().0.len(), 1);
}

fn some_outcome() -> impl Strategy<Value = Option<Outcome>> {
    prop::sample::select(vec![
        None,
        Some(Outcome::Pass),
        Some(Outcome::Unknown),
        Some(Outcome::Degraded),
        Some(Outcome::Failed),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_release_is_of_a_drain_in_force(
        nodes in prop::collection::vec(
            (any::<bool>(), some_outcome(), any::<bool>(), any::<bool>(), 0_usize..4),
            1..8,
        ),
        profile in prop::sample::select(vec!["audit", "admit", "recertify", "burn-in", "judge"]),
        (complete, real, requested) in any::<(bool, bool, bool)>(),
        wanted in 0_u32..4,
        made in DRAINED - 2..NOW,
    ) {
        let mut world = ReleaseFixture::new();
        world.run = EvidenceRun { complete, real, ..run(profile, made) };
        world.policy.clean_sweeps = wanted;
        for (at, (is_own, outcome, drained, known, runs)) in nodes.iter().enumerate() {
            let name = format!("n{at}");
            let clean = [("r1", DRAINED - 5), ("r2", DRAINED + 5), ("this-run", made)];
            world = world.drained(&name, *outcome, &clean[..(*runs).min(3)]);
            if !is_own {
                world.ledger.drains.remove(&NodeName::from(name.as_str()));
            }
            if !drained {
                world.live(&name).state = vec!["IDLE".to_owned()];
            }
            if !known {
                world.live.as_mut().expect("asked").nodes.remove(&NodeName::from(name.as_str()));
            }
        }
        if !requested {
            world.live = None;
        }
        let (actions, withheld) = world.propose();
        for action in &actions {
            prop_assert!(requested, "no action without an answer of the scheduler");
            let live = world.live.as_ref().and_then(|live| live.nodes.get(&action.node));
            let live = live.expect("only nodes that the scheduler reports");
            match action.kind {
                ActionKind::Release => {
                    prop_assert!(world.ledger.drains.contains_key(&action.node));
                    prop_assert!(live.has_state("DRAIN"));
                }
                ActionKind::Certify => {
                    prop_assert!(!live.has_state("DRAIN") && complete && real && profile != "audit");
                }
                other => prop_assert!(false, "{other:?} must not be proposed"),
            }
        }
        // Every drain by fabricgate has an entry, released or not.
        for node in world.ledger.drains.keys() {
            let taken = actions.iter().filter(|a| a.node == *node).count();
            let left = withheld.iter().filter(|w| w.what == node.as_str()).count();
            prop_assert_eq!(taken + left, 1, "{}", node);
        }
        // A breaker has no effect.
        let stamp = ClockStamp::default();
        let tripped = BreakerTrip { stamp, why: String::new(), run: String::new() };
        world.ledger.breaker = Some(tripped);
        prop_assert_eq!(world.propose(), (actions, withheld));
    }
}

#[test]
fn a_drain_that_a_clock_ahead_wrote_down_is_given_back_all_the_same() {
    let mut world =
        ReleaseFixture::new().drained("n1", Some(Outcome::Pass), &[("first", DRAINED + HOUR)]);
    let own = world.ledger.drains.get_mut(&NodeName::from("n1")).expect("drained");
    own.stamp = ClockStamp {
        unix: NOW + 400 * 86_400,
        boot: "b".to_owned(),
        uptime_s: 1_000.0,
        ..ClockStamp::default()
    };
    world.now = ClockStamp { boot: "b".to_owned(), uptime_s: 37_000.0, ..world.now };
    assert_eq!(world.released(), ["n1"]);
}
