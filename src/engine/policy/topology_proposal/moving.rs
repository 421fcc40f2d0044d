//! Moving nodes between blocks: who asks for it, and how it is done at run time.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;

use super::{SlurmVersion, TopologyForm, TopologyProposal, block_groups};
use crate::policy::class_actions::MeasuredGroups;
use model::action::WithheldAction;
use model::claims::Claims;
use model::finding_class::FindingClass;
use model::hostlist;
use model::id::{DomainName, NodeName};
use model::node_update::NodeUpdate;
use model::verdict::{LocusKind, Verdicts};

/// What Slurm calls the one topology of a `topology.conf`.
pub(super) const OF_CONF: &str = "default";

/// Which nodes verdicts move to which domain: only where a confirmed finding says
/// that the node is not where it is claimed, and a run measured it together with
/// nodes of one other domain and none of its own. That it is not in the one does
/// not say that it is in the other.
pub fn asked(verdicts: &Verdicts, fleet: &Claims) -> (BTreeMap<NodeName, String>, Vec<NotMoved>) {
    let mut moves: BTreeMap<NodeName, String> = BTreeMap::new();
    let mut withheld = Vec::new();
    let met = MeasuredGroups::from_claims(fleet);
    for finding in
        verdicts.findings.iter().filter(|finding| finding.class == FindingClass::WrongDomain)
    {
        let locus = &finding.locus;
        let node = locus.node.as_ref().filter(|_| locus.kind == LocusKind::Node);
        match place(node, finding.confirmed, &met) {
            Ok((node, domain)) => {
                moves.insert(node.clone(), domain.to_string());
            }
            Err(why) => withheld.push(NotMoved {
                node: node.cloned(),
                withheld: WithheldAction::new(locus.to_string(), why),
            }),
        }
    }
    (moves, withheld)
}

/// A finding that could have moved a node and does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotMoved {
    /// The node that is in the wrong domain, where that is known.
    pub node: Option<NodeName>,
    /// What it is about, and why it moves nothing.
    pub withheld: WithheldAction,
}

/// Where a node that is not at home is.
fn place<'f>(
    node: Option<&'f NodeName>,
    confirmed: bool,
    met: &MeasuredGroups<'f>,
) -> Result<(&'f NodeName, &'f DomainName), String> {
    let node = node.ok_or("which of the two nodes is in the wrong domain is not known")?;
    if !confirmed {
        return Err("no second measurement confirmed it".to_owned());
    }
    let at_home = |it: &NodeName| it != node && met.is_home_of(node, it);
    let seen = met.groups_elsewhere(node).into_iter();
    let seen = seen.filter(|(told, _)| !told.group.nodes.iter().any(at_home));
    let seen: BTreeSet<&DomainName> = seen.map(|(_, domain)| &domain.name).collect();
    match Vec::from_iter(seen).as_slice() {
        [domain] => Ok((node, *domain)),
        [] => Err("no run measured it together with nodes of another domain: which block it \
                   belongs in is not known"
            .to_owned()),
        several => {
            let names: Vec<&str> = several.iter().map(|name| name.as_str()).collect();
            Err(format!(
                "it was measured together with nodes of several domains: {}",
                names.join(", ")
            ))
        }
    }
}

/// The same at run time, without the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AtOnce {
    /// Who gets which change; nodes of one block share a call.
    pub changes: Vec<(Vec<NodeName>, NodeUpdate)>,
    /// The commands.
    pub commands: Vec<Vec<String>>,
    /// What a person must know.
    pub warning: String,
}

/// How the moves of a proposal are made at run time; an error in words where
/// this version cannot.
pub fn at_once(
    proposal: &TopologyProposal,
    version: Option<SlurmVersion>,
) -> Result<AtOnce, String> {
    if !version.is_some_and(SlurmVersion::has_yaml) {
        return Err("a node can be moved at run time from Slurm 25.05 on".to_owned());
    }
    let mut by_block: BTreeMap<&str, Vec<NodeName>> = BTreeMap::new();
    let said = proposal.form.parse(&proposal.before);
    for moved in &proposal.moved {
        let elsewhere = block_groups(&said)
            .find(|group| group.topology != proposal.topology && group.nodes.contains(&moved.node));
        // Slurm replaces all places of a node with those that are named.
        if let Some(other) = elsewhere {
            return Err(format!(
                "{} is in topology {} too, which it would leave",
                moved.node,
                other.topology.as_deref().unwrap_or(OF_CONF)
            ));
        }
        by_block.entry(&moved.to).or_default().push(moved.node.clone());
    }
    let name = match proposal.form {
        TopologyForm::Yaml => proposal.topology.as_deref().unwrap_or(OF_CONF),
        TopologyForm::Conf => OF_CONF,
    };
    let mut at_once = AtOnce {
        changes: Vec::new(),
        commands: Vec::new(),
        warning: "this lasts until the next `scontrol reconfigure` or restart of slurmctld; what \
                  should last belongs in the file"
            .to_owned(),
    };
    for (block, nodes) in by_block {
        let place = format!("{name}:{block}");
        let list = hostlist::fold(nodes.iter().map(NodeName::as_str));
        at_once.commands.push(
            ["scontrol", "update", &format!("NodeName={list}"), &format!("Topology={place}")]
                .map(str::to_owned)
                .to_vec(),
        );
        at_once
            .changes
            .push((nodes, NodeUpdate { topology: Some(place), ..NodeUpdate::default() }));
    }
    Ok(at_once)
}
