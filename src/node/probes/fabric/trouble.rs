//! What an error means where memory is shared over the fabric: its class, and
//! a sentence that says what to do. Pure.
//!
//! The same number means something else at another step: what `cuMemCreate` is
//! not permitted is a channel that this process lacks, what an import is not
//! permitted is a channel that the other one has. Where the step does not
//! matter, `probe::copy` knows the error. No error is of the kind `corrupt`.

use super::channel::Channels;
use super::channel::DEVICE;
use crate::ffi::cuda::CudaError;
use crate::ffi::cuda::code;
use crate::probes::copy::trouble;
use model::parsed::ProblemKind;
use model::probed::ProbeProblem;

/// What was being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Making memory that can be shared, or asking in what sizes.
    Create,
    /// Getting a handle of it.
    Export,
    /// Importing memory of this very process.
    ImportOwn,
    /// Importing memory of another process.
    ImportPeer,
    /// Putting it behind addresses.
    Map,
    /// Anything else.
    Other,
}

/// What this error means, while something was done of which a person would say
/// "while `doing`".
pub(crate) fn problem(
    error: &CudaError,
    step: Step,
    doing: &str,
    channels: &Channels,
) -> ProbeProblem {
    let Some((class, meaning)) = meaning(error, step, channels) else {
        return trouble::problem(error, trouble::Step::Copy, doing);
    };
    let detail = format!("{meaning} ({error}, while {doing})");
    let mut problem = ProbeProblem::new(ProblemKind::Error, class, detail);
    problem.code = Some(match error {
        CudaError::Failed { name, .. } => name.clone(),
        CudaError::Missing { call } => (*call).to_owned(),
    });
    problem
}

/// The class, and what it means; nothing where the step does not matter.
fn meaning(error: &CudaError, step: Step, channels: &Channels) -> Option<(&'static str, String)> {
    let Some(code) = error.code() else {
        // CUDA 12.3 brought fabric handles (NCCL's guard when it is compiled).
        let text = "the driver is too old for memory that is shared over the fabric: R550 is the \
                    floor, R570 on GB200";
        return (step != Step::Other).then(|| ("driver-too-old", text.to_owned()));
    };
    let own = matches!(step, Step::Create | Step::Export | Step::ImportOwn);
    match (code, step) {
        // A driver without fabric handles refuses the kind of handle as a value.
        (code::INVALID_VALUE, Step::Create) => Some((
            "no-fabric-handles",
            "the driver knows no such memory: it is older than R550 (R570 on GB200), or the GPU is \
             on no NVLink fabric"
                .to_owned(),
        )),
        (code::NOT_SUPPORTED, Step::Create | Step::Export) => Some((
            "no-fabric-handles",
            "this GPU or its driver cannot share memory over the fabric: it is on no NVLink \
             fabric that is up, or the driver is older than R550 (R570 on GB200)"
                .to_owned(),
        )),
        (code::NOT_PERMITTED, _) if own => Some(unpermitted(channels)),
        (code::NOT_PERMITTED, Step::ImportPeer) => Some((
            "other-imex-channel",
            format!(
                "the two processes have no IMEX channel in common: both need the same \
                 /dev/{DEVICE}/channelN (this one can open {})",
                listed(channels)
            ),
        )),
        (code::INVALID_HANDLE | code::INVALID_VALUE | code::NOT_SUPPORTED, Step::ImportPeer) => Some((
            "other-fabric",
            "the memory cannot be reached from here: its GPU is in another NVLink clique, or its \
             node in another IMEX domain (compare `fabricgate node facts`, and `nvidia-imex-ctl \
             -N` on both)"
                .to_owned(),
        )),
        (code::TIMEOUT | code::NOT_READY | code::SYSTEM_NOT_READY, Step::ImportPeer) => Some((
            "imex-peer-missing",
            "IMEX did not answer in time: its daemon does not run on this node or on the other, \
             or they do not reach each other (`nvidia-imex-ctl -N`)"
                .to_owned(),
        )),
        (code::INVALID_HANDLE | code::TIMEOUT, _) if own => Some((
            "imex-not-running",
            "this process cannot import what it made itself: the IMEX daemon of this node does \
             not answer (`systemctl status nvidia-imex`)"
                .to_owned(),
        )),
        (code::SYSTEM_NOT_READY, _) => Some((
            "fabric-not-ready",
            "the NVLink fabric is not up on this node: nvidia-fabricmanager must run, and the \
             GPU's fabric state must be Completed (`nvidia-smi -q`)"
                .to_owned(),
        )),
        _ => None,
    }
}

