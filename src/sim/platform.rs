//! Hardware of simulated machines: links, rates, and the share of them that each kind of probe
//! reaches on healthy hardware.
//!
//! This description is deliberately independent of the thresholds that judge it: a test that shares
//! its truth with the judge proves nothing.

/// One kind of machine. Rates are in GB/s per direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Hardware {
    /// The name in `thresholds/`.
    pub platform: &'static str,
    /// Product name as the tools print it.
    pub product: &'static str,
    /// GPUs per node.
    pub gpus: u32,
    /// True if one NVLink domain spans several nodes.
    pub spans_nodes: bool,
    /// NVLinks per GPU; each connects to a different switch plane.
    pub links: u32,
    /// Data rate of one link.
    pub link_rate: f64,
    /// Line rate of one link as `nvidia-smi nvlink -s` prints it.
    pub line_rate: &'static str,
    /// Share of the link rate that a copy engine reaches when it writes.
    pub copy_engine: f64,
    /// Share of the link rate that kernels reach.
    pub kernel: f64,
    /// Ratio of reads to writes, for copy engines and kernels.
    pub reads: [f64; 2],
    /// Share of a kernel's rate while both directions of a pair run, for writes and reads.
    pub kernel_both: [f64; 2],
    /// Share of the link rate that p2pBandwidthLatencyTest reaches.
    pub peer_copy: f64,
    /// Host to device with a copy engine.
    pub h2d: f64,
    /// Device to host with a copy engine.
    pub d2h: f64,
    /// Share of h2d and d2h while the other direction runs.
    pub host_bidirectional: [f64; 2],
    /// Ratio of kernels to copy engines, host to device and back.
    pub host_kernel: [f64; 2],
    /// Share of h2d and d2h while all GPUs copy.
    pub host_all: [f64; 2],
    /// Share while all GPUs copy in both directions.
    pub host_all_bidirectional: f64,
    /// GPU to GPU without NVLink.
    pub pcie_peer: f64,
    /// RDMA rate of one NIC.
    pub nic: f64,
    /// NICs of a node, one per rail.
    pub rails: usize,
    /// Line rate of one NIC.
    pub rail_rate: f64,
    /// Copies within one GPU's memory.
    pub local: f64,
    /// Bus bandwidth of a large all-reduce within one domain.
    pub all_reduce: f64,
    /// Bus bandwidth of collectives without reduction in the switch.
    pub ring: f64,
    /// Time that a collective loses to filling its pipeline per doubling of the ranks, in bytes at
    /// full rate.
    pub filling: f64,
    /// Latency from SM to host memory in nanoseconds.
    pub host_latency: f64,
    /// Latency from SM to a peer's memory in nanoseconds.
    pub peer_latency: f64,
    /// PCI bus IDs in CUDA's order.
    pub bus_ids: &'static [&'static str],
    /// Driver version.
    pub driver: &'static str,
    /// CUDA version of the driver API, as an integer.
    pub cuda: u32,
}

const TRAY: &[&str] = &["00000008:01:00", "00000009:01:00", "00000018:01:00", "00000019:01:00"];
const BOARD: &[&str] = &[
    "00000000:1b:00",
    "00000000:43:00",
    "00000000:52:00",
    "00000000:61:00",
    "00000000:9d:00",
    "00000000:c3:00",
    "00000000:d1:00",
    "00000000:df:00",
];

const A100: Hardware = Hardware {
    platform: "hgx-a100",
    product: "NVIDIA A100-SXM4-80GB",
    gpus: 8,
    spans_nodes: false,
    links: 12,
    link_rate: 25.0,
    line_rate: "25",
    copy_engine: 0.92,
    kernel: 0.87,
    reads: [1.0, 1.0],
    kernel_both: [0.81, 0.81],
    peer_copy: 0.91,
    h2d: 26.0,
    d2h: 26.1,
    host_bidirectional: [0.74, 0.72],
    host_kernel: [0.99, 0.99],
    host_all: [1.0, 1.0],
    host_all_bidirectional: 0.7,
    pcie_peer: 17.5,
    nic: 24.4,
    rails: 8,
    rail_rate: 25.0,
    local: 1320.0,
    all_reduce: 234.5,
    ring: 229.0,
    filling: 5e6,
    host_latency: 880.0,
    peer_latency: 820.0,
    bus_ids: BOARD,
    driver: "550.127.05",
    cuda: 12040,
};

