//! What a GPU's driver says of the GPU itself, and of the machine.

use std::path::Path;

use nvml_wrapper_sys::bindings::field_id;
use serde::Deserialize;
use serde::Serialize;

use super::asking::Asking;
use super::asking::printable;
use super::codes;
use super::fabric;
use super::library::GpuLibrary;
use super::library::MachineQuestion;
use super::library::Number;
use super::library::Question;
use super::library::Refusal;
use super::library::Text;
use super::library::Value;
use super::link;
use super::pci;
use model::gpu_facts::ClockFacts;
use model::gpu_facts::EccFacts;
use model::gpu_facts::GpuFacts;
use model::gpu_facts::PcieFacts;
use model::gpu_facts::PowerFacts;
use model::gpu_facts::ProcessFacts;
use model::gpu_facts::RemappedRows;
use model::gpu_facts::RetiredPages;
use model::node_facts::DriverFacts;
use model::node_facts::Missing;
use model::throttle::ThrottleReason;

/// More GPUs than a machine has. A place is kept for each that is counted and
/// silent, so a number that cannot be true is none.
const MOST_GPUS: u32 = 1_024;

/// What a driver says of itself and of how many GPUs there are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MachineSaid {
    /// The driver.
    pub(super) driver: DriverFacts,
    /// How many GPUs; absent where it does not say.
    pub(super) gpus: Option<u32>,
    /// What it would not say.
    pub(super) missing: Vec<Missing>,
}

/// What a driver says of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GpuSaid {
    /// The GPU.
    pub(super) gpu: GpuFacts,
    /// What it would not say.
    pub(super) missing: Vec<Missing>,
}

/// Asks about the driver.
pub(super) fn machine(library: &dyn GpuLibrary) -> MachineSaid {
    let mut missing = Vec::new();
    let mut ask = |question: MachineQuestion| match library.of_machine(question) {
        Ok(value) => Some(value),
        Err(refusal) => {
            missing.push(Missing {
                what: question.to_string(),
                why: refusal.to_string(),
                ..Missing::default()
            });
            None
        }
    };
    let mut text = |question| match ask(question) {
        Some(Value::Text(text)) => Some(printable(&text)),
        _ => None,
    };
    let version = text(MachineQuestion::DriverVersion);
    let nvml_version = text(MachineQuestion::LibraryVersion);
    let mut number = |question| match ask(question) {
        Some(Value::Number(number)) => Some(number),
        _ => None,
    };
    // cudaDriverGetVersion: 1000 times major and 10 times minor.
    let cuda = number(MachineQuestion::CudaVersion);
    let cuda_version = cuda.map(|number| format!("{}.{}", number / 1000, number % 1000 / 10));
    let count = number(MachineQuestion::GpuCount);
    let gpus = count.and_then(|count| u32::try_from(count).ok()).filter(|it| *it <= MOST_GPUS);
    if let (Some(count), None) = (count, gpus) {
        missing.push(Missing {
            what: MachineQuestion::GpuCount.to_string(),
            why: Refusal::Unreadable(format!("{count} GPUs")).to_string(),
            ..Missing::default()
        });
    }
    MachineSaid { driver: DriverFacts { version, nvml_version, cuda_version }, gpus, missing }
}

/// Asks about one GPU. `begin` is told which part comes next, so that whoever
/// watches knows where a driver hangs.
pub(super) fn gpu(
    library: &dyn GpuLibrary,
    proc: &Path,
    index: u32,
    begin: &mut dyn FnMut(&str),
) -> GpuSaid {
    let mut asked = Asking::of(library, index);
    let gpu = answered(&mut asked, proc, index, begin);
    GpuSaid { gpu, missing: asked.missing() }
}

