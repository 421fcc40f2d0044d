//! Tests of the summary of a repair.

use super::*;
use model::finding_class::FindingClass;
use model::trend::FabricPartKind;
use model::unit::Unit;
use model::verdict::{Locus, LocusKind};

fn node(outcome: Outcome) -> NodeVerdict {
    NodeVerdict {
        node: "n1".into(),
        domain: None,
        outcome,
        reason: "its reason".to_owned(),
        kept_by: None,
        detectable: None,
        detectable_together: None,
        fabric_detectable: None,
        scope: None,
    }
}

fn read(gpu: u32, difference: ComparisonOutcome) -> PartComparison {
    let kind = FabricPartKind::Gpu;
    let (peer, rail, direction, domain) = (None, None, None, None);
    let part =
        FabricPart { kind, domain, node: Some("n1".into()), gpu: Some(gpu), peer, rail, direction };
    PartComparison {
        part,
        testcase: "copies".to_owned(),
        unit: Unit::GigabytesPerSecond,
        before: Some(1.0),
        after: Some(1.1),
        expected: None,
        change: Some(0.1),
        noise: Some(0.01),
        difference,
    }
}

fn summary_text(
    before: Outcome,
    after: Outcome,
    parts: Vec<PartComparison>,
    changes: &[RunChange],
) -> String {
    let locus = Locus { node: Some("n1".into()), gpu: Some(2), ..Locus::new(LocusKind::Gpu) };
    let found =
        [Finding { confirmed: true, ..Finding::new("x", before, FindingClass::NvlinkLow, locus) }];
    let verdicts = Verdicts { nodes: vec![node(after)], ..Verdicts::empty(after) };
    let comparison = RunComparison {
        before: "a".to_owned(),
        before_created: String::new(),
        after: "b".to_owned(),
        after_created: String::new(),
        parts,
    };
    summarize_repair(&RepairSides {
        node: &"n1".into(),
        before: &node(before),
        found: &found,
        after: &verdicts,
        comparison: &comparison,
        changes,
    })
    .join("\n")
}

#[test]
fn better_and_fine_is_not_better_and_still_below() {
    use ComparisonOutcome::Better;
    let fine = summary_text(Outcome::Degraded, Outcome::Pass, vec![read(2, Better)], &[]);
    assert!(fine.contains("better in 1 readings and at its expected level"), "{fine}");
    let below = summary_text(Outcome::Failed, Outcome::Degraded, vec![read(2, Better)], &[]);
    assert!(below.contains("better in 1 readings, and still below"), "{below}");
    let open = summary_text(Outcome::Failed, Outcome::Unknown, vec![read(2, Better)], &[]);
    assert!(open.contains("its level is uncertain"), "{open}");
}

#[test]
fn degradations_elsewhere_are_reported_next_to_improvements() {
    use ComparisonOutcome::{Better, Worse};
    let parts = vec![read(2, Better), read(3, Worse)];
    let both = summary_text(Outcome::Degraded, Outcome::Degraded, parts, &[]);
    assert!(both.contains("the blamed part is better"), "{both}");
    assert!(both.contains("elsewhere 1 of its readings are worse"), "{both}");
    assert!(both.contains("GPU 3 by 10.0 %"), "{both}");
}

#[test]
fn a_repair_without_effect_is_reported() {
    let parts = vec![read(2, ComparisonOutcome::Same)];
    let same = summary_text(Outcome::Degraded, Outcome::Degraded, parts, &[]);
    assert!(same.contains("changed no measurement"), "{same}");
    assert!(same.contains("are unchanged"), "{same}");
    let gone = summary_text(
        Outcome::Degraded,
        Outcome::Unknown,
        vec![read(2, ComparisonOutcome::OnlyBefore)],
        &[],
    );
    assert!(gone.contains("was not measured now"), "{gone}");
}

#[test]
fn swapped_hardware_and_what_else_changed_is_named() {
    let changed = |kind, what: &str| RunChange {
        run: "b".to_owned(),
        at: String::new(),
        node: Some("n1".into()),
        kind,
        what: what.to_owned(),
        before: "one".to_owned(),
        after: "two\u{1b}[2J".to_owned(),
    };
    let changes = [
        changed(RunChangeKind::Hardware, "GPU 2 UUID"),
        changed(RunChangeKind::Driver, "driver"),
        changed(RunChangeKind::Boot, "boot"),
    ];
    let parts = vec![read(2, ComparisonOutcome::Better)];
    let text = summary_text(Outcome::Failed, Outcome::Pass, parts, &changes);
    assert!(text.contains("it has other hardware: GPU 2\n"), "{text}");
    assert!(text.contains("driver was one and is two"), "{text}");
    assert!(text.contains("it has rebooted"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text:?}");
}
