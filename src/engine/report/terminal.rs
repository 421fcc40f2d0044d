//! The report of a terminal: the verdict first, then its evidence.
//!
//! Width and colour are arguments; the caller handles pipes and `NO_COLOR`. Without colour the text
//! contains no escape sequence.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anstyle::Style;

use super::headline::{build_headline, worst_detectable, worst_together};
use super::plain_text::{
    clip, count_noun, format_amount, list_names, locus_place, relative_to_source, to_plain,
    unit_name, wrap_text,
};
use super::reason_groups::ReasonGroup;
use super::terminal_page::{TerminalPage, outcome_colour};
use super::{TerminalStyle, actions, class_text, reason_groups, reference_text, text_heatmap};
use model::run::Run;
use model::text::format_percent;
use model::verdict::{Finding, NodeVerdict, Outcome, UnknownEntry};

/// Most entries of one list; the rest are counted.
const MOST: usize = 20;

/// Renders the report.
pub fn render(run: &Run, style: &TerminalStyle) -> String {
    let mut page = TerminalPage::new(style);
    let width = page.width;
    write_opening(&mut page, run);
    write_findings(&mut page, run);
    if let Some(heat) = text_heatmap::worst_heatmap(run, width) {
        page.section("Matrix");
        page.paragraph("", &heat.title, 2);
        if !heat.lines.is_empty() {
            page.out.push('\n');
        }
        for line in &heat.lines {
            page.out.push_str("  ");
            for (style, text) in line {
                page.styled(*style, text);
            }
            page.end_line();
        }
    }
    write_nodes(&mut page, run);
    write_unknown(&mut page, run);
    write_next_steps(&mut page, &run.verdicts.findings);
    write_notes(&mut page, &run.verdicts.notes);
    if let Some(plan) = &run.actions {
        actions::write_section(&mut page, plan, &[]);
    }
    write_detectable(&mut page, run);
    page.out
}

fn write_opening(page: &mut TerminalPage, run: &Run) {
    let headline = build_headline(run);
    let word = headline.outcome_word();
    let depth = word.chars().count() + 2;
    let lines = wrap_text(&headline.without_outcome(), page.width.saturating_sub(depth));
    page.styled(outcome_colour(headline.outcome), &word);
    for (i, line) in lines.iter().enumerate() {
        let indent = if i == 0 { 2 } else { depth };
        let _ = write!(page.out, "{:indent$}", "");
        page.styled(Style::new().bold(), line);
        page.end_line();
    }
    if let Some(text) = run.info.simulation_notice() {
        page.warning(text);
    }
    page.out.push('\n');
    let mut counts: BTreeMap<Outcome, usize> = BTreeMap::new();
    for node in &run.verdicts.nodes {
        *counts.entry(node.outcome).or_default() += 1;
    }
    let parts: Vec<String> =
        counts.iter().rev().map(|(outcome, count)| format!("{count} {outcome}")).collect();
    let nodes = match parts.as_slice() {
        [] => "none".to_owned(),
        parts => format!("{}: {}", run.verdicts.nodes.len(), parts.join(", ")),
    };
    page.paragraph("nodes    ", &nodes, 0);
    let info = &run.info;
    page.paragraph("run      ", &format!("{}, {}, {}", info.id, info.profile, info.created), 0);
    page.paragraph("source   ", &info.source, 0);
    let platform = run.verdicts.platform.as_deref().unwrap_or("no single platform");
    let digest = clip(&run.verdicts.thresholds_digest, 19);
    page.paragraph("against  ", &format!("{platform}, thresholds {digest}"), 0);
}

