//! Calls about a GPU itself: its identity, its activity, its errors.

use std::ffi::{c_char, c_uint, c_ulonglong};

use crate::description::wrong;
use crate::machine::{
    Handle, INSUFFICIENT_SIZE, INVALID_ARGUMENT, Machine, NOT_SUPPORTED, OTHER_VERSION, calls, put,
    put_text,
};

/// `nvmlPciInfo_t`.
#[repr(C)]
pub struct PciInfo {
    legacy: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    id: c_uint,
    sub_system: c_uint,
    bus_id: [u8; 32],
}

impl PciInfo {
    /// A device at this address, whose numbers no caller reads.
    pub fn of(address: &str) -> Self {
        Self {
            legacy: padded(address),
            domain: 0,
            bus: 0,
            device: 0,
            id: 0x2330_10de,
            sub_system: 0x16c1_10de,
            bus_id: padded(&format!("0000{address}")),
        }
    }
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
pub struct Memory {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlProcessInfo_t`.
#[repr(C)]
pub struct Process {
    pid: c_uint,
    memory: c_ulonglong,
    instance: c_uint,
    compute_instance: c_uint,
}

/// `nvmlPlatformInfo_v2_t`.
#[repr(C)]
pub struct Platform {
    version: c_uint,
    guid: [u8; 16],
    serial: [u8; 16],
    slot: u8,
    tray: u8,
    host: u8,
    peer: u8,
    module: u8,
}

/// Text of this length, padded with zeroes.
fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    for (byte, from) in bytes.iter_mut().zip(text.bytes()).take(N - 1) {
        *byte = from;
    }
    bytes
}

/// The PCI address, as the CUDA stub reports it.
fn bus(machine: &Machine, gpu: u32) -> String {
    let usual = format!("0000:{:02X}:00.0", 0x1b + 0x10 * gpu);
    machine.shared(gpu, "bus").unwrap_or(usual)
}

fn memory(machine: &Machine, gpu: u32) -> u64 {
    let memory = machine.shared(gpu, "memory");
    memory.map_or(80 << 30, |text| text.parse().unwrap_or_else(|_| wrong(&text)))
}

/// Current generation and lanes, by default 5 and 16.
fn pcie(machine: &Machine, gpu: u32) -> (c_uint, c_uint) {
    let Some(text) = machine.of::<String>(gpu, "pcie") else { return (5, 16) };
    let numbers: Vec<c_uint> = text.split_whitespace().filter_map(|it| it.parse().ok()).collect();
    let [generation, width] = numbers[..] else { wrong(&text) };
    (generation, width)
}

/// The size of a structure with its version in the upper bits, as nvml.h encodes it.
pub fn tag<T>(version: u32) -> c_uint {
    (version << 24) | size_of::<T>() as c_uint
}

calls! {
    nvmlDeviceGetUUID(device: Handle, text: *mut c_char, room: c_uint) |machine, gpu| {
        // The sixteen bytes that the CUDA stub reports.
        put_text(text, room, &format!("GPU-abababab-abab-abab-{:04x}-{:04x}abababab", gpu >> 16, gpu & 0xffff))
    }

    nvmlDeviceGetSerial(device: Handle, text: *mut c_char, room: c_uint) |machine, gpu| {
        let given = machine.of::<String>(gpu, "serial");
        put_text(text, room, &given.unwrap_or(format!("16500{gpu:08}")))
    }

    nvmlDeviceGetName(device: Handle, text: *mut c_char, room: c_uint) |machine, gpu| {
        put_text(text, room, &machine.shared(gpu, "name").unwrap_or("Stub H100".to_owned()))
    }

    nvmlDeviceGetBoardPartNumber(device: Handle, text: *mut c_char, room: c_uint) |machine, gpu| {
        put_text(text, room, "692-2G520-0200-000")
    }

    nvmlDeviceGetVbiosVersion(device: Handle, text: *mut c_char, room: c_uint) |machine, gpu| {
        put_text(text, room, "96.00.74.00.01")
    }

    nvmlDeviceGetGspFirmwareVersion(device: Handle, text: *mut c_char) |machine, gpu| {
        put_text(text, 64, "580.95.05")
    }

    nvmlDeviceGetPciInfo_v3(device: Handle, info: *mut PciInfo) |machine, gpu| {
        put(info, PciInfo::of(&bus(machine, gpu)))
    }

    nvmlDeviceGetArchitecture(device: Handle, value: *mut c_uint) |machine, gpu| {
        put(value, machine.architecture(gpu))
    }

    nvmlDeviceGetModuleId(device: Handle, value: *mut c_uint) |machine, gpu| { put(value, gpu + 1) }

    nvmlDeviceGetMemoryInfo_v2(device: Handle, info: *mut Memory) |machine, gpu| {
        let total = memory(machine, gpu);
        // The caller's structure states its version.
        if unsafe { (*info).version } != tag::<Memory>(2) {
            return Err(OTHER_VERSION);
        }
        put(info, Memory { version: tag::<Memory>(2), total, reserved: 0, free: total, used: 0 })
    }

    nvmlDeviceGetCurrPcieLinkGeneration(device: Handle, value: *mut c_uint) |machine, gpu| {
        let at_work = machine.is_at_work(gpu, "generation");
        put(value, if at_work { pcie(machine, gpu).0 } else { 1 })
    }

    nvmlDeviceGetMaxPcieLinkGeneration(device: Handle, value: *mut c_uint) |machine, gpu| {
        put(value, 5)
    }

    nvmlDeviceGetCurrPcieLinkWidth(device: Handle, value: *mut c_uint) |machine, gpu| {
        put(value, pcie(machine, gpu).1)
    }

    nvmlDeviceGetMaxPcieLinkWidth(device: Handle, value: *mut c_uint) |machine, gpu| {
        put(value, 16)
    }

    nvmlDeviceGetPcieReplayCounter(device: Handle, value: *mut c_uint) |machine, gpu| {
        let count = machine.counter(&["nvml", &gpu.to_string(), "replays"]);
        put(value, count as c_uint)
    }

    nvmlDeviceGetEccMode(device: Handle, now: *mut c_uint, later: *mut c_uint) |machine, gpu| {
        let is_on = c_uint::from(machine.of::<String>(gpu, "ecc").as_deref() != Some("no"));
        put(now, is_on)?;
        put(later, is_on)
    }

    nvmlDeviceGetTotalEccErrors(device: Handle, kind: c_uint, counter: c_uint, value: *mut c_ulonglong) |machine, gpu| {
        if 1 < kind.max(counter) {
            return Err(INVALID_ARGUMENT);
        }
        put(value, 0)
    }

    nvmlDeviceGetRetiredPages_v2(
        device: Handle, cause: c_uint, count: *mut c_uint, addresses: *mut c_ulonglong, times: *mut c_ulonglong
    ) |machine, gpu| {
        let _ = (cause, count, addresses, times);
        Err(NOT_SUPPORTED)
    }

    nvmlDeviceGetRetiredPagesPendingStatus(device: Handle, value: *mut c_uint) |machine, gpu| {
        let _ = value;
        Err(NOT_SUPPORTED)
    }

    nvmlDeviceGetRemappedRows(
        device: Handle, corrected: *mut c_uint, uncorrected: *mut c_uint, pending: *mut c_uint, failed: *mut c_uint
    ) |machine, gpu| {
        for place in [corrected, uncorrected, pending, failed] {
            put(place, 0)?;
        }
        Ok(())
    }

    nvmlDeviceGetClockInfo(device: Handle, kind: c_uint, value: *mut c_uint) |machine, gpu| {
        let at_work = machine.is_at_work(gpu, &format!("clock {kind}"));
        // NVML_CLOCK_SM and NVML_CLOCK_MEM.
        put(value, match (kind, at_work) {
            (1, true) => machine.of(gpu, "clock").unwrap_or(1_980),
            (1, false) => 345,
            (2, true) => 2_619,
            (2, false) => 1_593,
            _ => return Err(INVALID_ARGUMENT),
        })
    }

    nvmlDeviceGetMaxClockInfo(device: Handle, kind: c_uint, value: *mut c_uint) |machine, gpu| {
        put(value, match kind {
            1 => 1_980,
            2 => 2_619,
            _ => return Err(INVALID_ARGUMENT),
        })
    }

    nvmlDeviceGetPowerUsage(device: Handle, value: *mut c_uint) |machine, gpu| {
        put(value, if machine.is_at_work(gpu, "power") { 312_500 } else { 71_250 })
    }

    nvmlDeviceGetEnforcedPowerLimit(device: Handle, value: *mut c_uint) |machine, gpu| {
        put(value, 700_000)
    }

    nvmlDeviceGetPowerManagementDefaultLimit(device: Handle, value: *mut c_uint) |machine, gpu| {
        put(value, 700_000)
    }

    nvmlDeviceGetTemperature(device: Handle, sensor: c_uint, value: *mut c_uint) |machine, gpu| {
        if sensor != 0 {
            return Err(INVALID_ARGUMENT);
        }
        put(value, if machine.is_at_work(gpu, "temperature") { 48 } else { 29 })
    }

    nvmlDeviceGetCurrentClocksThrottleReasons(device: Handle, value: *mut c_ulonglong) |machine, gpu| {
        let at_work = machine.is_at_work(gpu, "throttled");
        // 1: nothing to do.
        put(value, if at_work { machine.of(gpu, "throttled").unwrap_or(0) } else { 1 })
    }

    nvmlDeviceGetMigMode(device: Handle, now: *mut c_uint, later: *mut c_uint) |machine, gpu| {
        let is_on = c_uint::from(machine.shared(gpu, "mig").as_deref() == Some("yes"));
        put(now, is_on)?;
        put(later, is_on)
    }

    nvmlDeviceGetPersistenceMode(device: Handle, value: *mut c_uint) |machine, gpu| {
        put(value, 1)
    }

    nvmlDeviceGetC2cModeInfoV(device: Handle, value: *mut c_uint) |machine, gpu| {
        let _ = value;
        Err(NOT_SUPPORTED)
    }

    nvmlDeviceGetPlatformInfo(device: Handle, info: *mut Platform) |machine, gpu| {
        // The caller's structure states its version.
        if unsafe { (*info).version } != tag::<Platform>(2) {
            return Err(OTHER_VERSION);
        }
        put(info, Platform {
            version: tag::<Platform>(2),
            guid: [0; 16],
            serial: padded("1821225190042"),
            slot: 7,
            tray: 3,
            host: 1,
            peer: 1,
            module: gpu as u8 + 1,
        })
    }

    nvmlDeviceGetComputeRunningProcesses_v3(device: Handle, count: *mut c_uint, infos: *mut Process) |machine, gpu| {
        let given = machine.of::<String>(gpu, "processes").unwrap_or_default();
        let pids: Vec<c_uint> = given
            .split_whitespace()
            .map(|pid| pid.parse().unwrap_or_else(|_| wrong(&given)))
            .collect();
        // The caller passes room for the stated number.
        let room = unsafe { *count } as usize;
        put(count, pids.len() as c_uint)?;
        if room < pids.len() {
            return Err(INSUFFICIENT_SIZE);
        }
        for (at, pid) in pids.into_iter().enumerate() {
            let process = Process { pid, memory: 1 << 30, instance: u32::MAX, compute_instance: u32::MAX };
            unsafe { infos.add(at).write(process) };
        }
        Ok(())
    }
}
