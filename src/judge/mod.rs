//! How far from expectation, whose fault, how sure.
//!
//! Values in, values out: no I/O, no clock. Missing, waived, truncated and
//! unverified data end as unknown by a named rule; they never count for or
//! against a node.

use crate::model::cell::Cell;
use crate::model::claims::Claims;
use crate::model::recording::Recording;
use crate::model::verdict::Outcome;
use crate::model::verdict::VERDICTS_FORMAT;
use crate::model::verdict::Verdicts;
use crate::thresholds::Catalogue;

/// What is judged, and against what.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// What was claimed. Domains that only the recordings know are added.
    pub claims: &'a Claims,
    /// Every output that was read.
    pub recordings: &'a [Recording],
    /// The expectations in force.
    pub catalogue: &'a Catalogue,
    /// Digest of those expectations.
    pub thresholds_digest: &'a str,
    /// The platform a person named; it wins over claims and devices.
    pub platform: Option<&'a str>,
}

/// What came out.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// The claims as judged: those given, and what recordings added.
    pub claims: Claims,
    /// Every measured cell, in the direction of the data.
    pub cells: Vec<Cell>,
    /// The verdicts.
    pub verdicts: Verdicts,
}

/// Judges a case.
pub fn judge(case: &Case<'_>) -> Judgement {
    Judgement {
        claims: case.claims.clone(),
        cells: Vec::new(),
        verdicts: Verdicts {
            format: VERDICTS_FORMAT.to_owned(),
            platform: None,
            thresholds_digest: case.thresholds_digest.to_owned(),
            outcome: Outcome::Unknown,
            findings: Vec::new(),
            nodes: Vec::new(),
            unknown: Vec::new(),
            notes: Vec::new(),
        },
    }
}