fn answered(
    asking: &mut Asking<'_>,
    proc: &Path,
    index: u32,
    begin: &mut dyn FnMut(&str),
) -> GpuFacts {
    begin("identity");
    if let Err(Refusal::GpuLost) = asking.text_of(Question::Text(Text::Uuid)) {
        asking.kept::<()>("identity", Err(Refusal::GpuLost));
        return GpuFacts { index, ..GpuFacts::default() };
    }
    let mut facts = identity(asking, index);
    let architecture = asking.number(Number::Architecture);
    facts.architecture = architecture.map(codes::architecture);
    begin("fabric");
    facts.fabric = fabric::fabric(asking);
    facts.platform = fabric::platform(asking);
    begin("NVLinks");
    (facts.nvlink_count, facts.nvlinks) = link::nvlinks(asking, architecture);
    // Before Blackwell there was one mode for the whole machine.
    if architecture.is_some_and(|number| link::BLACKWELL <= number) {
        facts.nvlink_mode = asking.small(Number::LinkMode);
        facts.nvlink_mode_is_best = asking.flag(Number::LinkModeIsBest);
    }
    begin("the link to its processor");
    facts.c2c = link::c2c(asking);
    begin("PCI Express");
    facts.pcie = PcieFacts {
        generation: asking.small(Number::PcieGeneration),
        generation_max: asking.small(Number::PcieGenerationMax),
        width: asking.small(Number::PcieWidth),
        width_max: asking.small(Number::PcieWidthMax),
        replays: asking.number(Number::PcieReplays),
    };
    begin("memory errors");
    memory(asking, &mut facts);
    begin("clocks and power");
    running(asking, &mut facts);
    begin("processes");
    facts.processes = processes(asking, proc);
    facts
}

fn identity(asking: &mut Asking<'_>, index: u32) -> GpuFacts {
    GpuFacts {
        index,
        uuid: asking.text(Text::Uuid),
        serial: asking.text(Text::Serial),
        product: asking.text(Text::Product),
        board_part_number: asking.text(Text::BoardPartNumber),
        vbios: asking.text(Text::Vbios),
        gsp_firmware: asking.text(Text::GspFirmware),
        pci_address: asking.text(Text::PciAddress).map(|address| pci::address(&address)),
        module_id: asking.small(Number::ModuleId),
        memory_bytes: asking.number(Number::MemoryBytes),
        ..GpuFacts::default()
    }
}

fn memory(asking: &mut Asking<'_>, facts: &mut GpuFacts) {
    facts.ecc = EccFacts {
        enabled: asking.flag(Number::EccEnabled),
        enabled_pending: asking.flag(Number::EccPending),
        corrected_since_load: asking.number(Number::EccCorrectedSinceLoad),
        uncorrected_since_load: asking.number(Number::EccUncorrectedSinceLoad),
        corrected_in_life: asking.number(Number::EccCorrectedInLife),
        uncorrected_in_life: asking.number(Number::EccUncorrectedInLife),
    };
    let rows = asking.rows_of(Question::RemappedRows);
    facts.remapped_rows = asking.kept("remapped rows", rows).map(|rows| RemappedRows {
        corrected: rows.corrected_rows,
        uncorrected: rows.uncorrected_rows,
        pending: rows.pending,
        failed: rows.failed,
    });
    // GPUs either remap rows or retire pages; that one that does the first does
    // not do the second is no gap.
    let number = |asking: &Asking<'_>, number| asking.number_of(Question::Number(number));
    let single_bit = number(asking, Number::RetiredSingleBit);
    if let (Err(refusal), None) = (&single_bit, &facts.remapped_rows) {
        asking.kept::<()>("retired pages", Err(refusal.clone()));
    }
    let pages = RetiredPages {
        single_bit: single_bit.ok(),
        double_bit: number(asking, Number::RetiredDoubleBit).ok(),
        pending: number(asking, Number::RetiredPending).ok().map(|value| value != 0),
    };
    facts.retired_pages = Some(pages).filter(|pages| *pages != RetiredPages::default());
}

