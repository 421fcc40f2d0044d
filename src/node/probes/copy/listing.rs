//! Lists the GPUs in a separate process, so that the parent, which starts one process per GPU,
//! makes no GPU call itself.

use std::io;
use std::path::Path;

use super::devices;
use crate::ffi::cuda::CudaLibrary;
use crate::probes::driver_error;
use crate::probes::protocol::{ProbeEmitter, ProbeMessage};

/// Reports the GPUs of the driver, and opens none. Returns an error if the output is closed.
pub fn list_gpus(
    cuda: Option<&Path>,
    root: &Path,
    emitter: &mut ProbeEmitter<'_>,
) -> io::Result<()> {
    emitter.announce_step("loading the driver's library");
    let cuda = match CudaLibrary::load(cuda) {
        Ok(cuda) => cuda,
        Err(error) => {
            return emitter.emit(&ProbeMessage::Problem(driver_error::classify_load_error(&error)));
        }
    };
    emitter.announce_step("initializing the driver");
    let found = match devices::find_gpus(&cuda, root) {
        Ok(found) => found,
        Err(problem) => return emitter.emit(&ProbeMessage::Problem(*problem)),
    };
    if let Ok((major, minor)) = cuda.driver_version() {
        emitter.emit(&ProbeMessage::Driver { cuda: format!("{major}.{minor}") })?;
    }
    for gpu in found {
        emitter.emit(&ProbeMessage::Gpu(gpu.probed))?;
    }
    emitter.emit(&ProbeMessage::End)
}
