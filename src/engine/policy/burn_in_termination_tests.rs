//! Tests of the rules that end burn-ins.

use super::*;
use model::acceptance::{ACCEPTANCE_FORMAT, BurnInRequest, BurnInState, NodeAcceptance, NodeRound};
use model::finding_class::FindingClass;
use model::verdict::{Locus, NodeVerdict};

/// A completed round of one node.
pub(crate) fn round(number: u32, outcome: Outcome) -> BurnInRound {
    BurnInRound {
        round: number,
        run: format!("run{number}"),
        seed: 0,
        began: String::new(),
        ended: Some("then".to_owned()),
        minutes: 30.0,
        outcome: Some(outcome),
        soaked_minutes: 0.0,
        set_aside: false,
        claims_digest: None,
        thresholds_digest: None,
        nodes: vec![NodeRound {
            node: "n1".into(),
            outcome,
            reason: String::new(),
            boot_id: None,
            gpus: Vec::new(),
            rebooted: false,
        }],
    }
}

fn node(out: Option<StopRule>) -> NodeAcceptance {
    NodeAcceptance {
        node: "n1".into(),
        domain: None,
        accepted: AcceptanceOutcome::Unknown,
        reason: String::new(),
        rounds: 0,
        passed: 0,
        anew: None,
        out: out.map(|rule| BurnInStop { rule, after_round: 1, why: String::new() }),
        minima: Vec::new(),
        detectable: None,
        drift: None,
    }
}

/// A burn-in with these rounds.
pub(crate) fn held(request: BurnInRequest, rounds: Vec<BurnInRound>) -> Acceptance {
    Acceptance {
        format: ACCEPTANCE_FORMAT.to_owned(),
        id: "b".to_owned(),
        created: String::new(),
        ended: None,
        state: BurnInState::Running,
        real: true,
        source: String::new(),
        version: String::new(),
        asked: request,
        accepted: AcceptanceOutcome::Unknown,
        stop: None,
        rounds,
        soaks: Vec::new(),
        nodes: vec![node(None)],
        comparison: None,
        since_anew: Vec::new(),
        versions: BTreeMap::new(),
        thresholds_digest: None,
        notes: Vec::new(),
        signature: None,
    }
}

fn rule(acceptance: &Acceptance, hours: f64, next: f64) -> Option<StopRule> {
    check_stop(acceptance, hours, next).map(|stop| stop.rule)
}

#[test]
fn each_limit_has_a_rule_of_its_own() {
    let pass = || vec![round(1, Outcome::Pass), round(2, Outcome::Pass)];
    let rounds = |n| BurnInRequest { rounds: Some(n), ..BurnInRequest::default() };
    assert_eq!(rule(&held(rounds(2), pass()), 1.0, 0.5), Some(StopRule::Rounds));
    assert_eq!(rule(&held(rounds(3), pass()), 1.0, 0.5), None);
    let hours = BurnInRequest { hours: Some(1.0), ..BurnInRequest::default() };
    assert_eq!(rule(&held(hours.clone(), pass()), 1.0, 0.5), Some(StopRule::Hours));
    assert_eq!(rule(&held(hours.clone(), pass()), 0.9, 0.5), None);
    assert_eq!(rule(&held(hours, Vec::new()), 9.0, 0.5), None, "no round has run");
    let budget = BurnInRequest { budget_hours: Some(1.4), ..rounds(9) };
    assert_eq!(rule(&held(budget.clone(), pass()), 1.0, 0.5), Some(StopRule::Budget));
    assert_eq!(rule(&held(budget, pass()), 0.8, 0.5), None);
}

#[test]
fn rounds_in_a_row_are_clean_only_in_a_row() {
    let request =
        BurnInRequest { rounds: Some(9), clean_rounds: Some(2), ..BurnInRequest::default() };
    let of = |outcomes: &[Outcome]| {
        let rounds = (1..).zip(outcomes).map(|(n, outcome)| round(n, *outcome)).collect();
        rule(&held(request.clone(), rounds), 0.1, 0.1)
    };
    use Outcome::{Pass, Unknown};
    assert_eq!(of(&[Unknown, Pass, Pass]), Some(StopRule::CleanRounds));
    assert_eq!(of(&[Pass, Unknown, Pass]), None);
}

#[test]
fn a_round_that_is_held_again_counts_for_no_number() {
    let request = BurnInRequest { rounds: Some(2), ..BurnInRequest::default() };
    let mut rounds = vec![round(1, Outcome::Pass), round(2, Outcome::Unknown)];
    rounds[1].set_aside = true;
    assert_eq!(rule(&held(request, rounds), 1.0, 0.5), None);
}

