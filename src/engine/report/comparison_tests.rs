//! Tests of comparisons as text.

use super::*;
use model::comparison::{COMPARISON_FORMAT, UncomparedNode};
use model::unit::Unit;
use model::verdict::Outcome;

fn read(difference: ComparisonOutcome, change: f64) -> PartComparison {
    PartComparison {
        part: FabricPart {
            kind: FabricPartKind::Gpu,
            domain: None,
            node: Some("n1".into()),
            gpu: Some(3),
            peer: None,
            rail: None,
            direction: None,
        },
        testcase: "copies<&>".to_owned(),
        unit: Unit::GigabytesPerSecond,
        before: Some(100.0),
        after: Some(100.0 * (1.0 + change)),
        expected: None,
        change: Some(change),
        noise: Some(0.01),
        difference,
    }
}

fn comparison() -> RunComparison {
    RunComparison {
        before: "a".to_owned(),
        before_created: "2026-11-22T02:00:00Z".to_owned(),
        after: "b".to_owned(),
        after_created: String::new(),
        parts: vec![
            read(ComparisonOutcome::Better, 0.2),
            read(ComparisonOutcome::Worse, -0.05),
            read(ComparisonOutcome::Same, 0.001),
        ],
    }
}

#[test]
fn changes_have_rows_and_the_rest_is_counted() {
    let comparison = comparison();
    let rows = build_rows(&comparison, 10);
    assert_eq!(rows.len(), 2);
    assert_eq!((rows[0].word, rows[0].change.as_str()), ("better", "+20.0 %"));
    assert_eq!((rows[1].part.as_str(), rows[1].change.as_str()), ("n1 GPU 3", "-5.0 %"));
    let summary = summarize(&comparison).join("\n");
    assert!(summary.contains("1 reading is worse, the most n1 GPU 3"), "{summary}");
    assert!(summary.contains("1 reading is the same within noise"), "{summary}");
}

#[test]
fn a_pipeline_reads_what_a_repair_changed_and_fails_by_none_of_it() {
    let repairs = RepairReport {
        format: COMPARISON_FORMAT.to_owned(),
        nodes: vec![NodeRepair {
            node: "n1".into(),
            before: Outcome::Failed,
            before_reason: String::new(),
            after: Outcome::Pass,
            text: vec!["fine <now>".to_owned()],
            changes: Vec::new(),
            comparison: comparison(),
        }],
        without: vec![UncomparedNode { node: "n2".into(), why: "no run".to_owned() }],
    };
    let bare = "<?xml version=\"1.0\"?>\n<testsuites>\n</testsuites>\n";
    assert!(append_to_junit(bare, &repairs).contains("<testsuites>\n"));
    let document = bare.replace("<testsuites>", "<testsuites name=\"f\" tests=\"5\" errors=\"0\">");
    let document = document.as_str();
    assert!(
        append_to_junit(document, &repairs).contains("<testsuites name=\"f\" tests=\"7\" errors")
    );
    let text = append_to_junit(document, &repairs);
    assert!(text.contains("<testsuite name=\"repair\" tests=\"2\" failures=\"0\""), "{text}");
    assert!(text.contains("fine &lt;now&gt;") && text.ends_with("</testsuites>\n"), "{text}");
    let style = TerminalStyle { width: 100, colour: false };
    let shown = render_terminal(&repairs, &style);
    assert!(shown.contains("n1, against run a of 2026-11-22 02:00"), "{shown}");
    assert!(shown.contains("n2: not compared: no run"), "{shown}");
}
