//! One page that holds everything: no network, no second file.
//!
//! The template and stylesheet are in `reports/` and compiled in. Every text
//! is escaped by the template engine; only figures, whose text is escaped
//! where they are drawn, go in as they are. What is too much to draw is
//! counted and named.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use minijinja::AutoEscape;
use minijinja::Environment;
use minijinja::UndefinedBehavior;
use minijinja::Value;
use minijinja::value::Serde;
use serde::Serialize;

use super::ReportError;
use super::actions::Group;
use super::actions::Told;
use super::blame::blame;
use super::class;
use super::grid::Grid;
use super::grid::grids;
use super::headline::headline;
use super::headline::worst_detectable;
use super::overview::fleet;
use super::plain::below;
use super::plain::clip;
use super::plain::counted;
use super::plain::percent;
use super::plain::place_of;
use super::plain::plain;
use super::plain::quantity;
use super::terminal::by_reason;
use crate::model::id::DomainName;
use crate::model::run::Run;
use crate::model::verdict::Finding;
use crate::model::verdict::Outcome;

mod domains;

use domains::Domain;
use domains::Drawn;
use domains::FigureText;
use domains::domains;

const TEMPLATE: &str = include_str!("../../reports/report.html");
const STYLE: &str = include_str!("../../reports/report.css");
const SCRIPT: &str = include_str!("../../reports/report.js");

/// Rows of one table.
const ROWS: usize = 2_000;
/// Findings told with their evidence; the rest are counted.
const TOLD: usize = 100;
/// Files named behind one piece of evidence; the rest are counted.
const FILES: usize = 6;
/// Longest text taken over from a file.
const LONGEST: usize = 2_000;

/// Renders the page.
pub fn render(run: &Run) -> Result<String, ReportError> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.add_template("report.html", TEMPLATE)?;
    let page = page(run)?;
    Ok(environment.get_template("report.html")?.render(Serde(page))?)
}

