//! States that tools report: links, fabric registration, IMEX, diagnostics.
//!
//! Link state alone does not prove a working fabric (links train before the fabric is configured),
//! so a good state passes nothing; a bad one is a finding. A state that a tool does not support is
//! unknown, never bad.

use std::collections::BTreeSet;

use super::domain_recordings::DomainRecordings;
use super::finding::{domain_locus, gpu_locus, new_finding, node_locus};
use super::finding_set::FindingSet;
use super::nvlink_matrix;
use crate::thresholds::NvlinkSpec;
use model::finding_class::FindingClass;
use model::finding_rule::RuleKind;
use model::id::{GpuId, NodeName};
use model::tool_facts::{DcgmDiagnostic, GpuFabric, GpuLinks, ImexNode, ImexStatus};
use model::tool_recording::ToolRecording;
use model::unit::Unit;
use model::verdict::{Finding, LocusKind, Outcome};

/// A printed line rate within this share of the nominal one counts as equal.
const SAME_RATE: f64 = 0.98;

/// Judges all reported states of a domain.
pub(super) fn judge(domain: &DomainRecordings<'_>, ledger: &mut FindingSet) {
    for (node, recordings) in &domain.per_node {
        for recording in recordings {
            let facts = &recording.parsed.facts;
            if let Some(expected) = domain.platform.and_then(|p| p.nvlink.as_ref()) {
                for links in &facts.nvlinks {
                    judge_nvlinks(domain, node, recording, links, expected, ledger);
                }
                nvlink_matrix::judge(domain, node, recording, expected, ledger);
            }
            for fabric in &facts.fabric {
                judge_registration(domain, node, recording, fabric, ledger);
            }
            for diagnostic in &facts.diagnostics {
                judge_diagnostic(domain, node, recording, diagnostic, ledger);
            }
        }
    }
    judge_imex(domain, ledger);
}

fn judge_nvlinks(
    domain: &DomainRecordings<'_>,
    node: &NodeName,
    recording: &ToolRecording,
    links: &GpuLinks,
    expected: &NvlinkSpec,
    ledger: &mut FindingSet,
) {
    let gpu = GpuId::new(node.clone(), links.gpu);
    let counted = links.links.iter().filter(|l| l.active.is_some()).count();
    if counted == 0 && !links.all_inactive {
        return;
    }
    let active = links.links.iter().filter(|l| l.active == Some(true)).count();
    // Unreported links may be active, and so may links that a truncated file lacks.
    let inactive = counted - active;
    let must_have = usize::try_from(expected.links).unwrap_or(usize::MAX);
    let most = if is_complete(recording) {
        links.links.len() - inactive
    } else {
        links.links.len().max(must_have) - inactive
    };
    let unreported = most - active;
    let (has, must) =
        (f64::from(u32::try_from(most).unwrap_or(u32::MAX)), f64::from(expected.links));
    if links.all_inactive || most == 0 {
        let rule = RuleKind::Links
            .with_terms("a GPU without any active NVLink is not attached to the fabric");
        let found = new_finding(
            Outcome::Failed,
            FindingClass::NvlinkAbsent,
            gpu_locus(&domain.name, &gpu),
            rule,
        );
        let found = found.with_numbers(0.0, must, Unit::Count);
        let found = found.with_evidence(&recording.file, None, "no active NVLink");
        ledger.add_of_gpu(&gpu, found, "all NVLinks are inactive");
    } else if has < must {
        let down: Vec<String> = links
            .links
            .iter()
            .filter(|l| l.active == Some(false))
            .map(|l| l.link.to_string())
            .collect();
        let which = if down.is_empty() {
            String::new()
        } else {
            format!("; inactive: {}", down.join(", "))
        };
        let at_most = if unreported == 0 { "" } else { "at most " };
        let summary = format!("{at_most}{most} of {} NVLinks are active{which}", expected.links);
        let rule = RuleKind::Links.with_terms("fewer active NVLinks than the platform has");
        let found = new_finding(
            Outcome::Degraded,
            FindingClass::NvlinkInactive,
            gpu_locus(&domain.name, &gpu),
            rule,
        );
        let found = found.with_numbers(has, must, Unit::Count);
        let found = found.with_evidence(&recording.file, None, format!("GPU {gpu}: {summary}"));
        ledger.add_of_gpu(&gpu, found, &summary);
    }
    let Some(line_rate) = expected.line_rate else { return };
    for link in &links.links {
        let Some(rate) = link.rate.filter(|r| *r < line_rate * SAME_RATE) else { continue };
        let summary = format!("NVLink {} runs at {rate} of {line_rate} GB/s", link.link);
        let rule = RuleKind::Links.with_terms("a link that trained below the platform's line rate");
        let found = new_finding(
            Outcome::Degraded,
            FindingClass::NvlinkRate,
            gpu_locus(&domain.name, &gpu),
            rule,
        );
        let found = found.with_numbers(rate, line_rate, Unit::GigabytesPerSecond);
        let found = found.with_evidence(&recording.file, None, format!("GPU {gpu}: {summary}"));
        ledger.add_of_gpu(&gpu, found, &summary);
    }
}

