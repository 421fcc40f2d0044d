//! The references of a finding's number as text: the platform's number, the median of its peers, or
//! the part's own history. Every form of a report takes its text from here, so that each ratio
//! names its reference.

use std::fmt::Write as _;

use super::grid::{GridReference, HeatmapGrid, relate_to_median};
use super::plain_text::format_quantity;
use model::text::format_percent;
use model::verdict::{Evidence, Finding, RatioReference};

/// All references of a finding's number, the platform's first, each with the ratio to it.
pub(super) fn list_references(
    finding: &Finding,
) -> Vec<(RatioReference, Option<f64>, Option<f64>)> {
    let all = [
        (RatioReference::Expected, finding.expected, finding.ratio),
        (RatioReference::Peers, finding.peers, finding.ratio_to_peers),
        (RatioReference::Own, finding.own, finding.ratio_to_own),
    ];
    let is_known =
        |(_, value, ratio): &(_, Option<f64>, Option<f64>)| value.is_some() || ratio.is_some();
    all.into_iter().filter(is_known).collect()
}

/// [`list_references`] as lines.
pub(super) fn reference_lines(finding: &Finding) -> Vec<String> {
    list_references(finding).iter().map(|one| format_reference(finding, one)).collect()
}

/// All references except the platform's number, as one sentence.
pub(super) fn describe_other_references(finding: &Finding) -> Option<String> {
    let all = list_references(finding);
    let others = all.iter().filter(|(of, ..)| *of != RatioReference::Expected);
    let lines: Vec<String> = others.map(|one| format_reference(finding, one)).collect();
    (!lines.is_empty()).then(|| lines.join("; "))
}

fn format_reference(
    finding: &Finding,
    (of, value, ratio): &(RatioReference, Option<f64>, Option<f64>),
) -> String {
    let value = value.map(|value| format!(" {}", format_quantity(value, finding.unit)));
    let ratio = ratio.map(|ratio| format!(", ratio {ratio:.3} of it"));
    format!("{}{}{}", of.prefix(), value.unwrap_or_default(), ratio.unwrap_or_default())
}

/// All references in columns, for display below the measured number.
pub(super) fn reference_columns(finding: &Finding) -> String {
    let quantity = |v: Option<f64>| {
        v.map_or_else(|| "no number".to_owned(), |v| format_quantity(v, finding.unit))
    };
    let mut out = format!("measured    {}\n", quantity(finding.measured));
    let _ = writeln!(out, "expected    {}", quantity(finding.expected));
    for (of, value, ratio) in list_references(finding) {
        if of != RatioReference::Expected {
            let _ = writeln!(out, "{:<11} {}", of.prefix(), quantity(value));
        }
        let Some(ratio) = ratio else { continue };
        let distance = match ratio - 1.0 {
            d if d < 0.0 => format!("{} below", format_percent(-d)),
            d => format!("{} above", format_percent(d)),
        };
        let _ = writeln!(out, "ratio       {ratio:.3} of {}, {distance}", of.label());
    }
    out
}

/// Compares the grid with the median of the peers that findings name for this test, if the platform
/// has no expectation.
pub(super) fn with_peer_reference(mut grid: HeatmapGrid, findings: &[Finding]) -> HeatmapGrid {
    let is_of = |found: &&Finding| {
        let rests_on = |it: &Evidence| it.testcase.as_deref() == Some(&*grid.testcase);
        found.expected.is_none()
            && found.unit == Some(grid.unit)
            && found.locus.rail == grid.rail
            && (grid.domain.is_none() || found.locus.domain == grid.domain)
            && found.evidence.iter().any(rests_on)
    };
    let mut named = findings.iter().filter(is_of).filter_map(|found| found.peers);
    let Some(peers) = named.next().filter(|first| named.all(|other| other == *first)) else {
        return grid;
    };
    let unit = grid.unit;
    for it in std::iter::once(&mut grid.reference)
        .chain(grid.inside.iter_mut().map(|it| &mut it.reference))
    {
        if matches!(it, GridReference::Median(_)) {
            *it = GridReference::Median(peers);
        }
    }
    relate_to_median(&mut grid.spots, grid.reference, unit);
    grid.inside.iter_mut().for_each(|it| relate_to_median(&mut it.spots, it.reference, unit));
    grid
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;
    use model::unit::Unit;

    #[test]
    fn a_grid_that_nothing_is_expected_of_is_compared_with_what_the_finding_was() {
        let mut run = fixture::rack();
        run.cells.iter_mut().for_each(|cell| (cell.expected, cell.ratio) = (None, None));
        let test = run.cells[0].testcase.clone();
        let finding = &mut run.verdicts.findings[0];
        (finding.expected, finding.ratio, finding.peers) = (None, None, Some(750.0));
        finding.evidence[0].testcase = Some(test.to_string());
        let grids = crate::report::grid::build_grids(&run);
        let one = grids.iter().find(|grid| grid.testcase == test).expect("the test");
        assert_eq!(one.reference, GridReference::Median(750.0));
        let spot = one.spots.iter().flatten().find(|spot| spot.value.is_some()).expect("a number");
        let (value, ratio) = (spot.value.expect("one"), spot.ratio.expect("one"));
        assert!((ratio - value / 750.0).abs() < 1e-9, "{value} {ratio}");
    }

    #[test]
    fn every_number_is_known_with_what_it_is() {
        let mut finding = fixture::rack().verdicts.findings[0].clone();
        (finding.unit, finding.expected, finding.ratio) =
            (Some(Unit::GigabytesPerSecond), Some(800.0), Some(0.9));
        (finding.peers, finding.ratio_to_peers) = (Some(750.0), Some(0.96));
        (finding.own, finding.ratio_to_own) = (None, Some(0.98));
        let columns = reference_columns(&finding);
        assert!(
            columns.contains("ratio       0.960 of the peers' median, 4.0 % below\n"),
            "{columns}"
        );
        assert_eq!(
            reference_lines(&finding),
            [
                "expected 800.0 GB/s, ratio 0.900 of it",
                "peers' median 750.0 GB/s, ratio 0.960 of it",
                "own earlier level, ratio 0.980 of it",
            ]
        );
    }
}
