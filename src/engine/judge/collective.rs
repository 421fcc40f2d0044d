//! Collectives: a second instrument for a whole node or domain.
//!
//! One number cannot localise a fault: a low collective is a finding about the domain or the node
//! it ran on, never about its members. An expectation applies to a size, rank count, algorithm and
//! transport; without one the level is not judged, with two that disagree it is unknown.

use std::collections::{BTreeMap, BTreeSet};

use super::class_traits::traits_of;
use super::collective_peers::{CollectivePeers, SlowCollectiveRun};
use super::domain_recordings::DomainRecordings;
use super::fabric::FabricJudgement;
use super::fabric_group::FabricGroup;
use super::finding::{domain_locus, new_finding, node_locus};
use super::finding_set::FindingSet;
use super::node_verdicts;
use crate::thresholds::{CollectiveConditions, CollectiveExpectation, ForcedPath, NicPorts};
use model::finding_class::FindingClass;
use model::finding_rule::RuleKind;
use model::id::NodeName;
use model::measurement::{Measurement, MeasurementSeries};
use model::parse_output::Tool;
use model::stats;
use model::text::format_percent;
use model::tool_recording::ToolRecording;
use model::unit::Unit;
use model::unknown_subject::UnknownSubject;
use model::verdict::{Direction, Finding, Locus, LocusKind, Outcome};

/// Collectives repeat within a few percent; a smaller loss is not a fault.
const MIN_EFFECT: f64 = 0.05;

/// Below this share another transport carried the run: NICs instead of NVLink read about a tenth, a
/// ring instead of NVLS reduction in the switch about 0.8.
const FALLBACK_SHARE: f64 = 0.5;

/// Comparable runs: the same test, size, number of ranks and nodes.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CollectiveRunKey<'a> {
    /// The node, for a single-node run.
    pub(super) node: Option<&'a NodeName>,
    members: Vec<NodeName>,
    pub(super) testcase: &'a str,
    pub(super) ranks: Option<u32>,
    pub(super) bytes: u64,
    /// The path that fabricgate's probe was configured to take.
    pub(super) path: Option<&'a str>,
}

/// Bus bandwidths, each with its output.
pub(super) type CollectiveReadings<'a> =
    BTreeMap<CollectiveRunKey<'a>, Vec<(f64, &'a ToolRecording)>>;

/// The result of one collective of an output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CollectiveResult<'r> {
    /// The test, as in `all_reduce`.
    pub testcase: &'r str,
    /// How many ranks took part, if the output reports it.
    pub ranks: Option<u32>,
    /// The largest message size.
    pub bytes: u64,
    /// The path that fabricgate's probe was configured to take.
    pub path: Option<&'r str>,
    /// The bus bandwidth at that size, the better of in-place and out-of-place.
    pub busbw: f64,
    /// The unit of `busbw`.
    pub unit: Unit,
}

impl CollectiveResult<'_> {
    /// Whether the run was configured not to use the links between GPUs.
    pub fn is_over_network(&self) -> bool {
        self.path.is_some_and(is_network_path)
    }
}

/// The results of an output's collectives at their largest messages.
pub fn collect_results(recording: &ToolRecording) -> Vec<CollectiveResult<'_>> {
    let tools = [Some(Tool::NcclTests), Some(Tool::FabricgateCollective)];
    if !tools.contains(&recording.parsed.tool) {
        return Vec::new();
    }
    let (ranks, path) = (rank_count(recording), steered_path(recording));
    let mut all = Vec::new();
    for measurement in &recording.parsed.measurements {
        let Measurement::Series(series) = measurement else { continue };
        let Some((bytes, busbw)) = largest_size_bandwidth(series) else { continue };
        // With one rank the factor is 0: the run measures no fabric.
        if ranks == Some(1) || busbw == 0.0 {
            continue;
        }
        let testcase = series.testcase.as_deref().unwrap_or("collective");
        let unit = series.unit.unwrap_or(Unit::GigabytesPerSecond);
        all.push(CollectiveResult { testcase, ranks, bytes, path, busbw, unit });
    }
    all
}

pub(super) fn judge<'a>(
    (domain, islands): (&DomainRecordings<'a>, &[(FabricGroup<'a>, FabricJudgement)]),
    runs: &CollectiveReadings<'a>,
    peers: &mut CollectivePeers<'a>,
    ledger: &mut FindingSet,
) {
    for (key, readings) in runs {
        judge_runs((domain, islands), key, readings, peers, ledger);
    }
}

