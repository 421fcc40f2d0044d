//! Facts about the machine and about each GPU, as the driver reports them.

use std::path::Path;

use nvml_wrapper_sys::bindings::field_id;
use serde::{Deserialize, Serialize};

use super::gpu_library::{
    GpuLibrary, GpuNumber, GpuQuery, GpuQueryError, GpuText, GpuValue, MachineQuery,
};
use super::query::{GpuQuerySession, to_printable};
use super::{fabric, link, nvml_names, pci};
use model::gpu_facts::{
    ClockFacts, EccFacts, GpuFacts, PcieFacts, PowerFacts, ProcessFacts, RemappedRows, RetiredPages,
};
use model::node_facts::{DriverFacts, MissingFact};
use model::throttle_reason::ThrottleReason;

/// Upper bound of a machine's GPUs. Every counted GPU gets an entry even if it is silent, so a
/// higher count is treated as no count.
const MOST_GPUS: u32 = 1_024;

/// The driver's facts about itself and the number of GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MachineReport {
    pub(super) driver: DriverFacts,
    /// Number of GPUs; absent if the driver does not report it.
    pub(super) gpus: Option<u32>,
    /// Facts that the driver did not report.
    pub(super) missing: Vec<MissingFact>,
}

/// The driver's facts about one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GpuReport {
    pub(super) gpu: GpuFacts,
    /// Facts that the driver did not report.
    pub(super) missing: Vec<MissingFact>,
}

pub(super) fn query_machine_report(library: &dyn GpuLibrary) -> MachineReport {
    let mut missing = Vec::new();
    let mut query_or_note = |query: MachineQuery| match library.query_machine(query) {
        Ok(value) => Some(value),
        Err(refusal) => {
            missing.push(MissingFact {
                what: query.to_string(),
                why: refusal.to_string(),
                ..MissingFact::default()
            });
            None
        }
    };
    let mut text = |query| match query_or_note(query) {
        Some(GpuValue::Text(text)) => Some(to_printable(&text)),
        _ => None,
    };
    let version = text(MachineQuery::DriverVersion);
    let nvml_version = text(MachineQuery::LibraryVersion);
    let mut number = |query| match query_or_note(query) {
        Some(GpuValue::Number(number)) => Some(number),
        _ => None,
    };
    // cudaDriverGetVersion: 1000 times major and 10 times minor.
    let cuda = number(MachineQuery::CudaVersion);
    let cuda_version = cuda.map(|number| format!("{}.{}", number / 1000, number % 1000 / 10));
    let count = number(MachineQuery::GpuCount);
    let gpus = count.and_then(|count| u32::try_from(count).ok()).filter(|it| *it <= MOST_GPUS);
    if let (Some(count), None) = (count, gpus) {
        missing.push(MissingFact {
            what: MachineQuery::GpuCount.to_string(),
            why: GpuQueryError::Unreadable(format!("{count} GPUs")).to_string(),
            ..MissingFact::default()
        });
    }
    MachineReport { driver: DriverFacts { version, nvml_version, cuda_version }, gpus, missing }
}

/// Queries one GPU. `begin` receives the name of the next part, so that the parent process knows
/// where a driver hangs.
pub(super) fn query_gpu_report(
    library: &dyn GpuLibrary,
    proc: &Path,
    index: u32,
    begin: &mut dyn FnMut(&str),
) -> GpuReport {
    let mut session = GpuQuerySession::new(library, index);
    let gpu = query_gpu_facts(&mut session, proc, index, begin);
    GpuReport { gpu, missing: session.into_missing() }
}

