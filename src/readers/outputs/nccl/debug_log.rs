//! NCCL's own log lines between the lines of a test (NCCL_DEBUG).
//!
//! A record is `HOST:PID:TID [DEV] NCCL INFO text`, a warning has a source location before `NCCL
//! WARN`, and some builds print a date first. A record can begin in the middle of a row. Only
//! transports, versions and a fixed list of settings become facts: other environment variables are
//! private.

use std::collections::BTreeSet;

use crate::outputs::text;
use model::text::clean;
use model::tool_facts::ToolFacts;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NcclLogRecord<'a> {
    /// The host, as far as the prefix shows it.
    pub(super) host: &'a str,
    /// CUDA device of the thread that wrote it.
    pub(super) device: Option<u32>,
    pub(super) warning: bool,
    pub(super) text: &'a str,
}

/// Settings that force a path in NCCL.
const SETTINGS: [&str; 13] = [
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_MNNVL_ENABLE",
    "NCCL_NVLS_ENABLE",
    "NCCL_COLLNET_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_SHM_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_IB_HCA",
    "NCCL_NET",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_SOCKET_IFNAME",
];

/// Splits a line into the text before a record, and the record.
pub(super) fn split_record(line: &str) -> (&str, Option<NcclLogRecord<'_>>) {
    let marks =
        [("NCCL INFO", false), ("NCCL WARN", true), ("NCCL TRACE", false), ("NCCL CALL", false)];
    let found = marks
        .iter()
        .filter_map(|(mark, warning)| Some((line.find(mark)?, mark.len(), *warning)))
        .min();
    let Some((at, length, warning)) = found else { return (line, None) };
    let text = line[at + length..].trim();
    let head = &line[..at];
    let mut from = 0;
    for word in head.split_whitespace() {
        let start = from + head[from..].find(word).unwrap_or(0);
        from = start + word.len();
        let Some(host) = parse_host(word) else { continue };
        let device = head[from..].split_whitespace().next().and_then(|w| {
            text::parse_integer(w.strip_prefix('[')?.strip_suffix(']')?)
                .and_then(|d| u32::try_from(d).ok())
        });
        return (
            text_before_host(head, start),
            Some(NcclLogRecord { host, device, warning, text }),
        );
    }
    ("", Some(NcclLogRecord { host: "", device: None, warning, text }))
}

/// `HOST` of `HOST:PID:TID`.
fn parse_host(word: &str) -> Option<&str> {
    let mut parts = word.rsplitn(3, ':');
    let (thread, process, host) = (parts.next()?, parts.next()?, parts.next()?);
    let number = |part| text::parse_integer(part).is_some();
    (number(thread) && number(process) && !host.is_empty()).then_some(host)
}

/// The text before a record's host, without the record's own date.
fn text_before_host(head: &str, start: usize) -> &str {
    let head = head[..start].trim_end();
    let Some(open) = head.rfind('[').filter(|_| head.ends_with(']')) else { return head };
    let dated = head[open + 1..].bytes().filter(u8::is_ascii_digit).count() >= 8;
    if dated { head[..open].trim_end() } else { head }
}

/// Stores a record's transports, versions and settings.
pub(super) fn note_message(message: &str, facts: &mut ToolFacts) {
    if let Some((_, via)) = message.split_once(" via ") {
        note_transport(via, facts);
    } else if message.starts_with("MNNVL 1 ") || message.ends_with(" MNNVL 1") {
        facts.add_transport("MNNVL");
    } else if message.contains("NVLS multicast support is available")
        // Newer libraries report whether they use it.
        && !message.contains("transport disabled")
    {
        facts.add_transport("NVLS");
    } else if message.starts_with("NET/OFI Selected") {
        facts.add_transport("NET/OFI");
    } else if let Some(network) = message.strip_prefix("Using network ") {
        facts.parameters.entry("network".to_owned()).or_insert_with(|| clean(network));
    } else if let Some((name, value)) = message.split_once(" set by environment to ") {
        if SETTINGS.contains(&name) {
            let value = clean(value.trim_end_matches('.'));
            facts.parameters.entry(name.to_owned()).or_insert(value);
        }
    } else if let Some((_, rest)) = message.split_once(" Bytes -> Algo ") {
        if let Some(algorithm) = rest.split_whitespace().next() {
            note_algorithm(algorithm, facts);
        }
    } else if let Some(version) = message.strip_prefix("NCCL version ") {
        note_version(version, facts);
    }
}

/// `NCCL version 2.26.2+cuda12.8`.
pub(super) fn note_version(version: &str, facts: &mut ToolFacts) {
    let Some(version) = version.split_whitespace().next() else { return };
    let known = facts.nccl.as_deref().unwrap_or_default();
    // The library's own line is more precise (`+cuda12.8`) than a version code.
    if version.starts_with(|c: char| c.is_ascii_digit()) && version.starts_with(known) {
        facts.nccl = Some(clean(version));
    }
}

