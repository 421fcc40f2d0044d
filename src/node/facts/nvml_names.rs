//! Names of NVML's numeric codes. Unknown numbers stay numbers.

/// A return code (`nvmlReturn_t`).
pub(super) fn return_code_name(code: u32) -> String {
    let name = match code {
        0 => "success",
        1 => "not initialised",
        2 => "invalid argument",
        3 => "not supported",
        4 => "no permission",
        5 => "already initialised",
        6 => "not found",
        7 => "insufficient size",
        8 => "insufficient power",
        9 => "driver not loaded",
        10 => "time-out",
        11 => "interrupt issue",
        12 => "library not found",
        13 => "function not found",
        14 => "corrupted inforom",
        15 => "GPU is lost",
        16 => "reset required",
        17 => "operating system",
        18 => "driver and library differ in version",
        19 => "in use",
        20 => "out of memory",
        21 => "no data",
        22 => "vGPU ECC not supported",
        23 => "insufficient resources",
        24 => "frequency not supported",
        25 => "argument version mismatch",
        26 => "deprecated",
        27 => "not ready",
        28 => "GPU not found",
        29 => "invalid state",
        30 => "reset type not supported",
        999 => "unknown error",
        code => return format!("return code {code}"),
    };
    name.to_owned()
}

/// An architecture (`NVML_DEVICE_ARCH_*`).
pub(super) fn architecture_name(number: u64) -> String {
    let name = match number {
        2 => "kepler",
        3 => "maxwell",
        4 => "pascal",
        5 => "volta",
        6 => "turing",
        7 => "ampere",
        8 => "ada",
        9 => "hopper",
        10 => "blackwell",
        11 => "dla",
        12 => "dla2",
        13 => "rubin",
        15 => "npu3",
        number => return format!("architecture {number}"),
    };
    name.to_owned()
}

/// A version of NVLink (`nvmlNvlinkVersion_t`).
pub(super) fn nvlink_version_name(number: u64) -> String {
    let name = match number {
        1 => "1.0",
        2 => "2.0",
        3 => "2.2",
        4 => "3.0",
        5 => "3.1",
        6 => "4.0",
        7 => "5.0",
        8 => "6.0",
        number => return format!("version {number}"),
    };
    name.to_owned()
}

/// The device at the other end of a link (`nvmlIntNvLinkDeviceType_t`); `None` for 255 (unknown).
pub(super) fn remote_kind_name(number: u64) -> Option<String> {
    match number {
        0 => Some("gpu".to_owned()),
        1 => Some("npu".to_owned()),
        2 => Some("switch".to_owned()),
        255 => None,
        number => Some(format!("kind {number}")),
    }
}

/// The recovery action that the driver requests (`nvmlDeviceGpuRecoveryAction_t`).
pub(super) fn recovery_action_name(number: u64) -> String {
    let name = match number {
        0 => "none",
        1 => "reset",
        2 => "reboot",
        3 => "drain peer-to-peer",
        4 => "drain and reset",
        5 => "recover the IMEX domain",
        6 => "reset the PCIe bus",
        7 => "reboot the system",
        number => return format!("action {number}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_without_a_name_stay_numbers() {
        assert_eq!(architecture_name(14), "architecture 14");
        assert_eq!(nvlink_version_name(9), "version 9");
        assert_eq!(return_code_name(31), "return code 31");
        assert_eq!(remote_kind_name(255), None);
    }
}
