//! Classifies errors of sharing memory over the fabric: the class, and a sentence with the remedy.
//! Pure.
//!
//! The same code has different meanings in different steps: if `cuMemCreate` is not permitted, this
//! process lacks an IMEX channel; if an import is not permitted, the two processes have no channel
//! in common. `driver_error` classifies errors whose meaning does not depend on the step. No error
//! has the kind `corrupt`.

use super::imex_channel::{DEVICE, ImexChannels};
use crate::ffi::cuda::{CudaCallError, code};
use crate::probes::driver_error;
use model::parse_output::OutputProblemKind;
use model::probe_problem_class::ProbeProblemClass;
use model::probe_report::ProbeProblem;

/// The step in which the error occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FabricCallStep {
    /// Allocating memory that can be shared, or querying its granularity.
    Create,
    Export,
    /// Importing memory of the same process.
    ImportOwn,
    /// Importing memory of another process.
    ImportPeer,
    Map,
    /// All other steps.
    Other,
}

/// Classifies an error that occurred "while `doing`".
pub(crate) fn classify_error(
    error: &CudaCallError,
    step: FabricCallStep,
    doing: &str,
    channels: &ImexChannels,
) -> ProbeProblem {
    let Some((class, meaning)) = explain_error(error, step, channels) else {
        return driver_error::classify_error(error, driver_error::DriverCallStep::Copy, doing);
    };
    let detail = format!("{meaning} ({error}, while {doing})");
    let mut problem = ProbeProblem::new(OutputProblemKind::Error, class, detail);
    problem.code = Some(driver_error::error_name(error));
    problem
}

/// The class and its meaning; `None` if the step does not matter.
fn explain_error(
    error: &CudaCallError,
    step: FabricCallStep,
    channels: &ImexChannels,
) -> Option<(ProbeProblemClass, String)> {
    let Some(code) = error.code() else {
        // CUDA 12.3 introduced fabric handles (NCCL's guard at compile time).
        let text = "the driver is too old to share memory over the fabric: R550 is the \
                    minimum, R570 on GB200";
        return (step != FabricCallStep::Other)
            .then(|| (ProbeProblemClass::DriverTooOld, text.to_owned()));
    };
    let own =
        matches!(step, FabricCallStep::Create | FabricCallStep::Export | FabricCallStep::ImportOwn);
    match (code, step) {
        // A driver without fabric handles rejects the handle type as an invalid value.
        (code::INVALID_VALUE, FabricCallStep::Create) => Some((
            ProbeProblemClass::NoFabricHandles,
            "the driver does not support it: it is older than R550 (R570 on GB200), or the GPU is \
             not on an NVLink fabric"
                .to_owned(),
        )),
        (code::NOT_SUPPORTED, FabricCallStep::Create | FabricCallStep::Export) => Some((
            ProbeProblemClass::NoFabricHandles,
            "this GPU or its driver cannot share memory over the fabric: it is not on an NVLink \
             fabric that is up, or the driver is older than R550 (R570 on GB200)"
                .to_owned(),
        )),
        (code::NOT_PERMITTED, _) if own => Some(explain_not_permitted(channels)),
        (code::NOT_PERMITTED, FabricCallStep::ImportPeer) => Some((
            ProbeProblemClass::OtherImexChannel,
            format!(
                "the two processes have no IMEX channel in common: both need the same \
                 /dev/{DEVICE}/channelN (this one can open {})",
                channel_list(channels)
            ),
        )),
        (
            code::INVALID_HANDLE | code::INVALID_VALUE | code::NOT_SUPPORTED,
            FabricCallStep::ImportPeer,
        ) => Some((
            ProbeProblemClass::OtherFabric,
            "the memory is not accessible from here: its GPU is in another NVLink clique, or its \
             node in another IMEX domain (compare `fabricgate node facts`, and `nvidia-imex-ctl \
             -N` on both)"
                .to_owned(),
        )),
        (code::TIMEOUT | code::NOT_READY | code::SYSTEM_NOT_READY, FabricCallStep::ImportPeer) => {
            Some((
                ProbeProblemClass::ImexPeerMissing,
                "IMEX did not answer in time: its daemon does not run on one of the nodes, \
                 or the daemons cannot connect to each other (`nvidia-imex-ctl -N`)"
                    .to_owned(),
            ))
        }
        (code::INVALID_HANDLE | code::TIMEOUT, _) if own => Some((
            ProbeProblemClass::ImexNotRunning,
            "this process cannot import its own memory: the IMEX daemon of this node does \
             not answer (`systemctl status nvidia-imex`)"
                .to_owned(),
        )),
        (code::SYSTEM_NOT_READY, _) => Some((
            ProbeProblemClass::SystemNotReady,
            "the NVLink fabric is not up on this node: nvidia-fabricmanager must run, and the \
             GPU's fabric state must be Completed (`nvidia-smi -q`)"
                .to_owned(),
        )),
        _ => None,
    }
}

