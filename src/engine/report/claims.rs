//! Claims for a terminal: who says what of which domain, and who disagrees.
//!
//! Shows what `inventory::reconcile` found and weighs nothing itself.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fmt::Write as _;

use anstyle::AnsiColor;
use anstyle::Style;

use super::TerminalStyle;
use super::page::Page;
use super::plain::counted;
use super::plain::listed;
use super::plain::plain;
use model::claims::Assertion;
use model::claims::ClaimedDomain;
use model::claims::Claims;
use model::disagreement::Disagreement;
use model::disagreement::Severity;
use model::hostlist;
use model::id::NodeName;
use model::said::Basis;
use model::said::GroupKind;
use readers::claims::reconcile::diff::Change;

/// Entries of one list that are shown before the rest is only counted.
const MOST: usize = 40;

/// All of it: domains, leaves, rails, disagreements, sources.
pub fn render(claims: &Claims, style: &TerminalStyle) -> String {
    let mut page = Page::new(style);
    opening(&mut page, claims);
    domains(&mut page, claims);
    network(&mut page, claims);
    if !claims.disagreements.is_empty() {
        page.section(&format!("Disagreements ({})", claims.disagreements.len()));
        for disagreement in claims.disagreements.iter().take(MOST) {
            self::disagreement(&mut page, disagreement);
        }
        more(&mut page, claims.disagreements.len());
    }
    marked(&mut page, claims);
    sources(&mut page, claims);
    page.out
}

/// What has changed since an earlier moment.
pub fn changes(changes: &[Change], style: &TerminalStyle) -> String {
    let mut page = Page::new(style);
    if changes.is_empty() {
        page.paragraph("", "nothing has changed", 0);
    } else {
        page.styled(Style::new().bold(), &counted(changes.len(), "change", "changes"));
        page.end();
    }
    for change in changes {
        page.paragraph("- ", &plain(&change.says), 2);
    }
    page.out
}

fn opening(page: &mut Page, claims: &Claims) {
    let placed = claims.domains.iter().flat_map(|d| &d.nodes);
    let nodes: BTreeSet<&NodeName> = placed.chain(claims.nodes.keys()).collect();
    let mut text = format!(
        "{}, {}",
        counted(claims.domains.len(), "domain", "domains"),
        counted(nodes.len(), "node", "nodes")
    );
    if !claims.sources.is_empty() {
        let _ = write!(text, ", said by {}", counted(claims.sources.len(), "source", "sources"));
        for severity in [Severity::Contradiction, Severity::Doubt, Severity::Note] {
            let count = claims.disagreements.iter().filter(|d| d.severity == severity).count();
            if 0 < count {
                let word = severity.as_str();
                let _ = write!(text, ", {}", counted(count, word, &format!("{word}s")));
            }
        }
        let unread: usize = claims.sources.iter().map(|source| source.problems.len()).sum();
        if 0 < unread {
            let _ = write!(text, ", {} with sources", counted(unread, "problem", "problems"));
        }
    }
    page.styled(Style::new().bold(), &text);
    page.end();
}

fn domains(page: &mut Page, claims: &Claims) {
    if claims.domains.is_empty() {
        return;
    }
    page.section(&format!("Domains ({})", claims.domains.len()));
    let said_by = supporters(claims);
    for domain in claims.domains.iter().take(MOST) {
        let nodes = hostlist::fold(domain.nodes.iter().map(|n| n.as_str()));
        let mut text = format!("{}, {nodes}", counted(domain.nodes.len(), "node", "nodes"));
        if let Some(platform) = &domain.platform {
            let _ = write!(text, ", {platform}");
        }
        if let Some(gpus) = domain.gpus_per_node {
            let _ = write!(text, ", {} per node", counted(gpus as usize, "GPU", "GPUs"));
        }
        if let Some(nic) = &domain.nic {
            let _ = write!(text, ", NICs {nic}");
        }
        page.paragraph("", &plain(&format!("{}: {text}", domain.name)), 2);
        for line in said_by.get(domain.name.as_str()).into_iter().flatten() {
            page.faint(&plain(line), 6);
        }
    }
    more(page, claims.domains.len());
}

/// For every measured domain, who says the same of its nodes, and who says it
/// only in part.
fn supporters(claims: &Claims) -> BTreeMap<&str, Vec<String>> {
    let owner: BTreeMap<&NodeName, usize> = claims
        .domains
        .iter()
        .enumerate()
        .flat_map(|(at, domain)| domain.nodes.iter().map(move |node| (node, at)))
        .collect();
    let mut lines: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for assertion in &claims.assertions {
        let group = &assertion.group;
        if group.kind != GroupKind::Domain || !group.in_force {
            continue;
        }
        let mut shared: BTreeMap<usize, usize> = BTreeMap::new();
        for node in &group.nodes {
            if let Some(at) = owner.get(node) {
                *shared.entry(*at).or_default() += 1;
            }
        }
        for (at, count) in shared {
            let domain = &claims.domains[at];
            let line = supporter(assertion, domain, count);
            lines.entry(domain.name.as_str()).or_default().push(line);
        }
    }
    lines
}

