//! Trials of one GPU's memory, step by step: shared with a process of this node through CUDA IPC,
//! and over the fabric through fabric handles.
//!
//! Steps that depend on a failed step are skipped, and reported as such.

use std::collections::BTreeMap;
use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::imex_channel::ImexChannels;
use super::memory::{FabricMemory, FabricStepFailure, MappedFabricMemory, with_step};
use super::sharing_error;
use super::sharing_error::FabricCallStep;
use crate::ffi::cuda::code::attribute;
use crate::ffi::cuda::{CudaLibrary, DevicePointer, HostMemory, IPC_HANDLE_BYTES};
use crate::probes::copy::cross_node::data;
use crate::probes::copy::devices::OpenGpu;
use crate::probes::copy::pattern::{CopyPattern, WORD};
use crate::probes::copy::raii::GpuMemory;
use crate::probes::protocol::{ProbeEmitter, ProbeMessage};
use model::parse_output::OutputProblemKind;
use model::probe_problem_class::ProbeProblemClass;
use model::probe_report::ProbeProblem;

/// One GPU's memory that the other process can test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SharedMemoryOffer {
    pub(super) gpu: u32,
    /// Seed of its data.
    seed: u32,
    /// Handles, base64 (RFC 4648 section 4), and bytes of the fabric memory.
    ipc: Option<String>,
    fabric: Option<(String, usize)>,
}

/// Data written into the other process's memory of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PeerWriteReport {
    pub(super) gpu: u32,
    seed: u32,
    ipc: bool,
    fabric: bool,
}

#[derive(Clone, Debug)]
pub(super) struct FailedTrialStep {
    gpu: u32,
    name: &'static str,
    why: TrialFailureCause,
}

#[derive(Clone, Debug)]
enum TrialFailureCause {
    Driver(FabricStepFailure),
    /// The data differs from the data written.
    Wrong(String),
}

/// Reports the steps of one GPU, and collects the failures.
pub(super) struct TrialReport<'r, 'm> {
    gpu: u32,
    emitter: &'r mut ProbeEmitter<'m>,
    failed: Vec<FailedTrialStep>,
}

impl<'r, 'm> TrialReport<'r, 'm> {
    pub(super) fn new(gpu: u32, emitter: &'r mut ProbeEmitter<'m>) -> Self {
        Self { gpu, emitter, failed: Vec::new() }
    }

    pub(super) fn into_failures(self) -> Vec<FailedTrialStep> {
        self.failed
    }

    fn emit_note(&mut self, name: &str, value: &str) -> io::Result<()> {
        let name = format!("gpu{} {name}", self.gpu);
        self.emitter.emit(&ProbeMessage::Note { name, value: value.to_owned() })
    }

    /// Runs a step and reports its result.
    fn run_step<T>(
        &mut self,
        name: &'static str,
        work: impl FnOnce() -> Result<T, FabricStepFailure>,
    ) -> io::Result<Option<T>> {
        self.emitter.announce_step(&format!("GPU {}: {name}", self.gpu));
        match work() {
            Ok(value) => {
                self.emit_note(name, "ok")?;
                Ok(Some(value))
            }
            Err(failure) => {
                self.emit_note(name, &failure.error.to_string())?;
                self.failed.push(FailedTrialStep {
                    gpu: self.gpu,
                    name,
                    why: TrialFailureCause::Driver(failure),
                });
                Ok(None)
            }
        }
    }

    /// Compares data and reports the result; returns true if it is correct.
    fn run_comparison(
        &mut self,
        name: &'static str,
        work: impl FnOnce() -> Result<Option<String>, FabricStepFailure>,
    ) -> io::Result<bool> {
        self.emitter.announce_step(&format!("GPU {}: {name}", self.gpu));
        let why = match work() {
            Ok(None) => {
                self.emit_note(name, "ok")?;
                return Ok(true);
            }
            Ok(Some(how)) => {
                self.emit_note(name, &format!("wrong data: {how}"))?;
                TrialFailureCause::Wrong(how)
            }
            Err(failure) => {
                self.emit_note(name, &failure.error.to_string())?;
                TrialFailureCause::Driver(failure)
            }
        };
        self.failed.push(FailedTrialStep { gpu: self.gpu, name, why });
        Ok(false)
    }

    fn skip_steps(&mut self, names: &[&str], why: &str) -> io::Result<()> {
        names.iter().try_for_each(|name| self.emit_note(name, &format!("not tried: {why}")))
    }
}

