//! Which GPUs there are, in a process of its own: whoever starts one process per
//! GPU makes no GPU call itself.

use std::io;
use std::path::Path;

use super::devices;
use super::trouble;
use crate::ffi::cuda::Cuda;
use crate::probes::said::Line;
use crate::probes::said::Mouth;

/// Says the GPUs that the driver shows, and opens none. An error is that nobody
/// listens.
pub fn list(cuda: Option<&Path>, root: &Path, mouth: &mut Mouth<'_>) -> io::Result<()> {
    mouth.begin("loading the driver's library");
    let cuda = match Cuda::load(cuda) {
        Ok(cuda) => cuda,
        Err(error) => return mouth.say(&Line::Problem(trouble::unloadable(&error))),
    };
    mouth.begin("bringing the driver up");
    let found = match devices::find(&cuda, root) {
        Ok(found) => found,
        Err(problem) => return mouth.say(&Line::Problem(*problem)),
    };
    if let Ok((major, minor)) = cuda.driver_version() {
        mouth.say(&Line::Driver { cuda: format!("{major}.{minor}") })?;
    }
    for gpu in found {
        mouth.say(&Line::Gpu(gpu.probed))?;
    }
    mouth.say(&Line::End)
}