fn supporter(assertion: &Assertion, domain: &ClaimedDomain, shared: usize) -> String {
    let group = &assertion.group;
    let how = match &group.basis {
        Basis::Asserted => "asserted".to_owned(),
        Basis::Copied { from } => format!("copied from {from}, so no corroboration"),
        Basis::Reported => "reported by the driver".to_owned(),
        Basis::Measured => "measured".to_owned(),
    };
    let extent = if shared == domain.nodes.len() && shared == group.nodes.len() {
        "the same nodes".to_owned()
    } else {
        format!("{shared} of these {}, {} in all", domain.nodes.len(), group.nodes.len())
    };
    let since = group.since.as_ref().map(|since| format!(" since {since}")).unwrap_or_default();
    format!("{} {}: {extent}, {how}{since} [{}]", group.scheme, group.name, assertion.source + 1)
}

fn network(page: &mut Page, claims: &Claims) {
    // Leaves of nodes that no domain has are measured by nobody, and still said.
    let said = claims.assertions.iter().map(|assertion| &assertion.group);
    let said = said.filter(|group| group.kind == GroupKind::Leaf && group.in_force);
    let leaves: Vec<(&str, &[NodeName])> = if claims.leaves.is_empty() {
        said.map(|group| (group.name.as_str(), group.nodes.as_slice())).collect()
    } else {
        claims.leaves.iter().map(|leaf| (leaf.name.as_str(), leaf.nodes.as_slice())).collect()
    };
    if !leaves.is_empty() {
        page.section(&format!("Leaves ({})", leaves.len()));
        for (name, nodes) in leaves.iter().take(MOST) {
            let folded = hostlist::fold(nodes.iter().map(|n| n.as_str()));
            let text = format!("{name}: {}, {folded}", counted(nodes.len(), "node", "nodes"));
            page.paragraph("", &plain(&text), 2);
        }
        more(page, leaves.len());
    }
    if !claims.rails.is_empty() {
        page.section(&format!("Rails ({})", claims.rails.len()));
        for rail in &claims.rails {
            let said = [("device", &rail.device), ("network", &rail.network), ("rdma", &rail.rdma)];
            let said: Vec<String> = said
                .iter()
                .filter_map(|(key, value)| Some(format!("{key} {}", value.as_ref()?)))
                .collect();
            page.paragraph(&format!("rail {}: ", plain(&rail.name)), &plain(&said.join(", ")), 2);
        }
    }
}

fn disagreement(page: &mut Page, disagreement: &Disagreement) {
    let colour = match disagreement.severity {
        Severity::Contradiction => Style::new().bold().fg_color(Some(AnsiColor::Red.into())),
        Severity::Doubt => Style::new().fg_color(Some(AnsiColor::Yellow.into())),
        Severity::Note => Style::new(),
    };
    page.out.push_str("  ");
    page.styled(colour, disagreement.severity.as_str());
    let domain = disagreement.domain.as_ref().map(|domain| format!(", domain {domain}"));
    let _ = write!(
        page.out,
        "  {}{}",
        plain(disagreement.class.as_str()),
        plain(&domain.unwrap_or_default())
    );
    page.end();
    page.paragraph("", &plain(&disagreement.summary), 6);
    for side in &disagreement.sides {
        let at = side.at.as_ref().map(|at| format!(", {at}")).unwrap_or_default();
        page.paragraph("- ", &plain(&format!("{}{at}: {}", side.source, side.says)), 6);
    }
    if let Some(remedy) = &disagreement.remedy {
        page.paragraph("do: ", &plain(remedy), 6);
    }
}

/// Nodes that somebody asks to be left alone, or that are out of service.
fn marked(page: &mut Page, claims: &Claims) {
    let marked: Vec<String> = claims
        .nodes
        .iter()
        .filter(|(_, said)| !said.opt_out.is_empty())
        .map(|(node, said)| format!("{node}: {}", said.opt_out.join(", ")))
        .collect();
    if !marked.is_empty() {
        page.section("Asked to be left alone");
        page.paragraph("", &plain(&listed(&marked, MOST)), 2);
    }
}

fn sources(page: &mut Page, claims: &Claims) {
    if claims.sources.is_empty() {
        return;
    }
    page.section(&format!("Sources ({})", claims.sources.len()));
    for (at, read) in claims.sources.iter().enumerate() {
        let said = said_by(claims, at);
        page.paragraph(&format!("[{}] ", at + 1), &plain(&format!("{}: {said}", read.source)), 2);
        for problem in &read.problems {
            let text = format!("{}: {problem}", problem.kind.words());
            page.paragraph("- ", &plain(&text), 6);
        }
        for note in &read.notes {
            page.faint(&plain(note), 6);
        }
    }
}

/// How many groups of which kind a source names.
fn said_by(claims: &Claims, source: usize) -> String {
    let mut counts: BTreeMap<GroupKind, (usize, &str)> = BTreeMap::new();
    for assertion in claims.assertions.iter().filter(|a| a.source == source) {
        let group = &assertion.group;
        counts.entry(group.kind).or_insert((0, &group.scheme)).0 += 1;
    }
    let parts: Vec<String> = counts
        .into_iter()
        .map(|(kind, (count, scheme))| match kind {
            GroupKind::Domain => counted(count, scheme, &format!("{scheme}s")),
            GroupKind::Imex => counted(count, "IMEX domain", "IMEX domains"),
            GroupKind::Leaf => counted(count, "leaf", "leaves"),
            GroupKind::Switch => counted(count, "switch above leaves", "switches above leaves"),
            GroupKind::Rack => counted(count, "rack", "racks"),
            GroupKind::Partition => counted(count, "partition", "partitions"),
        })
        .collect();
    if parts.is_empty() { "no group of nodes".to_owned() } else { parts.join(", ") }
}

fn more(page: &mut Page, all: usize) {
    if MOST < all {
        page.faint(&format!("and {} more, see --json", all - MOST), 2);
    }
}
