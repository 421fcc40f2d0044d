//! Claims for a terminal: the sources of each domain, and their disagreements.
//!
//! Displays the result of `inventory::reconcile` and weighs nothing itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};

use super::TerminalStyle;
use super::plain_text::{count_noun, list_names, to_plain};
use super::terminal_page::TerminalPage;
use model::claim_index::ClaimIndex;
use model::claims::{ClaimedDomain, Claims, GroupAssertion};
use model::disagreement::{Disagreement, DisagreementSeverity};
use model::hostlist;
use model::id::{DomainName, NodeName};
use model::source_report::{ClaimBasis, NodeGroupKind};
use readers::claims::reconcile::diff::ClaimsChange;

/// Most entries of one list; the rest are counted.
const MOST: usize = 40;

/// Renders domains, leaves, rails, disagreements and sources.
pub fn render(claims: &Claims, style: &TerminalStyle) -> String {
    let mut page = TerminalPage::new(style);
    write_opening(&mut page, claims);
    write_domains(&mut page, claims);
    write_network(&mut page, claims);
    if !claims.disagreements.is_empty() {
        page.section(&format!("Disagreements ({})", claims.disagreements.len()));
        for disagreement in claims.disagreements.iter().take(MOST) {
            write_disagreement(&mut page, disagreement);
        }
        write_more(&mut page, claims.disagreements.len());
    }
    write_marked_nodes(&mut page, claims);
    write_sources(&mut page, claims);
    page.out
}

/// Renders the changes since an earlier time.
pub fn render_changes(changes: &[ClaimsChange], style: &TerminalStyle) -> String {
    let mut page = TerminalPage::new(style);
    if changes.is_empty() {
        page.paragraph("", "nothing has changed", 0);
    } else {
        page.styled(Style::new().bold(), &count_noun(changes.len(), "change", "changes"));
        page.end_line();
    }
    for change in changes {
        page.paragraph("- ", &to_plain(&change.text), 2);
    }
    page.out
}

fn write_opening(page: &mut TerminalPage, claims: &Claims) {
    let placed = claims.domains.iter().flat_map(|d| &d.nodes);
    let nodes: BTreeSet<&NodeName> = placed.chain(claims.nodes.keys()).collect();
    let mut text = format!(
        "{}, {}",
        count_noun(claims.domains.len(), "domain", "domains"),
        count_noun(nodes.len(), "node", "nodes")
    );
    if !claims.sources.is_empty() {
        let _ =
            write!(text, ", reported by {}", count_noun(claims.sources.len(), "source", "sources"));
        for severity in [
            DisagreementSeverity::Contradiction,
            DisagreementSeverity::Doubt,
            DisagreementSeverity::Note,
        ] {
            let count = claims.disagreements.iter().filter(|d| d.severity == severity).count();
            if 0 < count {
                let word = severity.as_str();
                let _ = write!(text, ", {}", count_noun(count, word, &format!("{word}s")));
            }
        }
        let unread: usize = claims.sources.iter().map(|source| source.problems.len()).sum();
        if 0 < unread {
            let _ = write!(text, ", {} with sources", count_noun(unread, "problem", "problems"));
        }
    }
    page.styled(Style::new().bold(), &text);
    page.end_line();
}

fn write_domains(page: &mut TerminalPage, claims: &Claims) {
    if claims.domains.is_empty() {
        return;
    }
    page.section(&format!("Domains ({})", claims.domains.len()));
    let supporters = group_supporters(claims);
    for domain in claims.domains.iter().take(MOST) {
        let nodes = hostlist::fold(domain.nodes.iter().map(|n| n.as_str()));
        let mut text = format!("{}, {nodes}", count_noun(domain.nodes.len(), "node", "nodes"));
        if let Some(platform) = &domain.platform {
            let _ = write!(text, ", {platform}");
        }
        if let Some(gpus) = domain.gpus_per_node {
            let _ = write!(text, ", {} per node", count_noun(gpus as usize, "GPU", "GPUs"));
        }
        if let Some(nic) = &domain.nic {
            let _ = write!(text, ", NICs {nic}");
        }
        page.paragraph("", &to_plain(&format!("{}: {text}", domain.name)), 2);
        for line in supporters.get(domain.name.as_str()).into_iter().flatten() {
            page.faint(&to_plain(line), 6);
        }
    }
    write_more(page, claims.domains.len());
}

