//! Each test's operation, element counts and bandwidth formulas: nccl-tests' definitions, so that
//! the numbers are comparable.
//!
//! Pure arithmetic without GPU and library. Sources: nccl-tests, `doc/PERFORMANCE.md` (factors),
//! `src/*.cu` (`GetCollByteCount`: elements; `GetBw`: bytes counted).

/// The operation of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NcclCollective {
    /// Every rank receives the sum.
    AllReduce,
    /// Every rank receives the data of all ranks.
    AllGather,
    /// Every rank receives a part of the sum.
    ReduceScatter,
    /// Every rank sends a different part to every rank.
    AllToAll,
    /// Every rank sends to the next rank and receives from the previous one.
    SendReceive,
    /// Every rank receives the data of the first.
    Broadcast,
}

/// Bytes of a `float`, the only data type measured.
pub const ELEMENT_BYTES: u64 = 4;

/// nccl-tests rounds each rank's part down to a multiple of 16 bytes.
const PART_ELEMENTS: u64 = 16 / ELEMENT_BYTES;

/// Elements of one operation on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveCounts {
    /// Elements read.
    pub send: u64,
    /// Elements written.
    pub receive: u64,
    /// Elements passed to the call.
    pub call: u64,
}

impl CollectiveCounts {
    /// Bytes as nccl-tests prints them: the size of the larger buffer.
    pub fn bytes(self) -> u64 {
        self.send.max(self.receive) * ELEMENT_BYTES
    }
}

impl NcclCollective {
    /// All tests.
    pub const ALL: [Self; 6] = [
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::SendReceive,
        Self::Broadcast,
    ];

    /// The name of the nccl-tests program.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce_perf",
            Self::AllGather => "all_gather_perf",
            Self::ReduceScatter => "reduce_scatter_perf",
            Self::AllToAll => "alltoall_perf",
            Self::SendReceive => "sendrecv_perf",
            Self::Broadcast => "broadcast_perf",
        }
    }

    /// The test of this nccl-tests name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }

    /// The test of this name in NCCL's log of chosen algorithms; `None` for tests that NCCL does
    /// not treat as collectives.
    pub fn from_nccl_function(function: &str) -> Option<Self> {
        match function {
            "AllReduce" => Some(Self::AllReduce),
            "AllGather" => Some(Self::AllGather),
            "ReduceScatter" => Some(Self::ReduceScatter),
            "Broadcast" => Some(Self::Broadcast),
            _ => None,
        }
    }

    /// The symbols it needs in addition to those that all tests need.
    pub fn calls(self) -> &'static [&'static str] {
        match self {
            Self::AllReduce => &["ncclAllReduce"],
            Self::AllGather => &["ncclAllGather"],
            Self::ReduceScatter => &["ncclReduceScatter"],
            Self::AllToAll | Self::SendReceive => {
                &["ncclSend", "ncclRecv", "ncclGroupStart", "ncclGroupEnd"]
            }
            Self::Broadcast => &["ncclBroadcast"],
        }
    }

    /// Element counts for a message of at most this many bytes; `None` if every rank's part would
    /// be empty.
    pub fn counts(self, bytes: u64, ranks: u32) -> Option<CollectiveCounts> {
        let elements = bytes / ELEMENT_BYTES;
        let ranks = u64::from(ranks.max(1));
        let part = elements / ranks / PART_ELEMENTS * PART_ELEMENTS;
        let whole = part * ranks;
        let counts = match self {
            Self::AllReduce | Self::SendReceive | Self::Broadcast => {
                CollectiveCounts { send: elements, receive: elements, call: elements }
            }
            Self::AllGather => CollectiveCounts { send: part, receive: whole, call: part },
            Self::ReduceScatter => CollectiveCounts { send: whole, receive: part, call: part },
            Self::AllToAll => CollectiveCounts { send: whole, receive: whole, call: part },
        };
        (0 < counts.call).then_some(counts)
    }

    /// The factor from algbw to busbw, which is comparable with a link's bandwidth.
    ///
    /// A single rank sends nothing over any link: its factor is 0 for all tests, whereas nccl-tests
    /// has 1 for the last two.
    pub fn factor(self, ranks: u32) -> f64 {
        let n = f64::from(ranks.max(1));
        match self {
            _ if ranks <= 1 => 0.0,
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            Self::AllGather | Self::ReduceScatter | Self::AllToAll => (n - 1.0) / n,
            Self::SendReceive | Self::Broadcast => 1.0,
        }
    }

    /// algbw and busbw in GB/s (1e9 bytes per second) of an operation of this size and duration;
    /// `None` if the duration is zero.
    pub fn bandwidths(self, bytes: u64, time_us: f64, ranks: u32) -> Option<(f64, f64)> {
        if !(time_us.is_finite() && 0.0 < time_us) {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "bytes of a buffer are below 2^53")]
        let algbw = bytes as f64 / time_us / 1e3;
        Some((algbw, algbw * self.factor(ranks)))
    }
}

