//! The GPUs of this process with their shared memory, and the imported memory of other processes.
//!
//! Memory of another process is imported and mapped once per sweep, however many pairs need it:
//! importing takes longer than copying. Inaccessible memory is reported as a problem with its
//! reason, and the other pairs continue.

use std::collections::{BTreeMap, BTreeSet};

use super::super::devices::OpenGpu;
use super::super::pattern::{CopyPattern, DataDifference};
use super::batch::{BatchEngine, BatchLane};
use super::data;
use super::handshake::{FabricMemoryOffer, PeerHelloGpu};
use super::membership::ProbeMembership;
use super::pairs::GpuFlow;
use crate::ffi::cuda::{CudaCallError, CudaLibrary, DevicePointer, HostMemory};
use crate::probes::fabric::imex_channel::ImexChannels;
use crate::probes::fabric::memory::{
    FabricMemory, FabricStepFailure, MappedFabricMemory, with_step,
};
use crate::probes::fabric::sharing_error;
use crate::probes::fabric::sharing_error::FabricCallStep;
use crate::probes::protocol::ProbeEmitter;
use model::probe_report::ProbeProblem;

/// A GPU of this process, ready to measure.
#[derive(Debug)]
struct LocalGpu<'c> {
    // Fields are in drop order.
    memory: MappedFabricMemory<'c>,
    engine: BatchEngine<'c>,
    sink_offset: usize,
    gpu: OpenGpu<'c>,
}

#[derive(Debug)]
pub(super) struct PeerMemory<'c> {
    cuda: &'c CudaLibrary,
    channels: ImexChannels,
    /// Memory of others, by rank.
    imported: BTreeMap<u32, MappedFabricMemory<'c>>,
    stage: Option<HostMemory<'c>>,
    /// In the order of GPU indices until ranks are known; then they move to the map by rank.
    unranked: Vec<Option<LocalGpu<'c>>>,
    local: BTreeMap<u32, LocalGpu<'c>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemoryHalf {
    Source,
    Sink,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArrivalCheck {
    Correct,
    Wrong(DataDifference),
    /// Correct in the GPU's memory, but corrupted on the way to the host.
    ReadbackCorrupted(DataDifference),
}

/// A pair that cannot be measured: the accessing rank, the owner, and the reason.
#[derive(Clone, Debug)]
pub(super) struct UnreachableMemory {
    pub(super) importer: u32,
    pub(super) owner: u32,
    pub(super) problem: ProbeProblem,
}

