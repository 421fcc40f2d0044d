//! The GPUs of this process with their shared memory, and the memory of others
//! that it has imported.
//!
//! Memory of another process is imported and mapped once per sweep, however
//! many pairs need it: importing takes longer than copying. What cannot be
//! reached is a problem with its reason, and the pairs of others go on.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::super::devices::Gpu;
use super::super::pattern::Difference;
use super::super::pattern::Pattern;
use super::data;
use super::pairs::Flow;
use super::party::Party;
use super::roll::Engine;
use super::roll::Lane;
use super::told::HelloGpu;
use super::told::Offer;
use crate::ffi::cuda::Address;
use crate::ffi::cuda::Cuda;
use crate::ffi::cuda::CudaError;
use crate::ffi::cuda::HostMemory;
use crate::probes::fabric::channel::Channels;
use crate::probes::fabric::memory::FabricMemory;
use crate::probes::fabric::memory::Failure;
use crate::probes::fabric::memory::Mapped;
use crate::probes::fabric::memory::at;
use crate::probes::fabric::trouble;
use crate::probes::fabric::trouble::Step;
use crate::probes::said::Mouth;
use model::probed::ProbeProblem;

/// A GPU of this process, ready to measure.
#[derive(Debug)]
struct Own<'c> {
    // In the order in which they are to be given back.
    memory: Mapped<'c>,
    engine: Engine<'c>,
    sink: usize,
    gpu: Gpu<'c>,
}

/// Everything that is in use.
#[derive(Debug)]
pub(super) struct Hall<'c> {
    cuda: &'c Cuda,
    channels: Channels,
    /// Memory of others, by rank.
    theirs: BTreeMap<u32, Mapped<'c>>,
    stage: Option<HostMemory<'c>>,
    /// In the order of their numbers; then, once ranks are known, by rank.
    waiting: Vec<Option<Own<'c>>>,
    own: BTreeMap<u32, Own<'c>>,
}

/// Which half of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Half {
    Source,
    Sink,
}

/// How data arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    Right,
    Wrong(Difference),
    /// It is right in the memory of the GPU, and was spoiled on its way to the host.
    SpoiledHere(Difference),
}

/// A pair that cannot be measured: who cannot reach whose memory, and why.
#[derive(Clone, Debug)]
pub(super) struct Unreached {
    pub(super) by: u32,
    pub(super) whose: u32,
    pub(super) problem: ProbeProblem,
}