/// Merges failures to one problem per class, which lists its GPUs.
pub(super) fn merge_problems(
    failures: &[FailedTrialStep],
    channels: &ImexChannels,
) -> Vec<ProbeProblem> {
    let mut classes: BTreeMap<ProbeProblemClass, (ProbeProblem, Vec<u32>)> = BTreeMap::new();
    for failed in failures {
        let doing = format!("testing {} on GPU {}", failed.name, failed.gpu);
        let problem = match &failed.why {
            TrialFailureCause::Driver(failure) => {
                sharing_error::classify_error(&failure.error, failure.step, &doing, channels)
            }
            TrialFailureCause::Wrong(how) => {
                let what = format!("wrong data was found while {doing}: {how}");
                ProbeProblem::new(OutputProblemKind::Corrupt, ProbeProblemClass::WrongData, what)
            }
        };
        let class = problem.class.clone();
        let (_, gpus) = classes.entry(class).or_insert_with(|| (problem, Vec::new()));
        if !gpus.contains(&failed.gpu) {
            gpus.push(failed.gpu);
        }
    }
    let problems = classes.into_values().map(|(mut problem, gpus)| {
        if let [gpu] = gpus[..] {
            problem.gpu = Some(gpu);
        } else {
            let names: Vec<String> = gpus.iter().map(ToString::to_string).collect();
            problem.detail = format!("{}; GPUs {}", problem.detail, names.join(", "));
        }
        problem
    });
    problems.collect()
}