/// Groups the readings of a domain by comparable run.
pub(super) fn group_readings<'d>(domain: &'d DomainRecordings<'_>) -> CollectiveReadings<'d> {
    let own =
        domain.per_node.iter().flat_map(|(node, rs)| rs.iter().map(move |r| (Some(node), *r)));
    let across = domain.across_nodes.iter().map(|r| (None, *r));
    let mut runs: BTreeMap<CollectiveRunKey<'_>, Vec<(f64, &ToolRecording)>> = BTreeMap::new();
    for (node, recording) in own.chain(across) {
        for CollectiveResult { testcase, ranks, bytes, path, busbw, .. } in
            collect_results(recording)
        {
            let members = find_participants(domain, node, recording);
            let key = CollectiveRunKey { node, members, testcase, ranks, bytes, path };
            runs.entry(key).or_default().push((busbw, recording));
        }
    }
    runs
}

/// The path that fabricgate's probe was configured to take, if it differs from the default.
fn steered_path(recording: &ToolRecording) -> Option<&str> {
    let parameters = &recording.parsed.facts.parameters;
    let parameter = |name: &str| parameters.get(name).map(String::as_str);
    let own = recording.parsed.tool == Some(Tool::FabricgateCollective);
    // A rail is measured by disabling every transport except the network.
    let forced_path = parameter("asserted").or_else(|| parameter("NCCL_NET").map(|_| "ib"));
    forced_path.filter(|path| own && (is_network_path(path) || *path == "p2p"))
}

fn is_network_path(path: &str) -> bool {
    matches!(path, "ib" | "socket")
}

/// The conditions under which a run was measured.
pub fn build_conditions<'m>(
    ran: &CollectiveResult<'m>,
    algorithms: BTreeSet<&'m str>,
    nics: Option<NicPorts>,
) -> CollectiveConditions<'m> {
    let steered = match ran.path {
        None => ForcedPath::No,
        Some(path) if is_network_path(path) => ForcedPath::Network,
        Some(_) => ForcedPath::Peer,
    };
    let CollectiveResult { testcase, ranks, bytes, .. } = *ran;
    CollectiveConditions { testcase, ranks, bytes, forced_path: steered, algorithms, nics }
}

/// The number of ranks, if the output reports it.
pub(super) fn rank_count(recording: &ToolRecording) -> Option<u32> {
    recording.parsed.facts.ranks.iter().map(|r| r.rank.saturating_add(1)).max()
}

