//! A self-contained page: no network, no second file.
//!
//! The template, stylesheet and script are in `reports/` and compiled in. The template engine
//! escapes every text; only figures and data, whose text is escaped where they are built, are
//! inserted as they are. The page is complete without its script, which only filters, redraws and
//! reads out its content. Content beyond the limits is counted and named.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, UndefinedBehavior, Value};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::ReportError;
use super::actions::ActionSummary;
use super::blame_marks::BlameFinder;
use super::grid::{HeatmapGrid, build_grids};
use super::headline::{build_headline, worst_detectable};
use super::overview::fleet_grids;
use super::plain_text::{clip, count_noun, relative_to_source, to_plain};
use super::reason_groups::ReasonGroup;
use super::terminal::group_unknown_by_reason;
use model::comparison::{RepairReport, RunComparison};
use model::id::DomainName;
use model::run::{Run, RunInfo};
use model::text::format_percent;
use model::trend::Trend;
use model::verdict::Outcome;

mod domains;
mod figures;
mod filters;
mod findings;
mod fleet;
mod history;

use domains::{HtmlDomain, HtmlDrawings, draw_domains};
use figures::{FigureData, FigureText, PriorGrids};
use findings::HtmlFinding;
use fleet::{HtmlNodeLine, HtmlPassingGroup, HtmlRack};

const TEMPLATE: &str = include_str!("../../../reports/report.html");
const STYLE: &str = include_str!("../../../reports/report.css");
const SCRIPT: &str = include_str!("../../../reports/report.js");

const ROWS: usize = 2_000;
/// Most findings listed with their evidence; the rest are counted.
const MOST_FINDINGS: usize = 100;
/// Most files named for one piece of evidence; the rest are counted.
const FILES: usize = 6;
/// Longest text taken from a file.
const LONGEST: usize = 2_000;

/// Optional context of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct HtmlPageContext<'a> {
    /// An earlier run: its numbers, behind a switch in every figure.
    pub before: Option<&'a Run>,
    /// Readings of parts over runs.
    pub trends: &'a [Trend],
    /// This run compared with an earlier one, part by part.
    pub comparison: Option<&'a RunComparison>,
    /// The effects of repairs, node by node.
    pub repairs: Option<&'a RepairReport>,
}

/// Renders the page.
pub fn render(run: &Run, context: &HtmlPageContext<'_>) -> Result<String, ReportError> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    filters::add_filters(&mut environment);
    environment.add_template("report.html", TEMPLATE)?;
    let page = build_page(run, context)?;
    Ok(environment.get_template("report.html")?.render(Serde(page))?)
}

#[derive(Serialize)]
struct HtmlPage<'a> {
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
    info: &'a RunInfo,
    facts: Vec<(&'static str, String)>,
    findings: Vec<HtmlFinding<'a>>,
    findings_more: usize,
    /// The numbers of the domains of the filter.
    filter_domains: BTreeMap<&'a str, usize>,
    /// The anchors of the lines of nodes.
    node_anchors: BTreeMap<&'a str, String>,
    racks: Vec<HtmlRack<'a>>,
    nodes_count: usize,
    troubled: Vec<HtmlNodeLine<'a>>,
    passing: Vec<HtmlPassingGroup<'a>>,
    nodes_more: usize,
    fleet: Vec<FigureText>,
    fleet_nodes: usize,
    network: Vec<FigureText>,
    domains: Vec<HtmlDomainSummary<'a>>,
    domains_more: usize,
    drawn: Vec<HtmlDomain>,
    left_out: Vec<String>,
    source: &'a str,
    repaired: Option<&'a RepairReport>,
    /// The domain of each repaired node.
    repaired_domains: BTreeMap<&'a str, Option<&'a str>>,
    comparison: Option<&'a RunComparison>,
    before: Option<String>,
    trends: Vec<&'a Trend>,
    trends_more: usize,
    unknown: Vec<(String, Vec<String>, usize)>,
    unknown_count: usize,
    notes: Vec<String>,
    plan: Option<ActionSummary>,
    is_dry_run: bool,
    is_plan_simulated: bool,
    bands: usize,
}

