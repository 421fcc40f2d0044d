//! Which GPUs there are, in a process of its own: whoever starts one process per
//! GPU makes no GPU call itself.

use std::io;
use std::path::Path;

use super::{devices, error_class};
use crate::ffi::cuda::CudaLibrary;
use crate::probes::protocol::{ProbeEmitter, ProbeMessage};

/// Says the GPUs that the driver shows, and opens none. An error is that nobody
/// listens.
pub fn list_gpus(cuda: Option<&Path>, root: &Path, mouth: &mut ProbeEmitter<'_>) -> io::Result<()> {
    mouth.announce_step("loading the driver's library");
    let cuda = match CudaLibrary::load(cuda) {
        Ok(cuda) => cuda,
        Err(error) => {
            return mouth.emit(&ProbeMessage::Problem(error_class::classify_load_error(&error)));
        }
    };
    mouth.announce_step("bringing the driver up");
    let found = match devices::find_gpus(&cuda, root) {
        Ok(found) => found,
        Err(problem) => return mouth.emit(&ProbeMessage::Problem(*problem)),
    };
    if let Ok((major, minor)) = cuda.driver_version() {
        mouth.emit(&ProbeMessage::Driver { cuda: format!("{major}.{minor}") })?;
    }
    for gpu in found {
        mouth.emit(&ProbeMessage::Gpu(gpu.probed))?;
    }
    mouth.emit(&ProbeMessage::End)
}