fn find_participants(
    domain: &DomainRecordings<'_>,
    node: Option<&NodeName>,
    recording: &ToolRecording,
) -> Vec<NodeName> {
    if let Some(node) = node {
        return vec![node.clone()];
    }
    let gpus = domain.gpus_of_ranks(&recording.parsed).into_values();
    gpus.map(|gpu| gpu.node).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Bus bandwidth at the largest size: the better of in-place and out-of-place.
fn largest_size_bandwidth(series: &MeasurementSeries) -> Option<(u64, f64)> {
    let points = || series.points.iter().filter_map(|p| Some((p.bytes, p.busbw?)));
    let bytes = points().map(|(bytes, _)| bytes).max()?;
    points().filter(|(b, _)| *b == bytes).max_by(|a, b| a.1.total_cmp(&b.1))
}

/// Judges readings of the same run: the best one counts, since a good reading clears.
fn judge_runs<'a>(
    (domain, islands): (&DomainRecordings<'a>, &[(FabricGroup<'a>, FabricJudgement)]),
    key: &CollectiveRunKey<'a>,
    readings: &[(f64, &ToolRecording)],
    peers: &mut CollectivePeers<'a>,
    ledger: &mut FindingSet,
) {
    let best = readings.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0));
    let (busbw, recording) = best.expect("a run has a reading");
    let CollectiveRunKey { ref members, testcase, ranks, bytes, path, .. } = *key;
    members.iter().for_each(|node| ledger.mark_measured(node));
    let named: Vec<&str> =
        readings.iter().flat_map(|(_, r)| &r.parsed.facts.transports).map(String::as_str).collect();
    let what = format!(
        "{testcase}, {} ranks, {} MiB",
        ranks.map_or("?".to_owned(), |r| r.to_string()),
        // A size that was cut to fit its ranks keeps the requested size as its name.
        bytes.saturating_add(1 << 19) >> 20
    );
    let over_nics = domain.spans_nodes()
        && 1 < members.len()
        && named.iter().any(|t| t.starts_with("NET/"))
        && !named.contains(&"MNNVL")
        // If the run asked for the network, using it is not a fault.
        && !path.is_some_and(is_network_path);
    // Multicast support does not mean that it is used; the algorithm decides, where reported.
    let algorithms = nccl_values(readings, "algorithms");
    let reduced = match algorithms.is_empty() {
        true => named.contains(&"NVLS"),
        false => algorithms.iter().any(|name| name.starts_with("NVLS")),
    };
    let run = BestCollectiveRun { domain, islands, key, what: &what, busbw, recording, readings };
    let reached =
        CollectiveResult { testcase, ranks, bytes, path, busbw, unit: Unit::GigabytesPerSecond };
    // A run over one rail uses NICs other than the node's full set.
    let nics = domain.nics.filter(|_| readings.iter().all(|(_, r)| r.rail.is_none()));
    let conditions = build_conditions(&reached, algorithms.clone(), nics);
    let expected = match domain.platform {
        Some(platform) => {
            platform.collective_expectations(&conditions).map_err(|why| why.to_string())
        }
        None => Err("the platform is not known".to_owned()),
    };
    let (expectations, why) = match expected {
        Ok(expectations) => (expectations, String::new()),
        Err(why) => (Vec::new(), why),
    };
    if over_nics && !expectations.iter().any(|e| busbw < e.busbw * FALLBACK_SHARE) {
        let how =
            format!("multi-node NVLink was off and NICs carried it{}", explain_mnnvl_off(readings));
        ledger.add(run.fallback_finding(FindingClass::MnnvlOff, &how));
    }
    let slowest = expectations.iter().min_by(|a, b| a.busbw.total_cmp(&b.busbw));
    let Some(expected) = slowest.copied() else {
        if let Some(why) = run.explain_far_below_links() {
            members.iter().for_each(|node| ledger.add_doubt(node, why.clone()));
        }
        ledger.notes.push(format!(
            "{what} in {}: {busbw:.1} GB/s; no expectation to compare it with: {why}",
            recording.file
        ));
        return;
    };
    members.iter().for_each(|node| ledger.mark_compared(node));
    let ratio = busbw / expected.busbw;
    let allowed = min_effect(expected);
    let reduces = |e: &&CollectiveExpectation| e.algorithm.eq_ignore_ascii_case("NVLS");
    let is_logged = !named.is_empty() || !algorithms.is_empty();
    let is_nvls_off = is_logged && !over_nics && !reduced && expectations.iter().any(reduces);
    let under_floor = expected.floor.is_some_and(|f| busbw < f);
    if 1.0 - allowed <= ratio && !under_floor {
        match is_nvls_off {
            true => {
                ledger
                    .add(run.fallback_finding(FindingClass::NvlsOff, &explain_nvls_off(readings)));
            }
            false => run.accept_as_fast(expected, &expectations, ledger),
        }
        return;
    }
    if is_nvls_off && FALLBACK_SHARE <= ratio {
        // A ring reads about 0.8 of NVLS reduction in the switch: that explains the loss.
        let found = run.fallback_finding(FindingClass::NvlsOff, &explain_nvls_off(readings));
        let low = format!(
            "{}, {} below the {:.1} GB/s of {}",
            found.summary,
            format_percent(1.0 - ratio),
            expected.busbw,
            expected.algorithm
        );
        ledger.add(
            found.with_numbers(busbw, expected.busbw, Unit::GigabytesPerSecond).with_summary(low),
        );
        return;
    }
    let slow = SlowCollectiveRun {
        what: &what,
        busbw,
        expected: expected.busbw,
        allowed,
        file: &recording.file,
    };
    if FALLBACK_SHARE <= ratio
        && !under_floor
        && !over_nics
        && peers.withhold_blame(domain, key, slow, ledger)
    {
        return;
    }
    let matrix_is_low = ledger.findings_of_domain(&domain.name).any(is_from_matrix);
    ledger.add(run.low_finding(expected, over_nics, matrix_is_low));
}

/// One run of a collective: its best reading, and all readings.
struct BestCollectiveRun<'a> {
    domain: &'a DomainRecordings<'a>,
    islands: &'a [(FabricGroup<'a>, FabricJudgement)],
    key: &'a CollectiveRunKey<'a>,
    what: &'a str,
    busbw: f64,
    recording: &'a ToolRecording,
    readings: &'a [(f64, &'a ToolRecording)],
}

