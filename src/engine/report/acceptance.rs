//! An acceptance document for readers: in a terminal, as text for the acceptance file, as a page,
//! and for pipelines.
//!
//! All four have the content of the document and nothing else.

use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, UndefinedBehavior, Value};
use serde::Serialize;

use super::plain_text::{clip, count_noun, format_quantity, to_plain};
use super::terminal_page::{TerminalPage, TerminalStyle, outcome_colour};
use super::xml::XmlWriter;
use super::{ReportError, comparison};
use model::acceptance::{Acceptance, AcceptanceOutcome, BurnInRound, BurnInState, NodeAcceptance};
use model::comparison::RunComparison;
use model::hostlist;
use model::run::simulation_notice;
use model::text::format_percent;
use model::verdict::Outcome;

const TEMPLATE: &str = include_str!("../../../reports/acceptance.html");
const STYLE: &str = include_str!("../../../reports/report.css");

/// Most rows of one table in a document for readers.
const ROWS: usize = 500;
/// Most lines of one list in a terminal.
const LINES: usize = 20;
/// Longest text of one cell, in characters.
const LONGEST: usize = 400;

#[derive(Debug, Serialize)]
struct AcceptanceTable {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
    more: usize,
}

#[derive(Debug, Serialize)]
struct AcceptanceSection {
    title: &'static str,
    lines: Vec<String>,
    table: Option<AcceptanceTable>,
}

