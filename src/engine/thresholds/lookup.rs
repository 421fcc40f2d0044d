//! Finds the expectation that applies to a measurement.
//!
//! A number applies to the sizes, ranks, algorithm and transport that it was stated for. These
//! functions are the only way from a measurement to a number: they take the conditions of the
//! measurement, and outside of an expectation's domain they return the reason instead of a number.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::{CollectiveExpectation, Expectation, Platform, testcase};

/// The conditions of a copy or message measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasurementConditions<'m> {
    testcase: &'m str,
    bytes: Option<u64>,
}

impl<'m> MeasurementConditions<'m> {
    /// A test at a size, if the output reports one, else at its tool's default.
    pub fn new(testcase: &'m str, bytes: Option<u64>) -> Self {
        Self { testcase, bytes }
    }

    /// A test at its tool's default size.
    pub fn with_default_size(testcase: &'m str) -> Self {
        Self::new(testcase, None)
    }
}

/// The NICs of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NicPorts {
    /// How many ports each node has.
    pub count: u32,
    /// The rate of one port, in Gb/s.
    pub gigabits: f64,
}

/// The path that a run was forced to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForcedPath {
    /// The library's default path.
    No,
    /// Copies between GPUs, without reduction in the switches.
    Peer,
    /// The scale-out network.
    Network,
}

/// The conditions of a collective measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectiveConditions<'m> {
    /// The test program.
    pub testcase: &'m str,
    /// The number of ranks, if the output reports it.
    pub ranks: Option<u32>,
    /// The message size, in bytes.
    pub bytes: u64,
    /// The path it was forced to take.
    pub forced_path: ForcedPath,
    /// The algorithms that the library reported.
    pub algorithms: BTreeSet<&'m str>,
    /// The NICs that it may have used, if known.
    pub nics: Option<NicPorts>,
}

/// The transport behind an expectation of a collective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CollectiveTransport {
    /// NVLink between GPUs.
    Nvlink,
    /// PCIe inside a node.
    Pcie,
    /// The NICs of every node; `None` if the expectation does not name them.
    Network(Option<NicPorts>),
}

impl CollectiveExpectation {
    /// Parses the transport: `NVLink`, `PCIe`, or NICs such as `IB 8 x 400 Gb/s`.
    pub fn parsed_transport(&self) -> CollectiveTransport {
        match self.transport.to_ascii_lowercase().as_str() {
            "nvlink" => CollectiveTransport::Nvlink,
            "pcie" => CollectiveTransport::Pcie,
            other => CollectiveTransport::Network(parse_nics(other)),
        }
    }

    fn allows_nics(&self, nics: Option<NicPorts>) -> bool {
        match self.parsed_transport() {
            CollectiveTransport::Nvlink | CollectiveTransport::Pcie => true,
            CollectiveTransport::Network(None) => true,
            CollectiveTransport::Network(stated) => stated == nics,
        }
    }
}

/// Parses `ib 8 x 400 gb/s`.
fn parse_nics(transport: &str) -> Option<NicPorts> {
    let tokens: Vec<&str> = transport.split_whitespace().collect();
    let at = tokens.iter().position(|token| *token == "x")?;
    let count = tokens.get(at.checked_sub(1)?)?.parse().ok()?;
    let gigabits = tokens.get(at + 1)?.parse().ok()?;
    (tokens.get(at + 2) == Some(&"gb/s")).then_some(NicPorts { count, gigabits })
}

/// Why a measurement has no reference.
#[derive(Clone, Debug, PartialEq)]
pub enum LookupMiss {
    /// The platform has no expectation for the test.
    NotExpected {
        /// Name of the platform.
        platform: String,
        /// Name of the test.
        testcase: String,
    },
    /// The expectation applies only to larger messages or buffers.
    TooSmall {
        /// Name of the platform.
        platform: String,
        /// Name of the test.
        testcase: String,
        /// The measured size.
        bytes: u64,
        /// The smallest size with an expectation.
        least: u64,
    },
    /// The output does not report the number of ranks.
    RanksUnknown,
    /// The expectation applies only to other numbers of ranks.
    OtherRanks {
        /// Name of the platform.
        platform: String,
        /// Name of the test.
        testcase: String,
        /// The measured number of ranks.
        ranks: u32,
    },
    /// The expectation applies to other NICs, or the nodes' NICs are unknown.
    OtherNics {
        /// The transport of the expectation.
        stated: String,
        /// The NICs of the nodes.
        nics: Option<NicPorts>,
    },
    /// The expectation applies to another path or algorithm than the run used.
    OtherPath {
        /// Name of the platform.
        platform: String,
        /// Name of the test.
        testcase: String,
    },
}

impl fmt::Display for LookupMiss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotExpected { platform, testcase } => {
                write!(f, "{platform} has no expectation for {testcase}")
            }
            Self::TooSmall { platform, testcase, bytes, least } => write!(
                f,
                "{testcase} at {} has no reference: the expectation of {platform} applies from {} \
                 up",
                format_size(*bytes),
                format_size(*least)
            ),
            Self::RanksUnknown => f.write_str("the output does not report the number of ranks"),
            Self::OtherRanks { platform, testcase, ranks } => {
                write!(f, "{platform} has no expectation for {testcase} with {ranks} ranks")
            }
            Self::OtherNics { stated, nics: None } => write!(
                f,
                "the expectation applies to {stated}, and the NICs of these nodes are unknown: set \
                 `nic` and every [[rail]] in claims.toml"
            ),
            Self::OtherNics { stated, nics: Some(nics) } => write!(
                f,
                "the expectation applies to {stated}, and these nodes have {} x {} Gb/s",
                nics.count, nics.gigabits
            ),
            Self::OtherPath { platform, testcase } => write!(
                f,
                "{platform} has no expectation for {testcase} over the path, or with the \
                 algorithm, of this run"
            ),
        }
    }
}