impl BestCollectiveRun<'_> {
    /// The node, for a single-node run, or the domain.
    fn locus(&self) -> Locus {
        let name = &self.domain.name;
        let node = self.key.node;
        node.map_or_else(|| domain_locus(LocusKind::Domain, name), |node| node_locus(name, node))
    }

    /// A finding: NCCL's log shows that the run did not use the required path.
    fn fallback_finding(&self, class: FindingClass, how: &str) -> Finding {
        let algorithms = nccl_values(self.readings, "algorithms");
        let transports = self.recording.parsed.facts.transports.iter().map(String::as_str);
        // A supported transport that the run does not use is not a path.
        let used = transports.filter(|t| *t != "NVLS" || algorithms.is_empty());
        let mut names = used.collect::<Vec<_>>().join(", ");
        if !algorithms.is_empty() {
            let list = algorithms.iter().copied().collect::<Vec<_>>().join(", ");
            names = format!("{names}; algorithm {list}");
        }
        let summary = format!(
            "{}: busbw {:.1} GB/s, but NCCL reports only {names}: {how}",
            self.what, self.busbw
        );
        let rule = RuleKind::Path.with_terms(
            "a collective must run over what the platform has (NCCL INFO: MNNVL across nodes, NVLS \
             where the switches reduce)",
        );
        let mut found =
            new_finding(Outcome::Degraded, class, self.locus(), rule).with_summary(summary);
        (found.measured, found.unit) = (Some(self.busbw), Some(Unit::GigabytesPerSecond));
        let detail = format!("NCCL reports {names}");
        found.with_evidence(&self.recording.file, Some(self.key.testcase), detail)
    }

    /// Why a run without an expectation does not pass: large messages this far below the rate of a
    /// GPU's links did not use them.
    fn explain_far_below_links(&self) -> Option<String> {
        const FAR_BELOW: f64 = 0.25;
        const LARGE: u64 = 1 << 30;
        let links = self.domain.platform?.nvlink.as_ref()?;
        let inside = self.key.node.is_some() || self.domain.spans_nodes();
        let nominal = f64::from(links.links) * links.rate;
        let is_far = LARGE <= self.key.bytes && self.busbw < FAR_BELOW * nominal;
        let asked_for_network = self.key.path.is_some_and(is_network_path);
        (inside && links.switched && is_far && !asked_for_network).then(|| {
            format!(
                "{}: busbw {:.1} GB/s is {} of the {nominal:.0} GB/s that the links of a GPU \
                 carry, and no expectation is stated for it: NICs or PCIe may have carried it; \
                 NCCL_DEBUG=INFO shows which",
                self.what,
                self.busbw,
                format_percent(self.busbw / nominal)
            )
        })
    }

    /// Accepts a run that reaches the rate of the slowest permitted way. If only that way explains
    /// the rate, the result stays open and clears nothing.
    fn accept_as_fast(
        &self,
        expected: &CollectiveExpectation,
        expectations: &[&CollectiveExpectation],
        ledger: &mut FindingSet,
    ) {
        let Self { key, what, busbw, recording, .. } = *self;
        let allowed = min_effect(expected);
        let fastest = expectations.iter().map(|e| e.busbw).fold(0.0, f64::max);
        let share = (busbw / fastest).min(1.0);
        if 1.0 - allowed <= share {
            self.report_contradiction((share, allowed), ledger);
        }
        let faster = expectations.iter().filter(|e| busbw < e.busbw * (1.0 - min_effect(e)));
        let Some(usual) = faster.max_by(|a, b| a.busbw.total_cmp(&b.busbw)) else { return };
        // The algorithm may be a setting or the sign of a switch that no longer reduces; the rate
        // is the same.
        let why = format!(
            "{what}: busbw {busbw:.1} GB/s matches {}; with {} it is {:.1}, and the output does \
             not report which ran: NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=TUNING shows it",
            expected.algorithm, usual.algorithm, usual.busbw
        );
        match key.node {
            Some(node) => ledger.add_doubt(node, why),
            None => ledger.add_unknown(UnknownSubject::Other(recording.file.clone()), why),
        }
    }

    /// A collective is as fast as its slowest member. If it reaches its expectation, it contradicts
    /// copies that read low for one of its members over a path it used. Paths that it did not use
    /// may be as low as they read.
    fn report_contradiction(&self, (ratio, allowed): (f64, f64), ledger: &mut FindingSet) {
        let Self { domain, key, what, recording, .. } = *self;
        let line = ratio * (1.0 - allowed - MIN_EFFECT);
        let here = ledger.findings_of_domain(&domain.name).filter(|f| is_from_matrix(f));
        let low = here.filter(|f| self.share_on_used_paths(f).is_some_and(|share| share < line));
        let worst = low.min_by(|a, b| {
            a.deciding_share().unwrap_or(0.0).total_cmp(&b.deciding_share().unwrap_or(0.0))
        });
        let Some(worst) = worst else { return };
        let summary = format!(
            "{what} reaches its expectation ({} of it), but copies show {} ({}, {}): one of the \
             two instruments is wrong, or they ran at different times; measure both again in one \
             run",
            format_percent(ratio),
            worst.locus,
            worst.class,
            worst
                .deciding_share()
                .map_or("no number".to_owned(), |r| format!("{} of its level", format_percent(r)))
        );
        let rule = RuleKind::SecondInstrument.with_terms(format!(
            "a collective cannot be faster than its slowest member by more than {}",
            format_percent(allowed + MIN_EFFECT)
        ));
        // A locus names one node or all: other members than that node stay in doubt.
        let node = worst.locus.node.clone().filter(|_| key.members.len() < domain.nodes.len());
        let locus =
            Locus { node: node.clone(), ..domain_locus(LocusKind::Instrument, &domain.name) };
        let detail = format!("{what}: {}", format_percent(ratio));
        let mut found =
            new_finding(Outcome::Unknown, FindingClass::MatrixContradicted, locus, &rule)
                .with_summary(summary.clone())
                .with_evidence(&recording.file, Some(key.testcase), detail);
        found.evidence.extend(worst.evidence.first().cloned());
        if node.is_some() {
            key.members.iter().for_each(|member| {
                ledger.add_doubt(member, node_verdicts::no_pass_reason(&summary));
            });
        }
        ledger.add(found);
    }

    /// The share of the level that copies read for the finding's part over the paths that this run
    /// took; `None` if it took none of them.
    fn share_on_used_paths(&self, finding: &Finding) -> Option<f64> {
        let (members, all) = (&self.key.members, self.domain.nodes.len());
        if members.len() == 1 && 1 < all && traits_of(&finding.class).is_membership {
            return None;
        }
        let finding_share = finding.deciding_share().unwrap_or(0.0);
        let Some(node) = &finding.locus.node else {
            return (members.len() == all).then_some(finding_share);
        };
        // Only these two nodes use the path between them.
        if finding.locus.kind == LocusKind::Pair || !members.contains(node) {
            return None;
        }
        let holds = |(island, _): &&(FabricGroup<'_>, FabricJudgement)| {
            island.gpus.iter().any(|g| g.node == *node)
        };
        // Inside a node that is one island, a run takes every path.
        let Some((island, fabric)) =
            self.islands.iter().find(holds).filter(|(island, _)| island.node.is_none())
        else {
            return Some(finding_share);
        };
        let is_part = |gpu: usize| {
            let id = &island.gpus[gpu];
            id.node == *node && finding.locus.gpu.is_none_or(|gpu| gpu == id.gpu)
        };
        let (one_way, both_ways) = (island.directed.iter(), island.both_ways.iter());
        let levels = [&fabric.peeled.levels, &fabric.both_ways.levels];
        let mut shares: Vec<f64> = Vec::new();
        let mut is_read = false;
        for (r, levels) in one_way.map(|r| (r, levels[0])).chain(both_ways.map(|r| (r, levels[1])))
        {
            let takes_part = match finding.locus.direction {
                Some(Direction::Tx) => is_part(r.src),
                Some(Direction::Rx) => is_part(r.dst),
                _ => is_part(r.src) || is_part(r.dst),
            };
            let level = levels.get(r.group).copied().filter(|level| level.is_finite());
            let Some(level) = level.filter(|_| takes_part) else { continue };
            is_read = true;
            if [r.src, r.dst].iter().all(|end| members.contains(&island.gpus[*end].node)) {
                shares.push(r.value / level);
            }
        }
        let refused = island
            .cut_nodes
            .iter()
            .any(|(a, b)| (a == node && members.contains(b)) || (b == node && members.contains(a)));
        match stats::median(&mut shares) {
            _ if refused => Some(0.0),
            None if !is_read => Some(finding_share),
            share => share,
        }
    }

    /// The finding about a run that is slower than its slowest permitted way.
    fn low_finding(
        &self,
        expected: &CollectiveExpectation,
        over_nics: bool,
        matrix_is_low: bool,
    ) -> Finding {
        let Self { what, busbw, .. } = *self;
        let (ratio, allowed) = (busbw / expected.busbw, min_effect(expected));
        let class = if ratio < FALLBACK_SHARE {
            FindingClass::CollectiveFallback
        } else {
            FindingClass::CollectiveLow
        };
        let transports = self.recording.parsed.facts.transports.join(", ");
        let path = match transports.is_empty() {
            true => String::new(),
            false => format!("; NCCL names {transports}"),
        };
        let mut hint = if ratio < FALLBACK_SHARE {
            format!(": {} ({}) did not carry it", expected.transport, expected.algorithm)
        } else {
            String::new()
        };
        if over_nics {
            hint.push_str("; multi-node NVLink was off for this run");
            hint.push_str(&explain_mnnvl_off(self.readings));
        }
        if ratio < FALLBACK_SHARE && !matrix_is_low {
            hint.push_str(", while copies between the GPUs read normally");
        } else if FALLBACK_SHARE <= ratio && !matrix_is_low {
            // One number for all members does not identify one of them.
            hint.push_str("; a slow member or a slower algorithm; run copies between all its GPUs");
            hint.push_str(match nccl_values(self.readings, "algorithms").is_empty() {
                true => "and set NCCL_DEBUG_SUBSYS=TUNING",
                false => " in the same run",
            });
        }
        let summary = format!(
            "{what}: busbw {busbw:.1} of {:.1} GB/s, {} low{hint}{path}",
            expected.busbw,
            format_percent(1.0 - ratio)
        );
        let rule = RuleKind::Collective.with_terms(format!(
            "more than {} below {:.1} GB/s ({}, {}, {} to {} ranks, at least {} MiB; {})",
            format_percent(allowed),
            expected.busbw,
            expected.algorithm,
            expected.transport,
            expected.min_ranks,
            expected.max_ranks,
            expected.min_bytes >> 20,
            expected.source
        ));
        let found = new_finding(Outcome::Degraded, class, self.locus(), &rule)
            .with_numbers(busbw, expected.busbw, Unit::GigabytesPerSecond)
            .with_summary(summary);
        self.readings.iter().fold(found, |found, (busbw, recording)| {
            let detail = format!("busbw {busbw:.2} GB/s at {} bytes", self.key.bytes);
            found.with_evidence(&recording.file, Some(self.key.testcase), detail)
        })
    }
}

