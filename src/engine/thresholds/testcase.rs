//! The names of the tests that tools print, and the path of each.
//!
//! Names only: no numbers here. An unlisted name is a warning in a threshold file, never an error,
//! since tools add tests.

use super::{TestPath, fault};

/// nvbandwidth v0.8 (its test case classes) and v0.10 (its `--list`).
const NVBANDWIDTH: &[&str] = &[
    "all_to_host_bidirectional_memcpy_ce",
    "all_to_host_bidirectional_memcpy_sm",
    "all_to_host_memcpy_ce",
    "all_to_host_memcpy_sm",
    "all_to_one_read_ce",
    "all_to_one_read_sm",
    "all_to_one_write_ce",
    "all_to_one_write_sm",
    "device_local_copy",
    "device_local_copy_sm",
    "device_local_copy_tma",
    "device_local_read_sm",
    "device_local_write_sm",
    "device_to_device_bidirectional_memcpy_read_ce",
    "device_to_device_bidirectional_memcpy_read_sm",
    "device_to_device_bidirectional_memcpy_write_ce",
    "device_to_device_bidirectional_memcpy_write_sm",
    "device_to_device_latency_sm",
    "device_to_device_latency_tma",
    "device_to_device_memcpy_read_ce",
    "device_to_device_memcpy_read_sm",
    "device_to_device_memcpy_write_ce",
    "device_to_device_memcpy_write_sm",
    "device_to_host_bidirectional_memcpy_ce",
    "device_to_host_bidirectional_memcpy_sm",
    "device_to_host_memcpy_ce",
    "device_to_host_memcpy_sm",
    "host_device_latency_sm",
    "host_to_all_bidirectional_memcpy_ce",
    "host_to_all_bidirectional_memcpy_sm",
    "host_to_all_memcpy_ce",
    "host_to_all_memcpy_sm",
    "host_to_device_bidirectional_memcpy_ce",
    "host_to_device_bidirectional_memcpy_sm",
    "host_to_device_memcpy_ce",
    "host_to_device_memcpy_sm",
    "multinode_bisect_write_ce",
    "multinode_device_to_device_all_from_one_read_sm",
    "multinode_device_to_device_all_to_one_write_sm",
    "multinode_device_to_device_bidirectional_memcpy_read_ce",
    "multinode_device_to_device_bidirectional_memcpy_read_sm",
    "multinode_device_to_device_bidirectional_memcpy_write_ce",
    "multinode_device_to_device_bidirectional_memcpy_write_sm",
    "multinode_device_to_device_broadcast_all_to_all_sm",
    "multinode_device_to_device_broadcast_one_to_all_sm",
    "multinode_device_to_device_memcpy_read_ce",
    "multinode_device_to_device_memcpy_read_sm",
    "multinode_device_to_device_memcpy_write_ce",
    "multinode_device_to_device_memcpy_write_sm",
    "one_to_all_read_ce",
    "one_to_all_read_sm",
    "one_to_all_write_ce",
    "one_to_all_write_sm",
];

/// The parts that v0.6 and later print for device-to-device bidirectional tests.
const PART_SUFFIXES: &[&str] = &["_read1", "_read2", "_write1", "_write2", "_total"];

/// Tests that only fabricgate's copy probe has, named like nvbandwidth's tests.
const NATIVE: &[&str] = &[
    "device_to_device_concurrent_memcpy_read_ce",
    "device_to_device_concurrent_memcpy_write_ce",
    "device_to_device_latency_ce",
    "device_to_host_latency_ce",
    "host_to_device_latency_ce",
];

/// fabricgate's names for the matrices of p2pBandwidthLatencyTest.
const P2P: &[&str] = &[
    "p2p_unidirectional_write_enabled",
    "p2p_unidirectional_read_enabled",
    "p2p_unidirectional_disabled",
    "p2p_bidirectional_enabled",
    "p2p_bidirectional_disabled",
];

/// perftest, each also with `_bidirectional` behind it.
const PERFTEST: &[&str] = &["ib_write_bw", "ib_read_bw", "ib_send_bw"];

/// fabricgate's TCP probe and iperf3, which also end at the NIC.
const TCP: &[&str] = &[
    "iperf3",
    "iperf3_bidir",
    "iperf3_bidir_reverse",
    "iperf3_reverse",
    "iperf3_udp",
    "iperf3_udp_reverse",
    "tcp_latency",
    "tcp_throughput",
];

/// nccl-tests.
pub const COLLECTIVES: &[&str] = &[
    "all_gather_perf",
    "all_reduce_perf",
    "alltoall_perf",
    "alltoallv_perf",
    "broadcast_perf",
    "gather_perf",
    "hypercube_perf",
    "reduce_perf",
    "reduce_scatter_perf",
    "scatter_perf",
    "sendrecv_perf",
];

