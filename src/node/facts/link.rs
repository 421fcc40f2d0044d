//! NVLinks of a GPU and its C2C link to a processor in the same package, as the driver reports
//! them.
//!
//! Every field value is queried with its link as scope: otherwise the library answers for link 0.
//! The architecture decides which error counters are meaningful; the report names the counters
//! used.

use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings::field_id;

use super::gpu_library::{GpuNumber, GpuQuery, GpuQueryError, LinkNumber};
use super::query::GpuQuerySession;
use super::{nvml_names, pci};
use model::gpu_facts::{C2cFacts, C2cLink, LinkState, NvlinkFacts};

/// `NVML_NVLINK_MAX_LINKS`. If a driver does not count its links, each of these is queried.
const MOST_LINKS: u32 = 36;

/// `NVML_DEVICE_ARCH_HOPPER`: from here on, the link state is a field value.
const HOPPER: u64 = 9;

/// `NVML_DEVICE_ARCH_BLACKWELL`: from here on, the counter call is unsupported and the NVLink 5
/// counters exist.
pub(super) const BLACKWELL: u64 = 10;

/// Counters up to Hopper, by the call's number (`nvmlNvLinkErrorCounter_t`).
///
/// The field values with similar names (161 to 163) always return success and zero on Hopper, so
/// they are never queried.
const COUNTERS: [(u32, &str); 5] = [
    (0, "dl_replay"),
    (1, "dl_recovery"),
    (2, "dl_crc_flit"),
    (3, "dl_crc_data"),
    (4, "dl_ecc_data"),
];

/// Counters from Blackwell on, by field value.
pub(super) const FIELDS: [(u32, &str); 12] = [
    (field_id::NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS, "malformed_packet_errors"),
    (field_id::NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS, "buffer_overrun_errors"),
    (field_id::NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS, "rcv_errors"),
    (field_id::NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS, "rcv_remote_errors"),
    (field_id::NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS, "rcv_general_errors"),
    (field_id::NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS, "local_link_integrity_errors"),
    (field_id::NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS, "xmit_discards"),
    (
        field_id::NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS,
        "link_recovery_successful_events",
    ),
    (field_id::NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS, "link_recovery_failed_events"),
    (field_id::NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS, "link_recovery_events"),
    (field_id::NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS, "effective_errors"),
    (field_id::NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS, "symbol_errors"),
];

/// Counters of C2C links to a processor in the same package.
const C2C_FIELDS: [(u32, &str); 3] = [
    (field_id::NVML_FI_DEV_C2C_LINK_ERROR_INTR, "interrupts"),
    (field_id::NVML_FI_DEV_C2C_LINK_ERROR_REPLAY, "replays"),
    (field_id::NVML_FI_DEV_C2C_LINK_ERROR_REPLAY_B2B, "replays_back_to_back"),
];

/// Queries the number of NVLinks and then each of them.
pub(super) fn query_nvlinks(
    session: &mut GpuQuerySession<'_>,
    architecture: Option<u64>,
) -> (Option<u32>, Vec<NvlinkFacts>) {
    let (count, present) = list_links(session, architecture);
    let mut links = Vec::new();
    for (link, state) in present {
        links.push(query_nvlink(session, link, architecture, state));
    }
    if links.is_empty() {
        return (session.ok_or_note("number of NVLinks", count), links);
    }
    let counted = u32::try_from(links.len()).unwrap_or(u32::MAX);
    (Some(count.unwrap_or(counted)), links)
}

/// Queries only the error counters of every NVLink.
pub(super) fn query_error_counters(
    session: &mut GpuQuerySession<'_>,
    architecture: Option<u64>,
) -> BTreeMap<u32, BTreeMap<String, u64>> {
    let (count, present) = list_links(session, architecture);
    if present.is_empty() {
        session.ok_or_note("number of NVLinks", count);
    }
    let mut counters = BTreeMap::new();
    for (link, _) in present {
        let (found, _) = query_link_errors(session, link, architecture);
        counters.insert(link, found);
    }
    counters
}

