//! The domains that a page draws: their tests in numbers, their figures, and
//! what was left out for want of room.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::BTreeSet;

use serde::Serialize;

use super::between;
use super::domain_name;
use super::earlier::Earlier;
use super::figures::Draw;
use super::figures::FigureData;
use super::figures::FigureText;
use super::figures::Readings;
use super::figures::test_name;
use super::findings::FindingText;
use crate::report::ReportError;
use crate::report::blame::Blame;
use crate::report::blame::blame;
use crate::report::grid::Grid;
use crate::report::grid::Reference;
use crate::report::grid::Shape;
use crate::report::network;
use crate::report::overview::low;
use crate::report::plain::counted;
use crate::report::plain::listed;
use crate::report::plain::number;
use crate::report::plain::unit_name;
use crate::report::scale::CALM;
use model::id::DomainName;
use model::run::Run;
use model::stats::sort_median;
use model::verdict::Outcome;

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
/// Figures of one page.
const FIGURES: usize = 32;
/// No figure is begun once all together have this many bytes.
const FIGURE_BYTES: usize = 1_500_000;
/// Figures of rails and leaves.
const NETWORK_FIGURES: usize = 6;
#[derive(Serialize)]
pub(super) struct Domain {
    pub(super) name: String,
    pub(super) anchor: String,
    pub(super) tests: Vec<TestRow>,
    /// Tests that are compared with nothing.
    pub(super) others: Vec<TestRow>,
    pub(super) figures: Vec<FigureText>,
    pub(super) left_out: Vec<String>,
    /// Its number among the domains of the filter.
    pub(super) index: Option<usize>,
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

/// Everything drawn, and what was left out.
pub(super) struct Drawn {
    /// Nodes that are domains of their own, together.
    pub(super) fleet: Vec<FigureText>,
    /// Domains, the worst first.
    pub(super) domains: Vec<Domain>,
    /// Rails beside each other, and leaves.
    pub(super) network: Vec<FigureText>,
    pub(super) left_out: Vec<String>,
    /// What the page's script needs of each figure.
    pub(super) data: Vec<FigureData>,
}

/// Draws a run. `places` are where its findings are told.
pub(super) fn domains(
    run: &Run,
    grids: &[Grid],
    fleet: &[Grid],
    earlier: &Earlier,
    places: &[FindingText],
) -> Result<Drawn, ReportError> {
    let mut by_domain: BTreeMap<Option<&str>, Vec<&Grid>> = BTreeMap::new();
    for grid in grids {
        by_domain.entry(grid.domain.as_ref().map(|d| d.as_str())).or_default().push(grid);
    }
    let mut worst: BTreeMap<Option<&str>, Outcome> = BTreeMap::new();
    let findings = run.verdicts.findings.iter().map(|f| (f.locus.domain.as_ref(), f.outcome));
    let nodes = run.verdicts.nodes.iter().map(|n| (n.domain.as_ref(), n.outcome));
    let outcomes = findings.chain(nodes).map(|(d, outcome)| (d.map(DomainName::as_str), outcome));
    for (name, outcome) in outcomes.chain(between(run, grids).map(|it| (None, it))) {
        let known = worst.entry(name).or_insert(outcome);
        *known = outcome.max(*known);
    }
    let severity =
        |name: Option<&str>| worst.get(&name).copied().filter(|o| Outcome::Unknown <= *o);
    let mut order: Vec<(Option<&str>, Option<Outcome>)> =
        by_domain.keys().map(|name| (*name, severity(*name))).collect();
    order.sort_by_key(|(_, severity)| Reverse(*severity));

    let mut drawn = Vec::new();
    let mut skipped = Vec::new();
    let mut healthy = 0;
    let mut budget = Budget {
        figures: FIGURES,
        bytes: FIGURE_BYTES,
        draw: Draw {
            findings: &run.verdicts.findings,
            places,
            earlier,
            readings: Readings::of(run),
        },
        data: Vec::new(),
    };
    let mut network = Vec::new();
    for grid in network::grids(run).iter().take(NETWORK_FIGURES) {
        network.push(budget.draw(grid, blame(&run.verdicts.findings, grid))?);
    }
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
    Ok(Drawn { fleet: together, domains: drawn, network, left_out, data: budget.data })
}

/// The tests of nodes that are domains of their own: those that show something
/// first, then those between GPUs.
fn all_nodes(
    run: &Run,
    fleet: &[Grid],
    budget: &mut Budget<'_>,
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
        figures.push(budget.draw(grid, blame)?);
    }
    Ok(figures)
}

/// How much may still be drawn, and what it is drawn from.
struct Budget<'a> {
    figures: usize,
    bytes: usize,
    draw: Draw<'a>,
    data: Vec<FigureData>,
}

impl Budget<'_> {
    fn draw(&mut self, grid: &Grid, blame: Blame) -> Result<FigureText, ReportError> {
        let (figure, data) = self.draw.figure(grid, blame, self.data.len() + 1)?;
        self.figures = self.figures.saturating_sub(1);
        let size = figure.svg.as_str().map_or(0, str::len) + data.size();
        self.bytes = self.bytes.saturating_sub(size);
        self.data.push(data);
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
    budget: &mut Budget<'_>,
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
        figures.push(budget.draw(grid, blame)?);
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
    let (tests, others) = (rows(&tests), rows(&others));
    Ok(Domain { name, anchor, tests, others, figures, left_out, index: None })
}

/// One test in numbers; a test inside nodes over all its nodes.
fn test_row(grid: &Grid) -> TestRow {
    let parts: Vec<&Grid> =
        if grid.inside.is_empty() { vec![grid] } else { grid.inside.iter().collect() };
    let mut values: Vec<f64> = parts.iter().flat_map(|g| g.values()).collect();
    let middle = sort_median(&mut values);
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