/// Explains why a process may not share memory over the fabric.
fn explain_not_permitted(channels: &ImexChannels) -> (ProbeProblemClass, String) {
    if !channels.open.is_empty() {
        let text = format!(
            "the driver does not permit shared memory although this process can open {}: IMEX is \
             not up on this node, or the fabric is not (`nvidia-imex-ctl -N`, `nvidia-smi -q`)",
            channel_list(channels)
        );
        return (ProbeProblemClass::ImexChannelRefused, text);
    }
    if let Some((name, why)) = channels.closed.first() {
        let text = format!(
            "this process may not open /dev/{DEVICE}/{name} ({why}): give its user or its \
             container the permission"
        );
        return (ProbeProblemClass::ImexChannelDenied, text);
    }
    match channels.registered {
        Some(false) => (
            ProbeProblemClass::NoImex,
            format!(
                "the driver offers no IMEX channels: {DEVICE} is not in /proc/devices, so that \
                 this is not a multi-node NVLink system, or its driver was loaded without \
                 support for it"
            ),
        ),
        _ => (
            ProbeProblemClass::NoImexChannel,
            format!(
                "/dev/{DEVICE}/channel0 does not exist: on a host load the driver with \
                 NVreg_CreateImexChannel0=1 or create it with mknod (the major number is in \
                 /proc/devices), pass it to a container as a device (in Kubernetes with a \
                 ComputeDomain)"
            ),
        ),
    }
}

fn channel_list(channels: &ImexChannels) -> String {
    if channels.open.is_empty() { "none".to_owned() } else { channels.open.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(code: i32) -> CudaCallError {
        CudaCallError::Failed { call: "cuMemSomething", code, name: code::result_name(code) }
    }

    fn class(code: i32, step: FabricCallStep, channels: &ImexChannels) -> String {
        classify_error(&failed(code), step, "trying", channels).class.to_string()
    }

    fn open() -> ImexChannels {
        let open = vec!["channel0".to_owned()];
        ImexChannels { registered: Some(true), open, ..ImexChannels::default() }
    }

    #[test]
    fn a_refusal_is_classified_by_the_visible_channels() {
        let none = ImexChannels { registered: Some(true), ..ImexChannels::default() };
        let unregistered = ImexChannels { registered: Some(false), ..ImexChannels::default() };
        let closed = vec![("channel0".to_owned(), "Permission denied".to_owned())];
        let denied = ImexChannels { registered: Some(true), closed, ..ImexChannels::default() };
        for step in [FabricCallStep::Create, FabricCallStep::Export, FabricCallStep::ImportOwn] {
            assert_eq!(class(800, step, &none), "no-imex-channel");
            assert_eq!(class(800, step, &ImexChannels::default()), "no-imex-channel");
            assert_eq!(class(800, step, &unregistered), "no-imex");
            assert_eq!(class(800, step, &denied), "imex-channel-denied");
            assert_eq!(class(800, step, &open()), "imex-channel-refused");
        }
        assert_eq!(class(800, FabricCallStep::ImportPeer, &open()), "other-imex-channel");
        let problem =
            classify_error(&failed(800), FabricCallStep::Create, "making 2 MiB on GPU 0", &denied);
        assert!(problem.detail.contains("nvidia-caps-imex-channels/channel0 (Permission denied)"));
        assert!(problem.detail.contains("(cuMemSomething: CUDA_ERROR_NOT_PERMITTED (800), while"));
        assert_eq!(problem.code.as_deref(), Some("CUDA_ERROR_NOT_PERMITTED"));
    }

    #[test]
    fn the_same_code_has_another_meaning_in_another_step() {
        assert_eq!(class(400, FabricCallStep::ImportPeer, &open()), "other-fabric");
        assert_eq!(class(400, FabricCallStep::ImportOwn, &open()), "imex-not-running");
        assert_eq!(class(909, FabricCallStep::ImportPeer, &open()), "imex-peer-missing");
        assert_eq!(class(801, FabricCallStep::Create, &open()), "no-fabric-handles");
        assert_eq!(class(1, FabricCallStep::Create, &open()), "no-fabric-handles");
        assert_eq!(class(802, FabricCallStep::Create, &open()), "system-not-ready");
        assert_eq!(class(2, FabricCallStep::Create, &open()), "no-memory");
        assert_eq!(class(719, FabricCallStep::Other, &open()), "gpu-lost");
    }

    #[test]
    fn a_missing_call_is_an_old_driver_with_its_floor() {
        let missing = CudaCallError::Missing { call: "cuMemExportToShareableHandle" };
        let problem = classify_error(&missing, FabricCallStep::Export, "exporting", &open());
        assert_eq!(problem.class.as_str(), "driver-too-old");
        assert!(problem.detail.contains("R550") && problem.detail.contains("R570"));
    }

    #[test]
    fn no_error_blames_a_gpu() {
        let steps = [
            FabricCallStep::Create,
            FabricCallStep::Export,
            FabricCallStep::ImportOwn,
            FabricCallStep::ImportPeer,
            FabricCallStep::Map,
            FabricCallStep::Other,
        ];
        for code in 1..1000 {
            for step in steps {
                let problem = classify_error(&failed(code), step, "trying", &open());
                assert_eq!(problem.kind, OutputProblemKind::Error);
            }
        }
    }
}
