//! JUnit XML for pipelines: a suite per domain, a case per node, a case per
//! finding that belongs to no node.
//!
//! Degraded and failed are `<failure>`. Unknown is `<error type="unknown">`
//! and not `<skipped>`: pipelines count a skipped test as fine, and not
//! knowing must never open a gate. The first suite holds one case with the
//! verdict of the whole run, so a file is free of failures and errors exactly
//! when the run passed.

use std::collections::BTreeMap;

use super::actions::Told;
use super::class;
use super::compared;
use super::headline::headline;
use super::plain::clip;
use super::plain::plain;
use super::plain::quantity;
use super::xml::Xml;
use model::id::NodeName;
use model::run::Run;
use model::verdict::Finding;
use model::verdict::NodeVerdict;
use model::verdict::Outcome;

/// One case of a suite.
struct Case {
    class: String,
    name: String,
    outcome: Outcome,
    kind: String,
    message: String,
    text: String,
}

/// Longest message of one case.
const LONGEST: usize = 1_000;

/// The document.
pub fn render(run: &Run) -> String {
    let verdicts = &run.verdicts;
    let mut suites: Vec<(String, Vec<Case>)> = vec![("run".to_owned(), vec![whole(run)])];
    let mut at: BTreeMap<&str, usize> = BTreeMap::new();
    let mut suite = |suites: &mut Vec<(String, Vec<Case>)>, name| {
        *at.entry(name).or_insert_with(|| {
            suites.push((plain(name).into_owned(), Vec::new()));
            suites.len() - 1
        })
    };
    let named = verdicts.findings_by_node();
    let mut worst: BTreeMap<&NodeName, Outcome> = BTreeMap::new();
    for node in &verdicts.nodes {
        let to = suite(&mut suites, node.domain.as_ref().map_or("no domain", |d| d.as_str()));
        let findings = named.get(&node.node).into_iter().flatten().copied();
        let findings: Vec<&Finding> = findings.filter(|f| is_told(f, node.outcome)).collect();
        let so_far = worst.entry(&node.node).or_insert(node.outcome);
        *so_far = node.outcome.max(*so_far);
        let class = format!("{}.node", suites[to].0);
        suites[to].1.push(of_node(class, node, &findings));
    }
    for finding in &verdicts.findings {
        let of_its_node = finding.locus.node.as_ref().and_then(|node| worst.get(node));
        if of_its_node.is_some_and(|outcome| is_told(finding, *outcome)) {
            continue;
        }
        let domain = finding.locus.domain.as_ref().map_or("no domain", |d| d.as_str());
        let to = suite(&mut suites, domain);
        let class = format!("{}.{}", suites[to].0, finding.locus.kind.as_str());
        suites[to].1.push(Case {
            class,
            name: clip(&format!("{} {}", finding.locus, finding.class), LONGEST),
            outcome: finding.outcome,
            kind: clip(finding.class.as_str(), LONGEST),
            message: clip(&finding.summary, LONGEST),
            text: in_words(finding),
        });
    }
    write(run, &suites)
}

/// Whether a finding that names a node is told in that node's case: the node came out
/// at least as badly. A finding that did not make its node bad has a case of its own, so
/// that none is lost.
fn is_told(finding: &Finding, node: Outcome) -> bool {
    finding.outcome <= node
}

fn whole(run: &Run) -> Case {
    let headline = headline(run);
    let mut text = String::new();
    for unknown in &run.verdicts.unknown {
        let line =
            format!("not known: {}: {}\n", plain(&unknown.what.to_string()), plain(&unknown.why));
        text.push_str(&line);
    }
    for note in &run.verdicts.notes {
        text.push_str(&format!("note: {}\n", plain(note)));
    }
    if let Some(plan) = &run.actions {
        let told = Told::of(plan);
        let frozen = told.frozen.iter().map(|why| format!("frozen: {why}\n"));
        let carried = told.records.iter().map(|line| format!("carried out: {line}\n"));
        text.extend(frozen.chain(carried));
    }
    Case {
        class: "run".to_owned(),
        name: "verdict".to_owned(),
        outcome: headline.outcome,
        kind: headline.outcome.to_string(),
        message: clip(
            &run.info
                .simulated()
                .map_or_else(|| headline.rest(), |text| format!("{text}; {}", headline.rest())),
            LONGEST,
        ),
        text,
    }
}

fn of_node(class: String, node: &NodeVerdict, findings: &[&Finding]) -> Case {
    let kind = match (node.outcome, findings.first()) {
        (Outcome::Unknown, _) => "unknown".to_owned(),
        (_, Some(finding)) => clip(finding.class.as_str(), LONGEST),
        (outcome, None) => outcome.to_string(),
    };
    Case {
        class,
        name: plain(node.node.as_str()).into_owned(),
        outcome: node.outcome,
        kind,
        message: clip(&node.reason, LONGEST),
        text: findings.iter().map(|f| in_words(f)).collect::<Vec<_>>().join("\n"),
    }
}

fn in_words(finding: &Finding) -> String {
    let title = class::title(&finding.class);
    let mut text =
        format!("{}: {title}: {}\n", plain(&finding.id), clip(&finding.summary, LONGEST));
    if let Some(measured) = finding.measured {
        text.push_str(&format!("measured {}\n", quantity(measured, finding.unit)));
    }
    for line in compared::lines(finding) {
        text.push_str(&format!("{line}\n"));
    }
    let seen = if finding.confirmed { "confirmed" } else { "seen once" };
    text.push_str(&format!("rule {}, {seen}\n", plain(&finding.rule.to_string())));
    for evidence in &finding.evidence {
        let (file, detail) = (plain(&evidence.file), clip(&evidence.detail, LONGEST));
        text.push_str(&format!("{file}: {detail}\n"));
    }
    if let Some(next) = class::advice(&finding.class) {
        text.push_str(&format!("what to do next: {next}\n"));
    }
    text
}

fn write(run: &Run, suites: &[(String, Vec<Case>)]) -> String {
    let count =
        |cases: &[Case], of: &[Outcome]| cases.iter().filter(|c| of.contains(&c.outcome)).count();
    let bad = [Outcome::Degraded, Outcome::Failed];
    let totals = |of: &[Outcome]| -> usize { suites.iter().map(|s| count(&s.1, of)).sum() };
    let tests: usize = suites.iter().map(|s| s.1.len()).sum();
    let mut xml = Xml::new();
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
            properties(&mut xml, run);
        }
        for case in cases {
            test_case(&mut xml, case);
        }
        xml.close();
    }
    xml.finish()
}

fn properties(xml: &mut Xml, run: &Run) {
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
        xml.empty("property", &[("name", name), ("value", &plain(value))]);
    }
    xml.close();
}

fn test_case(xml: &mut Xml, case: &Case) {
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
