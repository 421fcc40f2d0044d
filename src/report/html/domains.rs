//! The domains that a page draws: their tests in numbers, their figures, and
//! what was left out for want of room.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::BTreeSet;

use minijinja::Value;
use serde::Serialize;

use super::between;
use super::domain_name;
use super::shown;
use crate::model::id::DomainName;
use crate::model::run::Run;
use crate::model::verdict::Finding;
use crate::model::verdict::Outcome;
use crate::report::ReportError;
use crate::report::blame::Blame;
use crate::report::blame::blame;
use crate::report::grid::End;
use crate::report::grid::Grid;
use crate::report::grid::Reference;
use crate::report::grid::Shape;
use crate::report::grid::Spot;
use crate::report::grid::median;
use crate::report::overview::low;
use crate::report::plain::clip;
use crate::report::plain::counted;
use crate::report::plain::listed;
use crate::report::plain::number;
use crate::report::plain::quantity;
use crate::report::plain::rail_name;
use crate::report::plain::unit_name;
use crate::report::plot;
use crate::report::scale::CALM;

/// Figures of domains that pass are samples; this many domains give some.
const HEALTHY_DOMAINS: usize = 2;
/// Figures of one domain that does not pass.
const DOMAIN_FIGURES: usize = 8;
/// Figures of one domain that passes.
const CALM_FIGURES: usize = 4;
/// Figures of all nodes together.
const FLEET_FIGURES: usize = 4;
/// Up to this many nodes get their own matrices even where nothing is low.
const FEW_NODES: usize = 2;
/// What a figure takes beside its image: padding and border.
const PADDING: u32 = 2 * 14 + 2;
/// Figures of one page.
const FIGURES: usize = 32;
/// No figure is begun once all together have this many bytes.
const FIGURE_BYTES: usize = 1_500_000;
/// Lines and columns that are still legible, GPU by GPU.
const LEGIBLE: usize = 144;
/// Lines of a figure with one line a node.
const STRIP: usize = 72;
#[derive(Serialize)]
pub(super) struct Domain {
    pub(super) name: String,
    pub(super) anchor: String,
    pub(super) tests: Vec<TestRow>,
    /// Tests that are compared with nothing.
    pub(super) others: Vec<TestRow>,
    pub(super) figures: Vec<FigureText>,
    pub(super) left_out: Vec<String>,
}

#[derive(Serialize)]
pub(super) struct TestRow {
    pub(super) test: String,
    pub(super) cells: usize,
    pub(super) missing: usize,
    pub(super) low: String,
    pub(super) middle: String,
    pub(super) high: String,
    pub(super) unit: &'static str,
    pub(super) expected: String,
    pub(super) lowest: String,
}

#[derive(Serialize)]
pub(super) struct FigureText {
    pub(super) svg: Value,
    pub(super) caption: String,
    pub(super) notes: Vec<String>,
    pub(super) rows: String,
    pub(super) cols: String,
    pub(super) values: String,
    pub(super) ratios: String,
    pub(super) unit: &'static str,
    pub(super) cells: String,
    pub(super) joint: &'static str,
    pub(super) wide: bool,
    pub(super) width: u32,
}

/// Everything drawn, and what was left out.
pub(super) struct Drawn {
    /// Nodes that are domains of their own, together.
    pub(super) fleet: Vec<FigureText>,
    /// Domains, the worst first.
    pub(super) domains: Vec<Domain>,
    pub(super) left_out: Vec<String>,
}

