//! The domains that a page draws: their tests in numbers, their figures, and the parts left out for
//! lack of room.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::figures::{
    FigureData, FigureReadings, FigureRenderer, FigureText, PriorGrids, test_name,
};
use super::findings::HtmlFinding;
use super::{domain_name, outcome_between_domains};
use crate::report::blame_marks::{GridBlame, blame_grid};
use crate::report::colour_scale::MIN_EXPECTED_RATIO;
use crate::report::grid::{GridReference, GridShape, HeatmapGrid};
use crate::report::overview::count_low;
use crate::report::plain_text::{count_noun, list_names};
use crate::report::{ReportError, network};
use model::id::DomainName;
use model::run::Run;
use model::stats::sort_median;
use model::unit::Unit;
use model::verdict::Outcome;

/// Passing domains get figures as samples only; this many domains give some.
const HEALTHY_DOMAINS: usize = 2;
/// Most figures of one domain that does not pass.
const DOMAIN_FIGURES: usize = 8;
/// Most figures of one domain that passes.
const CALM_FIGURES: usize = 4;
/// Most figures of all nodes together.
const FLEET_FIGURES: usize = 4;
/// Up to this many nodes get their own matrices even if nothing is low.
const FEW_NODES: usize = 2;
/// Most figures of one page.
const FIGURES: usize = 32;
/// No further figure is drawn once all figures together have this many bytes.
const FIGURE_BYTES: usize = 1_500_000;
/// Most figures of rails and leaves.
const NETWORK_FIGURES: usize = 6;

#[derive(Serialize)]
pub(super) struct HtmlDomain {
    pub(super) name: String,
    pub(super) anchor: String,
    pub(super) tests: Vec<HtmlTestSummary>,
    /// Tests without a reference.
    pub(super) others: Vec<HtmlTestSummary>,
    pub(super) figures: Vec<FigureText>,
    pub(super) left_out: Vec<String>,
}

/// One test in numbers; a test inside nodes is combined over all its nodes.
#[derive(Serialize)]
pub(super) struct HtmlTestSummary {
    test: String,
    cells: usize,
    missing: usize,
    lowest: Option<f64>,
    median: Option<f64>,
    highest: Option<f64>,
    unit: Unit,
    /// The lowest and the highest expectation.
    expected: Option<(f64, f64)>,
    lowest_ratio: Option<f64>,
}

/// All drawings, and the parts left out.
pub(super) struct HtmlDrawings {
    /// Nodes that are their own domain, together.
    pub(super) fleet: Vec<FigureText>,
    /// Worst first.
    pub(super) domains: Vec<HtmlDomain>,
    /// Rails next to each other, and leaves.
    pub(super) network: Vec<FigureText>,
    pub(super) left_out: Vec<String>,
    /// The script's data for each figure.
    pub(super) data: Vec<FigureData>,
}

/// Draws a run. `places` are its listed findings.
pub(super) fn draw_domains(
    run: &Run,
    grids: &[HeatmapGrid],
    fleet: &[HeatmapGrid],
    earlier: &PriorGrids,
    places: &[HtmlFinding<'_>],
) -> Result<HtmlDrawings, ReportError> {
    let mut by_domain: BTreeMap<Option<&str>, Vec<&HeatmapGrid>> = BTreeMap::new();
    for grid in grids {
        by_domain.entry(grid.domain.as_ref().map(|d| d.as_str())).or_default().push(grid);
    }
    let mut worst: BTreeMap<Option<&str>, Outcome> = BTreeMap::new();
    let findings = run.verdicts.findings.iter().map(|f| (f.locus.domain.as_ref(), f.outcome));
    let nodes = run.verdicts.nodes.iter().map(|n| (n.domain.as_ref(), n.outcome));
    let outcomes = findings.chain(nodes).map(|(d, outcome)| (d.map(DomainName::as_str), outcome));
    for (name, outcome) in outcomes.chain(outcome_between_domains(run, grids).map(|it| (None, it)))
    {
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
    let mut budget = FigureBudget {
        figures: FIGURES,
        bytes: FIGURE_BYTES,
        draw: FigureRenderer {
            findings: &run.verdicts.findings,
            places,
            earlier,
            readings: FigureReadings::from_run(run),
        },
        data: Vec::new(),
    };
    let mut network = Vec::new();
    for grid in network::build_network_grids(run).iter().take(NETWORK_FIGURES) {
        network.push(budget.draw(grid, blame_grid(&run.verdicts.findings, grid))?);
    }
    let together = draw_all_nodes(run, fleet, &mut budget)?;
    // If figures of all nodes exist, samples of single nodes are not needed.
    let samples = if together.is_empty() { HEALTHY_DOMAINS } else { 0 };
    for (name, severity) in order {
        let sample = severity.is_none();
        if (sample && healthy == samples) || budget.is_spent() {
            skipped.push(domain_name(run, name));
            continue;
        }
        healthy += usize::from(sample);
        let anchor = format!("domain-{}", drawn.len() + 1);
        let most = if sample { CALM_FIGURES } else { DOMAIN_FIGURES };
        drawn.push(draw_domain(
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
            count_noun(skipped.len(), "domain is", "domains are"),
            list_names(&skipped, 12)
        ));
    }
    Ok(HtmlDrawings { fleet: together, domains: drawn, network, left_out, data: budget.data })
}

/// The tests of nodes that are their own domain: those with low cells first, then those between
/// GPUs.
fn draw_all_nodes(
    run: &Run,
    fleet: &[HeatmapGrid],
    budget: &mut FigureBudget<'_>,
) -> Result<Vec<FigureText>, ReportError> {
    let mut order: Vec<&HeatmapGrid> = fleet.iter().collect();
    order.sort_by_key(|g| {
        // If nodes have different references, these are their own levels, which do not compare one
        // node with the others.
        let alike = matches!(g.reference, GridReference::Expectation(low, high) if low == high);
        let shown = (Reverse(count_low(g).min(1)), Reverse(g.missing_count().min(1)));
        // The plain copy has the shortest name of its kind.
        (shown, !alike, g.summed.is_none(), g.testcase.len())
    });
    let mut figures = Vec::new();
    for grid in order.into_iter().take(FLEET_FIGURES) {
        let blame = blame_grid(&run.verdicts.findings, grid);
        figures.push(budget.draw(grid, blame)?);
    }
    Ok(figures)
}

/// The remaining room for figures, and their data.
struct FigureBudget<'a> {
    figures: usize,
    bytes: usize,
    draw: FigureRenderer<'a>,
    data: Vec<FigureData>,
}

impl FigureBudget<'_> {
    fn draw(&mut self, grid: &HeatmapGrid, blame: GridBlame) -> Result<FigureText, ReportError> {
        let (figure, data) = self.draw.draw_figure(grid, blame, self.data.len() + 1)?;
        self.figures = self.figures.saturating_sub(1);
        let size = figure.svg.as_str().map_or(0, str::len) + data.byte_size();
        self.bytes = self.bytes.saturating_sub(size);
        self.data.push(data);
        Ok(figure)
    }

    fn is_spent(&self) -> bool {
        self.figures == 0 || self.bytes == 0
    }
}

