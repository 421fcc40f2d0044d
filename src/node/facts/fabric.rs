//! Fabric and platform information of a GPU, as its driver reports it.
//!
//! The health mask is decoded as in the header: two-bit fields of yes, no or not supported, not
//! flags. This module does not judge.

use super::gpu_library::{FabricValue, GpuQuery, GpuQueryError, PlatformValue};
use super::nvml_names;
use super::query::{GpuQuerySession, to_printable};
use model::gpu_facts::{FabricFacts, FabricHealth, FabricState, HealthCondition, PlatformFacts};

/// Queries fabric information with the newest version that the driver supports. The first version
/// has no health information and is used only with drivers before version 550.
pub(super) fn query_fabric(session: &mut GpuQuerySession<'_>) -> Option<FabricFacts> {
    let (found, source) = match session.try_fabric(GpuQuery::FabricThird) {
        Err(GpuQueryError::MissingSymbol) => {
            (session.try_fabric(GpuQuery::FabricFirst), "nvmlDeviceGetGpuFabricInfo")
        }
        Err(refusal) if is_version_refusal(&refusal) => {
            (session.try_fabric(GpuQuery::FabricSecond), "nvmlDeviceGetGpuFabricInfoV, version 2")
        }
        found => (found, "nvmlDeviceGetGpuFabricInfoV, version 3"),
    };
    session.ok_or_note("fabric information", found).map(|value| fabric_from_value(value, source))
}

/// Drivers reject an unknown version with a dedicated code, or as an invalid argument.
fn is_version_refusal(refusal: &GpuQueryError) -> bool {
    match refusal {
        GpuQueryError::OtherVersion => true,
        GpuQueryError::Failed(words) => {
            *words == nvml_names::return_code_name(2) || words.contains("argument was invalid")
        }
        _ => false,
    }
}

fn fabric_from_value(value: FabricValue, source: &str) -> FabricFacts {
    // NVML_GPU_FABRIC_STATE_*
    let state = match value.fabric_state {
        0 => FabricState::NotSupported,
        1 => FabricState::NotStarted,
        2 => FabricState::InProgress,
        3 => FabricState::Completed,
        _ => FabricState::Unknown,
    };
    let registered = state == FabricState::Completed;
    FabricFacts {
        status: registered.then(|| nvml_names::return_code_name(value.status)),
        // Before registration completes, the driver leaves both empty, which must not be read as
        // clique 0.
        cluster_uuid: registered.then(|| format_uuid(value.cluster_uuid)),
        clique_id: registered.then_some(value.clique_id),
        health: value.health_mask.map(|mask| decode_health(mask, value.health_summary)),
        state,
        source: source.to_owned(),
    }
}

