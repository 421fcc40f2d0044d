//! What each platform must deliver, and where every number comes from.
//!
//! The types here are what the judge compares with. `file` turns the text of
//! one TOML file into them, `builtin` holds the files of `thresholds/` that
//! are compiled in, `overlay` lays a site's file over those, and `lint` says
//! what is legal but looks wrong. No file is opened here: the caller hands in
//! text.

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

/// How well a number is known, best first. The order is used to choose.
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
    /// Arithmetic from other numbers, shown in `source`.
    Derived,
    /// The site's own measurement.
    Site,
}

/// The kind of path a test runs over.
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

/// What one test must show on one platform.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Expectation {
    /// The test case, as the tool names it.
    pub testcase: String,
    /// What the test runs over.
    pub path: TestPath,
    /// The unit of `value` and `floor`.
    pub unit: Unit,
    /// Smallest message or buffer it holds for, in bytes.
    #[serde(default)]
    pub min_bytes: u64,
    /// What a healthy part shows; `None` where only a floor is known.
    pub value: Option<f64>,
    /// How far below `value` a healthy machine may still be, as a fraction:
    /// the uncertainty of the expectation, not of the measurement.
    pub tolerance: f64,
    /// The same for nvbandwidth up to v0.6, which copies 64 MiB where later
    /// versions copy 512: there the start of a copy weighs more.
    pub tolerance_small_buffer: Option<f64>,
    /// Below this it is broken, whatever the neighbours show.
    pub floor: Option<f64>,
    /// How the value was made, such as `18 links x 25 GB/s x 0.88`.
    pub derivation: String,
    /// How well it is known.
    pub confidence: ThresholdConfidence,
    /// Where it comes from.
    pub source: String,
    /// The threshold file it was read from, as shown to people.
    #[serde(default)]
    pub origin: String,
}

/// What a collective must show, and under which conditions that holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CollectiveExpectation {
    /// The test case, such as `all_reduce_perf`.
    pub testcase: String,
    /// Smallest message it holds for, in bytes.
    pub min_bytes: u64,
    /// Fewest ranks it holds for.
    pub min_ranks: u32,
    /// Most ranks it holds for.
    pub max_ranks: u32,
    /// The algorithm it was seen with (`NVLS`, `Ring`, ...).
    pub algorithm: String,
    /// The transport it was seen with (`NVLink`, `IB`, ...).
    pub transport: String,
    /// Bus bandwidth of a healthy machine, in GB/s.
    pub busbw: f64,
    /// How far below that a healthy machine may still be, as a fraction.
    pub tolerance: f64,
    /// Below this it is broken, in GB/s.
    pub floor: Option<f64>,
    /// How well it is known.
    pub confidence: ThresholdConfidence,
    /// Where it comes from.
    pub source: String,
    /// The threshold file it was read from, as shown to people.
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
    /// Every pair of GPUs has the full rate (through switches); bridges and
    /// meshes do not.
    pub switched: bool,
    /// Where both come from.
    pub source: String,
}

/// Everything expected of one platform.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Platform {
    /// Its name, such as `hgx-h100`.
    pub name: String,
    /// What it is, for people.
    pub title: String,
    /// Product names of its GPUs as the tools print them; `*` matches any text.
    pub devices: Vec<String>,
    /// GPUs a node must show.
    pub gpus_per_node: Option<u32>,
    /// Nodes in one NVLink domain; 1 where NVLink stays inside the node.
    pub nodes_per_domain: Option<u32>,
    /// Its NVLinks, where it has any.
    pub nvlink: Option<NvlinkSpec>,
    /// What one port carries in one direction, in GB/s, where this is a class of NICs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_rate: Option<f64>,
    /// What each test must show, by test case.
    pub expectations: BTreeMap<String, Expectation>,
    /// What collectives must show.
    pub collectives: Vec<CollectiveExpectation>,
    /// The file it was read from, as shown to people.
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

    /// All of them, best first.
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

    /// All of them.
    pub const ALL: [Self; 5] = [Self::Nvlink, Self::Pcie, Self::Host, Self::Local, Self::Nic];
}

impl Platform {
    /// Whether every pair of GPUs has the full rate of NVLink.
    pub fn is_switched(&self) -> bool {
        self.nvlink.as_ref().is_some_and(|links| links.switched)
    }

    /// Whether a product name, as a tool prints it, is a GPU of this platform.
    pub fn has_device(&self, product: &str) -> bool {
        self.devices.iter().any(|pattern| matches_pattern(pattern, product))
    }

    /// Whether its GPUs reach each other by NVLink, or something is stated of what they
    /// show each other.
    pub fn joins_gpus(&self) -> bool {
        let between = |e: &Expectation| matches!(e.path, TestPath::Nvlink | TestPath::Pcie);
        self.nvlink.is_some()
            || self.expectations.values().any(between)
            || !self.collectives.is_empty()
    }

    /// Whether this is a class of NICs: it expects something of ports only.
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

    /// The one platform whose GPUs have this product name and that fits the
    /// number of GPUs; `None` where none fits or several do.
    pub fn find_by_device(&self, product: &str, gpus: Option<u32>) -> Option<&Platform> {
        let mut fitting = self.platforms.values().filter(|p| {
            p.has_device(product)
                && (gpus.is_none() || p.gpus_per_node.is_none() || p.gpus_per_node == gpus)
        });
        let first = fitting.next()?;
        fitting.next().is_none().then_some(first)
    }

    /// The same for a product as schedulers spell it: labels and generic
    /// resources have no blanks (`NVIDIA-H100-80GB-HBM3`,
    /// `nvidia_h100_80gb_hbm3`, `gb200`), and case and vendor are lost there.
    pub fn find_by_product(&self, product: &str, gpus: Option<u32>) -> Option<&Platform> {
        let said = normalize_product(product);
        let mut fitting = self.platforms.values().filter(|p| {
            p.devices.iter().any(|pattern| matches_pattern(&normalize_product(pattern), &said))
                && (gpus.is_none() || p.gpus_per_node.is_none() || p.gpus_per_node == gpus)
        });
        let first = fitting.next()?;
        fitting.next().is_none().then_some(first)
    }
}

/// A product name without what its spellings differ in.
fn normalize_product(product: &str) -> String {
    let blanks = product.to_lowercase().replace(['-', '_'], " ");
    let words = blanks.split_whitespace().collect::<Vec<_>>().join(" ");
    if words.starts_with("nvidia ") { words } else { format!("nvidia {words}") }
}

/// Whether `text` fits `pattern`, in which `*` stands for any text.
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