/// Whether some tool prints a test of this name.
pub fn is_known(name: &str) -> bool {
    NVBANDWIDTH.contains(&strip_part(name))
        || NATIVE.contains(&name)
        || P2P.contains(&name)
        || name.starts_with("p2p_latency_")
        || TCP.contains(&name)
        || PERFTEST.contains(&name.strip_suffix("_bidirectional").unwrap_or(name))
}

/// The closest known name.
pub fn suggest_testcase(name: &str) -> Option<&'static str> {
    let known = NVBANDWIDTH.iter().chain(NATIVE).chain(P2P).chain(PERFTEST).chain(TCP);
    fault::suggest_name(name, known.copied())
}

/// The test of a single pair that corresponds to one in which all disjoint pairs of a round copy
/// concurrently.
pub fn single_pair_test(name: &str) -> Option<String> {
    let rest = name.strip_prefix("device_to_device_concurrent_")?;
    Some(format!("device_to_device_{rest}"))
}

/// The path of the test; `pairs` is the path between two GPUs here.
pub fn test_path(name: &str, pairs: TestPath) -> Option<TestPath> {
    let starts = |heads: &[&str]| heads.iter().any(|head| name.starts_with(head));
    if starts(&["host_", "device_to_host", "all_to_host"]) {
        Some(TestPath::Host)
    } else if starts(&["device_local"]) {
        Some(TestPath::Local)
    } else if starts(&["ib_", "tcp_", "iperf3"]) {
        Some(TestPath::Nic)
    } else if starts(&["device_to_device", "all_to_one", "one_to_all", "multinode_", "p2p_"]) {
        Some(pairs)
    } else {
        None
    }
}

/// The default for the smallest message or buffer that measures a rate in this test: smaller ones
/// measure how fast messages or copies start. perftest's default is 64 KiB; nvbandwidth's smallest
/// default buffer is 64 MiB.
pub fn min_bytes(name: &str) -> u64 {
    if is_latency(name) {
        return 0;
    }
    match test_path(name, TestPath::Nvlink) {
        Some(TestPath::Nic) if name.starts_with("ib_") => 64 << 10,
        // A stream has no messages.
        Some(TestPath::Nic) | None => 0,
        Some(TestPath::Nvlink | TestPath::Pcie | TestPath::Host | TestPath::Local) => 64 << 20,
    }
}

/// Whether the number is the sum of both directions.
pub fn sums_directions(name: &str) -> bool {
    name.ends_with("_total")
        || name.starts_with("p2p_bidirectional")
        || (name.starts_with("ib_") && name.ends_with("_bidirectional"))
}

/// Whether the number is a time.
pub fn is_latency(name: &str) -> bool {
    name.contains("latency") || name.ends_with("_lat")
}

fn strip_part(name: &str) -> &str {
    if !name.contains("device_to_device_bidirectional") {
        return name;
    }
    PART_SUFFIXES.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_belong_to_bidirectional_tests_only() {
        assert!(is_known("device_to_device_bidirectional_memcpy_write_ce_total"));
        assert!(is_known("multinode_device_to_device_bidirectional_memcpy_read_ce_read2"));
        assert!(!is_known("device_to_device_memcpy_write_ce_total"));
        assert!(is_known("ib_read_bw_bidirectional"));
    }

    #[test]
    fn the_path_follows_from_the_name() {
        assert_eq!(test_path("device_to_host_memcpy_ce", TestPath::Nvlink), Some(TestPath::Host));
        assert_eq!(
            test_path("multinode_bisect_write_ce", TestPath::Nvlink),
            Some(TestPath::Nvlink)
        );
        assert_eq!(test_path("p2p_bidirectional_enabled", TestPath::Pcie), Some(TestPath::Pcie));
        assert_eq!(test_path("ib_send_bw", TestPath::Nvlink), Some(TestPath::Nic));
        assert_eq!(test_path("tcp_throughput", TestPath::Nvlink), Some(TestPath::Nic));
        assert!(is_known("iperf3_reverse") && is_latency("tcp_latency"));
        assert_eq!(test_path("whatever", TestPath::Nvlink), None);
        assert_eq!(test_path("host_to_device_latency_ce", TestPath::Nvlink), Some(TestPath::Host));
        assert!(is_known("device_to_device_latency_ce") && is_latency("device_to_host_latency_ce"));
    }

    #[test]
    fn names_of_concurrent_tests_contain_the_single_pair_test() {
        let name = "device_to_device_concurrent_memcpy_write_ce";
        assert!(is_known(name));
        assert_eq!(single_pair_test(name).as_deref(), Some("device_to_device_memcpy_write_ce"));
        assert_eq!(single_pair_test("device_to_device_memcpy_write_ce"), None);
    }
}