/// Why a process may not share memory over the fabric.
fn unpermitted(channels: &Channels) -> (&'static str, String) {
    if !channels.open.is_empty() {
        let text = format!(
            "the driver does not permit shared memory although this process can open {}: IMEX is \
             not up on this node, or the fabric is not (`nvidia-imex-ctl -N`, `nvidia-smi -q`)",
            listed(channels)
        );
        return ("imex-channel-refused", text);
    }
    if let Some((name, why)) = channels.closed.first() {
        let text = format!(
            "this process may not open /dev/{DEVICE}/{name} ({why}): give its user or its \
             container the right to"
        );
        return ("imex-channel-denied", text);
    }
    match channels.registered {
        Some(false) => (
            "no-imex",
            format!(
                "the driver offers no IMEX channels: {DEVICE} is not in /proc/devices, so that \
                 this is no node of a multi-node NVLink system, or its driver was loaded without \
                 support for it"
            ),
        ),
        _ => (
            "no-imex-channel",
            format!(
                "there is no /dev/{DEVICE}/channel0 here: on a host load the driver with \
                 NVreg_CreateImexChannel0=1 or make the node with mknod (the major number is in \
                 /proc/devices), to a container give it as a device (in Kubernetes by a \
                 ComputeDomain)"
            ),
        ),
    }
}

fn listed(channels: &Channels) -> String {
    if channels.open.is_empty() { "none".to_owned() } else { channels.open.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(code: i32) -> CudaError {
        CudaError::Failed { call: "cuMemSomething", code, name: code::name(code) }
    }

    fn class(code: i32, step: Step, channels: &Channels) -> String {
        problem(&failed(code), step, "trying", channels).class
    }

    fn open() -> Channels {
        let open = vec!["channel0".to_owned()];
        Channels { registered: Some(true), open, ..Channels::default() }
    }

    #[test]
    fn what_is_not_permitted_is_told_apart_by_what_is_there() {
        let none = Channels { registered: Some(true), ..Channels::default() };
        let unregistered = Channels { registered: Some(false), ..Channels::default() };
        let closed = vec![("channel0".to_owned(), "Permission denied".to_owned())];
        let denied = Channels { registered: Some(true), closed, ..Channels::default() };
        for step in [Step::Create, Step::Export, Step::ImportOwn] {
            assert_eq!(class(800, step, &none), "no-imex-channel");
            assert_eq!(class(800, step, &Channels::default()), "no-imex-channel");
            assert_eq!(class(800, step, &unregistered), "no-imex");
            assert_eq!(class(800, step, &denied), "imex-channel-denied");
            assert_eq!(class(800, step, &open()), "imex-channel-refused");
        }
        assert_eq!(class(800, Step::ImportPeer, &open()), "other-imex-channel");
        let said = problem(&failed(800), Step::Create, "making 2 MiB on GPU 0", &denied);
        assert!(said.detail.contains("nvidia-caps-imex-channels/channel0 (Permission denied)"));
        assert!(said.detail.contains("(cuMemSomething: CUDA_ERROR_NOT_PERMITTED (800), while"));
        assert_eq!(said.code.as_deref(), Some("CUDA_ERROR_NOT_PERMITTED"));
    }

    #[test]
    fn the_same_number_means_something_else_at_another_step() {
        assert_eq!(class(400, Step::ImportPeer, &open()), "other-fabric");
        assert_eq!(class(400, Step::ImportOwn, &open()), "imex-not-running");
        assert_eq!(class(909, Step::ImportPeer, &open()), "imex-peer-missing");
        assert_eq!(class(801, Step::Create, &open()), "no-fabric-handles");
        assert_eq!(class(1, Step::Create, &open()), "no-fabric-handles");
        assert_eq!(class(802, Step::Create, &open()), "fabric-not-ready");
        assert_eq!(class(2, Step::Create, &open()), "no-memory");
        assert_eq!(class(719, Step::Other, &open()), "gpu-lost");
    }

    #[test]
    fn a_missing_call_is_an_old_driver_with_its_floor() {
        let missing = CudaError::Missing { call: "cuMemExportToShareableHandle" };
        let said = problem(&missing, Step::Export, "exporting", &open());
        assert_eq!(said.class.as_str(), "driver-too-old");
        assert!(said.detail.contains("R550") && said.detail.contains("R570"));
    }

    #[test]
    fn no_error_speaks_against_a_gpu() {
        let steps =
            [Step::Create, Step::Export, Step::ImportOwn, Step::ImportPeer, Step::Map, Step::Other];
        for code in 1..1000 {
            for step in steps {
                let said = problem(&failed(code), step, "trying", &open());
                assert_eq!(said.kind, ProblemKind::Error);
            }
        }
    }
}
