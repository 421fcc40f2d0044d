//! The explanation of one verdict: measurement, reference, rule, evidence, and the measurement that
//! would change it.
//!
//! The text holds only facts in the run. If a reason is not recorded, the text states that instead
//! of guessing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::actions::command_prompt;
use super::plain_text::{clip, count_noun, format_quantity, to_plain, wrap_text};
use super::{class_text, path_explanation, reference_text};
use model::finding_rule::RuleKind;
use model::id::NodeName;
use model::measured_cell::MeasuredCell;
use model::run::Run;
use model::shell_quote;
use model::stats::sort_median;
use model::text::format_percent;
use model::tool_recording::CONFIRM_STAGE;
use model::verdict::{Finding, LocusKind, NodeVerdict, Outcome};

/// Longest text taken from a file.
const LONGEST: usize = 2_000;
pub(super) const MOST: usize = 20;
/// Half the loss of one link of 18: the judge does not call a smaller effect low.
const LEAST: f64 = 0.028;

/// The subject of `query`: a finding by id, or a part of the fabric.
#[derive(Debug)]
struct ExplainedPart<'a> {
    domain: Option<&'a str>,
    node: Option<&'a NodeName>,
    gpu: Option<u32>,
}

/// Explains a finding (by its id) or a part (`node0007:2`, `node0007`, `block01`, or a locus as
/// reports print it). `None` if the run has nothing with that name.
pub fn explain(run: &Run, query: &str) -> Option<String> {
    let text = explain_query(run, query.trim())?;
    Some(match run.info.simulation_notice() {
        Some(simulated) => format!("{simulated}\n\n{text}"),
        None => text,
    })
}

fn explain_query(run: &Run, query: &str) -> Option<String> {
    let named: Vec<&Finding> = run
        .verdicts
        .findings
        .iter()
        .filter(|f| f.id == query || f.locus.to_string() == query)
        .collect();
    if !named.is_empty() {
        return Some(render_findings(run, &named));
    }
    if let Some(text) = path_explanation::explain_pair(run, query)
        .or_else(|| path_explanation::explain_rail(run, query))
    {
        return Some(text);
    }
    let part = parse_part(run, query)?;
    let about: Vec<&Finding> = run.verdicts.findings.iter().filter(|f| touches(f, &part)).collect();
    let mut out = String::new();
    match (part.node, part.gpu) {
        (Some(node), gpu) => {
            if let Some(verdict) = run.verdicts.nodes.iter().find(|n| n.node == *node) {
                write_node(&mut out, verdict, gpu);
            } else {
                let _ = writeln!(out, "{}: the run has no verdict for this node.", to_plain(query));
            }
        }
        (None, _) => write_domain(&mut out, run, part.domain.unwrap_or(query)),
    }
    if !about.is_empty() {
        out.push('\n');
        out.push_str(&render_findings(run, &about));
        return Some(out);
    }
    out.push_str("\nNo finding is about this part.\n");
    write_cells(&mut out, run, &part);
    write_missing(&mut out, run, &part);
    let verdict = run.verdicts.nodes.iter().find(|n| Some(&n.node) == part.node);
    let Some(verdict) = verdict else { return Some(out) };
    out.push_str("\nWhat would change this\n");
    if verdict.outcome == Outcome::Unknown {
        out.push_str("  - complete, verified measurements of the unknowns above\n");
    }
    if let Some(detectable) = verdict.detectable {
        let _ = writeln!(
            out,
            "  - a loss of {} or more; the smallest detectable loss",
            format_percent(detectable)
        );
    }
    if let Some(together) = verdict.detectable_together {
        let _ = writeln!(
            out,
            "  - a common loss of {} or more of all parts: only the expectation reveals it",
            format_percent(together)
        );
    }
    Some(out)
}