/// The input of the page's script.
#[derive(Serialize)]
struct HtmlScriptData {
    run: String,
    before: Option<String>,
    domains: Vec<String>,
    /// The scale, from the highest ratios to the lowest.
    bands: Vec<(f64, String)>,
    figures: Vec<FigureData>,
}

#[derive(Serialize)]
struct HtmlDomainSummary<'a> {
    name: String,
    domain: Option<String>,
    anchor: Option<String>,
    platform: Option<&'a str>,
    outcome: Outcome,
    nodes: usize,
    passed: usize,
    tests: usize,
    lowest_ratio: Option<f64>,
}

fn build_page<'a>(
    run: &'a Run,
    context: &HtmlPageContext<'a>,
) -> Result<HtmlPage<'a>, ReportError> {
    let headline = build_headline(run);
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
    let mut anchors = HtmlAnchors::default();
    let findings = findings::build_findings(run, context.trends, &mut anchors);
    let nodes = fleet::build_fleet(run, context.trends, &findings, &mut anchors);
    let grids = build_grids(run);
    let fleet = fleet_grids(&grids, &run.claims);
    let fleet_nodes = fleet.iter().map(|g| g.rows.len()).max().unwrap_or(0);
    let earlier = context.before.map(PriorGrids::from_run).unwrap_or_default();
    let HtmlDrawings { fleet, domains: drawn, network, left_out, data } =
        draw_domains(run, &grids, &fleet, &earlier, &findings)?;
    let repaired = context.repairs.iter().flat_map(|it| &it.nodes).map(|it| {
        (it.node.as_str(), run.claims.domain_of(&it.node).map(|domain| domain.name.as_str()))
    });
    let repaired_domains = repaired.collect();
    let (domains, domains_more) = summarize_domains(run, &grids, &drawn);
    let (trends, trends_more) = history::select_trends(context.trends);
    let before = context
        .before
        .map(|b| format!("{} ({})", clip_text(&b.info.id), clip_text(&b.info.created)));
    let bands = super::colour_scale::BANDS.iter().map(|band| {
        let (r, g, b) = band.colour;
        (band.from.max(0.0), format!("#{r:02x}{g:02x}{b:02x}"))
    });
    let data = HtmlScriptData {
        run: clip_text(&run.info.id),
        before: before.clone(),
        domains: domain_names.iter().map(|d| clip_text(d)).collect(),
        bands: bands.collect(),
        figures: data,
    };
    Ok(HtmlPage {
        policy: content_security_policy(STYLE, SCRIPT),
        simulated: run.info.simulation_notice(),
        style: Value::from_safe_string(STYLE.to_owned()),
        script: Value::from_safe_string(SCRIPT.to_owned()),
        data: Value::from_safe_string(to_script_json(&data)),
        outcome: headline.outcome.as_str(),
        word: headline.outcome_word(),
        place: headline.place,
        what: headline.what,
        counts,
        info: &run.info,
        facts: list_run_facts(run),
        findings,
        findings_more: verdicts.findings.len().saturating_sub(MOST_FINDINGS),
        filter_domains: domain_names.iter().copied().zip(0..).collect(),
        node_anchors: nodes.places,
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
        source: &run.info.source,
        repaired: context.repairs,
        repaired_domains,
        comparison: context.comparison,
        before,
        trends,
        trends_more,
        unknown: group_unknown_by_reason(run)
            .into_iter()
            .take(ROWS)
            .map(|ReasonGroup { why, whats, .. }| {
                let short = |text: &str| clip(&relative_to_source(text, &run.info.source), LONGEST);
                let few = whats.iter().take(ROWS).map(|w| short(w)).collect();
                (short(&why), few, whats.len())
            })
            .collect(),
        unknown_count: verdicts.unknown.len(),
        notes: verdicts.notes.iter().take(ROWS).map(|n| clip(n, LONGEST)).collect(),
        plan: run.actions.as_ref().map(ActionSummary::from_plan),
        is_dry_run: run.actions.as_ref().is_some_and(|plan| plan.dry_run),
        is_plan_simulated: run.actions.as_ref().is_some_and(|plan| plan.simulated),
        bands: super::colour_scale::BANDS.len(),
    })
}

