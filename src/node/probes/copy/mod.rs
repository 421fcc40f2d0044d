//! Native copy-engine probe: measures like nvbandwidth's `_ce` tests, using only the driver.
//!
//! Runs in a child process (`probes::protocol`), because a call into a driver can hang and cannot
//! be cancelled. It reports numbers and problems, and does not judge them.

pub(crate) mod buffers;
pub mod cases;
pub(crate) mod cross_node;
pub mod devices;
pub(crate) mod numa;
pub(crate) mod pattern;
pub(crate) mod peer_access;
pub(crate) mod raii;
mod readings;
mod session;
pub(crate) mod timing;

use std::io;
use std::path::Path;

use devices::OpenGpu;
use session::CopySession;

use super::protocol::{ProbeEmitter, ProbeMessage};
use crate::ffi::cuda::CudaLibrary;
use crate::probes::copy::devices::ProcessesPerGpu;
use crate::probes::driver_error;
use crate::probes::task::CopyTask;
use model::probe_problem_class::ProbeProblemClass;

/// Measures and reports the results. Returns an error if the output is closed.
pub fn measure(task: &CopyTask, emitter: &mut ProbeEmitter<'_>) -> io::Result<()> {
    if let Some(across) = task.across {
        return cross_node::measure(task, across, emitter);
    }
    emitter.announce_step("loading the driver's library");
    let cuda = match CudaLibrary::load(task.cuda.as_deref()) {
        Ok(cuda) => cuda,
        Err(error) => {
            return emitter.emit(&ProbeMessage::Problem(driver_error::classify_load_error(&error)));
        }
    };
    let (gpus, failed) =
        match open_gpus(&cuda, &task.root, &task.gpus, ProcessesPerGpu::One, emitter)? {
            Some(opened) => opened,
            None => return Ok(()),
        };
    let measured = CopySession::new(&cuda, task, gpus, failed).run_tests(emitter)?;
    if measured { emitter.emit(&ProbeMessage::End) } else { Ok(()) }
}

/// Opens and reports the requested GPUs; `None` if no GPU can be measured. The flag is true if some
/// could not be opened.
pub(crate) fn open_gpus<'c>(
    cuda: &'c CudaLibrary,
    root: &Path,
    requested: &[u32],
    processes: ProcessesPerGpu,
    emitter: &mut ProbeEmitter<'_>,
) -> io::Result<Option<(Vec<OpenGpu<'c>>, bool)>> {
    emitter.announce_step("initializing the driver");
    devices::emit_driver_version(cuda, emitter)?;
    let found = match devices::find_gpus(cuda, root) {
        Ok(found) => found,
        Err(problem) => return emitter.emit(&ProbeMessage::Problem(*problem)).map(|()| None),
    };
    let (found, absent) = devices::select_gpus(found, requested);
    let mut failed = !absent.is_empty();
    for problem in absent {
        emitter.emit(&ProbeMessage::Problem(problem))?;
    }
    let mut gpus = Vec::new();
    for one in &found {
        emitter.announce_step(&format!("opening GPU {}", one.probed.index));
        match OpenGpu::open(cuda, one, root, processes) {
            Ok(gpu) => {
                emitter.emit(&ProbeMessage::Gpu(gpu.probed.clone()))?;
                gpus.push(gpu);
            }
            Err(problem) => {
                failed = true;
                let whole_node = problem.class == ProbeProblemClass::SystemNotReady;
                emitter.emit(&ProbeMessage::Problem(*problem))?;
                if whole_node {
                    break;
                }
            }
        }
    }
    Ok((!gpus.is_empty()).then_some((gpus, failed)))
}