/// A GPU and its memory under test.
#[derive(Debug)]
pub(super) struct SharingTrial<'c> {
    cuda: &'c CudaLibrary,
    // Fields are in drop order.
    ipc: Option<(GpuMemory<'c>, [u8; IPC_HANDLE_BYTES])>,
    fabric: Option<(MappedFabricMemory<'c>, String)>,
    stage: Option<HostMemory<'c>>,
    wrote: (bool, bool),
    bytes: usize,
    seed: u32,
    gpu: OpenGpu<'c>,
}

/// Steps on memory of another process.
const IPC_STEPS: [&str; 2] = ["ipc-open", "ipc-data"];
const FABRIC_STEPS: [&str; 2] = ["fabric-import", "fabric-data"];

impl<'c> SharingTrial<'c> {
    /// Runs the trials that need only one process.
    pub(super) fn run_local(
        cuda: &'c CudaLibrary,
        gpu: OpenGpu<'c>,
        bytes: u64,
        report: &mut TrialReport<'_, '_>,
    ) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).unwrap_or(0).next_multiple_of(WORD).max(WORD);
        // Distinguishes the data of the two processes.
        let seed = std::process::id();
        let (ipc, fabric, stage) = (None, None, None);
        let wrote = (false, false);
        let mut trial = Self { cuda, ipc, fabric, stage, wrote, bytes, seed, gpu };
        let attribute_value = cuda.attribute(trial.gpu.device, attribute::FABRIC_HANDLES);
        // The attribute does not depend on the permissions of this process, so it is only a note.
        report.emit_note(
            "fabric-attribute",
            &attribute_value.map_or_else(|e| e.to_string(), |it| it.to_string()),
        )?;
        trial.stage = report.run_step("host-memory", || {
            cuda.set_current_context(trial.gpu.context())
                .map_err(with_step(FabricCallStep::Other))?;
            cuda.host_memory(data::stage_bytes(bytes)).map_err(with_step(FabricCallStep::Other))
        })?;
        trial.make_ipc(report)?;
        trial.make_fabric(report)?;
        Ok(trial)
    }

    pub(super) fn index(&self) -> u32 {
        self.gpu.index()
    }

    /// The contents of a process's memory.
    fn pattern(&self, seed: u32) -> CopyPattern {
        CopyPattern { seed, stamp: !seed, bytes: self.bytes }
    }

    /// Address of the half that the other process writes to.
    fn second_half(&self, memory: DevicePointer) -> DevicePointer {
        memory.offset(u64::try_from(self.bytes).expect("a size fits 64 bits"))
    }

    fn make_ipc(&mut self, report: &mut TrialReport<'_, '_>) -> io::Result<()> {
        let (cuda, context) = (self.cuda, self.gpu.context());
        let made = report.run_step("ipc-create", || {
            let memory = GpuMemory::allocate(cuda, context, 2 * self.bytes)
                .map_err(with_step(FabricCallStep::Other))?;
            let handle =
                cuda.ipc_handle(memory.address).map_err(with_step(FabricCallStep::Other))?;
            Ok((memory, handle))
        })?;
        let Some((memory, handle)) = made else { return Ok(()) };
        if self.fill(memory.address, "ipc-fill", report)? {
            self.ipc = Some((memory, handle));
        }
        Ok(())
    }

    fn make_fabric(&mut self, report: &mut TrialReport<'_, '_>) -> io::Result<()> {
        let (cuda, device) = (self.cuda, self.gpu.device);
        let bytes = 2 * self.bytes;
        let made =
            report.run_step("fabric-create", || FabricMemory::create(cuda, device, bytes))?;
        let Some(memory) = made else {
            return report
                .skip_steps(&["fabric-export", "fabric-import-own"], "fabric-create failed");
        };
        let Some(handle) = report.run_step("fabric-export", || memory.export())? else {
            return report.skip_steps(&["fabric-import-own"], "fabric-export failed");
        };
        let bytes = memory.bytes;
        let mapped = report.run_step("fabric-map", || {
            let mapped = memory.map()?;
            mapped.allow(device)?;
            Ok(mapped)
        })?;
        let Some(mapped) = mapped else {
            return report.skip_steps(&["fabric-import-own"], "fabric-map failed");
        };
        if !self.fill(mapped.address, "fabric-fill", report)? {
            return report.skip_steps(&["fabric-import-own"], "fabric-fill failed");
        }
        // Same as an import by another process, except for the path between nodes.
        let right = report.run_comparison("fabric-import-own", || {
            let own =
                FabricMemory::import(cuda, handle, bytes, FabricCallStep::ImportOwn)?.map()?;
            own.allow(device)?;
            self.find_difference(own.address, self.seed)
        })?;
        if right {
            self.fabric = Some((mapped, STANDARD.encode(handle)));
        }
        Ok(())
    }

    /// Writes this process's data to memory at this address.
    fn fill(
        &mut self,
        memory: DevicePointer,
        name: &'static str,
        report: &mut TrialReport<'_, '_>,
    ) -> io::Result<bool> {
        let Some(mut stage) = self.stage.take() else {
            return report.skip_steps(&[name], "host-memory failed").map(|()| false);
        };
        let pattern = self.pattern(self.seed);
        let filled = report.run_step(name, || {
            data::fill_memory(self.cuda, &self.gpu, memory, &pattern, &mut stage)
                .map_err(with_step(FabricCallStep::Other))
        })?;
        self.stage = Some(stage);
        Ok(filled.is_some())
    }

    /// Describes the difference between memory and the data of this seed.
    fn find_difference(
        &self,
        memory: DevicePointer,
        seed: u32,
    ) -> Result<Option<String>, FabricStepFailure> {
        let Some(stage) = &self.stage else { return Ok(None) };
        let pattern = self.pattern(seed);
        let found = data::compare_memory(self.cuda, &self.gpu, memory, &pattern, stage);
        let describe = |it: crate::probes::copy::pattern::DataDifference| {
            format!("{} words differ, the first at byte {}", it.words, it.first)
        };
        found.map(|it| it.map(describe)).map_err(with_step(FabricCallStep::Other))
    }

    /// Writes this process's data into the second half of the other's memory.
    fn write_to_peer(
        &self,
        from: DevicePointer,
        to: DevicePointer,
    ) -> Result<(), FabricStepFailure> {
        self.cuda
            .set_current_context(self.gpu.context())
            .map_err(with_step(FabricCallStep::Other))?;
        let copied = self.cuda.copy(self.second_half(to), from, self.bytes, self.gpu.stream());
        copied.and_then(|()| self.gpu.wait()).map_err(with_step(FabricCallStep::Other))
    }

    /// The offer for the other process.
    pub(super) fn to_offer(&self) -> SharedMemoryOffer {
        let ipc = self.ipc.as_ref().map(|(_, handle)| STANDARD.encode(handle));
        let fabric = self.fabric.as_ref();
        let fabric = fabric.map(|(mapped, handle)| (handle.clone(), mapped.memory().bytes));
        SharedMemoryOffer { gpu: self.index(), seed: self.seed, ipc, fabric }
    }

    /// The report of writes into the other process's memory.
    pub(super) fn to_write_report(&self) -> PeerWriteReport {
        let (ipc, fabric) = self.wrote;
        PeerWriteReport { gpu: self.index(), seed: self.seed, ipc, fabric }
    }

    /// Runs the trials that need two processes: opens the other's memory, reads it, writes to it,
    /// and releases it.
    pub(super) fn try_peer(
        &mut self,
        offer: Result<&SharedMemoryOffer, String>,
        report: &mut TrialReport<'_, '_>,
    ) -> io::Result<()> {
        let offer = match offer {
            Ok(offer) => offer,
            Err(why) => {
                report.skip_steps(&IPC_STEPS, &why)?;
                return report.skip_steps(&FABRIC_STEPS, &why);
            }
        };
        self.try_peer_ipc(offer, report)?;
        self.try_peer_fabric(offer, report)
    }

    fn try_peer_ipc(
        &mut self,
        offer: &SharedMemoryOffer,
        report: &mut TrialReport<'_, '_>,
    ) -> io::Result<()> {
        let handle =
            offer.ipc.as_ref().and_then(|text| STANDARD.decode(text).ok()?.try_into().ok());
        let (Some(handle), Some((own, _))) = (handle, &self.ipc) else {
            return report.skip_steps(&IPC_STEPS, "no memory to test");
        };
        let opened = report.run_step("ipc-open", || {
            self.cuda
                .set_current_context(self.gpu.context())
                .map_err(with_step(FabricCallStep::Other))?;
            self.cuda.ipc_open(handle).map_err(with_step(FabricCallStep::Other))
        })?;
        let Some(there) = opened else {
            return report.skip_steps(&["ipc-data"], "ipc-open failed");
        };
        let right = report.run_comparison("ipc-data", || {
            let differs = self.find_difference(there, offer.seed)?;
            self.write_to_peer(own.address, there).map(|()| differs)
        })?;
        self.wrote.0 = right;
        let closed = report.run_step("ipc-close", || {
            self.cuda.ipc_close(there).map_err(with_step(FabricCallStep::Other))
        });
        closed.map(|_| ())
    }

    fn try_peer_fabric(
        &mut self,
        offer: &SharedMemoryOffer,
        report: &mut TrialReport<'_, '_>,
    ) -> io::Result<()> {
        let given = offer.fabric.as_ref().and_then(|(text, bytes)| {
            let handle = STANDARD.decode(text).ok()?.try_into().ok()?;
            (2 * self.bytes <= *bytes).then_some((handle, *bytes))
        });
        let (Some((handle, bytes)), Some((own, _))) = (given, &self.fabric) else {
            return report.skip_steps(&FABRIC_STEPS, "no memory to test");
        };
        let imported = report.run_step("fabric-import", || {
            let there = FabricMemory::import(self.cuda, handle, bytes, FabricCallStep::ImportPeer)?
                .map()?;
            there.allow(self.gpu.device)?;
            Ok(there)
        })?;
        let Some(there) = imported else {
            return report.skip_steps(&["fabric-data"], "fabric-import failed");
        };
        let right = report.run_comparison("fabric-data", || {
            let differs = self.find_difference(there.address, offer.seed)?;
            self.write_to_peer(own.address, there.address).map(|()| differs)
        })?;
        self.wrote.1 = right;
        Ok(())
    }

    /// Checks the other process's writes to this memory.
    pub(super) fn check_peer_writes(
        &mut self,
        wrote: Option<&PeerWriteReport>,
        report: &mut TrialReport<'_, '_>,
    ) -> io::Result<()> {
        let Some(wrote) = wrote else { return Ok(()) };
        if let Some((memory, _)) = self.ipc.as_ref().filter(|_| wrote.ipc) {
            let there = self.second_half(memory.address);
            report.run_comparison("ipc-written", || self.find_difference(there, wrote.seed))?;
        }
        if let Some((mapped, _)) = self.fabric.as_ref().filter(|_| wrote.fabric) {
            let there = self.second_half(mapped.address);
            report.run_comparison("fabric-written", || self.find_difference(there, wrote.seed))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::cuda::{CudaCallError, code};

    fn failed(gpu: u32, name: &'static str, step: FabricCallStep, code: i32) -> FailedTrialStep {
        let error = CudaCallError::Failed { call: "cuMemX", code, name: code::result_name(code) };
        FailedTrialStep {
            gpu,
            name,
            why: TrialFailureCause::Driver(FabricStepFailure { step, error }),
        }
    }

    #[test]
    fn one_class_is_one_problem_that_names_its_gpus() {
        let channels = ImexChannels { registered: Some(true), ..ImexChannels::default() };
        let failures = [
            failed(0, "fabric-create", FabricCallStep::Create, 800),
            failed(1, "fabric-create", FabricCallStep::Create, 800),
            failed(1, "ipc-open", FabricCallStep::Other, 46),
        ];
        let problems = merge_problems(&failures, &channels);
        let classes: Vec<_> = problems.iter().map(|it| (it.class.as_str(), it.gpu)).collect();
        assert_eq!(classes, [("gpu-unavailable", Some(1)), ("no-imex-channel", None)]);
        assert!(problems[1].detail.ends_with("; GPUs 0, 1"), "{}", problems[1].detail);
    }

    #[test]
    fn only_wrong_data_blames_a_gpu() {
        let wrong = FailedTrialStep {
            gpu: 3,
            name: "ipc-data",
            why: TrialFailureCause::Wrong("64 words".to_owned()),
        };
        let problems = merge_problems(&[wrong], &ImexChannels::default());
        assert_eq!((problems[0].kind, problems[0].gpu), (OutputProblemKind::Corrupt, Some(3)));
    }
}