/// A UUID in its usual form (RFC 9562), lower case.
fn format_uuid(bytes: [u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Decodes a health mask (`NVML_GPU_FABRIC_HEALTH_MASK_*` in nvml.h; the shifts are those of its
/// constants).
pub(super) fn decode_health(mask: u32, summary: Option<u8>) -> FabricHealth {
    let condition = |shift: u32| match (mask >> shift) & 3 {
        1 => HealthCondition::Yes,
        2 => HealthCondition::No,
        // Value 3 has no defined meaning yet.
        _ => HealthCondition::Unknown,
    };
    FabricHealth {
        mask,
        degraded_bandwidth: condition(0),
        route_recovery: condition(2),
        route_unhealthy: condition(4),
        access_timeout_recovery: condition(6),
        incorrect_configuration: decode_misconfiguration((mask >> 8) & 15),
        partition_assigned: condition(12),
        fabric_manager_connected: condition(14),
        summary: summary.and_then(|number| match number {
            0 => None,
            1 => Some("healthy".to_owned()),
            2 => Some("unhealthy".to_owned()),
            3 => Some("limited capacity".to_owned()),
            number => Some(format!("summary {number}")),
        }),
    }
}

/// The wrong setting; `None` if the driver does not report one.
fn decode_misconfiguration(number: u32) -> Option<String> {
    let name = match number {
        0 => return None,
        1 => "none",
        2 => "system GUID",
        3 => "chassis serial number",
        4 => "no partition",
        5 => "too few NVLinks",
        6 => "GPU firmware",
        7 => "location",
        8 => "GPU state",
        number => return Some(format!("configuration {number}")),
    };
    Some(name.to_owned())
}

/// Queries the GPU's position. Drivers that know only the first version of the structure report the
/// same fields in it.
pub(super) fn query_platform(session: &mut GpuQuerySession<'_>) -> Option<PlatformFacts> {
    let found = match session.try_platform(GpuQuery::Platform) {
        Err(refusal) if is_version_refusal(&refusal) => {
            session.try_platform(GpuQuery::PlatformFirst)
        }
        found => found,
    };
    session.ok_or_note("platform information", found).map(platform_from_value)
}

fn platform_from_value(value: PlatformValue) -> PlatformFacts {
    PlatformFacts {
        chassis_serial: format_serial(value.chassis_serial),
        slot: value.slot,
        tray: value.tray,
        host: value.host,
        peer_type: value.peer_type,
        module: value.module,
    }
}

/// A serial number: text, or hexadecimal digits if it is not text.
fn format_serial(bytes: [u8; 16]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let (text, rest) = bytes.split_at(end);
    let is_text = text.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ');
    if is_text && rest.iter().all(|byte| *byte == 0) {
        let text = to_printable(&String::from_utf8_lossy(text));
        return Some(text).filter(|text| !text.is_empty());
    }
    Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::gpu_library::GpuValue;
    use crate::facts::library_record::RecordedLibrary;
    use model::node_facts::MissingFact;

    const ANSWER: FabricValue = FabricValue {
        fabric_state: 3,
        status: 0,
        cluster_uuid: [
            0x50, 0x00, 0xa7, 0x18, 0x30, 0xa5, 0x4f, 0x6d, 0x8d, 0x9e, 0x1d, 0x2c, 0x3b, 0x4a,
            0x59, 0x68,
        ],
        clique_id: 32_766,
        health_mask: Some(0x1aa),
        health_summary: Some(1),
    };

    fn query_recorded(recorded: &RecordedLibrary) -> (Option<FabricFacts>, Vec<MissingFact>) {
        let mut session = GpuQuerySession::new(recorded, 0);
        let found = query_fabric(&mut session);
        (found, session.into_missing())
    }

    fn record_answer(
        query: GpuQuery,
        answer: Result<FabricValue, GpuQueryError>,
    ) -> RecordedLibrary {
        let mut recorded = RecordedLibrary::default();
        recorded.add_gpu_answer(0, query, answer.map(GpuValue::Fabric));
        recorded
    }

    #[test]
    fn the_mask_of_a_healthy_gpu_has_no_fault() {
        let health = decode_health(0xaa, None);
        let conditions = [
            health.degraded_bandwidth,
            health.route_recovery,
            health.route_unhealthy,
            health.access_timeout_recovery,
        ];
        assert_eq!(conditions, [HealthCondition::No; 4]);
        assert_eq!(health.incorrect_configuration, None);
        assert_eq!(decode_health(0x1aa, None).incorrect_configuration.as_deref(), Some("none"));
    }

    #[test]
    fn every_field_of_the_mask_is_decoded_separately() {
        let health =
            decode_health(0x1 | 0x2 << 2 | 0x1 << 4 | 0x5 << 8 | 0x2 << 12 | 0x2 << 14, Some(3));
        assert_eq!(health.degraded_bandwidth, HealthCondition::Yes);
        assert_eq!(health.route_recovery, HealthCondition::No);
        assert_eq!(health.route_unhealthy, HealthCondition::Yes);
        assert_eq!(health.access_timeout_recovery, HealthCondition::Unknown);
        assert_eq!(health.incorrect_configuration.as_deref(), Some("too few NVLinks"));
        assert_eq!(health.partition_assigned, HealthCondition::No);
        assert_eq!(health.fabric_manager_connected, HealthCondition::No);
        assert_eq!(health.summary.as_deref(), Some("limited capacity"));
    }

    #[test]
    fn a_mask_of_zeros_is_unknown_and_not_healthy() {
        let health = decode_health(0, Some(0));
        assert_eq!(health.degraded_bandwidth, HealthCondition::Unknown);
        assert_eq!(health.partition_assigned, HealthCondition::Unknown);
        assert_eq!((health.incorrect_configuration, health.summary), (None, None));
    }

    #[test]
    fn the_newest_version_is_queried_first() {
        let (found, missing) = query_recorded(&record_answer(GpuQuery::FabricThird, Ok(ANSWER)));
        let found = found.expect("fabric");
        assert_eq!(found.cluster_uuid.as_deref(), Some("5000a718-30a5-4f6d-8d9e-1d2c3b4a5968"));
        assert_eq!((found.clique_id, found.status.as_deref()), (Some(32_766), Some("success")));
        assert!(found.is_multi_node() && missing.is_empty());
    }

    #[test]
    fn a_driver_without_the_newer_call_is_queried_with_the_first_one() {
        let old = FabricValue { health_mask: None, health_summary: None, ..ANSWER };
        let mut recorded = record_answer(GpuQuery::FabricThird, Err(GpuQueryError::MissingSymbol));
        recorded.add_gpu_answer(0, GpuQuery::FabricFirst, Ok(GpuValue::Fabric(old)));
        let found = query_recorded(&recorded).0.expect("fabric");
        assert_eq!(found.source, "nvmlDeviceGetGpuFabricInfo");
        assert_eq!((found.health, found.clique_id), (None, Some(32_766)));
    }

    #[test]
    fn a_driver_with_the_newer_call_is_never_queried_with_the_first_one() {
        let mut recorded = record_answer(GpuQuery::FabricThird, Err(GpuQueryError::NotSupported));
        recorded.add_gpu_answer(0, GpuQuery::FabricFirst, Ok(GpuValue::Fabric(ANSWER)));
        let (found, missing) = query_recorded(&recorded);
        assert_eq!(found, None);
        assert!(missing[0].why.contains("not supported"), "{missing:?}");
    }

    #[test]
    fn a_driver_with_only_the_second_version_is_queried_for_it() {
        for refusal in
            [GpuQueryError::OtherVersion, GpuQueryError::Failed("invalid argument".to_owned())]
        {
            let mut recorded = record_answer(GpuQuery::FabricThird, Err(refusal));
            let second = FabricValue { health_summary: None, ..ANSWER };
            recorded.add_gpu_answer(0, GpuQuery::FabricSecond, Ok(GpuValue::Fabric(second)));
            let found = query_recorded(&recorded).0.expect("fabric");
            assert_eq!(found.health.expect("health").mask, 0x1aa);
        }
    }

    #[test]
    fn a_gpu_without_a_fabric_has_no_clique_and_no_fault() {
        let alone =
            FabricValue { health_mask: Some(0), health_summary: Some(0), ..FabricValue::default() };
        let (found, missing) = query_recorded(&record_answer(GpuQuery::FabricThird, Ok(alone)));
        let found = found.expect("fabric");
        assert_eq!(found.state, FabricState::NotSupported);
        assert_eq!((found.status, found.clique_id, found.cluster_uuid), (None, None, None));
        assert!(missing.is_empty());
    }

    #[test]
    fn a_registration_that_failed_names_its_error() {
        let failed = FabricValue { status: 23, clique_id: 0, cluster_uuid: [0; 16], ..ANSWER };
        let found =
            query_recorded(&record_answer(GpuQuery::FabricThird, Ok(failed))).0.expect("fabric");
        assert_eq!(found.status.as_deref(), Some("insufficient resources"));
        assert!(!found.is_multi_node());
    }

    #[test]
    fn the_first_version_of_the_platform_structure_gives_the_position_too() {
        let value = PlatformValue {
            chassis_serial: *b"1821225190042\0\0\0",
            slot: 7,
            ..PlatformValue::default()
        };
        let mut recorded = RecordedLibrary::default();
        recorded.add_gpu_answer(0, GpuQuery::Platform, Err(GpuQueryError::OtherVersion));
        recorded.add_gpu_answer(0, GpuQuery::PlatformFirst, Ok(GpuValue::Platform(value)));
        let found = query_platform(&mut GpuQuerySession::new(&recorded, 0)).expect("platform");
        assert_eq!((found.chassis_serial.as_deref(), found.slot), (Some("1821225190042"), 7));
    }

    #[test]
    fn a_serial_number_that_is_not_text_becomes_digits() {
        assert_eq!(format_serial([0; 16]), None);
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&[0x80, 1]);
        assert_eq!(format_serial(bytes).as_deref(), Some("80010000000000000000000000000000"));
    }
}
