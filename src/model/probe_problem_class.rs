//! The classes of problems that fabricgate's GPU probes report: every name, in one table.
//!
//! The names are fixed: `docs/gpu-probes.md` lists them.

use super::finding_class::named_class;

macro_rules! classes {
    ($($variant:ident = $name:literal,)*) => {
        /// The cause of an error or of a missing measurement of a GPU probe.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum ProbeProblemClass {
            $(#[doc = $name] $variant,)*
            /// A class of another version: nodes may run another version than the coordinator.
            Other(UnlistedProblemClass),
        }

        impl ProbeProblemClass {
            /// Every class of this version.
            pub const LISTED: &[Self] = &[$(Self::$variant,)*];

            /// The name in documents.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $name,)*
                    Self::Other(UnlistedProblemClass(name)) => name,
                }
            }

            /// The class with this name in a document.
            pub fn from_name(name: &str) -> Self {
                match name {
                    $($name => Self::$variant,)*
                    _ => Self::Other(UnlistedProblemClass(name.into())),
                }
            }
        }
    };
}

classes! {
    // The driver, and the GPUs that it shows.
    NoDriver = "no-driver",
    ForeignLibrary = "foreign-library",
    StubLibrary = "stub-library",
    DriverTooOld = "driver-too-old",
    DriverMismatch = "driver-mismatch",
    DriverFailed = "driver-failed",
    DriverEnded = "driver-ended",
    NoDevice = "no-device",
    NoSuchGpu = "no-such-gpu",
    GpuTwice = "gpu-twice",
    SystemNotReady = "system-not-ready",
    ProhibitedMode = "prohibited-mode",
    ExclusiveMode = "exclusive-mode",
    Mig = "mig",
    GpuUnavailable = "gpu-unavailable",
    Mps = "mps",
    NotPermitted = "not-permitted",
    NotSupported = "not-supported",
    NoPeerAccess = "no-peer-access",
    // Memory and GPU errors.
    NoMemory = "no-memory",
    NoHostMemory = "no-host-memory",
    GpuMemoryError = "gpu-memory-error",
    NvlinkError = "nvlink-error",
    GpuLost = "gpu-lost",
    CudaError = "cuda-error",
    // Memory shared over the fabric.
    NoFabricHandles = "no-fabric-handles",
    NoImex = "no-imex",
    NoImexChannel = "no-imex-channel",
    ImexChannelRefused = "imex-channel-refused",
    ImexChannelDenied = "imex-channel-denied",
    OtherImexChannel = "other-imex-channel",
    OtherFabric = "other-fabric",
    ImexNotRunning = "imex-not-running",
    ImexPeerMissing = "imex-peer-missing",
    // NCCL.
    NoNccl = "no-nccl",
    NcclTooOld = "nccl-too-old",
    NcclVersionsDiffer = "nccl-versions-differ",
    NcclRanks = "nccl-ranks",
    NcclCudaError = "nccl-cuda-error",
    NcclSystemError = "nccl-system-error",
    NcclRemoteError = "nccl-remote-error",
    NcclRefused = "nccl-refused",
    NcclError = "nccl-error",
    NcclWarning = "nccl-warning",
    NoUniqueId = "no-unique-id",
    AnotherPath = "another-path",
    PathUnknown = "path-unknown",
    // Participants of a probe.
    LeftAlone = "left-alone",
    PeerGone = "peer-gone",
    PeerLost = "peer-lost",
    OtherProcessGone = "other-process-gone",
    NoCounterpart = "no-counterpart",
    NotCounted = "not-counted",
    RankMissing = "rank-missing",
    RankFailed = "rank-failed",
    RankGone = "rank-gone",
    OneRank = "one-rank",
    OneGpu = "one-gpu",
    // Tests and their numbers.
    UnknownTest = "unknown-test",
    NoSize = "no-size",
    NoSizes = "no-sizes",
    NoTime = "no-time",
    WrongData = "wrong-data",
    UnevenRound = "uneven-round",
    CopyStuck = "copy-stuck",
    // Processes of a probe.
    RootRefused = "root-refused",
    NotStarted = "not-started",
    Hung = "hung",
    Unreadable = "unreadable",
    Unanswered = "unanswered",
    ChildDied = "child-died",
    CutShort = "cut-short",
    Interrupted = "interrupted",
    LeftBehind = "left-behind",
    TimeOut = "time-out",
    OutOfTime = "out-of-time",
}

/// The name of an unlisted class. Only [`ProbeProblemClass::from_name`] creates one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UnlistedProblemClass(Box<str>);

named_class!(ProbeProblemClass);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_class_is_read_back_from_its_name() {
        for class in ProbeProblemClass::LISTED {
            assert_eq!(ProbeProblemClass::from_name(class.as_str()), *class);
        }
        assert_eq!(
            ProbeProblemClass::from_name("of-another-version").as_str(),
            "of-another-version"
        );
    }

    #[test]
    fn the_page_about_gpu_probes_lists_every_class() {
        let page = include_str!("../../docs/gpu-probes.md");
        let listed: BTreeSet<&str> = page.split('`').collect();
        for class in ProbeProblemClass::LISTED {
            assert!(listed.contains(class.as_str()), "docs/gpu-probes.md lacks `{class}`");
        }
    }
}
