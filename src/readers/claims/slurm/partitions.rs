//! Slurm's partitions and the topology of each, from `scontrol show partition` (text or JSON) or
//! slurmrestd.
//!
//! A partition makes no claim about the fabric. It shows which of several topologies is in force
//! for its nodes (since 25.05), and whether a job takes whole blocks.

use serde_json::Value;

use super::host_list_budget::{HostListBudget, SlurmTextPosition, strip_bom};
use super::json_response;
use super::key_value::{KeyValueEntry, parse_entries};
use crate::claims::reader_util::{limit_notes, sanitize_text};
use model::source_report::{NodeGroup, NodeGroupKind, SourceKind, SourceProblemKind, SourceReport};

/// Whether a text lists partitions.
pub fn recognises(text: &str) -> bool {
    if let Some(keys) = json_response::top_level_keys(text) {
        return keys.contains("partitions")
            && (text.contains("data_parser") || text.contains("node_sets"))
            && !keys.contains("nodes");
    }
    let text = strip_bom(text).trim_start();
    if text.starts_with('{') {
        return json_response::starts_with_key(text, "partitions");
    }
    // slurm.conf has such lines too, but without the controller's counters.
    text.starts_with("PartitionName=")
        && ["TotalNodes=", "TotalCPUs=", "AllocNodes="].iter().any(|key| text.contains(key))
        || text.starts_with("Partition ") && text.trim_end().ends_with(" not found")
}

/// Parses partitions. `place` is their name in messages.
pub fn read(place: &str, text: &str) -> SourceReport {
    let mut report = SourceReport::new(SourceKind::SlurmPartitions, place);
    let text = strip_bom(text);
    let partitions = if text.trim_start().starts_with(['{', '[']) {
        read_json(&mut report, place, text)
    } else {
        read_text(&mut report, place, text)
    };
    if partitions.is_empty() && report.problems.is_empty() {
        report.push_problem(SourceProblemKind::Incomplete, None, "it contains no partition");
    }
    let mut listed = HostListBudget::new();
    for partition in &partitions {
        partition.add_to_report(&mut report, &mut listed);
    }
    limit_notes(report)
}

/// The partition behind a setting of this name.
pub fn partition_of_topology(setting: &str) -> Option<&str> {
    setting.strip_prefix("PartitionName=")?.strip_suffix(" Topology")
}

/// One partition, in either form (or from `sinfo`).
#[derive(Debug)]
pub(super) struct SlurmPartition<'p> {
    pub(super) name: String,
    pub(super) spot: SlurmTextPosition<'p>,
    /// Its nodes: a host list.
    pub(super) nodes: Option<String>,
    pub(super) topology: Option<String>,
    /// Exclusive allocation of blocks or nodes: `TOPO`, `USER`, `NO`.
    pub(super) exclusive: Option<String>,
    pub(super) state: Option<String>,
}

impl SlurmPartition<'_> {
    pub(super) fn add_to_report(&self, report: &mut SourceReport, listed: &mut HostListBudget) {
        for (what, value, ordinary) in [
            ("Topology", &self.topology, ""),
            ("Exclusive", &self.exclusive, "NO"),
            ("State", &self.state, "UP"),
        ] {
            if let Some(value) = value.as_ref().filter(|value| *value != ordinary) {
                report
                    .settings
                    .insert(format!("PartitionName={} {what}", self.name), value.clone());
            }
        }
        let list = self.nodes.as_deref().unwrap_or_default();
        let Some(nodes) = listed.expand_nodes(report, self.spot, list) else { return };
        let mut group =
            NodeGroup::new(NodeGroupKind::Partition, "partition", self.name.clone(), nodes);
        group.topology.clone_from(&self.topology);
        group.at = Some(self.spot.to_string());
        report.groups.push(group);
    }
}

