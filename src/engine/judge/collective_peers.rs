//! Compares one collective across the nodes of a fleet: a loss that all nodes share is not a fault
//! of any of them.
//!
//! `collective` compares a run with its expectation; this module compares it with the same run on
//! the other nodes. It blames no node.

use std::collections::BTreeMap;

use super::collective::{CollectiveReadings, CollectiveRunKey};
use super::domain_recordings::DomainRecordings;
use super::finding::new_finding;
use super::finding_set::FindingSet;
use model::finding_class::FindingClass;
use model::finding_rule::RuleKind;
use model::id::NodeName;
use model::stats;
use model::text::format_percent;
use model::unit::Unit;
use model::verdict::{Evidence, Locus, LocusKind, Outcome};

/// A smaller fleet has no level to compare with.
const SMALLEST_FLEET: usize = 4;

/// Identifies the same run: platform, test, ranks, size and path.
type PeerRunKey<'a> = (&'a str, &'a str, Option<u32>, u64, Option<&'a str>);

#[derive(Debug, Default)]
pub(super) struct CollectivePeers<'a> {
    medians: BTreeMap<PeerRunKey<'a>, f64>,
    /// Runs that are low on all nodes.
    low: BTreeMap<PeerRunKey<'a>, LowCollective>,
}

#[derive(Clone, Debug)]
struct LowCollective {
    what: String,
    median: f64,
    expected: f64,
    nodes: usize,
    evidence: Vec<Evidence>,
}

/// One node's run that is below its expectation.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlowCollectiveRun<'r> {
    pub(super) what: &'r str,
    pub(super) busbw: f64,
    pub(super) expected: f64,
    /// The largest loss that is not a fault.
    pub(super) allowed: f64,
    pub(super) file: &'r str,
}

impl<'a> CollectivePeers<'a> {
    /// The median result per run over the nodes of these domains.
    pub(super) fn from_runs(
        domains: &[DomainRecordings<'a>],
        runs: &[CollectiveReadings<'a>],
    ) -> Self {
        let mut all: BTreeMap<PeerRunKey<'a>, Vec<f64>> = BTreeMap::new();
        for (domain, runs) in domains.iter().zip(runs) {
            for (key, readings) in runs {
                let best = readings.iter().map(|(busbw, _)| *busbw).fold(0.0, f64::max);
                if let Some(same) = peer_run_key(domain, key) {
                    all.entry(same).or_default().push(best);
                }
            }
        }
        let enough = all.into_iter().filter(|(_, values)| SMALLEST_FLEET <= values.len());
        let medians = enough.filter_map(|(same, mut all)| Some((same, stats::median(&mut all)?)));
        Self { medians: medians.collect(), low: BTreeMap::new() }
    }

    /// Withholds blame for a low run that is as fast as on the other nodes: the node stays in
    /// doubt. Returns whether it did so.
    pub(super) fn withhold_blame(
        &mut self,
        domain: &DomainRecordings<'a>,
        key: &CollectiveRunKey<'a>,
        slow: SlowCollectiveRun<'_>,
        ledger: &mut FindingSet,
    ) -> bool {
        let Some((node, same)) = key.node.zip(peer_run_key(domain, key)) else { return false };
        let Some(median) = self.medians.get(&same).copied() else { return false };
        let SlowCollectiveRun { what, busbw, expected, allowed, .. } = slow;
        if busbw < median * (1.0 - allowed) {
            return false;
        }
        ledger.add_doubt(
            node,
            format!(
                "{what}: busbw {busbw:.1} of {expected:.1} GB/s, {} low, and a median of \
                 {median:.1} over all nodes that ran it: this test finds no fault in this node",
                format_percent(1.0 - busbw / expected)
            ),
        );
        if median < expected * (1.0 - allowed) {
            self.record_low(same, node, slow, median);
        }
        true
    }

    fn record_low(
        &mut self,
        same: PeerRunKey<'a>,
        node: &NodeName,
        slow: SlowCollectiveRun<'_>,
        median: f64,
    ) {
        const MOST_FILES: usize = 6;
        let low = self.low.entry(same).or_insert_with(|| LowCollective {
            what: slow.what.to_owned(),
            median,
            expected: slow.expected,
            nodes: 0,
            evidence: Vec::new(),
        });
        low.nodes += 1;
        if low.evidence.len() < MOST_FILES {
            low.evidence.push(Evidence {
                file: slow.file.to_owned(),
                testcase: None,
                detail: format!("{}: busbw {:.2} GB/s ({node})", slow.what, slow.busbw),
                class: None,
            });
        }
    }

    /// Reports runs that are low on most nodes.
    pub(super) fn report_low(self, ledger: &mut FindingSet) {
        for ((platform, ..), low) in self.low {
            let LowCollective { what, median, expected, nodes, evidence } = low;
            let summary = format!(
                "{what} on {nodes} nodes of {platform} is equally low, median {median:.1} of \
                 {expected:.1} GB/s: one shared cause, not {nodes} faults. A version of NCCL or of \
                 the driver, a setting, clocks, or a wrong expectation: repeat the test with \
                 another version"
            );
            let rule = RuleKind::CommonCause.with_terms(
                "the median of all nodes is below the expectation, and these nodes reach that \
                 median",
            );
            let locus = Locus {
                peer: Some(format!("{platform}, {what}")),
                ..Locus::new(LocusKind::Instrument)
            };
            let found = new_finding(Outcome::Unknown, FindingClass::AllLowAlike, locus, rule)
                .with_summary(summary);
            let mut found = found.with_numbers(median, expected, Unit::GigabytesPerSecond);
            found.evidence = evidence;
            ledger.add(found);
        }
    }
}

/// Identifies a run independently of its node; `None` for a run across nodes.
fn peer_run_key<'a>(
    domain: &DomainRecordings<'a>,
    key: &CollectiveRunKey<'a>,
) -> Option<PeerRunKey<'a>> {
    key.node?;
    Some((&domain.platform?.name, key.testcase, key.ranks, key.bytes, key.path))
}
