//! Hard floors for tests that no other rule judges: copies under load, copies by SM, totals of one
//! GPU, copies inside it.
//!
//! On a healthy machine these depend on CPU and memory, so they have no finer threshold. Below the
//! floor they are faulty in any case.

use std::collections::BTreeMap;

use super::domain_recordings::DomainRecordings;
use super::finding::{gpu_locus, new_finding};
use super::finding_set::FindingSet;
use super::testcase::CellShape;
use super::{fabric_group, testcase};
use crate::thresholds::{Expectation, MeasurementConditions, TestPath};
use model::finding_class::FindingClass;
use model::finding_rule::RuleKind;
use model::id::GpuId;
use model::measurement::Measurement;
use model::unit::Unit;
use model::verdict::{Locus, Outcome};

/// A single reading above this share of its level may be a dip (healthy ones reach 0.6); a lower
/// one is not a dip.
const DEEPEST_DIP: f64 = 0.58;

/// The best reading of one GPU in one test, and the number of readings.
struct BestReading<'a> {
    value: f64,
    readings: usize,
    file: &'a str,
}

/// Compares every such test with its floor.
pub(super) fn judge(domain: &DomainRecordings<'_>, ledger: &mut FindingSet) {
    let Some(platform) = domain.platform else { return };
    let mut best: BTreeMap<(&str, GpuId), BestReading<'_>> = BTreeMap::new();
    for (node, recordings) in &domain.per_node {
        for recording in recordings {
            let bytes = fabric_group::buffer_bytes(recording);
            for measurement in &recording.parsed.measurements {
                let Measurement::Matrix(matrix) = measurement else { continue };
                let Some(name) = matrix.testcase.as_deref().filter(|n| has_only_floor(n)) else {
                    continue;
                };
                if platform.expectation(&MeasurementConditions::new(name, bytes)).is_err() {
                    continue;
                }
                for (_, col, value) in matrix.numbers() {
                    let Some(gpu) = matrix.cols.get(col).and_then(|c| c.parse().ok()) else {
                        continue;
                    };
                    let entry = best.entry((name, GpuId::new(node.clone(), gpu)));
                    let one =
                        entry.or_insert(BestReading { value, readings: 0, file: &recording.file });
                    one.value = one.value.max(value);
                    one.readings += 1;
                }
            }
        }
    }
    for ((testcase, gpu), best) in best {
        let conditions = MeasurementConditions::with_default_size(testcase);
        let Ok(expectation) = platform.expectation(&conditions) else { continue };
        report_below_floor(domain, testcase, &gpu, &best, expectation, ledger);
    }
}

fn has_only_floor(testcase: &str) -> bool {
    match testcase::shape_of(testcase) {
        CellShape::LoadedHost(_) | CellShape::Fan(_) | CellShape::Local => true,
        CellShape::Host(_) => !testcase.ends_with("_ce"),
        _ => false,
    }
}

fn report_below_floor(
    domain: &DomainRecordings<'_>,
    testcase: &str,
    gpu: &GpuId,
    best: &BestReading<'_>,
    expectation: &Expectation,
    ledger: &mut FindingSet,
) {
    let bandwidth = expectation.unit == Unit::GigabytesPerSecond;
    let Some(floor) = expectation.floor.filter(|floor| bandwidth && best.value < *floor) else {
        return;
    };
    let level = expectation.value.unwrap_or(floor);
    let summary = format!(
        "GPU {gpu}: {testcase} at {:.1} GB/s, below the floor of {floor:.1} (expected {level:.1})",
        best.value
    );
    if best.readings < 2 && DEEPEST_DIP <= best.value / level {
        ledger.add_doubt(&gpu.node, format!("{summary}; read only once, read it again"));
        return;
    }
    let direction = match testcase::shape_of(testcase) {
        CellShape::Host(d) | CellShape::LoadedHost(d) | CellShape::Fan(d) => Some(d),
        _ => None,
    };
    let class = match expectation.path {
        TestPath::Host => FindingClass::HostLinkLow,
        TestPath::Local => FindingClass::LocalCopyLow,
        _ => FindingClass::NvlinkLow,
    };
    let locus = Locus { direction, ..gpu_locus(&domain.name, gpu) };
    let rule =
        RuleKind::Floor.with_terms(format!("below {floor:.1} GB/s ({})", expectation.source));
    let found = new_finding(Outcome::Degraded, class, locus, &rule)
        .with_numbers(best.value, level, Unit::GigabytesPerSecond)
        .with_summary(summary)
        .with_evidence(best.file, Some(testcase), format!("best of {} readings", best.readings));
    ledger.add(found);
}