#[test]
fn it_ends_when_no_node_takes_part() {
    let request = BurnInRequest { rounds: Some(5), ..BurnInRequest::default() };
    let mut acceptance = held(request, vec![round(1, Outcome::Failed)]);
    acceptance.nodes = vec![node(Some(StopRule::Frozen))];
    assert_eq!(rule(&acceptance, 0.1, 0.1), Some(StopRule::Frozen));
}

fn result(step: usize, nodes: &[&str], why: Option<&str>) -> RawResult {
    RawResult {
        format: String::new(),
        step,
        stage: 1,
        domain: None,
        nodes: nodes.iter().map(|node| (*node).into()).collect(),
        rail: None,
        probe: String::new(),
        reading: 0,
        argv: Vec::new(),
        ending: match why {
            Some(why) => {
                let node = nodes.iter().find(|node| why.starts_with(&format!("{node} ")));
                ProcessEnding::NotStarted {
                    why: why.to_owned(),
                    node: node.map(|node| (*node).into()),
                }
            }
            None => ProcessEnding::Exited { code: 0 },
        },
        started: String::new(),
        duration_s: 0.0,
        stdout: None,
        stderr: None,
        sent: Vec::new(),
        stdout_dropped: 0,
        stderr_dropped: 0,
        not_kept: None,
        complaint: None,
        load: None,
        gpus: Vec::new(),
    }
}

#[test]
fn of_nodes_that_were_measured_together_only_the_one_that_is_gone_is_lost() {
    let gone = |node: &str| format!("{node} cannot be reached");
    let results = [
        result(0, &["n1"], None),
        result(1, &["n2"], None),
        result(2, &["n3"], None),
        // n2 is lost here.
        result(3, &["n1", "n2"], Some(&gone("n2"))),
        result(4, &["n2", "n3"], Some("cannot be reached")),
        result(5, &["n1", "n3"], None),
        result(6, &["n1", "n2", "n3"], Some(&gone("n2"))),
    ];
    assert_eq!(find_lost_nodes(&results).into_keys().collect::<Vec<_>>(), [NodeName::from("n2")]);
    assert!(find_lost_nodes(&results[..3]).is_empty());
    // A node that returned is not lost.
    let back = [result(0, &["n1"], Some("busy network")), result(1, &["n1"], None)];
    assert!(find_lost_nodes(&back).is_empty());
}

/// A reference implementation: it searches all results again for every lost node.
fn lost_one_by_one(results: &[RawResult]) -> BTreeSet<NodeName> {
    let mut gone: BTreeSet<NodeName> = BTreeSet::new();
    loop {
        let left = results.iter().filter(|it| !it.nodes.iter().any(|node| gone.contains(node)));
        let mut last: BTreeMap<&NodeName, (&RawResult, usize)> = BTreeMap::new();
        for result in left {
            for node in &result.nodes {
                let entry = last.entry(node).or_insert((result, 0));
                *entry = (result, entry.1 + usize::from(explain_not_started(result).is_some()));
            }
        }
        let ranks = last.iter().filter_map(|(node, (result, count))| {
            let (_, absent) = explain_not_started(result)?;
            let named = |it: &NodeName| absent == Some(it);
            let first = result.nodes.first() == Some(*node) && !result.nodes.iter().any(named);
            Some(((*count, result.nodes.len() == 1, named(node), first), Reverse(*node)))
        });
        let Some((_, Reverse(node))) = ranks.max() else { return gone };
        gone.insert(node.clone());
    }
}

proptest::proptest! {
    #[test]
    fn thousands_are_lost_as_one_by_one(
        steps in proptest::collection::vec((0usize..6, 0usize..6, 0usize..4), 0..24)
    ) {
        let name = |at: usize| format!("n{at}");
        let results: Vec<RawResult> = steps
            .iter()
            .enumerate()
            .map(|(at, (a, b, why))| {
                let (a, b) = (name(*a), name(*b));
                let nodes = if a == b { vec![a.as_str()] } else { vec![a.as_str(), &b] };
                let why = [None, None, Some("no answer".to_owned()), Some(format!("{b} is gone"))][*why].clone();
                result(at, &nodes, why.as_deref())
            })
            .collect();
        let found: BTreeSet<NodeName> = find_lost_nodes(&results).into_keys().collect();
        proptest::prop_assert_eq!(found, lost_one_by_one(&results));
    }
}

fn verdicts(nodes: &[(&str, Outcome)], findings: Vec<Finding>) -> Verdicts {
    let nodes = nodes.iter().map(|(node, outcome)| NodeVerdict {
        node: (*node).into(),
        domain: Some("d".into()),
        outcome: *outcome,
        reason: "why".to_owned(),
        kept_by: None,
        detectable: None,
        detectable_together: None,
        fabric_detectable: None,
        scope: None,
    });
    Verdicts { findings, nodes: nodes.collect(), ..Verdicts::empty(Outcome::Failed) }
}