/// In a truncated file, a missing link may only be a missing line.
fn is_complete(recording: &ToolRecording) -> bool {
    !recording.parsed.has_problem(model::parse_output::OutputProblemKind::Truncated)
}

/// Whether a value is absent, N/A, or not supported.
pub(super) fn is_unknown_value(value: Option<&str>) -> bool {
    value.is_none_or(|v| {
        let v = v.trim();
        v.is_empty() || v.eq_ignore_ascii_case("n/a") || v.eq_ignore_ascii_case("not supported")
    })
}

fn judge_registration(
    domain: &DomainRecordings<'_>,
    node: &NodeName,
    recording: &ToolRecording,
    fabric: &GpuFabric,
    ledger: &mut FindingSet,
) {
    let gpu = GpuId::new(node.clone(), fabric.gpu);
    let (state, status) = (fabric.state.as_deref(), fabric.status.as_deref());
    if is_unknown_value(state) {
        return;
    }
    let state = state.unwrap_or("").trim();
    let status_bad =
        !is_unknown_value(status) && !status.unwrap_or("").trim().eq_ignore_ascii_case("success");
    let rule = RuleKind::FabricState
        .with_terms("a GPU takes part once its registration is Completed with Success");
    if state.eq_ignore_ascii_case("in progress") {
        ledger.add_doubt(
            node,
            format!("GPU {gpu}: fabric registration is in progress; measure again"),
        );
    } else if !state.eq_ignore_ascii_case("completed") || status_bad {
        let status = status.unwrap_or("no status");
        let summary = format!("fabric state {state}, status {status}");
        let found = new_finding(
            Outcome::Failed,
            FindingClass::FabricState,
            gpu_locus(&domain.name, &gpu),
            rule,
        );
        let found = found.with_evidence(&recording.file, None, format!("GPU {gpu}: {summary}"));
        ledger.add_of_gpu(&gpu, found, &summary);
    }
    for (key, value) in &fabric.health {
        let (class, outcome) =
            match (key.to_ascii_lowercase().as_str(), value.to_ascii_lowercase().as_str()) {
                ("bandwidth", "degraded") => (FindingClass::FabricHealth, Outcome::Degraded),
                ("route unhealthy", "true" | "yes") => {
                    (FindingClass::FabricHealth, Outcome::Failed)
                }
                ("incorrect configuration", v)
                    if !matches!(v, "none" | "n/a" | "no" | "false" | "not supported") =>
                {
                    (FindingClass::FabricConfiguration, Outcome::Failed)
                }
                ("route recovery in progress" | "access timeout recovery", "true" | "yes") => {
                    ledger.add_doubt(node, format!("GPU {gpu}: {key}: {value}; measure again"));
                    continue;
                }
                _ => continue,
            };
        let summary = format!("the driver reports {key}: {value}");
        let found = new_finding(
            outcome,
            class,
            gpu_locus(&domain.name, &gpu),
            RuleKind::FabricState.with_terms("the driver's own health mask"),
        );
        let found = found.with_evidence(&recording.file, None, format!("GPU {gpu}: {summary}"));
        ledger.add_of_gpu(&gpu, found, &summary);
    }
}