/// Adds the time of each output to the evidence from it.
pub fn with_dates(mut run: Run, taken: &BTreeMap<String, (String, u8)>) -> Run {
    for evidence in run.verdicts.findings.iter_mut().flat_map(|f| &mut f.evidence) {
        if let Some((started, stage)) = taken.get(&evidence.file) {
            let round = if *stage == CONFIRM_STAGE { ", the confirmation" } else { "" };
            evidence.detail =
                format!("{} (taken {started}, stage {stage}{round})", evidence.detail);
        }
    }
    run
}

fn parse_part<'a>(run: &'a Run, query: &'a str) -> Option<ExplainedPart<'a>> {
    let known = |name: &str| -> Option<&'a NodeName> {
        let verdicts = run.verdicts.nodes.iter().map(|n| &n.node);
        let claimed = run.claims.domains.iter().flat_map(|d| &d.nodes);
        let found = run.verdicts.findings.iter().filter_map(|f| f.locus.node.as_ref());
        verdicts.chain(claimed).chain(found).find(|n| n.as_str() == name).or_else(|| {
            let ends = |c: &'a MeasuredCell| [c.src_node.as_ref(), c.dst_node.as_ref()];
            run.cells.iter().flat_map(ends).flatten().find(|n| n.as_str() == name)
        })
    };
    if let Some(node) = known(query) {
        return Some(ExplainedPart { domain: None, node: Some(node), gpu: None });
    }
    if let Some((name, gpu)) = query.rsplit_once(':')
        && let (Some(node), Ok(gpu)) = (known(name), gpu.parse::<u32>())
    {
        let part = ExplainedPart { domain: None, node: Some(node), gpu: Some(gpu) };
        let there = run.cells.iter().any(|c| is_of_part(c, &part))
            || run.verdicts.findings.iter().any(|f| touches(f, &part) && f.locus.gpu.is_some());
        return there.then_some(part);
    }
    let domains = run.claims.domains.iter().map(|d| &d.name);
    let domains = domains.chain(run.verdicts.nodes.iter().filter_map(|n| n.domain.as_ref()));
    let domains =
        domains.chain(run.verdicts.findings.iter().filter_map(|f| f.locus.domain.as_ref()));
    let mut domains = domains.chain(run.cells.iter().filter_map(|c| c.domain.as_ref()));
    domains.any(|d| d.as_str() == query).then_some(ExplainedPart {
        domain: Some(query),
        node: None,
        gpu: None,
    })
}

/// Whether a finding is about a part, about something that contains it, or about something in it.
fn touches(finding: &Finding, part: &ExplainedPart<'_>) -> bool {
    let locus = &finding.locus;
    if let Some(domain) = part.domain {
        return locus.domain.as_ref().is_some_and(|d| d.as_str() == domain);
    }
    let Some(node) = part.node else { return false };
    let peer = locus.peer.as_deref().is_some_and(|peer| match part.gpu {
        Some(gpu) => peer == node.as_str() || peer == format!("{node}:{gpu}"),
        None => {
            peer == node.as_str() || peer.rsplit_once(':').is_some_and(|p| p.0 == node.as_str())
        }
    });
    let own = locus.node.as_ref() == Some(node)
        && (part.gpu.is_none() || locus.gpu.is_none() || locus.gpu == part.gpu);
    peer || own
}

/// Whether a cell begins or ends at a part.
fn is_of_part(cell: &MeasuredCell, part: &ExplainedPart<'_>) -> bool {
    if let Some(domain) = part.domain {
        return cell.domain.as_ref().is_some_and(|d| d.as_str() == domain);
    }
    [(&cell.src_node, cell.src_gpu), (&cell.dst_node, cell.dst_gpu)]
        .iter()
        .any(|(node, gpu)| node.as_ref() == part.node && (part.gpu.is_none() || *gpu == part.gpu))
}

