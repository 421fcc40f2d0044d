//! NVML calls that nvml-wrapper does not wrap, or whose answers it loses.
//!
//! Symbols come from the public fields of the loaded library, each of which may be absent; the
//! wrapper's methods of these names panic in that case. Each function makes one call and returns
//! its plain answer or its error code; `facts` interprets both.

#![expect(unsafe_code, reason = "NVML is a C library, and these calls have no safe wrapper")]

use std::ffi::{c_int, c_uint, c_ulonglong};

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings as c;
use serde::{Deserialize, Serialize};

/// Why a call returned no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvmlCallError {
    /// This library is older than the call.
    MissingSymbol,
    /// The library returned this `nvmlReturn_t`.
    Refused(u32),
    /// The answer has an unexpected type.
    Unreadable,
}

/// Versions of the fabric information structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricInfoVersion {
    /// With a health mask and its summary.
    V3,
    /// With a health mask.
    V2,
    /// From the call without versions, without health.
    V1,
}

/// Fabric information from the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvmlFabricInfo {
    /// `NVML_GPU_FABRIC_STATE_*`.
    pub fabric_state: u8,
    /// `nvmlReturn_t` of the registration; meaningful in state 3 only.
    pub status: u32,
    /// The field ClusterUUID.
    pub cluster_uuid: [u8; 16],
    /// The field CliqueId.
    pub clique_id: u32,
    /// Health mask, from version 2 on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_mask: Option<u32>,
    /// Health summary, from version 3 on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_summary: Option<u8>,
}

/// Position of a GPU in the platform.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvmlPlatformInfo {
    /// Serial number of the chassis; older drivers name it the rack's GUID.
    pub chassis_serial: [u8; 16],
    /// Slot in the chassis, counting switch trays.
    pub slot: u8,
    /// Index of the tray among the compute trays.
    pub tray: u8,
    /// Index of the node within the tray.
    pub host: u8,
    /// Kind of device at the other end of its NVLinks.
    pub peer_type: u8,
    /// Index of the GPU within the node.
    pub module: u8,
}

/// `nvmlClocksEventReason*`, all bits.
pub fn throttle_reasons(device: &Device<'_>) -> Result<u64, NvmlCallError> {
    let call = require_symbol(&device.nvml().lib().nvmlDeviceGetCurrentClocksThrottleReasons)?;
    let mut value: c_ulonglong = 0;
    // SAFETY: as in `read_number`, with an unsigned long long to fill.
    check(unsafe { call(device.handle(), &raw mut value) })?;
    Ok(value)
}

/// Memory rows that were remapped to spare ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvmlRemappedRows {
    /// Rows remapped after correctable errors.
    pub corrected_rows: u32,
    /// Rows remapped after uncorrectable errors.
    pub uncorrected_rows: u32,
    /// More rows will be remapped at the next reset.
    pub pending: bool,
    /// A remapping failed.
    pub failed: bool,
}

/// One field value to read: its ID, and its link or part.
pub type NvmlFieldRef = (u32, u32);

/// A call that returns one number.
type DeviceNumberFn<E> =
    Result<unsafe extern "C" fn(c::nvmlDevice_t, *mut c_uint) -> c::nvmlReturn_t, E>;

/// A call that returns one number about one link.
type LinkNumberFn<E> =
    Result<unsafe extern "C" fn(c::nvmlDevice_t, c_uint, *mut c_uint) -> c::nvmlReturn_t, E>;

/// `NVML_STRUCT_VERSION` of nvml.h: the size, and the version in the high byte.
fn struct_version<T>(version: u32) -> u32 {
    let size = u32::try_from(size_of::<T>()).expect("structures of NVML are small");
    size | (version << 24)
}

fn check(code: c::nvmlReturn_t) -> Result<(), NvmlCallError> {
    if code == c::nvmlReturn_enum_NVML_SUCCESS { Ok(()) } else { Err(NvmlCallError::Refused(code)) }
}

fn require_symbol<S, E>(symbol: &Result<S, E>) -> Result<&S, NvmlCallError> {
    symbol.as_ref().map_err(|_| NvmlCallError::MissingSymbol)
}

fn read_number<E>(device: &Device<'_>, symbol: &DeviceNumberFn<E>) -> Result<u32, NvmlCallError> {
    let call = require_symbol(symbol)?;
    let mut value: c_uint = 0;
    // SAFETY: the symbol was looked up in the library that `device` borrows and has this signature
    // in nvml.h; the handle belongs to that library, and `value` is a place for one unsigned int
    // that outlives the call.
    check(unsafe { call(device.handle(), &raw mut value) })?;
    Ok(value)
}

