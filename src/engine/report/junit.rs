//! JUnit XML for pipelines: a suite per domain, a case per node, a case per finding that belongs to
//! no node.
//!
//! Degraded and failed are `<failure>`. Unknown is `<error type="unknown">` and not `<skipped>`:
//! pipelines count a skipped test as passed, and an unknown state must never open a gate. The first
//! suite holds one case with the verdict of the whole run, so a file is free of failures and errors
//! exactly when the run passed.

use std::collections::BTreeMap;

use super::actions::ActionSummary;
use super::headline::build_headline;
use super::plain_text::{clip, format_quantity, to_plain};
use super::xml::XmlWriter;
use super::{class_text, reference_text};
use model::id::NodeName;
use model::run::Run;
use model::verdict::{Finding, NodeVerdict, Outcome};

struct JunitCase {
    class: String,
    name: String,
    outcome: Outcome,
    kind: String,
    message: String,
    text: String,
}

/// Longest message of one case, in characters.
const LONGEST: usize = 1_000;

/// Renders the document.
pub fn render(run: &Run) -> String {
    let verdicts = &run.verdicts;
    let mut suites: Vec<(String, Vec<JunitCase>)> = vec![("run".to_owned(), vec![run_case(run)])];
    let mut at: BTreeMap<&str, usize> = BTreeMap::new();
    let mut suite = |suites: &mut Vec<(String, Vec<JunitCase>)>, name| {
        *at.entry(name).or_insert_with(|| {
            suites.push((to_plain(name).into_owned(), Vec::new()));
            suites.len() - 1
        })
    };
    let named = verdicts.findings_by_node();
    let mut worst: BTreeMap<&NodeName, Outcome> = BTreeMap::new();
    for node in &verdicts.nodes {
        let to = suite(&mut suites, node.domain.as_ref().map_or("no domain", |d| d.as_str()));
        let findings = named.get(&node.node).into_iter().flatten().copied();
        let findings: Vec<&Finding> =
            findings.filter(|f| is_covered_by_node(f, node.outcome)).collect();
        let so_far = worst.entry(&node.node).or_insert(node.outcome);
        *so_far = node.outcome.max(*so_far);
        let class = format!("{}.node", suites[to].0);
        suites[to].1.push(node_case(class, node, &findings));
    }
    for finding in &verdicts.findings {
        let of_its_node = finding.locus.node.as_ref().and_then(|node| worst.get(node));
        if of_its_node.is_some_and(|outcome| is_covered_by_node(finding, *outcome)) {
            continue;
        }
        let domain = finding.locus.domain.as_ref().map_or("no domain", |d| d.as_str());
        let to = suite(&mut suites, domain);
        let class = format!("{}.{}", suites[to].0, finding.locus.kind.as_str());
        suites[to].1.push(JunitCase {
            class,
            name: clip(&format!("{} {}", finding.locus, finding.class), LONGEST),
            outcome: finding.outcome,
            kind: clip(finding.class.as_str(), LONGEST),
            message: clip(&finding.summary, LONGEST),
            text: describe_finding(finding),
        });
    }
    write_document(run, &suites)
}

/// Whether a finding that names a node is listed in that node's case: the node's outcome is at
/// least as bad. A finding that did not make its node bad has a case of its own, so that none is
/// lost.
fn is_covered_by_node(finding: &Finding, node: Outcome) -> bool {
    finding.outcome <= node
}

fn run_case(run: &Run) -> JunitCase {
    let headline = build_headline(run);
    let mut text = String::new();
    for unknown in &run.verdicts.unknown {
        let line = format!(
            "unknown: {}: {}\n",
            to_plain(&unknown.what.to_string()),
            to_plain(&unknown.why)
        );
        text.push_str(&line);
    }
    for note in &run.verdicts.notes {
        text.push_str(&format!("note: {}\n", to_plain(note)));
    }
    if let Some(plan) = &run.actions {
        let summary = ActionSummary::from_plan(plan);
        let frozen = summary.frozen.iter().map(|why| format!("frozen: {why}\n"));
        let carried = summary.records.iter().map(|line| format!("carried out: {line}\n"));
        text.extend(frozen.chain(carried));
    }
    JunitCase {
        class: "run".to_owned(),
        name: "verdict".to_owned(),
        outcome: headline.outcome,
        kind: headline.outcome.to_string(),
        message: clip(
            &run.info.simulation_notice().map_or_else(
                || headline.without_outcome(),
                |text| format!("{text}; {}", headline.without_outcome()),
            ),
            LONGEST,
        ),
        text,
    }
}

fn node_case(class: String, node: &NodeVerdict, findings: &[&Finding]) -> JunitCase {
    let kind = match (node.outcome, findings.first()) {
        (Outcome::Unknown, _) => "unknown".to_owned(),
        (_, Some(finding)) => clip(finding.class.as_str(), LONGEST),
        (outcome, None) => outcome.to_string(),
    };
    JunitCase {
        class,
        name: to_plain(node.node.as_str()).into_owned(),
        outcome: node.outcome,
        kind,
        message: clip(&node.reason, LONGEST),
        text: findings.iter().map(|f| describe_finding(f)).collect::<Vec<_>>().join("\n"),
    }
}