fn write_node(out: &mut String, verdict: &NodeVerdict, gpu: Option<u32>) {
    let node = to_plain(verdict.node.as_str());
    let domain = match &verdict.domain {
        Some(domain) if domain.as_str() == verdict.node.as_str() => String::new(),
        Some(domain) => format!(" in {}", to_plain(domain.as_str())),
        None => String::new(),
    };
    let reason = clip(&verdict.reason, LONGEST);
    match gpu {
        Some(gpu) => {
            let is = match verdict.outcome {
                Outcome::Pass => "passes".to_owned(),
                other => format!("is {other}"),
            };
            let text =
                format!("{node}:{gpu} is GPU {gpu} of {node}{domain}. The node {is}: {reason}");
            write_prose(out, "", &text);
        }
        None => {
            let is = match verdict.outcome {
                Outcome::Pass => "passes".to_owned(),
                other => format!("is {other}"),
            };
            write_prose(out, "", &format!("{node}{domain} {is}: {reason}"));
        }
    }
}

fn write_domain(out: &mut String, run: &Run, domain: &str) {
    let nodes: Vec<&NodeVerdict> = run
        .verdicts
        .nodes
        .iter()
        .filter(|n| n.domain.as_ref().is_some_and(|d| d.as_str() == domain))
        .collect();
    let claim = run.claims.domains.iter().find(|d| d.name.as_str() == domain);
    let platform = claim.and_then(|c| c.platform.as_deref()).unwrap_or("no platform claimed");
    let counts = [Outcome::Failed, Outcome::Degraded, Outcome::Unknown, Outcome::Pass].map(|o| {
        let count = nodes.iter().filter(|n| n.outcome == o).count();
        (0 < count).then(|| format!("{count} {o}"))
    });
    let counts: Vec<String> = counts.into_iter().flatten().collect();
    let _ = writeln!(
        out,
        "{} ({}) has {}{}{}.",
        to_plain(domain),
        to_plain(platform),
        count_noun(nodes.len(), "judged node", "judged nodes"),
        if counts.is_empty() { "" } else { ": " },
        counts.join(", ")
    );
    for node in nodes.iter().filter(|n| n.outcome != Outcome::Pass).take(MOST) {
        let (name, reason) = (to_plain(node.node.as_str()), clip(&node.reason, LONGEST));
        let _ = writeln!(out, "  {name} is {}: {reason}", node.outcome);
    }
}

pub(super) fn render_findings(run: &Run, findings: &[&Finding]) -> String {
    let mut out = String::new();
    for (i, finding) in findings.iter().take(MOST).enumerate() {
        if 0 < i {
            out.push('\n');
        }
        write_chain(&mut out, run, finding);
    }
    if MOST < findings.len() {
        let _ = writeln!(out, "\nand {} more findings here", findings.len() - MOST);
    }
    out
}

/// Writes every step that led to one finding.
fn write_chain(out: &mut String, run: &Run, finding: &Finding) {
    let locus = finding.locus.to_string();
    let _ = writeln!(
        out,
        "{} is {}: {}  [{}]",
        to_plain(&locus),
        finding.outcome,
        class_text::class_title(&finding.class),
        to_plain(&finding.id)
    );
    write_prose(out, "  ", &finding.summary);
    out.push('\n');
    out.push_str(&reference_text::reference_columns(finding));
    let against = run.verdicts.platform.as_deref().unwrap_or("no single platform");
    let digest = clip(&run.verdicts.thresholds_digest, 80);
    let _ = writeln!(out, "against     {}, thresholds {digest}", to_plain(against));
    let _ = writeln!(out, "class       {}", to_plain(finding.class.as_str()));
    let _ = writeln!(out, "rule        {}", to_plain(&finding.rule.to_string()));
    let seen_again = if finding.confirmed {
        "yes, a second, independent measurement agreed"
    } else {
        "no, no second, independent measurement has agreed"
    };
    let _ = writeln!(out, "confirmed   {seen_again}");
    write_evidence(out, finding);
    let locus = &finding.locus;
    let part = ExplainedPart { domain: None, node: locus.node.as_ref(), gpu: locus.gpu };
    let part = match (&part.node, &locus.domain) {
        (None, Some(domain)) => ExplainedPart { domain: Some(domain.as_str()), ..part },
        _ => part,
    };
    write_cells(out, run, &part);
    write_missing(out, run, &part);
    write_changes(out, finding);
    write_consequences(out, run, finding);
    if let Some(next) = class_text::class_advice(&finding.class) {
        out.push_str("\nWhat to do next\n");
        write_prose(out, "  ", next);
    }
}

