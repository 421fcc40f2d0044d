//! The level of each test over a whole run: numbers that a site may state as its own expectations
//! after an operator has checked that they are not faults.
//!
//! Judges no part and blames none. The values are medians over all readings, so a few bad parts do
//! not move them; a fault that all parts share does, which is why an operator decides.

use std::collections::{BTreeMap, BTreeSet};

use super::{collective, fabric};
use crate::thresholds::site_file::{SiteCollective, SiteExpectation};
use crate::thresholds::{
    CollectiveExpectation, Expectation, MeasurementConditions, Platform, TestPath,
};
use model::id::{DomainName, NodeName};
use model::measured_cell::MeasuredCell;
use model::stats;
use model::tool_recording::{RecordingScope, ToolRecording};

/// Fewer nodes do not define a platform's level.
pub const FEWEST_NODES: usize = 3;
/// Fewer readings do not define a useful median.
pub const FEWEST_NUMBERS: usize = 8;
/// The same for collective runs, where a node contributes one number.
pub const FEWEST_RUNS: usize = 4;

/// The smallest tolerance to state: it must cover day-to-day differences between healthy machines.
const SMALLEST_TOLERANCE: f64 = 0.02;
/// The tolerance in standard deviations of single readings.
const DEVIATIONS: f64 = 3.0;

/// The level of one test.
#[derive(Clone, Debug, PartialEq)]
pub struct SiteTestLevel<'p> {
    /// Its current expectation, whose unit applies to all numbers here.
    pub expected: &'p Expectation,
    /// The median of all numbers.
    pub value: f64,
    /// Their robust standard deviation, as a share of the median.
    pub scatter: f64,
    /// The number of readings.
    pub numbers: usize,
    /// The number of nodes.
    pub nodes: usize,
    /// The tolerance to state: derived from the scatter, at least 2 %, at most the one in force.
    pub tolerance: f64,
    /// The floor to state: the same share of the level as before.
    pub floor: Option<f64>,
    /// The number of links that, if missing on every GPU, would give the same level ("1 of 18
    /// links"), if a whole number fits.
    pub links: Option<String>,
}

/// The level of one collective.
#[derive(Clone, Debug, PartialEq)]
pub struct SiteCollectiveLevel<'p> {
    /// Its current expectation.
    pub expected: &'p CollectiveExpectation,
    /// The median bus bandwidth of all runs, in GB/s.
    pub busbw: f64,
    /// Their robust standard deviation, as a share of the median.
    pub scatter: f64,
    /// The number of runs.
    pub numbers: usize,
    /// The number of nodes.
    pub nodes: usize,
    /// The tolerance to state.
    pub tolerance: f64,
    /// The floor to state.
    pub floor: Option<f64>,
}

impl SiteTestLevel<'_> {
    /// Converts it to a site's stated expectation.
    pub fn to_stated(
        &self,
        testcase: &str,
        source: String,
        remarks: Vec<String>,
    ) -> SiteExpectation {
        SiteExpectation {
            testcase: testcase.to_owned(),
            value: self.value,
            unit: self.expected.unit,
            min_bytes: self.expected.min_bytes,
            tolerance: self.tolerance,
            floor: self.floor,
            source,
            remarks,
        }
    }
}

impl<'p> SiteCollectiveLevel<'p> {
    /// Converts it to a site's stated expectation.
    pub fn to_stated(&self, source: String) -> SiteCollective<'p> {
        SiteCollective {
            conditions: self.expected,
            busbw: self.busbw,
            tolerance: self.tolerance,
            floor: self.floor,
            source,
        }
    }
}

/// Why a test has no level to state.
#[derive(Clone, Debug, PartialEq)]
pub enum SiteLevelRefusal {
    /// Too few nodes or numbers.
    TooFew {
        /// Number of nodes with readings.
        nodes: usize,
        /// Number of readings.
        numbers: usize,
    },
    /// The level lies below the floor: that indicates a fault.
    BelowFloor {
        /// The measured level.
        value: f64,
        /// The floor in force.
        floor: f64,
    },
}

impl std::fmt::Display for SiteLevelRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooFew { nodes, numbers } => write!(
                f,
                "{numbers} readings on {nodes} nodes; at least {FEWEST_NUMBERS} ({FEWEST_RUNS} \
                 for a collective) on {FEWEST_NODES} nodes are required"
            ),
            Self::BelowFloor { value, floor } => {
                write!(f, "{value:.2} lies below the floor {floor}, which indicates a fault")
            }
        }
    }
}

