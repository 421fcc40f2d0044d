//! Builder methods of a finding: the numbers, the sentence and the evidence.

use crate::unit::Unit;
use crate::verdict::{Evidence, Finding};

impl Finding {
    /// Sets the measured and the expected value; the ratio follows from them.
    pub fn with_numbers(mut self, measured: f64, expected: f64, unit: Unit) -> Self {
        self.measured = Some(round_fine(measured));
        self.expected = Some(round_fine(expected));
        self.unit = Some(unit);
        self.ratio = ratio(measured, expected);
        self
    }

    /// Sets a rate that was compared with the level of its peers; `expected` is the platform's
    /// value, where known.
    pub fn with_peer_level(mut self, measured: f64, peers: f64, expected: Option<f64>) -> Self {
        self.measured = Some(round_fine(measured));
        self.unit = Some(Unit::GigabytesPerSecond);
        self.peers = Some(round_fine(peers));
        self.ratio_to_peers = ratio(measured, peers);
        self.expected = expected.map(round_fine);
        self.ratio = expected.and_then(|expected| ratio(measured, expected));
        self
    }

    /// Sets a rate that was compared with this reference.
    pub fn with_reference(self, measured: f64, reference: RateReference) -> Self {
        match reference {
            RateReference::Expected(value) => {
                self.with_numbers(measured, value, Unit::GigabytesPerSecond)
            }
            RateReference::Peers { level, expected } => {
                self.with_peer_level(measured, level, expected)
            }
        }
    }

    /// Sets a rate that was compared with the part's own history.
    pub fn with_own_history(mut self, measured: f64, own: f64) -> Self {
        self.measured = Some(round_fine(measured));
        self.unit = Some(Unit::GigabytesPerSecond);
        self.own = Some(round_fine(own));
        self.ratio_to_own = ratio(measured, own);
        self
    }

    /// Copies the numbers of another finding.
    pub fn with_numbers_of(self, other: &Finding) -> Self {
        Self {
            measured: other.measured,
            expected: other.expected,
            peers: other.peers,
            own: other.own,
            unit: other.unit,
            ratio: other.ratio,
            ratio_to_peers: other.ratio_to_peers,
            ratio_to_own: other.ratio_to_own,
            ..self
        }
    }

    /// Sets the summary, one sentence.
    pub fn with_summary(mut self, summary: impl Into<String>) -> Self {
        self.summary = summary.into();
        self
    }

    /// Adds one piece of evidence.
    pub fn with_evidence(
        mut self,
        file: &str,
        testcase: Option<&str>,
        detail: impl Into<String>,
    ) -> Self {
        self.evidence.push(Evidence {
            file: file.to_owned(),
            testcase: testcase.map(str::to_owned),
            detail: detail.into(),
            class: None,
        });
        self
    }
}

/// The reference that a rate was compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RateReference {
    /// The expectation of the platform.
    Expected(f64),
    /// The level of its peers.
    Peers {
        /// Median rate of the peers.
        level: f64,
        /// The expectation of the platform, where known.
        expected: Option<f64>,
    },
}

impl RateReference {
    /// The reference value in GB/s.
    pub fn value(self) -> f64 {
        match self {
            Self::Expected(value) | Self::Peers { level: value, .. } => value,
        }
    }
}

fn ratio(measured: f64, reference: f64) -> Option<f64> {
    (0.0 < reference).then(|| round(measured / reference))
}

/// Rounds to four decimals, and to more for small values.
pub fn round_fine(value: f64) -> f64 {
    if value.abs() < 1.0 { (value * 1e6).round() / 1e6 } else { round(value) }
}

/// Rounds to four decimals: more digits are noise and make documents hard to read.
pub fn round(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}