/// Topology, exclusiveness and state of a partition in JSON; `sinfo` has the
/// same layout.
pub(super) fn from_json<'p>(
    value: &Value,
    spot: SlurmTextPosition<'p>,
) -> Option<SlurmPartition<'p>> {
    let name = json_response::as_text(&value["name"])?.to_owned();
    let text = |value: &Value| json_response::as_text(value).map(str::to_owned);
    let own = &value["partition"];
    let states = json_response::as_words(&own["state"]);
    let flags = json_response::as_words(&value["flags"]);
    let by_flag = flags.iter().find_map(|flag| match flag.as_str() {
        "EXCLUSIVE_TOPO" => Some("TOPO".to_owned()),
        "EXCLUSIVE_USER" => Some("USER".to_owned()),
        _ => None,
    });
    Some(SlurmPartition {
        name,
        spot,
        nodes: text(&value["nodes"]["configured"]),
        topology: text(&value["topology"]),
        exclusive: text(&own["exclusive"]).or(by_flag).map(|word| word.to_ascii_uppercase()),
        state: Some(states.join("+")).filter(|state| !state.is_empty()),
    })
}

fn read_json<'p>(report: &mut SourceReport, place: &'p str, text: &str) -> Vec<SlurmPartition<'p>> {
    let Some(found) = json_response::read(report, place, text) else { return Vec::new() };
    let list = match &found {
        Value::Array(items) => items.as_slice(),
        value => match value.get("partitions") {
            Some(Value::Array(items)) => items.as_slice(),
            Some(_) => {
                report.push_problem(
                    SourceProblemKind::Malformed,
                    None,
                    "`partitions` is not a list",
                );
                &[]
            }
            None => {
                if report.problems.is_empty() {
                    report.push_problem(
                        SourceProblemKind::Incomplete,
                        None,
                        "the answer has no `partitions`",
                    );
                }
                &[]
            }
        },
    };
    let mut partitions = Vec::new();
    for (index, item) in list.iter().enumerate() {
        match from_json(item, SlurmTextPosition::Item { list: "partitions", index }) {
            Some(partition) => partitions.push(partition),
            None => {
                let at = format!("partitions[{index}]");
                report.push_problem(
                    SourceProblemKind::Malformed,
                    at,
                    "a partition without a name is skipped",
                );
            }
        }
    }
    partitions
}

fn read_text<'p>(report: &mut SourceReport, place: &'p str, text: &str) -> Vec<SlurmPartition<'p>> {
    let mut partitions: Vec<SlurmPartition<'p>> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let spot = |offset: usize| {
            let column = line.get(..offset).map_or(0, |text| text.chars().count()) + 1;
            SlurmTextPosition::new(place, index + 1, column)
        };
        let mut rest = line;
        let mut before = 0;
        if let Some(named) = line.strip_prefix("PartitionName=") {
            // Names may contain blanks; in the one-line form this key follows them.
            let end = named.find(" AllowGroups=").unwrap_or(named.len());
            partitions.push(SlurmPartition {
                name: named[..end].trim().to_owned(),
                spot: spot(0),
                nodes: None,
                topology: None,
                exclusive: None,
                state: None,
            });
            before = line.len() - named.len() + end;
            rest = &line[before..];
        } else if !line.trim().is_empty() && !line.starts_with(char::is_whitespace) {
            let kind = if line.trim_end().ends_with(" not found") {
                SourceProblemKind::Missing
            } else {
                SourceProblemKind::Malformed
            };
            report.push_problem(
                kind,
                spot(0).to_string(),
                format!("not a line of a partition: {}", sanitize_text(line)),
            );
            continue;
        }
        let Some(partition) = partitions.last_mut() else { continue };
        for entry in parse_entries(rest).0 {
            set_field(partition, &entry, || spot(before + entry.offset));
        }
    }
    partitions
}

