//! The classes of findings: every name that the judge gives, in one table.
//!
//! The names are fixed: documents, reasons in Slurm, labels of nodes and
//! `docs/findings.md` carry them. What a stage decides by a class is a `match`
//! of that stage without a wildcard, so that the compiler finds every place
//! when a class is added.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use schemars::JsonSchema;
use schemars::Schema;
use schemars::SchemaGenerator;
use serde::Deserialize;
use serde::Deserializer;
use serde::Serialize;
use serde::Serializer;

macro_rules! classes {
    ($($variant:ident = $name:literal,)*) => {
        /// What kind of fault a finding is.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum FindingClass {
            $(#[doc = $name] $variant,)*
            /// A class of another version. Verdicts, journals and certificates outlive the
            /// version that wrote them: a class that is not listed here is kept as it was
            /// read, and decides nothing.
            Other(Unlisted),
        }

        impl FindingClass {
            /// Every class of this version, in the order of `docs/findings.md`.
            pub const LISTED: &[Self] = &[$(Self::$variant,)*];

            /// The name in documents.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $name,)*
                    Self::Other(Unlisted(name)) => name,
                }
            }

            /// The class of a name in a document.
            pub fn from_name(name: &str) -> Self {
                match name {
                    $($name => Self::$variant,)*
                    _ => Self::Other(Unlisted(name.into())),
                }
            }
        }
    };
}

classes! {
    DataCorruption = "data-corruption",
    ToolError = "tool-error",
    GpuMissing = "gpu-missing",
    DiagnosticFailed = "diagnostic-failed",
    NvlinkAbsent = "nvlink-absent",
    NvlinkInactive = "nvlink-inactive",
    NvlinkRate = "nvlink-rate",
    NvlinkLow = "nvlink-low",
    PcieP2pLow = "pcie-p2p-low",
    HostLinkLow = "host-link-low",
    LocalCopyLow = "local-copy-low",
    P2pLow = "p2p-low",
    NicLow = "nic-low",
    NicUnreachable = "nic-unreachable",
    PathLow = "path-low",
    LeafLow = "leaf-low",
    NetworkLow = "network-low",
    FabricState = "fabric-state",
    AllLowAlike = "all-low-alike",
    Drifting = "drifting",
    Unstable = "unstable",
    MnnvlOff = "mnnvl-off",
    NvlsOff = "nvls-off",
    MatrixContradicted = "matrix-contradicted",
    StaleClique = "stale-clique",
    MergedCliques = "merged-cliques",
    ClaimedApart = "claimed-apart",
    CliqueShared = "clique-shared",
    NoisyEverywhere = "noisy-everywhere",
    BelowOwnHistory = "below-own-history",
    FabricHealth = "fabric-health",
    FabricConfiguration = "fabric-configuration",
    FabricNotConfigured = "fabric-not-configured",
    SplitNode = "split-node",
    SplitDomain = "split-domain",
    MultiNodeNvlinkOff = "multi-node-nvlink-off",
    WrongDomain = "wrong-domain",
    CliqueMixed = "clique-mixed",
    ImexPeerMissing = "imex-peer-missing",
    ImexDomain = "imex-domain",
    PlaneLow = "plane-low",
    DomainLow = "domain-low",
    AboveNominal = "above-nominal",
    CollectiveLow = "collective-low",
    CollectiveFallback = "collective-fallback",
    ClaimLabelContradicted = "claim-label-contradicted",
    ClaimBeliefBeyondMeasured = "claim-belief-beyond-measured",
}

/// The name of a class that is not listed. Only [`FindingClass::from_name`] makes one,
/// so that it is never the name of a listed class.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unlisted(Box<str>);

/// The names of these, as text.
pub fn joined<'c>(classes: impl IntoIterator<Item = &'c FindingClass>) -> String {
    classes.into_iter().map(FindingClass::as_str).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for FindingClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// By name: findings and lists of classes are ordered so in documents.
impl Ord for FindingClass {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl PartialOrd for FindingClass {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Serialize for FindingClass {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for FindingClass {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from_name(&String::deserialize(deserializer)?))
    }
}

/// Any string: the published schemas hold for documents of later versions too.
impl JsonSchema for FindingClass {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        String::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

/// Tests hold findings against the names that documents carry.
#[cfg(test)]
impl PartialEq<str> for FindingClass {
    fn eq(&self, name: &str) -> bool {
        self.as_str() == name
    }
}

#[cfg(test)]
impl PartialEq<&str> for FindingClass {
    fn eq(&self, name: &&str) -> bool {
        self.as_str() == *name
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_class_has_a_kebab_case_name_of_its_own_that_reads_back() {
        let mut names = BTreeSet::new();
        for class in FindingClass::LISTED {
            let name = class.as_str();
            assert!(names.insert(name), "{name} twice");
            assert!(!matches!(class, FindingClass::Other(_)));
            let is_kebab = |part: &str| {
                !part.is_empty()
                    && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
            };
            assert!(name.split('-').all(is_kebab), "{name}");
            // The variant says the same as the name.
            let joined = name.replace('-', "");
            assert_eq!(format!("{class:?}").to_ascii_lowercase(), joined);
            assert_eq!(FindingClass::from_name(name), *class);
            assert_eq!(serde_json::to_value(class).expect("a string"), name);
        }
    }

    proptest! {
        #[test]
        fn any_name_is_read_and_written_as_it_was(name in any::<String>()) {
            let written = serde_json::to_string(&name).expect("a string");
            let class: FindingClass = serde_json::from_str(&written).expect("no error");
            prop_assert_eq!(class.as_str(), name.as_str());
            prop_assert_eq!(serde_json::to_string(&class).expect("a string"), written);
            prop_assert_eq!(class.to_string(), name);
        }
    }

    #[test]
    fn an_unlisted_class_is_no_listed_one() {
        let class = FindingClass::from_name("gremlin-seen");
        assert!(matches!(class, FindingClass::Other(_)));
        assert!(!FindingClass::LISTED.contains(&class));
    }
}
