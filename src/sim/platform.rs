//! What simulated machines are built of: links, rates, and how much of them
//! each kind of probe gets on healthy hardware.
//!
//! This is the simulator's own description of hardware, on purpose not the
//! thresholds it will be judged by: a test that shares its truth with the
//! judge proves nothing.

/// One kind of machine. Rates are GB/s per direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Hardware {
    /// The name in `thresholds/`.
    pub platform: &'static str,
    /// Product name as the tools print it.
    pub product: &'static str,
    /// GPUs per node.
    pub gpus: u32,
    /// One NVLink domain spans several nodes.
    pub spans_nodes: bool,
    /// NVLinks per GPU; each ends at another switch plane.
    pub links: u32,
    /// Data rate of one link.
    pub link_rate: f64,
    /// Line rate of one link as `nvidia-smi nvlink -s` prints it.
    pub line_rate: &'static str,
    /// Share of the link rate a copy engine delivers when it writes.
    pub copy_engine: f64,
    /// The same for kernels.
    pub kernel: f64,
    /// How reads compare with writes, for copy engines and kernels.
    pub reads: [f64; 2],
    /// Share left to kernels while both directions of a pair run, for writes
    /// and reads.
    pub kernel_both: [f64; 2],
    /// The share for p2pBandwidthLatencyTest.
    pub peer_copy: f64,
    /// Host to device with a copy engine.
    pub h2d: f64,
    /// Device to host with a copy engine.
    pub d2h: f64,
    /// Share of h2d and d2h that is left while the other direction runs.
    pub host_bidirectional: [f64; 2],
    /// How kernels compare with copy engines, host to device and back.
    pub host_kernel: [f64; 2],
    /// Share of h2d and d2h that is left while all GPUs copy.
    pub host_all: [f64; 2],
    /// Share that is left while all GPUs copy both ways.
    pub host_all_bidirectional: f64,
    /// GPU to GPU without NVLink.
    pub pcie_peer: f64,
    /// What one NIC delivers to RDMA.
    pub nic: f64,
    /// NICs of a node, one per rail.
    pub rails: usize,
    /// Line rate of one NIC.
    pub rail_rate: f64,
    /// Copies inside one GPU's memory.
    pub local: f64,
    /// Bus bandwidth of a large all-reduce inside one domain.
    pub all_reduce: f64,
    /// The same for collectives that no switch reduces.
    pub ring: f64,
    /// Bytes' worth of time that a collective loses to filling its pipeline,
    /// for every doubling of the ranks.
    pub filling: f64,
    /// Latency from SM to host memory in nanoseconds.
    pub host_latency: f64,
    /// Latency from SM to a peer's memory in nanoseconds.
    pub peer_latency: f64,
    /// PCI bus ids in the order CUDA counts.
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
    /// Bus id of the GPU in this slot.
    pub fn bus_id(&self, slot: u32) -> &'static str {
        self.bus_ids.get(slot as usize).copied().unwrap_or("00000000:00:00")
    }

    /// Whether its switches reduce: those of A100 boards do not.
    pub fn multicast(&self) -> bool {
        self.platform != "hgx-a100"
    }

    /// All links of one GPU, one bit each.
    pub fn all_links(&self) -> u64 {
        (1_u64 << self.links) - 1
    }
}