/// The distinct values that NCCL logged under this name in these runs.
fn nccl_values<'r>(readings: &[(f64, &'r ToolRecording)], name: &str) -> BTreeSet<&'r str> {
    let values = readings.iter().filter_map(|(_, r)| r.parsed.facts.parameters.get(name));
    values.flat_map(|list| list.split(',')).filter(|one| !one.is_empty()).collect()
}

/// The known cause of disabled multi-node NVLink, and how to find it.
fn explain_mnnvl_off(readings: &[(f64, &ToolRecording)]) -> String {
    match nccl_values(readings, "NCCL_MNNVL_ENABLE").contains("0") {
        true => " (NCCL_MNNVL_ENABLE is 0 in its environment)".to_owned(),
        false => " (one rank whose fabric is not ready disables it for all: the ClusterUUID, \
                  CliqueId and state of every GPU show which)"
            .to_owned(),
    }
}

/// The known cause of missing NVLS reduction, and how to find it.
fn explain_nvls_off(readings: &[(f64, &ToolRecording)]) -> String {
    let off = nccl_values(readings, "NCCL_NVLS_ENABLE").contains("0");
    let algorithm = nccl_values(readings, "NCCL_ALGO").into_iter().next();
    let why = match (off, algorithm) {
        (true, _) => "NCCL_NVLS_ENABLE is 0 in its environment".to_owned(),
        (false, Some(algorithm)) => format!("NCCL_ALGO is {algorithm} in its environment"),
        (false, None) => {
            "its environment does not explain it: repeat the run with NCCL_ALGO=NVLS, \
             which fails if the switches cannot reduce"
                .to_owned()
        }
    };
    format!("the switches did not reduce (no NVLS); {why}")
}

/// Whether a finding rests on GPU-to-GPU reads.
fn is_from_matrix(finding: &Finding) -> bool {
    traits_of(&finding.class).is_from_matrix && Outcome::Unknown < finding.outcome
}

/// The largest loss below an expectation that is not a fault.
fn min_effect(expected: &CollectiveExpectation) -> f64 {
    MIN_EFFECT.max(expected.tolerance)
}