/// The document as printed.
#[derive(Debug, Serialize)]
struct AcceptanceSheet {
    tone: &'static str,
    word: String,
    headline: String,
    facts: Vec<(&'static str, String)>,
    sections: Vec<AcceptanceSection>,
    signed: Option<String>,
}

/// The outcome that gives the colour.
fn outcome_of(accepted: AcceptanceOutcome) -> Outcome {
    match accepted {
        AcceptanceOutcome::Pass => Outcome::Pass,
        AcceptanceOutcome::Unknown => Outcome::Unknown,
        AcceptanceOutcome::Fail => Outcome::Failed,
    }
}

fn headline_text(acceptance: &Acceptance) -> String {
    let of = |accepted| acceptance.nodes.iter().filter(|it| it.accepted == accepted).count();
    let nodes = count_noun(acceptance.nodes.len(), "node", "nodes");
    // Counted as nodes count rounds: a round that was set aside was repeated.
    let counts = |round: &&BurnInRound| round.ended.is_some() && !round.set_aside;
    let held = acceptance.rounds.iter().filter(counts).count();
    let simulated =
        simulation_notice(!acceptance.real).map(|text| format!("{text}; ")).unwrap_or_default();
    format!(
        "{simulated}{nodes} after {}: {} pass, {} fail, {} unknown",
        count_noun(held, "round", "rounds"),
        of(AcceptanceOutcome::Pass),
        of(AcceptanceOutcome::Fail),
        of(AcceptanceOutcome::Unknown)
    )
}

fn format_minutes(minutes: f64) -> String {
    if minutes < 120.0 { format!("{minutes:.1} min") } else { format!("{:.1} h", minutes / 60.0) }
}

/// The request as text.
fn describe_request(acceptance: &Acceptance) -> String {
    let request = &acceptance.asked;
    let mut words = Vec::new();
    words.extend(request.rounds.map(|n| count_noun(n as usize, "round", "rounds")));
    words.extend(request.hours.map(|hours| format!("{hours} hours")));
    words.push(format!("{} of load between rounds", format_minutes(request.soak_minutes)));
    words.extend(request.clean_rounds.map(|n| format!("or {n} consecutive clean rounds")));
    words.extend(request.budget_hours.map(|hours| format!("at most {hours} hours in total")));
    words.push(format!(
        "a loss of at most {} from the first round to the last",
        format_percent(request.drift)
    ));
    words.join(", ")
}

fn describe_end(acceptance: &Acceptance) -> String {
    match (&acceptance.stop, acceptance.state) {
        (Some(stop), _) => {
            let rule = stop.rule.as_str().replace('_', " ");
            format!("{rule}, after round {}: {}", stop.after_round, clip(&stop.why, LONGEST))
        }
        (None, BurnInState::Running) => "it is in progress, or was killed".to_owned(),
        (None, _) => "not reported".to_owned(),
    }
}

fn describe_loads(acceptance: &Acceptance) -> String {
    if acceptance.soaks.is_empty() {
        return "none ran".to_owned();
    }
    let total: f64 = acceptance.soaks.iter().map(|soak| soak.minutes).sum();
    let passes: u32 = acceptance.soaks.iter().map(|soak| soak.passes).sum();
    let real = match acceptance.soaks.iter().any(|soak| soak.simulated) {
        true => "; for simulated nodes the requested minutes count as elapsed",
        false => "",
    };
    let times = count_noun(acceptance.soaks.len(), "time", "times");
    let passes = count_noun(passes as usize, "pass", "passes");
    format!("{} in {passes}, {times}{real}", format_minutes(total))
}

/// Nodes with a common value as a host list.
fn fold_nodes(nodes: &[&NodeAcceptance]) -> String {
    to_plain(&hostlist::fold(nodes.iter().map(|it| it.node.as_str()))).into_owned()
}

/// Nodes by outcome, worst first.
fn group_by_reason(
    acceptance: &Acceptance,
) -> Vec<(AcceptanceOutcome, String, Vec<&NodeAcceptance>)> {
    let mut groups: Vec<(AcceptanceOutcome, String, Vec<&NodeAcceptance>)> = Vec::new();
    for node in &acceptance.nodes {
        let reason = clip(&node.reason, LONGEST);
        match groups.iter_mut().find(|it| (it.0, &it.1) == (node.accepted, &reason)) {
            Some(group) => group.2.push(node),
            None => groups.push((node.accepted, reason, vec![node])),
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.0));
    groups
}

/// Renders the document for a terminal.
pub fn render_terminal(acceptance: &Acceptance, style: &TerminalStyle) -> String {
    let mut page = TerminalPage::new(style);
    let tone = outcome_colour(outcome_of(acceptance.accepted));
    page.styled(tone, &acceptance.accepted.as_str().to_uppercase());
    page.paragraph(" ", &headline_text(acceptance), 0);
    page.faint(&format!("burn-in {}, {}", acceptance.id, acceptance.source), 0);
    page.section("Course of the burn-in");
    page.paragraph("requested  ", &describe_request(acceptance), 2);
    page.paragraph("load       ", &describe_loads(acceptance), 2);
    page.paragraph("ended      ", &describe_end(acceptance), 2);
    page.section("Nodes");
    let groups = group_by_reason(acceptance);
    for (accepted, reason, nodes) in groups.iter().take(LINES) {
        page.outcome_line(outcome_of(*accepted), &format!("{}: {reason}", fold_nodes(nodes)));
    }
    if LINES < groups.len() {
        page.faint(&format!("{} more reasons", groups.len() - LINES), 2);
    }
    for (title, compared) in all_comparisons(acceptance) {
        page.section(title);
        for line in comparison::summarize(compared) {
            page.paragraph("", &line, 2);
        }
    }
    if !acceptance.notes.is_empty() {
        page.section("Notes");
        for note in acceptance.notes.iter().take(LINES) {
            page.paragraph("", note, 2);
        }
    }
    page.out
}

fn all_comparisons(
    acceptance: &Acceptance,
) -> impl Iterator<Item = (&'static str, &RunComparison)> {
    let first = acceptance.comparison.iter().map(|it| ("Last round compared with the first", it));
    let since = acceptance.since_anew.iter();
    first.chain(since.map(|it| ("Restarted nodes: last round compared with their first since", it)))
}

fn build_sheet(acceptance: &Acceptance) -> AcceptanceSheet {
    let text = |text: &str| clip(text, LONGEST);
    let mut facts = vec![
        ("burn-in", text(&acceptance.id)),
        ("begun", text(&acceptance.created)),
        ("ended", acceptance.ended.as_deref().map_or("-".to_owned(), text)),
        ("measured", text(&acceptance.source)),
        ("requested", describe_request(acceptance)),
        ("load that ran", describe_loads(acceptance)),
        ("why it ended", describe_end(acceptance)),
        ("expectations", acceptance.thresholds_digest.as_deref().map_or("-".to_owned(), text)),
        ("fabricgate", text(&acceptance.version)),
    ];
    // If it is unknown for one accepted node, it is unknown for all.
    let accepted = acceptance.nodes.iter().filter(|node| node.accepted == AcceptanceOutcome::Pass);
    let each: Option<Vec<f64>> = accepted.map(|node| node.detectable).collect();
    let detectable = each.into_iter().flatten().reduce(f64::max);
    facts.extend(
        detectable.map(|it| ("smallest loss that every round could detect", format_percent(it))),
    );
    for (name, versions) in &acceptance.versions {
        let name: &'static str = match name.as_str() {
            "driver" => "driver",
            "NCCL" => "NCCL",
            _ => continue,
        };
        facts.push((name, text(&versions.join(", "))));
    }
    let mut sections = vec![nodes_section(acceptance), rounds_section(acceptance)];
    if !acceptance.soaks.is_empty() {
        sections.push(soaks_section(acceptance));
    }
    for (title, compared) in all_comparisons(acceptance) {
        let all = compared.parts.len();
        let compared_rows = comparison::build_rows(compared, ROWS);
        let worth = compared
            .parts
            .iter()
            .filter(|it| it.difference != model::comparison::ComparisonOutcome::Same)
            .count();
        let rows: Vec<Vec<String>> = compared_rows.iter().map(|row| row.cells().to_vec()).collect();
        let mut lines = comparison::summarize(compared);
        lines.push(format!(
            "first: run {}; last: run {}; {all} readings compared",
            compared.before, compared.after
        ));
        let head = comparison::ComparisonRow::HEAD.map(str::to_owned).to_vec();
        let more = worth.saturating_sub(rows.len());
        let table = (!rows.is_empty()).then_some(AcceptanceTable { head, rows, more });
        sections.push(AcceptanceSection { title, lines, table });
    }
    sections.push(minima_section(acceptance));
    if !acceptance.notes.is_empty() {
        let lines = acceptance.notes.iter().map(|note| text(note)).collect();
        sections.push(AcceptanceSection { title: "Notes", lines, table: None });
    }
    AcceptanceSheet {
        tone: outcome_of(acceptance.accepted).as_str(),
        word: acceptance.accepted.as_str().to_uppercase(),
        headline: headline_text(acceptance),
        facts,
        sections,
        signed: acceptance
            .signature
            .as_ref()
            .map(|it| text(&format!("signed with {} key {}", it.algorithm, it.key))),
    }
}

