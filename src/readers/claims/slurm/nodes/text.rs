//! Nodes as `scontrol show node` prints them without `--json`: several lines per node, or one
//! (`-o`).
//!
//! Reasons, comments and `Extra` are free text and come last, so a key counts only in its valid
//! positions: a reason that contains `State=IDLE` does not set the state.

use super::super::host_list_budget::{SlurmTextPosition, strip_bom};
use super::super::node_states;
use super::SlurmNodeListing;
use crate::claims::reader_util::sanitize_text;
use model::source_report::{SourceProblemKind, SourceReport};

/// Keys before the free text, whose values contain no blanks (except `OS`).
const HEAD_KEYS: &[&str] = &[
    "NodeName",
    "Arch",
    "CoresPerSocket",
    "CPUAlloc",
    "CPUEfctv",
    "CPUTot",
    "CPULoad",
    "CPUErr",
    "AvailableFeatures",
    "ActiveFeatures",
    "Gres",
    "GresDrain",
    "GresUsed",
    "NodeAddr",
    "NodeHostName",
    "BcastAddr",
    "Port",
    "Version",
    "OS",
    "RealMemory",
    "AllocMem",
    "FreeMem",
    "Sockets",
    "Boards",
    "CoreSpecCount",
    "CPUSpecList",
    "MemSpecLimit",
    "State",
    "ThreadsPerCore",
    "TmpDisk",
    "Weight",
    "Owner",
    "MCS_label",
    "NextState",
    "Partitions",
    "BootTime",
    "SlurmdStartTime",
    "LastBusyTime",
    "ResumeAfterTime",
    "SuspendTime",
    "CfgTRES",
    "AllocTRES",
    "CapWatts",
    "CurrentWatts",
    "LowestJoules",
    "ConsumedJoules",
    "AveWatts",
    "ExtSensorsJoules",
    "ExtSensorsWatts",
    "ExtSensorsTemp",
];

const FREE_TEXT_KEYS: &[&str] = &["Reason", "Comment", "Extra"];

/// Keys that may follow free text.
const TRAILING_KEYS: &[&str] = &[
    "Reason",
    "Comment",
    "Extra",
    "InstanceId",
    "InstanceType",
    "ReservationName",
    "Reservation",
    "ResvName",
    "Topology",
    "Parameters",
];

pub(super) fn recognises(text: &str) -> bool {
    let text = strip_bom(text).trim_start();
    let first = text.lines().next().unwrap_or_default();
    let Some(name) = first.strip_prefix("NodeName=") else { return is_not_found(first) };
    // slurm.conf has such lines too, with lists of names and no live state.
    let name = name.split_whitespace().next().unwrap_or_default();
    !name.is_empty()
        && !name.contains('[')
        && ["Arch=", "State=", "CPUTot=", "NodeAddr="].iter().any(|key| text.contains(key))
        && !text.contains("PartitionName=")
        && !text.contains("SlurmctldHost=")
}

/// `Node x not found`, which scontrol prints on standard output.
fn is_not_found(line: &str) -> bool {
    line.starts_with("Node ") && line.trim_end().ends_with(" not found")
}

pub(super) fn read(report: &mut SourceReport, place: &str, text: &str) -> Vec<SlurmNodeListing> {
    let mut records: Vec<(usize, Vec<&str>)> = Vec::new();
    for (index, line) in strip_bom(text).lines().enumerate() {
        let at = || SlurmTextPosition::new(place, index + 1, 1).to_string();
        if line.starts_with("NodeName=") {
            records.push((index + 1, vec![line]));
        } else if is_not_found(line) {
            report.push_problem(SourceProblemKind::Missing, at(), sanitize_text(line));
        } else if line.trim().is_empty() {
        } else if let Some((_, lines)) = records.last_mut()
            && line.starts_with(char::is_whitespace)
        {
            lines.push(line);
        } else {
            let message = format!("not a line of a node: {}", sanitize_text(line));
            report.push_problem(SourceProblemKind::Malformed, at(), message);
        }
    }
    let mut listings = Vec::with_capacity(records.len());
    for (number, lines) in records {
        let at = SlurmTextPosition::new(place, number, 1).to_string();
        let listing = parse_listing(&lines, at.clone());
        if listing.name.is_empty() {
            report.push_problem(
                SourceProblemKind::Malformed,
                at,
                "a node without a name is skipped",
            );
        } else {
            listings.push(listing);
        }
    }
    listings
}

