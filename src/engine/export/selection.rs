//! The map members that the options select, by node or by domain.
//!
//! An unknown name is refused: if it were ignored, a mistyped node would silently stay without its
//! label.

use std::collections::BTreeSet;

use super::{ExportOptions, ExportRefusal, refuse};
use crate::place::map::{MapDomain, MapMember, VerifiedMap};
use model::hostlist;
use model::id::NodeName;
use model::text::clean;

/// The selected members, in order; all members without a selection.
pub(super) fn select_members<'m>(
    map: &'m VerifiedMap,
    options: &ExportOptions,
) -> Result<Vec<(&'m NodeName, &'m MapMember)>, ExportRefusal> {
    if let Some(nodes) = &options.nodes {
        check_known(map, nodes)?;
    }
    let asked = options.domain.as_deref().map(|name| find_domain(map, name)).transpose()?;
    let is_asked = |(node, member): &(&NodeName, &MapMember)| {
        let by_name = options.nodes.as_ref().is_none_or(|nodes| nodes.contains(*node));
        let by_domain = asked.is_none_or(|it| member.domain.as_deref() == Some(it.name.as_str()));
        by_name && by_domain
    };
    Ok(map.members.iter().filter(is_asked).collect())
}

pub(super) fn check_known(
    map: &VerifiedMap,
    nodes: &BTreeSet<NodeName>,
) -> Result<(), ExportRefusal> {
    let strange: Vec<&str> =
        nodes.iter().filter(|it| !map.members.contains_key(*it)).map(NodeName::as_str).collect();
    if strange.is_empty() {
        return Ok(());
    }
    refuse(format!("--nodes: the run has no {}", clean(&hostlist::fold(strange))))
}

pub(super) fn find_domain<'m>(
    map: &'m VerifiedMap,
    name: &str,
) -> Result<&'m MapDomain, ExportRefusal> {
    match map.domain(name) {
        Some(domain) => Ok(domain),
        None => refuse(format!("--domain {}: the run has {}", clean(name), list_domains(map))),
    }
}

pub(super) fn list_domains(map: &VerifiedMap) -> String {
    let names: Vec<&str> = map.domains.iter().map(|domain| domain.name.as_str()).collect();
    clean(&names.join(", "))
}