/// The message sizes of a sweep, from the smallest to the largest that fits. At least one if any
/// fits.
pub fn sweep_sizes(least: u64, most: u64, factor: u64) -> Vec<u64> {
    let mut sizes = Vec::new();
    let mut size = least.max(ELEMENT_BYTES);
    while size <= most {
        sizes.push(size);
        match size.checked_mul(factor) {
            Some(next) if size < next => size = next,
            _ => break,
        }
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn names_match_nccl_tests_and_parse_back() {
        for test in NcclCollective::ALL {
            assert_eq!(NcclCollective::from_name(test.name()), Some(test));
        }
        assert_eq!(NcclCollective::from_name("reduce_perf"), None);
    }

    #[test]
    fn factors_are_the_published_ones() {
        assert!((NcclCollective::AllReduce.factor(8) - 1.75).abs() < 1e-12);
        assert!((NcclCollective::AllGather.factor(8) - 0.875).abs() < 1e-12);
        assert!((NcclCollective::ReduceScatter.factor(72) - 71.0 / 72.0).abs() < 1e-12);
        assert!((NcclCollective::AllToAll.factor(4) - 0.75).abs() < 1e-12);
        assert!((NcclCollective::SendReceive.factor(2) - 1.0).abs() < 1e-12);
        assert!((NcclCollective::Broadcast.factor(16) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn nothing_crosses_a_link_with_one_rank() {
        for test in NcclCollective::ALL {
            let (algbw, busbw) = test.bandwidths(MIB, 10.0, 1).expect("it took time");
            assert!(0.0 < algbw && busbw == 0.0, "{test:?}");
        }
    }

    #[test]
    fn bandwidths_are_bytes_over_time() {
        // 1 GiB in 2.5 ms is 429.5 GB/s, and 751.6 with the factor of eight ranks.
        let (algbw, busbw) =
            NcclCollective::AllReduce.bandwidths(1 << 30, 2_500.0, 8).expect("it took time");
        assert!((algbw - 429.496_729_6).abs() < 1e-6, "{algbw}");
        assert!((busbw - 751.619_276_8).abs() < 1e-6, "{busbw}");
        assert_eq!(NcclCollective::AllReduce.bandwidths(8, 0.0, 8), None);
        assert_eq!(NcclCollective::AllReduce.bandwidths(8, f64::NAN, 8), None);
    }

    #[test]
    fn bytes_are_counted_as_nccl_tests_counts_them() {
        let eight = |test: NcclCollective| test.counts(MIB, 8).expect("it is enough");
        let counts = eight(NcclCollective::AllGather);
        assert_eq!((counts.send, counts.receive), (MIB / 32, MIB / 4));
        assert_eq!(counts.bytes(), MIB);
        let counts = eight(NcclCollective::ReduceScatter);
        assert_eq!((counts.send, counts.receive, counts.call), (MIB / 4, MIB / 32, MIB / 32));
        assert_eq!(eight(NcclCollective::AllReduce).bytes(), MIB);
        assert_eq!(eight(NcclCollective::AllToAll).call, MIB / 32);
    }

    #[test]
    fn parts_are_cut_to_sixteen_bytes() {
        // 1,000 bytes over three ranks: 83 elements each, rounded down to 80.
        let counts = NcclCollective::AllGather.counts(1_000, 3).expect("it is enough");
        assert_eq!((counts.call, counts.receive, counts.bytes()), (80, 240, 960));
        assert_eq!(
            NcclCollective::AllToAll.counts(64, 8),
            None,
            "a part of two elements rounds down to none"
        );
        assert_eq!(NcclCollective::AllReduce.counts(3, 8), None);
    }

    #[test]
    fn sizes_grow_by_the_factor_up_to_the_largest() {
        assert_eq!(sweep_sizes(8, 128, 2), [8, 16, 32, 64, 128]);
        assert_eq!(sweep_sizes(8, 100, 4), [8, 32]);
        assert_eq!(sweep_sizes(1 << 20, 1 << 20, 2), [1 << 20]);
        assert_eq!(sweep_sizes(16, 64, 1), [16], "a factor of 1 ends the sweep");
        assert_eq!(sweep_sizes(64, 16, 2), [0; 0]);
        assert_eq!(sweep_sizes(u64::MAX / 2, u64::MAX, 4).len(), 1);
    }
}