impl<'c> Hall<'c> {
    /// Makes the memory of all GPUs. Answers with what is told to the others, and
    /// with the problems of those GPUs that have none.
    pub(super) fn open(
        cuda: &'c Cuda,
        gpus: Vec<Gpu<'c>>,
        bytes: usize,
        channels: Channels,
        mouth: &mut Mouth<'_>,
    ) -> (Self, Vec<HelloGpu>, Vec<ProbeProblem>) {
        let (mut hello, mut problems, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        for gpu in gpus {
            let index = gpu.index();
            let doing = format!("making {} MiB to share on GPU {index}", (2 * bytes) >> 20);
            mouth.begin(&doing);
            let (bus_id, name) = (gpu.probed.bus_id.clone(), gpu.probed.name.clone());
            let memory = match share(cuda, gpu, bytes) {
                Ok((own, offer)) => {
                    waiting.push(Some(own));
                    Ok(offer)
                }
                Err(failure) => {
                    waiting.push(None);
                    let mut problem =
                        trouble::problem(&failure.error, failure.step, &doing, &channels);
                    problem.gpu = Some(index);
                    let why = problem.detail.clone();
                    problems.push(problem);
                    Err(why)
                }
            };
            hello.push(HelloGpu { gpu: index, bus_id, name, memory });
        }
        let (theirs, own) = (BTreeMap::new(), BTreeMap::new());
        (Self { cuda, channels, theirs, stage: None, waiting, own }, hello, problems)
    }

    /// Gives the GPUs their ranks.
    pub(super) fn seat(&mut self, party: &Party) {
        let ranks: Vec<u32> = party.mine().map(|rank| rank.rank).collect();
        let seated = ranks.into_iter().zip(self.waiting.drain(..));
        self.own = seated.filter_map(|(rank, own)| Some((rank, own?))).collect();
    }

    /// Imports the memory that these copies need, as far as they are of this
    /// process. Answers what could not be reached.
    pub(super) fn reach(
        &mut self,
        flows: &BTreeSet<Flow>,
        party: &Party,
        mouth: &mut Mouth<'_>,
    ) -> Vec<Unreached> {
        let mine = flows.iter().filter(|flow| self.own.contains_key(&flow.issuer));
        let needed: BTreeSet<(u32, u32)> =
            mine.filter(|flow| party.can(flow)).map(|flow| (flow.other(), flow.issuer)).collect();
        let mut unreached = Vec::new();
        let mut refused: BTreeMap<u32, Failure> = BTreeMap::new();
        for (whose, by) in needed {
            let from = party.place(whose);
            let is_new = !self.own.contains_key(&whose) && !self.theirs.contains_key(&whose);
            if is_new && !refused.contains_key(&whose) {
                mouth.begin(&format!("importing the memory of {from}"));
                match self.import(whose, party) {
                    Ok(Some(mapped)) => {
                        self.theirs.insert(whose, mapped);
                    }
                    // It was told to be there, and its handle is none.
                    Ok(None) => continue,
                    Err(failure) => {
                        refused.insert(whose, failure);
                    }
                }
            }
            let failure = match refused.get(&whose) {
                Some(failure) => Some(failure.clone()),
                None => self.allow(whose, by).err(),
            };
            let Some(failure) = failure else { continue };
            let doing = format!("getting at the memory of {from} from {}", party.place(by));
            let problem = trouble::problem(&failure.error, failure.step, &doing, &self.channels);
            unreached.push(Unreached { by, whose, problem });
        }
        unreached
    }

    fn import(&self, whose: u32, party: &Party) -> Result<Option<Mapped<'c>>, Failure> {
        let offer = party.gpu(whose).and_then(|gpu| gpu.memory.as_ref().ok());
        let Some((offer, handle)) = offer.and_then(|offer| Some((offer, offer.handle()?))) else {
            return Ok(None);
        };
        let memory = FabricMemory::import(self.cuda, handle, offer.bytes, Step::ImportPeer)?;
        memory.map().map(Some)
    }

    fn allow(&self, whose: u32, by: u32) -> Result<(), Failure> {
        let Some(own) = self.own.get(&by) else { return Ok(()) };
        let mapped = self.own.get(&whose).map(|it| &it.memory).or(self.theirs.get(&whose));
        mapped.map_or(Ok(()), |it| it.allow(own.gpu.device))
    }

    /// The copy of this flow, with the engine that does it; nothing where this
    /// process has no part in it.
    pub(super) fn lane(
        &self,
        flow: Flow,
        bytes: usize,
        party: &Party,
    ) -> Option<(Lane, &Engine<'c>)> {
        let engine = &self.own.get(&flow.issuer)?.engine;
        let from = self.address(flow.from, Half::Source, party)?;
        let to = self.address(flow.to, Half::Sink, party)?;
        Some((Lane { flow, from, to, bytes }, engine))
    }

    fn address(&self, rank: u32, half: Half, party: &Party) -> Option<Address> {
        let (memory, sink) = match self.own.get(&rank) {
            Some(own) => (&own.memory, own.sink),
            None => {
                let offer = party.gpu(rank)?.memory.as_ref().ok()?;
                (self.theirs.get(&rank)?, offer.sink)
            }
        };
        let offset = if half == Half::Sink { sink } else { 0 };
        Some(memory.address.offset(u64::try_from(offset).ok()?))
    }

    fn own(&self, rank: u32, half: Half) -> Option<(&Gpu<'c>, Address)> {
        let own = self.own.get(&rank)?;
        let offset = if half == Half::Sink { own.sink } else { 0 };
        Some((&own.gpu, own.memory.address.offset(u64::try_from(offset).ok()?)))
    }