/// Keys and values of one node, the first occurrence of each key.
fn parse_values(lines: &[&str]) -> Vec<(&'static str, String)> {
    let is_one_line = lines.len() == 1;
    let mut found: Vec<(&'static str, String)> = Vec::new();
    let mut is_free = false;
    for line in lines {
        let mut at = 0;
        let mut is_first = true;
        while let Some((start, key)) = next_key(line, at, is_free, is_one_line, is_first) {
            append_text(&mut found, &line[at..start], is_first);
            at = start + key.len() + 1;
            is_first = false;
            is_free = is_free || FREE_TEXT_KEYS.contains(&key);
            found.push((key, String::new()));
        }
        append_text(&mut found, &line[at..], is_first);
    }
    for (_, value) in &mut found {
        value.truncate(value.trim_end().len());
    }
    found
}

/// Appends text to the value it belongs to; a separate line stays a line.
fn append_text(found: &mut [(&'static str, String)], text: &str, is_line: bool) {
    let Some((_, value)) = found.last_mut() else { return };
    let text = text.trim_end();
    if is_line && !value.is_empty() && !text.trim().is_empty() {
        value.push('\n');
        value.push_str(text.trim_start());
    } else {
        value.push_str(text);
    }
}

/// The next key of a line. After the start of free text, only keys that may follow it count, and
/// in the multi-line form only at the start of a line.
fn next_key(
    line: &str,
    from: usize,
    is_free: bool,
    is_one_line: bool,
    is_first: bool,
) -> Option<(usize, &'static str)> {
    let mut at = from;
    loop {
        let rest = &line[at..];
        let start = at + (rest.len() - rest.trim_start().len());
        let word = line[start..].split(char::is_whitespace).next().filter(|w| !w.is_empty())?;
        let key = word.split_once('=').map(|(key, _)| key);
        let known = key.and_then(|key| {
            let head = HEAD_KEYS.iter().filter(|_| !is_free);
            head.chain(TRAILING_KEYS).find(|known| **known == key).copied()
        });
        // Continued free text is indented further than keys.
        let begins = || is_first && start <= 4 && line[..start].trim().is_empty();
        let may_stand = !is_free || is_one_line || begins();
        if let Some(key) = known.filter(|_| may_stand) {
            return Some((start, key));
        }
        at = start + word.len();
    }
}

fn parse_listing(lines: &[&str], at: String) -> SlurmNodeListing {
    let mut found = parse_values(lines);
    let mut take = |key: &str| {
        // `OS` is text from the node and may look like keys; the real ones come after it. Free
        // text comes after its keys.
        let is_it = |(name, _): &(&str, String)| *name == key;
        let index = if TRAILING_KEYS.contains(&key) {
            found.iter().position(is_it)?
        } else {
            found.iter().rposition(is_it)?
        };
        let value = std::mem::take(&mut found[index].1);
        Some(value).filter(|value| !super::super::json_response::is_null_text(value))
    };
    let words = |text: Option<String>| -> Vec<String> {
        let text = text.unwrap_or_default();
        text.split(',').map(str::trim).filter(|w| !w.is_empty()).map(str::to_owned).collect()
    };
    let (reason, reason_by) = take("Reason").map_or((None, None), |text| split_reason(&text));
    SlurmNodeListing {
        name: take("NodeName").unwrap_or_default(),
        at,
        hostname: take("NodeHostName"),
        address: take("NodeAddr"),
        instance: take("InstanceId"),
        instance_type: take("InstanceType"),
        gres: take("Gres"),
        tres: take("CfgTRES"),
        features: words(take("AvailableFeatures")),
        active: words(take("ActiveFeatures")),
        comment: take("Comment"),
        extra: take("Extra"),
        reason,
        reason_by,
        reservation: take("ReservationName")
            .or_else(|| take("Reservation"))
            .or_else(|| take("ResvName")),
        state: take("State").map(|state| node_states::split_state(&state)).unwrap_or_default(),
        allocated_cpus: take("CPUAlloc").and_then(|text| text.parse().ok()),
        topology: take("Topology"),
        partitions: words(take("Partitions")),
        version: take("Version"),
    }
}

/// A reason without the `[user@time]` that Slurm appends to its first line, and that user.
fn split_reason(text: &str) -> (Option<String>, Option<String>) {
    let stamp = text.match_indices(" [").filter_map(|(start, _)| {
        let word = text[start + 2..].split(char::is_whitespace).next()?;
        let end = start + 2 + word.find(']')?;
        let (user, time) = text[start + 2..end].split_once('@')?;
        let is_time = time.starts_with(|c: char| c.is_ascii_digit()) && time.contains('T')
            || time == "Unknown";
        (is_time && !user.is_empty()).then_some((start, end, user))
    });
    let Some((start, end, user)) = stamp.last() else {
        return (Some(text.trim().to_owned()), None);
    };
    let mut reason = text[..start].to_owned();
    // The remaining lines follow; `-o` writes them on this one.
    let rest = text[end + 1..].trim();
    if !rest.is_empty() {
        reason.push('\n');
        reason.push_str(rest);
    }
    (Some(reason).filter(|text| !text.trim().is_empty()), Some(user.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::super::read as read_nodes;
    use super::*;
    use model::id::NodeName;
    use model::source_report::NodeReport;

    fn record(tail: &str) -> String {
        format!(
            "NodeName=tray03 Arch=aarch64 CoresPerSocket=1 \n   CPUAlloc=0 CPUEfctv=4 CPUTot=4 CPULoad=3.73\n   \
             AvailableFeatures=gb200,row1\n   ActiveFeatures=gb200,row1\n   Gres=gpu:gb200:4\n   \
             NodeAddr=10.0.0.3 NodeHostName=tray03 Port=17003 Version=26.05.5\n   \
             OS=Linux 6.18.44 #1 SMP State=DOWN @0 \n   RealMemory=1000 Sockets=4 Boards=1\n   \
             State=IDLE+DRAIN ThreadsPerCore=1 Weight=1 Owner=N/A MCS_label=N/A\n   Partitions=main,probe \n   \
             BootTime=2026-11-21T03:56:42 SlurmdStartTime=None\n   CfgTRES=cpu=4,mem=1000M,billing=4\n   \
             AllocTRES=\n   CurrentWatts=0 AveWatts=0\n{tail}\n\n"
        )
    }

    fn node(text: &str) -> NodeReport {
        let report = read_nodes("f", text);
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        report.nodes[&NodeName::from("tray03")].clone()
    }

    fn on_one_line(text: &str) -> String {
        let lines: Vec<String> =
            text.lines().map(|line| line.strip_prefix("   ").unwrap_or(line).to_owned()).collect();
        lines.join(" ").trim_end().to_owned() + "\n"
    }

    #[test]
    fn both_forms_read_the_same() {
        let text = record(
            "   Reason=gate: nvlink 14/18 up; expected 18 [root@2026-11-21T04:53:20]\n   \
             Comment=seen by ann Extra={\"a\": 1}\n   InstanceId=i-3\n   Topology=racks:r2",
        );
        for text in [text.clone(), on_one_line(&text)] {
            assert!(recognises(&text), "{text}");
            let report = read_nodes("f", &text);
            let node = node(&text);
            assert_eq!(node.state, ["IDLE", "DRAIN"]);
            assert_eq!(node.reason.as_deref(), Some("gate: nvlink 14/18 up; expected 18"));
            assert_eq!((node.gpus, node.product.as_deref()), (Some(4), Some("gb200")));
            assert_eq!(node.aliases, ["10.0.0.3", "i-3"]);
            assert_eq!(node.busy, Some(false));
            assert_eq!(node.marks["reason by"], "root");
            assert_eq!(node.marks["features"], "gb200,row1");
            assert_eq!(report.groups[0].name, "r2");
            assert_eq!(report.settings["slurmd"], "26.05.5");
        }
        let one = on_one_line(&text);
        assert_eq!(node(&one).marks["extra"], "{\"a\": 1}");
        assert_eq!(node(&one).marks["comment"], "seen by ann");
    }

    #[test]
    fn a_reason_may_contain_brackets_quotes_newlines_and_keys() {
        for (written, expected) in [
            ("[user_problem] gpus busy [root@2026-01-01T00:00:00]", "[user_problem] gpus busy"),
            (
                "one [ann@2026-01-01T00:00:00]\n          two \"quoted\" and = signs",
                "one\ntwo \"quoted\" and = signs",
            ),
            (
                "NodeName=x State=IDLE Gres=gpu:9 [ann@2026-01-01T00:00:00]",
                "NodeName=x State=IDLE Gres=gpu:9",
            ),
            ("said [b@1T] before [ann@2026-01-01T00:00:00]", "said [b@1T] before"),
            ("no stamp", "no stamp"),
        ] {
            let text = record(&format!("   Reason={written}"));
            let node = node(&text);
            assert_eq!(node.reason.as_deref(), Some(expected));
            assert_eq!(node.state, ["IDLE", "DRAIN"], "{written}");
            assert_eq!(node.gpus, Some(4), "{written}");
        }
        let one = on_one_line(&record(
            "   Reason=one [ann@2026-01-01T00:00:00]\n          two State=DOWN",
        ));
        assert_eq!(node(&one).reason.as_deref(), Some("one\ntwo State=DOWN"));
        assert_eq!(node(&one).state, ["IDLE", "DRAIN"]);
    }

    #[test]
    fn a_shortened_line_is_read_as_far_as_it_goes() {
        let report = read_nodes(
            "f",
            "NodeName=w0 InstanceId=i-1 State=IDLE+DRAIN Weight=1 \
            Reason=[user] busy State=DOWN [root@2026-01-01T00:00:00]\n",
        );
        let node = &report.nodes[&NodeName::from("w0")];
        assert_eq!(node.state, ["IDLE", "DRAIN"]);
        assert_eq!(node.aliases, ["i-1"]);
        assert_eq!(node.reason.as_deref(), Some("[user] busy State=DOWN"));
    }

    #[test]
    fn several_nodes_and_unexpected_lines_stay_separate() {
        let text = format!(
            "{}{}slurm_load_node error: what\nNode tray09 not found\nNodeName= State=IDLE\n",
            record(""),
            record("").replace("tray03", "tray04")
        );
        let report = read_nodes("f", &text);
        assert_eq!(report.nodes.len(), 2);
        let kinds: Vec<SourceProblemKind> = report.problems.iter().map(|p| p.kind).collect();
        assert_eq!(
            kinds,
            [
                SourceProblemKind::Malformed,
                SourceProblemKind::Missing,
                SourceProblemKind::Malformed
            ]
        );
        assert!(recognises("Node tray09 not found\n"));
        assert!(!read_nodes("f", "").problems.is_empty());
    }

    #[test]
    fn a_configuration_is_not_a_listing() {
        assert!(!recognises("NodeName=tray[01-36] CPUs=4 Gres=gpu:4 State=UNKNOWN\n"));
        assert!(!recognises("NodeName=a CPUs=4 State=UNKNOWN\nPartitionName=main Nodes=ALL\n"));
        assert!(!recognises("BlockName=a Nodes=n1\n") && !recognises(""));
    }
}
