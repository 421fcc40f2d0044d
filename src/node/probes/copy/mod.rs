//! Our own copy-engine probe: what nvbandwidth's `_ce` tests measure, with
//! nothing but the driver.
//!
//! Runs in a child process (`probe::said`), because a call into a driver can
//! hang and cannot be given up. Says numbers and problems; what a number should
//! be it does not know.

pub(crate) mod across;
pub(crate) mod buffers;
pub mod cases;
pub(crate) mod devices;
pub mod listing;
pub(crate) mod near;
pub(crate) mod numbers;
pub(crate) mod owned;
pub(crate) mod pattern;
pub(crate) mod peers;
mod readings;
mod session;
pub mod task;
pub(crate) mod timing;
pub(crate) mod trouble;

use std::io;
use std::path::Path;

use super::said::Line;
use super::said::Mouth;
use crate::ffi::cuda::Cuda;
use devices::Gpu;
use session::Session;
use task::Task;

/// Measures, and says what comes of it. An error is that nobody listens.
pub fn measure(task: &Task, mouth: &mut Mouth<'_>) -> io::Result<()> {
    if let Some(across) = task.across {
        return across::measure(task, across, mouth);
    }
    mouth.begin("loading the driver's library");
    let cuda = match Cuda::load(task.cuda.as_deref()) {
        Ok(cuda) => cuda,
        Err(error) => return mouth.say(&Line::Problem(trouble::unloadable(&error))),
    };
    let (gpus, failed) = match open(&cuda, &task.root, &task.gpus, mouth)? {
        Some(opened) => opened,
        None => return Ok(()),
    };
    let measured = Session::new(&cuda, task, gpus, failed).run(mouth)?;
    if measured { mouth.say(&Line::End) } else { Ok(()) }
}

/// Opens the GPUs that are asked for, and says which; nothing where there is
/// nothing to measure. The flag is that some could not be opened.
pub(crate) fn open<'c>(
    cuda: &'c Cuda,
    root: &Path,
    asked: &[u32],
    mouth: &mut Mouth<'_>,
) -> io::Result<Option<(Vec<Gpu<'c>>, bool)>> {
    mouth.begin("bringing the driver up");
    let found = match devices::find(cuda, root) {
        Ok(found) => found,
        Err(problem) => return mouth.say(&Line::Problem(*problem)).map(|()| None),
    };
    if let Ok((major, minor)) = cuda.driver_version() {
        mouth.say(&Line::Driver { cuda: format!("{major}.{minor}") })?;
    }
    let (found, absent) = devices::asked_for(found, asked);
    let mut failed = !absent.is_empty();
    for problem in absent {
        mouth.say(&Line::Problem(problem))?;
    }
    let mut gpus = Vec::new();
    for one in &found {
        mouth.begin(&format!("opening GPU {}", one.probed.index));
        match Gpu::open(cuda, one, root) {
            Ok(gpu) => {
                mouth.say(&Line::Gpu(gpu.probed.clone()))?;
                gpus.push(gpu);
            }
            Err(problem) => {
                failed = true;
                let whole_node = problem.class.as_str() == "system-not-ready";
                mouth.say(&Line::Problem(*problem))?;
                if whole_node {
                    break;
                }
            }
        }
    }
    Ok((!gpus.is_empty()).then_some((gpus, failed)))
}
