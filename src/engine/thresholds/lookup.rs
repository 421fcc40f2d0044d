//! Which expectation holds for what was measured.
//!
//! A number holds for the sizes, ranks, algorithm and transport that it was
//! stated for. These functions are the only way from a measurement to a number:
//! they take the conditions of the measurement, and outside of an expectation's
//! domain they answer with the reason instead of a number.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fmt;

use super::CollectiveExpectation;
use super::Expectation;
use super::Platform;
use super::testcase;

/// Under which conditions a copy or a message was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions<'m> {
    testcase: &'m str,
    bytes: Option<u64>,
}

impl<'m> Conditions<'m> {
    /// A test at a size, where the output says one; else at the default of its tool.
    pub fn new(testcase: &'m str, bytes: Option<u64>) -> Self {
        Self { testcase, bytes }
    }

    /// A test at the default size of its tool.
    pub fn at_default(testcase: &'m str) -> Self {
        Self::new(testcase, None)
    }
}

/// The NICs of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Nics {
    /// How many ports each node has.
    pub count: u32,
    /// What one carries, in Gb/s.
    pub gigabits: f64,
}

/// The path that a run was made to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steered {
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
    pub steered: Steered,
    /// The algorithms that the library named.
    pub algorithms: BTreeSet<&'m str>,
    /// The NICs that it may have used, where they are known.
    pub nics: Option<Nics>,
}

/// What an expectation of a collective was seen to run over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Carrier {
    /// NVLink.
    Nvlink,
    /// PCIe inside a node.
    Pcie,
    /// The NICs of every node; `None` where it does not say which.
    Network(Option<Nics>),
}

impl CollectiveExpectation {
    /// What it was seen to run over: `NVLink`, `PCIe`, or NICs such as `IB 8 x 400 Gb/s`.
    pub fn carrier(&self) -> Carrier {
        match self.transport.to_ascii_lowercase().as_str() {
            "nvlink" => Carrier::Nvlink,
            "pcie" => Carrier::Pcie,
            other => Carrier::Network(nics(other)),
        }
    }

    fn allows(&self, nics: Option<Nics>) -> bool {
        match self.carrier() {
            Carrier::Nvlink | Carrier::Pcie => true,
            Carrier::Network(None) => true,
            Carrier::Network(stated) => stated == nics,
        }
    }
}

/// `ib 8 x 400 gb/s`.
fn nics(transport: &str) -> Option<Nics> {
    let words: Vec<&str> = transport.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "x")?;
    let count = words.get(at.checked_sub(1)?)?.parse().ok()?;
    let gigabits = words.get(at + 1)?.parse().ok()?;
    (words.get(at + 2) == Some(&"gb/s")).then_some(Nics { count, gigabits })
}

/// Why nothing is compared with a measurement.
#[derive(Clone, Debug, PartialEq)]
pub enum Outside {
    /// The platform expects nothing of the test.
    NotStated {
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
        nics: Option<Nics>,
    },
    /// It is expected of another path or algorithm than the run took.
    OtherWay {
        /// The platform.
        platform: String,
        /// The test.
        testcase: String,
    },
}

impl fmt::Display for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStated { platform, testcase } => {
                write!(f, "nothing is expected of {testcase} on {platform}")
            }
            Self::TooSmall { platform, testcase, bytes, least } => write!(
                f,
                "{testcase} at {} was compared with nothing: what {platform} states holds from {} on",
                size(*bytes),
                size(*least)
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
            Self::OtherWay { platform, testcase } => write!(
                f,
                "nothing is expected of {testcase} on {platform} over the path, or with the algorithm, of this run"
            ),
        }
    }
}

/// Bytes in the largest binary unit that divides them.
pub fn size(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes.trailing_zeros() >= shift && (bytes >> shift) > 0 {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} B")
}

/// What nccl-tests cuts each rank's part to a multiple of, in bytes.
const PART: u64 = 16;

