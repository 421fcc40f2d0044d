//! Tests of a plan as text: a small plan is complete, a large one is summarised.

use super::*;
use crate::report::fixture;
use model::action::WithheldAction;
use model::finding_class::FindingClass;

fn action(kind: ActionKind, node: &str, words: &[&str], why: &str) -> Action {
    let mut command = vec!["scontrol".to_owned(), "update".to_owned(), format!("NodeName={node}")];
    command.extend(words.iter().map(|word| (*word).to_owned()));
    Action { command, why: why.to_owned(), ..Action::new(kind, node) }
}

fn mark(outcome: Outcome, class: Option<&str>) -> Option<VerdictMark> {
    Some(VerdictMark {
        outcome,
        class: class.map(FindingClass::from_name),
        run: "r2".to_owned(),
        at: "2026-03-04T05:06:07.890Z".to_owned(),
        expires: None,
        boot_id: None,
        domain: None,
    })
}

fn plan(actions: Vec<Action>) -> ActionPlan {
    ActionPlan::from_actions(actions)
}

fn left(what: &str, why: &str) -> WithheldAction {
    WithheldAction::new(what, why)
}

fn record(kind: ActionKind, node: &str, result: ActionResult, detail: &str) -> ActionRecord {
    let (node, detail) = (node.into(), detail.to_owned());
    ActionRecord { kind, node, result, detail, at: "2026-03-04T05:07:00.000Z".to_owned() }
}

/// A plan with every kind of content.
fn whole() -> ActionPlan {
    use ActionKind::{Certify, Drain, Relabel, Release};
    let reason = "Reason=fabricgate:nvlink-low:r2 e3";
    let drain = |node: &str, why: &str, price: Option<f64>| Action {
        reason: reason.to_owned(),
        price,
        ..action(Drain, node, &["State=DRAIN", reason], why)
    };
    let mut actions = vec![
        action(Release, "node0004", &["State=RESUME"], "drained for run r0; passed runs r1 and r2"),
        drain("node0007", "gpu node0007:2 failed: no copy works", Some(16.0)),
        drain("node0009", "gpu node0009:0 degraded: 5.5 % low", Some(1.0)),
    ];
    actions.push(Action {
        mark: mark(Outcome::Degraded, Some("nvlink-low")),
        price: Some(0.5),
        ..action(
            Relabel,
            "node0011",
            &["ActiveFeatures=fabric_degraded"],
            "gpu node0011:1 degraded: 3.1 % low; a drain would cost more than it saves",
        )
    });
    for (at, words) in [(12, "a,fabric_verified"), (13, "a,fabric_verified"), (15, "b")] {
        let node = format!("node00{at}");
        let features = format!("ActiveFeatures={words}");
        actions.push(Action {
            mark: mark(Outcome::Pass, None),
            ..action(Certify, &node, &[&features], "passed run r2 (recertify)")
        });
    }
    ActionPlan {
        dry_run: false,
        frozen: Some(
            "the breaker tripped 2026-03-03T10:00:00Z: 3 of 18 suspect at once".to_owned(),
        ),
        withheld: vec![
            left("node0001", "drained by another party (root: broken fan)"),
            left("node0002", "drained by fabricgate; 1 is missing"),
            left("node0003", "drained by fabricgate; 1 is missing"),
            left("pair node0001 - node0005 (pair-low)", "either end of a pair may be faulty"),
        ],
        records: vec![
            record(Drain, "node0007", ActionResult::Done, "DRAINING"),
            record(Drain, "node0009", ActionResult::Unknown, "the controller did not answer"),
            record(Certify, "node0012", ActionResult::Done, ""),
            record(Certify, "node0013", ActionResult::Done, ""),
            record(Release, "node0004", ActionResult::Superseded, "a person resumed it"),
        ],
        ..plan(actions)
    }
}

fn render_text(plan: &ActionPlan, budgets: &[String]) -> String {
    render(plan, &TerminalStyle { width: 100, colour: false }, budgets)
}

#[test]
fn a_plan_with_everything_is_shown() {
    let budgets = ["block01: 1 of 2 drains left".to_owned(), "this hour: 3 of 5 left".to_owned()];
    insta::assert_snapshot!("whole", render_text(&whole(), &budgets));
}

#[test]
fn an_empty_plan_is_reported_as_empty() {
    let text = render_text(&plan(Vec::new()), &[]);
    assert_eq!(text, "Proposed (dry run: nothing is carried out)\n  nothing\n");
}

