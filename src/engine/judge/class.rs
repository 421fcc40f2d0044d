//! What the judge makes of the class of a finding that it gave: one table.

use model::finding_class::FindingClass;

/// Over what another measurement can show a class again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// Paths between GPUs.
    Fabric,
    /// Who reaches whom in a domain.
    Domain,
    /// The scale-out network.
    Network,
    /// The data that arrives.
    Data,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent properties, by name")]
pub(super) struct Traits {
    /// A measurement with other partners can show it again. Others are states, counts, or
    /// of something larger.
    pub(super) again: Option<Path>,
    /// It is seen by a rate.
    pub(super) has_rate: bool,
    /// It rests on what GPUs read from each other.
    pub(super) of_matrix: bool,
    /// It tells who of a domain reaches whom: a run inside one node never takes such a path.
    pub(super) of_membership: bool,
    /// A low bandwidth that something around the GPU can explain.
    pub(super) has_surroundings: bool,
    /// A node passes in spite of it. A domain that reaches more than it is claimed to works
    /// as claimed; how far readings scatter is in what a node could have hidden.
    pub(super) lets_pass: bool,
    /// A collective is as fast as its slowest member: where a part of the domain is found
    /// guilty, it says nothing of the others.
    pub(super) of_collective: bool,
}

const PLAIN: Traits = Traits {
    again: None,
    has_rate: true,
    of_matrix: false,
    of_membership: false,
    has_surroundings: false,
    lets_pass: false,
    of_collective: false,
};

pub(super) fn traits(class: &FindingClass) -> Traits {
    let again = |path| Traits { again: Some(path), ..PLAIN };
    match class {
        FindingClass::NvlinkLow => {
            Traits { of_matrix: true, has_surroundings: true, ..again(Path::Fabric) }
        }
        FindingClass::P2pLow | FindingClass::PcieP2pLow => {
            Traits { has_surroundings: true, ..again(Path::Fabric) }
        }
        FindingClass::NvlinkAbsent => Traits { of_matrix: true, ..again(Path::Fabric) },
        FindingClass::WrongDomain | FindingClass::MultiNodeNvlinkOff => {
            Traits { of_matrix: true, of_membership: true, ..again(Path::Domain) }
        }
        FindingClass::ToolError => Traits { has_rate: false, ..again(Path::Domain) },
        FindingClass::NicLow | FindingClass::PathLow => again(Path::Network),
        FindingClass::NicUnreachable => Traits { has_rate: false, ..again(Path::Network) },
        FindingClass::DataCorruption => Traits { has_rate: false, ..again(Path::Data) },
        FindingClass::SplitDomain => Traits { of_matrix: true, of_membership: true, ..PLAIN },
        FindingClass::PlaneLow | FindingClass::DomainLow | FindingClass::FabricNotConfigured => {
            Traits { of_matrix: true, ..PLAIN }
        }
        FindingClass::HostLinkLow | FindingClass::LocalCopyLow => {
            Traits { has_surroundings: true, ..PLAIN }
        }
        FindingClass::ClaimedApart | FindingClass::CliqueShared | FindingClass::NoisyEverywhere => {
            Traits { lets_pass: true, ..PLAIN }
        }
        FindingClass::CollectiveLow | FindingClass::CollectiveFallback => {
            Traits { of_collective: true, ..PLAIN }
        }
        FindingClass::GpuMissing
        | FindingClass::NvlinkInactive
        | FindingClass::NvlinkRate
        | FindingClass::FabricState
        | FindingClass::FabricHealth
        | FindingClass::DiagnosticFailed
        | FindingClass::LeafLow
        | FindingClass::NetworkLow
        | FindingClass::AllLowAlike
        | FindingClass::Drifting
        | FindingClass::Unstable
        | FindingClass::MnnvlOff
        | FindingClass::NvlsOff
        | FindingClass::MatrixContradicted
        | FindingClass::StaleClique
        | FindingClass::MergedCliques
        | FindingClass::BelowOwnHistory
        | FindingClass::FabricConfiguration
        | FindingClass::SplitNode
        | FindingClass::CliqueMixed
        | FindingClass::ImexPeerMissing
        | FindingClass::ImexDomain
        | FindingClass::AboveNominal
        | FindingClass::ClaimLabelContradicted
        | FindingClass::ClaimBeliefBeyondMeasured
        | FindingClass::Claim(_)
        | FindingClass::Other(_) => PLAIN,
    }
}
