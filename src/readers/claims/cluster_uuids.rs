//! ClusterUUIDs of many nodes, as parallel shells collect them from `nvidia-smi -q`: `NODE: UUID`
//! (pdsh, clush), or the lines that parallel-ssh prints before each answer.
//!
//! Pure. The driver reports the value for the first GPU, without the CliqueId: one UUID may span
//! several cliques.

use std::collections::{BTreeMap, BTreeSet};

use super::reader_util::is_zero_uuid;
use model::hostlist;
use model::id::NodeName;
use model::source_report::{
    ClaimBasis, FabricReport, NodeGroup, NodeGroupKind, SourceKind, SourceProblemKind, SourceReport,
};

/// The kinds of lines in such a text.
enum ClusterUuidLine<'t> {
    NodeWithUuid(&'t str, &'t str),
    /// A node that answered; its answer follows on the next lines.
    Node(&'t str),
    /// A node that did not answer.
    NoAnswer(&'t str),
    /// A UUID on its own.
    Uuid(&'t str),
    /// A node without a UUID; without its name, the node that answered last.
    NoUuid(Option<&'t str>),
    Other,
}

/// Whether a text has this format: every non-empty line matches.
pub fn recognises(text: &str) -> bool {
    let mut uuids = 0;
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match parse_line(line) {
            ClusterUuidLine::NodeWithUuid(..) | ClusterUuidLine::Uuid(_) => uuids += 1,
            ClusterUuidLine::Node(_)
            | ClusterUuidLine::NoAnswer(_)
            | ClusterUuidLine::NoUuid(_) => {}
            ClusterUuidLine::Other => return false,
        }
    }
    0 < uuids
}

/// Parses such a text. `place` is its name in messages.
pub fn read(place: &str, text: &str) -> SourceReport {
    let mut report = SourceReport::new(SourceKind::NodeFacts, place);
    let mut groups: BTreeMap<String, NodeGroup> = BTreeMap::new();
    let mut without: BTreeSet<NodeName> = BTreeSet::new();
    let mut answering_node: Option<&str> = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let at = format!("{place}:{}", number + 1);
        let (node, uuid) = match parse_line(line) {
            ClusterUuidLine::NodeWithUuid(node, uuid) => (node, uuid),
            ClusterUuidLine::Node(node) => {
                answering_node = Some(node);
                continue;
            }
            ClusterUuidLine::NoAnswer(node) => {
                let message = format!("{node} did not answer");
                report.push_problem(SourceProblemKind::Incomplete, at, message);
                answering_node = None;
                continue;
            }
            // One per GPU: tools use that of the first GPU.
            ClusterUuidLine::Uuid(uuid) => match answering_node.take() {
                Some(node) => (node, uuid),
                None => continue,
            },
            ClusterUuidLine::NoUuid(node) => {
                without.extend(node.or_else(|| answering_node.take()).map(NodeName::from));
                continue;
            }
            ClusterUuidLine::Other => continue,
        };
        let (node, uuid) = (NodeName::from(node), uuid.to_lowercase());
        let known = report.node_mut(&node).fabric.first().and_then(|f| f.cluster_uuid.clone());
        match known {
            Some(known) if known != uuid => {
                let message = format!("{node} has two ClusterUUIDs, {known} and {uuid}");
                report.push_problem(SourceProblemKind::Contradictory, at, message);
                continue;
            }
            Some(_) => continue,
            None => {}
        }
        report.node_mut(&node).fabric.push(FabricReport {
            cluster_uuid: Some(uuid.clone()),
            basis: Some(ClaimBasis::Reported),
            at: Some(at.clone()),
            ..FabricReport::default()
        });
        // Servers without a multi-node fabric: equal zeros do not connect them.
        if is_zero_uuid(&uuid) {
            without.insert(node);
            continue;
        }
        let group = groups.entry(uuid.clone()).or_insert_with(|| NodeGroup {
            basis: ClaimBasis::Reported,
            at: Some(at),
            ..NodeGroup::new(NodeGroupKind::Domain, "ClusterUUID", uuid, Vec::new())
        });
        group.nodes.push(node);
    }
    report.groups = groups.into_values().collect();
    report.notes.push("ClusterUUIDs without CliqueIds: one may span several domains".to_owned());
    if !without.is_empty() {
        let names = hostlist::fold(without.iter().map(NodeName::as_str));
        report.notes.push(format!("no ClusterUUID, so no multi-node fabric: {names}"));
    }
    report
}

/// The text that nvidia-smi prints without a fabric.
fn is_no_uuid(word: &str) -> bool {
    matches!(word, "N/A" | "[N/A]")
}

fn parse_line(line: &str) -> ClusterUuidLine<'_> {
    if is_no_uuid(line) {
        return ClusterUuidLine::NoUuid(None);
    }
    if is_uuid(line) {
        return ClusterUuidLine::Uuid(line);
    }
    // parallel-ssh: [1] 14:23:45 [SUCCESS] node1
    let words: Vec<&str> = line.split_whitespace().collect();
    if let [number, _, result, node, ..] = words.as_slice()
        && number.starts_with('[')
        && is_node(node)
    {
        match *result {
            "[SUCCESS]" => return ClusterUuidLine::Node(node),
            "[FAILURE]" => return ClusterUuidLine::NoAnswer(node),
            _ => {}
        }
    }
    let Some((node, word)) = line.split_once(':') else { return ClusterUuidLine::Other };
    match (node.trim(), word.trim()) {
        (node, _) if !is_node(node) => ClusterUuidLine::Other,
        (node, word) if is_no_uuid(word) => ClusterUuidLine::NoUuid(Some(node)),
        (node, uuid) if is_uuid(uuid) => ClusterUuidLine::NodeWithUuid(node, uuid),
        _ => ClusterUuidLine::Other,
    }
}