/// Wraps and indents text.
fn write_prose(out: &mut String, indent: &str, text: &str) {
    const WIDTH: usize = 98;
    for line in wrap_text(&clip(text, LONGEST), WIDTH) {
        let _ = writeln!(out, "{indent}{line}");
    }
}

fn write_evidence(out: &mut String, finding: &Finding) {
    out.push_str("\nEvidence\n");
    if finding.evidence.is_empty() {
        out.push_str("  none is recorded\n");
    }
    for evidence in finding.evidence.iter().take(MOST) {
        let test = match &evidence.testcase {
            Some(test) => format!(" ({})", to_plain(test)),
            None => String::new(),
        };
        let _ = writeln!(out, "  {}{test}", to_plain(&evidence.file));
        let _ = writeln!(out, "    {}", clip(&evidence.detail, LONGEST));
    }
    if MOST < finding.evidence.len() {
        let _ = writeln!(out, "  and {} more", finding.evidence.len() - MOST);
    }
}

/// The cells of a part and those of the rest of its domain, test by test.
fn write_cells(out: &mut String, run: &Run, part: &ExplainedPart<'_>) {
    if part.node.is_none() && part.domain.is_none() {
        return;
    }
    let mut tests: Vec<(&MeasuredCell, Vec<f64>, Vec<f64>, usize)> = Vec::new();
    let home: Vec<_> =
        run.cells.iter().filter(|c| is_of_part(c, part)).map(|c| &c.domain).take(1).collect();
    for cell in run.cells.iter().filter(|c| home.contains(&&c.domain)) {
        let at = tests.iter().rposition(|(first, ..)| {
            first.testcase == cell.testcase
                && first.unit == cell.unit
                && first.rail == cell.rail
                && is_second(first) == is_second(cell)
        });
        let at = at.unwrap_or_else(|| {
            tests.push((cell, Vec::new(), Vec::new(), 0));
            tests.len() - 1
        });
        let own = is_of_part(cell, part);
        let (_, mine, others, blank) = &mut tests[at];
        match cell.value.filter(|v| v.is_finite()) {
            Some(value) if own => mine.push(value),
            Some(value) => others.push(value),
            None if own => *blank += 1,
            None => {}
        }
    }
    tests.retain(|(_, mine, _, blank)| !mine.is_empty() || 0 < *blank);
    if tests.is_empty() {
        return;
    }
    out.push_str("\nMeasured cells\n");
    for (first, mut mine, mut others, blank) in tests.into_iter().take(MOST) {
        let unit = Some(first.unit);
        let mut test = to_plain(&first.testcase).into_owned();
        if let Some(rail) = &first.rail {
            test = format!("{test} over {}", to_plain(rail));
        }
        if is_second(first) {
            test = format!("{test}, confirmation{}", describe_partners(run, part));
        }
        let all = mine.len() + blank;
        match sort_median(&mut mine) {
            Some(middle) => {
                let _ = match mine.as_slice() {
                    [one] => write!(out, "  {test}: 1 cell, {}", format_quantity(*one, unit)),
                    _ => write!(
                        out,
                        "  {test}: {}, median {}, from {} to {}",
                        count_noun(all, "cell", "cells"),
                        format_quantity(middle, unit),
                        format_quantity(mine.first().copied().unwrap_or(middle), unit),
                        format_quantity(mine.last().copied().unwrap_or(middle), unit),
                    ),
                };
                if 0 < blank {
                    let _ = write!(out, ", {blank} without a number");
                }
            }
            None => {
                let _ = write!(out, "  {test}: {}, no number", count_noun(all, "cell", "cells"));
            }
        }
        if let Some(rest) = sort_median(&mut others) {
            let _ = write!(out, "; all others: median {}", format_quantity(rest, unit));
        }
        out.push('\n');
    }
}