/// The domains of the filter: those of two nodes and more, in the order in which they are claimed.
/// A fleet of single nodes is searched by name.
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

fn clip_text(text: &str) -> String {
    clip(text, 200)
}

fn list_run_facts(run: &Run) -> Vec<(&'static str, String)> {
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
            let nodes = count_noun(d.nodes.len(), "node", "nodes");
            let nic =
                d.nic.as_deref().map(|n| format!(", NICs {}", to_plain(n))).unwrap_or_default();
            format!("{} ({}, {nodes}{nic})", clip_text(d.name.as_str()), to_plain(platform))
        })
        .collect();
    let claimed = match (claimed.len(), run.claims.domains.len()) {
        (0, _) => "nothing".to_owned(),
        (shown, all) if shown < all => format!("{} and {} more", claimed.join(", "), all - shown),
        _ => claimed.join(", "),
    };
    let detectable = match worst_detectable(run) {
        Some(worst) => format!("{} or more, on every node", format_percent(worst)),
        None => "unknown for some nodes".to_owned(),
    };
    let platform = verdicts.platform.as_deref().map_or("no single platform".to_owned(), clip_text);
    let cited =
        (!files.is_empty()).then(|| ("Evidence cited", count_noun(files.len(), "file", "files")));
    let mut facts = vec![
        ("Run", clip_text(&info.id)),
        ("Made", clip_text(&info.created)),
        ("Profile", clip_text(&info.profile)),
        ("Source", clip(&info.source, LONGEST)),
        ("Claimed", claimed),
        ("Measured", format!("{} of {} cells hold a number", values, run.cells.len())),
    ];
    facts.extend(cited);
    facts.extend([
        ("Platform", platform),
        ("Thresholds", clip_text(&verdicts.thresholds_digest)),
        ("Detectable loss", detectable),
        ("Made by", format!("fabricgate {}", to_plain(&info.version))),
    ]);
    facts
}

/// The display name of a domain. Without a domain, a part lies between the claimed ones: the
/// scale-out network.
fn domain_name(run: &Run, name: Option<&str>) -> String {
    match name {
        Some(name) => clip_text(name),
        None if run.claims.domains.is_empty() => "no claimed domain".to_owned(),
        None => "between domains".to_owned(),
    }
}

/// The outcome of the grids between domains: the worst finding that they confirm.
fn outcome_between_domains(run: &Run, grids: &[HeatmapGrid]) -> Option<Outcome> {
    let own: Vec<BlameFinder<'_>> = grids
        .iter()
        .filter(|g| g.domain.is_none())
        .map(|grid| BlameFinder::new(grid, run.verdicts.findings.len()))
        .collect();
    let findings = run.verdicts.findings.iter();
    let borne_out =
        findings.filter(|finding| own.iter().any(|grid| !grid.find(finding).is_empty()));
    borne_out.map(|finding| finding.outcome).max()
}

/// Items by domain; those without one under `None`.
fn group_by_domain<'a, T>(
    all: &'a [T],
    domain: impl Fn(&'a T) -> Option<&'a DomainName>,
) -> BTreeMap<Option<&'a str>, Vec<&'a T>> {
    let mut by_domain: BTreeMap<Option<&str>, Vec<&T>> = BTreeMap::new();
    for one in all {
        by_domain.entry(domain(one).map(DomainName::as_str)).or_default().push(one);
    }
    by_domain
}

fn items_of_domain<'m, 'a, T>(
    by_domain: &'m BTreeMap<Option<&'a str>, Vec<&'a T>>,
    name: Option<&'m str>,
) -> &'m [&'a T] {
    by_domain.get(&name).map_or(&[], Vec::as_slice)
}