fn read_link_number<E>(
    device: &Device<'_>,
    symbol: &LinkNumberFn<E>,
    link: u32,
) -> Result<u32, NvmlCallError> {
    let call = require_symbol(symbol)?;
    let mut value: c_uint = 0;
    // SAFETY: as in `read_number`; a link that does not exist returns an error code.
    check(unsafe { call(device.handle(), link, &raw mut value) })?;
    Ok(value)
}

/// `NVML_DEVICE_ARCH_*`. The wrapper's call does not distinguish an unknown architecture from an
/// unknown error code.
pub fn architecture(device: &Device<'_>) -> Result<u32, NvmlCallError> {
    read_number(device, &device.nvml().lib().nvmlDeviceGetArchitecture)
}

/// Index of the GPU within its node or baseboard.
pub fn module_id(device: &Device<'_>) -> Result<u32, NvmlCallError> {
    read_number(device, &device.nvml().lib().nvmlDeviceGetModuleId)
}

/// Bandwidth mode of the GPU's NVLinks, and whether it is the fastest.
pub fn link_mode(device: &Device<'_>) -> Result<(u8, bool), NvmlCallError> {
    let call = require_symbol(&device.nvml().lib().nvmlDeviceGetNvlinkBwMode)?;
    let version = struct_version::<c::nvmlNvlinkGetBwMode_v1_t>(1);
    let mut info = c::nvmlNvlinkGetBwMode_v1_t { version, bIsBest: 0, bwMode: 0 };
    // SAFETY: as in `read_number`; the version in the structure tells the library its
    // size.
    check(unsafe { call(device.handle(), &raw mut info) })?;
    Ok((info.bwMode, info.bIsBest != 0))
}

/// True if the chip-to-chip link to the CPU is in use.
pub fn c2c_enabled(device: &Device<'_>) -> Result<bool, NvmlCallError> {
    let call = require_symbol(&device.nvml().lib().nvmlDeviceGetC2cModeInfoV)?;
    let mut info = c::nvmlC2cModeInfo_v1_t { isC2cEnabled: 0 };
    // SAFETY: as in `read_number`; `info` is the structure of version 1, the only one
    // this call has.
    check(unsafe { call(device.handle(), &raw mut info) })?;
    Ok(info.isC2cEnabled != 0)
}

/// `NVML_NVLINK_STATE_*` or `nvmlEnableState_t`, whose first two values agree. The wrapper's call
/// fails on the third, sleep.
pub fn link_state(device: &Device<'_>, link: u32) -> Result<u32, NvmlCallError> {
    read_link_number(device, &device.nvml().lib().nvmlDeviceGetNvLinkState, link)
}

/// `NVML_NVLINK_DEVICE_TYPE_*`. The wrapper's call drops the answer and always returns "unknown".
pub fn link_remote_kind(device: &Device<'_>, link: u32) -> Result<u32, NvmlCallError> {
    read_link_number(device, &device.nvml().lib().nvmlDeviceGetNvLinkRemoteDeviceType, link)
}

/// An error counter of a link, `NVML_NVLINK_ERROR_*`. The wrapper's call lacks the last of them,
/// ECC errors in data.
pub fn link_errors(device: &Device<'_>, link: u32, counter: u32) -> Result<u64, NvmlCallError> {
    let call = require_symbol(&device.nvml().lib().nvmlDeviceGetNvLinkErrorCounter)?;
    let mut value: c_ulonglong = 0;
    // SAFETY: as in `read_number`, with an unsigned long long to fill; links and counters that do
    // not exist return an error code.
    check(unsafe { call(device.handle(), link, counter, &raw mut value) })?;
    Ok(value)
}

/// Memory rows that were remapped to spare ones.
pub fn remapped_rows(device: &Device<'_>) -> Result<NvmlRemappedRows, NvmlCallError> {
    let call = require_symbol(&device.nvml().lib().nvmlDeviceGetRemappedRows)?;
    let mut rows: [c_uint; 4] = [0; 4];
    let [corrected, uncorrected, pending, failed] = &mut rows;
    // SAFETY: as in `read_number`, with four different unsigned ints to fill.
    let code = unsafe { call(device.handle(), corrected, uncorrected, pending, failed) };
    check(code)?;
    let [corrected_rows, uncorrected_rows, pending, failed] = rows;
    Ok(NvmlRemappedRows {
        corrected_rows,
        uncorrected_rows,
        pending: pending != 0,
        failed: failed != 0,
    })
}

