//! The classes of findings: every class name of the judge, in one table.
//!
//! The names are fixed: documents, reasons in Slurm, labels of nodes and `docs/findings.md` carry
//! them. A stage that decides by class uses a `match` without a wildcard, so that the compiler
//! finds every place when a class is added.

use super::disagreement_class::DisagreementClass;

macro_rules! classes {
    ($($variant:ident = $name:literal,)*) => {
        /// The kind of fault behind a finding.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum FindingClass {
            $(#[doc = $name] $variant,)*
            /// A disagreement between sources that no measurement settles.
            Claim(DisagreementClass),
            /// A class of another version. Verdicts, journals and certificates outlive the
            /// version that wrote them: an unlisted class keeps its name, and only the outcome of
            /// its finding counts.
            Other(UnlistedFindingClass),
        }

        impl FindingClass {
            /// Every class of this version, in the order of `docs/findings.md`; without those of
            /// disagreements.
            pub const LISTED: &[Self] = &[$(Self::$variant,)*];

            /// The name in documents.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $name,)*
                    Self::Claim(class) => class.in_findings(),
                    Self::Other(UnlistedFindingClass(name)) => name,
                }
            }

            /// The class with this name in a document.
            pub fn from_name(name: &str) -> Self {
                match name {
                    $($name => Self::$variant,)*
                    _ => match DisagreementClass::from_finding_name(name) {
                        Some(class) => Self::Claim(class),
                        None => Self::Other(UnlistedFindingClass(name.into())),
                    },
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

/// The name of an unlisted class. Only [`FindingClass::from_name`] creates one, so it is never
/// the name of a listed class.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UnlistedFindingClass(Box<str>);

/// The class names, joined into one text.
pub fn join_class_names<'c>(classes: impl IntoIterator<Item = &'c FindingClass>) -> String {
    classes.into_iter().map(FindingClass::as_str).collect::<Vec<_>>().join(", ")
}

/// Common behaviour of finding classes and disagreement classes: each is its name, in text and in
/// documents.
macro_rules! named_class {
    ($class:ident) => {
        impl std::fmt::Display for $class {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        /// By name: documents order findings and lists of classes this way.
        impl Ord for $class {
            fn cmp(&self, other: &Self) -> std::cmp::Ordering {
                self.as_str().cmp(other.as_str())
            }
        }

        impl PartialOrd for $class {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }

        impl serde::Serialize for $class {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $class {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Ok(Self::from_name(&<String as serde::Deserialize>::deserialize(deserializer)?))
            }
        }

        /// Any string: the published schemas must accept documents of later versions too.
        impl schemars::JsonSchema for $class {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                <String as schemars::JsonSchema>::schema_name()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                <String as schemars::JsonSchema>::json_schema(generator)
            }
        }
    };
}

pub(super) use named_class;

named_class!(FindingClass);

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
            assert!(!matches!(class, FindingClass::Other(_) | FindingClass::Claim(_)));
            let is_kebab = |part: &str| {
                !part.is_empty()
                    && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
            };
            assert!(name.split('-').all(is_kebab), "{name}");
            // The variant must match the name.
            let joined = name.replace('-', "");
            assert_eq!(format!("{class:?}").to_ascii_lowercase(), joined);
            assert_eq!(FindingClass::from_name(name), *class);
            assert_eq!(serde_json::to_value(class).expect("a string"), name);
        }
    }

    proptest! {
        #[test]
        fn any_name_is_read_and_written_as_it_was(name in "(claim-)?\\PC{0,20}|\\PC*") {
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