fn summarize_domains<'a>(
    run: &'a Run,
    grids: &[HeatmapGrid],
    drawn: &[HtmlDomain],
) -> (Vec<HtmlDomainSummary<'a>>, usize) {
    let verdicts = &run.verdicts;
    let mut names: BTreeSet<Option<&str>> =
        run.claims.domains.iter().map(|d| Some(d.name.as_str())).collect();
    names.extend(verdicts.nodes.iter().map(|n| n.domain.as_ref().map(|d| d.as_str())));
    names.extend(grids.iter().map(|g| g.domain.as_ref().map(|d| d.as_str())));
    // A fleet of single nodes has as many domains as nodes.
    let nodes = group_by_domain(&verdicts.nodes, |n| n.domain.as_ref());
    let findings = group_by_domain(&verdicts.findings, |f| f.locus.domain.as_ref());
    let grids_of = group_by_domain(grids, |g| g.domain.as_ref());
    let claims = group_by_domain(&run.claims.domains, |d| Some(&d.name));
    let mut rows: Vec<HtmlDomainSummary<'a>> = names
        .into_iter()
        .map(|name| {
            let nodes = items_of_domain(&nodes, name);
            let found = items_of_domain(&findings, name).iter().map(|f| f.outcome);
            let outcome = nodes.iter().map(|n| n.outcome).chain(found).max();
            let outcome = match name {
                // The network has no nodes: each node's verdict includes its part of the network.
                None if !run.claims.domains.is_empty() => {
                    let gap = verdicts.nodes.iter().any(|n| n.outcome == Outcome::Unknown);
                    let calm = if gap { Outcome::Unknown } else { Outcome::Pass };
                    outcome.max(outcome_between_domains(run, grids)).unwrap_or(calm)
                }
                _ => outcome.unwrap_or(Outcome::Unknown),
            };
            let grids = items_of_domain(&grids_of, name);
            let claim = items_of_domain(&claims, name).first().filter(|_| name.is_some());
            let domain = name.map(str::to_owned);
            let name = domain_name(run, name);
            HtmlDomainSummary {
                anchor: drawn.iter().find(|d| d.name == name).map(|d| d.anchor.clone()),
                name,
                domain,
                platform: claim.and_then(|d| d.platform.as_deref()),
                outcome,
                nodes: nodes.len(),
                passed: nodes.iter().filter(|n| n.outcome == Outcome::Pass).count(),
                tests: grids.len(),
                lowest_ratio: grids.iter().filter_map(|g| g.lowest_ratio()).reduce(f64::min),
            }
        })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.outcome));
    let more = rows.len().saturating_sub(ROWS);
    rows.truncate(ROWS);
    (rows, more)
}

/// The Content-Security-Policy of a page with this style and this script.
fn content_security_policy(style: &str, script: &str) -> String {
    let digest = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
    format!(
        "default-src 'none'; style-src {}; script-src {}; base-uri 'none'; form-action 'none'",
        digest(style),
        digest(script)
    )
}

/// A value as JSON for a script element: characters that could end the element or begin a comment
/// in it are escaped.
fn to_script_json<T: Serialize>(value: &T) -> String {
    let text = serde_json::to_string(value).expect("texts and numbers are JSON");
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("\\u003c"),
            '>' => out.push_str("\\u003e"),
            '&' => out.push_str("\\u0026"),
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            c => out.push(c),
        }
    }
    out
}

/// Longest anchor, in characters.
const LONGEST_ANCHOR: usize = 60;

#[derive(Debug, Default)]
struct HtmlAnchors {
    taken: BTreeMap<String, usize>,
}

impl HtmlAnchors {
    /// A unique anchor of letters, digits, `-`, `.` and `_`.
    fn unique_name(&mut self, kind: &str, text: &str) -> String {
        let fit = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '-' };
        let wanted: String = text.chars().take(LONGEST_ANCHOR).map(fit).collect();
        let wanted = format!("{kind}-{wanted}");
        let mut name = wanted.clone();
        let mut count = self.taken.get(&wanted).copied().unwrap_or(0);
        while self.taken.contains_key(&name) {
            count += 1;
            name = format!("{wanted}-{count}");
        }
        self.taken.insert(wanted, count);
        self.taken.entry(name.clone()).or_insert(0);
        name
    }
}

#[cfg(test)]
mod tests;