fn describe_finding(finding: &Finding) -> String {
    let title = class_text::class_title(&finding.class);
    let mut text =
        format!("{}: {title}: {}\n", to_plain(&finding.id), clip(&finding.summary, LONGEST));
    if let Some(measured) = finding.measured {
        text.push_str(&format!("measured {}\n", format_quantity(measured, finding.unit)));
    }
    for line in reference_text::reference_lines(finding) {
        text.push_str(&format!("{line}\n"));
    }
    let support = if finding.confirmed { "confirmed" } else { "measured once" };
    text.push_str(&format!("rule {}, {support}\n", to_plain(&finding.rule.to_string())));
    for evidence in &finding.evidence {
        let (file, detail) = (to_plain(&evidence.file), clip(&evidence.detail, LONGEST));
        text.push_str(&format!("{file}: {detail}\n"));
    }
    if let Some(next) = class_text::class_advice(&finding.class) {
        text.push_str(&format!("what to do next: {next}\n"));
    }
    text
}

fn write_document(run: &Run, suites: &[(String, Vec<JunitCase>)]) -> String {
    let count = |cases: &[JunitCase], of: &[Outcome]| {
        cases.iter().filter(|c| of.contains(&c.outcome)).count()
    };
    let bad = [Outcome::Degraded, Outcome::Failed];
    let totals = |of: &[Outcome]| -> usize { suites.iter().map(|s| count(&s.1, of)).sum() };
    let tests: usize = suites.iter().map(|s| s.1.len()).sum();
    let mut xml = XmlWriter::new();
    xml.open(
        "testsuites",
        &[
            ("name", "fabricgate"),
            ("tests", &tests.to_string()),
            ("failures", &totals(&bad).to_string()),
            ("errors", &totals(&[Outcome::Unknown]).to_string()),
        ],
    );
    for (i, (name, cases)) in suites.iter().enumerate() {
        xml.open(
            "testsuite",
            &[
                ("name", name),
                ("tests", &cases.len().to_string()),
                ("failures", &count(cases, &bad).to_string()),
                ("errors", &count(cases, &[Outcome::Unknown]).to_string()),
                ("skipped", "0"),
            ],
        );
        if i == 0 {
            write_properties(&mut xml, run);
        }
        for case in cases {
            write_case(&mut xml, case);
        }
        xml.close();
    }
    xml.finish()
}

fn write_properties(xml: &mut XmlWriter, run: &Run) {
    xml.open("properties", &[]);
    let platform = run.verdicts.platform.as_deref().unwrap_or("");
    for (name, value) in [
        ("run", run.info.id.as_str()),
        ("created", &run.info.created),
        ("profile", &run.info.profile),
        ("source", &run.info.source),
        ("version", &run.info.version),
        ("simulated", if run.info.simulated { "true" } else { "false" }),
        ("platform", platform),
        ("thresholds_digest", &run.verdicts.thresholds_digest),
    ] {
        xml.empty("property", &[("name", name), ("value", &to_plain(value))]);
    }
    xml.close();
}

fn write_case(xml: &mut XmlWriter, case: &JunitCase) {
    let head = [("classname", case.class.as_str()), ("name", case.name.as_str()), ("time", "0")];
    let problem = [("type", case.kind.as_str()), ("message", case.message.as_str())];
    match case.outcome {
        Outcome::Pass if case.text.is_empty() => xml.empty("testcase", &head),
        Outcome::Pass => {
            xml.open("testcase", &head);
            xml.text("system-out", &[], &case.text);
            xml.close();
        }
        Outcome::Unknown => {
            xml.open("testcase", &head);
            xml.text("error", &problem, &case.text);
            xml.close();
        }
        Outcome::Degraded | Outcome::Failed => {
            xml.open("testcase", &head);
            xml.text("failure", &problem, &case.text);
            xml.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn a_rack_is_rendered() {
        insta::assert_snapshot!("rack", render(&fixture::rack()));
    }

    #[test]
    fn hostile_names_are_rendered() {
        let text = render(&fixture::hostile());
        assert!(!fixture::steers(&text));
        insta::assert_snapshot!("hostile", text);
    }

    #[test]
    fn a_file_is_free_of_failures_and_errors_exactly_when_the_run_passed() {
        let clean = |run: &Run| {
            let text = render(run);
            !text.contains("<failure") && !text.contains("<error") && !text.contains("<skipped")
        };
        for run in fixture::all() {
            assert!(!clean(&run), "{}", run.info.id);
        }
        let mut run = fixture::rack();
        run.verdicts.outcome = Outcome::Pass;
        run.verdicts.findings.clear();
        run.verdicts.nodes.iter_mut().for_each(|n| n.outcome = Outcome::Pass);
        assert!(clean(&run));
        assert!(render(&run).contains("failures=\"0\" errors=\"0\""));
    }

    #[test]
    fn a_domain_finding_does_not_fail_its_nodes_and_has_a_case_of_its_own() {
        let mut run = fixture::rack();
        run.verdicts.nodes.iter_mut().for_each(|n| n.outcome = Outcome::Pass);
        let locus = &mut run.verdicts.findings[0].locus;
        locus.kind = model::verdict::LocusKind::Domain;
        (locus.node, locus.gpu) = (None, None);
        let text = render(&run);
        assert!(text.contains("name=\"domain block01 nvlink-low\""), "{text}");
        // The run's own verdict, and the domain's case.
        assert_eq!(text.matches("<failure").count(), 2);
    }
}