fn is_second(cell: &MeasuredCell) -> bool {
    cell.stage == Some(CONFIRM_STAGE)
}

/// The partners of a node in the confirmation.
fn describe_partners(run: &Run, part: &ExplainedPart<'_>) -> String {
    let own = run.cells.iter().filter(|c| is_second(c) && is_of_part(c, part));
    let ends = own.flat_map(|c| [c.src_node.as_ref(), c.dst_node.as_ref()]).flatten();
    let others: BTreeSet<&NodeName> = ends.filter(|node| Some(*node) != part.node).collect();
    if others.is_empty() || part.node.is_none() {
        return String::new();
    }
    let names: Vec<_> = others.into_iter().take(MOST).map(|n| to_plain(n.as_str())).collect();
    format!(" with {}", names.join(", "))
}

/// Unknowns about a part or its location.
fn write_missing(out: &mut String, run: &Run, part: &ExplainedPart<'_>) {
    let Some(name) = part.node.map(|n| n.as_str()).or(part.domain) else { return };
    let about: Vec<_> =
        run.verdicts.unknown.iter().filter(|u| mentions(&u.what.to_string(), name)).collect();
    if about.is_empty() {
        return;
    }
    out.push_str("\nNot known\n");
    for unknown in about.iter().take(MOST) {
        let _ = writeln!(
            out,
            "  - {}: {}",
            to_plain(&unknown.what.to_string()),
            clip(&unknown.why, LONGEST)
        );
    }
    if MOST < about.len() {
        let _ = writeln!(out, "  and {} more", about.len() - MOST);
    }
}

/// Whether a text contains this name as a whole, not as a part of a longer one.
fn mentions(text: &str, name: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    text.match_indices(name).any(|(at, _)| {
        !text[..at].ends_with(inside) && !text[at + name.len()..].starts_with(inside)
    })
}

fn write_changes(out: &mut String, finding: &Finding) {
    out.push_str("\nWhat would change this\n");
    if !finding.confirmed {
        out.push_str(
            "  - a second, independent measurement: it would confirm the finding or clear the \
             part\n",
        );
    }
    if let Some(held) = finding.peers.or(finding.own).or(finding.expected) {
        // An endpoint or pair with a smaller loss is not called low.
        let relative =
            matches!(finding.rule.kind, RuleKind::Endpoint | RuleKind::Path | RuleKind::Pair);
        let _ = match finding.unit {
            Some(_) if relative => writeln!(
                out,
                "  - a median of {} or more ({} below the peers' median): a smaller loss is never \
                 called low",
                format_quantity(held * (1.0 - LEAST), finding.unit),
                format_percent(LEAST)
            ),
            _ => writeln!(
                out,
                "  - measurements near {}; the rule above states the limit",
                format_quantity(held, finding.unit)
            ),
        };
        out.push_str(
            "  - another expectation: a platform or threshold file that matches this machine \
             better\n",
        );
    } else {
        out.push_str("  - measurements here that are complete and free of errors\n");
    }
    if finding.locus.kind == LocusKind::Instrument {
        out.push_str("  - the same measurement by another tool or run\n");
    }
    match finding.detectable {
        Some(detectable) => {
            let _ = writeln!(
                out,
                "  - not a loss below {}: a smaller one was not detectable here",
                format_percent(detectable)
            );
        }
        None => out.push_str("  - the smallest loss detectable here is unknown\n"),
    }
}