fn build_table(head: &[&str], mut rows: Vec<Vec<String>>) -> Option<AcceptanceTable> {
    let more = rows.len().saturating_sub(ROWS);
    rows.truncate(ROWS);
    let head = head.iter().map(|it| (*it).to_owned()).collect();
    (!rows.is_empty()).then_some(AcceptanceTable { head, rows, more })
}

fn nodes_section(acceptance: &Acceptance) -> AcceptanceSection {
    let row = |node: &NodeAcceptance| {
        vec![
            node.accepted.as_str().to_owned(),
            clip(node.node.as_str(), LONGEST),
            node.domain.as_ref().map_or(String::new(), |it| clip(it.as_str(), LONGEST)),
            format!("{} of {}", node.passed, node.rounds),
            node.detectable.map_or("-".to_owned(), format_percent),
            clip(&node.reason, LONGEST),
        ]
    };
    let mut all: Vec<&NodeAcceptance> = acceptance.nodes.iter().collect();
    all.sort_by_key(|node| std::cmp::Reverse(node.accepted));
    let head = ["", "node", "domain", "rounds passed", "smallest detectable loss", "why"];
    let table = build_table(&head, all.into_iter().map(row).collect());
    AcceptanceSection { title: "Nodes", lines: Vec::new(), table }
}