impl<'c> PeerMemory<'c> {
    /// Creates the memory of all GPUs. Returns the introduction for the others, and the problems of
    /// GPUs without memory.
    pub(super) fn open(
        cuda: &'c CudaLibrary,
        gpus: Vec<OpenGpu<'c>>,
        bytes: usize,
        channels: ImexChannels,
        emitter: &mut ProbeEmitter<'_>,
    ) -> (Self, Vec<PeerHelloGpu>, Vec<ProbeProblem>) {
        let (mut hello, mut problems, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        for gpu in gpus {
            let index = gpu.index();
            let doing = format!("allocating {} MiB to share on GPU {index}", (2 * bytes) >> 20);
            emitter.announce_step(&doing);
            let (bus_id, name) = (gpu.probed.bus_id.clone(), gpu.probed.name.clone());
            let memory = match share_memory(cuda, gpu, bytes) {
                Ok((own, offer)) => {
                    waiting.push(Some(own));
                    Ok(offer)
                }
                Err(failure) => {
                    waiting.push(None);
                    let mut problem = sharing_error::classify_error(
                        &failure.error,
                        failure.step,
                        &doing,
                        &channels,
                    );
                    problem.gpu = Some(index);
                    let why = problem.detail.clone();
                    problems.push(problem);
                    Err(why)
                }
            };
            hello.push(PeerHelloGpu { gpu: index, bus_id, name, memory });
        }
        let (theirs, own) = (BTreeMap::new(), BTreeMap::new());
        (
            Self { cuda, channels, imported: theirs, stage: None, unranked: waiting, local: own },
            hello,
            problems,
        )
    }

    pub(super) fn assign_ranks(&mut self, membership: &ProbeMembership) {
        let ranks: Vec<u32> = membership.local_ranks().map(|rank| rank.rank).collect();
        let seated = ranks.into_iter().zip(self.unranked.drain(..));
        self.local = seated.filter_map(|(rank, own)| Some((rank, own?))).collect();
    }

    /// Imports the memory that this process's copies need. Returns the pairs that failed.
    pub(super) fn import_peers(
        &mut self,
        flows: &BTreeSet<GpuFlow>,
        membership: &ProbeMembership,
        emitter: &mut ProbeEmitter<'_>,
    ) -> Vec<UnreachableMemory> {
        let mine = flows.iter().filter(|flow| self.local.contains_key(&flow.issuer));
        let needed: BTreeSet<(u32, u32)> = mine
            .filter(|flow| membership.can_copy(flow))
            .map(|flow| (flow.passive_rank(), flow.issuer))
            .collect();
        let mut unreached = Vec::new();
        let mut refused: BTreeMap<u32, FabricStepFailure> = BTreeMap::new();
        for (whose, by) in needed {
            let from = membership.rank_label(whose);
            let is_new = !self.local.contains_key(&whose) && !self.imported.contains_key(&whose);
            if is_new && !refused.contains_key(&whose) {
                emitter.announce_step(&format!("importing the memory of {from}"));
                match self.import_rank(whose, membership) {
                    Ok(Some(mapped)) => {
                        self.imported.insert(whose, mapped);
                    }
                    // The peer offered memory, but its handle is invalid.
                    Ok(None) => continue,
                    Err(failure) => {
                        refused.insert(whose, failure);
                    }
                }
            }
            let failure = match refused.get(&whose) {
                Some(failure) => Some(failure.clone()),
                None => self.allow_access(whose, by).err(),
            };
            let Some(failure) = failure else { continue };
            let doing =
                format!("accessing the memory of {from} from {}", membership.rank_label(by));
            let problem =
                sharing_error::classify_error(&failure.error, failure.step, &doing, &self.channels);
            unreached.push(UnreachableMemory { importer: by, owner: whose, problem });
        }
        unreached
    }

    fn import_rank(
        &self,
        whose: u32,
        membership: &ProbeMembership,
    ) -> Result<Option<MappedFabricMemory<'c>>, FabricStepFailure> {
        let offer = membership.gpu_of(whose).and_then(|gpu| gpu.memory.as_ref().ok());
        let Some((offer, handle)) = offer.and_then(|offer| Some((offer, offer.decode_handle()?)))
        else {
            return Ok(None);
        };
        let memory =
            FabricMemory::import(self.cuda, handle, offer.bytes, FabricCallStep::ImportPeer)?;
        memory.map().map(Some)
    }

    fn allow_access(&self, whose: u32, by: u32) -> Result<(), FabricStepFailure> {
        let Some(own) = self.local.get(&by) else { return Ok(()) };
        let mapped = self.local.get(&whose).map(|it| &it.memory).or(self.imported.get(&whose));
        mapped.map_or(Ok(()), |it| it.allow(own.gpu.device))
    }

    /// The copy of this flow with its engine; `None` if another process issues it.
    pub(super) fn lane(
        &self,
        flow: GpuFlow,
        bytes: usize,
        membership: &ProbeMembership,
    ) -> Option<(BatchLane, &BatchEngine<'c>)> {
        let engine = &self.local.get(&flow.issuer)?.engine;
        let from = self.address(flow.from, MemoryHalf::Source, membership)?;
        let to = self.address(flow.to, MemoryHalf::Sink, membership)?;
        Some((BatchLane { flow, from, to, bytes }, engine))
    }

    fn address(
        &self,
        rank: u32,
        half: MemoryHalf,
        membership: &ProbeMembership,
    ) -> Option<DevicePointer> {
        let (memory, sink) = match self.local.get(&rank) {
            Some(own) => (&own.memory, own.sink_offset),
            None => {
                let offer = membership.gpu_of(rank)?.memory.as_ref().ok()?;
                (self.imported.get(&rank)?, offer.sink)
            }
        };
        let offset = if half == MemoryHalf::Sink { sink } else { 0 };
        Some(memory.address.offset(u64::try_from(offset).ok()?))
    }

    fn local_half(&self, rank: u32, half: MemoryHalf) -> Option<(&OpenGpu<'c>, DevicePointer)> {
        let own = self.local.get(&rank)?;
        let offset = if half == MemoryHalf::Sink { own.sink_offset } else { 0 };
        Some((&own.gpu, own.memory.address.offset(u64::try_from(offset).ok()?)))
    }