impl Platform {
    /// What this measurement must show, or why nothing is compared with it.
    ///
    /// Disjoint pairs do not notice each other behind a switch that does not block,
    /// so that all at once must show what a pair alone shows. What is left of it
    /// over bridges and PCIe is known of no platform.
    pub fn expectation(&self, measured: &Conditions<'_>) -> Result<&Expectation, Outside> {
        let Some(stated) = self.stated(measured.testcase) else {
            let testcase = measured.testcase.to_owned();
            return Err(Outside::NotStated { platform: self.name.clone(), testcase });
        };
        match measured.bytes {
            Some(bytes) if bytes < stated.min_bytes => Err(Outside::TooSmall {
                platform: self.name.clone(),
                testcase: measured.testcase.to_owned(),
                bytes,
                least: stated.min_bytes,
            }),
            _ => Ok(stated),
        }
    }

    /// What is stated of a test, whatever its size.
    fn stated(&self, testcase: &str) -> Option<&Expectation> {
        self.expectations.get(testcase).or_else(|| {
            let alone = testcase::of_pair_alone(testcase).filter(|_| self.is_switched())?;
            self.expectations.get(&alone)
        })
    }

    /// The smallest message or buffer whose rate is one of this test: as stated, else
    /// what is usual for its tool.
    pub fn least_bytes(platform: Option<&Self>, testcase: &str) -> u64 {
        let stated = platform.and_then(|platform| platform.stated(testcase));
        stated.map_or_else(|| testcase::least_bytes(testcase), |stated| stated.min_bytes)
    }

    /// What this collective must show, one expectation per algorithm and transport: of
    /// those for smaller messages, the one for the largest. Or why nothing is compared
    /// with it.
    pub fn collective(
        &self,
        run: &CollectiveConditions<'_>,
    ) -> Result<Vec<&CollectiveExpectation>, Outside> {
        let Some(ranks) = run.ranks else { return Err(Outside::RanksUnknown) };
        let (platform, testcase) = (|| self.name.clone(), || run.testcase.to_owned());
        let of_test = self.collectives.iter().filter(|e| e.testcase == run.testcase);
        let mut left: Vec<&CollectiveExpectation> = of_test.collect();
        if left.is_empty() {
            return Err(Outside::NotStated { platform: platform(), testcase: testcase() });
        }
        left.retain(|e| (e.min_ranks..=e.max_ranks).contains(&ranks));
        if left.is_empty() {
            let (platform, testcase) = (platform(), testcase());
            return Err(Outside::OtherRanks { platform, testcase, ranks });
        }
        left.retain(|e| takes_way_of(e, run));
        let Some(first) = left.first() else {
            return Err(Outside::OtherWay { platform: platform(), testcase: testcase() });
        };
        let stated = first.transport.clone();
        left.retain(|e| e.allows(run.nics));
        let Some(least) = left.iter().map(|e| e.min_bytes).min() else {
            return Err(Outside::OtherNics { stated, nics: run.nics });
        };
        // A size is cut so that each rank's part is a multiple of 16 bytes.
        let bytes = run.bytes.saturating_add((PART * u64::from(ranks)).saturating_sub(1));
        let mut ways: BTreeMap<(&str, &str), &CollectiveExpectation> = BTreeMap::new();
        for expected in left.into_iter().filter(|e| e.min_bytes <= bytes) {
            let way = ways.entry((&expected.algorithm, &expected.transport)).or_insert(expected);
            if way.min_bytes < expected.min_bytes {
                *way = expected;
            }
        }
        if ways.is_empty() {
            let (platform, testcase) = (platform(), testcase());
            return Err(Outside::TooSmall { platform, testcase, bytes: run.bytes, least });
        }
        Ok(ways.into_values().collect())
    }
}

/// Whether a run may have taken the way that an expectation was seen with.
fn takes_way_of(expected: &CollectiveExpectation, run: &CollectiveConditions<'_>) -> bool {
    let reduced = expected.algorithm.to_ascii_uppercase().starts_with("NVLS");
    let is_network = matches!(expected.carrier(), Carrier::Network(_));
    let steered = match run.steered {
        Steered::No => true,
        Steered::Peer => expected.carrier() == Carrier::Nvlink && !reduced,
        Steered::Network => is_network,
    };
    // Over a network another algorithm moves other amounts: its rate says nothing of this one.
    let named = run.algorithms.iter().any(|name| name.eq_ignore_ascii_case(&expected.algorithm));
    steered && (!is_network || run.algorithms.is_empty() || named)
}

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
