//! Which GPUs reach each other's memory without the host, and letting them.
//!
//! Where two do not, a copy between them goes through host memory. That number
//! says nothing of the fabric, so it is not taken (nvbandwidth leaves such cells
//! empty too).

use std::collections::BTreeSet;

use super::devices::OpenGpu;
use super::error_class;
use super::error_class::CopyCallStep;
use crate::ffi::cuda::{CudaCallError, CudaLibrary, code};
use model::parse_output::OutputProblemKind;
use model::probe_report::ProbeProblem;

/// Who reaches whom, by their places.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerAccess {
    enabled: BTreeSet<(usize, usize)>,
    refused: bool,
}

impl PeerAccess {
    /// Lets all GPUs that can reach each other, and says which cannot.
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
                        let doing = format!("letting GPU {one} and GPU {other} reach each other");
                        let mut problem =
                            error_class::classify_error(&error, CopyCallStep::Peers, &doing);
                        problem.gpu = Some(one);
                        problems.push(problem);
                    }
                }
            }
        }
        (peers, problems)
    }

    /// Whether two GPUs reach each other.
    pub(crate) fn can_reach(&self, a: usize, b: usize) -> bool {
        self.enabled.contains(&(a.min(b), a.max(b)))
    }

    /// Whether the driver refused what it said was possible.
    pub(crate) fn was_refused(&self) -> bool {
        self.refused
    }

    /// Whether no two do.
    pub(crate) fn is_empty(&self) -> bool {
        self.enabled.is_empty()
    }
}

/// Lets a GPU reach the memory of another, if it can.
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
        "GPU {one} and GPU {other} do not reach each other's memory: copies between them go \
         through the host, which says nothing of the fabric, so there is no number"
    );
    let mut problem = ProbeProblem::new(OutputProblemKind::Waived, "no-peer-access", what);
    problem.gpu = Some(one);
    problem
}