fn rounds_section(acceptance: &Acceptance) -> AcceptanceSection {
    let row = |round: &BurnInRound| {
        let aside = if round.set_aside { ", repeated" } else { "" };
        let outcome = round.outcome.map_or("not ended", Outcome::as_str);
        vec![
            round.round.to_string(),
            format!("{outcome}{aside}"),
            clip(&round.run, LONGEST),
            clip(&round.began, LONGEST),
            format_minutes(round.minutes),
            format_minutes(round.soaked_minutes),
            round.nodes.len().to_string(),
            round.seed.to_string(),
        ]
    };
    let head = ["round", "verdict", "run", "begun", "took", "load before", "nodes", "seed"];
    let table = build_table(&head, acceptance.rounds.iter().map(row).collect());
    AcceptanceSection { title: "Rounds", lines: Vec::new(), table }
}

fn soaks_section(acceptance: &Acceptance) -> AcceptanceSection {
    let mut lines = Vec::new();
    for soak in &acceptance.soaks {
        let after = soak.after_round;
        let found = soak.found.iter().map(|(node, what)| format!("{node}: {what}"));
        let not_on = soak.not_on.iter().map(|(node, why)| format!("no load on {node}: {why}"));
        let events =
            found.chain(not_on).map(|it| clip(&format!("after round {after}: {it}"), LONGEST));
        lines.extend(events);
    }
    let rows = acceptance.soaks.iter().map(|soak| {
        vec![
            soak.after_round.to_string(),
            format_minutes(soak.minutes),
            soak.passes.to_string(),
            clip(&soak.probes.join(", "), LONGEST),
        ]
    });
    let head = ["after round", "load ran", "passes", "probes"];
    AcceptanceSection { title: "Load", lines, table: build_table(&head, rows.collect()) }
}

/// The minimum of every test over all nodes and rounds: the document for programs has the minima of
/// each node.
fn minima_section(acceptance: &Acceptance) -> AcceptanceSection {
    let mut least: std::collections::BTreeMap<(&str, &str), (&NodeAcceptance, f64, Option<f64>)> =
        std::collections::BTreeMap::new();
    for node in &acceptance.nodes {
        for it in &node.minima {
            let known = least.entry((it.testcase.as_str(), it.unit.as_str())).or_insert((
                node,
                it.value,
                it.expected,
            ));
            if it.value < known.1 {
                *known = (node, it.value, it.expected);
            }
        }
    }
    let unit = |name: &str| {
        let all = acceptance.nodes.iter().flat_map(|node| &node.minima);
        all.map(|it| it.unit).find(|unit| unit.as_str() == name)
    };
    let rows = least.into_iter().map(|((test, name), (node, value, expected))| {
        vec![
            clip(test, LONGEST),
            format_quantity(value, unit(name)),
            expected.map_or("-".to_owned(), |it| format_quantity(it, unit(name))),
            clip(node.node.as_str(), LONGEST),
        ]
    });
    let head = ["test", "minimum of all rounds", "expected", "on"];
    AcceptanceSection {
        title: "Lowest measured values",
        lines: Vec::new(),
        table: build_table(&head, rows.collect()),
    }
}

/// Renders a page that needs no network.
pub fn render_page(acceptance: &Acceptance) -> Result<String, ReportError> {
    #[derive(Serialize)]
    struct AcceptancePage {
        style: Value,
        sheet: AcceptanceSheet,
    }
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.add_template("acceptance.html", TEMPLATE)?;
    let shown = AcceptancePage {
        style: Value::from_safe_string(STYLE.to_owned()),
        sheet: build_sheet(acceptance),
    };
    Ok(environment.get_template("acceptance.html")?.render(Serde(shown))?)
}

