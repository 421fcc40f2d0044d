//! Which GPUs reach each other's memory without the host, and letting them.
//!
//! Where two do not, a copy between them goes through host memory. That number
//! says nothing of the fabric, so it is not taken (nvbandwidth leaves such cells
//! empty too).

use std::collections::BTreeSet;

use super::devices::Gpu;
use super::trouble;
use super::trouble::Step;
use crate::ffi::cuda::Cuda;
use crate::ffi::cuda::CudaError;
use crate::ffi::cuda::code;
use model::parsed::ProblemKind;
use model::probed::ProbeProblem;

/// Who reaches whom, by their places.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peers {
    joined: BTreeSet<(usize, usize)>,
    refused: bool,
}

impl Peers {
    /// Lets all GPUs that can reach each other, and says which cannot.
    pub(crate) fn join(cuda: &Cuda, gpus: &[Gpu<'_>]) -> (Self, Vec<ProbeProblem>) {
        let (mut peers, mut problems) = (Self::default(), Vec::new());
        for (a, one) in gpus.iter().enumerate() {
            for (b, other) in gpus.iter().enumerate().skip(a + 1) {
                let both = join(cuda, one, other).and_then(|there| {
                    let back = join(cuda, other, one)?;
                    Ok(there && back)
                });
                match both {
                    Ok(true) => {
                        peers.joined.insert((a, b));
                    }
                    Ok(false) => problems.push(apart(one.index(), other.index())),
                    Err(error) => {
                        peers.refused = true;
                        let (one, other) = (one.index(), other.index());
                        let doing = format!("letting GPU {one} and GPU {other} reach each other");
                        let mut problem = trouble::problem(&error, Step::Peers, &doing);
                        problem.gpu = Some(one);
                        problems.push(problem);
                    }
                }
            }
        }
        (peers, problems)
    }

    /// Whether two GPUs reach each other.
    pub(crate) fn reach(&self, a: usize, b: usize) -> bool {
        self.joined.contains(&(a.min(b), a.max(b)))
    }

    /// Whether the driver refused what it said was possible.
    pub(crate) fn was_refused(&self) -> bool {
        self.refused
    }

    /// Whether no two do.
    pub(crate) fn is_empty(&self) -> bool {
        self.joined.is_empty()
    }
}

/// Lets a GPU reach the memory of another, if it can.
fn join(cuda: &Cuda, from: &Gpu<'_>, to: &Gpu<'_>) -> Result<bool, CudaError> {
    if !cuda.can_access_peer(from.device, to.device)? {
        return Ok(false);
    }
    cuda.enter(from.context())?;
    match cuda.enable_peer(to.context()) {
        Err(error) if error.code() == Some(code::PEER_ACCESS_ALREADY_ENABLED) => Ok(true),
        other => other.map(|()| true),
    }
}

fn apart(one: u32, other: u32) -> ProbeProblem {
    let what = format!(
        "GPU {one} and GPU {other} do not reach each other's memory: copies between them go \
         through the host, which says nothing of the fabric, so there is no number"
    );
    let mut problem = ProbeProblem::new(ProblemKind::Waived, "no-peer-access", what);
    problem.gpu = Some(one);
    problem
}
