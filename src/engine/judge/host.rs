//! Copies between host memory and each GPU.
//!
//! A lost PCIe generation or half the lanes halves the rate, so the threshold is coarse: NUMA
//! placement alone moves healthy host copies by a few percent. Only copies of one GPU at a time by
//! a copy engine are judged; rates under load depend on the CPU and are reported, not judged.

use std::collections::{BTreeMap, BTreeSet};

use super::domain_recordings::DomainRecordings;
use super::finding::{RateReference, gpu_locus, new_finding, node_locus};
use super::finding_set::FindingSet;
use super::testcase::CellShape;
use super::{fabric_group, testcase};
use crate::thresholds::{Expectation, MeasurementConditions, Platform};
use model::finding_class::FindingClass;
use model::finding_rule::{FindingRule, RuleKind};
use model::id::{GpuId, NodeName};
use model::measurement::Measurement;
use model::stats;
use model::text::format_percent;
use model::verdict::{Direction, Finding, Locus, LocusKind, Outcome};

/// A smaller deviation from the reference is placement, not a fault.
const MIN_EFFECT: f64 = 0.15;

/// Healthy readings dip by up to 40 % about once in 200. A single reading below this share is not a
/// dip.
const DEEPEST_DIP: f64 = 0.58;

/// A smaller group of readings has no level to compare with.
const SMALLEST_FLEET: usize = 4;

/// One GPU's copies in one direction. The best reading counts, since a good reading clears: if it
/// is low, all readings are.
struct HostCopies<'a> {
    domain: &'a DomainRecordings<'a>,
    gpu: GpuId,
    value: f64,
    /// Every reading and its output, in output order.
    readings: Vec<(f64, &'a str)>,
    /// NUMA node of the GPU, if its host memory is known to be on another one.
    unreachable_numa_node: Option<u32>,
}

impl HostCopies<'_> {
    /// True unless the host memory is known to be on another NUMA node, which alone can make the
    /// copies slow: they neither blame nor clear a part.
    fn is_near(&self) -> bool {
        self.unreachable_numa_node.is_none()
    }
}

/// If more than this share of all copies (and more than one) is low once, the low readings are not
/// dips: four times the rate of healthy noise.
const MOST_DIPS: f64 = 0.02;

/// Parts for which another copy reads normally.
type SoundParts = BTreeSet<(GpuId, Direction)>;

pub(super) fn judge(domains: &[DomainRecordings<'_>], ledger: &mut FindingSet) {
    let mut tests: BTreeMap<(&str, &str), Vec<HostCopies<'_>>> = BTreeMap::new();
    for domain in domains {
        for (testcase, copies) in group_copies(domain) {
            let platform = domain.platform.map_or("", |p| p.name.as_str());
            tests.entry((platform, testcase)).or_default().extend(copies);
        }
    }
    let mut low = Vec::new();
    let mut sound = find_sound_parts(domains);
    let mut judged = 0;
    for ((_, testcase), copies) in tests {
        let CellShape::Host(direction) = testcase::shape_of(testcase) else { continue };
        let found = judge_test(testcase, direction, &copies, ledger);
        let mut lows: BTreeMap<&NodeName, Vec<Option<u32>>> = BTreeMap::new();
        for LowHostCopy { finding, .. } in &found {
            if let Some(node) = &finding.locus.node {
                lows.entry(node).or_default().push(finding.locus.gpu);
            }
        }
        let is_low = |copy: &HostCopies<'_>| {
            let gpus = lows.get(&copy.gpu.node).into_iter().flatten();
            gpus.into_iter().any(|low| low.is_none_or(|gpu| gpu == copy.gpu.gpu))
        };
        // A copy of far memory that is low is not among the low ones.
        let fine = copies.iter().filter(|copy| !is_low(copy) && copy.is_near());
        sound.extend(fine.map(|copy| (copy.gpu.clone(), direction)));
        judged += copies.len();
        low.extend(found);
    }
    report_low_copies(low, &sound, judged, ledger);
}