fn draw_domain(
    run: &Run,
    name: String,
    anchor: String,
    grids: &[&HeatmapGrid],
    most: usize,
    budget: &mut FigureBudget<'_>,
) -> Result<HtmlDomain, ReportError> {
    let findings = &run.verdicts.findings;
    // Overviews, and the grids inside nodes that show a deviation.
    let mut wanted: Vec<(&HeatmapGrid, GridBlame)> = Vec::new();
    let mut quiet = 0;
    for grid in grids {
        wanted.push((grid, blame_grid(findings, grid)));
        for inside in &grid.inside {
            let blame = blame_grid(findings, inside);
            let some = 0 < count_low(inside) || 0 < inside.missing_count();
            if some || !blame.is_empty() || grid.inside.len() <= FEW_NODES {
                wanted.push((inside, blame));
            } else {
                quiet += 1;
            }
        }
    }
    wanted.sort_by(|(a, a_blame), (b, b_blame)| {
        // Grids without a deviation keep the order of their tests, overviews first.
        let lowest = |g: &HeatmapGrid| {
            g.lowest_ratio().filter(|low| *low < MIN_EXPECTED_RATIO).unwrap_or(MIN_EXPECTED_RATIO)
        };
        let compared = |g: &HeatmapGrid| matches!(g.reference, GridReference::Expectation(..));
        (a_blame.is_empty().cmp(&b_blame.is_empty()))
            .then(compared(b).cmp(&compared(a)))
            .then(lowest(a).total_cmp(&lowest(b)))
            .then((a.missing_count() == 0).cmp(&(b.missing_count() == 0)))
            .then((a.shape != GridShape::Pairs).cmp(&(b.shape != GridShape::Pairs)))
    });
    let mut figures = Vec::new();
    let mut undrawn = BTreeSet::new();
    for (grid, blame) in wanted {
        if figures.len() == most || budget.is_spent() {
            undrawn.insert(test_name(grid));
            continue;
        }
        figures.push(budget.draw(grid, blame)?);
    }
    let mut left_out = Vec::new();
    if 0 < quiet {
        left_out.push(format!(
            "{} inside single nodes without low or missing cells are not drawn; the overview has \
             a cell for each GPU.",
            count_noun(quiet, "matrix", "matrices")
        ));
    }
    if !undrawn.is_empty() {
        let names: Vec<String> = undrawn.into_iter().collect();
        left_out.push(format!("Not drawn: {}.", list_names(&names, 24)));
    }
    let compared = |g: &&&HeatmapGrid| matches!(g.reference, GridReference::Expectation(..));
    let (tests, others): (Vec<&HeatmapGrid>, Vec<&HeatmapGrid>) =
        grids.iter().partition(|g| compared(g));
    let rows = |grids: &[&HeatmapGrid]| grids.iter().map(|g| summarize_test(g)).collect();
    let (tests, others) = (rows(&tests), rows(&others));
    Ok(HtmlDomain { name, anchor, tests, others, figures, left_out })
}

fn summarize_test(grid: &HeatmapGrid) -> HtmlTestSummary {
    let parts: Vec<&HeatmapGrid> =
        if grid.inside.is_empty() { vec![grid] } else { grid.inside.iter().collect() };
    let mut values: Vec<f64> = parts.iter().flat_map(|g| g.values()).collect();
    let median = sort_median(&mut values);
    HtmlTestSummary {
        test: test_name(grid),
        cells: values.len(),
        missing: parts.iter().map(|g| g.missing_count()).sum(),
        lowest: values.first().copied(),
        median,
        highest: values.last().copied(),
        unit: grid.unit,
        expected: match grid.reference {
            GridReference::Expectation(low, high) => Some((low, high)),
            GridReference::Median(_) | GridReference::Nothing => None,
        },
        lowest_ratio: parts.iter().filter_map(|g| g.lowest_ratio()).reduce(f64::min),
    }
}