fn set_field<'p>(
    partition: &mut SlurmPartition<'p>,
    entry: &KeyValueEntry<'_>,
    spot: impl Fn() -> SlurmTextPosition<'p>,
) {
    let value = (!json_response::is_null_text(entry.value)).then(|| entry.value.to_owned());
    if entry.has_key("Nodes") && partition.nodes.is_none() {
        partition.nodes = value;
        partition.spot = spot();
    } else if entry.has_key("Topology") {
        partition.topology = value;
    } else if entry.has_key("State") {
        partition.state = value;
    } else if entry.has_key("Exclusive") {
        partition.exclusive = value;
    } else if entry.has_key("ExclusiveTopo") && entry.value.eq_ignore_ascii_case("YES") {
        partition.exclusive = Some("TOPO".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::hostlist;
    use model::id::NodeName;

    fn group_lines(report: &SourceReport) -> Vec<String> {
        let line = |g: &NodeGroup| {
            let nodes = hostlist::fold(g.nodes.iter().map(NodeName::as_str));
            format!("{} {nodes} {:?}", g.name, g.topology)
        };
        report.groups.iter().map(line).collect()
    }

    const TEXT: &str = "PartitionName=main\n   AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL\n   \
        AllocNodes=ALL Default=YES QoS=N/A\n   ExclusiveUser=NO ExclusiveTopo=YES GraceTime=0\n   \
        Nodes=tray[01-36]\n   State=UP TotalCPUs=144 TotalNodes=36\n   JobDefaults=(null)\n   \
        Topology=racks\n\nPartitionName=two words\n   AllowGroups=ALL AllocNodes=ALL Exclusive=NO\n   \
        Nodes=(null)\n   State=DOWN TotalCPUs=0 TotalNodes=0\n";

    #[test]
    fn partitions_are_read_with_their_topologies() {
        let one_line = "PartitionName=main AllowGroups=ALL AllocNodes=ALL ExclusiveTopo=YES \
             Nodes=tray[01-36] State=UP TotalNodes=36 Topology=racks\nPartitionName=two words \
             AllowGroups=ALL Nodes=(null) State=DOWN TotalNodes=0\n";
        for text in [TEXT, one_line] {
            assert!(recognises(text));
            let report = read("f", text);
            assert!(report.problems.is_empty(), "{:?}", report.problems);
            assert_eq!(
                group_lines(&report),
                ["main tray[01-36] Some(\"racks\")", "two words  None"]
            );
            let expected = [
                ("PartitionName=main Exclusive", "TOPO"),
                ("PartitionName=main Topology", "racks"),
                ("PartitionName=two words State", "DOWN"),
            ];
            let settings: Vec<(&str, &str)> =
                report.settings.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            assert_eq!(settings, expected);
        }
        assert_eq!(read("f", TEXT).groups[0].at.as_deref(), Some("f:5:10"));
    }

    #[test]
    fn json_reads_the_same() {
        let text = r#"{"partitions":[
            {"name":"main","nodes":{"configured":"tray[01-36]","total":36},"topology":"racks",
             "partition":{"state":["UP"],"exclusive":"topo"},"node_sets":"ALL"},
            {"name":"old","nodes":{"configured":"tray01"},"flags":["EXCLUSIVE_TOPO"]},
            {"nodes":{}}],
            "meta":{"plugin":{"data_parser":"data_parser/v0.0.45"}},"errors":[]}"#;
        assert!(recognises(text));
        let report = read("f", text);
        assert_eq!(group_lines(&report), ["main tray[01-36] Some(\"racks\")", "old tray01 None"]);
        assert_eq!(report.settings["PartitionName=main Exclusive"], "TOPO");
        assert_eq!(report.settings["PartitionName=old Exclusive"], "TOPO");
        assert_eq!(report.problems[0].at.as_deref(), Some("partitions[2]"));
    }

    #[test]
    fn a_bad_list_costs_only_its_partition() {
        let text = "PartitionName=a\n   AllocNodes=ALL\n   Nodes=n[1-\nPartitionName=b\n   \
                    AllocNodes=ALL\n   Nodes=n2\n";
        let report = read("f", text);
        assert_eq!(group_lines(&report), ["b n2 None"]);
        assert_eq!(report.problems[0].at.as_deref(), Some("f:3:11"));
    }

    #[test]
    fn empty_text_and_a_configuration_are_not_answers() {
        for text in ["", "Partition x not found\n", "{}", r#"{"partitions":[]}"#] {
            assert!(!read("f", text).problems.is_empty(), "{text:?}");
        }
        assert!(recognises("Partition x not found\n"));
        assert!(!recognises("PartitionName=main Nodes=ALL Default=YES State=UP\n"));
        assert!(!recognises("") && !recognises("{}"));
    }
}
