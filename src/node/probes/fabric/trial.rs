//! One GPU's memory, tried step by step: shared with a process of this node by
//! CUDA's IPC, and over the fabric by its handles.
//!
//! Steps that need one that failed are not tried, and say so.

use std::collections::BTreeMap;
use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::Serialize;

use super::channel::Channels;
use super::memory::FabricMemory;
use super::memory::Failure;
use super::memory::Mapped;
use super::memory::at;
use super::trouble;
use super::trouble::Step;
use crate::ffi::cuda::Address;
use crate::ffi::cuda::Cuda;
use crate::ffi::cuda::HostMemory;
use crate::ffi::cuda::IPC_HANDLE_BYTES;
use crate::ffi::cuda::code::attribute;
use crate::probes::copy::across::data;
use crate::probes::copy::devices::Gpu;
use crate::probes::copy::owned::GpuMemory;
use crate::probes::copy::pattern::Pattern;
use crate::probes::copy::pattern::WORD;
use crate::probes::said::Line;
use crate::probes::said::Mouth;
use model::parsed::ProblemKind;
use model::probed::ProbeProblem;

/// What one process gives the other to try, of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Offer {
    pub(super) gpu: u32,
    /// What its data is made of.
    seed: u32,
    /// Handles, base64 (RFC 4648 section 4), and bytes of the fabric memory.
    ipc: Option<String>,
    fabric: Option<(String, usize)>,
}

/// What a process wrote into memory of the other, of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Wrote {
    pub(super) gpu: u32,
    seed: u32,
    ipc: bool,
    fabric: bool,
}

/// A step that failed.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    gpu: u32,
    name: &'static str,
    why: Why,
}

#[derive(Clone, Debug)]
enum Why {
    Driver(Failure),
    /// Data that is not what was written there.
    Wrong(String),
}

/// Says the steps of one GPU, and keeps what failed.
pub(super) struct Report<'r, 'm> {
    gpu: u32,
    mouth: &'r mut Mouth<'m>,
    failed: Vec<Failed>,
}

impl<'r, 'm> Report<'r, 'm> {
    pub(super) fn new(gpu: u32, mouth: &'r mut Mouth<'m>) -> Self {
        Self { gpu, mouth, failed: Vec::new() }
    }

    pub(super) fn failures(self) -> Vec<Failed> {
        self.failed
    }

    fn note(&mut self, name: &str, value: &str) -> io::Result<()> {
        let name = format!("gpu{} {name}", self.gpu);
        self.mouth.say(&Line::Note { name, value: value.to_owned() })
    }

    /// Does a step and says what came of it.
    fn step<T>(
        &mut self,
        name: &'static str,
        work: impl FnOnce() -> Result<T, Failure>,
    ) -> io::Result<Option<T>> {
        self.mouth.begin(&format!("GPU {}: {name}", self.gpu));
        match work() {
            Ok(value) => {
                self.note(name, "ok")?;
                Ok(Some(value))
            }
            Err(failure) => {
                self.note(name, &failure.error.to_string())?;
                self.failed.push(Failed { gpu: self.gpu, name, why: Why::Driver(failure) });
                Ok(None)
            }
        }
    }

    /// Compares data and says what came of it; whether it was right.
    fn compare(
        &mut self,
        name: &'static str,
        work: impl FnOnce() -> Result<Option<String>, Failure>,
    ) -> io::Result<bool> {
        self.mouth.begin(&format!("GPU {}: {name}", self.gpu));
        let why = match work() {
            Ok(None) => {
                self.note(name, "ok")?;
                return Ok(true);
            }
            Ok(Some(how)) => {
                self.note(name, &format!("wrong data: {how}"))?;
                Why::Wrong(how)
            }
            Err(failure) => {
                self.note(name, &failure.error.to_string())?;
                Why::Driver(failure)
            }
        };
        self.failed.push(Failed { gpu: self.gpu, name, why });
        Ok(false)
    }

    fn skip(&mut self, names: &[&str], why: &str) -> io::Result<()> {
        names.iter().try_for_each(|name| self.note(name, &format!("not tried: {why}")))
    }
}

