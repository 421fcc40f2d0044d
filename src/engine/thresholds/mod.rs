//! The expectations of each platform, and the source of every number.
//!
//! The judge compares with the types defined here. `file` parses the text of one TOML file into
//! them, `builtin` holds the compiled-in files of `thresholds/`, `overlay` applies a site's file on
//! top, and `lint` warns about legal but suspicious content. This module opens no file: the caller
//! passes text.

pub mod builtin;
mod entry;
pub mod fault;
pub mod file;
pub mod lint;
mod lookup;
pub mod overlay;
pub mod site_file;
pub mod testcase;
mod toml_reader;

#[cfg(test)]
mod shipped_tests;

use std::collections::BTreeMap;

pub use lookup::{
    CollectiveConditions, CollectiveTransport, ForcedPath, LookupMiss, MeasurementConditions,
    NicPorts, format_size,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use model::unit::Unit;

/// How reliable a number is, best first. Selection uses this order.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ThresholdConfidence {
    /// The vendor's documentation.
    VendorDocument,
    /// The vendor's code, or a statement by its maintainer.
    VendorCode,
    /// Published by an operator of such machines.
    OperatorDocument,
    /// A third party's document with logs.
    ThirdParty,
    /// One user's report, or a test fixture.
    SingleReport,
    /// Computed from other numbers, shown in `source`.
    Derived,
    /// The site's own measurement.
    Site,
}

/// The kind of path that a test uses.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum TestPath {
    /// GPU to GPU over NVLink.
    Nvlink,
    /// GPU to GPU over PCIe.
    Pcie,
    /// Host to GPU or back (PCIe or C2C).
    Host,
    /// Inside one GPU.
    Local,
    /// A NIC port.
    Nic,
}

/// The expectation of one test on one platform.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Expectation {
    /// The test case, as the tool names it.
    pub testcase: String,
    /// The path that the test uses.
    pub path: TestPath,
    /// The unit of `value` and `floor`.
    pub unit: Unit,
    /// Smallest message or buffer it applies to, in bytes.
    #[serde(default)]
    pub min_bytes: u64,
    /// The value of a healthy part; `None` if only a floor is known.
    pub value: Option<f64>,
    /// The allowed deviation of a healthy machine below `value`, as a fraction: the uncertainty of
    /// the expectation, not of the measurement.
    pub tolerance: f64,
    /// The same for nvbandwidth up to v0.6, which copies 64 MiB where later versions copy 512:
    /// there the startup time of a copy has more weight.
    pub tolerance_small_buffer: Option<f64>,
    /// A lower value is a fault, whatever the peers read.
    pub floor: Option<f64>,
    /// The derivation of the value, such as `18 links x 25 GB/s x 0.88`.
    pub derivation: String,
    /// The reliability of the value.
    pub confidence: ThresholdConfidence,
    /// The source of the value.
    pub source: String,
    /// The threshold file it comes from, for messages.
    #[serde(default)]
    pub origin: String,
}

/// The expectation of a collective, and the conditions it applies under.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CollectiveExpectation {
    /// The test case, such as `all_reduce_perf`.
    pub testcase: String,
    /// Smallest message it applies to, in bytes.
    pub min_bytes: u64,
    /// Minimum number of ranks it applies to.
    pub min_ranks: u32,
    /// Maximum number of ranks it applies to.
    pub max_ranks: u32,
    /// The algorithm it was measured with (`NVLS`, `Ring`, ...).
    pub algorithm: String,
    /// The transport it was measured with (`NVLink`, `IB`, ...).
    pub transport: String,
    /// Bus bandwidth of a healthy machine, in GB/s.
    pub busbw: f64,
    /// The allowed deviation of a healthy machine below that, as a fraction.
    pub tolerance: f64,
    /// A lower value is a fault, in GB/s.
    pub floor: Option<f64>,
    /// The reliability of the value.
    pub confidence: ThresholdConfidence,
    /// The source of the value.
    pub source: String,
    /// The threshold file it comes from, for messages.
    #[serde(default)]
    pub origin: String,
}

/// The NVLinks of one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NvlinkSpec {
    /// Links per GPU.
    pub links: u32,
    /// Data rate per link and direction, in GB/s.
    pub rate: f64,
    /// Line rate as `nvidia-smi nvlink -s` prints it, in GB/s.
    pub line_rate: Option<f64>,
    /// Every pair of GPUs has the full rate (through switches); bridges and meshes do not.
    pub switched: bool,
    /// The source of these numbers.
    pub source: String,
}

/// All expectations of one platform.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Platform {
    /// Its name, such as `hgx-h100`.
    pub name: String,
    /// A readable title of the platform.
    pub title: String,
    /// Product names of its GPUs as the tools print them; `*` matches any text.
    pub devices: Vec<String>,
    /// Required number of GPUs per node.
    pub gpus_per_node: Option<u32>,
    /// Nodes in one NVLink domain; 1 if NVLink stays inside the node.
    pub nodes_per_domain: Option<u32>,
    /// Its NVLinks, if it has any.
    pub nvlink: Option<NvlinkSpec>,
    /// The rate of one port in one direction, in GB/s, if this is a NIC class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_rate: Option<f64>,
    /// The expectations, by test case.
    pub expectations: BTreeMap<String, Expectation>,
    /// The expectations of collectives.
    pub collectives: Vec<CollectiveExpectation>,
    /// The file it comes from, for messages.
    pub origin: String,
}