/// Renders Markdown, for the acceptance file.
pub fn render_markdown(acceptance: &Acceptance) -> String {
    let sheet = build_sheet(acceptance);
    let mut out = format!("# {}: {}\n\n", sheet.word, escape_markdown(&sheet.headline));
    for (name, value) in &sheet.facts {
        out.push_str(&format!("- {name}: {}\n", escape_markdown(value)));
    }
    for section in &sheet.sections {
        if section.lines.is_empty() && section.table.is_none() {
            continue;
        }
        out.push_str(&format!("\n## {}\n\n", section.title));
        for line in &section.lines {
            out.push_str(&format!("- {}\n", escape_markdown(line)));
        }
        if let Some(table) = &section.table {
            if !section.lines.is_empty() {
                out.push('\n');
            }
            let line = |cells: &[String]| {
                let cells: Vec<String> = cells.iter().map(|cell| escape_markdown(cell)).collect();
                format!("| {} |\n", cells.join(" | "))
            };
            out.push_str(&line(&table.head));
            out.push_str(&format!("|{}\n", " --- |".repeat(table.head.len())));
            table.rows.iter().for_each(|row| out.push_str(&line(row)));
            if 0 < table.more {
                out.push_str(&format!("\n{} more rows are in acceptance.json.\n", table.more));
            }
        }
    }
    if let Some(signed) = &sheet.signed {
        out.push_str(&format!("\nacceptance.json is {}.\n", escape_markdown(signed)));
    }
    out
}

/// Escapes text for Markdown.
fn escape_markdown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in to_plain(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '!' | '~' => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}

/// Renders JUnit for pipelines: a suite per round with a case per node, preceded by a suite with a
/// case per node for all rounds together. Unknown is an error and not skipped, because pipelines
/// count a skipped test as passed; only cases of a round that was set aside and repeated are
/// skipped.
pub fn render_junit(acceptance: &Acceptance) -> String {
    struct AcceptanceJunitCase {
        name: String,
        outcome: Outcome,
        message: String,
        seconds: f64,
        is_aside: bool,
    }
    let mut suites: Vec<(String, Vec<AcceptanceJunitCase>)> = Vec::new();
    let whole = AcceptanceJunitCase {
        name: "all nodes".to_owned(),
        outcome: outcome_of(acceptance.accepted),
        message: headline_text(acceptance),
        seconds: 0.0,
        is_aside: false,
    };
    let nodes = acceptance.nodes.iter().map(|node| AcceptanceJunitCase {
        name: clip(node.node.as_str(), LONGEST),
        outcome: outcome_of(node.accepted),
        message: clip(&node.reason, LONGEST),
        seconds: 0.0,
        is_aside: false,
    });
    suites.push(("acceptance".to_owned(), std::iter::once(whole).chain(nodes).collect()));
    for round in acceptance.rounds.iter().filter(|round| round.ended.is_some()) {
        let cases = round.nodes.iter().map(|node| AcceptanceJunitCase {
            name: clip(node.node.as_str(), LONGEST),
            outcome: node.outcome,
            message: clip(&node.reason, LONGEST),
            seconds: round.minutes * 60.0,
            // The cause of the repeated round is not an error of this node.
            is_aside: round.set_aside
                && node.outcome == Outcome::Unknown
                && is_participant(acceptance, node.node.as_str()),
        });
        suites.push((format!("round {} ({})", round.round, to_plain(&round.run)), cases.collect()));
    }
    let count = |cases: &[AcceptanceJunitCase], is: &dyn Fn(&AcceptanceJunitCase) -> bool| {
        cases.iter().filter(|case| is(case)).count().to_string()
    };
    let bad = |case: &AcceptanceJunitCase| Outcome::Unknown < case.outcome;
    let open = |case: &AcceptanceJunitCase| case.outcome == Outcome::Unknown && !case.is_aside;
    let mut xml = XmlWriter::new();
    xml.open("testsuites", &[("name", "fabricgate burn-in")]);
    for (name, cases) in &suites {
        let (tests, failures) = (cases.len().to_string(), count(cases, &bad));
        let (errors, skipped) = (count(cases, &open), count(cases, &|case| case.is_aside));
        let totals = [
            ("name", name.as_str()),
            ("tests", &tests),
            ("failures", &failures),
            ("errors", &errors),
            ("skipped", &skipped),
        ];
        xml.open("testsuite", &totals);
        for case in cases {
            let time = format!("{:.1}", case.seconds);
            let head = [("classname", name.as_str()), ("name", &case.name), ("time", &time)];
            let problem = [("type", case.outcome.as_str()), ("message", case.message.as_str())];
            match case.outcome {
                Outcome::Pass => xml.empty("testcase", &head),
                _ => {
                    xml.open("testcase", &head);
                    match case.is_aside {
                        true => xml.empty("skipped", &problem[1..]),
                        false => {
                            let element = if bad(case) { "failure" } else { "error" };
                            xml.text(element, &problem, &case.message);
                        }
                    }
                    xml.close();
                }
            }
        }
        xml.close();
    }
    xml.finish()
}

