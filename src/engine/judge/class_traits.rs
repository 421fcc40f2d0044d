//! How the judge treats each finding class: one table.

use model::finding_class::FindingClass;

/// Which second measurement can confirm a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConfirmScope {
    /// Paths between GPUs.
    Fabric,
    /// Reachability within a domain.
    Domain,
    /// The scale-out network.
    Network,
    /// The integrity of received data.
    Data,
}

#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent properties, by name")]
pub(super) struct ClassTraits {
    /// A measurement with other partners can confirm it. Other classes are states, counts, or
    /// concern something larger.
    pub(super) confirmed_over: Option<ConfirmScope>,
    /// It is measured as a rate.
    pub(super) has_rate: bool,
    /// It rests on GPU-to-GPU reads.
    pub(super) is_from_matrix: bool,
    /// It concerns domain membership: a run inside one node never takes such a path.
    pub(super) is_membership: bool,
    /// Low bandwidth that the GPU's surroundings (driver, clocks, host) can explain.
    pub(super) has_driver_telemetry: bool,
    /// The node still passes. A domain that reaches more than claimed works as claimed; the scatter
    /// of readings is part of the loss a node could hide.
    pub(super) lets_pass: bool,
    /// A collective is as fast as its slowest member: once part of the domain is found faulty, the
    /// collective carries no information about the rest.
    pub(super) is_collective: bool,
}

const DEFAULT_TRAITS: ClassTraits = ClassTraits {
    confirmed_over: None,
    has_rate: true,
    is_from_matrix: false,
    is_membership: false,
    has_driver_telemetry: false,
    lets_pass: false,
    is_collective: false,
};

pub(super) fn traits_of(class: &FindingClass) -> ClassTraits {
    let again = |path| ClassTraits { confirmed_over: Some(path), ..DEFAULT_TRAITS };
    match class {
        FindingClass::NvlinkLow => ClassTraits {
            is_from_matrix: true,
            has_driver_telemetry: true,
            ..again(ConfirmScope::Fabric)
        },
        FindingClass::P2pLow | FindingClass::PcieP2pLow => {
            ClassTraits { has_driver_telemetry: true, ..again(ConfirmScope::Fabric) }
        }
        FindingClass::NvlinkAbsent => {
            ClassTraits { is_from_matrix: true, ..again(ConfirmScope::Fabric) }
        }
        FindingClass::WrongDomain | FindingClass::MultiNodeNvlinkOff => {
            ClassTraits { is_from_matrix: true, is_membership: true, ..again(ConfirmScope::Domain) }
        }
        FindingClass::ToolError => ClassTraits { has_rate: false, ..again(ConfirmScope::Domain) },
        FindingClass::NicLow | FindingClass::PathLow => again(ConfirmScope::Network),
        FindingClass::NicUnreachable => {
            ClassTraits { has_rate: false, ..again(ConfirmScope::Network) }
        }
        FindingClass::DataCorruption => {
            ClassTraits { has_rate: false, ..again(ConfirmScope::Data) }
        }
        FindingClass::SplitDomain => {
            ClassTraits { is_from_matrix: true, is_membership: true, ..DEFAULT_TRAITS }
        }
        FindingClass::PlaneLow | FindingClass::DomainLow | FindingClass::FabricNotConfigured => {
            ClassTraits { is_from_matrix: true, ..DEFAULT_TRAITS }
        }
        FindingClass::HostLinkLow | FindingClass::LocalCopyLow => {
            ClassTraits { has_driver_telemetry: true, ..DEFAULT_TRAITS }
        }
        FindingClass::ClaimedApart | FindingClass::CliqueShared | FindingClass::NoisyEverywhere => {
            ClassTraits { lets_pass: true, ..DEFAULT_TRAITS }
        }
        FindingClass::CollectiveLow | FindingClass::CollectiveFallback => {
            ClassTraits { is_collective: true, ..DEFAULT_TRAITS }
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
        | FindingClass::Other(_) => DEFAULT_TRAITS,
    }
}