/// The state in one IMEX table. It names peers by address, which may match no known node.
struct ImexTable<'a> {
    /// The queried node; unknown for a run across nodes.
    queried_node: Option<&'a NodeName>,
    recording: &'a ToolRecording,
    state: &'a ImexStatus,
    /// The nodes that it reports as ready.
    ready: BTreeSet<NodeName>,
    /// The nodes that it reports in any other state.
    gone: BTreeSet<NodeName>,
}

impl ImexTable<'_> {
    /// Most of the other nodes are gone, and no other table reports the queried node as ready. The
    /// queried node itself may be cut off and print peers from its configuration that it never
    /// reached.
    fn is_isolated(&self, tables: &[ImexTable<'_>]) -> bool {
        let reported = self.state.nodes.iter().filter(|member| member.status.is_some()).count();
        let gone = self.state.nodes.iter().filter(|member| is_gone(member)).count();
        let others = reported.saturating_sub(1);
        let is_known = |queried: &NodeName| {
            tables.iter().any(|other| {
                other.queried_node != self.queried_node && other.ready.contains(queried)
            })
        };
        1 < gone && others < 2 * gone && !self.queried_node.is_some_and(is_known)
    }
}

/// A member without a state is neither ready nor gone.
fn is_gone(member: &ImexNode) -> bool {
    member.status.as_deref().is_some_and(|status| !status.eq_ignore_ascii_case("ready"))
}

/// The node of this domain that a member names.
fn member_node(domain: &DomainRecordings<'_>, member: &ImexNode) -> Option<NodeName> {
    let names = [member.host_name.as_deref(), member.host.as_deref()];
    let mut known = names.into_iter().flatten().map(|name| domain.node_of_address(name));
    known.find(|node| domain.nodes.contains(node))
}