fn write_findings(page: &mut TerminalPage, run: &Run) {
    let findings = &run.verdicts.findings;
    let source = &run.info.source;
    if findings.is_empty() {
        return;
    }
    page.section(&format!("Findings ({})", findings.len()));
    let shown = &findings[..findings.len().min(MOST)];
    // The class moves in front of the summary if it would not fit.
    let narrow = page.width < 104;
    let place = if narrow { page.width.saturating_sub(NUMBERS_WIDTH) } else { 32 };
    let rows: Vec<[String; 8]> = shown
        .iter()
        .map(|f| {
            let cell =
                |v: Option<f64>| v.map_or_else(|| "-".to_owned(), |v| format_amount(v, f.unit));
            [
                f.outcome.to_string(),
                clip(&locus_place(&f.locus), place),
                if narrow { String::new() } else { clip(f.class.as_str(), 18) },
                cell(f.measured),
                cell(f.expected),
                unit_name(f.unit).to_owned(),
                f.ratio.map_or_else(|| "-".to_owned(), |r| format!("{r:.3}")),
                if f.confirmed { "confirmed" } else { "once" }.to_owned(),
            ]
        })
        .collect();
    let (class, of) = if narrow { ("", "of exp.") } else { ("class", "of expected") };
    let titles = ["outcome", "where", class, "measured", "expected", "unit", of, "seen"];
    let mut widths = titles.map(|title| title.chars().count());
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    write_table_line(page, &titles.map(str::to_owned), &widths, None);
    for (row, finding) in rows.iter().zip(shown) {
        write_table_line(page, row, &widths, Some(finding.outcome));
        let class = if narrow && class_text::is_known(&finding.class) {
            format!("{} ({}): ", class_text::class_title(&finding.class), finding.class)
        } else if narrow {
            format!("{}: ", finding.class)
        } else {
            format!("{}: ", class_text::class_title(&finding.class))
        };
        page.paragraph("", &format!("{class}{}", relative_to_source(&finding.summary, source)), 4);
        if let Some(text) = reference_text::describe_other_references(finding) {
            page.faint(&text, 4);
        }
        if let Some(from) = evidence_sources(finding, source) {
            page.faint(&from, 4);
        }
    }
    write_more(page, findings.len());
}

/// The first file that a finding cites, and the number of further ones.
fn evidence_sources(finding: &Finding, source: &str) -> Option<String> {
    let first = relative_to_source(&finding.evidence.first()?.file, source);
    // One file may be named for several tests, with others in between.
    let files: BTreeSet<&str> = finding.evidence.iter().map(|e| e.file.as_str()).collect();
    let first = to_plain(&first);
    Some(match files.len() - 1 {
        0 => format!("see {first}"),
        more => format!("see {first} and {}", count_noun(more, "more file", "more files")),
    })
}

/// The width of a findings line without its place: indent, outcome, two
/// numbers of at most 9 digits, unit, "of exp.", "confirmed", and gaps.
const NUMBERS_WIDTH: usize = 2 + 8 + 2 + 9 + 2 + 9 + 1 + 5 + 2 + 7 + 2 + 9 + 2;

fn write_table_line(
    page: &mut TerminalPage,
    row: &[String; 8],
    widths: &[usize; 8],
    outcome: Option<Outcome>,
) {
    page.out.push_str("  ");
    let last = row.len() - 1;
    for (i, (cell, &width)) in row.iter().zip(widths).enumerate().filter(|(_, (_, w))| 0 < **w) {
        let text = match i {
            // Numbers are aligned at their end, next to their unit.
            3 | 4 | 6 => format!("{cell:>width$}"),
            i if i == last => cell.clone(),
            _ => format!("{cell:<width$}"),
        };
        match outcome {
            Some(outcome) if i == 0 => page.styled(outcome_colour(outcome), &text),
            Some(_) => page.out.push_str(&text),
            None => page.styled(Style::new().dimmed(), &text),
        }
        page.out.push_str(if i == 4 { " " } else { "  " });
    }
    page.end_line();
}

fn write_more(page: &mut TerminalPage, all: usize) {
    if MOST < all {
        let text = format!("and {} more; --json and the page list all", all - MOST);
        page.paragraph("", &text, 2);
    }
}

