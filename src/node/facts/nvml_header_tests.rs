//! Compares the names and numbers of NVML with its newest header: a value without a name fails.
//!
//! `ci/contact` fetches the headers and runs these tests; without headers they are ignored.

use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings as c;

use super::{fabric, nvml_names};
use crate::ffi::header_tests::{HeaderValue, compare_with_header, header_folder};
use model::gpu_facts::HealthCondition;
use model::throttle_reason::ThrottleReason;

/// The numbers of a header by name: macros (`#define NAME 2 //!<`) and constants of enumerations
/// (`NAME = 2,`) that begin with this prefix.
fn header_numbers(prefix: &str) -> BTreeMap<String, u64> {
    let path = header_folder("nvml13").join("nvml.h");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut found = BTreeMap::new();
    for line in text.lines().map(str::trim_start) {
        let line = line.strip_prefix("#define ").unwrap_or(line).trim_start();
        if !line.starts_with(prefix) {
            continue;
        }
        let mut parts = line.split(|c: char| c.is_whitespace() || "=,()".contains(c));
        let name = parts.next().unwrap_or_default().to_owned();
        let number = parts.find(|part| !part.is_empty()).unwrap_or_default();
        let number = number.trim_end_matches(['L', 'U', 'l', 'u']);
        let number = match number.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => number.parse(),
        };
        if let Ok(number) = number {
            found.insert(name, number);
        }
    }
    assert!(1 < found.len(), "the header has no {prefix}");
    found
}

/// Names of the header whose number has no name of its own here.
fn unnamed(prefix: &str, is_unnamed: impl Fn(u64) -> bool) -> Vec<String> {
    let numbers = header_numbers(prefix);
    let missing = numbers.into_iter().filter(|(_, number)| is_unnamed(*number));
    missing.map(|(name, number)| format!("{name} = {number}")).collect()
}

#[test]
#[ignore = "ci/contact fetches the headers"]
fn every_number_of_nvml_has_a_name() {
    let code =
        |number: u64| nvml_names::return_code_name(u32::try_from(number).unwrap_or(u32::MAX));
    let mut missing = unnamed("NVML_ERROR_", |it| code(it).starts_with("return code"));
    missing.extend(unnamed("NVML_DEVICE_ARCH_", |it| {
        // "Anything else, presumably something newer".
        it != 0xffff_ffff && nvml_names::architecture_name(it).starts_with("architecture")
    }));
    missing.extend(unnamed("NVML_GPU_RECOVERY_ACTION_", |it| {
        nvml_names::recovery_action_name(it).starts_with("action")
    }));
    missing.extend(unnamed("NVML_NVLINK_VERSION_", |it| {
        it != 0 && nvml_names::nvlink_version_name(it).starts_with("version")
    }));
    missing.extend(unnamed("NVML_NVLINK_STATE_", |it| {
        matches!(super::link::decode_state(it), model::gpu_facts::LinkState::Other(_))
    }));
    missing.extend(unnamed("nvmlClocksEventReason", |it| {
        ThrottleReason::from_bits(it).iter().any(|why| matches!(why, ThrottleReason::Other(_)))
    }));
    missing.extend(unnamed("NVML_GPU_FABRIC_HEALTH_SUMMARY_", |it| {
        let summary = fabric::decode_health(0, u8::try_from(it).ok()).summary;
        summary.is_some_and(|text| text.starts_with("summary"))
    }));
    missing.extend(unnamed("NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_", |it| {
        let mask = u32::try_from(it).unwrap_or(0) << 8;
        let found = fabric::decode_health(mask, None).incorrect_configuration;
        found.is_some_and(|text| text.starts_with("configuration"))
    }));
    assert_eq!(missing, Vec::<String>::new(), "values of nvml.h without a name");
}

#[test]
#[ignore = "ci/contact fetches the headers"]
fn every_condition_of_the_fabric_health_mask_is_decoded() {
    for (name, shift) in header_numbers("NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_") {
        let health = fabric::decode_health(1 << shift, None);
        let conditions = [
            health.degraded_bandwidth,
            health.route_recovery,
            health.route_unhealthy,
            health.access_timeout_recovery,
            health.partition_assigned,
            health.fabric_manager_connected,
        ];
        let is_decoded =
            conditions.contains(&HealthCondition::Yes) || health.incorrect_configuration.is_some();
        assert!(is_decoded, "{name}: no condition changes");
    }
}

#[test]
#[ignore = "ci/contact fetches the headers"]
fn structures_and_fields_are_those_of_both_headers() {
    let mut values: Vec<HeaderValue> = [
        ("NVML_FI_DEV_NVLINK_GET_STATE", c::field_id::NVML_FI_DEV_NVLINK_GET_STATE),
        ("NVML_FI_DEV_NVLINK_GET_VERSION", c::field_id::NVML_FI_DEV_NVLINK_GET_VERSION),
        ("NVML_FI_DEV_NVLINK_GET_SPEED", c::field_id::NVML_FI_DEV_NVLINK_GET_SPEED),
        ("NVML_FI_DEV_NVLINK_LINK_COUNT", c::field_id::NVML_FI_DEV_NVLINK_LINK_COUNT),
        ("NVML_FI_DEV_NVLINK_REMOTE_NVLINK_ID", c::field_id::NVML_FI_DEV_NVLINK_REMOTE_NVLINK_ID),
    ]
    .map(|(name, own)| (name.to_owned(), own.into()))
    .into();
    for (number, name) in super::link::FIELDS {
        let field = format!("NVML_FI_DEV_NVLINK_COUNT_{}", name.to_uppercase());
        values.push((field, number.into()));
    }
    let sizes = [
        ("nvmlFieldValue_t", size_of::<c::nvmlFieldValue_t>()),
        ("nvmlNvlinkGetBwMode_v1_t", size_of::<c::nvmlNvlinkGetBwMode_v1_t>()),
        ("nvmlC2cModeInfo_v1_t", size_of::<c::nvmlC2cModeInfo_v1_t>()),
        ("nvmlGpuFabricInfo_v2_t", size_of::<c::nvmlGpuFabricInfo_v2_t>()),
    ];
    for (name, size) in sizes {
        values.push((format!("sizeof({name})"), i128::try_from(size).expect("small")));
    }
    for version in ["nvml12", "nvml13"] {
        let different = compare_with_header(&[version], "nvml.h", &values);
        assert_eq!(different, Vec::<String>::new(), "{version}");
    }
}