/// The sources that claim the nodes of each measured domain, all of them or a part.
fn group_supporters(claims: &Claims) -> BTreeMap<&str, Vec<String>> {
    let claim_index = ClaimIndex::from_claims(claims);
    let mut lines: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for assertion in &claims.assertions {
        let group = &assertion.group;
        if group.kind != NodeGroupKind::Domain || !group.in_force {
            continue;
        }
        let homes = group.nodes.iter().filter_map(|node| claim_index.domain_of(node));
        let mut shared: BTreeMap<&DomainName, (&ClaimedDomain, usize)> = BTreeMap::new();
        for domain in homes {
            shared.entry(&domain.name).or_insert((domain, 0)).1 += 1;
        }
        for (domain, count) in shared.into_values() {
            let line = format_supporter(assertion, domain, count);
            lines.entry(domain.name.as_str()).or_default().push(line);
        }
    }
    lines
}

fn format_supporter(assertion: &GroupAssertion, domain: &ClaimedDomain, shared: usize) -> String {
    let group = &assertion.group;
    let how = match &group.basis {
        ClaimBasis::Asserted => "asserted".to_owned(),
        ClaimBasis::Copied { from } => format!("copied from {from}, so not independent"),
        ClaimBasis::Reported => "reported by the driver".to_owned(),
        ClaimBasis::Measured => "measured".to_owned(),
    };
    let extent = if shared == domain.nodes.len() && shared == group.nodes.len() {
        "the same nodes".to_owned()
    } else {
        format!("{shared} of these {}, {} in all", domain.nodes.len(), group.nodes.len())
    };
    let since = group.since.as_ref().map(|since| format!(" since {since}")).unwrap_or_default();
    format!("{} {}: {extent}, {how}{since} [{}]", group.scheme, group.name, assertion.source + 1)
}

fn write_network(page: &mut TerminalPage, claims: &Claims) {
    // Leaves whose nodes are in no domain are not measured, but listed.
    let claimed = claims.assertions.iter().map(|assertion| &assertion.group);
    let claimed = claimed.filter(|group| group.kind == NodeGroupKind::Leaf && group.in_force);
    let leaves: Vec<(&str, &[NodeName])> = if claims.leaves.is_empty() {
        claimed.map(|group| (group.name.as_str(), group.nodes.as_slice())).collect()
    } else {
        claims.leaves.iter().map(|leaf| (leaf.name.as_str(), leaf.nodes.as_slice())).collect()
    };
    if !leaves.is_empty() {
        page.section(&format!("Leaves ({})", leaves.len()));
        for (name, nodes) in leaves.iter().take(MOST) {
            let folded = hostlist::fold(nodes.iter().map(|n| n.as_str()));
            let text = format!("{name}: {}, {folded}", count_noun(nodes.len(), "node", "nodes"));
            page.paragraph("", &to_plain(&text), 2);
        }
        write_more(page, leaves.len());
    }
    if !claims.rails.is_empty() {
        page.section(&format!("Rails ({})", claims.rails.len()));
        for rail in &claims.rails {
            let values =
                [("device", &rail.device), ("network", &rail.network), ("rdma", &rail.rdma)];
            let values: Vec<String> = values
                .iter()
                .filter_map(|(key, value)| Some(format!("{key} {}", value.as_ref()?)))
                .collect();
            page.paragraph(
                &format!("rail {}: ", to_plain(&rail.name)),
                &to_plain(&values.join(", ")),
                2,
            );
        }
    }
}