/// The level of every test of a platform with an expectation, by test. `is_of` selects the domains
/// of that platform.
pub fn test_levels<'p>(
    platform: &'p Platform,
    cells: &[MeasuredCell],
    is_of: impl Fn(Option<&DomainName>) -> bool,
) -> BTreeMap<String, Result<SiteTestLevel<'p>, SiteLevelRefusal>> {
    let expected_of =
        |test: &str| platform.expectation(&MeasurementConditions::with_default_size(test)).ok();
    let mut read: BTreeMap<&str, (Vec<f64>, BTreeSet<&NodeName>)> = BTreeMap::new();
    for cell in cells.iter().filter(|cell| is_of(cell.domain.as_ref())) {
        let Some(expected) = expected_of(&cell.testcase) else { continue };
        let number = cell.value.filter(|value| value.is_finite() && 0.0 < *value);
        let (Some(number), true) = (number, expected.value.is_some()) else { continue };
        // Readings without a reference, such as small messages, do not define a level.
        let is_compared = cell.expected.is_some() || !cell.unit.is_bandwidth();
        if expected.unit != cell.unit || !is_compared {
            continue;
        }
        let (numbers, nodes) = read.entry(&cell.testcase).or_default();
        numbers.push(number);
        nodes.extend(cell.src_node.iter().chain(&cell.dst_node));
    }
    let of = |(test, (mut numbers, nodes)): (&str, (Vec<f64>, BTreeSet<&NodeName>))| {
        let expected = expected_of(test)?;
        Some((test.to_owned(), test_level(platform, expected, &mut numbers, nodes.len())))
    };
    read.into_iter().filter_map(of).collect()
}

fn test_level<'p>(
    platform: &Platform,
    expected: &'p Expectation,
    numbers: &mut [f64],
    nodes: usize,
) -> Result<SiteTestLevel<'p>, SiteLevelRefusal> {
    let few = SiteLevelRefusal::TooFew { nodes, numbers: numbers.len() };
    if nodes < FEWEST_NODES || numbers.len() < FEWEST_NUMBERS {
        return Err(few);
    }
    let Some(value) = stats::median(numbers) else { return Err(few) };
    if let Some(floor) =
        expected.floor.filter(|floor| expected.unit.is_bandwidth() && value < *floor)
    {
        return Err(SiteLevelRefusal::BelowFloor { value, floor });
    }
    let (scatter, tolerance) = scatter_and_tolerance(numbers, value, expected.tolerance);
    let is_nvlink = expected.path == TestPath::Nvlink;
    let before = expected.value.filter(|_| is_nvlink);
    let floor = expected.floor.zip(expected.value).map(|(floor, level)| value * (floor / level));
    let links = before.and_then(|before| fabric::missing_links(platform, value / before));
    Ok(SiteTestLevel {
        expected,
        value,
        scatter,
        numbers: numbers.len(),
        nodes,
        tolerance,
        floor,
        links,
    })
}

/// The scatter of numbers around their median, and the tolerance that follows from it.
fn scatter_and_tolerance(numbers: &[f64], value: f64, before: f64) -> (f64, f64) {
    let scatter = stats::spread(numbers, value).unwrap_or(0.0) / value;
    // Rounded up to half a per cent for readability.
    let wanted = (scatter * DEVIATIONS * 200.0).ceil() / 200.0;
    (scatter, wanted.clamp(SMALLEST_TOLERANCE, before.max(SMALLEST_TOLERANCE)))
}

