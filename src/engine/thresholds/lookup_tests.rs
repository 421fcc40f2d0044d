//! Every expectation is returned inside its domain, and a reason outside.

use super::*;
use crate::thresholds::{TestPath, builtin};

fn platform(name: &str) -> &'static Platform {
    builtin::builtin_catalogue().platform(name).expect("a shipped platform")
}

#[test]
fn every_expectation_applies_from_its_size_up_and_gives_a_reason_below() {
    for platform in builtin::builtin_catalogue().platforms.values() {
        for (name, e) in &platform.expectations {
            let at = |bytes| platform.expectation(&MeasurementConditions::new(name, bytes));
            assert_eq!(at(None).ok(), Some(e), "{} {name}", platform.name);
            assert_eq!(at(Some(e.min_bytes)).ok(), Some(e), "{} {name}", platform.name);
            let no_latency = !testcase::is_latency(name);
            assert!(!no_latency || 0 < e.min_bytes, "{} {name} has no size", platform.name);
            for bytes in [8, 64, 4 << 10, 32 << 10, e.min_bytes.saturating_sub(1)] {
                if e.min_bytes <= bytes {
                    continue;
                }
                let why = at(Some(bytes)).expect_err("too small").to_string();
                assert!(
                    why.contains(&format_size(bytes)) && why.contains(&format_size(e.min_bytes)),
                    "{why}"
                );
            }
            // No perftest result below 64 KiB is the rate of a port.
            assert!(e.path != TestPath::Nic || 64 << 10 <= e.min_bytes, "{} {name}", platform.name);
        }
    }
}

#[test]
fn every_collective_expectation_applies_only_to_its_size_and_ranks() {
    for platform in builtin::builtin_catalogue().platforms.values() {
        for e in &platform.collectives {
            let nics = match e.parsed_transport() {
                CollectiveTransport::Network(nics) => {
                    assert!(
                        nics.is_some(),
                        "{}: transport without NICs: {}",
                        platform.name,
                        e.transport
                    );
                    nics
                }
                CollectiveTransport::Nvlink | CollectiveTransport::Pcie => None,
            };
            let run = CollectiveConditions {
                testcase: &e.testcase,
                ranks: Some(e.min_ranks),
                bytes: e.min_bytes,
                forced_path: ForcedPath::No,
                algorithms: BTreeSet::new(),
                nics,
            };
            let fits = platform.collective_expectations(&run).expect("it is stated");
            assert!(fits.contains(&e), "{} {}", platform.name, e.testcase);
            for bytes in [8, 1 << 20] {
                let small = platform
                    .collective_expectations(&CollectiveConditions { bytes, ..run.clone() });
                assert!(matches!(small, Err(LookupMiss::TooSmall { .. })), "{small:?}");
            }
            let many = CollectiveConditions { ranks: Some(999_999), ..run.clone() };
            assert!(matches!(
                platform.collective_expectations(&many),
                Err(LookupMiss::OtherRanks { .. })
            ));
            let without_ranks = CollectiveConditions { ranks: None, ..run };
            assert_eq!(
                platform.collective_expectations(&without_ranks),
                Err(LookupMiss::RanksUnknown)
            );
        }
    }
}

#[test]
fn expectations_over_nics_apply_only_to_the_same_nics() {
    let platform = platform("hgx-h100");
    let run = |nics, algorithms: &[&'static str]| {
        let run = CollectiveConditions {
            testcase: "all_reduce_perf",
            ranks: Some(16),
            bytes: 8 << 30,
            forced_path: ForcedPath::No,
            algorithms: algorithms.iter().copied().collect(),
            nics,
        };
        platform.collective_expectations(&run)
    };
    let eight = Some(NicPorts { count: 8, gigabits: 400.0 });
    assert_eq!(run(eight, &[]).expect("as stated").len(), 1);
    assert_eq!(run(eight, &["RING"]).expect("as stated").len(), 1);
    assert!(matches!(run(eight, &["NVLSTree"]), Err(LookupMiss::OtherPath { .. })));
    for nics in [
        None,
        Some(NicPorts { count: 4, gigabits: 400.0 }),
        Some(NicPorts { count: 8, gigabits: 200.0 }),
    ] {
        let why = run(nics, &[]).expect_err("other NICs");
        assert!(
            matches!(why, LookupMiss::OtherNics { .. }) && why.to_string().contains("IB 8 x 400"),
            "{why}"
        );
    }
}

#[test]
fn concurrent_pairs_must_reach_the_single_pair_rate_only_behind_a_switch() {
    let (name, alone) =
        ("device_to_device_concurrent_memcpy_read_ce", "device_to_device_memcpy_read_ce");
    let (mut switched, mut others) = (0, 0);
    for platform in builtin::builtin_catalogue().platforms.values() {
        let expected =
            |test| platform.expectation(&MeasurementConditions::with_default_size(test)).ok();
        if platform.is_switched() {
            switched += 1;
            assert_eq!(expected(name), expected(alone));
        } else {
            others += 1;
            assert_eq!(expected(name), None, "{}", platform.name);
        }
    }
    assert!(0 < switched && 0 < others);
}