fn write_disagreement(page: &mut TerminalPage, disagreement: &Disagreement) {
    let colour = match disagreement.severity {
        DisagreementSeverity::Contradiction => {
            Style::new().bold().fg_color(Some(AnsiColor::Red.into()))
        }
        DisagreementSeverity::Doubt => Style::new().fg_color(Some(AnsiColor::Yellow.into())),
        DisagreementSeverity::Note => Style::new(),
    };
    page.out.push_str("  ");
    page.styled(colour, disagreement.severity.as_str());
    let domain = disagreement.domain.as_ref().map(|domain| format!(", domain {domain}"));
    let _ = write!(
        page.out,
        "  {}{}",
        to_plain(disagreement.class.as_str()),
        to_plain(&domain.unwrap_or_default())
    );
    page.end_line();
    page.paragraph("", &to_plain(&disagreement.summary), 6);
    for side in &disagreement.sides {
        let at = side.at.as_ref().map(|at| format!(", {at}")).unwrap_or_default();
        page.paragraph("- ", &to_plain(&format!("{}{at}: {}", side.source, side.text)), 6);
    }
    if let Some(remedy) = &disagreement.remedy {
        page.paragraph("do: ", &to_plain(remedy), 6);
    }
}

/// Nodes that a claim excludes, or that are out of service.
fn write_marked_nodes(page: &mut TerminalPage, claims: &Claims) {
    let marked: Vec<String> = claims
        .nodes
        .iter()
        .filter(|(_, node)| !node.opt_out.is_empty())
        .map(|(name, node)| format!("{name}: {}", node.opt_out.join(", ")))
        .collect();
    if !marked.is_empty() {
        page.section("Nodes to leave alone");
        page.paragraph("", &to_plain(&list_names(&marked, MOST)), 2);
    }
}

fn write_sources(page: &mut TerminalPage, claims: &Claims) {
    if claims.sources.is_empty() {
        return;
    }
    page.section(&format!("Sources ({})", claims.sources.len()));
    for (at, read) in claims.sources.iter().enumerate() {
        let groups = count_groups(claims, at);
        page.paragraph(
            &format!("[{}] ", at + 1),
            &to_plain(&format!("{}: {groups}", read.source)),
            2,
        );
        for problem in &read.problems {
            let text = format!("{}: {problem}", problem.kind.label());
            page.paragraph("- ", &to_plain(&text), 6);
        }
        for note in &read.notes {
            page.faint(&to_plain(note), 6);
        }
    }
}

/// The number of groups of each kind that a source names.
fn count_groups(claims: &Claims, source: usize) -> String {
    let mut counts: BTreeMap<NodeGroupKind, (usize, &str)> = BTreeMap::new();
    for assertion in claims.assertions.iter().filter(|a| a.source == source) {
        let group = &assertion.group;
        counts.entry(group.kind).or_insert((0, &group.scheme)).0 += 1;
    }
    let parts: Vec<String> = counts
        .into_iter()
        .map(|(kind, (count, scheme))| match kind {
            NodeGroupKind::Domain => count_noun(count, scheme, &format!("{scheme}s")),
            NodeGroupKind::Imex => count_noun(count, "IMEX domain", "IMEX domains"),
            NodeGroupKind::Leaf => count_noun(count, "leaf", "leaves"),
            NodeGroupKind::Switch => {
                count_noun(count, "switch above leaves", "switches above leaves")
            }
            NodeGroupKind::Rack => count_noun(count, "rack", "racks"),
            NodeGroupKind::Partition => count_noun(count, "partition", "partitions"),
        })
        .collect();
    if parts.is_empty() { "no group of nodes".to_owned() } else { parts.join(", ") }
}

fn write_more(page: &mut TerminalPage, all: usize) {
    if MOST < all {
        page.faint(&format!("and {} more, see --json", all - MOST), 2);
    }
}
