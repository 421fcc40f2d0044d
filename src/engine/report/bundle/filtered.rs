//! The part of a run that is about one node: the content of its page and its tables.
//!
//! Kept are the node and the nodes that were measured with it: their readings with each other are
//! what clears them. Other nodes are removed completely, and partners have no verdict.

use std::collections::BTreeSet;

use super::BundleCase;
use super::evidence::{NodeEvidence, touches};
use super::redaction::NOT_CAUGHT;
use model::claims::Claims;
use model::id::NodeName;
use model::measured_cell::MeasuredCell;
use model::run::Run;
use model::verdict::{Outcome, Verdicts};

/// The text for a run without readable verdicts.
const NOT_JUDGED: &str =
    "This run was not judged, or its verdicts cannot be read: no finding blames this node.";

/// The part of the run that is about the node of this case.
pub(super) fn run(case: &BundleCase, sides: &NodeEvidence) -> Run {
    let Run { info, claims, cells, verdicts, .. } = &case.run;
    let node = &case.node;
    let own = cells.iter().filter(|cell| touches(cell, node));
    let ends = own.flat_map(|cell| [&cell.src_node, &cell.dst_node]).flatten();
    let mut kept: BTreeSet<&NodeName> = ends.collect();
    kept.insert(node);
    let is_kept = |cell: &&MeasuredCell| {
        let between = match (&cell.src_node, &cell.dst_node) {
            (Some(src), Some(dst)) => src != dst && kept.contains(src) && kept.contains(dst),
            _ => false,
        };
        touches(cell, node) || between
    };
    let mut near = Claims {
        domains: claims.domains.clone(),
        leaves: claims.leaves.clone(),
        rails: claims.rails.clone(),
        ..Claims::default()
    };
    let lists = near.domains.iter_mut().map(|it| &mut it.nodes);
    for nodes in lists.chain(near.leaves.iter_mut().map(|it| &mut it.nodes)) {
        nodes.retain(|it| kept.contains(it));
    }
    near.domains.retain(|it| !it.nodes.is_empty());
    near.leaves.retain(|it| !it.nodes.is_empty());
    let mut notes = sides.notes.clone();
    notes.extend((!case.judged).then(|| NOT_JUDGED.to_owned()));
    notes.extend(case.missing.iter().map(|it| format!("not in this bundle: {it}")));
    notes.extend(case.redact.then(|| NOT_CAUGHT.to_owned()));
    Run {
        info: info.clone(),
        claims: near,
        cells: cells.iter().filter(is_kept).cloned().collect(),
        verdicts: Verdicts {
            outcome: sides.verdict.as_ref().map_or(Outcome::Unknown, |it| it.outcome),
            findings: sides.against.iter().chain(&sides.larger).cloned().collect(),
            nodes: sides.verdict.iter().cloned().collect(),
            unknown: sides.unknown.clone(),
            notes,
            ..verdicts.clone()
        },
        actions: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::bundle::fixture::build_case;
    use crate::report::bundle::pack;
    use crate::report::fixture;
    use model::trend::{FabricPart, FabricPartKind, RunChange, RunChangeKind, Trend, TrendPoint};
    use model::unit::Unit;
    use model::unknown_subject::UnknownSubject;
    use model::verdict::{LocusKind, UnknownEntry};

    const NODE: &str = "node0007";
    const AT: &str = "2026-01-01T00:00:00Z";

    /// A file of a node's bundle, as text.
    fn packed(case: BundleCase, name: &str) -> String {
        let bundle = pack(case, Vec::new()).expect("packed");
        let (_, bytes) = bundle.files.into_iter().find(|it| it.0 == name).expect("there");
        String::from_utf8(bytes).expect("text")
    }

    /// Nodes other than this one that a text names.
    fn others(text: &str) -> BTreeSet<&str> {
        let at = text.match_indices("node00").map(|(at, _)| &text[at..(at + 8).min(text.len())]);
        at.filter(|name| *name != NODE).collect()
    }

    #[test]
    fn the_page_covers_the_node_and_its_partners() {
        let mut run = fixture::rack();
        // This node was never measured with the other one: nothing about it is shown.
        let far = NodeName::from("node0012");
        let ends = |cell: &MeasuredCell, node: &str| {
            [&cell.src_node, &cell.dst_node].into_iter().flatten().any(|it| it.as_str() == node)
        };
        run.cells.retain(|cell| !(ends(cell, NODE) && ends(cell, far.as_str())));
        let case = build_case(run, NODE);
        let near = super::run(&case, &NodeEvidence::from_case(&case));
        assert!(!near.cells.iter().any(|cell| ends(cell, far.as_str())));
        assert!(near.cells.iter().any(|cell| !ends(cell, NODE)), "partners with each other");
        let names: Vec<&str> = near.verdicts.nodes.iter().map(|it| it.node.as_str()).collect();
        assert_eq!(names, [NODE], "no verdict of a partner");
        let page = packed(case, "report.html");
        assert!(page.contains(NODE) && !others(&page).is_empty());
        assert!(!page.contains(far.as_str()));
    }

    #[test]
    fn nothing_that_is_redacted_leaks_through_the_page_or_a_table() {
        let mut run = fixture::rack();
        let theirs = "GPU-22222222-1111-1111-1111-111111111111";
        let secret = format!(
            "{NODE} and node0003.bad.example.com at 10.1.2.3, fe80::12 and aa:bb:cc:dd:ee:0f, \
             /home/olga/x by olga@node0002, USER=olga, {theirs}, node[0001-0018]"
        );
        let finding = run
            .verdicts
            .findings
            .iter_mut()
            .find(|it| it.locus.node.as_ref().is_some_and(|node| node.as_str() == NODE));
        let finding = finding.expect("a finding against it");
        finding.summary = secret.clone();
        finding.evidence[0].detail = secret.clone();
        finding.evidence[0].file = "raw/pairs/node0002/node0007/x.txt".to_owned();
        let mut larger = finding.clone();
        larger.id = "larger".to_owned();
        (larger.locus.node, larger.locus.gpu, larger.locus.peer) = (None, None, None);
        larger.locus.kind = LocusKind::Domain;
        run.verdicts.findings.push(larger);
        run.verdicts.notes.push(secret.clone());
        run.verdicts
            .unknown
            .push(UnknownEntry { what: UnknownSubject::node(&NODE.into()), why: secret.clone() });
        for verdict in &mut run.verdicts.nodes {
            verdict.reason = secret.clone();
        }
        // A domain with the same name as a node, in claims and in cells.
        run.claims.domains[0].name = "node0004".into();
        for cell in &mut run.cells {
            cell.domain = Some("node0004".into());
            cell.rail = Some("rail of node0005".to_owned());
        }
        run.info.source = "/home/olga/runs/node0006".to_owned();
        let trend = Trend {
            part: FabricPart {
                kind: FabricPartKind::Gpu,
                domain: Some("node0004".into()),
                node: Some(NODE.into()),
                gpu: Some(1),
                peer: Some("node0008:1".to_owned()),
                rail: None,
                direction: None,
            },
            testcase: "test of node0009".to_owned(),
            unit: Unit::GigabytesPerSecond,
            points: vec![TrendPoint {
                run: "of node0011".to_owned(),
                at: AT.to_owned(),
                at_unix: 1_767_225_600,
                value: 700.0,
                error: None,
                expected: None,
                outcome: None,
            }],
            baseline: None,
            alarms: Vec::new(),
            changes: vec![RunChange {
                run: "of node0011".to_owned(),
                at: AT.to_owned(),
                node: Some("node0010".into()),
                kind: RunChangeKind::Driver,
                what: secret.clone(),
                before: secret.clone(),
                after: secret.clone(),
            }],
        };
        let whole = BundleCase {
            trends: vec![trend],
            missing: vec![secret.clone()],
            state: "complete".to_owned(),
            ..build_case(run, NODE)
        };
        let words = ["olga", "10.1.2.3", "fe80::12", "aa:bb:cc", "example.com", theirs, "node["];
        // Without --redact all of it is there, so the test can fail.
        let page = packed(whole.clone(), "report.html");
        for word in words {
            assert!(page.contains(word), "{word} is not on the full page");
        }
        assert!(4 < others(&page).len(), "{:?}", others(&page));
        let bundle = pack(BundleCase { redact: true, ..whole }, Vec::new()).expect("packed");
        for (name, bytes) in &bundle.files {
            let text = String::from_utf8_lossy(bytes);
            assert_eq!(others(&text), BTreeSet::new(), "{name}");
            for word in words {
                assert!(!text.contains(word), "{name}: {word}");
            }
        }
        let page = bundle.files.iter().find(|it| it.0 == "report.html").expect("a page");
        let page = String::from_utf8_lossy(&page.1);
        assert!(page.contains(NODE) && page.contains("partner-"));
        assert!(page.contains("Not replaced: names of domains"), "the page lists the limits");
    }
}
