//! The members of a map that options ask for, by node or by domain.
//!
//! A name that the run does not have is refused: passed over in silence, a mistyped node
//! would stay without its label, and nobody would know.

use std::collections::BTreeSet;

use super::Options;
use super::Refused;
use super::refused;
use crate::place::map::Domain;
use crate::place::map::Member;
use crate::place::map::Verified;
use model::hostlist;
use model::id::NodeName;
use model::text::clean;

/// The members that are asked for, in order; where nothing is asked for, all.
pub(super) fn members<'m>(
    map: &'m Verified,
    options: &Options,
) -> Result<Vec<(&'m NodeName, &'m Member)>, Refused> {
    if let Some(nodes) = &options.nodes {
        are_known(map, nodes)?;
    }
    let asked = options.domain.as_deref().map(|name| domain(map, name)).transpose()?;
    let is_asked = |(node, member): &(&NodeName, &Member)| {
        let by_name = options.nodes.as_ref().is_none_or(|nodes| nodes.contains(*node));
        let by_domain = asked.is_none_or(|it| member.domain.as_deref() == Some(it.name.as_str()));
        by_name && by_domain
    };
    Ok(map.members.iter().filter(is_asked).collect())
}

/// Refuses nodes that the run does not have.
pub(super) fn are_known(map: &Verified, nodes: &BTreeSet<NodeName>) -> Result<(), Refused> {
    let strange: Vec<&str> =
        nodes.iter().filter(|it| !map.members.contains_key(*it)).map(NodeName::as_str).collect();
    if strange.is_empty() {
        return Ok(());
    }
    refused(format!("--nodes: the run has no {}", clean(&hostlist::fold(strange))))
}

/// The domain of this name.
pub(super) fn domain<'m>(map: &'m Verified, name: &str) -> Result<&'m Domain, Refused> {
    match map.domain(name) {
        Some(domain) => Ok(domain),
        None => refused(format!("--domain {}: the run has {}", clean(name), domains(map))),
    }
}

/// The names of all domains.
pub(super) fn domains(map: &Verified) -> String {
    let names: Vec<&str> = map.domains.iter().map(|domain| domain.name.as_str()).collect();
    clean(&names.join(", "))
}
