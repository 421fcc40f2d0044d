//! `sinfo --json`: records of nodes with equal data, each with its partition.

use serde_json::Value;

use super::super::host_list_budget::{HostListBudget, SlurmTextPosition};
use super::super::{json_response, node_states, partitions};
use super::SinfoRow;
use model::source_report::{SourceProblemKind, SourceReport};

pub(super) fn read(report: &mut SourceReport, place: &str, text: &str) {
    let Some(found) = json_response::read(report, place, text) else { return };
    let Some(Value::Array(records)) = found.get("sinfo") else {
        if report.problems.is_empty() {
            report.push_problem(
                SourceProblemKind::Incomplete,
                None,
                "the answer has no list `sinfo`",
            );
        }
        return;
    };
    let mut listed = HostListBudget::new();
    let mut seen: Vec<String> = Vec::new();
    for (index, record) in records.iter().enumerate() {
        let spot = SlurmTextPosition::Item { list: "sinfo", index };
        if let Some(partition) = partitions::from_json(&record["partition"], spot)
            && !seen.contains(&partition.name)
        {
            seen.push(partition.name.clone());
            partition.add_to_report(report, &mut listed);
        }
        let mut words: Vec<String> = Vec::new();
        let states = json_response::as_words(&record["node"]["state"]);
        let all = if 1 < states.len() { states.join("+") } else { states.concat() };
        words.extend(node_states::split_state(&all));
        let text = |value: &Value| json_response::as_text(value).map(str::to_owned);
        let row = SinfoRow {
            nodes: json_response::as_words(&record["nodes"]["nodes"]).join(","),
            state: words,
            reason: text(&record["reason"]["description"]),
            gres: text(&record["gres"]["total"]),
            features: text(&record["features"]["total"]),
            partition: None,
        };
        super::add_row(report, &mut listed, spot, &row, false);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{read as read_sinfo, recognises};
    use model::id::NodeName;
    use model::source_report::SourceProblemKind;

    const TEXT: &str = r#"{"sinfo":[
        {"node":{"state":["IDLE","DRAIN"]},"nodes":{"nodes":["t3"],"total":1},
         "reason":{"description":"psu","time":0},"gres":{"total":"gpu:gb200:4"},
         "features":{"total":"gb200","active":"gb200"},
         "partition":{"name":"main","nodes":{"configured":"t[1-4]"},"topology":"racks",
                      "partition":{"state":["UP"],"exclusive":"NO"}}},
        {"node":{"state":["ALLOCATED"]},"nodes":{"nodes":["t1","t2"]},
         "partition":{"name":"main","nodes":{"configured":"t[1-4]"},"topology":"racks"}},
        {"node":{"state":["ALLOCATED"]},"nodes":{"nodes":["t1","t2"]},
         "partition":{"name":"probe","nodes":{"configured":"t[1-4]"},"topology":"none"}},
        {"node":{"state":["IDLE"]},"nodes":{"nodes":[]}}],
        "meta":{"plugin":{"data_parser":"data_parser/v0.0.45"}},"errors":[]}"#;

    #[test]
    fn nodes_of_all_records_appear_once_with_their_partitions() {
        assert!(recognises(TEXT));
        let report = read_sinfo("f", TEXT);
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        assert_eq!(report.nodes.len(), 3);
        let drained = &report.nodes[&NodeName::from("t3")];
        assert_eq!(drained.state, ["IDLE", "DRAIN"]);
        assert_eq!(drained.reason.as_deref(), Some("psu"));
        assert_eq!((drained.gpus, drained.busy), (Some(4), Some(false)));
        let busy = &report.nodes[&NodeName::from("t1")];
        assert_eq!((busy.state.as_slice(), busy.busy), (&["ALLOCATED".to_owned()][..], Some(true)));
        let partitions: Vec<(&str, Option<&str>, usize)> = report
            .groups
            .iter()
            .map(|g| (g.name.as_str(), g.topology.as_deref(), g.nodes.len()))
            .collect();
        assert_eq!(partitions, [("main", Some("racks"), 4), ("probe", Some("none"), 4)]);
    }

    #[test]
    fn an_answer_without_records_is_incomplete() {
        for text in [r#"{"sinfo":[]}"#, r#"{"sinfo":3}"#, r#"{"sinfo":["#] {
            assert!(recognises(text), "{text}");
            assert_eq!(
                read_sinfo("f", text).problems[0].kind,
                SourceProblemKind::Incomplete,
                "{text}"
            );
        }
    }
}