/// The version code in headers and the JSON file: 22809 is 2.28.9; before 2.9 the last two parts
/// had two digits and one (2804 is 2.8.4).
pub(super) fn note_version_code(code: u64, facts: &mut ToolFacts) {
    let version = if code < 10_000 {
        format!("{}.{}.{}", code / 1000, code % 1000 / 100, code % 100)
    } else {
        format!("{}.{}.{}", code / 10_000, code % 10_000 / 100, code % 100)
    };
    if 2000 <= code {
        facts.nccl.get_or_insert(version);
        facts.parameters.entry("nccl-library".to_owned()).or_insert_with(|| code.to_string());
    }
}

fn note_transport(via: &str, facts: &mut ToolFacts) {
    let mut parts = via.split('/');
    match (parts.next(), parts.next()) {
        (Some("P2P"), kind) => {
            if kind == Some("MNNVL") {
                facts.add_transport("MNNVL");
            }
            facts.add_transport("P2P");
        }
        (Some("SHM"), _) => facts.add_transport("SHM"),
        (Some("direct shared memory"), _) => facts.add_transport("SHM"),
        (Some(kind @ ("NET" | "COLLNET")), Some(name)) if !name.is_empty() => {
            facts.add_transport(&clean(&format!("{kind}/{name}")));
        }
        _ => {}
    }
}

fn note_algorithm(algorithm: &str, facts: &mut ToolFacts) {
    const MOST: usize = 16;
    let known = facts.parameters.entry("algorithms".to_owned()).or_default();
    let mut names: BTreeSet<&str> = known.split(',').filter(|name| !name.is_empty()).collect();
    if names.len() < MOST && names.insert(algorithm) {
        *known = clean(&names.into_iter().collect::<Vec<_>>().join(","));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note_messages(messages: &[&str]) -> ToolFacts {
        let mut facts = ToolFacts::default();
        for message in messages {
            note_message(message, &mut facts);
        }
        facts
    }

    #[test]
    fn a_record_is_cut_from_the_line_it_begins_in() {
        let (before, record) =
            split_record("  64  16  float  sum  -1gpu-7:10:11 [3] NCCL INFO comm ready");
        let record = record.expect("a record");
        assert_eq!(before.split_whitespace().last(), Some("sum"));
        assert_eq!((record.host, record.device, record.text), ("-1gpu-7", Some(3), "comm ready"));
    }

    #[test]
    fn a_warning_may_carry_a_date_and_a_source_place() {
        let line = "[2026-03-04 05:06:07] n1:10:11 [0] transport/net.cc:99 NCCL WARN it broke";
        let (before, record) = split_record(line);
        let record = record.expect("a record");
        assert_eq!((before, record.host, record.warning), ("", "n1", true));
        assert_eq!(split_record("plain text"), ("plain text", None));
    }

    #[test]
    fn transports_are_kept_once_and_only_when_used() {
        let facts = note_messages(&[
            "Channel 00/0 : 0[0] -> 1[1] via P2P/MNNVL",
            "Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
            "Channel 00/0 : 3[3] -> 4[0] [send] via NET/IB/0/GDRDMA",
            "Channel 00 : 0[0] -> 2[2] via SHM/direct/direct",
            "Channel 00/0 : 3[3] -> 4[0] [receive] via NET/AWS Libfabric/1/GDRDMA",
            "MNNVL 0 cliqueId 1 cliqueSize 4 cliqueRank 0",
            "NVLS multicast support is not available on dev 0",
            "NVLS multicast support is available on dev 1, transport disabled, symmetric multimem \
             disabled",
        ]);
        assert_eq!(facts.transports, ["MNNVL", "P2P", "NET/IB", "SHM", "NET/AWS Libfabric"]);
        let facts = note_messages(&[
            "MNNVL 1 cliqueId 7 cliqueSize 72 cliqueRank 3",
            "NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)",
        ]);
        assert_eq!(facts.transports, ["MNNVL", "NVLS"]);
    }

    #[test]
    fn only_listed_settings_become_facts() {
        let facts = note_messages(&[
            "NCCL_ALGO set by environment to Ring",
            "NCCL_COMM_ID set by environment to 10.1.2.3:999",
            "AllReduce: 64 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..3}",
            "AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}",
        ]);
        assert_eq!(facts.parameters.get("NCCL_ALGO").map(String::as_str), Some("Ring"));
        assert_eq!(facts.parameters.get("algorithms").map(String::as_str), Some("NVLS,RING"));
        assert_eq!(facts.parameters.len(), 2);
    }

    #[test]
    fn version_codes_are_read_in_both_schemes() {
        for (code, version) in [(22_809, "2.28.9"), (2804, "2.8.4"), (21_205, "2.12.5")] {
            let mut facts = ToolFacts::default();
            note_version_code(code, &mut facts);
            assert_eq!(facts.nccl.as_deref(), Some(version));
        }
    }
}