/// Queries fabric information in this version.
pub fn fabric(
    device: &Device<'_>,
    version: FabricInfoVersion,
) -> Result<NvmlFabricInfo, NvmlCallError> {
    match version {
        FabricInfoVersion::V3 => fabric_v3(device),
        FabricInfoVersion::V2 => fabric_v2(device),
        FabricInfoVersion::V1 => fabric_v1(device),
    }
}

fn fabric_v3(device: &Device<'_>) -> Result<NvmlFabricInfo, NvmlCallError> {
    let call = require_symbol(&device.nvml().lib().nvmlDeviceGetGpuFabricInfoV)?;
    let mut info = c::nvmlGpuFabricInfo_v3_t {
        version: struct_version::<c::nvmlGpuFabricInfo_v3_t>(3),
        clusterUuid: [0; 16],
        status: 0,
        cliqueId: 0,
        state: 0,
        healthMask: 0,
        healthSummary: 0,
    };
    // SAFETY: as in `read_number`; the version in the structure gives the library its size, and it
    // does not write beyond that.
    check(unsafe { call(device.handle(), &raw mut info) })?;
    Ok(NvmlFabricInfo {
        fabric_state: info.state,
        status: info.status,
        cluster_uuid: info.clusterUuid,
        clique_id: info.cliqueId,
        health_mask: Some(info.healthMask),
        health_summary: Some(info.healthSummary),
    })
}

fn fabric_v2(device: &Device<'_>) -> Result<NvmlFabricInfo, NvmlCallError> {
    let call = require_symbol(&device.nvml().lib().nvmlDeviceGetGpuFabricInfoV)?;
    let mut info = c::nvmlGpuFabricInfo_v2_t {
        version: struct_version::<c::nvmlGpuFabricInfo_v2_t>(2),
        clusterUuid: [0; 16],
        status: 0,
        cliqueId: 0,
        state: 0,
        healthMask: 0,
    };
    // SAFETY: as above. The call is declared with a pointer to version 3, and writes the version
    // that the structure names: version 2, whose size is that of `info`.
    check(unsafe { call(device.handle(), (&raw mut info).cast()) })?;
    Ok(NvmlFabricInfo {
        fabric_state: info.state,
        status: info.status,
        cluster_uuid: info.clusterUuid,
        clique_id: info.cliqueId,
        health_mask: Some(info.healthMask),
        health_summary: None,
    })
}

fn fabric_v1(device: &Device<'_>) -> Result<NvmlFabricInfo, NvmlCallError> {
    let call = require_symbol(&device.nvml().lib().nvmlDeviceGetGpuFabricInfo)?;
    let mut info =
        c::nvmlGpuFabricInfo_t { clusterUuid: [0; 16], status: 0, cliqueId: 0, state: 0 };
    // SAFETY: as in `read_number`; this call supports only this structure.
    check(unsafe { call(device.handle(), &raw mut info) })?;
    Ok(NvmlFabricInfo {
        fabric_state: info.state,
        status: info.status,
        cluster_uuid: info.clusterUuid,
        clique_id: info.cliqueId,
        health_mask: None,
        health_summary: None,
    })
}

/// Queries the GPU's position. `version` is 2, or 1 for drivers without it: the fields are the same
/// under other names.
pub fn platform(device: &Device<'_>, version: u32) -> Result<NvmlPlatformInfo, NvmlCallError> {
    let call = require_symbol(&device.nvml().lib().nvmlDeviceGetPlatformInfo)?;
    let mut info = c::nvmlPlatformInfo_v2_t {
        version: struct_version::<c::nvmlPlatformInfo_v2_t>(version),
        ibGuid: [0; 16],
        chassisSerialNumber: [0; 16],
        slotNumber: 0,
        trayIndex: 0,
        hostId: 0,
        peerType: 0,
        moduleId: 0,
    };
    // SAFETY: as in `read_number`; both versions have the size and layout of `info` (nvml.h), so
    // the library writes within it in either case.
    check(unsafe { call(device.handle(), &raw mut info) })?;
    Ok(NvmlPlatformInfo {
        chassis_serial: info.chassisSerialNumber,
        slot: info.slotNumber,
        tray: info.trayIndex,
        host: info.hostId,
        peer_type: info.peerType,
        module: info.moduleId,
    })
}

