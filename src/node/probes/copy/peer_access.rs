//! Enables peer access between GPUs: access to each other's memory without the host.
//!
//! Without peer access, a copy goes through host memory. That number does not measure the fabric,
//! so it is not taken (nvbandwidth leaves such cells empty too).

use std::collections::BTreeSet;

use super::devices::OpenGpu;
use crate::ffi::cuda::{CudaCallError, CudaLibrary, code};
use crate::probes::driver_error;
use crate::probes::driver_error::DriverCallStep;
use model::parse_output::OutputProblemKind;
use model::probe_problem_class::ProbeProblemClass;
use model::probe_report::ProbeProblem;

/// Peer access by GPU index.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerAccess {
    enabled: BTreeSet<(usize, usize)>,
    refused: bool,
}

impl PeerAccess {
    /// Enables peer access where possible, and reports the pairs without it.
    pub(crate) fn enable(cuda: &CudaLibrary, gpus: &[OpenGpu<'_>]) -> (Self, Vec<ProbeProblem>) {
        let (mut peers, mut problems) = (Self::default(), Vec::new());
        for (a, one) in gpus.iter().enumerate() {
            for (b, other) in gpus.iter().enumerate().skip(a + 1) {
                let both = enable_peer_access(cuda, one, other).and_then(|there| {
                    let back = enable_peer_access(cuda, other, one)?;
                    Ok(there && back)
                });
                match both {
                    Ok(true) => {
                        peers.enabled.insert((a, b));
                    }
                    Ok(false) => problems.push(no_access_problem(one.index(), other.index())),
                    Err(error) => {
                        peers.refused = true;
                        let (one, other) = (one.index(), other.index());
                        let doing = format!("enabling peer access of GPU {one} and GPU {other}");
                        let mut problem =
                            driver_error::classify_error(&error, DriverCallStep::Peers, &doing);
                        problem.gpu = Some(one);
                        problems.push(problem);
                    }
                }
            }
        }
        (peers, problems)
    }

    /// True if two GPUs have peer access.
    pub(crate) fn can_reach(&self, a: usize, b: usize) -> bool {
        self.enabled.contains(&(a.min(b), a.max(b)))
    }

    /// True if the driver refused access that it had reported as possible.
    pub(crate) fn was_refused(&self) -> bool {
        self.refused
    }

    /// True if no pair has peer access.
    pub(crate) fn is_empty(&self) -> bool {
        self.enabled.is_empty()
    }
}

/// Enables access of a GPU to the memory of another, if possible.
fn enable_peer_access(
    cuda: &CudaLibrary,
    from: &OpenGpu<'_>,
    to: &OpenGpu<'_>,
) -> Result<bool, CudaCallError> {
    if !cuda.can_access_peer(from.device, to.device)? {
        return Ok(false);
    }
    cuda.set_current_context(from.context())?;
    match cuda.enable_peer_access(to.context()) {
        Err(error) if error.code() == Some(code::PEER_ACCESS_ALREADY_ENABLED) => Ok(true),
        other => other.map(|()| true),
    }
}

fn no_access_problem(one: u32, other: u32) -> ProbeProblem {
    let what = format!(
        "GPU {one} and GPU {other} have no peer access: copies between them go \
         through the host and do not measure the fabric, so no number is reported"
    );
    let mut problem =
        ProbeProblem::new(OutputProblemKind::Waived, ProbeProblemClass::NoPeerAccess, what);
    problem.gpu = Some(one);
    problem
}
