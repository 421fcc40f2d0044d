//! Hard floors of tests that are judged by nothing else: copies under load,
//! copies by SM, totals of one GPU, copies inside it.
//!
//! What these show on a healthy machine depends on its CPU and memory, so they
//! have no fine line. Below the floor they are broken all the same.

use std::collections::BTreeMap;

use super::arrange::Domain;
use super::finding::finding;
use super::finding::of_gpu;
use super::island;
use super::ledger::Ledger;
use super::testcase;
use super::testcase::Shape;
use crate::thresholds::Conditions;
use crate::thresholds::Expectation;
use crate::thresholds::Path;
use model::finding_class::FindingClass;
use model::id::GpuId;
use model::measurement::Measurement;
use model::rule::RuleKind;
use model::unit::Unit;
use model::verdict::Locus;
use model::verdict::Outcome;

/// A single reading above this share of its level may be a dip (healthy ones
/// reach 0.6); one below is none.
const DEEPEST_DIP: f64 = 0.58;

/// The best reading of one GPU in one test, and how many there were.
struct Best<'a> {
    value: f64,
    readings: usize,
    file: &'a str,
}

/// Holds every such test against its floor.
pub(super) fn judge(domain: &Domain<'_>, ledger: &mut Ledger) {
    let Some(platform) = domain.platform else { return };
    let mut best: BTreeMap<(&str, GpuId), Best<'_>> = BTreeMap::new();
    for (node, recordings) in &domain.own {
        for recording in recordings {
            let bytes = island::buffer_bytes(recording);
            for measurement in &recording.parsed.measurements {
                let Measurement::Matrix(matrix) = measurement else { continue };
                let Some(name) = matrix.testcase.as_deref().filter(|n| is_left(n)) else {
                    continue;
                };
                if platform.expectation(&Conditions::new(name, bytes)).is_err() {
                    continue;
                }
                for (_, col, value) in matrix.numbers() {
                    let Some(gpu) = matrix.cols.get(col).and_then(|c| c.parse().ok()) else {
                        continue;
                    };
                    let entry = best.entry((name, GpuId::new(node.clone(), gpu)));
                    let one = entry.or_insert(Best { value, readings: 0, file: &recording.file });
                    one.value = one.value.max(value);
                    one.readings += 1;
                }
            }
        }
    }
    for ((testcase, gpu), best) in best {
        let conditions = Conditions::at_default(testcase);
        let Ok(expectation) = platform.expectation(&conditions) else { continue };
        below(domain, testcase, &gpu, &best, expectation, ledger);
    }
}

/// Whether no other rule judges this test.
fn is_left(testcase: &str) -> bool {
    match testcase::shape(testcase) {
        Shape::LoadedHost(_) | Shape::Fan(_) | Shape::Local => true,
        Shape::Host(_) => !testcase.ends_with("_ce"),
        _ => false,
    }
}

fn below(
    domain: &Domain<'_>,
    testcase: &str,
    gpu: &GpuId,
    best: &Best<'_>,
    expectation: &Expectation,
    ledger: &mut Ledger,
) {
    let bandwidth = expectation.unit == Unit::GigabytesPerSecond;
    let Some(floor) = expectation.floor.filter(|floor| bandwidth && best.value < *floor) else {
        return;
    };
    let level = expectation.value.unwrap_or(floor);
    let said = format!(
        "GPU {gpu}: {testcase} at {:.1} GB/s, below the floor of {floor:.1} (expected {level:.1})",
        best.value
    );
    if best.readings < 2 && DEEPEST_DIP <= best.value / level {
        ledger.doubt(&gpu.node, format!("{said}; read once, read it again"));
        return;
    }
    let direction = match testcase::shape(testcase) {
        Shape::Host(d) | Shape::LoadedHost(d) | Shape::Fan(d) => Some(d),
        _ => None,
    };
    let class = match expectation.path {
        Path::Host => FindingClass::HostLinkLow,
        Path::Local => FindingClass::LocalCopyLow,
        _ => FindingClass::NvlinkLow,
    };
    let locus = Locus { direction, ..of_gpu(&domain.name, gpu) };
    let rule = RuleKind::Floor.with(format!("below {floor:.1} GB/s ({})", expectation.source));
    let found = finding(Outcome::Degraded, class, locus, &rule)
        .numbers(best.value, level, Unit::GigabytesPerSecond)
        .saying(said)
        .because(best.file, Some(testcase), format!("best of {} readings", best.readings));
    ledger.find(found);
}
