//! One page that holds everything: no network, no second file.
//!
//! The template, stylesheet and script are in `reports/` and compiled in. Every
//! text is escaped by the template engine; only figures and data, whose text is
//! escaped where they are made, go in as they are. The page is complete without
//! its script, which only filters, redraws and reads out what is there. What is
//! too much to show is counted and named.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use minijinja::AutoEscape;
use minijinja::Environment;
use minijinja::UndefinedBehavior;
use minijinja::Value;
use minijinja::value::Serde;
use serde::Serialize;

use super::ReportError;
use super::alike::Alike;
use super::blame::Marked;
use super::grid::Grid;
use super::grid::grids;
use super::headline::headline;
use super::headline::worst_detectable;
use super::overview::fleet;
use super::plain::below;
use super::plain::clip;
use super::plain::counted;
use super::plain::plain;
use super::terminal::by_reason;
use model::comparison::Comparison;
use model::comparison::Repairs;
use model::id::DomainName;
use model::run::Run;
use model::text::percent;
use model::trend::Trend;
use model::verdict::Outcome;

mod anchors;
mod compared;
mod domains;
mod earlier;
mod embedded;
mod figures;
mod findings;
mod fleet;
mod history;
mod plan;

use anchors::Anchors;
use compared::ComparisonText;
use compared::RepairsText;
use domains::Domain;
use domains::Drawn;
use domains::domains;
use earlier::Earlier;
use figures::FigureData;
use figures::FigureText;
use findings::FindingText;
use fleet::NodeRow;
use fleet::Passing;
use fleet::Rack;
use history::TrendRow;
use plan::Plan;

const TEMPLATE: &str = include_str!("../../../reports/report.html");
const STYLE: &str = include_str!("../../../reports/report.css");
const SCRIPT: &str = include_str!("../../../reports/report.js");

/// Rows of one table.
const ROWS: usize = 2_000;
/// Findings told with their evidence; the rest are counted.
const TOLD: usize = 100;
/// Files named behind one piece of evidence; the rest are counted.
const FILES: usize = 6;
/// Longest text taken over from a file.
const LONGEST: usize = 2_000;

/// What is shown beside a run, where there is any of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beside<'a> {
    /// An earlier run: its numbers behind a switch in every figure.
    pub before: Option<&'a Run>,
    /// How parts went over runs.
    pub trends: &'a [Trend],
    /// This run held against an earlier one, part by part.
    pub comparison: Option<&'a Comparison>,
    /// What repairs changed, node by node.
    pub repairs: Option<&'a Repairs>,
}

/// Renders the page.
pub fn render(run: &Run, beside: &Beside<'_>) -> Result<String, ReportError> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.add_template("report.html", TEMPLATE)?;
    let page = page(run, beside)?;
    Ok(environment.get_template("report.html")?.render(Serde(page))?)
}