fn query_gpu_facts(
    session: &mut GpuQuerySession<'_>,
    proc: &Path,
    index: u32,
    begin: &mut dyn FnMut(&str),
) -> GpuFacts {
    begin("identity");
    if let Err(GpuQueryError::GpuLost) = session.try_text(GpuQuery::Text(GpuText::Uuid)) {
        session.ok_or_note::<()>("identity", Err(GpuQueryError::GpuLost));
        return GpuFacts { index, ..GpuFacts::default() };
    }
    let mut facts = query_identity(session, index);
    let architecture = session.number(GpuNumber::Architecture);
    facts.architecture = architecture.map(nvml_names::architecture_name);
    begin("fabric");
    facts.fabric = fabric::query_fabric(session);
    facts.platform = fabric::query_platform(session);
    begin("NVLinks");
    (facts.nvlink_count, facts.nvlinks) = link::query_nvlinks(session, architecture);
    // Before Blackwell there was one mode for the whole machine.
    if architecture.is_some_and(|number| link::BLACKWELL <= number) {
        facts.nvlink_mode = session.number_u32(GpuNumber::LinkMode);
        facts.nvlink_mode_is_best = session.flag(GpuNumber::LinkModeIsBest);
    }
    begin("the link to its processor");
    facts.c2c = link::query_c2c(session);
    begin("PCI Express");
    facts.pcie = PcieFacts {
        generation: session.number_u32(GpuNumber::PcieGeneration),
        generation_max: session.number_u32(GpuNumber::PcieGenerationMax),
        width: session.number_u32(GpuNumber::PcieWidth),
        width_max: session.number_u32(GpuNumber::PcieWidthMax),
        replays: session.number(GpuNumber::PcieReplays),
    };
    begin("memory errors");
    query_memory(session, &mut facts);
    begin("clocks and power");
    query_activity(session, &mut facts);
    begin("processes");
    facts.processes = query_processes(session, proc);
    facts
}

fn query_identity(session: &mut GpuQuerySession<'_>, index: u32) -> GpuFacts {
    GpuFacts {
        index,
        uuid: session.text(GpuText::Uuid),
        serial: session.text(GpuText::Serial),
        product: session.text(GpuText::Product),
        board_part_number: session.text(GpuText::BoardPartNumber),
        vbios: session.text(GpuText::Vbios),
        gsp_firmware: session.text(GpuText::GspFirmware),
        pci_address: session
            .text(GpuText::PciAddress)
            .map(|address| pci::normalize_address(&address)),
        module_id: session.number_u32(GpuNumber::ModuleId),
        memory_bytes: session.number(GpuNumber::MemoryBytes),
        ..GpuFacts::default()
    }
}

fn query_memory(session: &mut GpuQuerySession<'_>, facts: &mut GpuFacts) {
    facts.ecc = EccFacts {
        enabled: session.flag(GpuNumber::EccEnabled),
        enabled_pending: session.flag(GpuNumber::EccPending),
        corrected_since_load: session.number(GpuNumber::EccCorrectedSinceLoad),
        uncorrected_since_load: session.number(GpuNumber::EccUncorrectedSinceLoad),
        corrected_in_life: session.number(GpuNumber::EccCorrectedInLife),
        uncorrected_in_life: session.number(GpuNumber::EccUncorrectedInLife),
    };
    let rows = session.try_remapped_rows(GpuQuery::RemappedRows);
    facts.remapped_rows = session.ok_or_note("remapped rows", rows).map(|rows| RemappedRows {
        corrected: rows.corrected_rows,
        uncorrected: rows.uncorrected_rows,
        pending: rows.pending,
        failed: rows.failed,
    });
    // GPUs either remap rows or retire pages. For a GPU that remaps rows, missing page retirements
    // are not a gap.
    let number =
        |session: &GpuQuerySession<'_>, number| session.try_number(GpuQuery::Number(number));
    let single_bit = number(session, GpuNumber::RetiredSingleBit);
    if let (Err(refusal), None) = (&single_bit, &facts.remapped_rows) {
        session.ok_or_note::<()>("retired pages", Err(refusal.clone()));
    }
    let pages = RetiredPages {
        single_bit: single_bit.ok(),
        double_bit: number(session, GpuNumber::RetiredDoubleBit).ok(),
        pending: number(session, GpuNumber::RetiredPending).ok().map(|value| value != 0),
    };
    facts.retired_pages = Some(pages).filter(|pages| *pages != RetiredPages::default());
}