/// A link with its state, or the reason why that is unknown.
type LinkPresence = (u32, Result<LinkState, GpuQueryError>);

/// The number of links, if the driver reports it, and the links.
fn list_links(
    session: &GpuQuerySession<'_>,
    architecture: Option<u64>,
) -> (Result<u32, GpuQueryError>, Vec<LinkPresence>) {
    let count = session.try_field(field_id::NVML_FI_DEV_NVLINK_LINK_COUNT, 0);
    let count = count.and_then(|count| {
        u32::try_from(count)
            .ok()
            // A number beyond any GPU is a misread answer.
            .filter(|count| *count <= 4 * MOST_LINKS)
            .ok_or_else(|| GpuQueryError::Unreadable(format!("{count} NVLinks")))
    });
    let queried = count.as_ref().map_or(MOST_LINKS, |count| *count);
    let links = (0..queried).map(|link| (link, query_link_state(session, link, architecture)));
    // Without a count, a link without a state does not exist.
    let present = links.filter(|(_, state)| count.is_ok() || state.is_ok()).collect();
    (count, present)
}

/// The link state: from Hopper on a field value, before it a call; the other one if the first is
/// refused.
fn query_link_state(
    session: &GpuQuerySession<'_>,
    link: u32,
    architecture: Option<u64>,
) -> Result<LinkState, GpuQueryError> {
    let field = || session.try_field(field_id::NVML_FI_DEV_NVLINK_GET_STATE, link);
    let call = || session.try_link(link, LinkNumber::State);
    let is_field_first = architecture.is_none_or(|number| HOPPER <= number);
    let found =
        if is_field_first { field().or_else(|_| call()) } else { call().or_else(|_| field()) };
    found.map(decode_state)
}

/// `NVML_NVLINK_STATE_*`.
pub(super) fn decode_state(number: u64) -> LinkState {
    match number {
        0 => LinkState::Inactive,
        1 => LinkState::Active,
        2 => LinkState::Sleep,
        3 => LinkState::TrafficDisabled,
        number => LinkState::Other(number),
    }
}

fn query_nvlink(
    session: &mut GpuQuerySession<'_>,
    link: u32,
    architecture: Option<u64>,
    state: Result<LinkState, GpuQueryError>,
) -> NvlinkFacts {
    let state = session.ok_or_note_link("NVLink state", link, state);
    let is_up = !matches!(state, Some(LinkState::Inactive));
    let mut facts = NvlinkFacts { link, state, ..NvlinkFacts::default() };
    let version = session.try_field(field_id::NVML_FI_DEV_NVLINK_GET_VERSION, link);
    let version = version.or_else(|_| session.try_link(link, LinkNumber::Version));
    let speed = session.try_field(field_id::NVML_FI_DEV_NVLINK_GET_SPEED, link);
    let kind = session.try_link(link, LinkNumber::RemoteKind);
    let address = session.try_text(GpuQuery::Link(link, LinkNumber::RemoteAddress));
    let number = session.try_field(field_id::NVML_FI_DEV_NVLINK_REMOTE_NVLINK_ID, link);
    if is_up {
        facts.version_number = session.ok_or_note_link("NVLink version", link, version);
        facts.speed_mbyte_s = session.ok_or_note_link("NVLink speed", link, speed);
        let kind = session.ok_or_note_link("NVLink's remote kind", link, kind);
        facts.remote_kind = kind.and_then(nvml_names::remote_kind_name);
        let address = session.ok_or_note_link("NVLink's remote address", link, address);
        facts.remote_pci_address = address.and_then(|address| remote_address(&address));
        facts.remote_link = session.ok_or_note_link("NVLink's remote number", link, number);
    } else {
        // A link that is down has no other end, so missing facts about it are not a gap.
        facts.version_number = version.ok();
        facts.remote_kind = kind.ok().and_then(nvml_names::remote_kind_name);
        facts.remote_pci_address = address.ok().and_then(|address| remote_address(&address));
    }
    facts.version = facts.version_number.map(nvml_names::nvlink_version_name);
    (facts.errors, facts.errors_source) = query_link_errors(session, link, architecture);
    facts
}

