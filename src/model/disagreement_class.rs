//! The classes of disagreements between sources: every name, in one table.
//!
//! The names are fixed: `docs/claims.md` lists them. A disagreement that no measurement settles
//! is a finding; the class of the finding is this name with the prefix `claim-`.

use super::finding_class::named_class;

/// Prefix of the name where a disagreement is a finding.
const PREFIX: &str = "claim-";

macro_rules! classes {
    ($($variant:ident = $name:literal,)*) => {
        /// The subject that two sources disagree about.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum DisagreementClass {
            $(#[doc = $name] $variant,)*
            /// A class of another version: claims may be read from folders that it wrote.
            Other(UnlistedDisagreementClass),
        }

        impl DisagreementClass {
            /// Every class of this version, in the order of `docs/claims.md`.
            pub const LISTED: &[Self] = &[$(Self::$variant,)*];

            /// The class name of the corresponding finding.
            pub fn in_findings(&self) -> &str {
                match self {
                    $(Self::$variant => concat!("claim-", $name),)*
                    Self::Other(UnlistedDisagreementClass(name)) => name,
                }
            }

            /// The class with this name in a document.
            pub fn from_name(name: &str) -> Self {
                match name {
                    $($name => Self::$variant,)*
                    _ => Self::Other(UnlistedDisagreementClass(format!("{PREFIX}{name}").into())),
                }
            }
        }
    };
}

classes! {
    BlockAgainstClique = "block-against-clique",
    SplitClique = "split-clique",
    MergedCliques = "merged-cliques",
    DomainsDisagree = "domains-disagree",
    DomainsNested = "domains-nested",
    NodeInTwoDomains = "node-in-two-domains",
    StaleLabel = "stale-label",
    LabelWithoutAllGpus = "label-without-all-gpus",
    LabelMissing = "label-missing",
    GpusInTwoCliques = "gpus-in-two-cliques",
    SentinelClique = "sentinel-clique",
    FabricNotAttached = "fabric-not-attached",
    FileNotInForce = "file-not-in-force",
    TopologyOverride = "topology-override",
    ImexPluginUnset = "imex-plugin-unset",
    ImexBeyondDomain = "imex-beyond-domain",
    ImexAgainstClique = "imex-against-clique",
    ReadyWithoutClique = "ready-without-clique",
    ImexSize = "imex-size",
    DomainSize = "domain-size",
    NodeMissing = "node-missing",
    NodeExtra = "node-extra",
    UnknownToScheduler = "unknown-to-scheduler",
    InNoDomain = "in-no-domain",
    NoDomainClaimed = "no-domain-claimed",
    GpuCount = "gpu-count",
    NicCount = "nic-count",
    ProductMixed = "product-mixed",
    ProductAgainstClaim = "product-against-claim",
    DriverMixed = "driver-mixed",
    TopoRankDuplicate = "topo-rank-duplicate",
    TopoRankUnusable = "topo-rank-unusable",
    TopoRankMissing = "topo-rank-missing",
    TopoRankOrder = "topo-rank-order",
    BeliefBeyondDomain = "belief-beyond-domain",
    BeliefMultiNodeNvlink = "belief-multi-node-nvlink",
    HostsSwapped = "hosts-swapped",
    RailsSwapped = "rails-swapped",
    LeafMislabelled = "leaf-mislabelled",
    LeafAgainstNeighbour = "leaf-against-neighbour",
    LeavesDisagree = "leaves-disagree",
    SlotTaken = "slot-taken",
    SlotDisagrees = "slot-disagrees",
    RackDisagrees = "rack-disagrees",
    RackAgainstDomain = "rack-against-domain",
    AmbiguousName = "ambiguous-name",
    OptedOut = "opted-out",
    OutOfService = "out-of-service",
}

/// The name of an unlisted class, as in findings. Only [`DisagreementClass::from_name`] creates
/// one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UnlistedDisagreementClass(Box<str>);

impl DisagreementClass {
    /// The name in documents.
    pub fn as_str(&self) -> &str {
        &self.in_findings()[PREFIX.len()..]
    }

    /// The class whose findings have this name.
    pub fn from_finding_name(name: &str) -> Option<Self> {
        name.strip_prefix(PREFIX).map(Self::from_name)
    }
}

named_class!(DisagreementClass);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::finding_class::FindingClass;

    #[test]
    fn every_class_has_a_name_of_its_own_that_reads_back_here_and_in_findings() {
        let mut names = BTreeSet::new();
        for class in DisagreementClass::LISTED {
            let name = class.as_str();
            assert!(names.insert(name), "{name} twice");
            assert_eq!(format!("{class:?}").to_ascii_lowercase(), name.replace('-', ""));
            assert_eq!(DisagreementClass::from_name(name), *class);
            let found = FindingClass::Claim(class.clone());
            assert_eq!(found.as_str(), format!("{PREFIX}{name}"));
            assert_eq!(FindingClass::from_name(found.as_str()), found);
        }
    }

    proptest! {
        #[test]
        fn any_name_is_read_and_written_as_it_was(name in any::<String>()) {
            let written = serde_json::to_string(&name).expect("a string");
            let class: DisagreementClass = serde_json::from_str(&written).expect("no error");
            prop_assert_eq!(class.as_str(), name.as_str());
            prop_assert_eq!(serde_json::to_string(&class).expect("a string"), written);
        }
    }
}
