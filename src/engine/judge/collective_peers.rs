//! What one collective reached on each node of a fleet: what all of them show alike
//! is no fault of any.
//!
//! Whether a run is low against its expectation is `collective`'s word; here it is
//! held against the same run on the other nodes. Blames nobody.

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

/// Fewer nodes than this show no level of their own.
const SMALLEST_FLEET: usize = 4;

/// The same run: platform, test, ranks, size and path.
type PeerRunKey<'a> = (&'a str, &'a str, Option<u32>, u64, Option<&'a str>);

/// What all nodes reached.
#[derive(Debug, Default)]
pub(super) struct CollectivePeers<'a> {
    medians: BTreeMap<PeerRunKey<'a>, f64>,
    /// Runs that all nodes show to be low.
    low: BTreeMap<PeerRunKey<'a>, LowCollective>,
}

/// A run that is low on most nodes.
#[derive(Clone, Debug)]
struct LowCollective {
    what: String,
    median: f64,
    expected: f64,
    nodes: usize,
    evidence: Vec<Evidence>,
}

/// One node's run that is low against what is expected.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlowCollectiveRun<'r> {
    pub(super) what: &'r str,
    pub(super) busbw: f64,
    pub(super) expected: f64,
    /// How far below is no fault.
    pub(super) allowed: f64,
    pub(super) file: &'r str,
}

impl<'a> CollectivePeers<'a> {
    /// The middle of what the nodes of these domains reached in these runs of theirs.
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

    /// Takes a run that is low and as fast as those of the other nodes: the node is in
    /// doubt, and is not blamed. Says whether it is one.
    pub(super) fn excuse(
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
                "{what}: busbw {busbw:.1} of {expected:.1} GB/s, {} low, and {median:.1} in the middle of all nodes \
                 that ran it: not this node's fault, as far as this test can tell",
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

    /// Tells of runs that most nodes show to be low.
    pub(super) fn report_low(self, ledger: &mut FindingSet) {
        for ((platform, ..), low) in self.low {
            let LowCollective { what, median, expected, nodes, evidence } = low;
            let said = format!(
                "{what} on {nodes} nodes of {platform} is low alike, {median:.1} of {expected:.1} GB/s in the middle of all: \
                 one cause above them, not as many faults. A version of NCCL or of the driver, a setting, clocks, or a \
                 wrong expectation: the same test with another version would tell"
            );
            let rule = RuleKind::CommonCause.with_terms(
                "the middle of all nodes is below the expectation, and these are no slower than it",
            );
            let locus = Locus {
                peer: Some(format!("{platform}, {what}")),
                ..Locus::new(LocusKind::Instrument)
            };
            let found = new_finding(Outcome::Unknown, FindingClass::AllLowAlike, locus, rule)
                .with_summary(said);
            let mut found = found.with_numbers(median, expected, Unit::GigabytesPerSecond);
            found.evidence = evidence;
            ledger.add(found);
        }
    }
}

/// Which run this is on any node; `None` of one across nodes.
fn peer_run_key<'a>(
    domain: &DomainRecordings<'a>,
    key: &CollectiveRunKey<'a>,
) -> Option<PeerRunKey<'a>> {
    key.node?;
    Some((&domain.platform?.name, key.testcase, key.ranks, key.bytes, key.path))
}