/// Bytes in the largest binary unit that divides them.
pub fn format_size(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes.trailing_zeros() >= shift && (bytes >> shift) > 0 {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} B")
}

/// nccl-tests cuts each rank's part to a multiple of this size, in bytes.
const CHUNK_ALIGNMENT: u64 = 16;

impl Platform {
    /// The expectation for this measurement, or why it has no reference.
    ///
    /// Behind a non-blocking switch, disjoint pairs do not affect each other, so concurrent pairs
    /// must reach the rate of a single pair. For bridges and PCIe the concurrent rate is not known
    /// for any platform.
    pub fn expectation(
        &self,
        measured: &MeasurementConditions<'_>,
    ) -> Result<&Expectation, LookupMiss> {
        let Some(stated) = self.find_expectation(measured.testcase) else {
            let testcase = measured.testcase.to_owned();
            return Err(LookupMiss::NotExpected { platform: self.name.clone(), testcase });
        };
        match measured.bytes {
            Some(bytes) if bytes < stated.min_bytes => Err(LookupMiss::TooSmall {
                platform: self.name.clone(),
                testcase: measured.testcase.to_owned(),
                bytes,
                least: stated.min_bytes,
            }),
            _ => Ok(stated),
        }
    }

    /// The expectation of a test, independent of size.
    fn find_expectation(&self, testcase: &str) -> Option<&Expectation> {
        self.expectations.get(testcase).or_else(|| {
            let alone = testcase::single_pair_test(testcase).filter(|_| self.is_switched())?;
            self.expectations.get(&alone)
        })
    }

    /// The smallest message or buffer that measures a rate in this test: as stated, else the
    /// default for its tool.
    pub fn min_bytes(platform: Option<&Self>, testcase: &str) -> u64 {
        let stated = platform.and_then(|platform| platform.find_expectation(testcase));
        stated.map_or_else(|| testcase::min_bytes(testcase), |stated| stated.min_bytes)
    }

    /// The expectations for this collective, one per algorithm and transport: among those for
    /// smaller messages, the one for the largest. Or why it has no reference.
    pub fn collective_expectations(
        &self,
        run: &CollectiveConditions<'_>,
    ) -> Result<Vec<&CollectiveExpectation>, LookupMiss> {
        let Some(ranks) = run.ranks else { return Err(LookupMiss::RanksUnknown) };
        let (platform, testcase) = (|| self.name.clone(), || run.testcase.to_owned());
        let of_test = self.collectives.iter().filter(|e| e.testcase == run.testcase);
        let mut left: Vec<&CollectiveExpectation> = of_test.collect();
        if left.is_empty() {
            return Err(LookupMiss::NotExpected { platform: platform(), testcase: testcase() });
        }
        left.retain(|e| (e.min_ranks..=e.max_ranks).contains(&ranks));
        if left.is_empty() {
            let (platform, testcase) = (platform(), testcase());
            return Err(LookupMiss::OtherRanks { platform, testcase, ranks });
        }
        left.retain(|e| matches_path(e, run));
        let Some(first) = left.first() else {
            return Err(LookupMiss::OtherPath { platform: platform(), testcase: testcase() });
        };
        let stated = first.transport.clone();
        left.retain(|e| e.allows_nics(run.nics));
        let Some(least) = left.iter().map(|e| e.min_bytes).min() else {
            return Err(LookupMiss::OtherNics { stated, nics: run.nics });
        };
        // A size is cut so that each rank's part is a multiple of 16 bytes.
        let bytes =
            run.bytes.saturating_add((CHUNK_ALIGNMENT * u64::from(ranks)).saturating_sub(1));
        let mut ways: BTreeMap<(&str, &str), &CollectiveExpectation> = BTreeMap::new();
        for expected in left.into_iter().filter(|e| e.min_bytes <= bytes) {
            let way = ways.entry((&expected.algorithm, &expected.transport)).or_insert(expected);
            if way.min_bytes < expected.min_bytes {
                *way = expected;
            }
        }
        if ways.is_empty() {
            let (platform, testcase) = (platform(), testcase());
            return Err(LookupMiss::TooSmall { platform, testcase, bytes: run.bytes, least });
        }
        Ok(ways.into_values().collect())
    }
}

/// Whether a run may have used the path of an expectation.
fn matches_path(expected: &CollectiveExpectation, run: &CollectiveConditions<'_>) -> bool {
    let reduced = expected.algorithm.to_ascii_uppercase().starts_with("NVLS");
    let is_network = matches!(expected.parsed_transport(), CollectiveTransport::Network(_));
    let steered = match run.forced_path {
        ForcedPath::No => true,
        ForcedPath::Peer => expected.parsed_transport() == CollectiveTransport::Nvlink && !reduced,
        ForcedPath::Network => is_network,
    };
    // Over a network, another algorithm moves other amounts of data, so its rate is not comparable.
    let named = run.algorithms.iter().any(|name| name.eq_ignore_ascii_case(&expected.algorithm));
    steered && (!is_network || run.algorithms.is_empty() || named)
}

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