fn running(asking: &mut Asking<'_>, facts: &mut GpuFacts) {
    facts.clocks = ClockFacts {
        sm_mhz: asking.small(Number::ClockSm),
        sm_max_mhz: asking.small(Number::ClockSmMax),
        memory_mhz: asking.small(Number::ClockMemory),
        memory_max_mhz: asking.small(Number::ClockMemoryMax),
    };
    facts.power = PowerFacts {
        draw_mw: asking.number(Number::PowerDraw),
        limit_mw: asking.number(Number::PowerLimit),
        limit_default_mw: asking.number(Number::PowerLimitDefault),
    };
    facts.temperature_celsius = asking.number(Number::Temperature);
    facts.throttled_by = asking.number(Number::Throttling).map(ThrottleReason::of_bits);
    facts.mig = asking.flag(Number::Mig);
    facts.mig_pending = asking.flag(Number::MigPending);
    facts.persistence = asking.flag(Number::Persistence);
    let action = asking.field_of(field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 0);
    facts.recovery_action = asking.kept("recovery action", action).map(codes::recovery_action);
}

fn processes(asking: &mut Asking<'_>, proc: &Path) -> Option<Vec<ProcessFacts>> {
    let found = asking.processes_of(Question::Processes);
    let mut found: Vec<ProcessFacts> = asking
        .kept("processes", found)?
        .into_iter()
        .map(|process| ProcessFacts {
            pid: process.pid,
            name: std::fs::read_to_string(proc.join(process.pid.to_string()).join("comm"))
                .ok()
                .map(|name| printable(&name))
                .filter(|name| !name.is_empty()),
            memory_bytes: process.memory_bytes,
        })
        .collect();
    found.sort_by_key(|process| process.pid);
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::library::ProcessValue;
    use crate::facts::library::RowsValue;
    use crate::facts::recorded::Recorded;

    fn said(recorded: &Recorded) -> GpuSaid {
        gpu(recorded, Path::new("/proc"), 0, &mut |_| {})
    }

    #[test]
    fn a_count_of_gpus_that_cannot_be_true_is_missing() {
        let count = |number| {
            let mut recorded = Recorded::default();
            recorded.machine(MachineQuestion::GpuCount, Ok(Value::Number(number)));
            let said = machine(&recorded);
            let why = said.missing.into_iter().find(|missing| missing.what == "gpu count");
            (said.gpus, why.map(|missing| missing.why))
        };
        assert_eq!(count(8), (Some(8), None));
        let why = "the answer cannot be understood: 4294967295 GPUs".to_owned();
        assert_eq!(count(u32::MAX.into()), (None, Some(why)));
    }

    #[test]
    fn a_gpu_tells_who_it_is() {
        let mut recorded = Recorded::default();
        let text = |text: &str| Ok(Value::Text(text.to_owned()));
        recorded
            .gpu(0, Question::Text(Text::Uuid), text("GPU-1"))
            .gpu(0, Question::Text(Text::PciAddress), text("00000008:06:00.0"))
            .gpu(0, Question::Number(Number::Architecture), Ok(Value::Number(10)))
            .gpu(0, Question::Number(Number::Throttling), Ok(Value::Number(4)));
        let found = said(&recorded).gpu;
        assert_eq!(found.uuid.as_deref(), Some("GPU-1"));
        assert_eq!(found.pci_address.as_deref(), Some("0008:06:00.0"));
        assert_eq!(found.architecture.as_deref(), Some("blackwell"));
        assert_eq!(found.throttled_by, Some(vec![ThrottleReason::SoftwarePowerCap]));
    }

    #[test]
    fn what_a_gpu_does_not_support_is_missing_with_the_reason_and_no_value() {
        let mut recorded = Recorded::default();
        let uuid = Ok(Value::Text("GPU-1".to_owned()));
        recorded.gpu(0, Question::Text(Text::Uuid), uuid);
        recorded.gpu(0, Question::Number(Number::EccEnabled), Err(Refusal::NotSupported));
        recorded.gpu(0, Question::Number(Number::ModuleId), Err(Refusal::MissingSymbol));
        let said = said(&recorded);
        assert_eq!((said.gpu.ecc.enabled, said.gpu.module_id), (None, None));
        let why = |what| {
            let of = said.missing.iter().find(|missing| missing.what == what);
            of.map(|missing| missing.why.as_str())
        };
        assert_eq!(why("ecc mode"), Some("not supported by this GPU"));
        assert_eq!(why("module id"), Some("this driver is too old to say"));
    }

    #[test]
    fn a_lost_gpu_is_one_sentence_and_not_forty() {
        let mut recorded = Recorded::default();
        recorded.gpu(0, Question::Text(Text::Uuid), Err(Refusal::GpuLost));
        let said = said(&recorded);
        assert_eq!(said.missing.len(), 1);
        assert!(said.missing[0].why.contains("fell off the bus"), "{:?}", said.missing);
        // The same where it is lost while it is asked.
        let uuid = Ok(Value::Text("GPU-1".to_owned()));
        recorded.gpu(0, Question::Text(Text::Uuid), uuid);
        for question in [
            Question::Number(Number::Architecture),
            Question::FabricThird,
            Question::RemappedRows,
            Question::Number(Number::RetiredSingleBit),
            Question::Processes,
        ] {
            recorded.gpu(0, question, Err(Refusal::GpuLost));
        }
        let said = gpu(&recorded, Path::new("/proc"), 0, &mut |_| {});
        let lost = said.missing.iter().filter(|missing| missing.why.contains("fell off"));
        assert_eq!(lost.count(), 1, "{:?}", said.missing);
        assert_eq!(said.gpu.uuid.as_deref(), Some("GPU-1"));
    }

    #[test]
    fn a_gpu_that_remaps_rows_lacks_nothing_for_not_retiring_pages() {
        let mut recorded = Recorded::default();
        let rows = RowsValue { uncorrected_rows: 1, pending: true, ..RowsValue::default() };
        recorded.gpu(0, Question::RemappedRows, Ok(Value::Rows(rows)));
        let said = said(&recorded);
        let rows = said.gpu.remapped_rows.expect("rows");
        assert_eq!((rows.uncorrected, rows.pending), (1, true));
        assert_eq!(said.gpu.retired_pages, None);
        assert!(!said.missing.iter().any(|missing| missing.what == "retired pages"));
    }

    #[test]
    fn processes_have_the_names_that_this_machine_gives_them() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("7")).expect("a folder");
        std::fs::write(folder.path().join("7/comm"), "python3\n").expect("written");
        let mut recorded = Recorded::default();
        let held = |pid| ProcessValue { pid, memory_bytes: None };
        recorded.gpu(0, Question::Processes, Ok(Value::Processes(vec![held(9), held(7)])));
        let found = gpu(&recorded, folder.path(), 0, &mut |_| {}).gpu.processes.expect("read");
        let names: Vec<_> = found.iter().map(|p| (p.pid, p.name.as_deref())).collect();
        assert_eq!(names, [(7, Some("python3")), (9, None)]);
    }

    #[test]
    fn versions_are_read_and_what_is_missing_is_said() {
        let mut recorded = Recorded::default();
        recorded
            .machine(MachineQuestion::DriverVersion, Ok(Value::Text("580.95.05".to_owned())))
            .machine(MachineQuestion::CudaVersion, Ok(Value::Number(13_010)))
            .machine(MachineQuestion::LibraryVersion, Err(Refusal::NoPermission));
        let said = machine(&recorded);
        assert_eq!(said.driver.cuda_version.as_deref(), Some("13.1"));
        assert_eq!((said.driver.nvml_version, said.gpus), (None, Some(0)));
        assert_eq!(said.missing[0].what, "library version");
    }
}
