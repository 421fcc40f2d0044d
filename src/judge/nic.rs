//! NICs: what each port of a node carries, as perftest prints it.
//!
//! Ports are compared with each other, and with the class of NIC where one is
//! claimed. A port at another rate than its siblings is named as a rail; what
//! collectives make of it is judged in `collective`.

use std::collections::BTreeMap;

use super::arrange::Domain;
use super::finding::finding;
use super::finding::of_node;
use super::finding::percent;
use super::ledger::Ledger;
use super::robust;
use crate::model::id::NodeName;
use crate::model::measurement::Measurement;
use crate::model::measurement::Series;
use crate::model::parsed::Tool;
use crate::model::recording::Recording;
use crate::model::unit::Unit;
use crate::model::verdict::Locus;
use crate::model::verdict::LocusKind;
use crate::model::verdict::Outcome;
use crate::thresholds::Platform;

/// A rate class down is half; queue pairs, memory and distance move healthy
/// ports by up to 8 % (368 of 395 Gb/s with one queue pair: nccl issue 2171).
const LINE: f64 = 0.12;

/// A single reading below this share is no dip (healthy ones reach 0.6).
const DEEPEST_DIP: f64 = 0.58;

/// Fewer ports than this show no level of their own.
const SMALLEST_FLEET: usize = 4;

/// Ports that may be compared: class of NIC, test, queue pairs.
type Kind<'a> = (&'a str, &'a str, &'a str);

/// One port of one node: the best reading counts, since a good one acquits.
struct Port<'a> {
    domain: &'a Domain<'a>,
    node: &'a NodeName,
    /// The device, where the output names one.
    device: Option<&'a str>,
    value: f64,
    readings: usize,
    file: &'a str,
}

/// Judges the ports of all domains.
pub(super) fn judge(domains: &[Domain<'_>], ledger: &mut Ledger) {
    for ((_, testcase, _), ports) in ports(domains) {
        judge_ports(testcase, &ports, ledger);
    }
}

/// Every port that was measured, by what it may be compared with.
fn ports<'a>(domains: &'a [Domain<'a>]) -> BTreeMap<Kind<'a>, Vec<Port<'a>>> {
    let mut kinds: BTreeMap<Kind<'a>, Vec<Port<'a>>> = BTreeMap::new();
    for domain in domains {
        let class = domain.nic.map_or("", |nic| nic.name.as_str());
        for (node, recordings) in &domain.own {
            for recording in recordings {
                for (testcase, value) in rates(recording) {
                    let said = |key: &str| recording.parsed.facts.parameters.get(key);
                    let device = said("device").map(String::as_str).filter(|d| !d.contains(','));
                    let pairs = said("number_of_qps").map_or("", String::as_str);
                    let ports = kinds.entry((class, testcase, pairs)).or_default();
                    // Those of one node stand together, the last ones last.
                    let mut own = ports.iter_mut().rev().take_while(|p| p.node == node);
                    let known = own.find(|p| device.is_some() && p.device == device);
                    match known {
                        Some(port) => {
                            port.value = port.value.max(value);
                            port.readings += 1;
                        }
                        None => ports.push(Port {
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

/// What a recording shows of a port, in GB/s.
fn rates(recording: &Recording) -> impl Iterator<Item = (&str, f64)> {
    let measurements = recording.parsed.measurements.iter();
    measurements.filter(|_| recording.parsed.tool == Some(Tool::Perftest)).filter_map(|m| match m {
        Measurement::Series(series) => Some((series.testcase.as_deref()?, at_largest(series)?)),
        _ => None,
    })
}

/// The average rate of the largest message.
fn at_largest(series: &Series) -> Option<f64> {
    let point = series.points.iter().filter(|p| p.algbw.is_some()).max_by_key(|p| p.bytes)?;
    series.unit?.to_gigabytes_per_second(point.algbw?)
}

fn judge_ports(testcase: &str, ports: &[Port<'_>], ledger: &mut Ledger) {
    let mut values: Vec<f64> = ports.iter().map(|p| p.value).collect();
    let enough = SMALLEST_FLEET <= values.len();
    let siblings = robust::median(&mut values).filter(|m| enough && 0.0 < *m);
    let expected =
        ports.first().and_then(|p| p.domain.nic).and_then(|nic| in_gigabytes(nic, testcase));
    if expected.is_none() {
        ledger.notes.push(format!(
            "{testcase} of {} ports: no class of NIC is claimed, they were compared {}",
            ports.len(),
            if enough { "with each other only" } else { "with nothing" }
        ));
    }
    for port in ports {
        ledger.measure(port.node);
        let low = |reference: f64, line: f64| port.value < reference * (1.0 - line);
        let line = expected.map_or(LINE, |(_, tolerance)| tolerance.max(LINE));
        let (reference, against) = if let Some(m) = siblings.filter(|m| low(*m, LINE)) {
            (m, "the median of its siblings".to_owned())
        } else if let Some((value, _)) = expected.filter(|(value, _)| low(*value, line)) {
            (value, format!("the expectation of {}", port.domain.nic.map_or("", |n| &n.name)))
        } else {
            continue;
        };
        let device = port.device.unwrap_or("a NIC");
        let said = format!(
            "{device} of {}: {testcase} at {:.1} of {reference:.1} GB/s, {} low",
            port.node,
            port.value,
            percent(1.0 - port.value / reference)
        );
        if port.readings < 2 && reference * DEEPEST_DIP <= port.value {
            ledger.doubt(port.node, format!("{said}; read once, read it again"));
            continue;
        }
        let locus = Locus {
            kind: LocusKind::Rail,
            rail: port.device.map(str::to_owned),
            ..of_node(&port.domain.name, port.node)
        };
        let rule = format!("nic: more than {} below {against}", percent(LINE));
        let mut found = finding(Outcome::Degraded, "nic-low", locus, &rule)
            .numbers(port.value, reference, Unit::GigabytesPerSecond)
            .saying(said)
            .because(port.file, Some(testcase), format!("{:.2} GB/s", port.value));
        found.detectable = Some(super::finding::round(line));
        ledger.find(found);
    }
}

/// What a class of NIC must show, in GB/s, and its tolerance.
pub(super) fn in_gigabytes(nic: &Platform, testcase: &str) -> Option<(f64, f64)> {
    let expectation = nic.expectation(testcase)?;
    let value = expectation.unit.to_gigabytes_per_second(expectation.value?)?;
    Some((value, expectation.tolerance))
}