fn is_node(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

/// 8-4-4-4-12 hexadecimal digits (RFC 9562 section 4).
fn is_uuid(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    lengths == [8, 4, 4, 4, 12]
        && parts.iter().all(|part| part.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "0a0a0a0a-1111-4222-8333-444444444444";
    const B: &str = "0B0B0B0B-1111-4222-8333-444444444444";

    #[test]
    fn nodes_of_one_uuid_are_one_group() {
        let text = format!("n1: {A}\nn2: {A}\nn3: {B}\n");
        assert!(recognises(&text));
        let report = read("map", &text);
        let [first, second] = &report.groups[..] else { panic!("{report:?}") };
        assert_eq!((first.name.as_str(), first.nodes.len()), (A, 2));
        assert_eq!(second.name, B.to_lowercase());
        assert_eq!(first.basis, ClaimBasis::Reported);
        assert_eq!(report.nodes.len(), 3);
    }

    #[test]
    fn answers_of_a_parallel_shell_belong_to_the_node_before_them() {
        let text = format!(
            "[1] 10:00:00 [SUCCESS] n1\n{A}\n{A}\n[2] 10:00:09 [FAILURE] n2 Exited with error code 255\n"
        );
        assert!(recognises(&text));
        let report = read("map", &text);
        assert_eq!(report.groups[0].nodes, [NodeName::from("n1")]);
        assert_eq!(report.problems[0].to_string(), "map:4: n2 did not answer");
    }

    #[test]
    fn a_node_with_two_uuids_contradicts_itself() {
        let report = read("map", &format!("n1: {A}\nn1: {B}\n"));
        assert_eq!(report.problems[0].kind, SourceProblemKind::Contradictory);
        assert_eq!(report.groups[0].nodes.len(), 1);
    }

    #[test]
    fn zero_and_missing_uuids_are_not_a_shared_fabric() {
        let zero = "00000000-0000-0000-0000-000000000000";
        let text = format!("n1: {zero}\nn2: {zero}\nn3: N/A\nn4: {A}\n");
        assert!(recognises(&text));
        let report = read("map", &text);
        let [only] = &report.groups[..] else { panic!("{report:?}") };
        assert_eq!(only.nodes, [NodeName::from("n4")]);
        let note = "no ClusterUUID, so no multi-node fabric: n[1-3]".to_owned();
        assert!(report.notes.contains(&note), "{report:?}");
        assert!(!recognises("n1: N/A\nn2: N/A\n"));
    }

    #[test]
    fn other_text_is_not_recognised() {
        for text in ["", "n1: x\n", "dear diary\n", "n1: 1234\n", "key: value\nother: thing\n"] {
            assert!(!recognises(text), "{text:?}");
        }
        assert!(!recognises(&format!("n1: {A}\nsomething else\n")));
    }
}
