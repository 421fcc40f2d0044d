//! Each node twice: as a tile in its rack, and as a line with the reason of its outcome. A tile
//! links to its line.

use std::collections::BTreeMap;

use minijinja::Value;
use serde::Serialize;

use super::findings::HtmlFinding;
use super::history::sparkline_for_node;
use super::{HtmlAnchors, clip_text};
use model::run::Run;
use model::trend::Trend;
use model::verdict::{NodeVerdict, Outcome};

/// Most nodes with a tile and a line; the rest are counted. A tile and a line together take about
/// 200 bytes of the page.
const MOST: usize = 6_000;
/// Most passing nodes whose lines are shown from the start.
const FEW: usize = 40;
/// Most findings named in a node's line.
const NAMED: usize = 6;

/// Nodes that share a rack, a block or a domain.
#[derive(Serialize)]
pub(super) struct HtmlRack<'a> {
    name: String,
    /// Absent if it is not the nodes' domain.
    domain: Option<&'a str>,
    passed: usize,
    tiles: Vec<&'a NodeVerdict>,
    /// Nodes without a tile.
    more: usize,
}

#[derive(Serialize)]
pub(super) struct HtmlNodeLine<'a> {
    #[serde(flatten)]
    verdict: &'a NodeVerdict,
    /// Anchors and names of its findings.
    findings: Vec<(String, String)>,
    findings_more: usize,
    trend: Option<Value>,
}

/// Passing nodes with the same reason, which is written once.
#[derive(Serialize)]
pub(super) struct HtmlPassingGroup<'a> {
    reason: &'a str,
    open: bool,
    rows: Vec<HtmlNodeLine<'a>>,
}

pub(super) struct HtmlFleet<'a> {
    pub(super) racks: Vec<HtmlRack<'a>>,
    /// Nodes that do not pass, the worst first.
    pub(super) troubled: Vec<HtmlNodeLine<'a>>,
    pub(super) passing: Vec<HtmlPassingGroup<'a>>,
    pub(super) more: usize,
    /// The anchors of the lines of nodes, by their names.
    pub(super) places: BTreeMap<&'a str, String>,
}

/// Lays out all nodes.
pub(super) fn build_fleet<'a>(
    run: &'a Run,
    trends: &[Trend],
    findings: &[HtmlFinding<'_>],
    anchors: &mut HtmlAnchors,
) -> HtmlFleet<'a> {
    let mut nodes: Vec<&'a NodeVerdict> = run.verdicts.nodes.iter().collect();
    nodes.sort_by_key(|n| std::cmp::Reverse(n.outcome));
    let shown_nodes = &nodes[..nodes.len().min(MOST)];
    let places: BTreeMap<&'a str, String> = shown_nodes
        .iter()
        .map(|n| (n.node.as_str(), anchors.unique_name("node", n.node.as_str())))
        .collect();
    let mut about: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, finding) in run.verdicts.findings.iter().take(findings.len()).enumerate() {
        if let Some(node) = &finding.locus.node {
            about.entry(node.as_str()).or_default().push(index);
        }
    }
    let mut of_node: BTreeMap<&str, Vec<&Trend>> = BTreeMap::new();
    for trend in trends {
        if let Some(node) = &trend.part.node {
            of_node.entry(node.as_str()).or_default().push(trend);
        }
    }
    let row = |verdict: &'a NodeVerdict| {
        let node = verdict.node.as_str();
        let here = about.get(node).map_or(&[][..], Vec::as_slice);
        let named = here.iter().take(NAMED).map(|&i| &findings[i]);
        HtmlNodeLine {
            verdict,
            findings: named.map(|it| (it.anchor.clone(), it.name.clone())).collect(),
            findings_more: here.len().saturating_sub(NAMED),
            trend: of_node.get(node).and_then(|own| sparkline_for_node(own)),
        }
    };
    let (good, bad): (Vec<&'a NodeVerdict>, Vec<_>) =
        shown_nodes.iter().partition(|n| n.outcome == Outcome::Pass);
    let mut reasons: BTreeMap<&'a str, Vec<HtmlNodeLine<'a>>> = BTreeMap::new();
    for node in &good {
        reasons.entry(&node.reason).or_default().push(row(node));
    }
    let passing = reasons.into_iter().map(|(reason, rows)| HtmlPassingGroup {
        reason,
        open: good.len() <= FEW,
        rows,
    });
    let troubled = bad.iter().map(|n| row(n)).collect();
    let passing = passing.collect();
    HtmlFleet {
        racks: build_racks(run, &places),
        troubled,
        passing,
        more: nodes.len() - shown_nodes.len(),
        places,
    }
}

/// Tiles in the order in which domains and their nodes are claimed: by location,
/// not by outcome, so that two runs are comparable.
fn build_racks<'a>(run: &'a Run, places: &BTreeMap<&str, String>) -> Vec<HtmlRack<'a>> {
    let mut claimed: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for (d, domain) in run.claims.domains.iter().enumerate() {
        for (n, node) in domain.nodes.iter().enumerate() {
            claimed.entry(node.as_str()).or_insert((d, n));
        }
    }
    let mut order: Vec<&'a NodeVerdict> = run.verdicts.nodes.iter().collect();
    let nowhere = (usize::MAX, usize::MAX);
    order.sort_by_key(|n| claimed.get(n.node.as_str()).copied().unwrap_or(nowhere));
    // Domains of one node each would give one heading per tile: their leaf, if claimed, locates
    // them better.
    let mut size: BTreeMap<&str, usize> = BTreeMap::new();
    for node in &order {
        *size.entry(node.domain.as_ref().map_or("", |d| d.as_str())).or_default() += 1;
    }
    let leaves: BTreeMap<&str, &str> = run
        .claims
        .leaves
        .iter()
        .flat_map(|leaf| leaf.nodes.iter().map(|n| (n.as_str(), leaf.name.as_str())))
        .collect();
    let home = |n: &'a NodeVerdict| -> (Option<&'a str>, String) {
        match n.domain.as_ref().map(|d| d.as_str()) {
            Some(domain) if 1 < size.get(domain).copied().unwrap_or(0) => {
                (Some(domain), clip_text(domain))
            }
            _ => match leaves.get(n.node.as_str()) {
                Some(leaf) => (None, format!("leaf {}", clip_text(leaf))),
                None => (None, "single nodes".to_owned()),
            },
        }
    };
    let mut at: BTreeMap<(Option<&str>, String), usize> = BTreeMap::new();
    let mut out: Vec<HtmlRack<'a>> = Vec::new();
    for node in order {
        let home = home(node);
        let index = *at.entry(home.clone()).or_insert_with(|| {
            let (domain, name) = home;
            out.push(HtmlRack { name, domain, passed: 0, tiles: Vec::new(), more: 0 });
            out.len() - 1
        });
        let rack = &mut out[index];
        rack.passed += usize::from(node.outcome == Outcome::Pass);
        if places.contains_key(node.node.as_str()) {
            rack.tiles.push(node);
        } else {
            rack.more += 1;
        }
    }
    out
}