/// Whether a node was not the cause of the repeated round.
fn is_participant(acceptance: &Acceptance, node: &str) -> bool {
    let known = acceptance.nodes.iter().find(|it| it.node.as_str() == node);
    known.is_some_and(|it| it.out.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknowns_of_a_repeated_round_are_neither_a_pass_nor_an_error() {
        let round = |number: u32, aside: bool, outcome: &str| {
            serde_json::json!({
                "round": number, "run": "r", "seed": 1, "began": "b", "ended": "e",
                "outcome": outcome, "set_aside": aside,
                "nodes": [{"node": "n1", "outcome": outcome, "reason": "its partner was lost"}],
            })
        };
        let acceptance: Acceptance = serde_json::from_value(serde_json::json!({
            "format": "fabricgate.acceptance/1", "id": "b", "created": "c", "real": true,
            "state": "complete", "source": "s", "version": "v", "accepted": "pass",
            "asked": {"soak_minutes": 0.0, "drift": 0.01, "seed": 1},
            "rounds": [round(1, true, "unknown"), round(2, false, "unknown")],
            "nodes": [{
                "node": "n1", "accepted": "pass", "reason": "r", "rounds": 1, "passed": 1,
            }],
        }))
        .expect("a document");
        let text = render_junit(&acceptance);
        let totals = |number: u32, errors: u32, skipped: u32| {
            format!(
                "<testsuite name=\"round {number} (r)\" tests=\"1\" failures=\"0\" \
                 errors=\"{errors}\" skipped=\"{skipped}\">"
            )
        };
        assert!(text.contains(&totals(1, 0, 1)) && text.contains(&totals(2, 1, 0)), "{text}");
        assert_eq!(text.matches("<skipped message=\"its partner was lost\"").count(), 1, "{text}");
        assert!(
            headline_text(&acceptance).starts_with("1 node after 1 round:"),
            "one was repeated"
        );
    }

    #[test]
    fn the_smallest_loss_is_given_only_if_known_for_every_accepted_node() {
        let node = |name: &str, accepted: &str, detectable: Option<f64>| {
            let mut node = serde_json::json!({
                "node": name, "accepted": accepted, "reason": "r", "rounds": 2, "passed": 2,
            });
            if let Some(detectable) = detectable {
                node["detectable"] = detectable.into();
            }
            node
        };
        let losses = |nodes: &[serde_json::Value]| -> Vec<String> {
            let acceptance: Acceptance = serde_json::from_value(serde_json::json!({
                "format": "fabricgate.acceptance/1", "id": "b", "created": "c", "real": true,
                "state": "complete", "source": "s", "version": "v", "accepted": "pass",
                "asked": {"soak_minutes": 0.0, "drift": 0.01, "seed": 1},
                "rounds": [], "nodes": nodes,
            }))
            .expect("a document");
            let facts = build_sheet(&acceptance).facts.into_iter();
            facts.filter(|(what, _)| what.starts_with("smallest loss")).map(|(_, it)| it).collect()
        };
        let sound = [node("n1", "pass", Some(0.02)), node("n2", "pass", Some(0.03))];
        assert_eq!(losses(&sound), ["3.0 %"]);
        let [one, _] = sound.clone();
        assert_eq!(losses(&[one.clone(), node("n2", "fail", None)]), ["2.0 %"]);
        assert_eq!(losses(&[one, node("n2", "pass", None)]), Vec::<String>::new());
    }
}