const H100: Hardware = Hardware {
    platform: "hgx-h100",
    product: "NVIDIA H100 80GB HBM3",
    links: 18,
    line_rate: "26.562",
    copy_engine: 0.88,
    kernel: 0.747,
    kernel_both: [1.0, 1.0],
    peer_copy: 0.836,
    h2d: 55.4,
    d2h: 55.1,
    host_bidirectional: [0.95, 0.93],
    host_kernel: [0.92, 0.944],
    host_all_bidirectional: 0.9,
    pcie_peer: 37.0,
    nic: 48.6,
    rail_rate: 50.0,
    local: 1270.0,
    all_reduce: 479.0,
    ring: 364.0,
    filling: 30e6,
    host_latency: 790.0,
    peer_latency: 760.0,
    driver: "560.35.05",
    cuda: 12060,
    ..A100
};

const H200: Hardware =
    Hardware { platform: "hgx-h200", product: "NVIDIA H200", local: 1900.0, ..H100 };

const B200: Hardware = Hardware {
    platform: "hgx-b200",
    product: "NVIDIA B200",
    link_rate: 50.0,
    line_rate: "53.125",
    copy_engine: 0.861,
    kernel: 0.797,
    reads: [0.991, 1.095],
    kernel_both: [0.985, 0.857],
    peer_copy: 0.829,
    h2d: 55.6,
    d2h: 55.2,
    local: 2900.0,
    all_reduce: 842.0,
    ring: 676.0,
    host_latency: 810.0,
    peer_latency: 790.0,
    driver: "570.133.20",
    cuda: 12080,
    ..H100
};

const B300: Hardware = Hardware {
    platform: "hgx-b300",
    product: "NVIDIA B300 SXM6 AC",
    nic: 97.2,
    rail_rate: 100.0,
    driver: "580.95.05",
    cuda: 13000,
    ..B200
};

const GB200: Hardware = Hardware {
    platform: "gb200-nvl72",
    product: "NVIDIA GB200",
    gpus: 4,
    spans_nodes: true,
    rails: 4,
    h2d: 201.0,
    d2h: 193.0,
    host_bidirectional: [0.82, 0.84],
    host_kernel: [1.0, 1.0],
    host_all: [0.84, 0.945],
    host_all_bidirectional: 0.42,
    all_reduce: 844.0,
    ring: 681.0,
    host_latency: 770.0,
    bus_ids: TRAY,
    ..B200
};

const GB300: Hardware = Hardware {
    platform: "gb300-nvl72",
    product: "NVIDIA GB300",
    h2d: 211.5,
    d2h: 193.5,
    host_bidirectional: [0.815, 0.885],
    host_all: [0.887, 0.956],
    host_all_bidirectional: 0.45,
    nic: 97.2,
    rail_rate: 100.0,
    all_reduce: 935.0,
    driver: "580.95.05",
    cuda: 13000,
    ..GB200
};

const GH200: Hardware = Hardware {
    platform: "gh200",
    product: "NVIDIA GH200 480GB",
    gpus: 1,
    rails: 1,
    h2d: 345.0,
    d2h: 296.0,
    host_bidirectional: [0.513, 0.633],
    host_kernel: [1.0, 1.19],
    bus_ids: &["00000009:01:00"],
    driver: "550.127.05",
    cuda: 12040,
    ..H100
};

const ALL: &[&Hardware] = &[&A100, &H100, &H200, &B200, &B300, &GB200, &GB300, &GH200];

/// The hardware of this platform.
pub fn find_hardware(platform: &str) -> Option<&'static Hardware> {
    ALL.iter().copied().find(|hardware| hardware.platform == platform)
}

/// The platforms that can be simulated.
pub fn platform_names() -> Vec<&'static str> {
    ALL.iter().map(|hardware| hardware.platform).collect()
}

impl Hardware {
    /// Bus ID of the GPU in this slot.
    pub fn bus_id(&self, slot: u32) -> &'static str {
        self.bus_ids.get(slot as usize).copied().unwrap_or("00000000:00:00")
    }

    /// True if its switches reduce; those of A100 boards do not.
    pub fn multicast(&self) -> bool {
        self.platform != "hgx-a100"
    }

    /// All links of one GPU, one bit each.
    pub fn all_links(&self) -> u64 {
        (1_u64 << self.links) - 1
    }
}
