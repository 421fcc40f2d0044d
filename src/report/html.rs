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
use super::blame::Blame;
use super::blame::blame;
use super::grid::Grid;
use super::grid::Reference;
use super::grid::Shape;
use super::grid::grids;
use super::grid::median;
use super::headline::headline;
use super::headline::worst_detectable;
use super::plain::clip;
use super::plain::counted;
use super::plain::number;
use super::plain::percent;
use super::plain::plain;
use super::plain::quantity;
use super::plot;
use super::shell;
use super::terminal::by_reason;
use crate::model::run::Run;
use crate::model::verdict::Finding;
use crate::model::verdict::Outcome;

const TEMPLATE: &str = include_str!("../../reports/report.html");
const STYLE: &str = include_str!("../../reports/report.css");
const SCRIPT: &str = include_str!("../../reports/report.js");

/// Figures of domains without findings are samples; this many domains give some.
const HEALTHY_DOMAINS: usize = 2;
/// Figures of one domain.
const DOMAIN_FIGURES: usize = 8;
/// Up to this many nodes get their own matrices even where nothing is low.
const FEW_NODES: usize = 2;
/// From this ratio on a cell is as expected, as the colours have it.
const CALM: f64 = 0.98;
/// Figures of one page.
const FIGURES: usize = 32;
/// No figure is begun once all together have this many bytes.
const FIGURE_BYTES: usize = 1_500_000;
/// Lines and columns that are still legible, GPU by GPU.
const LEGIBLE: usize = 144;
/// Lines of a figure with one line a node.
const STRIP: usize = 72;
/// Rows of one table.
const ROWS: usize = 2_000;
/// Findings told with their evidence; the rest are rows of a table.
const TOLD: usize = 100;
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
    facts: Vec<(&'static str, String)>,
    findings: Vec<FindingText>,
    findings_more: usize,
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

#[derive(Serialize)]
struct FindingText {
    anchor: String,
    id: String,
    outcome: &'static str,
    class: String,
    locus: String,
    measured: String,
    expected: String,
    unit: &'static str,
    ratio: String,
    confirmed: bool,
    detectable: String,
    rule: String,
    summary: String,
    evidence: Vec<(String, String, String)>,
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
struct Domain {
    name: String,
    anchor: String,
    tests: Vec<TestRow>,
    figures: Vec<FigureText>,
    left_out: Vec<String>,
}

#[derive(Serialize)]
struct TestRow {
    test: String,
    cells: usize,
    missing: usize,
    low: String,
    middle: String,
    high: String,
    unit: &'static str,
    expected: String,
    lowest: String,
}

#[derive(Serialize)]
struct FigureText {
    svg: Value,
    caption: String,
    notes: Vec<String>,
    rows: String,
    cols: String,
    values: String,
    ratios: String,
    unit: &'static str,
    cells: String,
    joint: &'static str,
    wide: bool,
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
    actions: Vec<(String, String, String)>,
    actions_more: usize,
    withheld: Vec<(String, String)>,
    withheld_more: usize,
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
    let (drawn, left_out) = domains(run, &grids)?;
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
        facts: facts(run),
        findings: verdicts.findings.iter().take(TOLD).enumerate().map(finding).collect(),
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
                reason: clip(&n.reason, LONGEST),
                detectable: n.detectable.map_or_else(|| "–".to_owned(), percent),
            })
            .collect(),
        nodes_more: nodes.len().saturating_sub(ROWS),
        unknown: by_reason(&verdicts.unknown)
            .into_iter()
            .take(ROWS)
            .map(|(why, whats)| {
                let few = whats.iter().take(ROWS).map(|w| clip(w, LONGEST)).collect();
                (clip(why, LONGEST), few, whats.len())
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

fn finding((index, finding): (usize, &Finding)) -> FindingText {
    let value = |v: Option<f64>| v.map_or_else(|| "–".to_owned(), number);
    FindingText {
        anchor: format!("finding-{}", index + 1),
        id: shown(&finding.id),
        outcome: finding.outcome.as_str(),
        class: shown(&finding.class),
        locus: shown(&finding.locus.to_string()),
        measured: value(finding.measured),
        expected: value(finding.expected),
        unit: finding.unit.map_or("", |u| u.as_str()),
        ratio: finding.ratio.map_or_else(|| "–".to_owned(), |r| format!("{r:.3}")),
        confirmed: finding.confirmed,
        detectable: finding.detectable.map_or_else(|| "not known".to_owned(), percent),
        rule: shown(&finding.rule),
        summary: clip(&finding.summary, LONGEST),
        evidence: finding
            .evidence
            .iter()
            .take(ROWS)
            .map(|e| {
                let test = e.testcase.as_deref().map_or_else(|| "–".to_owned(), shown);
                (clip(&e.file, LONGEST), test, clip(&e.detail, LONGEST))
            })
            .collect(),
    }
}

fn plan(run: &Run) -> Option<Plan> {
    let plan = run.actions.as_ref()?;
    let actions = plan.actions.iter().take(ROWS);
    let withheld = plan.withheld.iter().take(ROWS);
    Some(Plan {
        dry_run: plan.dry_run,
        actions: actions
            .map(|a| {
                let node = plain(a.node.as_str()).into_owned();
                (node, shell::line(&a.command), clip(&a.why, LONGEST))
            })
            .collect(),
        actions_more: plan.actions.len().saturating_sub(ROWS),
        withheld: withheld.map(|w| (clip(&w.what, LONGEST), clip(&w.why, LONGEST))).collect(),
        withheld_more: plan.withheld.len().saturating_sub(ROWS),
    })
}

/// The name a domain is shown under.
fn domain_name(name: Option<&str>) -> String {
    name.map_or_else(|| "no claimed domain".to_owned(), shown)
}

/// Domains to draw, those with findings first, and what was left out.
fn domains(run: &Run, grids: &[Grid]) -> Result<(Vec<Domain>, Vec<String>), ReportError> {
    let mut by_domain: BTreeMap<Option<&str>, Vec<&Grid>> = BTreeMap::new();
    for grid in grids {
        by_domain.entry(grid.domain.as_ref().map(|d| d.as_str())).or_default().push(grid);
    }
    let severity = |name: Option<&str>| {
        let of = |d: Option<&crate::model::id::DomainName>| d.map(|d| d.as_str()) == name;
        let findings = run.verdicts.findings.iter().filter(|f| of(f.locus.domain.as_ref()));
        let nodes = run.verdicts.nodes.iter().filter(|n| of(n.domain.as_ref()));
        let outcomes = findings.map(|f| f.outcome).chain(nodes.map(|n| n.outcome));
        outcomes.filter(|o| Outcome::Degraded <= *o).max()
    };
    let mut order: Vec<(Option<&str>, Option<Outcome>)> =
        by_domain.keys().map(|name| (*name, severity(*name))).collect();
    order.sort_by_key(|(_, severity)| std::cmp::Reverse(*severity));

    let mut drawn = Vec::new();
    let mut skipped = Vec::new();
    let mut healthy = 0;
    let mut budget = Budget { figures: FIGURES, bytes: FIGURE_BYTES, next: 1 };
    for (name, severity) in order {
        let sample = severity.is_none();
        if (sample && healthy == HEALTHY_DOMAINS) || budget.spent() {
            skipped.push(domain_name(name));
            continue;
        }
        healthy += usize::from(sample);
        let anchor = format!("domain-{}", drawn.len() + 1);
        drawn.push(domain(run, domain_name(name), anchor, &by_domain[&name], &mut budget)?);
    }
    let mut left_out = Vec::new();
    if !skipped.is_empty() {
        left_out.push(format!(
            "{} not drawn ({}); matrix.csv holds their cells.",
            counted(skipped.len(), "domain is", "domains are"),
            super::plain::listed(&skipped, 12)
        ));
    }
    Ok((drawn, left_out))
}

/// How much may still be drawn.
struct Budget {
    figures: usize,
    bytes: usize,
    next: usize,
}

impl Budget {
    fn spent(&self) -> bool {
        self.figures == 0 || self.bytes == 0
    }
}

fn domain(
    run: &Run,
    name: String,
    anchor: String,
    grids: &[&Grid],
    budget: &mut Budget,
) -> Result<Domain, ReportError> {
    let findings = &run.verdicts.findings;
    // Overviews, and of the grids inside nodes those that show something.
    let mut wanted: Vec<(&Grid, Blame)> = Vec::new();
    let mut quiet = 0;
    for grid in grids {
        wanted.push((grid, blame(findings, grid)));
        for inside in &grid.inside {
            let blame = blame(findings, inside);
            let low = inside.spots.iter().flatten().any(|s| Outcome::Degraded <= s.outcome);
            if low || !blame.is_empty() || grid.inside.len() <= FEW_NODES {
                wanted.push((inside, blame));
            } else {
                quiet += 1;
            }
        }
    }
    wanted.sort_by(|(a, a_blame), (b, b_blame)| {
        // Calm grids keep the order of their tests, overviews first.
        let lowest = |g: &Grid| g.lowest().filter(|low| *low < CALM).unwrap_or(CALM);
        (a_blame.is_empty().cmp(&b_blame.is_empty())).then(lowest(a).total_cmp(&lowest(b)))
    });
    let mut figures = Vec::new();
    let mut undrawn = BTreeSet::new();
    for (grid, blame) in wanted {
        if figures.len() == DOMAIN_FIGURES || budget.spent() {
            undrawn.insert(test_name(grid));
            continue;
        }
        let figure = figure(findings, grid, blame, budget.next)?;
        budget.next += 1;
        budget.figures -= 1;
        let size = figure.svg.as_str().map_or(0, str::len) + figure.values.len();
        budget.bytes = budget.bytes.saturating_sub(size);
        figures.push(figure);
    }
    let mut left_out = Vec::new();
    if 0 < quiet {
        left_out.push(format!(
            "{} inside single nodes without anything low are not drawn; the overview has a cell for each GPU.",
            counted(quiet, "matrix", "matrices")
        ));
    }
    if !undrawn.is_empty() {
        let names: Vec<String> = undrawn.into_iter().collect();
        left_out.push(format!("Not drawn: {}.", super::plain::listed(&names, 24)));
    }
    let tests = grids.iter().map(|g| test_row(g)).collect();
    Ok(Domain { name, anchor, tests, figures, left_out })
}

fn test_name(grid: &Grid) -> String {
    match &grid.rail {
        Some(rail) => format!("{}, rail {}", shown(&grid.testcase), shown(rail)),
        None => shown(&grid.testcase),
    }
}

/// One test in numbers; a test inside nodes over all its nodes.
fn test_row(grid: &Grid) -> TestRow {
    let parts: Vec<&Grid> =
        if grid.inside.is_empty() { vec![grid] } else { grid.inside.iter().collect() };
    let mut values: Vec<f64> = parts.iter().flat_map(|g| g.values()).collect();
    let middle = median(&mut values);
    let lowest = parts.iter().filter_map(|g| g.lowest()).reduce(f64::min);
    let value = |v: Option<f64>| v.map_or_else(|| "–".to_owned(), number);
    TestRow {
        test: test_name(grid),
        cells: values.len(),
        missing: parts.iter().map(|g| g.missing()).sum(),
        low: value(values.first().copied()),
        middle: value(middle),
        high: value(values.last().copied()),
        unit: grid.unit.as_str(),
        expected: match grid.reference {
            Reference::Expectation(low, high) if low == high => number(low),
            Reference::Expectation(low, high) => format!("{} to {}", number(low), number(high)),
            Reference::Median(_) | Reference::Nothing => "nothing".to_owned(),
        },
        lowest: lowest.map_or_else(|| "–".to_owned(), |r| format!("{r:.3}")),
    }
}

fn figure(
    findings: &[Finding],
    grid: &Grid,
    marked: Blame,
    index: usize,
) -> Result<FigureText, ReportError> {
    let mut notes = Vec::new();
    let too_wide = grid.shape == Shape::Pairs && LEGIBLE < grid.rows.len();
    let smaller = if too_wide {
        let by_node = grid.by_node();
        Some(if LEGIBLE < by_node.rows.len() { by_node.worst(STRIP) } else { by_node })
    } else if grid.shape == Shape::PerGpu && STRIP < grid.rows.len() {
        Some(grid.worst(STRIP))
    } else {
        None
    };
    let (grid, marked) = match &smaller {
        Some(smaller) => (smaller, blame(findings, smaller)),
        None => (grid, marked),
    };
    let per_node = grid.rows.chunk_by(|a, b| a.node == b.node).map(<[_]>::len).max();
    if grid.shape == Shape::Pairs && per_node.is_some_and(|n| 1 < n && n < grid.rows.len()) {
        notes.push("Thin lines separate nodes; between them are their GPUs in order.".to_owned());
    }
    if let Some(summed) = grid.summed {
        notes.push(format!("Each cell: {summed}."));
    }
    if let Some(left_out) = &grid.left_out {
        notes.push(format!("Shown: {left_out}."));
    }
    if plot::crosses_left_out(grid) {
        notes.push("Too many cells are not as expected to cross each of them.".to_owned());
    }
    let unit = Some(grid.unit);
    let mut values = grid.values();
    let middle = median(&mut values).map(|m| quantity(m, unit));
    let place = match (&grid.domain, grid.shape, grid.rows.first()) {
        (_, Shape::Pairs, Some(end)) if grid.rows.iter().all(|e| e.node == end.node) => {
            end.node.as_ref().map_or("one node".to_owned(), |n| shown(n.as_str()))
        }
        (Some(domain), ..) => shown(domain.as_str()),
        _ => "no claimed domain".to_owned(),
    };
    let what = match grid.shape {
        Shape::Pairs => "from each line to each column",
        Shape::PerGpu => "GPU by GPU",
    };
    let caption = format!("{} in {place}, {what}", test_name(grid));
    let about = format!(
        "{} cells of {}; median {}; lowest ratio {}; {} blamed.",
        grid.values().len(),
        test_name(grid),
        middle.unwrap_or_else(|| "not known".to_owned()),
        grid.lowest().map_or_else(|| "not known".to_owned(), |r| format!("{r:.3}")),
        blamed(grid, &marked),
    );
    let drawn = plot::heatmap(grid, &marked, &format!("figure-{index}"), &about)?;
    let names = |ends: &[super::grid::End]| -> String {
        let names: Vec<String> = ends.iter().map(|e| clip(&e.name(), 80)).collect();
        serde_json::to_string(&names).expect("a list of strings is JSON")
    };
    Ok(FigureText {
        svg: Value::from_safe_string(drawn.svg),
        caption,
        notes,
        rows: names(&grid.rows),
        cols: names(&grid.cols),
        values: data(grid, |s| s.value.map(number)),
        ratios: data(grid, |s| s.ratio.map(|r| format!("{:.0}", (r * 1000.0).clamp(0.0, 1e6)))),
        unit: grid.unit.as_str(),
        cells: drawn.cells.map(|n| n.to_string()).join(" "),
        joint: if grid.shape == Shape::Pairs { " → " } else { ", " },
        wide: 40 < grid.cols.len(),
    })
}

/// What is blamed, in words.
fn blamed(grid: &Grid, blame: &Blame) -> String {
    let rows = blame.rows.iter().map(|&r| grid.rows[r].name());
    let cols = blame.cols.iter().map(|&c| grid.cols[c].name());
    let cells = blame
        .cells
        .iter()
        .map(|&(r, c)| format!("{} with {}", grid.rows[r].name(), grid.cols[c].name()));
    let names: BTreeSet<String> = rows.chain(cols).chain(cells).collect();
    if names.is_empty() {
        return "nothing".to_owned();
    }
    super::plain::listed(&names.into_iter().collect::<Vec<_>>(), 12)
}

/// The numbers of a grid for the page's readout, `-` where there is none.
fn data(grid: &Grid, of: fn(&super::grid::Spot) -> Option<String>) -> String {
    let each = grid.spots.iter().map(|s| s.as_ref().and_then(of).unwrap_or_else(|| "-".into()));
    each.collect::<Vec<_>>().join(" ")
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
            let of = |d: Option<&crate::model::id::DomainName>| d.map(|d| d.as_str()) == name;
            let nodes: Vec<_> = verdicts.nodes.iter().filter(|n| of(n.domain.as_ref())).collect();
            let findings = verdicts.findings.iter().filter(|f| of(f.locus.domain.as_ref()));
            let outcomes = nodes.iter().map(|n| n.outcome).chain(findings.map(|f| f.outcome));
            let outcome = outcomes.max().unwrap_or(Outcome::Unknown);
            let passed = nodes.iter().filter(|n| n.outcome == Outcome::Pass).count();
            let grids: Vec<_> = grids.iter().filter(|g| of(g.domain.as_ref())).collect();
            let lowest = grids.iter().filter_map(|g| g.lowest()).reduce(f64::min);
            let claim = run.claims.domains.iter().find(|d| Some(d.name.as_str()) == name);
            let platform = claim.and_then(|d| d.platform.as_deref());
            let name = domain_name(name);
            let row = DomainRow {
                anchor: drawn.iter().find(|d| d.name == name).map(|d| d.anchor.clone()),
                name,
                platform: platform.map_or_else(|| "–".to_owned(), shown),
                outcome: outcome.as_str(),
                nodes: format!("{passed} of {} pass", nodes.len()),
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