/// The PCI address of a link's other end. Switches that are not on this machine's PCI bus have an
/// address of all ones.
fn remote_address(address: &str) -> Option<String> {
    let address = pci::normalize_address(address);
    (!address.is_empty() && !address.starts_with("ffffffff:")).then_some(address)
}

/// Error counters from their meaningful source, and the name of that source.
fn query_link_errors(
    session: &mut GpuQuerySession<'_>,
    link: u32,
    architecture: Option<u64>,
) -> (BTreeMap<String, u64>, Option<String>) {
    let Some(architecture) = architecture else {
        session.note_missing(
            "NVLink errors",
            Some(link),
            "the architecture is unknown, and it determines their source",
        );
        return (BTreeMap::new(), None);
    };
    let is_new = BLACKWELL <= architecture;
    let (counters, source) = if is_new {
        (&FIELDS[..], "nvmlDeviceGetFieldValues (NVLINK_COUNT_*)")
    } else {
        (&COUNTERS[..], "nvmlDeviceGetNvLinkErrorCounter")
    };
    let mut found = BTreeMap::new();
    for (number, name) in counters {
        let answer = if is_new {
            session.try_field(*number, link)
        } else {
            session.try_link(link, LinkNumber::Errors(*number))
        };
        let what = format!("NVLink errors {name}");
        if let Some(count) = session.ok_or_note_link(&what, link, answer) {
            found.insert((*name).to_owned(), count);
        }
    }
    let source = (!found.is_empty()).then(|| source.to_owned());
    (found, source)
}

