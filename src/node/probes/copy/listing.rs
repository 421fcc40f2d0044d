//! Lists the GPUs in a separate process, so that the parent, which starts one process per GPU,
//! makes no GPU call itself.

use std::io;
use std::path::Path;

use super::{devices, error_class};
use crate::ffi::cuda::CudaLibrary;
use crate::probes::protocol::{ProbeEmitter, ProbeMessage};

/// Reports the GPUs of the driver, and opens none. Returns an error if the output is closed.
pub fn list_gpus(cuda: Option<&Path>, root: &Path, mouth: &mut ProbeEmitter<'_>) -> io::Result<()> {
    mouth.announce_step("loading the driver's library");
    let cuda = match CudaLibrary::load(cuda) {
        Ok(cuda) => cuda,
        Err(error) => {
            return mouth.emit(&ProbeMessage::Problem(error_class::classify_load_error(&error)));
        }
    };
    mouth.announce_step("initializing the driver");
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