/// The level of a platform's collectives in these outputs, for each expectation that applies: the
/// one of the algorithm that the output names, or the only match.
pub fn collective_levels<'p>(
    platform: &'p Platform,
    recordings: &[&ToolRecording],
) -> Vec<Result<SiteCollectiveLevel<'p>, (&'p CollectiveExpectation, SiteLevelRefusal)>> {
    let mut read: Vec<(&CollectiveExpectation, Vec<f64>, BTreeSet<&NodeName>)> = Vec::new();
    for recording in recordings {
        let named = recording.parsed.facts.parameters.get("algorithms");
        for ran in collective::collect_results(recording) {
            let conditions = collective::build_conditions(&ran, BTreeSet::new(), None);
            let Ok(fits) = platform.collective_expectations(&conditions) else { continue };
            let is_named = |e: &&&CollectiveExpectation| {
                let mut names = named.into_iter().flat_map(|list| list.split(','));
                names.any(|name| name.eq_ignore_ascii_case(&e.algorithm))
            };
            let one = match fits.as_slice() {
                [only] => Some(only),
                several => several.iter().find(is_named),
            };
            let Some(expected) = one.filter(|_| ran.path.is_none()) else { continue };
            let at = read.iter().position(|(known, ..)| known == expected).unwrap_or_else(|| {
                read.push((*expected, Vec::new(), BTreeSet::new()));
                read.len() - 1
            });
            read[at].1.push(ran.busbw);
            match &recording.scope {
                RecordingScope::Node(node) => read[at].2.extend([node]),
                _ => read[at].2.extend(&recording.nodes),
            }
        }
    }
    let of =
        |(expected, mut numbers, nodes): (&'p CollectiveExpectation, Vec<f64>, BTreeSet<_>)| {
            let few = SiteLevelRefusal::TooFew { nodes: nodes.len(), numbers: numbers.len() };
            let enough = FEWEST_RUNS <= numbers.len() && FEWEST_NODES <= nodes.len();
            let busbw = stats::median(&mut numbers).filter(|_| enough).ok_or((expected, few))?;
            if let Some(floor) = expected.floor.filter(|floor| busbw < *floor) {
                return Err((expected, SiteLevelRefusal::BelowFloor { value: busbw, floor }));
            }
            let (scatter, tolerance) = scatter_and_tolerance(&numbers, busbw, expected.tolerance);
            let floor = expected.floor.map(|floor| busbw * (floor / expected.busbw));
            let (numbers, nodes) = (numbers.len(), nodes.len());
            Ok(SiteCollectiveLevel { expected, busbw, scatter, numbers, nodes, tolerance, floor })
        };
    read.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thresholds::builtin;
    use model::unit::Unit;
    use model::verdict::Outcome;

    const TEST: &str = "multinode_device_to_device_memcpy_read_ce";

    fn platform() -> &'static Platform {
        builtin::builtin_catalogue().platform("gb200-nvl72").expect("a shipped platform")
    }

    /// Cells of a number of nodes, each with the next, some with the given value.
    fn cells(nodes: usize, value: impl Fn(usize) -> f64) -> Vec<MeasuredCell> {
        let node = |at: usize| Some(NodeName::from(format!("n{:02}", at % nodes)));
        let cell = |at: usize| MeasuredCell {
            domain: Some("d".into()),
            stage: None,
            testcase: TEST.into(),
            src_node: node(at),
            src_gpu: Some(0),
            dst_node: node(at + 1),
            dst_gpu: Some(0),
            rail: None,
            reading: 0,
            value: Some(value(at)),
            unit: Unit::GigabytesPerSecond,
            expected: Some(768.0),
            ratio: None,
            outcome: Outcome::Unknown,
        };
        (0..nodes * 4).map(cell).collect()
    }

    fn level_of(cells: &[MeasuredCell]) -> Result<SiteTestLevel<'static>, SiteLevelRefusal> {
        test_levels(platform(), cells, |_| true).remove(TEST).expect("it was read")
    }

    #[test]
    fn the_level_is_the_median_and_a_few_bad_nodes_do_not_move_it() {
        let steady = |at: usize| 750.0 + (at % 5) as f64;
        let level = level_of(&cells(18, steady)).expect("a level");
        assert_eq!((level.value, level.nodes, level.numbers), (752.0, 18, 72));
        let with_bad_nodes =
            level_of(&cells(18, |at| if at % 9 == 0 { 400.0 } else { steady(at) }));
        assert!((with_bad_nodes.expect("a level").value - level.value).abs() < 1.5);
        // The fault threshold stays at the same share of the stated level.
        let before =
            level.expected.floor.expect("a floor") / level.expected.value.expect("a level");
        assert!((level.floor.expect("a floor") / level.value - before).abs() < 1e-9);
        // Steady numbers would allow less than 2 %, the smallest stated tolerance.
        assert_eq!(level.tolerance, 0.02);
    }

    #[test]
    fn scatter_widens_the_tolerance_up_to_the_one_in_force() {
        let level = level_of(&cells(18, |at| 750.0 + 7.5 * (at % 5) as f64)).expect("a level");
        let before = platform()
            .expectation(&MeasurementConditions::with_default_size(TEST))
            .expect("a shipped platform")
            .tolerance;
        assert!(0.02 < level.tolerance && level.tolerance <= before, "{level:?}");
        let scattered = level_of(&cells(18, |at| 700.0 + 40.0 * (at % 5) as f64)).expect("a level");
        assert_eq!(scattered.tolerance, before);
    }

    #[test]
    fn a_level_that_fits_a_lost_link_names_it() {
        let expected = platform()
            .expectation(&MeasurementConditions::with_default_size(TEST))
            .ok()
            .and_then(|e| e.value)
            .expect("a level");
        let lost = level_of(&cells(18, |_| expected * 17.0 / 18.0)).expect("a level");
        assert_eq!(lost.links.as_deref(), Some("1 of 18 links"));
        assert_eq!(level_of(&cells(18, |_| expected)).expect("a level").links, None);
    }

    #[test]
    fn too_few_nodes_and_levels_below_the_floor_are_refused() {
        let few = level_of(&cells(2, |_| 750.0));
        assert_eq!(few, Err(SiteLevelRefusal::TooFew { nodes: 2, numbers: 8 }));
        let broken = level_of(&cells(18, |_| 300.0)).expect_err("below the floor");
        assert!(broken.to_string().contains("below the floor"), "{broken}");
    }

    #[test]
    fn numbers_of_other_domains_units_and_tests_are_left_out() {
        let all = cells(18, |_| 750.0);
        assert!(test_levels(platform(), &all, |domain| domain.is_none()).is_empty());
        let in_bits: Vec<MeasuredCell> = all
            .iter()
            .map(|cell| MeasuredCell { unit: Unit::GigabitsPerSecond, ..cell.clone() })
            .collect();
        assert!(test_levels(platform(), &in_bits, |_| true).is_empty());
        let unknown: Vec<MeasuredCell> = all
            .iter()
            .map(|cell| MeasuredCell { testcase: "no_such_test".into(), ..cell.clone() })
            .collect();
        assert!(test_levels(platform(), &unknown, |_| true).is_empty());
    }
}