#[test]
fn ten_thousand_nodes_are_a_few_dozen_lines_and_none_is_lost() {
    let node = |at: usize| format!("node{at:05}");
    let mut actions = Vec::new();
    let mut withheld = Vec::new();
    let mut records = Vec::new();
    for at in 0..10_000 {
        let (node, all) = (node(at), ["Extra={}"]);
        match at % 100 {
            7 => {
                let why = format!("gpu {node}:0 degraded: {at} low");
                actions.push(action(ActionKind::Drain, &node, &["State=DRAIN"], &why));
            }
            // Scattered nodes, each with its own features.
            13 | 37 => {
                let own = format!("ActiveFeatures=of-{at},fabric_verified");
                let certify = action(ActionKind::Certify, &node, &[&own], "passed run r2");
                actions.push(Action { mark: mark(Outcome::Pass, None), ..certify });
            }
            51 => withheld.push(left(&node, &format!("the {at}th reason"))),
            52 => withheld.push(left(&node, "not certified: it is out of service")),
            _ => {
                let certify = action(ActionKind::Certify, &node, &all, "passed run r2");
                actions.push(Action { mark: mark(Outcome::Pass, None), ..certify });
                records.push(record(ActionKind::Certify, &node, ActionResult::Done, ""));
            }
        }
    }
    let plan = ActionPlan { withheld, records, ..plan(actions) };
    let text = render_text(&plan, &[]);
    let lines = text.lines().count();
    assert!((20..100).contains(&lines), "{lines} lines:\n{text}");
    assert!(text.lines().all(|line| line.len() < 2_000), "{text}");
    assert!(text.contains("(9700 nodes): passed run r2\n"), "{text}");
    assert!(text.contains("and 196 other calls for "), "{text}");
    assert!(text.contains("and 80 more; --json lists all\n"), "{text}");
    assert!(text.contains("NodeName=\"... (9500 nodes, listed in actions.json)\""), "{text}");
}

#[test]
fn nodes_of_one_call_are_one_command_that_can_be_copied() {
    let nodes = ["n1", "n2", "n3", "n7"];
    let actions =
        nodes.map(|n| action(ActionKind::Drain, n, &["State=DRAIN"], "the same")).to_vec();
    let text = render_text(&plan(actions), &[]);
    assert!(text.contains("  $ scontrol update NodeName=\"n[1-3,7]\" State=DRAIN\n"), "{text}");
    assert!(text.contains("    drain n[1-3,7] (4 nodes): the same\n"), "{text}");
}

#[test]
fn a_plan_cannot_control_a_terminal() {
    let nasty = "x\x1b[31m\u{202e}\n\r";
    let mut actions = vec![action(ActionKind::Drain, nasty, &[nasty], nasty)];
    actions.push(action(ActionKind::Certify, "n1", &[], nasty));
    let plan = ActionPlan {
        frozen: Some(nasty.to_owned()),
        withheld: vec![left(nasty, nasty)],
        records: vec![record(ActionKind::Drain, nasty, ActionResult::Failed, nasty)],
        ..plan(actions)
    };
    let text = render_text(&plan, &[nasty.to_owned()]);
    assert!(!fixture::steers(&text), "{text:?}");
}

#[test]
fn failures_are_listed_before_successes() {
    let summary = ActionSummary::from_plan(&whole());
    let begins: Vec<&str> =
        summary.records.iter().filter_map(|line| line.split(':').next()).collect();
    assert_eq!(begins, ["not known yet", "left to others", "done", "done"]);
}

#[test]
fn every_report_shows_what_is_frozen_and_what_became_of_actions() {
    let mut run = fixture::rack();
    run.actions = Some(whole());
    let style = TerminalStyle { width: 120, colour: false };
    let finding = run.verdicts.findings[0].id.clone();
    let forms = [
        crate::report::terminal::render(&run, &style),
        crate::report::html::render(&run, &crate::report::html::HtmlPageContext::default())
            .expect("a page"),
        crate::report::junit::render(&run),
    ];
    for text in forms {
        assert!(text.contains("the breaker tripped 2026-03-03T10:00:00Z"), "{text}");
        assert!(text.contains("not known yet: drain node0009: the controller did not"), "{text}");
        assert!(text.contains("done: certify node[0012-0013] (2 nodes)"), "{text}");
    }
    // An explanation stays with its node.
    let plan = run.actions.as_mut().expect("a plan");
    plan.actions[1].findings.push(finding.clone());
    let explanation = crate::report::explain::explain(&run, &finding).expect("known");
    assert!(explanation.contains("frozen: the breaker tripped"), "{explanation}");
    assert!(explanation.contains("done: drain node0007: DRAINING"), "{explanation}");
    assert!(!explanation.contains("node0009"), "{explanation}");
}

#[test]
fn commands_of_kubernetes_are_joined_as_a_shell_joins_them_and_boots_make_no_group() {
    let mark = |node: &str| {
        let mark = mark(Outcome::Pass, None)?;
        Some(VerdictMark {
            boot_id: Some(format!("boot-{node}")),
            domain: Some("d".into()),
            ..mark
        })
    };
    let certify = |node: &str| Action {
        mark: mark(node),
        command: ["kubectl", "taint", "node", node, "a:b-", "&&", "kubectl", "label", "node", node]
            .map(str::to_owned)
            .to_vec(),
        ..action(ActionKind::Certify, node, &[], "passed run r2")
    };
    let summary = ActionSummary::from_plan(&plan(vec![certify("n1"), certify("n2")]));
    let [group] = summary.groups.as_slice() else { panic!("{summary:?}") };
    assert_eq!(group.whys, ["certify n[1-2] (2 nodes): passed run r2"]);
    assert_eq!(group.calls[0], "kubectl taint node n1 \"a:b-\" && kubectl label node n1");
}