    /// Fills the source of a rank of this process.
    pub(super) fn fill(&mut self, rank: u32, pattern: &CopyPattern) -> Result<(), CudaCallError> {
        let mut stage = match self.stage.take() {
            Some(stage) => stage,
            None => {
                let Some((gpu, _)) = self.local_half(rank, MemoryHalf::Source) else {
                    return Ok(());
                };
                self.cuda.set_current_context(gpu.context())?;
                self.cuda.host_memory(data::stage_bytes(pattern.bytes))?
            }
        };
        let filled = match self.local_half(rank, MemoryHalf::Source) {
            Some((gpu, to)) => data::fill_memory(self.cuda, gpu, to, pattern, &mut stage),
            None => Ok(()),
        };
        self.stage = Some(stage);
        filled
    }

    /// Stamps the source of a rank of this process.
    pub(super) fn stamp(&self, rank: u32, pattern: &CopyPattern) -> Result<(), CudaCallError> {
        let own = self.local_half(rank, MemoryHalf::Source);
        own.map_or(Ok(()), |(gpu, memory)| data::stamp_memory(self.cuda, gpu, memory, pattern))
    }

    /// Clears the destination of a rank of this process.
    pub(super) fn clear(&self, rank: u32, pattern: &CopyPattern) -> Result<(), CudaCallError> {
        let own = self.local_half(rank, MemoryHalf::Sink);
        own.map_or(Ok(()), |(gpu, memory)| data::clear_memory(self.cuda, gpu, memory, pattern))
    }

    /// Compares a source of a rank of this process with the data written to it.
    pub(super) fn check_source(
        &self,
        rank: u32,
        pattern: &CopyPattern,
    ) -> Result<Option<DataDifference>, CudaCallError> {
        let (Some((gpu, memory)), Some(stage)) =
            (self.local_half(rank, MemoryHalf::Source), &self.stage)
        else {
            return Ok(None);
        };
        data::compare_memory(self.cuda, gpu, memory, pattern, stage)
    }

    /// Compares the data received by a rank of this process with the sent data; `None` if it cannot
    /// be read. Wrong data is read twice, so that an error on the way to the host is not blamed on
    /// the way between the GPUs.
    pub(super) fn compare(
        &self,
        rank: u32,
        pattern: &CopyPattern,
    ) -> Result<Option<ArrivalCheck>, CudaCallError> {
        let (Some((gpu, memory)), Some(stage)) =
            (self.local_half(rank, MemoryHalf::Sink), &self.stage)
        else {
            return Ok(None);
        };
        let compare_once = || data::compare_memory(self.cuda, gpu, memory, pattern, stage);
        let Some(first) = compare_once()? else { return Ok(Some(ArrivalCheck::Correct)) };
        Ok(Some(
            compare_once()?.map_or(ArrivalCheck::ReadbackCorrupted(first), ArrivalCheck::Wrong),
        ))
    }

    /// Classifies an error at a rank.
    pub(super) fn problem(&self, rank: u32, error: &CudaCallError, doing: &str) -> ProbeProblem {
        let mut problem =
            sharing_error::classify_error(error, FabricCallStep::Other, doing, &self.channels);
        problem.gpu = self.local.get(&rank).map(|own| own.gpu.index());
        problem
    }

    pub(super) fn release_imports(&mut self) {
        self.imported.clear();
    }
}

/// Creates the memory of a GPU and its engine.
fn share_memory<'c>(
    cuda: &'c CudaLibrary,
    gpu: OpenGpu<'c>,
    bytes: usize,
) -> Result<(LocalGpu<'c>, FabricMemoryOffer), FabricStepFailure> {
    cuda.set_current_context(gpu.context()).map_err(with_step(FabricCallStep::Other))?;
    let sink = bytes.checked_next_multiple_of(ALIGNMENT).unwrap_or(usize::MAX);
    let memory = FabricMemory::create(cuda, gpu.device, sink.saturating_mul(2))?;
    let handle = memory.export()?;
    let offer = FabricMemoryOffer::new(handle, memory.bytes, sink);
    let memory = memory.map()?;
    memory.allow(gpu.device)?;
    let engine = BatchEngine::new(cuda, gpu.context()).map_err(with_step(FabricCallStep::Other))?;
    Ok((LocalGpu { memory, engine, sink_offset: sink, gpu }, offer))
}

/// Alignment of the second half of a memory: a large page.
const ALIGNMENT: usize = 2 << 20;
