//! Which expectation holds for what was measured.
//!
//! A number holds for the sizes, ranks, algorithm and transport that it was
//! stated for. These functions are the only way from a measurement to a number:
//! they take the conditions of the measurement, and outside of an expectation's
//! domain they answer with the reason instead of a number.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::{CollectiveExpectation, Expectation, Platform, testcase};

/// Under which conditions a copy or a message was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasurementConditions<'m> {
    testcase: &'m str,
    bytes: Option<u64>,
}

impl<'m> MeasurementConditions<'m> {
    /// A test at a size, where the output says one; else at the default of its tool.
    pub fn new(testcase: &'m str, bytes: Option<u64>) -> Self {
        Self { testcase, bytes }
    }

    /// A test at the default size of its tool.
    pub fn with_default_size(testcase: &'m str) -> Self {
        Self::new(testcase, None)
    }
}

/// The NICs of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NicPorts {
    /// How many ports each node has.
    pub count: u32,
    /// What one carries, in Gb/s.
    pub gigabits: f64,
}

/// The path that a run was made to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForcedPath {
    /// The one that the library takes by itself.
    No,
    /// Copies between GPUs, without reduction in the switches.
    Peer,
    /// The network.
    Network,
}

/// Under which conditions a collective was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectiveConditions<'m> {
    /// The program.
    pub testcase: &'m str,
    /// How many ranks took part, where the output says so.
    pub ranks: Option<u32>,
    /// The message.
    pub bytes: u64,
    /// The path it was made to take.
    pub forced_path: ForcedPath,
    /// The algorithms that the library named.
    pub algorithms: BTreeSet<&'m str>,
    /// The NICs that it may have used, where they are known.
    pub nics: Option<NicPorts>,
}

/// What an expectation of a collective was seen to run over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CollectiveTransport {
    /// NVLink.
    Nvlink,
    /// PCIe inside a node.
    Pcie,
    /// The NICs of every node; `None` where it does not say which.
    Network(Option<NicPorts>),
}

impl CollectiveExpectation {
    /// What it was seen to run over: `NVLink`, `PCIe`, or NICs such as `IB 8 x 400 Gb/s`.
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

/// `ib 8 x 400 gb/s`.
fn parse_nics(transport: &str) -> Option<NicPorts> {
    let words: Vec<&str> = transport.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "x")?;
    let count = words.get(at.checked_sub(1)?)?.parse().ok()?;
    let gigabits = words.get(at + 1)?.parse().ok()?;
    (words.get(at + 2) == Some(&"gb/s")).then_some(NicPorts { count, gigabits })
}

/// Why nothing is compared with a measurement.
#[derive(Clone, Debug, PartialEq)]
pub enum LookupMiss {
    /// The platform expects nothing of the test.
    NotExpected {
        /// The platform.
        platform: String,
        /// The test.
        testcase: String,
    },
    /// It is expected of larger messages or buffers only.
    TooSmall {
        /// The platform.
        platform: String,
        /// The test.
        testcase: String,
        /// What was measured.
        bytes: u64,
        /// The smallest size that something is expected of.
        least: u64,
    },
    /// The output does not say how many ranks took part.
    RanksUnknown,
    /// It is expected of other numbers of ranks only.
    OtherRanks {
        /// The platform.
        platform: String,
        /// The test.
        testcase: String,
        /// What was measured.
        ranks: u32,
    },
    /// It is expected over other NICs, or those of the nodes are not known.
    OtherNics {
        /// The transport that something is expected of.
        stated: String,
        /// The NICs of the nodes.
        nics: Option<NicPorts>,
    },
    /// It is expected of another path or algorithm than the run took.
    OtherPath {
        /// The platform.
        platform: String,
        /// The test.
        testcase: String,
    },
}

impl fmt::Display for LookupMiss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotExpected { platform, testcase } => {
                write!(f, "nothing is expected of {testcase} on {platform}")
            }
            Self::TooSmall { platform, testcase, bytes, least } => write!(
                f,
                "{testcase} at {} was compared with nothing: what {platform} states holds from {} on",
                format_size(*bytes),
                format_size(*least)
            ),
            Self::RanksUnknown => f.write_str("the output does not say how many ranks took part"),
            Self::OtherRanks { platform, testcase, ranks } => {
                write!(f, "nothing is expected of {testcase} with {ranks} ranks on {platform}")
            }
            Self::OtherNics { stated, nics: None } => write!(
                f,
                "what is expected holds over {stated}, and the NICs of these nodes are not known: `nic` and every \
                 [[rail]] in claims.toml say them"
            ),
            Self::OtherNics { stated, nics: Some(nics) } => write!(
                f,
                "what is expected holds over {stated}, and these nodes have {} x {} Gb/s",
                nics.count, nics.gigabits
            ),
            Self::OtherPath { platform, testcase } => write!(
                f,
                "nothing is expected of {testcase} on {platform} over the path, or with the algorithm, of this run"
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

/// What nccl-tests cuts each rank's part to a multiple of, in bytes.
const CHUNK_ALIGNMENT: u64 = 16;

impl Platform {
    /// What this measurement must show, or why nothing is compared with it.
    ///
    /// Disjoint pairs do not notice each other behind a switch that does not block,
    /// so that all at once must show what a pair alone shows. What is left of it
    /// over bridges and PCIe is known of no platform.
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

    /// What is stated of a test, whatever its size.
    fn find_expectation(&self, testcase: &str) -> Option<&Expectation> {
        self.expectations.get(testcase).or_else(|| {
            let alone = testcase::single_pair_test(testcase).filter(|_| self.is_switched())?;
            self.expectations.get(&alone)
        })
    }

    /// The smallest message or buffer whose rate is one of this test: as stated, else
    /// what is usual for its tool.
    pub fn min_bytes(platform: Option<&Self>, testcase: &str) -> u64 {
        let stated = platform.and_then(|platform| platform.find_expectation(testcase));
        stated.map_or_else(|| testcase::min_bytes(testcase), |stated| stated.min_bytes)
    }

    /// What this collective must show, one expectation per algorithm and transport: of
    /// those for smaller messages, the one for the largest. Or why nothing is compared
    /// with it.
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

/// Whether a run may have taken the way that an expectation was seen with.
fn matches_path(expected: &CollectiveExpectation, run: &CollectiveConditions<'_>) -> bool {
    let reduced = expected.algorithm.to_ascii_uppercase().starts_with("NVLS");
    let is_network = matches!(expected.parsed_transport(), CollectiveTransport::Network(_));
    let steered = match run.forced_path {
        ForcedPath::No => true,
        ForcedPath::Peer => expected.parsed_transport() == CollectiveTransport::Nvlink && !reduced,
        ForcedPath::Network => is_network,
    };
    // Over a network another algorithm moves other amounts: its rate says nothing of this one.
    let named = run.algorithms.iter().any(|name| name.eq_ignore_ascii_case(&expected.algorithm));
    steered && (!is_network || run.algorithms.is_empty() || named)
}

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
