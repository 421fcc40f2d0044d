//! Findings are made step by step: the numbers, the sentence and the evidence.

use crate::unit::Unit;
use crate::verdict::{Evidence, Finding};

impl Finding {
    /// The same finding with a number and what the platform must show; the ratio follows
    /// from them.
    pub fn with_numbers(mut self, measured: f64, expected: f64, unit: Unit) -> Self {
        self.measured = Some(round_fine(measured));
        self.expected = Some(round_fine(expected));
        self.unit = Some(unit);
        self.ratio = ratio(measured, expected);
        self
    }

    /// The same finding with a rate that was held against what others show; `expected` is
    /// what the platform must show there, where that is known.
    pub fn with_peer_level(mut self, measured: f64, peers: f64, expected: Option<f64>) -> Self {
        self.measured = Some(round_fine(measured));
        self.unit = Some(Unit::GigabytesPerSecond);
        self.peers = Some(round_fine(peers));
        self.ratio_to_peers = ratio(measured, peers);
        self.expected = expected.map(round_fine);
        self.ratio = expected.and_then(|expected| ratio(measured, expected));
        self
    }

    /// The same finding with a rate that was held against one of these.
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

    /// The same finding with a rate that was held against what the part showed before.
    pub fn with_own_history(mut self, measured: f64, own: f64) -> Self {
        self.measured = Some(round_fine(measured));
        self.unit = Some(Unit::GigabytesPerSecond);
        self.own = Some(round_fine(own));
        self.ratio_to_own = ratio(measured, own);
        self
    }

    /// The same finding with the numbers of another one.
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

    /// The same finding, said in one sentence.
    pub fn with_summary(mut self, summary: impl Into<String>) -> Self {
        self.summary = summary.into();
        self
    }

    /// The same finding with one more piece of evidence.
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

/// What a rate was held against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RateReference {
    /// What the platform must show.
    Expected(f64),
    /// What others show.
    Peers {
        /// The level of the others.
        level: f64,
        /// What the platform must show there, where that is known.
        expected: Option<f64>,
    },
}

impl RateReference {
    /// In GB/s.
    pub fn value(self) -> f64 {
        match self {
            Self::Expected(value) | Self::Peers { level: value, .. } => value,
        }
    }
}

fn ratio(measured: f64, reference: f64) -> Option<f64> {
    (0.0 < reference).then(|| round(measured / reference))
}

/// Four decimals of what a port carries, and more where that is little.
pub fn round_fine(value: f64) -> f64 {
    if value.abs() < 1.0 { (value * 1e6).round() / 1e6 } else { round(value) }
}

/// Four decimals: beyond that is noise, and documents stay readable.
pub fn round(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}