/// Draws a run.
pub(super) fn domains(run: &Run, grids: &[Grid], fleet: &[Grid]) -> Result<Drawn, ReportError> {
    let mut by_domain: BTreeMap<Option<&str>, Vec<&Grid>> = BTreeMap::new();
    for grid in grids {
        by_domain.entry(grid.domain.as_ref().map(|d| d.as_str())).or_default().push(grid);
    }
    let severity = |name: Option<&str>| {
        let of = |d: Option<&DomainName>| d.map(|d| d.as_str()) == name;
        let findings = run.verdicts.findings.iter().filter(|f| of(f.locus.domain.as_ref()));
        let nodes = run.verdicts.nodes.iter().filter(|n| of(n.domain.as_ref()));
        let outcomes = findings.map(|f| f.outcome).chain(nodes.map(|n| n.outcome));
        let network = if name.is_none() { between(run, grids) } else { None };
        outcomes.chain(network).filter(|o| Outcome::Unknown <= *o).max()
    };
    let mut order: Vec<(Option<&str>, Option<Outcome>)> =
        by_domain.keys().map(|name| (*name, severity(*name))).collect();
    order.sort_by_key(|(_, severity)| Reverse(*severity));

    let mut drawn = Vec::new();
    let mut skipped = Vec::new();
    let mut healthy = 0;
    let mut budget = Budget { figures: FIGURES, bytes: FIGURE_BYTES, next: 1 };
    let together = all_nodes(run, fleet, &mut budget)?;
    // What all nodes show together needs no samples of single ones besides.
    let samples = if together.is_empty() { HEALTHY_DOMAINS } else { 0 };
    for (name, severity) in order {
        let sample = severity.is_none();
        if (sample && healthy == samples) || budget.spent() {
            skipped.push(domain_name(run, name));
            continue;
        }
        healthy += usize::from(sample);
        let anchor = format!("domain-{}", drawn.len() + 1);
        let most = if sample { CALM_FIGURES } else { DOMAIN_FIGURES };
        drawn.push(domain(
            run,
            domain_name(run, name),
            anchor,
            &by_domain[&name],
            most,
            &mut budget,
        )?);
    }
    let mut left_out = Vec::new();
    if !skipped.is_empty() {
        let how = if together.is_empty() { "not drawn" } else { "drawn only together" };
        left_out.push(format!(
            "{} {how} ({}); matrix.csv holds all cells.",
            counted(skipped.len(), "domain is", "domains are"),
            listed(&skipped, 12)
        ));
    }
    Ok(Drawn { fleet: together, domains: drawn, left_out })
}

/// The tests of nodes that are domains of their own: those that show something
/// first, then those between GPUs.
fn all_nodes(
    run: &Run,
    fleet: &[Grid],
    budget: &mut Budget,
) -> Result<Vec<FigureText>, ReportError> {
    let mut order: Vec<&Grid> = fleet.iter().collect();
    order.sort_by_key(|g| {
        // Where nodes are compared with different numbers, these are their own
        // levels, which say nothing about one node beside the others.
        let alike = matches!(g.reference, Reference::Expectation(low, high) if low == high);
        let shown = (Reverse(low(g).min(1)), Reverse(g.missing().min(1)));
        // The plain copy has the shortest name of its kind.
        (shown, !alike, g.summed.is_none(), g.testcase.len())
    });
    let mut figures = Vec::new();
    for grid in order.into_iter().take(FLEET_FIGURES) {
        let blame = blame(&run.verdicts.findings, grid);
        figures.push(budget.draw(&run.verdicts.findings, grid, blame)?);
    }
    Ok(figures)
}

/// How much may still be drawn.
struct Budget {
    figures: usize,
    bytes: usize,
    next: usize,
}

impl Budget {
    fn draw(
        &mut self,
        findings: &[Finding],
        grid: &Grid,
        blame: Blame,
    ) -> Result<FigureText, ReportError> {
        let figure = figure(findings, grid, blame, self.next)?;
        self.next += 1;
        self.figures -= 1;
        let size = figure.svg.as_str().map_or(0, str::len) + figure.values.len();
        self.bytes = self.bytes.saturating_sub(size);
        Ok(figure)
    }

    fn spent(&self) -> bool {
        self.figures == 0 || self.bytes == 0
    }
}