/// Parts that match their peers in a host test that is not judged. A link at half rate is slow in
/// every test.
fn find_sound_parts(domains: &[DomainRecordings<'_>]) -> SoundParts {
    let mut tests: BTreeMap<(&str, &str), Vec<(GpuId, f64)>> = BTreeMap::new();
    for domain in domains {
        let platform = domain.platform.map_or("", |p| p.name.as_str());
        for (testcase, gpu, value, _) in collect_host_readings(domain) {
            let is_judged = matches!(testcase::shape_of(testcase), CellShape::Host(_))
                && testcase.ends_with("_ce");
            if !is_judged {
                tests.entry((platform, testcase)).or_default().push((gpu, value));
            }
        }
    }
    let mut sound = SoundParts::new();
    for ((_, testcase), values) in tests {
        let (CellShape::Host(direction) | CellShape::LoadedHost(direction)) =
            testcase::shape_of(testcase)
        else {
            continue;
        };
        let mut all: Vec<f64> = values.iter().map(|(_, v)| *v).collect();
        let Some(level) = stats::median(&mut all).filter(|_| SMALLEST_FLEET <= values.len()) else {
            continue;
        };
        let fine = values.into_iter().filter(|(_, value)| level * (1.0 - MIN_EFFECT) <= *value);
        sound.extend(fine.map(|(gpu, _)| (gpu, direction)));
    }
    sound
}

/// Every rate between host memory and a GPU of this domain: test case, GPU, value, file.
fn collect_host_readings<'a>(
    domain: &'a DomainRecordings<'a>,
) -> Vec<(&'a str, GpuId, f64, &'a str)> {
    let mut cells = Vec::new();
    for (node, recordings) in &domain.per_node {
        for recording in recordings {
            let bytes = fabric_group::buffer_bytes(recording);
            for measurement in &recording.parsed.measurements {
                let Measurement::Matrix(matrix) = measurement else { continue };
                let Some(name) = matrix.testcase.as_deref() else { continue };
                // A small copy measures startup time, not the rate of the link.
                let is_rate =
                    bytes.is_none_or(|bytes| Platform::min_bytes(domain.platform, name) <= bytes);
                if !testcase::shape_of(name).is_host() || !is_rate {
                    continue;
                }
                for (_, col, value) in matrix.numbers() {
                    let Some(gpu) = matrix.cols.get(col).and_then(|c| c.parse().ok()) else {
                        continue;
                    };
                    cells.push((
                        name,
                        GpuId::new(node.clone(), gpu),
                        value,
                        recording.file.as_str(),
                    ));
                }
            }
        }
    }
    cells
}

/// A low part: the finding, and the number of readings behind it.
struct LowHostCopy {
    finding: Finding,
    readings: usize,
}

/// Enters low copies: as findings if more than one reading is low or one is deeper than a dip; as a
/// note if another copy over the same link in the same direction reads normally; otherwise as a
/// doubt, because one reading cannot separate a dip from a slow link.
fn report_low_copies(
    low: Vec<LowHostCopy>,
    sound: &SoundParts,
    judged: usize,
    ledger: &mut FindingSet,
) {
    let (certain, once): (Vec<LowHostCopy>, Vec<LowHostCopy>) =
        merge_directions(low).into_iter().partition(is_certain);
    certain.into_iter().for_each(|low| ledger.add(low.finding));
    let (dips, open): (Vec<LowHostCopy>, Vec<LowHostCopy>) =
        once.into_iter().partition(|low| is_cleared(&low.finding.locus, sound));
    #[expect(clippy::cast_precision_loss, reason = "counts of copies")]
    let too_many = 1.0 + MOST_DIPS * (judged as f64) < dips.len() as f64;
    for LowHostCopy { finding, .. } in dips {
        let Some(node) = finding.locus.node.clone().filter(|_| too_many) else {
            ledger.notes.push(format!(
                "{}; read only once, other copies in this direction read normally",
                finding.summary
            ));
            continue;
        };
        ledger.add_doubt(
            &node,
            format!(
                "{}; read only once, and too many other copies are low as well",
                finding.summary
            ),
        );
    }
    for LowHostCopy { finding, .. } in open {
        let Some(node) = finding.locus.node.clone() else { continue };
        ledger.add_doubt(&node, format!("{}; read only once, read it again", finding.summary));
    }
}

/// Whether these readings exclude a dip.
fn is_certain(low: &LowHostCopy) -> bool {
    1 < low.readings || finding_ratio(&low.finding) < DEEPEST_DIP
}

fn group_copies<'a>(domain: &'a DomainRecordings<'a>) -> BTreeMap<&'a str, Vec<HostCopies<'a>>> {
    let mut taken: BTreeMap<(&str, GpuId), Vec<(f64, &str)>> = BTreeMap::new();
    for (testcase, gpu, value, file) in collect_host_readings(domain) {
        if matches!(testcase::shape_of(testcase), CellShape::Host(_)) && testcase.ends_with("_ce") {
            taken.entry((testcase, gpu)).or_default().push((value, file));
        }
    }
    let unreachable = unreachable_numa_nodes(domain);
    let mut tests: BTreeMap<&str, Vec<HostCopies<'_>>> = BTreeMap::new();
    for ((testcase, gpu), readings) in taken {
        let Some(value) = readings.iter().map(|(value, _)| *value).reduce(f64::max) else {
            continue;
        };
        let unreachable_numa_node = unreachable.get(&gpu).copied();
        tests.entry(testcase).or_default().push(HostCopies {
            domain,
            gpu,
            value,
            readings,
            unreachable_numa_node,
        });
    }
    tests
}