fn query_activity(session: &mut GpuQuerySession<'_>, facts: &mut GpuFacts) {
    facts.clocks = ClockFacts {
        sm_mhz: session.number_u32(GpuNumber::ClockSm),
        sm_max_mhz: session.number_u32(GpuNumber::ClockSmMax),
        memory_mhz: session.number_u32(GpuNumber::ClockMemory),
        memory_max_mhz: session.number_u32(GpuNumber::ClockMemoryMax),
    };
    facts.power = PowerFacts {
        draw_mw: session.number(GpuNumber::PowerDraw),
        limit_mw: session.number(GpuNumber::PowerLimit),
        limit_default_mw: session.number(GpuNumber::PowerLimitDefault),
    };
    facts.temperature_celsius = session.number(GpuNumber::Temperature);
    facts.throttled_by = session.number(GpuNumber::Throttling).map(ThrottleReason::from_bits);
    facts.mig = session.flag(GpuNumber::Mig);
    facts.mig_pending = session.flag(GpuNumber::MigPending);
    facts.persistence = session.flag(GpuNumber::Persistence);
    let action = session.try_field(field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 0);
    facts.recovery_action =
        session.ok_or_note("recovery action", action).map(nvml_names::recovery_action_name);
}

fn query_processes(session: &mut GpuQuerySession<'_>, proc: &Path) -> Option<Vec<ProcessFacts>> {
    let found = session.try_processes(GpuQuery::Processes);
    let mut found: Vec<ProcessFacts> = session
        .ok_or_note("processes", found)?
        .into_iter()
        .map(|process| ProcessFacts {
            pid: process.pid,
            name: std::fs::read_to_string(proc.join(process.pid.to_string()).join("comm"))
                .ok()
                .map(|name| to_printable(&name))
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
    use crate::facts::gpu_library::{ProcessValue, RowsValue};
    use crate::facts::library_record::RecordedLibrary;

    fn report_on(recorded: &RecordedLibrary) -> GpuReport {
        query_gpu_report(recorded, Path::new("/proc"), 0, &mut |_| {})
    }

    #[test]
    fn an_implausible_number_of_gpus_is_missing() {
        let count = |number| {
            let mut recorded = RecordedLibrary::default();
            recorded.add_machine_answer(MachineQuery::GpuCount, Ok(GpuValue::Number(number)));
            let report = query_machine_report(&recorded);
            let why = report.missing.into_iter().find(|missing| missing.what == "gpu count");
            (report.gpus, why.map(|missing| missing.why))
        };
        assert_eq!(count(8), (Some(8), None));
        let why = "unreadable answer: 4294967295 GPUs".to_owned();
        assert_eq!(count(u32::MAX.into()), (None, Some(why)));
    }

    #[test]
    fn the_identity_of_a_gpu_is_read() {
        let mut recorded = RecordedLibrary::default();
        let text = |text: &str| Ok(GpuValue::Text(text.to_owned()));
        recorded
            .add_gpu_answer(0, GpuQuery::Text(GpuText::Uuid), text("GPU-1"))
            .add_gpu_answer(0, GpuQuery::Text(GpuText::PciAddress), text("00000008:06:00.0"))
            .add_gpu_answer(0, GpuQuery::Number(GpuNumber::Architecture), Ok(GpuValue::Number(10)))
            .add_gpu_answer(0, GpuQuery::Number(GpuNumber::Throttling), Ok(GpuValue::Number(4)));
        let found = report_on(&recorded).gpu;
        assert_eq!(found.uuid.as_deref(), Some("GPU-1"));
        assert_eq!(found.pci_address.as_deref(), Some("0008:06:00.0"));
        assert_eq!(found.architecture.as_deref(), Some("blackwell"));
        assert_eq!(found.throttled_by, Some(vec![ThrottleReason::SoftwarePowerCap]));
    }

    #[test]
    fn unsupported_facts_are_missing_with_a_reason() {
        let mut recorded = RecordedLibrary::default();
        let uuid = Ok(GpuValue::Text("GPU-1".to_owned()));
        recorded.add_gpu_answer(0, GpuQuery::Text(GpuText::Uuid), uuid);
        recorded.add_gpu_answer(
            0,
            GpuQuery::Number(GpuNumber::EccEnabled),
            Err(GpuQueryError::NotSupported),
        );
        recorded.add_gpu_answer(
            0,
            GpuQuery::Number(GpuNumber::ModuleId),
            Err(GpuQueryError::MissingSymbol),
        );
        let report = report_on(&recorded);
        assert_eq!((report.gpu.ecc.enabled, report.gpu.module_id), (None, None));
        let why = |what| {
            let of = report.missing.iter().find(|missing| missing.what == what);
            of.map(|missing| missing.why.as_str())
        };
        assert_eq!(why("ecc mode"), Some("not supported by this GPU"));
        assert_eq!(why("module id"), Some("this driver is too old to report it"));
    }

    #[test]
    fn a_lost_gpu_is_one_missing_entry() {
        let mut recorded = RecordedLibrary::default();
        recorded.add_gpu_answer(0, GpuQuery::Text(GpuText::Uuid), Err(GpuQueryError::GpuLost));
        let report = report_on(&recorded);
        assert_eq!(report.missing.len(), 1);
        assert!(report.missing[0].why.contains("fell off the bus"), "{:?}", report.missing);
        // The same result if the GPU is lost during the queries.
        let uuid = Ok(GpuValue::Text("GPU-1".to_owned()));
        recorded.add_gpu_answer(0, GpuQuery::Text(GpuText::Uuid), uuid);
        for query in [
            GpuQuery::Number(GpuNumber::Architecture),
            GpuQuery::FabricThird,
            GpuQuery::RemappedRows,
            GpuQuery::Number(GpuNumber::RetiredSingleBit),
            GpuQuery::Processes,
        ] {
            recorded.add_gpu_answer(0, query, Err(GpuQueryError::GpuLost));
        }
        let report = query_gpu_report(&recorded, Path::new("/proc"), 0, &mut |_| {});
        let lost = report.missing.iter().filter(|missing| missing.why.contains("fell off"));
        assert_eq!(lost.count(), 1, "{:?}", report.missing);
        assert_eq!(report.gpu.uuid.as_deref(), Some("GPU-1"));
    }

    #[test]
    fn a_gpu_that_remaps_rows_has_no_gap_for_retired_pages() {
        let mut recorded = RecordedLibrary::default();
        let rows = RowsValue { uncorrected_rows: 1, pending: true, ..RowsValue::default() };
        recorded.add_gpu_answer(0, GpuQuery::RemappedRows, Ok(GpuValue::Rows(rows)));
        let report = report_on(&recorded);
        let rows = report.gpu.remapped_rows.expect("rows");
        assert_eq!((rows.uncorrected, rows.pending), (1, true));
        assert_eq!(report.gpu.retired_pages, None);
        assert!(!report.missing.iter().any(|missing| missing.what == "retired pages"));
    }

    #[test]
    fn processes_have_the_names_from_proc() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("7")).expect("a folder");
        std::fs::write(folder.path().join("7/comm"), "python3\n").expect("written");
        let mut recorded = RecordedLibrary::default();
        let held = |pid| ProcessValue { pid, memory_bytes: None };
        recorded.add_gpu_answer(
            0,
            GpuQuery::Processes,
            Ok(GpuValue::Processes(vec![held(9), held(7)])),
        );
        let found =
            query_gpu_report(&recorded, folder.path(), 0, &mut |_| {}).gpu.processes.expect("read");
        let names: Vec<_> = found.iter().map(|p| (p.pid, p.name.as_deref())).collect();
        assert_eq!(names, [(7, Some("python3")), (9, None)]);
    }

    #[test]
    fn versions_are_read_and_missing_ones_are_reported() {
        let mut recorded = RecordedLibrary::default();
        recorded
            .add_machine_answer(
                MachineQuery::DriverVersion,
                Ok(GpuValue::Text("580.95.05".to_owned())),
            )
            .add_machine_answer(MachineQuery::CudaVersion, Ok(GpuValue::Number(13_010)))
            .add_machine_answer(MachineQuery::LibraryVersion, Err(GpuQueryError::NoPermission));
        let report = query_machine_report(&recorded);
        assert_eq!(report.driver.cuda_version.as_deref(), Some("13.1"));
        assert_eq!((report.driver.nvml_version, report.gpus), (None, Some(0)));
        assert_eq!(report.missing[0].what, "library version");
    }
}