/// One problem for each class, which names all GPUs it is of.
pub(super) fn problems(failures: &[Failed], channels: &Channels) -> Vec<ProbeProblem> {
    let mut classes: BTreeMap<String, (ProbeProblem, Vec<u32>)> = BTreeMap::new();
    for failed in failures {
        let doing = format!("trying {} on GPU {}", failed.name, failed.gpu);
        let problem = match &failed.why {
            Why::Driver(failure) => {
                trouble::problem(&failure.error, failure.step, &doing, channels)
            }
            Why::Wrong(how) => {
                let what = format!("wrong data was found while {doing}: {how}");
                ProbeProblem::new(ProblemKind::Corrupt, "wrong-data", what)
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

/// A GPU, and its memory that is tried.
#[derive(Debug)]
pub(super) struct Trial<'c> {
    cuda: &'c Cuda,
    // In the order in which they are to be given back.
    ipc: Option<(GpuMemory<'c>, [u8; IPC_HANDLE_BYTES])>,
    fabric: Option<(Mapped<'c>, String)>,
    stage: Option<HostMemory<'c>>,
    wrote: (bool, bool),
    bytes: usize,
    seed: u32,
    gpu: Gpu<'c>,
}

/// Steps of memory of another process.
const OF_IPC: [&str; 2] = ["ipc-open", "ipc-data"];
const OF_FABRIC: [&str; 2] = ["fabric-import", "fabric-data"];

impl<'c> Trial<'c> {
    /// Tries what one process can try alone.
    pub(super) fn of(
        cuda: &'c Cuda,
        gpu: Gpu<'c>,
        bytes: u64,
        report: &mut Report<'_, '_>,
    ) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).unwrap_or(0).next_multiple_of(WORD).max(WORD);
        // What tells data of the two processes apart.
        let seed = std::process::id();
        let (ipc, fabric, stage) = (None, None, None);
        let wrote = (false, false);
        let mut trial = Self { cuda, ipc, fabric, stage, wrote, bytes, seed, gpu };
        let said = cuda.attribute(trial.gpu.device, attribute::FABRIC_HANDLES);
        // Says nothing of whether this process may, so it is no step that can fail.
        report
            .note("fabric-attribute", &said.map_or_else(|e| e.to_string(), |it| it.to_string()))?;
        trial.stage = report.step("host-memory", || {
            cuda.enter(trial.gpu.context()).map_err(at(Step::Other))?;
            cuda.host_memory(data::stage_bytes(bytes)).map_err(at(Step::Other))
        })?;
        trial.make_ipc(report)?;
        trial.make_fabric(report)?;
        Ok(trial)
    }

    pub(super) fn index(&self) -> u32 {
        self.gpu.index()
    }

    /// What the memory of a process holds.
    fn pattern(&self, seed: u32) -> Pattern {
        Pattern { seed, stamp: !seed, bytes: self.bytes }
    }

    /// Where the half begins that the other process writes into.
    fn second(&self, memory: Address) -> Address {
        memory.offset(u64::try_from(self.bytes).expect("a size fits 64 bits"))
    }

    fn make_ipc(&mut self, report: &mut Report<'_, '_>) -> io::Result<()> {
        let (cuda, context) = (self.cuda, self.gpu.context());
        let made = report.step("ipc-create", || {
            let memory = GpuMemory::of(cuda, context, 2 * self.bytes).map_err(at(Step::Other))?;
            let handle = cuda.ipc_handle(memory.address).map_err(at(Step::Other))?;
            Ok((memory, handle))
        })?;
        let Some((memory, handle)) = made else { return Ok(()) };
        if self.fill(memory.address, "ipc-fill", report)? {
            self.ipc = Some((memory, handle));
        }
        Ok(())
    }

    fn make_fabric(&mut self, report: &mut Report<'_, '_>) -> io::Result<()> {
        let (cuda, device) = (self.cuda, self.gpu.device);
        let bytes = 2 * self.bytes;
        let made = report.step("fabric-create", || FabricMemory::create(cuda, device, bytes))?;
        let Some(memory) = made else {
            return report.skip(&["fabric-export", "fabric-import-own"], "fabric-create failed");
        };
        let Some(handle) = report.step("fabric-export", || memory.export())? else {
            return report.skip(&["fabric-import-own"], "fabric-export failed");
        };
        let bytes = memory.bytes;
        let mapped = report.step("fabric-map", || {
            let mapped = memory.map()?;
            mapped.allow(device)?;
            Ok(mapped)
        })?;
        let Some(mapped) = mapped else {
            return report.skip(&["fabric-import-own"], "fabric-map failed");
        };
        if !self.fill(mapped.address, "fabric-fill", report)? {
            return report.skip(&["fabric-import-own"], "fabric-fill failed");
        }
        // As an import by another process, but for the way between nodes.
        let right = report.compare("fabric-import-own", || {
            let own = FabricMemory::import(cuda, handle, bytes, Step::ImportOwn)?.map()?;
            own.allow(device)?;
            self.differs(own.address, self.seed)
        })?;
        if right {
            self.fabric = Some((mapped, STANDARD.encode(handle)));
        }
        Ok(())
    }

    /// Writes this process' data there.
    fn fill(
        &mut self,
        memory: Address,
        name: &'static str,
        report: &mut Report<'_, '_>,
    ) -> io::Result<bool> {
        let Some(mut stage) = self.stage.take() else {
            return report.skip(&[name], "host-memory failed").map(|()| false);
        };
        let pattern = self.pattern(self.seed);
        let filled = report.step(name, || {
            data::fill(self.cuda, &self.gpu, memory, &pattern, &mut stage).map_err(at(Step::Other))
        })?;
        self.stage = Some(stage);
        Ok(filled.is_some())
    }

    /// How what is there differs from data of this seed.
    fn differs(&self, memory: Address, seed: u32) -> Result<Option<String>, Failure> {
        let Some(stage) = &self.stage else { return Ok(None) };
        let pattern = self.pattern(seed);
        let found = data::compare(self.cuda, &self.gpu, memory, &pattern, stage);
        let describe = |it: crate::probes::copy::pattern::Difference| {
            format!("{} words differ, the first at byte {}", it.words, it.first)
        };
        found.map(|it| it.map(describe)).map_err(at(Step::Other))
    }

    /// Writes this process' data into the second half of memory of the other.
    fn write(&self, from: Address, to: Address) -> Result<(), Failure> {
        self.cuda.enter(self.gpu.context()).map_err(at(Step::Other))?;
        let copied = self.cuda.copy(self.second(to), from, self.bytes, self.gpu.stream());
        copied.and_then(|()| self.gpu.wait()).map_err(at(Step::Other))
    }

    /// What the other process is given.
    pub(super) fn offer(&self) -> Offer {
        let ipc = self.ipc.as_ref().map(|(_, handle)| STANDARD.encode(handle));
        let fabric = self.fabric.as_ref();
        let fabric = fabric.map(|(mapped, handle)| (handle.clone(), mapped.memory().bytes));
        Offer { gpu: self.index(), seed: self.seed, ipc, fabric }
    }

    /// What was written into memory of the other process.
    pub(super) fn wrote(&self) -> Wrote {
        let (ipc, fabric) = self.wrote;
        Wrote { gpu: self.index(), seed: self.seed, ipc, fabric }
    }

    /// Tries what takes two processes: opens the other's memory, reads it, writes
    /// into it, and gives it back.
    pub(super) fn reach(
        &mut self,
        offer: Result<&Offer, String>,
        report: &mut Report<'_, '_>,
    ) -> io::Result<()> {
        let offer = match offer {
            Ok(offer) => offer,
            Err(why) => {
                report.skip(&OF_IPC, &why)?;
                return report.skip(&OF_FABRIC, &why);
            }
        };
        self.reach_ipc(offer, report)?;
        self.reach_fabric(offer, report)
    }

    fn reach_ipc(&mut self, offer: &Offer, report: &mut Report<'_, '_>) -> io::Result<()> {
        let handle =
            offer.ipc.as_ref().and_then(|text| STANDARD.decode(text).ok()?.try_into().ok());
        let (Some(handle), Some((own, _))) = (handle, &self.ipc) else {
            return report.skip(&OF_IPC, "there is no memory to try it with");
        };
        let opened = report.step("ipc-open", || {
            self.cuda.enter(self.gpu.context()).map_err(at(Step::Other))?;
            self.cuda.ipc_open(handle).map_err(at(Step::Other))
        })?;
        let Some(there) = opened else { return report.skip(&["ipc-data"], "ipc-open failed") };
        let right = report.compare("ipc-data", || {
            let differs = self.differs(there, offer.seed)?;
            self.write(own.address, there).map(|()| differs)
        })?;
        self.wrote.0 = right;
        let closed =
            report.step("ipc-close", || self.cuda.ipc_close(there).map_err(at(Step::Other)));
        closed.map(|_| ())
    }

    fn reach_fabric(&mut self, offer: &Offer, report: &mut Report<'_, '_>) -> io::Result<()> {
        let given = offer.fabric.as_ref().and_then(|(text, bytes)| {
            let handle = STANDARD.decode(text).ok()?.try_into().ok()?;
            (2 * self.bytes <= *bytes).then_some((handle, *bytes))
        });
        let (Some((handle, bytes)), Some((own, _))) = (given, &self.fabric) else {
            return report.skip(&OF_FABRIC, "there is no memory to try it with");
        };
        let imported = report.step("fabric-import", || {
            let there = FabricMemory::import(self.cuda, handle, bytes, Step::ImportPeer)?.map()?;
            there.allow(self.gpu.device)?;
            Ok(there)
        })?;
        let Some(there) = imported else {
            return report.skip(&["fabric-data"], "fabric-import failed");
        };
        let right = report.compare("fabric-data", || {
            let differs = self.differs(there.address, offer.seed)?;
            self.write(own.address, there.address).map(|()| differs)
        })?;
        self.wrote.1 = right;
        Ok(())
    }

    /// Looks at what the other process wrote here.
    pub(super) fn look(
        &mut self,
        wrote: Option<&Wrote>,
        report: &mut Report<'_, '_>,
    ) -> io::Result<()> {
        let Some(wrote) = wrote else { return Ok(()) };
        if let Some((memory, _)) = self.ipc.as_ref().filter(|_| wrote.ipc) {
            let there = self.second(memory.address);
            report.compare("ipc-written", || self.differs(there, wrote.seed))?;
        }
        if let Some((mapped, _)) = self.fabric.as_ref().filter(|_| wrote.fabric) {
            let there = self.second(mapped.address);
            report.compare("fabric-written", || self.differs(there, wrote.seed))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::cuda::CudaError;
    use crate::ffi::cuda::code;

    fn failed(gpu: u32, name: &'static str, step: Step, code: i32) -> Failed {
        let error = CudaError::Failed { call: "cuMemX", code, name: code::name(code) };
        Failed { gpu, name, why: Why::Driver(Failure { step, error }) }
    }

    #[test]
    fn one_class_is_one_problem_that_names_its_gpus() {
        let channels = Channels { registered: Some(true), ..Channels::default() };
        let failures = [
            failed(0, "fabric-create", Step::Create, 800),
            failed(1, "fabric-create", Step::Create, 800),
            failed(1, "ipc-open", Step::Other, 46),
        ];
        let problems = problems(&failures, &channels);
        let said: Vec<_> = problems.iter().map(|it| (it.class.as_str(), it.gpu)).collect();
        assert_eq!(said, [("gpu-unavailable", Some(1)), ("no-imex-channel", None)]);
        assert!(problems[1].detail.ends_with("; GPUs 0, 1"), "{}", problems[1].detail);
    }

    #[test]
    fn only_wrong_data_speaks_against_a_gpu() {
        let wrong = Failed { gpu: 3, name: "ipc-data", why: Why::Wrong("64 words".to_owned()) };
        let said = problems(&[wrong], &Channels::default());
        assert_eq!((said[0].kind, said[0].gpu), (ProblemKind::Corrupt, Some(3)));
    }
}