/// GPUs whose host memory is known to be on another NUMA node, with their own node.
fn unreachable_numa_nodes(domain: &DomainRecordings<'_>) -> BTreeMap<GpuId, u32> {
    let recordings =
        domain.per_node.iter().flat_map(|(node, all)| all.iter().map(move |it| (node, it)));
    let devices = recordings.flat_map(|(node, recording)| {
        recording.parsed.facts.devices.iter().map(move |device| (node, device))
    });
    let unreachable = devices.filter_map(|(node, device)| {
        Some((GpuId::new(node.clone(), device.index), device.unreachable_numa_node?))
    });
    unreachable.collect()
}

/// Another copy in the same direction read normally. The opposite direction does not clear this
/// one: lanes and generation are shared, but request sizes, ordering and host memory differ.
fn is_cleared(locus: &Locus, sound: &SoundParts) -> bool {
    let (Some(node), Some(gpu)) = (&locus.node, locus.gpu) else { return false };
    let ways = locus.direction.map_or(vec![Direction::H2d, Direction::D2h], |way| vec![way]);
    ways.iter().all(|way| sound.contains(&(GpuId::new(node.clone(), gpu), *way)))
}

fn judge_test(
    testcase: &str,
    direction: Direction,
    copies: &[HostCopies<'_>],
    ledger: &mut FindingSet,
) -> Vec<LowHostCopy> {
    let platform: Option<&Platform> = copies.first().and_then(|c| c.domain.platform);
    let expectation = platform
        .and_then(|p| p.expectation(&MeasurementConditions::with_default_size(testcase)).ok());
    let expected = expectation.and_then(|e| e.value);
    let mut values: Vec<f64> = copies.iter().filter(|c| c.is_near()).map(|c| c.value).collect();
    let enough = SMALLEST_FLEET <= values.len();
    let peers = stats::median(&mut values).filter(|m| enough && 0.0 < *m);
    let spread = peers.map_or(0.0, |m| stats::spread(&values, m).unwrap_or(0.0) / m);
    for copy in copies {
        ledger.mark_measured(&copy.gpu.node);
        if expected.is_some() {
            ledger.mark_compared(&copy.gpu.node);
        }
    }
    let line = MIN_EFFECT.max(5.0 * spread);
    let mut by_node: BTreeMap<_, Vec<LowHostCopy>> = BTreeMap::new();
    let mut own: BTreeMap<&NodeName, Vec<&HostCopies<'_>>> = BTreeMap::new();
    for copy in copies {
        let low = low_finding(copy, testcase, direction, peers, line, expectation);
        if let Some(numa_node) = copy.unreachable_numa_node {
            if let Some(finding) = low {
                let why = format!(
                    "{}; the host memory was not on NUMA node {numa_node} of the GPU, whose CPUs \
                     the probe could not use: measure without CPU binding",
                    finding.summary
                );
                ledger.add_doubt(&copy.gpu.node, why);
            }
            continue;
        }
        own.entry(&copy.gpu.node).or_default().push(copy);
        if let Some(finding) = low {
            let low = LowHostCopy { finding, readings: copy.readings.len() };
            by_node.entry(low.finding.locus.node.clone()).or_default().push(low);
        }
    }
    let mut out = Vec::new();
    for (node, found) in by_node {
        let here = node.as_ref().and_then(|node| own.get(node)).map_or(&[][..], Vec::as_slice);
        let all = here.len();
        let ratios = || found.iter().map(|l| finding_ratio(&l.finding));
        // One of them may also have dipped, but a single dip does not make the host slow.
        let alike = found.iter().all(is_certain)
            || ratios().fold(0.0, f64::max) - ratios().fold(1.0, f64::min) <= MIN_EFFECT;
        let whole_node = 1 < all && found.len() == all && alike;
        let Some(one) = here.first().filter(|_| whole_node) else {
            out.extend(found);
            continue;
        };
        let locus =
            Locus { direction: Some(direction), ..node_locus(&one.domain.name, &one.gpu.node) };
        let readings = found.iter().map(|l| l.readings).sum();
        let worst = found.into_iter().map(|l| l.finding);
        let mut worst = worst
            .min_by(|a, b| finding_ratio(a).total_cmp(&finding_ratio(b)))
            .expect("all are low");
        let id =
            new_finding(worst.outcome, worst.class.clone(), locus.clone(), FindingRule::default())
                .id;
        worst.summary = format!(
            "all {all} GPUs of {}: {testcase} is low, at worst {:.1} of {:.1} GB/s: check the \
             host, not a GPU",
            one.gpu.node,
            worst.measured.unwrap_or(0.0),
            worst.peers.or(worst.expected).unwrap_or(0.0)
        );
        out.push(LowHostCopy { finding: Finding { id, locus, ..worst }, readings });
    }
    out
}

fn finding_ratio(finding: &Finding) -> f64 {
    finding.deciding_share().unwrap_or(1.0)
}

/// The finding about one GPU's copies, if they are low.
fn low_finding(
    copy: &HostCopies<'_>,
    testcase: &str,
    direction: Direction,
    peers: Option<f64>,
    line: f64,
    expectation: Option<&Expectation>,
) -> Option<Finding> {
    let expected = expectation.and_then(|e| e.value.map(|v| (v, e)));
    let below_peers = peers.filter(|p| copy.value < p * (1.0 - line));
    let allowed = expected.map_or(MIN_EFFECT, |(_, e)| e.tolerance.max(MIN_EFFECT));
    let below_expected = expected.filter(|(v, _)| copy.value < v * (1.0 - allowed)).map(|(v, _)| v);
    let below_floor = expectation.and_then(|e| e.floor).filter(|f| copy.value < *f);
    let value = expected.map(|(value, _)| value);
    let (held, rule) = if let Some(level) = below_peers {
        let rule = RuleKind::HostCopy.with_terms(format!(
            "more than {} below the median of its peers",
            format_percent(line)
        ));
        (RateReference::Peers { level, expected: value }, rule)
    } else if let Some(value) = below_expected {
        let rule = RuleKind::HostCopy
            .with_terms(format!("more than {} below the expectation", format_percent(allowed)));
        (RateReference::Expected(value), rule)
    } else if let Some(floor) = below_floor {
        let rule = RuleKind::HostCopy.with_terms(format!("below the floor of {floor:.1} GB/s"));
        (RateReference::Expected(value.unwrap_or(floor)), rule)
    } else {
        return None;
    };
    let reference = held.value();
    let gpu = &copy.gpu;
    let locus = Locus { direction: Some(direction), ..gpu_locus(&copy.domain.name, gpu) };
    let share = copy.value / reference;
    // 50 % and 25 % match lanes or generations; other shares have another cause.
    let hint = [
        (0.5, "half the lanes or one PCIe generation less: check the link's width and generation"),
        (
            0.25,
            "a quarter of the lanes, or two generations less: check the link's width and \
             generation",
        ),
    ]
    .iter()
    .find(|(quantum, _)| (share / quantum - 1.0).abs() < 0.08)
    .map_or(String::new(), |(_, text)| format!(": consistent with {text}"));
    let summary =
        format!("GPU {gpu}: {testcase} at {:.1} of {reference:.1} GB/s{hint}", copy.value);
    let found = new_finding(Outcome::Degraded, FindingClass::HostLinkLow, locus, &rule)
        .with_reference(copy.value, held)
        .with_summary(summary);
    // The second measurement does not cover host copies: the evidence is that several outputs
    // agree, so each is listed.
    let found = copy.readings.iter().fold(found, |found, (value, file)| {
        found.with_evidence(file, Some(testcase), format!("{value:.2} GB/s"))
    });
    Some(Finding { detectable: Some(super::finding::round(line)), ..found })
}

/// Merges findings about a part that is low in both directions into one without a direction.
fn merge_directions(low: Vec<LowHostCopy>) -> Vec<LowHostCopy> {
    let mut merged: Vec<LowHostCopy> = Vec::new();
    let mut places: BTreeMap<(Option<NodeName>, Option<u32>, LocusKind), Vec<usize>> =
        BTreeMap::new();
    for low in low {
        let locus = &low.finding.locus;
        let here = places.entry((locus.node.clone(), locus.gpu, locus.kind)).or_default();
        let twin = here.iter().copied().find(|at| {
            let m = &merged[*at];
            m.finding.locus.direction != locus.direction
                // Two dips of one GPU are not one slow link.
                && ((finding_ratio(&m.finding) - finding_ratio(&low.finding)).abs() <= MIN_EFFECT
                    || (is_certain(m) && is_certain(&low)))
        });
        let Some(at) = twin else {
            here.push(merged.len());
            merged.push(low);
            continue;
        };
        let twin = &mut merged[at];
        let both = Locus { direction: None, ..twin.finding.locus.clone() };
        let evidence = twin.finding.evidence.iter().chain(&low.finding.evidence).cloned().collect();
        let worst = [&low.finding, &twin.finding]
            .into_iter()
            .min_by(|a, b| finding_ratio(a).total_cmp(&finding_ratio(b)));
        let worst = worst.expect("one of two").clone();
        let id =
            new_finding(worst.outcome, worst.class.clone(), both.clone(), FindingRule::default())
                .id;
        let summary = format!("{} (both directions are low)", worst.summary);
        twin.finding = Finding { id, locus: both, evidence, summary, ..worst };
        twin.readings += low.readings;
    }
    merged
}