fn claims() -> Claims {
    let text =
        "[[domain]]\nname = \"d\"\nnodes = \"n[1-4]\"\n[[domain]]\nname = \"e\"\nnodes = \"m1\"\n";
    readers::claims::claims_file::parse("c", text).expect("good")
}

fn out_of(verdicts: &Verdicts, recordings: &[ToolRecording]) -> Vec<(String, StopRule)> {
    let claims = claims();
    let seen = BurnInObservation {
        round: 1,
        verdicts,
        claims: &claims,
        results: &[],
        recordings,
        freeze_domain: 3,
    };
    find_stopped_nodes(&seen)
        .into_iter()
        .map(|(node, stop)| (node.to_string(), stop.rule))
        .collect()
}

#[test]
fn a_hard_fault_ends_its_own_node_and_a_soft_one_ends_none() {
    let one = verdicts(&[("n1", Outcome::Failed), ("n2", Outcome::Degraded)], Vec::new());
    assert_eq!(out_of(&one, &[]), [("n1".to_owned(), StopRule::HardFault)]);
}

#[test]
fn many_bad_nodes_of_a_domain_and_a_doubted_instrument_freeze_that_domain_only() {
    use Outcome::Degraded;
    let many = [("n1", Degraded), ("n2", Degraded), ("n3", Degraded), ("m1", Outcome::Pass)];
    let frozen = out_of(&verdicts(&many, Vec::new()), &[]);
    assert_eq!(frozen.len(), 4);
    assert!(frozen.iter().all(|(node, rule)| node.starts_with('n') && *rule == StopRule::Frozen));
    let doubted = Finding {
        summary: "noise".to_owned(),
        ..Finding::new(
            "",
            Outcome::Unknown,
            FindingClass::NoisyEverywhere,
            Locus { domain: Some("e".into()), ..Locus::new(LocusKind::Instrument) },
        )
    };
    let one = out_of(&verdicts(&[("n1", Outcome::Pass)], vec![doubted]), &[]);
    assert_eq!(one, [("m1".to_owned(), StopRule::Frozen)]);
}

#[test]
fn a_gpu_that_slows_itself_down_by_heat_ends_its_node() {
    use model::probe_report::{DriverTelemetry, GpuTelemetry, GpuTelemetrySample};
    use model::throttle_reason::ThrottleReason;
    let around = |why: &str| {
        let throttled = vec![ThrottleReason::parse(why)];
        let state = GpuTelemetrySample { throttled, ..GpuTelemetrySample::default() };
        let gpu = GpuTelemetry { index: 2, under_load: Some(state), ..GpuTelemetry::default() };
        let mut parsed = readers::outputs::parse_output(b"");
        let around = DriverTelemetry { samples: 1, gpus: vec![gpu], missing: Vec::new() };
        parsed.facts.around.insert("host".to_owned(), around);
        [ToolRecording::new(RecordingScope::Node("n1".into()), "f", parsed)]
    };
    let fine = verdicts(&[("n1", Outcome::Pass)], Vec::new());
    let hot = out_of(&fine, &around("hardware thermal slowdown"));
    assert_eq!(hot, [("n1".to_owned(), StopRule::TooHot)]);
    assert_eq!(out_of(&fine, &around("software thermal slowdown")), []);
}

#[test]
fn another_boot_or_other_gpus_are_another_machine() {
    let with = |boot: Option<&str>, gpus: &[&str]| {
        let mut round = round(1, Outcome::Pass);
        round.nodes[0].boot_id = boot.map(str::to_owned);
        round.nodes[0].gpus = gpus.iter().map(|it| (*it).to_owned()).collect();
        round
    };
    let others = |mut rounds: Vec<BurnInRound>| {
        (1..).zip(&mut rounds).for_each(|(n, round)| round.round = n);
        find_replaced_machines(&rounds)
            .into_values()
            .map(|it| it.after_round + 1)
            .collect::<Vec<_>>()
    };
    assert!(others(vec![with(Some("a"), &["g"]), with(Some("a"), &["g"])]).is_empty());
    assert_eq!(others(vec![with(Some("a"), &[]), with(None, &[]), with(Some("b"), &[])]), [3]);
    assert_eq!(others(vec![with(None, &["g"]), with(None, &["h"])]), [2]);
    assert!(others(vec![with(None, &[]), with(Some("a"), &["g"])]).is_empty());
    // In the middle of a round, and not reported again by the next one.
    let mut midst = with(None, &["g"]);
    midst.nodes[0].rebooted = true;
    let history = vec![with(Some("a"), &["g"]), midst, with(Some("b"), &["g"])];
    assert_eq!(others(history), [3], "it begins anew after round 2");
}