/// The nodes that are missing from IMEX. A table is the view of its queried node: a peer that
/// another table reports as ready is cleared, two nodes that report each other as gone blame
/// neither, and an isolated node's table blames none.
fn find_missing_peers(tables: &[ImexTable<'_>]) -> BTreeSet<NodeName> {
    let trusted: Vec<&ImexTable<'_>> = tables.iter().filter(|it| !it.is_isolated(tables)).collect();
    let is_missing = |node: &&NodeName| {
        let own = Some(*node);
        let against: BTreeSet<Option<&NodeName>> =
            trusted.iter().filter(|it| it.gone.contains(*node)).map(|it| it.queried_node).collect();
        let is_cleared = tables.iter().any(|it| {
            it.ready.contains(*node)
                && it.queried_node != own
                && !against.contains(&it.queried_node)
        });
        let is_mutual = |other: &NodeName| {
            tables.iter().any(|it| {
                it.queried_node == own && it.queried_node != Some(other) && it.gone.contains(other)
            })
        };
        let only = against.iter().copied().reduce(|_, _| None).flatten();
        !against.is_empty() && !is_cleared && !only.is_some_and(is_mutual)
    };
    trusted.iter().flat_map(|it| &it.gone).filter(is_missing).cloned().collect()
}

/// Judges the IMEX domain from all its tables.
fn judge_imex(domain: &DomainRecordings<'_>, ledger: &mut FindingSet) {
    let own =
        domain.per_node.iter().flat_map(|(node, rs)| rs.iter().map(move |r| (Some(node), *r)));
    let across = domain.across_nodes.iter().map(|r| (None, *r));
    let tables: Vec<ImexTable<'_>> = own
        .chain(across)
        .filter_map(|(queried, recording)| {
            let state = recording.parsed.facts.imex.as_ref()?;
            let (mut ready, mut gone) = (BTreeSet::new(), BTreeSet::new());
            for member in state.nodes.iter().filter(|member| member.status.is_some()) {
                let side = if is_gone(member) { &mut gone } else { &mut ready };
                side.extend(member_node(domain, member));
            }
            Some(ImexTable { queried_node: queried, recording, state, ready, gone })
        })
        .collect();
    let missing = find_missing_peers(&tables);
    let mut domain_findings: Vec<(&ImexTable<'_>, Finding)> = Vec::new();
    for table in &tables {
        domain_findings
            .extend(judge_imex_table(domain, table, &missing, ledger).map(|found| (table, found)));
    }
    // A domain state that only one node reports concerns only that node.
    let queried: BTreeSet<Option<&NodeName>> =
        domain_findings.iter().map(|(table, _)| table.queried_node).collect();
    let only = queried.into_iter().reduce(|_, _| None).flatten();
    for (_, mut found) in domain_findings {
        if let Some(node) = only.filter(|_| 1 < tables.len()) {
            found.locus.node = Some(node.clone());
        }
        ledger.add(found);
    }
}

/// Findings from one table: the missing nodes, and the state of the domain.
fn judge_imex_table(
    domain: &DomainRecordings<'_>,
    table: &ImexTable<'_>,
    missing: &BTreeSet<NodeName>,
    ledger: &mut FindingSet,
) -> Option<Finding> {
    let ImexTable { recording, state, .. } = table;
    let rule = RuleKind::Imex
        .with_terms("handles can be exported only between nodes that are READY and CONNECTED");
    let up = state.status.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("up"));
    let mut others = Vec::new();
    for member in state.nodes.iter().filter(|member| is_gone(member)) {
        let name = member.host_name.as_deref().or(member.host.as_deref()).unwrap_or("?");
        let status = member.status.as_deref().unwrap_or("?");
        if let Some(node) = member_node(domain, member).filter(|node| missing.contains(node)) {
            let summary = format!("IMEX: {name} is {status}");
            let found = new_finding(
                Outcome::Failed,
                FindingClass::ImexPeerMissing,
                node_locus(&domain.name, &node),
                &rule,
            );
            ledger.add(found.with_summary(summary.clone()).with_evidence(
                &recording.file,
                None,
                summary,
            ));
        } else {
            others.push(format!("{name} ({status})"));
        }
    }
    if !others.is_empty() || (state.status.is_some() && !up) {
        let status = state.status.as_deref().unwrap_or("?");
        let members =
            if others.is_empty() { String::new() } else { format!(": {}", others.join(", ")) };
        let summary = format!("the IMEX domain of {} is {status}{members}", domain.name);
        let outcome =
            if status.eq_ignore_ascii_case("down") { Outcome::Failed } else { Outcome::Degraded };
        let locus = domain_locus(LocusKind::Domain, &domain.name);
        let found = new_finding(outcome, FindingClass::ImexDomain, locus, rule);
        return Some(found.with_summary(summary.clone()).with_evidence(
            &recording.file,
            None,
            summary,
        ));
    }
    None
}

/// dcgmi tests that check the software around the GPU instead of the GPU.
fn is_deployment(diagnostic: &DcgmDiagnostic) -> bool {
    diagnostic.category.as_deref().is_some_and(|c| c.eq_ignore_ascii_case("deployment"))
}

fn judge_diagnostic(
    domain: &DomainRecordings<'_>,
    node: &NodeName,
    recording: &ToolRecording,
    diagnostic: &DcgmDiagnostic,
    ledger: &mut FindingSet,
) {
    if diagnostic.status != "fail" {
        return;
    }
    let messages = diagnostic.messages.join("; ");
    let summary = format!(
        "dcgmi: {} failed{}{messages}",
        diagnostic.test,
        if messages.is_empty() { "" } else { ": " }
    );
    if is_deployment(diagnostic) {
        ledger.add_doubt(node, summary);
        return;
    }
    let locus = match diagnostic.gpu {
        Some(gpu) => gpu_locus(&domain.name, &GpuId::new(node.clone(), gpu)),
        None => node_locus(&domain.name, node),
    };
    let rule = RuleKind::Diagnostic.with_terms("dcgmi reports a failed hardware test");
    let found = new_finding(Outcome::Failed, FindingClass::DiagnosticFailed, locus, rule)
        .with_summary(summary.clone());
    ledger.add(found.with_evidence(&recording.file, Some(&diagnostic.test), summary));
}