/// Everything the template shows.
#[derive(Serialize)]
struct Page {
    policy: String,
    simulated: Option<&'static str>,
    style: Value,
    script: Value,
    data: Value,
    outcome: &'static str,
    word: String,
    place: String,
    what: String,
    counts: Vec<(String, &'static str, usize)>,
    made: String,
    facts: Vec<(&'static str, String)>,
    findings: Vec<FindingText>,
    findings_more: usize,
    racks: Vec<Rack>,
    nodes_count: usize,
    troubled: Vec<NodeRow>,
    passing: Vec<Passing>,
    nodes_more: usize,
    fleet: Vec<FigureText>,
    fleet_nodes: usize,
    network: Vec<FigureText>,
    domains: Vec<DomainRow>,
    domains_more: usize,
    drawn: Vec<Domain>,
    left_out: Vec<String>,
    repaired: Option<RepairsText>,
    comparison: Option<ComparisonText>,
    before: Option<String>,
    trends: Vec<TrendRow>,
    trends_more: usize,
    unknown: Vec<(String, Vec<String>, usize)>,
    unknown_count: usize,
    notes: Vec<String>,
    plan: Option<Plan>,
    bands: usize,
}

/// What the page's script is given.
#[derive(Serialize)]
struct Data {
    run: String,
    before: Option<String>,
    domains: Vec<String>,
    /// The scale, from the highest ratios to the lowest.
    bands: Vec<(f64, String)>,
    figures: Vec<FigureData>,
}

#[derive(Serialize)]
struct DomainRow {
    name: String,
    index: Option<usize>,
    anchor: Option<String>,
    platform: String,
    outcome: &'static str,
    nodes: String,
    tests: usize,
    lowest: String,
}

fn page(run: &Run, beside: &Beside<'_>) -> Result<Page, ReportError> {
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
    let domain_names: Vec<&str> = domain_names(run);
    let index: BTreeMap<&str, usize> = domain_names.iter().copied().zip(0..).collect();
    let mut anchors = Anchors::default();
    let mut findings = findings::findings(run, beside.trends, &index, &mut anchors);
    let nodes = fleet::fleet(run, beside.trends, &index, &mut findings, &mut anchors);
    let grids = grids(run);
    let fleet = fleet(&grids, &run.claims);
    let fleet_nodes = fleet.iter().map(|g| g.rows.len()).max().unwrap_or(0);
    let earlier = beside.before.map(Earlier::of).unwrap_or_default();
    let Drawn { fleet, domains: mut drawn, network, left_out, data } =
        domains(run, &grids, &fleet, &earlier, &findings)?;
    for domain in &mut drawn {
        domain.index = index.get(domain.name.as_str()).copied();
    }
    let repaired = beside.repairs.map(|it| compared::repairs(it, run, &index, &nodes.places));
    let (domains, domains_more) = domain_rows(run, &grids, &drawn, &index);
    let (trends, trends_more) = history::history(beside.trends);
    let before =
        beside.before.map(|b| format!("{} ({})", shown(&b.info.id), shown(&b.info.created)));
    let bands = super::scale::BANDS.iter().map(|band| {
        let (r, g, b) = band.colour;
        (band.from.max(0.0), format!("#{r:02x}{g:02x}{b:02x}"))
    });
    let data = Data {
        run: shown(&run.info.id),
        before: before.clone(),
        domains: domain_names.iter().map(|d| shown(d)).collect(),
        bands: bands.collect(),
        figures: data,
    };
    Ok(Page {
        policy: embedded::policy(STYLE, SCRIPT),
        simulated: run.info.simulated(),
        style: Value::from_safe_string(STYLE.to_owned()),
        script: Value::from_safe_string(SCRIPT.to_owned()),
        data: Value::from_safe_string(embedded::json(&data)),
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
        findings,
        findings_more: verdicts.findings.len().saturating_sub(TOLD),
        racks: nodes.racks,
        nodes_count: verdicts.nodes.len(),
        troubled: nodes.troubled,
        passing: nodes.passing,
        nodes_more: nodes.more,
        fleet,
        fleet_nodes,
        network,
        domains,
        domains_more,
        drawn,
        left_out,
        repaired,
        comparison: beside.comparison.map(compared::comparison),
        before,
        trends,
        trends_more,
        unknown: by_reason(run)
            .into_iter()
            .take(ROWS)
            .map(|Alike { why, whats, .. }| {
                let short = |text: &str| clip(&below(text, &run.info.source), LONGEST);
                let few = whats.iter().take(ROWS).map(|w| short(w)).collect();
                (short(&why), few, whats.len())
            })
            .collect(),
        unknown_count: verdicts.unknown.len(),
        notes: verdicts.notes.iter().take(ROWS).map(|n| clip(n, LONGEST)).collect(),
        plan: plan::plan(run),
        bands: super::scale::BANDS.len(),
    })
}

/// The domains that can be chosen among: those of two nodes and more, in the
/// order in which they are claimed. A fleet of single nodes is searched by name.
fn domain_names(run: &Run) -> Vec<&str> {
    let mut size: BTreeMap<&str, usize> = BTreeMap::new();
    for node in &run.verdicts.nodes {
        *size.entry(node.domain.as_ref().map_or("", |d| d.as_str())).or_default() += 1;
    }
    let mut names: Vec<&str> = run.claims.domains.iter().map(|d| d.name.as_str()).collect();
    let claimed: BTreeSet<&str> = names.iter().copied().collect();
    names.extend(size.keys().filter(|d| !d.is_empty() && !claimed.contains(**d)));
    names.retain(|d| 1 < size.get(d).copied().unwrap_or(0));
    names.truncate(ROWS);
    names
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
    let own: Vec<Marked<'_>> = grids
        .iter()
        .filter(|g| g.domain.is_none())
        .map(|grid| Marked::of(grid, run.verdicts.findings.len()))
        .collect();
    let findings = run.verdicts.findings.iter();
    let borne_out =
        findings.filter(|finding| own.iter().any(|grid| !grid.blame(finding).is_empty()));
    borne_out.map(|finding| finding.outcome).max()
}

/// What belongs to each domain, or to none.
fn by_domain<'a, T>(
    all: &'a [T],
    domain: impl Fn(&'a T) -> Option<&'a DomainName>,
) -> BTreeMap<Option<&'a str>, Vec<&'a T>> {
    let mut by_domain: BTreeMap<Option<&str>, Vec<&T>> = BTreeMap::new();
    for one in all {
        by_domain.entry(domain(one).map(DomainName::as_str)).or_default().push(one);
    }
    by_domain
}

/// What belongs to this domain.
fn of<'m, 'a, T>(
    by_domain: &'m BTreeMap<Option<&'a str>, Vec<&'a T>>,
    name: Option<&'m str>,
) -> &'m [&'a T] {
    by_domain.get(&name).map_or(&[], Vec::as_slice)
}

fn domain_rows(
    run: &Run,
    grids: &[Grid],
    drawn: &[Domain],
    index: &BTreeMap<&str, usize>,
) -> (Vec<DomainRow>, usize) {
    let verdicts = &run.verdicts;
    let mut names: BTreeSet<Option<&str>> =
        run.claims.domains.iter().map(|d| Some(d.name.as_str())).collect();
    names.extend(verdicts.nodes.iter().map(|n| n.domain.as_ref().map(|d| d.as_str())));
    names.extend(grids.iter().map(|g| g.domain.as_ref().map(|d| d.as_str())));
    // A fleet of single nodes has as many domains as nodes.
    let nodes = by_domain(&verdicts.nodes, |n| n.domain.as_ref());
    let findings = by_domain(&verdicts.findings, |f| f.locus.domain.as_ref());
    let grids_of = by_domain(grids, |g| g.domain.as_ref());
    let claims = by_domain(&run.claims.domains, |d| Some(&d.name));
    let mut rows: Vec<(Outcome, DomainRow)> = names
        .into_iter()
        .map(|name| {
            let nodes = of(&nodes, name);
            let found = of(&findings, name).iter().map(|f| f.outcome);
            let outcome = nodes.iter().map(|n| n.outcome).chain(found).max();
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
            let grids = of(&grids_of, name);
            let lowest = grids.iter().filter_map(|g| g.lowest()).reduce(f64::min);
            let claim = of(&claims, name).first().filter(|_| name.is_some());
            let platform = claim.and_then(|d| d.platform.as_deref());
            let index = name.and_then(|name| index.get(name)).copied();
            let name = domain_name(run, name);
            let row = DomainRow {
                index,
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
