//! NICs: the rate of each port of a node, as perftest prints it.
//!
//! Ports are compared with each other, and with the NIC class if it is claimed. A port at another
//! rate than its siblings is reported as a rail; `collective` judges the effect on collectives.

use std::collections::BTreeMap;

use super::domain_recordings::DomainRecordings;
use super::finding::{RateReference, new_finding, node_locus};
use super::finding_set::FindingSet;
use crate::thresholds::{MeasurementConditions, Platform, format_size};
use model::finding_class::FindingClass;
use model::finding_rule::RuleKind;
use model::id::NodeName;
use model::measurement::{Measurement, MeasurementSeries};
use model::parse_output::Tool;
use model::stats;
use model::text::format_percent;
use model::tool_recording::ToolRecording;
use model::verdict::{Locus, LocusKind, Outcome};

/// The next lower rate class is half; queue pairs, memory and distance move healthy ports by up to
/// 8 % (368 of 395 Gb/s with one queue pair: nccl issue 2171).
const MIN_EFFECT: f64 = 0.12;

/// A single reading below this share is not a dip (healthy ones reach 0.6).
const DEEPEST_DIP: f64 = 0.58;

/// A smaller group of ports has no level to compare with.
const SMALLEST_FLEET: usize = 4;

/// Identifies comparable ports: NIC class, test, queue pairs.
type PortGroupKey<'a> = (&'a str, &'a str, &'a str);

/// One port of one node: the best reading counts, since a good reading clears.
struct NicPort<'a> {
    domain: &'a DomainRecordings<'a>,
    node: &'a NodeName,
    /// The device, if the output names one.
    device: Option<&'a str>,
    value: f64,
    readings: usize,
    file: &'a str,
}

pub(super) fn judge(domains: &[DomainRecordings<'_>], ledger: &mut FindingSet) {
    report_small_messages(domains, ledger);
    for ((_, testcase, _), ports) in collect_ports(domains) {
        judge_ports(testcase, &ports, ledger);
    }
}

/// Every measured port, grouped with comparable ones.
fn collect_ports<'a>(
    domains: &'a [DomainRecordings<'a>],
) -> BTreeMap<PortGroupKey<'a>, Vec<NicPort<'a>>> {
    let mut kinds: BTreeMap<PortGroupKey<'a>, Vec<NicPort<'a>>> = BTreeMap::new();
    for domain in domains {
        let class = domain.nic.map_or("", |nic| nic.name.as_str());
        for (node, recordings) in &domain.per_node {
            for recording in recordings {
                for (testcase, bytes, value) in port_rates(recording) {
                    if bytes < Platform::min_bytes(domain.nic, testcase) {
                        continue;
                    }
                    let parameter = |key: &str| recording.parsed.facts.parameters.get(key);
                    let device =
                        parameter("device").map(String::as_str).filter(|d| !d.contains(','));
                    let pairs = parameter("number_of_qps").map_or("", String::as_str);
                    let ports = kinds.entry((class, testcase, pairs)).or_default();
                    // Entries of one node are adjacent, in order.
                    let mut own = ports.iter_mut().rev().take_while(|p| p.node == node);
                    let known = own.find(|p| device.is_some() && p.device == device);
                    match known {
                        Some(port) => {
                            port.value = port.value.max(value);
                            port.readings += 1;
                        }
                        None => ports.push(NicPort {
                            domain,
                            node,
                            device,
                            value,
                            readings: 1,
                            file: &recording.file,
                        }),
                    }
                }
            }
        }
    }
    kinds
}