/// The nodes that do not pass: bad ones by name, because the findings describe them; unknown ones
/// with the reason, which appears nowhere else.
fn write_nodes(page: &mut TerminalPage, run: &Run) {
    let nodes: &[NodeVerdict] = &run.verdicts.nodes;
    if nodes.iter().all(|n| n.outcome == Outcome::Pass) {
        return;
    }
    page.section("Nodes");
    for outcome in [Outcome::Failed, Outcome::Degraded] {
        let names: Vec<&str> =
            nodes.iter().filter(|n| n.outcome == outcome).map(|n| n.node.as_str()).collect();
        if !names.is_empty() {
            page.outcome_line(outcome, &list_names(&names, MOST));
        }
    }
    let whys: BTreeSet<&str> = run.verdicts.unknown.iter().map(|u| u.why.as_str()).collect();
    let unknown: Vec<&NodeVerdict> =
        nodes.iter().filter(|n| n.outcome == Outcome::Unknown).collect();
    // The reason of several nodes may be about a test of each node.
    let mut alike: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for node in &unknown {
        alike.entry(shared_reason(&node.reason, &whys)).or_default().insert(&node.reason);
    }
    let pairs = unknown.iter().map(|node| {
        let why = shared_reason(&node.reason, &whys);
        (node.node.as_str(), if alike[why].len() == 1 { node.reason.as_str() } else { why })
    });
    let reasons = reason_groups::group_by_reason(pairs, &collect_names(run));
    for of in reasons.iter().take(MOST) {
        let subject = match of.count {
            all if 3 < all && all == nodes.len() => format!("all {all} nodes"),
            _ => of.whats.join(", "),
        };
        let why = relative_to_source(&of.why, &run.info.source);
        page.outcome_line(Outcome::Unknown, &format!("{subject}: {why}"));
    }
    if MOST < reasons.len() {
        let text = format!("and {} more reasons; --json lists all", reasons.len() - MOST);
        page.paragraph("", &text, 2);
    }
    let passed = nodes.iter().filter(|n| n.outcome == Outcome::Pass).count();
    if 0 < passed {
        page.outcome_line(Outcome::Pass, &count_noun(passed, "node", "nodes"));
    }
}

/// The part of a node's reason that other nodes may share: `WHAT: WHY` without WHAT, if WHY is the
/// reason of any unknown.
fn shared_reason<'t>(reason: &'t str, whys: &BTreeSet<&str>) -> &'t str {
    let mut tails = reason.match_indices(": ").map(|(at, gap)| &reason[at + gap.len()..]);
    tails.find(|tail| whys.contains(tail)).unwrap_or(reason)
}

/// The advice for each kind of finding.
fn write_next_steps(page: &mut TerminalPage, findings: &[Finding]) {
    let advised = class_text::collect_advice(findings);
    if advised.is_empty() {
        return;
    }
    page.section("What to do next");
    for (title, next) in advised.iter().take(MOST) {
        page.paragraph("- ", &format!("{title}: {next}"), 2);
    }
}

/// Unknowns, grouped by reason.
fn write_unknown(page: &mut TerminalPage, run: &Run) {
    let unknown: &[UnknownEntry] = &run.verdicts.unknown;
    if unknown.is_empty() {
        return;
    }
    page.section(&format!("Unknown ({})", unknown.len()));
    let reasons = group_unknown_by_reason(run);
    for ReasonGroup { why, whats, .. } in reasons.iter().take(MOST) {
        let whats: Vec<&str> = whats.iter().map(String::as_str).collect();
        let text = format!("{}: {}", list_names(&whats, 4), to_plain(why));
        page.paragraph("- ", &relative_to_source(&text, &run.info.source), 2);
    }
    if MOST < reasons.len() {
        let text = format!("and {} more reasons; --json lists all", reasons.len() - MOST);
        page.paragraph("", &text, 2);
    }
}

/// The unknowns of each reason, in the order in which the reasons first appear.
pub(super) fn group_unknown_by_reason(run: &Run) -> Vec<ReasonGroup> {
    let unknown = run.verdicts.unknown.iter();
    let texts: Vec<(String, &str)> =
        unknown.map(|one| (one.what.to_string(), one.why.as_str())).collect();
    reason_groups::group_by_reason(
        texts.iter().map(|(what, why)| (what.as_str(), *why)),
        &collect_names(run),
    )
}

fn collect_names(run: &Run) -> BTreeSet<&str> {
    run.verdicts.nodes.iter().map(|node| node.node.as_str()).collect()
}

fn write_notes(page: &mut TerminalPage, notes: &[String]) {
    if notes.is_empty() {
        return;
    }
    page.section(&format!("Notes ({})", notes.len()));
    for note in notes.iter().take(MOST) {
        page.paragraph("- ", note, 2);
    }
    write_more(page, notes.len());
}