/// Everything the template shows.
#[derive(Serialize)]
struct Page {
    style: Value,
    script: Value,
    outcome: &'static str,
    word: String,
    place: String,
    what: String,
    counts: Vec<(String, &'static str, usize)>,
    made: String,
    facts: Vec<(&'static str, String)>,
    findings: Vec<FindingText>,
    findings_more: usize,
    next: Vec<(&'static str, Vec<Piece>)>,
    fleet: Vec<FigureText>,
    fleet_nodes: usize,
    domains: Vec<DomainRow>,
    domains_more: usize,
    drawn: Vec<Domain>,
    left_out: Vec<String>,
    nodes: Vec<NodeRow>,
    nodes_more: usize,
    unknown: Vec<(String, Vec<String>, usize)>,
    unknown_count: usize,
    notes: Vec<String>,
    plan: Option<Plan>,
    bands: usize,
}

/// Prose, or a command inside it.
#[derive(Serialize)]
struct Piece {
    text: &'static str,
    command: bool,
}

/// What one or more files say alike.
#[derive(Serialize)]
struct EvidenceText {
    files: Vec<String>,
    files_more: usize,
    test: Option<String>,
    detail: String,
}

#[derive(Serialize)]
struct FindingText {
    anchor: String,
    id: String,
    outcome: &'static str,
    class: String,
    title: String,
    locus: String,
    measured: String,
    expected: String,
    ratio: String,
    confirmed: bool,
    detectable: String,
    rule: String,
    summary: String,
    evidence: Vec<EvidenceText>,
    files: usize,
}

#[derive(Serialize)]
struct DomainRow {
    name: String,
    anchor: Option<String>,
    platform: String,
    outcome: &'static str,
    nodes: String,
    tests: usize,
    lowest: String,
}

#[derive(Serialize)]
struct NodeRow {
    node: String,
    domain: String,
    outcome: &'static str,
    reason: String,
    detectable: String,
}

#[derive(Serialize)]
struct Plan {
    dry_run: bool,
    frozen: Option<String>,
    groups: Vec<GroupText>,
    groups_more: usize,
    withheld: Vec<String>,
    withheld_more: usize,
    records: Vec<String>,
    records_more: usize,
}

/// Actions that are one to a reader.
#[derive(Serialize)]
struct GroupText {
    title: String,
    whys: Vec<String>,
    whys_more: usize,
    calls: String,
    calls_more: usize,
    calls_nodes: String,
}

fn page(run: &Run) -> Result<Page, ReportError> {
    let headline = headline(run);
    let verdicts = &run.verdicts;
    let counts = [Outcome::Failed, Outcome::Degraded, Outcome::Unknown, Outcome::Pass]
        .map(|o| (o, verdicts.nodes.iter().filter(|n| n.outcome == o).count()));
    let counts = counts
        .iter()
        .filter(|(_, count)| 0 < *count)
        .map(|(o, count)| {
            let noun = if *count == 1 { "node" } else { "nodes" };
            (format!("{noun} {o}"), o.as_str(), *count)
        })
        .collect();
    let grids = grids(run);
    let fleet = fleet(&grids, &run.claims);
    let fleet_nodes = fleet.iter().map(|g| g.rows.len()).max().unwrap_or(0);
    let Drawn { fleet, domains: drawn, left_out } = domains(run, &grids, &fleet)?;
    let (domains, domains_more) = domain_rows(run, &grids, &drawn);
    let mut nodes: Vec<_> = verdicts.nodes.iter().collect();
    nodes.sort_by_key(|n| std::cmp::Reverse(n.outcome));
    Ok(Page {
        style: Value::from_safe_string(STYLE.to_owned()),
        script: Value::from_safe_string(SCRIPT.to_owned()),
        outcome: headline.outcome.as_str(),
        word: headline.word(),
        place: headline.place,
        what: headline.what,
        counts,
        made: format!(
            "{}, {}, {}",
            shown(&run.info.id),
            shown(&run.info.profile),
            shown(&run.info.created)
        ),
        facts: facts(run),
        findings: verdicts
            .findings
            .iter()
            .take(TOLD)
            .enumerate()
            .map(|(index, f)| finding(index, f, &run.info.source))
            .collect(),
        next: class::advised(&verdicts.findings)
            .into_iter()
            .map(|(title, next)| (title, pieces(next)))
            .collect(),
        fleet,
        fleet_nodes,
        findings_more: verdicts.findings.len().saturating_sub(TOLD),
        domains,
        domains_more,
        drawn,
        left_out,
        nodes: nodes
            .iter()
            .take(ROWS)
            .map(|n| NodeRow {
                node: plain(n.node.as_str()).into_owned(),
                domain: n.domain.as_ref().map_or_else(|| "–".to_owned(), |d| shown(d.as_str())),
                outcome: n.outcome.as_str(),
                reason: clip(&below(&n.reason, &run.info.source), LONGEST),
                detectable: n.detectable.map_or_else(|| "–".to_owned(), percent),
            })
            .collect(),
        nodes_more: nodes.len().saturating_sub(ROWS),
        unknown: by_reason(&verdicts.unknown)
            .into_iter()
            .take(ROWS)
            .map(|(why, whats)| {
                let short = |text: &str| clip(&below(text, &run.info.source), LONGEST);
                let few = whats.iter().take(ROWS).map(|w| short(w)).collect();
                (short(why), few, whats.len())
            })
            .collect(),
        unknown_count: verdicts.unknown.len(),
        notes: verdicts.notes.iter().take(ROWS).map(|n| clip(n, LONGEST)).collect(),
        plan: plan(run),
        bands: super::scale::BANDS.len(),
    })
}

fn shown(text: &str) -> String {
    clip(text, 200)
}

fn facts(run: &Run) -> Vec<(&'static str, String)> {
    let info = &run.info;
    let verdicts = &run.verdicts;
    let values = run.cells.iter().filter(|c| c.value.is_some()).count();
    let files: BTreeSet<&str> =
        verdicts.findings.iter().flat_map(|f| f.evidence.iter().map(|e| e.file.as_str())).collect();
    let claimed: Vec<String> = run
        .claims
        .domains
        .iter()
        .take(6)
        .map(|d| {
            let platform = d.platform.as_deref().unwrap_or("platform not claimed");
            let nodes = counted(d.nodes.len(), "node", "nodes");
            let nic = d.nic.as_deref().map(|n| format!(", NICs {}", plain(n))).unwrap_or_default();
            format!("{} ({}, {nodes}{nic})", shown(d.name.as_str()), plain(platform))
        })
        .collect();
    let claimed = match (claimed.len(), run.claims.domains.len()) {
        (0, _) => "nothing".to_owned(),
        (shown, all) if shown < all => format!("{} and {} more", claimed.join(", "), all - shown),
        _ => claimed.join(", "),
    };
    let detectable = match worst_detectable(run) {
        Some(worst) => format!("{} or more, on every node", percent(worst)),
        None => "not known for every node".to_owned(),
    };
    let platform = verdicts.platform.as_deref().map_or("no single platform".to_owned(), shown);
    let cited =
        (!files.is_empty()).then(|| ("Evidence cited", counted(files.len(), "file", "files")));
    let mut facts = vec![
        ("Run", shown(&info.id)),
        ("Made", shown(&info.created)),
        ("Profile", shown(&info.profile)),
        ("Source", clip(&info.source, LONGEST)),
        ("Claimed", claimed),
        ("Measured", format!("{} of {} cells hold a number", values, run.cells.len())),
    ];
    facts.extend(cited);
    facts.extend([
        ("Platform", platform),
        ("Thresholds", shown(&verdicts.thresholds_digest)),
        ("Detectable loss", detectable),
        ("Made by", format!("fabricgate {}", plain(&info.version))),
    ]);
    facts
}

/// Advice with its commands, which stand between backticks, taken apart.
fn pieces(text: &'static str) -> Vec<Piece> {
    let pieces = text.split('`').enumerate();
    pieces.map(|(at, text)| Piece { text, command: at % 2 == 1 }).collect()
}

fn finding(index: usize, finding: &Finding, source: &str) -> FindingText {
    let value = |v: Option<f64>| v.map_or_else(|| "–".to_owned(), |v| quantity(v, finding.unit));
    let mut evidence: Vec<EvidenceText> = Vec::new();
    let mut at: BTreeMap<(Option<&str>, &str), usize> = BTreeMap::new();
    let mut files = BTreeSet::new();
    for e in finding.evidence.iter().take(ROWS) {
        files.insert(&e.file);
        let key = (e.testcase.as_deref(), e.detail.as_str());
        let same = *at.entry(key).or_insert_with(|| {
            evidence.push(EvidenceText {
                files: Vec::new(),
                files_more: 0,
                test: e.testcase.as_deref().map(shown),
                detail: clip(&below(&e.detail, source), LONGEST),
            });
            evidence.len() - 1
        });
        let text = &mut evidence[same];
        if text.files.len() < FILES {
            text.files.push(clip(&below(&e.file, source), LONGEST));
        } else {
            text.files_more += 1;
        }
    }
    FindingText {
        anchor: format!("finding-{}", index + 1),
        id: shown(&finding.id),
        outcome: finding.outcome.as_str(),
        class: shown(&finding.class),
        title: class::title(&finding.class),
        locus: shown(&place_of(&finding.locus)),
        measured: value(finding.measured),
        expected: value(finding.expected),
        ratio: finding.ratio.map_or_else(|| "–".to_owned(), |r| format!("{r:.3}")),
        confirmed: finding.confirmed,
        detectable: finding.detectable.map_or_else(|| "not known".to_owned(), percent),
        rule: shown(&finding.rule),
        summary: clip(&below(&finding.summary, source), LONGEST),
        evidence,
        files: files.len(),
    }
}

fn plan(run: &Run) -> Option<Plan> {
    fn most<T>(mut all: Vec<T>) -> (Vec<T>, usize) {
        let more = all.len().saturating_sub(ROWS);
        all.truncate(ROWS);
        (all, more)
    }
    let plan = run.actions.as_ref()?;
    let told = Told::of(plan);
    let (groups, groups_more) = most(told.groups);
    let (withheld, withheld_more) = most(told.withheld);
    let (records, records_more) = most(told.records);
    let group = |group: Group| {
        let (whys, whys_more) = most(group.whys);
        GroupText {
            title: group.title,
            whys,
            whys_more,
            calls: group.calls.join("\n"),
            calls_more: group.more_calls,
            calls_nodes: group.more_nodes,
        }
    };
    Some(Plan {
        dry_run: plan.dry_run,
        frozen: told.frozen,
        groups: groups.into_iter().map(group).collect(),
        groups_more,
        withheld,
        withheld_more,
        records,
        records_more,
    })
}

/// The name a domain is shown under. What is of none lies between those that
/// are claimed: the scale-out network.
fn domain_name(run: &Run, name: Option<&str>) -> String {
    match name {
        Some(name) => shown(name),
        None if run.claims.domains.is_empty() => "no claimed domain".to_owned(),
        None => "between domains".to_owned(),
    }
}

/// How bad what the grids of no single domain show is: the worst finding that
/// they bear out.
fn between(run: &Run, grids: &[Grid]) -> Option<Outcome> {
    let own: Vec<&Grid> = grids.iter().filter(|g| g.domain.is_none()).collect();
    let findings = run.verdicts.findings.iter();
    let borne_out = findings.filter(|finding| {
        own.iter().any(|grid| !blame(std::slice::from_ref(*finding), grid).is_empty())
    });
    borne_out.map(|finding| finding.outcome).max()
}

fn domain_rows(run: &Run, grids: &[Grid], drawn: &[Domain]) -> (Vec<DomainRow>, usize) {
    let verdicts = &run.verdicts;
    let mut names: BTreeSet<Option<&str>> =
        run.claims.domains.iter().map(|d| Some(d.name.as_str())).collect();
    names.extend(verdicts.nodes.iter().map(|n| n.domain.as_ref().map(|d| d.as_str())));
    names.extend(grids.iter().map(|g| g.domain.as_ref().map(|d| d.as_str())));
    let mut rows: Vec<(Outcome, DomainRow)> = names
        .into_iter()
        .map(|name| {
            let of = |d: Option<&DomainName>| d.map(|d| d.as_str()) == name;
            let nodes: Vec<_> = verdicts.nodes.iter().filter(|n| of(n.domain.as_ref())).collect();
            let findings = verdicts.findings.iter().filter(|f| of(f.locus.domain.as_ref()));
            let outcomes = nodes.iter().map(|n| n.outcome).chain(findings.map(|f| f.outcome));
            let outcome = outcomes.max();
            let outcome = match name {
                // No node is of the network: each node's verdict includes its part of it.
                None if !run.claims.domains.is_empty() => {
                    let gap = verdicts.nodes.iter().any(|n| n.outcome == Outcome::Unknown);
                    let calm = if gap { Outcome::Unknown } else { Outcome::Pass };
                    outcome.max(between(run, grids)).unwrap_or(calm)
                }
                _ => outcome.unwrap_or(Outcome::Unknown),
            };
            let passed = nodes.iter().filter(|n| n.outcome == Outcome::Pass).count();
            let grids: Vec<_> = grids.iter().filter(|g| of(g.domain.as_ref())).collect();
            let lowest = grids.iter().filter_map(|g| g.lowest()).reduce(f64::min);
            let claim = run.claims.domains.iter().find(|d| Some(d.name.as_str()) == name);
            let platform = claim.and_then(|d| d.platform.as_deref());
            let name = domain_name(run, name);
            let row = DomainRow {
                anchor: drawn.iter().find(|d| d.name == name).map(|d| d.anchor.clone()),
                name,
                platform: platform.map_or_else(|| "–".to_owned(), shown),
                outcome: outcome.as_str(),
                nodes: match nodes.len() {
                    0 => "–".to_owned(),
                    all => format!("{passed} of {all} pass"),
                },
                tests: grids.len(),
                lowest: lowest.map_or_else(|| "–".to_owned(), |r| format!("{r:.3}")),
            };
            (outcome, row)
        })
        .collect();
    rows.sort_by_key(|(outcome, _)| std::cmp::Reverse(*outcome));
    let more = rows.len().saturating_sub(ROWS);
    (rows.into_iter().take(ROWS).map(|(_, row)| row).collect(), more)
}

#[cfg(test)]
mod tests;
