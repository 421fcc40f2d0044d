//! What has been said so far: findings, what is not known, and remarks.
//!
//! Every stage of the judge writes here; `nodes` reads it at the end.

use std::collections::BTreeMap;

use crate::model::id::NodeName;
use crate::model::verdict::Finding;
use crate::model::verdict::Unknown;

/// What has been said so far about one case.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) findings: Vec<Finding>,
    /// Where each finding was when it was entered, by id.
    places: BTreeMap<String, usize>,
    pub(super) unknown: Vec<Unknown>,
    pub(super) notes: Vec<String>,
    /// Why a node cannot pass, first reason first.
    pub(super) doubts: BTreeMap<NodeName, Vec<String>>,
    /// Smallest degradation that would have been seen on a node.
    pub(super) detectable: BTreeMap<NodeName, f64>,
    /// Whether anything of a node was compared with an expectation.
    pub(super) compared: BTreeMap<NodeName, bool>,
}

impl Ledger {
    /// Adds a finding, unless the same part is already found guilty of the
    /// same; then its evidence joins the first.
    pub(super) fn find(&mut self, finding: Finding) {
        if let Some(at) = self.place(&finding.id) {
            let known = &mut self.findings[at];
            let outcome = known.outcome.max(finding.outcome);
            // What was measured says more than what was reported.
            let mut second = finding;
            if known.measured.is_none() && second.measured.is_some() {
                std::mem::swap(known, &mut second);
            }
            known.outcome = outcome;
            for evidence in second.evidence {
                if !known.evidence.contains(&evidence) {
                    known.evidence.push(evidence);
                }
            }
            return;
        }
        self.places.insert(finding.id.clone(), self.findings.len());
        self.findings.push(finding);
    }

    /// Where the finding of this id is. Others take findings out of the list,
    /// so what is remembered is looked at before it is believed.
    fn place(&mut self, id: &str) -> Option<usize> {
        let at = *self.places.get(id)?;
        if self.findings.get(at).is_some_and(|f| f.id == id) {
            return Some(at);
        }
        self.places = self.findings.iter().enumerate().map(|(at, f)| (f.id.clone(), at)).collect();
        self.places.get(id).copied()
    }

    /// Something is not known.
    pub(super) fn unknown(&mut self, what: impl Into<String>, why: impl Into<String>) {
        let unknown = Unknown { what: what.into(), why: why.into() };
        if !self.unknown.contains(&unknown) {
            self.unknown.push(unknown);
        }
    }

    /// A node cannot pass, for this reason.
    pub(super) fn doubt(&mut self, node: &NodeName, why: impl Into<String>) {
        let why = why.into();
        let reasons = self.doubts.entry(node.clone()).or_default();
        if !reasons.contains(&why) {
            reasons.push(why);
        }
    }

    /// Something of this node was compared with an expectation.
    pub(super) fn compare(&mut self, node: &NodeName) {
        self.compared.insert(node.clone(), true);
    }

    /// Something of this node was measured, whatever it was compared with.
    pub(super) fn measure(&mut self, node: &NodeName) {
        self.compared.entry(node.clone()).or_insert(false);
    }

    /// The worst degradation that this node could have hidden.
    pub(super) fn could_have_seen(&mut self, node: &NodeName, detectable: f64) {
        let worst = self.detectable.entry(node.clone()).or_insert(detectable);
        *worst = worst.max(detectable);
    }
}