    /// Fills the source of a rank of this process.
    pub(super) fn fill(&mut self, rank: u32, pattern: &Pattern) -> Result<(), CudaError> {
        let mut stage = match self.stage.take() {
            Some(stage) => stage,
            None => {
                let Some((gpu, _)) = self.own(rank, Half::Source) else { return Ok(()) };
                self.cuda.enter(gpu.context())?;
                self.cuda.host_memory(data::stage_bytes(pattern.bytes))?
            }
        };
        let filled = match self.own(rank, Half::Source) {
            Some((gpu, to)) => data::fill(self.cuda, gpu, to, pattern, &mut stage),
            None => Ok(()),
        };
        self.stage = Some(stage);
        filled
    }

    /// Stamps the source of a rank of this process.
    pub(super) fn stamp(&self, rank: u32, pattern: &Pattern) -> Result<(), CudaError> {
        let own = self.own(rank, Half::Source);
        own.map_or(Ok(()), |(gpu, memory)| data::stamp(self.cuda, gpu, memory, pattern))
    }

    /// Clears where a rank of this process is copied to.
    pub(super) fn clear(&self, rank: u32, pattern: &Pattern) -> Result<(), CudaError> {
        let own = self.own(rank, Half::Sink);
        own.map_or(Ok(()), |(gpu, memory)| data::clear(self.cuda, gpu, memory, pattern))
    }

    /// What is in a source of a rank of this process against what it was filled
    /// with.
    pub(super) fn check_source(
        &self,
        rank: u32,
        pattern: &Pattern,
    ) -> Result<Option<Difference>, CudaError> {
        let (Some((gpu, memory)), Some(stage)) = (self.own(rank, Half::Source), &self.stage) else {
            return Ok(None);
        };
        data::compare(self.cuda, gpu, memory, pattern, stage)
    }

    /// What arrived at a rank of this process against what was sent; nothing where
    /// it cannot be looked at. What is wrong is looked at twice, so that the way to
    /// the host is not taken for the way between the GPUs.
    pub(super) fn compare(
        &self,
        rank: u32,
        pattern: &Pattern,
    ) -> Result<Option<Arrived>, CudaError> {
        let (Some((gpu, memory)), Some(stage)) = (self.own(rank, Half::Sink), &self.stage) else {
            return Ok(None);
        };
        let look = || data::compare(self.cuda, gpu, memory, pattern, stage);
        let Some(first) = look()? else { return Ok(Some(Arrived::Right)) };
        Ok(Some(look()?.map_or(Arrived::SpoiledHere(first), Arrived::Wrong)))
    }

    /// What an error at a rank means.
    pub(super) fn problem(&self, rank: u32, error: &CudaError, doing: &str) -> ProbeProblem {
        let mut problem = trouble::problem(error, Step::Other, doing, &self.channels);
        problem.gpu = self.own.get(&rank).map(|own| own.gpu.index());
        problem
    }

    /// Gives back what was imported.
    pub(super) fn forget_others(&mut self) {
        self.theirs.clear();
    }
}

/// Makes the memory of a GPU and everything that measures with it.
fn share<'c>(cuda: &'c Cuda, gpu: Gpu<'c>, bytes: usize) -> Result<(Own<'c>, Offer), Failure> {
    cuda.enter(gpu.context()).map_err(at(Step::Other))?;
    let sink = bytes.checked_next_multiple_of(ALIGNMENT).unwrap_or(usize::MAX);
    let memory = FabricMemory::create(cuda, gpu.device, sink.saturating_mul(2))?;
    let handle = memory.export()?;
    let offer = Offer::new(handle, memory.bytes, sink);
    let memory = memory.map()?;
    memory.allow(gpu.device)?;
    let engine = Engine::of(cuda, gpu.context()).map_err(at(Step::Other))?;
    Ok((Own { memory, engine, sink, gpu }, offer))
}

/// What the second half of a memory begins at a multiple of: a large page.
const ALIGNMENT: usize = 2 << 20;