/// Queries the C2C link to a processor in the same package.
pub(super) fn query_c2c(session: &mut GpuQuerySession<'_>) -> Option<C2cFacts> {
    let enabled = session.try_number(GpuQuery::Number(GpuNumber::C2cEnabled));
    let count = session.try_field(field_id::NVML_FI_DEV_C2C_LINK_COUNT, 0);
    if enabled.is_err() && count.is_err() {
        session.ok_or_note("link to the processor (C2C)", enabled);
        return None;
    }
    let mut facts = C2cFacts { enabled: enabled.ok().map(|value| value != 0), links: Vec::new() };
    let count = session.ok_or_note("number of C2C links", count);
    let count = count.and_then(|count| u32::try_from(count).ok()).unwrap_or(0);
    for link in 0..count.min(MOST_LINKS) {
        let status = session.try_field(field_id::NVML_FI_DEV_C2C_LINK_GET_STATUS, link);
        let speed = session.try_field(field_id::NVML_FI_DEV_C2C_LINK_GET_MAX_BW, link);
        let status = session.ok_or_note_link("C2C link state", link, status);
        let speed_max_mbyte_s = session.ok_or_note_link("C2C link speed", link, speed);
        let counters = C2C_FIELDS.iter().filter_map(|(id, name)| {
            Some(((*name).to_owned(), session.try_field(*id, link).ok()?))
        });
        let errors = counters.collect();
        let active = status.map(|value| value != 0);
        facts.links.push(C2cLink { link, active, speed_max_mbyte_s, errors });
    }
    Some(facts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::gpu_library::GpuValue;
    use crate::facts::library_record::RecordedLibrary;

    const STATE: u32 = field_id::NVML_FI_DEV_NVLINK_GET_STATE;
    const SPEED: u32 = field_id::NVML_FI_DEV_NVLINK_GET_SPEED;
    const COUNT: u32 = field_id::NVML_FI_DEV_NVLINK_LINK_COUNT;

    fn field(id: u32, scope: u32) -> GpuQuery {
        GpuQuery::Field { id, scope }
    }

    fn number(recorded: &mut RecordedLibrary, query: GpuQuery, value: u64) {
        recorded.add_gpu_answer(0, query, Ok(GpuValue::Number(value)));
    }

    /// A GPU with this many links, all of them up.
    fn gpu(links: u32) -> RecordedLibrary {
        let mut recorded = RecordedLibrary::default();
        number(&mut recorded, field(COUNT, 0), links.into());
        for link in 0..links {
            number(&mut recorded, field(STATE, link), 1);
            number(&mut recorded, field(SPEED, link), 26_562);
        }
        recorded
    }

    fn query_recorded_links(recorded: &RecordedLibrary, architecture: u64) -> Vec<NvlinkFacts> {
        query_nvlinks(&mut GpuQuerySession::new(recorded, 0), Some(architecture)).1
    }

    #[test]
    fn every_link_is_queried_by_its_number() {
        let mut recorded = gpu(18);
        number(&mut recorded, field(STATE, 13), 0);
        number(&mut recorded, field(SPEED, 17), 13_281);
        let links = query_recorded_links(&recorded, HOPPER);
        assert_eq!(links.len(), 18);
        let down: Vec<u32> = links
            .iter()
            .filter(|link| link.state == Some(LinkState::Inactive))
            .map(|link| link.link)
            .collect();
        assert_eq!(down, [13]);
        assert_eq!((links[0].speed_mbyte_s, links[17].speed_mbyte_s), (Some(26_562), Some(13_281)));
    }

    #[test]
    fn hopper_counts_errors_by_the_call_and_never_by_the_fields_that_are_zero() {
        let mut recorded = gpu(1);
        for id in [161, 162, 163] {
            number(&mut recorded, field(id, 0), 0);
        }
        number(&mut recorded, GpuQuery::Link(0, LinkNumber::Errors(0)), 12);
        let link = &query_recorded_links(&recorded, HOPPER)[0];
        assert_eq!(link.errors_source.as_deref(), Some("nvmlDeviceGetNvLinkErrorCounter"));
        assert_eq!(link.errors.get("dl_replay"), Some(&12));
        // The other four were refused, which does not mean zero.
        assert_eq!(link.errors.len(), 1);
    }

    #[test]
    fn blackwell_counts_errors_by_the_fields_of_nvlink_5() {
        let mut recorded = gpu(2);
        for counter in 0..5 {
            number(&mut recorded, GpuQuery::Link(1, LinkNumber::Errors(counter)), 0);
        }
        let id = field_id::NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS;
        number(&mut recorded, field(id, 1), 3);
        for architecture in [BLACKWELL, BLACKWELL + 1] {
            let links = query_recorded_links(&recorded, architecture);
            assert_eq!(links[1].errors.get("link_recovery_failed_events"), Some(&3));
            assert!(links[1].errors_source.as_ref().is_some_and(|s| s.contains("FieldValues")));
            assert!(links[0].errors.is_empty() && links[0].errors_source.is_none());
        }
    }

    #[test]
    fn counters_of_an_unknown_architecture_are_unknown() {
        let recorded = gpu(1);
        let mut session = GpuQuerySession::new(&recorded, 0);
        let (_, links) = query_nvlinks(&mut session, None);
        assert!(links[0].errors.is_empty());
        assert!(session.into_missing().iter().any(|m| m.what == "NVLink errors"));
    }

    #[test]
    fn a_link_that_sleeps_is_neither_up_nor_down() {
        let mut recorded = gpu(1);
        number(&mut recorded, field(STATE, 0), 2);
        assert_eq!(query_recorded_links(&recorded, HOPPER)[0].state, Some(LinkState::Sleep));
        // The older call can report it too.
        let mut recorded = RecordedLibrary::default();
        number(&mut recorded, field(COUNT, 0), 1);
        number(&mut recorded, GpuQuery::Link(0, LinkNumber::State), 2);
        assert_eq!(query_recorded_links(&recorded, HOPPER)[0].state, Some(LinkState::Sleep));
        number(&mut recorded, GpuQuery::Link(0, LinkNumber::State), 7);
        assert_eq!(query_recorded_links(&recorded, 7)[0].state, Some(LinkState::Other(7)));
    }

    #[test]
    fn a_state_that_is_not_supported_is_unknown_and_not_down() {
        let mut recorded = gpu(1);
        recorded.add_gpu_answer(0, field(STATE, 0), Err(GpuQueryError::NotSupported));
        recorded.add_gpu_answer(
            0,
            GpuQuery::Link(0, LinkNumber::State),
            Err(GpuQueryError::NotSupported),
        );
        let mut session = GpuQuerySession::new(&recorded, 0);
        let (count, links) = query_nvlinks(&mut session, Some(HOPPER));
        assert_eq!((count, links[0].state.clone()), (Some(1), None));
        let missing = session.into_missing();
        let state = missing.iter().find(|m| m.what == "NVLink state").expect("an entry");
        assert_eq!(
            (state.links.as_slice(), state.why.as_str()),
            (&[0][..], "not supported by this GPU")
        );
    }

    #[test]
    fn no_renumbered_field_is_queried() {
        let ids = FIELDS.iter().chain(&C2C_FIELDS).map(|(id, _)| *id);
        let others = [
            COUNT,
            STATE,
            SPEED,
            field_id::NVML_FI_DEV_NVLINK_GET_VERSION,
            field_id::NVML_FI_DEV_NVLINK_REMOTE_NVLINK_ID,
            field_id::NVML_FI_DEV_C2C_LINK_COUNT,
            field_id::NVML_FI_DEV_C2C_LINK_GET_STATUS,
            field_id::NVML_FI_DEV_C2C_LINK_GET_MAX_BW,
            field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
        ];
        for id in ids.chain(others) {
            assert!(!(251..=273).contains(&id), "field {id}");
            assert!(!(161..=163).contains(&id), "field {id} is zero on Hopper");
        }
    }

    #[test]
    fn every_link_is_queried_if_the_driver_does_not_count_them() {
        let mut recorded = RecordedLibrary::default();
        for link in [0, 1, 5] {
            number(&mut recorded, GpuQuery::Link(link, LinkNumber::State), 1);
        }
        let (count, links) = query_nvlinks(&mut GpuQuerySession::new(&recorded, 0), Some(7));
        assert_eq!(count, Some(3));
        assert_eq!(links.iter().map(|link| link.link).collect::<Vec<_>>(), [0, 1, 5]);
    }

    #[test]
    fn a_switch_that_is_on_no_bus_has_no_address() {
        let mut recorded = gpu(2);
        let mut at = |link, address: &str| {
            let answer = Ok(GpuValue::Text(address.to_owned()));
            recorded.add_gpu_answer(0, GpuQuery::Link(link, LinkNumber::RemoteAddress), answer);
        };
        at(0, "FFFFFFFF:FF:FF.0");
        at(1, "00000000:C3:00.0");
        let links = query_recorded_links(&recorded, HOPPER);
        assert_eq!(links[0].remote_pci_address, None);
        assert_eq!(links[1].remote_pci_address.as_deref(), Some("0000:c3:00.0"));
    }

    #[test]
    fn a_gpu_without_c2c_has_no_c2c_links() {
        assert_eq!(query_c2c(&mut GpuQuerySession::new(&gpu(0), 0)), None);
        let mut recorded = gpu(0);
        number(&mut recorded, GpuQuery::Number(GpuNumber::C2cEnabled), 1);
        number(&mut recorded, field(field_id::NVML_FI_DEV_C2C_LINK_COUNT, 0), 2);
        number(&mut recorded, field(field_id::NVML_FI_DEV_C2C_LINK_GET_STATUS, 1), 1);
        let found = query_c2c(&mut GpuQuerySession::new(&recorded, 0)).expect("C2C");
        assert_eq!(found.enabled, Some(true));
        assert_eq!((found.links[0].active, found.links[1].active), (None, Some(true)));
    }
}