impl ThresholdConfidence {
    /// The name used in files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::VendorDocument => "vendor-document",
            Self::VendorCode => "vendor-code",
            Self::OperatorDocument => "operator-document",
            Self::ThirdParty => "third-party",
            Self::SingleReport => "single-report",
            Self::Derived => "derived",
            Self::Site => "site",
        }
    }

    /// All levels, best first.
    pub const ALL: [Self; 7] = [
        Self::VendorDocument,
        Self::VendorCode,
        Self::OperatorDocument,
        Self::ThirdParty,
        Self::SingleReport,
        Self::Derived,
        Self::Site,
    ];
}

impl TestPath {
    /// The name used in files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nvlink => "nvlink",
            Self::Pcie => "pcie",
            Self::Host => "host",
            Self::Local => "local",
            Self::Nic => "nic",
        }
    }

    /// All kinds of path.
    pub const ALL: [Self; 5] = [Self::Nvlink, Self::Pcie, Self::Host, Self::Local, Self::Nic];
}

impl Platform {
    /// Whether every pair of GPUs has the full rate of NVLink.
    pub fn is_switched(&self) -> bool {
        self.nvlink.as_ref().is_some_and(|links| links.switched)
    }

    /// Whether a product name, as a tool prints it, belongs to this platform.
    pub fn has_device(&self, product: &str) -> bool {
        self.devices.iter().any(|pattern| matches_pattern(pattern, product))
    }

    /// Whether NVLink connects its GPUs, or an expectation between GPUs is stated.
    pub fn joins_gpus(&self) -> bool {
        let between = |e: &Expectation| matches!(e.path, TestPath::Nvlink | TestPath::Pcie);
        self.nvlink.is_some()
            || self.expectations.values().any(between)
            || !self.collectives.is_empty()
    }

    /// Whether this is a NIC class: it has expectations for ports only.
    pub fn is_nic(&self) -> bool {
        !self.expectations.is_empty() && self.expectations.values().all(|e| e.path == TestPath::Nic)
    }

    /// Whether GPUs of different nodes share one NVLink domain.
    pub fn spans_nodes(&self) -> bool {
        self.nodes_per_domain.is_some_and(|n| 1 < n)
    }
}

/// All platforms and NIC classes in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlatformCatalogue {
    /// By name.
    pub platforms: BTreeMap<String, Platform>,
}

impl PlatformCatalogue {
    /// The platform of this name.
    pub fn platform(&self, name: &str) -> Option<&Platform> {
        self.platforms.get(name)
    }

    /// The only platform that lists this product name and matches the number of GPUs; `None` if
    /// none or several match.
    pub fn find_by_device(&self, product: &str, gpus: Option<u32>) -> Option<&Platform> {
        let mut fitting = self.platforms.values().filter(|p| {
            p.has_device(product)
                && (gpus.is_none() || p.gpus_per_node.is_none() || p.gpus_per_node == gpus)
        });
        let first = fitting.next()?;
        fitting.next().is_none().then_some(first)
    }

    /// The same for a product name as schedulers spell it: labels and generic resources have no
    /// blanks (`NVIDIA-H100-80GB-HBM3`, `nvidia_h100_80gb_hbm3`, `gb200`), and lose case and
    /// vendor.
    pub fn find_by_product(&self, product: &str, gpus: Option<u32>) -> Option<&Platform> {
        let normalized = normalize_product(product);
        let mut fitting = self.platforms.values().filter(|p| {
            p.devices
                .iter()
                .any(|pattern| matches_pattern(&normalize_product(pattern), &normalized))
                && (gpus.is_none() || p.gpus_per_node.is_none() || p.gpus_per_node == gpus)
        });
        let first = fitting.next()?;
        fitting.next().is_none().then_some(first)
    }
}

/// Normalises a product name across its spellings.
fn normalize_product(product: &str) -> String {
    let blanks = product.to_lowercase().replace(['-', '_'], " ");
    let words = blanks.split_whitespace().collect::<Vec<_>>().join(" ");
    if words.starts_with("nvidia ") { words } else { format!("nvidia {words}") }
}

/// Whether `text` matches `pattern`, in which `*` stands for any text.
pub(crate) fn matches_pattern(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|head| text.strip_prefix(head)) else {
        return false;
    };
    let Some(last) = pattern.contains('*').then(|| pattern.rsplit('*').next().unwrap_or("")) else {
        return rest.is_empty();
    };
    let middle: Vec<&str> = parts.collect();
    for part in middle.iter().take(middle.len().saturating_sub(1)) {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_in_a_device_pattern_matches_any_text() {
        assert!(matches_pattern("NVIDIA GB200", "NVIDIA GB200"));
        assert!(!matches_pattern("NVIDIA GB200", "NVIDIA GB200 NVL4"));
        assert!(matches_pattern("NVIDIA H100*HBM3", "NVIDIA H100 80GB HBM3"));
        assert!(!matches_pattern("NVIDIA H100*HBM3", "NVIDIA H100 PCIe"));
        assert!(matches_pattern("*A100-SXM4*", "NVIDIA A100-SXM4-80GB"));
        assert!(matches_pattern("*A100-SXM4*", "A100-SXM4-40GB"));
    }
}