/// Reads field values, each for its own link or part. The wrapper's call always queries link 0.
///
/// IDs 251 to 273 have different meanings in different drivers (the header was renumbered in CUDA
/// 13.0 Update 1) and must not be queried here.
pub fn fields(
    device: &Device<'_>,
    wanted: &[NvmlFieldRef],
) -> Result<Vec<Result<u64, NvmlCallError>>, NvmlCallError> {
    let call = require_symbol(&device.nvml().lib().nvmlDeviceGetFieldValues)?;
    let mut values: Vec<c::nvmlFieldValue_t> = wanted.iter().map(|of| field_request(*of)).collect();
    let count = c_int::try_from(values.len()).map_err(|_| NvmlCallError::Unreadable)?;
    // SAFETY: as in `read_number`; `values` contains `count` initialized structures.
    check(unsafe { call(device.handle(), count, values.as_mut_ptr()) })?;
    Ok(values.iter().map(field_value).collect())
}

/// A field to fill. It is initialized with an error, so an ID that the library skips does not read
/// as zero.
fn field_request((id, scope): NvmlFieldRef) -> c::nvmlFieldValue_t {
    c::nvmlFieldValue_t {
        fieldId: id,
        scopeId: scope,
        timestamp: 0,
        latencyUsec: 0,
        valueType: c::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT,
        nvmlReturn: c::nvmlReturn_enum_NVML_ERROR_UNKNOWN,
        value: c::nvmlValue_t { ullVal: 0 },
    }
}

fn field_value(field: &c::nvmlFieldValue_t) -> Result<u64, NvmlCallError> {
    check(field.nvmlReturn)?;
    let value = field.value;
    // SAFETY: every member is a plain number, valid for any bits, and all eight bytes of the union
    // were initialized in `field_request`.
    let number = unsafe {
        match field.valueType {
            c::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT => Some(value.uiVal.into()),
            c::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG => Some(value.ulVal),
            c::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG => Some(value.ullVal),
            c::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_LONG_LONG => {
                u64::try_from(value.sllVal).ok()
            }
            c::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT => u64::try_from(value.siVal).ok(),
            c::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_SHORT => Some(value.usVal.into()),
            _ => None,
        }
    };
    number.ok_or(NvmlCallError::Unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_a_structure_contains_its_size() {
        // Size by the layout in nvml.h: 4 + 16 + 4 + 4 + 1 (+3) + 4 (+ 1 + 3).
        assert_eq!(struct_version::<c::nvmlGpuFabricInfo_v2_t>(2), (2 << 24) | 36);
        assert_eq!(struct_version::<c::nvmlGpuFabricInfo_v3_t>(3), (3 << 24) | 40);
        // 4 + 16 + 16 + 5 (+ 3), in both versions.
        assert_eq!(struct_version::<c::nvmlPlatformInfo_v2_t>(2), (2 << 24) | 44);
        assert_eq!(
            struct_version::<c::nvmlPlatformInfo_v1_t>(1),
            struct_version::<c::nvmlPlatformInfo_v2_t>(1)
        );
    }

    #[test]
    fn every_field_names_its_link() {
        let requests: Vec<_> = (0..18).map(|link| field_request((165, link))).collect();
        let scopes: Vec<u32> = requests.iter().map(|field| field.scopeId).collect();
        assert_eq!(scopes, (0..18).collect::<Vec<_>>());
    }

    #[test]
    fn an_unfilled_field_is_not_zero() {
        assert_eq!(field_value(&field_request((165, 3))), Err(NvmlCallError::Refused(999)));
    }

    #[test]
    fn a_field_is_read_as_its_declared_type() {
        let filled = |kind, value| {
            let mut field = field_request((164, 0));
            field.nvmlReturn = 0;
            field.valueType = kind;
            field.value = value;
            field_value(&field)
        };
        let short = c::nvmlValue_t { usVal: 18 };
        let kind = c::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_SHORT;
        assert_eq!(filled(kind, short), Ok(18));
        let negative = c::nvmlValue_t { siVal: -1 };
        let kind = c::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT;
        assert_eq!(filled(kind, negative), Err(NvmlCallError::Unreadable));
        let kind = c::nvmlValueType_enum_NVML_VALUE_TYPE_DOUBLE;
        assert_eq!(filled(kind, c::nvmlValue_t { dVal: 1.0 }), Err(NvmlCallError::Unreadable));
    }
}