fn domain(
    run: &Run,
    name: String,
    anchor: String,
    grids: &[&Grid],
    most: usize,
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
            let some = 0 < low(inside) || 0 < inside.missing();
            if some || !blame.is_empty() || grid.inside.len() <= FEW_NODES {
                wanted.push((inside, blame));
            } else {
                quiet += 1;
            }
        }
    }
    wanted.sort_by(|(a, a_blame), (b, b_blame)| {
        // Calm grids keep the order of their tests, overviews first.
        let lowest = |g: &Grid| g.lowest().filter(|low| *low < CALM).unwrap_or(CALM);
        let compared = |g: &Grid| matches!(g.reference, Reference::Expectation(..));
        (a_blame.is_empty().cmp(&b_blame.is_empty()))
            .then(compared(b).cmp(&compared(a)))
            .then(lowest(a).total_cmp(&lowest(b)))
            .then((a.missing() == 0).cmp(&(b.missing() == 0)))
            .then((a.shape != Shape::Pairs).cmp(&(b.shape != Shape::Pairs)))
    });
    let mut figures = Vec::new();
    let mut undrawn = BTreeSet::new();
    for (grid, blame) in wanted {
        if figures.len() == most || budget.spent() {
            undrawn.insert(test_name(grid));
            continue;
        }
        figures.push(budget.draw(findings, grid, blame)?);
    }
    let mut left_out = Vec::new();
    if 0 < quiet {
        left_out.push(format!(
            "{} inside single nodes without anything low or missing are not drawn; the overview has a cell for each GPU.",
            counted(quiet, "matrix", "matrices")
        ));
    }
    if !undrawn.is_empty() {
        let names: Vec<String> = undrawn.into_iter().collect();
        left_out.push(format!("Not drawn: {}.", listed(&names, 24)));
    }
    let compared = |g: &&&Grid| matches!(g.reference, Reference::Expectation(..));
    let (tests, others): (Vec<&Grid>, Vec<&Grid>) = grids.iter().partition(|g| compared(g));
    let rows = |grids: &[&Grid]| grids.iter().map(|g| test_row(g)).collect();
    Ok(Domain { name, anchor, tests: rows(&tests), others: rows(&others), figures, left_out })
}

fn test_name(grid: &Grid) -> String {
    match &grid.rail {
        Some(rail) => format!("{}, {}", shown(&grid.testcase), rail_name(rail)),
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
        unit: unit_name(Some(grid.unit)),
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
        _ if 1 < grid.joined => format!("{} nodes", grid.joined),
        _ => "no single domain".to_owned(),
    };
    let what = match grid.shape {
        Shape::Pairs => "from each line to each column",
        Shape::PerGpu => "GPU by GPU",
    };
    // Between nodes of several domains there is no place but the rail.
    let caption = match (&grid.domain, &grid.rail) {
        (None, Some(_)) => format!("{}, {what}", test_name(grid)),
        _ => format!("{} in {place}, {what}", test_name(grid)),
    };
    let about = format!(
        "{} cells of {}; median {}; lowest ratio {}; {} blamed.",
        grid.values().len(),
        test_name(grid),
        middle.unwrap_or_else(|| "not known".to_owned()),
        grid.lowest().map_or_else(|| "not known".to_owned(), |r| format!("{r:.3}")),
        blamed(grid, &marked),
    );
    let drawn = plot::heatmap(grid, &marked, &format!("figure-{index}"), &about)?;
    let names = |ends: &[End]| -> String {
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
        width: drawn.width + PADDING,
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
    listed(&names.into_iter().collect::<Vec<_>>(), 12)
}

/// The numbers of a grid for the page's readout, `-` where there is none.
fn data(grid: &Grid, of: fn(&Spot) -> Option<String>) -> String {
    let each = grid.spots.iter().map(|s| s.as_ref().and_then(of).unwrap_or_else(|| "-".into()));
    each.collect::<Vec<_>>().join(" ")
}
