//! Calls about a GPU's links and its fabric.

use std::ffi::{c_int, c_uint, c_ulonglong};

use crate::calls_device::{PciInfo, tag};
use crate::description::wrong;
use crate::machine::{Handle, INVALID_ARGUMENT, Machine, NOT_SUPPORTED, OTHER_VERSION, calls, put};

/// `NVML_DEVICE_ARCH_BLACKWELL`: without the counter call, with the counter fields.
const BLACKWELL: u32 = 10;

/// `nvmlGpuFabricInfo_t`.
#[repr(C)]
pub struct FabricFirst {
    uuid: [u8; 16],
    status: c_int,
    clique: c_uint,
    state: u8,
}

/// `nvmlGpuFabricInfo_v3_t`.
#[repr(C)]
pub struct Fabric {
    version: c_uint,
    uuid: [u8; 16],
    status: c_int,
    clique: c_uint,
    state: u8,
    mask: c_uint,
    summary: u8,
}

/// `nvmlFieldValue_t`, with its value as a whole.
#[repr(C)]
pub struct Field {
    id: c_uint,
    scope: c_uint,
    timestamp: i64,
    latency: i64,
    kind: c_uint,
    result: c_int,
    value: u64,
}

/// `NVML_NVLINK_STATE_*`, `None` for a missing link.
fn state(machine: &Machine, gpu: u32, link: u32) -> Option<c_uint> {
    if machine.links(gpu) <= link {
        return None;
    }
    let status =
        machine.description.get::<String>(&["nvml", &gpu.to_string(), "link", &link.to_string()]);
    Some(match status.as_deref() {
        None | Some("up") => 1,
        Some("down") => 0,
        Some("sleep") => 2,
        Some(other) => wrong(other),
    })
}

/// A counter of a link: `nvml GPU errors LINK COUNTER = FROM BY`, by the call's number of it or
/// by the field's.
fn errors(machine: &mut Machine, gpu: u32, link: u32, counter: u32) -> u64 {
    let (gpu, link, counter) = (gpu.to_string(), link.to_string(), counter.to_string());
    machine.counter(&["nvml", &gpu, "errors", &link, &counter])
}

/// State of the registration and clique, unless the GPU has no fabric (`nvml fabric = no`). 3 is
/// completed, 2 in progress.
fn fabric(machine: &Machine, gpu: u32) -> Result<(u8, c_uint), c_int> {
    let fabric = machine.of::<String>(gpu, "fabric");
    let state = match fabric.as_deref() {
        Some("no") => return Err(NOT_SUPPORTED),
        None => 3,
        Some(text) => text.parse().unwrap_or_else(|_| wrong(text)),
    };
    Ok((state, machine.description.get(&["clique"]).unwrap_or(1)))
}

calls! {
    nvmlDeviceGetNvLinkState(device: Handle, link: c_uint, value: *mut c_uint) |machine, gpu| {
        put(value, state(machine, gpu, link).ok_or(INVALID_ARGUMENT)?)
    }

    nvmlDeviceGetNvLinkVersion(device: Handle, link: c_uint, value: *mut c_uint) |machine, gpu| {
        state(machine, gpu, link).ok_or(INVALID_ARGUMENT)?;
        put(value, 6)
    }

    nvmlDeviceGetNvLinkRemoteDeviceType(device: Handle, link: c_uint, value: *mut c_uint) |machine, gpu| {
        state(machine, gpu, link).ok_or(INVALID_ARGUMENT)?;
        put(value, 2)
    }

    nvmlDeviceGetNvLinkRemotePciInfo_v2(
        device: Handle, link: c_uint, info: *mut PciInfo
    ) |machine, gpu| {
        // A link that is down has no remote end.
        match state(machine, gpu, link) {
            Some(1 | 2) => put(info, PciInfo::of(&format!("0000:{:02X}:00.0", 0xc1 + link % 4))),
            _ => Err(INVALID_ARGUMENT),
        }
    }

    nvmlDeviceGetNvLinkErrorCounter(device: Handle, link: c_uint, counter: c_uint, value: *mut c_ulonglong) |machine, gpu| {
        state(machine, gpu, link).ok_or(INVALID_ARGUMENT)?;
        if BLACKWELL <= machine.architecture(gpu) {
            return Err(NOT_SUPPORTED);
        }
        put(value, errors(machine, gpu, link, counter))
    }

    nvmlDeviceGetGpuFabricInfo(device: Handle, info: *mut FabricFirst) |machine, gpu| {
        let (state, clique) = fabric(machine, gpu)?;
        put(info, FabricFirst { uuid: [0xfa; 16], status: 0, clique, state })
    }

    nvmlDeviceGetGpuFabricInfoV(device: Handle, info: *mut Fabric) |machine, gpu| {
        let (state, clique) = fabric(machine, gpu)?;
        // The caller's structure states its version.
        if unsafe { (*info).version } != tag::<Fabric>(3) {
            return Err(OTHER_VERSION);
        }
        // No bandwidth lost, no recovery, no route in trouble: 1 is healthy.
        put(info, Fabric { version: tag::<Fabric>(3), uuid: [0xfa; 16], status: 0, clique, state, mask: 0x1aa, summary: 1 })
    }

    nvmlDeviceGetFieldValues(device: Handle, count: c_int, fields: *mut Field) |machine, gpu| {
        for at in 0..usize::try_from(count).map_err(|_| INVALID_ARGUMENT)? {
            // The caller passes the stated number of fields.
            let field = unsafe { &mut *fields.add(at) };
            // Renumbered between drivers: a caller cannot know the field's meaning.
            if (251..=273).contains(&field.id) {
                wrong(&format!("field {} means different things", field.id));
            }
            let (kind, value) = match answered(machine, gpu, field) {
                Ok(answer) => answer,
                Err(code) => {
                    field.result = code;
                    continue;
                }
            };
            (field.kind, field.value, field.result) = (kind, value, 0);
        }
        Ok(())
    }
}

/// Type and value of a field: 1 is an unsigned int, 3 an unsigned long long.
fn answered(machine: &mut Machine, gpu: u32, field: &Field) -> Result<(c_uint, u64), c_int> {
    let link = field.scope;
    let state = state(machine, gpu, link);
    match field.id {
        91 => Ok((1, machine.links(gpu).into())),
        146 => state.map(|_| (1, link.into())).ok_or(INVALID_ARGUMENT),
        // On Hopper these return success and zero, regardless of events.
        161..=163 => Ok((3, 0)),
        164 => state.map(|_| (1, 26_562)).ok_or(INVALID_ARGUMENT),
        165 => state.map(|state| (1, state.into())).ok_or(INVALID_ARGUMENT),
        166 => state.map(|_| (1, 6)).ok_or(INVALID_ARGUMENT),
        206..=221 if BLACKWELL <= machine.architecture(gpu) => {
            state.ok_or(INVALID_ARGUMENT)?;
            Ok((3, errors(machine, gpu, link, field.id)))
        }
        // The driver's recommended action: none.
        230 => Ok((1, 0)),
        _ => Err(NOT_SUPPORTED),
    }
}