/// Tests of a node's ports that ran with small messages only: message rate does not show the link's
/// rate.
fn report_small_messages(domains: &[DomainRecordings<'_>], ledger: &mut FindingSet) {
    for domain in domains {
        for (node, recordings) in &domain.per_node {
            let mut largest: BTreeMap<(&str, Option<&String>), u64> = BTreeMap::new();
            for recording in recordings {
                let device = recording.parsed.facts.parameters.get("device");
                for (testcase, bytes, _) in port_rates(recording) {
                    let seen = largest.entry((testcase, device)).or_default();
                    *seen = bytes.max(*seen);
                }
            }
            for ((testcase, device), bytes) in largest {
                let least = Platform::min_bytes(domain.nic, testcase);
                if bytes < least {
                    ledger.mark_measured(node);
                    let port = device.map_or("a NIC", String::as_str);
                    ledger.add_doubt(
                        node,
                        format!("{port} of {node}: {}", explain_too_small(testcase, bytes, least)),
                    );
                }
            }
        }
    }
}

/// Why messages of this size do not show a rate, and which run does.
pub(super) fn explain_too_small(testcase: &str, bytes: u64, least: u64) -> String {
    format!(
        "the largest message of {testcase} is {}, and rates are compared from {} up: run it with \
         -s {least}",
        format_size(bytes),
        format_size(least)
    )
}

/// The readings of a port in a recording: test, largest message, GB/s.
fn port_rates(recording: &ToolRecording) -> impl Iterator<Item = (&str, u64, f64)> {
    let measurements = recording.parsed.measurements.iter();
    measurements.filter(|_| recording.parsed.tool == Some(Tool::Perftest)).filter_map(|m| match m {
        Measurement::Series(series) => {
            let (bytes, value) = largest_message_rate(series)?;
            Some((series.testcase.as_deref()?, bytes, value))
        }
        _ => None,
    })
}

/// The largest message, and its average rate.
fn largest_message_rate(series: &MeasurementSeries) -> Option<(u64, f64)> {
    let point = series.points.iter().filter(|p| p.algbw.is_some()).max_by_key(|p| p.bytes)?;
    Some((point.bytes, series.unit?.to_gigabytes_per_second(point.algbw?)?))
}

fn judge_ports(testcase: &str, ports: &[NicPort<'_>], ledger: &mut FindingSet) {
    let mut values: Vec<f64> = ports.iter().map(|p| p.value).collect();
    let enough = SMALLEST_FLEET <= values.len();
    let siblings = stats::median(&mut values).filter(|m| enough && 0.0 < *m);
    let expected = ports
        .first()
        .and_then(|p| p.domain.nic)
        .and_then(|nic| expected_rate(nic, &MeasurementConditions::with_default_size(testcase)));
    if expected.is_none() {
        ledger.notes.push(format!(
            "{testcase} of {} ports: no NIC class is claimed, so they were compared {}",
            ports.len(),
            if enough { "with each other only" } else { "with nothing" }
        ));
    }
    for port in ports {
        ledger.mark_measured(port.node);
        let low = |reference: f64, line: f64| port.value < reference * (1.0 - line);
        let line = expected.map_or(MIN_EFFECT, |(_, tolerance)| tolerance.max(MIN_EFFECT));
        let (held, against) = if let Some(level) = siblings.filter(|m| low(*m, MIN_EFFECT)) {
            let expected = expected.map(|(value, _)| value);
            (RateReference::Peers { level, expected }, "the median of its siblings".to_owned())
        } else if let Some((value, _)) = expected.filter(|(value, _)| low(*value, line)) {
            let class = port.domain.nic.map_or("", |n| &n.name);
            (RateReference::Expected(value), format!("the expectation of {class}"))
        } else {
            continue;
        };
        let reference = held.value();
        let device = port.device.unwrap_or("a NIC");
        let summary = format!(
            "{device} of {}: {testcase} at {:.1} of {reference:.1} GB/s, {} low",
            port.node,
            port.value,
            format_percent(1.0 - port.value / reference)
        );
        if port.readings < 2 && reference * DEEPEST_DIP <= port.value {
            ledger.add_doubt(port.node, format!("{summary}; read only once, read it again"));
            continue;
        }
        let locus = Locus {
            kind: LocusKind::Rail,
            rail: port.device.map(str::to_owned),
            ..node_locus(&port.domain.name, port.node)
        };
        let rule = RuleKind::Nic
            .with_terms(format!("more than {} below {against}", format_percent(MIN_EFFECT)));
        let mut found = new_finding(Outcome::Degraded, FindingClass::NicLow, locus, &rule)
            .with_reference(port.value, held)
            .with_summary(summary)
            .with_evidence(port.file, Some(testcase), format!("{:.2} GB/s", port.value));
        found.detectable = Some(super::finding::round(line));
        ledger.add(found);
    }
}

/// The expected rate of a NIC class, in GB/s, and its tolerance.
pub(super) fn expected_rate(
    nic: &Platform,
    measured: &MeasurementConditions<'_>,
) -> Option<(f64, f64)> {
    let expectation = nic.expectation(measured).ok()?;
    let value = expectation.unit.to_gigabytes_per_second(expectation.value?)?;
    Some((value, expectation.tolerance))
}