fn write_consequences(out: &mut String, run: &Run, finding: &Finding) {
    let Some(plan) = &run.actions else { return };
    let actions: Vec<_> =
        plan.actions.iter().filter(|a| a.findings.contains(&finding.id)).collect();
    let node = finding.locus.node.as_ref().map(|n| n.as_str());
    let withheld: Vec<_> = plan
        .withheld
        .iter()
        .filter(|w| w.what == finding.id || node.is_some_and(|n| mentions(&w.what, n)))
        .collect();
    if actions.is_empty() && withheld.is_empty() {
        return;
    }
    out.push_str(if plan.dry_run { "\nProposed, not carried out\n" } else { "\nProposed\n" });
    if let Some(frozen) = &plan.frozen {
        let _ = writeln!(out, "  frozen: {}", clip(frozen, LONGEST));
    }
    for action in actions.iter().take(MOST) {
        let prompt = command_prompt(run.info.simulated);
        let _ = writeln!(out, "  {prompt} {}", shell_quote::join_quoted(&action.command));
        let _ = writeln!(out, "    {}", clip(&action.why, LONGEST));
    }
    for withheld in withheld.iter().take(MOST) {
        let (what, why) = (to_plain(&withheld.what), clip(&withheld.why, LONGEST));
        let _ = writeln!(out, "  withheld: {what}: {why}");
    }
    let own = plan.records.iter().filter(|r| node == Some(r.node.as_str())).cloned();
    for line in super::actions::describe_records(&own.collect::<Vec<_>>()).iter().take(MOST) {
        let _ = writeln!(out, "  {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn a_finding_is_explained_from_verdict_to_evidence() {
        let run = fixture::rack();
        insta::assert_snapshot!(
            "finding",
            explain(&run, "nvlink-low-block01-node0007-2").expect("known")
        );
    }

    #[test]
    fn the_same_finding_is_reached_by_gpu_node_and_domain() {
        let run = fixture::rack();
        for query in ["node0007:2", "node0007", "block01", "gpu node0007:2", " node0007 "] {
            let text = explain(&run, query).expect(query);
            assert!(text.contains("[nvlink-low-block01-node0007-2]"), "{query}: {text}");
            assert!(text.contains("domains/block01/read-1.txt"), "{query}: {text}");
        }
    }

    #[test]
    fn a_healthy_gpu_of_a_bad_node_is_not_blamed() {
        let text = explain(&fixture::rack(), "node0007:1").expect("known");
        assert!(text.contains("No finding is about this part"), "{text}");
        assert!(!text.contains("nvlink-low-block01"), "{text}");
    }

    #[test]
    fn an_unknown_node_lists_the_missing_measurements() {
        insta::assert_snapshot!("unknown", explain(&fixture::rack(), "node0012").expect("known"));
    }

    #[test]
    fn a_passing_node_lists_undetectable_losses() {
        insta::assert_snapshot!("passing", explain(&fixture::rack(), "node0001").expect("known"));
    }

    #[test]
    fn a_name_that_the_run_does_not_hold_explains_nothing() {
        let run = fixture::rack();
        for query in ["", "node00", "node0007:9", "node9999", "block", "node0001:x"] {
            assert_eq!(explain(&run, query), None, "{query}");
        }
        assert_eq!(explain(&fixture::empty(), "node0001"), None);
    }

    #[test]
    fn evidence_has_its_time_and_reading() {
        let run = fixture::rack();
        let file = run.verdicts.findings[0].evidence[0].file.clone();
        let taken = BTreeMap::from([(file, ("2026-01-15T08:00:00Z".to_owned(), CONFIRM_STAGE))]);
        let id = run.verdicts.findings[0].id.clone();
        let text = explain(&with_dates(run, &taken), &id).expect("known");
        assert!(text.contains("2026-01-15T08:00:00Z, stage 3, the confirmation"), "{text}");
    }

    #[test]
    fn a_pair_has_both_directions_and_an_unknown_end_nothing() {
        let run = fixture::rack();
        let text = explain(&run, "node0001:0 - node0001:1").expect("measured");
        assert!(text.contains("node0001:0 to node0001:1"), "{text}");
        assert!(text.contains("node0001:1 to node0001:0"), "{text}");
        assert_eq!(explain(&run, "node0001:0 - absent"), None);
    }

    #[test]
    fn hostile_names_steer_nothing() {
        let run = fixture::hostile();
        let node = run.verdicts.nodes[2].node.to_string();
        let text = explain(&run, &node).expect("known");
        assert!(!fixture::steers(&text), "{text:?}");
    }
}
