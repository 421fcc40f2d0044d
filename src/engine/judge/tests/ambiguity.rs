//! If the data fits several explanations, a text names them and the measurement that decides.

use super::network::{TestNetwork, judged, matching};
use super::test_machine::{TestMachine, share};
use crate::judge::Judgement;
use model::parse_output::OutputProblemKind;
use model::verdict::Direction;

/// Phrases that introduce more than one explanation.
const ALTERNATIVES: &[&str] = &[
    " or ",
    "either",
    "not known",
    "unknown",
    "cannot show",
    "cannot decide",
    "does not report",
    "no single part",
];

/// Phrases that introduce the measurement that decides.
const NEXT_STEPS: &[&str] = &[
    "check ",
    "measure ",
    "read this pair",
    "repeat ",
    "run ",
    "show which",
    "take ",
    "use another",
];

/// All texts of a judgement that name several explanations.
fn ambiguous_texts(judged: &Judgement) -> Vec<&str> {
    let verdicts = &judged.verdicts;
    let texts = verdicts.findings.iter().map(|f| f.summary.as_str());
    let texts = texts.chain(verdicts.unknown.iter().map(|u| u.why.as_str()));
    texts.filter(|text| ALTERNATIVES.iter().any(|phrase| text.contains(phrase))).collect()
}

fn rack(f: impl Fn((u32, u32), (u32, u32)) -> f64 + 'static) -> Judgement {
    TestMachine::rack().capacity(move |s, d| Some(f(s, d))).judge()
}

#[test]
fn a_text_with_several_explanations_names_the_deciding_measurement() {
    let pair = |s: (u32, u32), d: (u32, u32)| [s, d] == [(2, 1), (7, 3)];
    let lossy = |a: u32, b: u32| if (a.min(b), a.max(b)) == (2, 3) { 0.5 } else { 1.0 };
    let cases: Vec<(&str, Judgement)> = vec![
        ("no node reaches another", rack(|s, d| if s.0 == d.0 { 1.0 } else { 0.06 })),
        ("two halves", rack(|s, d| if (s.0 < 9) == (d.0 < 9) { 1.0 } else { 0.06 })),
        ("a plane", rack(|_, _| share(2))),
        ("no whole link", rack(|_, _| 0.92)),
        ("another platform", rack(|_, _| 1.3)),
        ("on PCIe", TestMachine::hgx(1).capacity(|_, _| Some(0.1)).judge()),
        ("all alike", TestMachine::hgx(4).capacity(|_, _| Some(0.9)).judge()),
        ("two readings", {
            let bench = TestMachine::rack().readings(2);
            bench.capacity(move |s, d| Some(if pair(s, d) { 0.8 } else { 1.0 })).judge()
        }),
        ("half the lanes", {
            let half = |_, gpu, way| if gpu == 1 && way == Direction::H2d { 0.5 } else { 1.0 };
            TestMachine::hgx(1).host(half).judge()
        }),
        ("a matching", judged(TestNetwork::new(lossy), &matching(8))),
        ("a slow network", judged(TestNetwork::new(|_, _| 0.5), &matching(8))),
    ];
    for (what, judged) in &cases {
        let open = ambiguous_texts(judged);
        assert!(!open.is_empty(), "{what} names one explanation only");
        for text in &open {
            assert!(NEXT_STEPS.iter().any(|step| text.contains(step)), "{what}: {text}");
        }
    }
}

#[test]
fn a_sweep_that_is_too_noisy_names_the_next_measurement() {
    let judged = TestMachine::hgx(1).noise(0.03, 0.0, 9).judge();
    let why = &judged.verdicts.nodes[0].reason;
    assert!(why.contains("take more readings of every pair"), "{why}");
}

#[test]
fn a_pair_without_a_connection_names_the_next_measurement() {
    let lab = TestNetwork::new(|_, _| 1.0);
    let mut recordings = TestNetwork::new(|_, _| 1.0).measure(&matching(8));
    let parsed = &mut recordings[0].parsed;
    parsed.measurements.clear();
    let refused =
        model::parse_output::OutputProblem::new(OutputProblemKind::Error, "connection refused");
    parsed.problems.push(refused);
    let judged = lab.judge(&lab.claims(), &recordings);
    let why = &judged.verdicts.nodes[0].reason;
    assert!(why.contains("is unknown") && why.contains("run each with another"), "{why}");
}