/// The smallest effects that this sweep could detect.
fn write_detectable(page: &mut TerminalPage, run: &Run) {
    let nodes = &run.verdicts.nodes;
    if nodes.is_empty() {
        return;
    }
    let blind = nodes.iter().filter(|n| n.detectable.is_none()).count();
    let text = match (worst_detectable(run), blind) {
        (Some(worst), _) => {
            let together = worst_together(run).map_or(String::new(), |together| {
                format!("; of a loss common to all parts, {} or more", format_percent(together))
            });
            format!(
                "in measured parts, a loss of {} or more was detectable{together}",
                format_percent(worst)
            )
        }
        (None, blind) if blind == nodes.len() => {
            "the smallest detectable loss is unknown for every node".to_owned()
        }
        (None, blind) => format!(
            "the smallest detectable loss is unknown for {}",
            count_noun(blind, "node", "nodes")
        ),
    };
    page.section("Detectable");
    page.paragraph("", &text, 2);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;
    use model::unknown_subject::UnknownSubject;

    fn at(run: &Run, width: usize) -> String {
        render(run, &TerminalStyle { width, colour: false })
    }

    #[test]
    fn a_rack_with_one_bad_gpu() {
        insta::assert_snapshot!("rack_80", at(&fixture::rack(), 80));
        insta::assert_snapshot!("rack_120", at(&fixture::rack(), 120));
    }

    #[test]
    fn two_nodes_with_a_waived_test() {
        insta::assert_snapshot!("hgx_80", at(&fixture::hgx(), 80));
    }

    #[test]
    fn nothing_measured() {
        insta::assert_snapshot!("empty_80", at(&fixture::empty(), 80));
    }

    #[test]
    fn hostile_names_are_shown_and_steer_nothing() {
        let text = at(&fixture::hostile(), 80);
        assert!(!fixture::steers(&text));
        insta::assert_snapshot!("hostile_80", text);
    }

    #[test]
    fn without_colour_there_is_no_escape_and_with_colour_the_same_text() {
        for run in fixture::all() {
            let plain = at(&run, 100);
            assert!(!plain.contains('\x1b'));
            let coloured = render(&run, &TerminalStyle { width: 100, colour: true });
            assert!(coloured.contains("\x1b["));
            assert_eq!(anstream::adapter::strip_str(&coloured).to_string(), plain);
        }
    }

    #[test]
    fn lines_keep_to_the_width_except_commands() {
        for run in fixture::all() {
            for width in [80, 100, 120] {
                for line in at(&run, width).lines().filter(|l| !l.starts_with("  $ ")) {
                    assert!(line.chars().count() <= width, "{width}: {line}");
                }
            }
        }
    }

    #[test]
    fn a_file_that_is_named_twice_is_one_file() {
        let mut run = fixture::rack();
        let evidence = &mut run.verdicts.findings[0].evidence;
        evidence.push(evidence[0].clone());
        assert_eq!(evidence.len(), 3);
        assert!(at(&run, 120).contains("see domains/block01/read-1.txt and 1 more file\n"));
    }

    #[test]
    fn nodes_with_the_same_reason_for_missing_tests_are_one_line() {
        let mut run = fixture::rack();
        run.verdicts.unknown.clear();
        for (at, node) in run.verdicts.nodes.iter_mut().enumerate().take(9) {
            let (what, why) = (format!("tcp on {}, rail r{at}", node.node), "not run: it ended");
            node.outcome = Outcome::Unknown;
            node.reason = format!("{what}: {why}");
            let what = UnknownSubject::Other(what);
            run.verdicts.unknown.push(UnknownEntry { what, why: why.to_owned() });
        }
        let text = at(&run, 120);
        assert!(text.contains("node[0001-0009]: not run: it ended\n"), "{text}");
        assert!(text.contains("- tcp on node0001, rail r0; tcp on node0002, rail r1; "), "{text}");
    }

    #[test]
    fn many_unknowns_of_one_reason_are_one_line() {
        let mut run = fixture::hgx();
        run.verdicts.unknown = (0..500)
            .map(|i| UnknownEntry {
                what: UnknownSubject::Other(format!("test {i}")),
                why: "waived".to_owned(),
            })
            .collect();
        let text = at(&run, 80);
        assert!(text.contains("test 0, test 1, test 2, test 3 and 496 more: waived"), "{text}");
    }
}
