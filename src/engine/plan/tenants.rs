//! Tenants of NVLink domains: jobs that use memory across nodes of a domain while probes would run
//! there.
//!
//! Pure. IMEX domains on different nodes of one clique disturb each other
//! (kubernetes-sigs/dra-driver-nvidia-gpu#892), so a tenant on any node of a domain forbids probes
//! across the domain, also between its idle nodes.

use std::collections::{BTreeMap, BTreeSet};

use model::claims::{ClaimedDomain, Claims};
use model::hostlist;
use model::id::{DomainName, NodeName};
use model::source_report::{NodeGroupKind, SourceKind, SourceReport};

/// The plugin of Slurm that gives every job an IMEX channel (`SwitchType`).
const IMEX_CHANNEL_PLUGIN: &str = "nvidia_imex";

/// A tenant's use of memory across nodes, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImexTenant {
    /// The tenant, formatted for messages.
    pub name: String,
    /// The tenant's nodes.
    pub nodes: BTreeSet<NodeName>,
}

/// All users of an IMEX domain or channel, from the schedulers' current reports. `is_own`
/// recognises the ComputeDomains that fabricgate created.
pub fn find_tenants(reports: &[SourceReport], is_own: impl Fn(&str) -> bool) -> Vec<ImexTenant> {
    let domains = reports.iter().filter(|it| it.source.kind == SourceKind::ComputeDomains);
    let groups = domains.flat_map(|it| &it.groups).filter(|it| it.kind == NodeGroupKind::Imex);
    let mut tenants: Vec<ImexTenant> = groups
        .filter(|group| !group.nodes.is_empty() && !is_own(&group.name))
        .map(|group| ImexTenant {
            name: format!("ComputeDomain {}", group.name),
            nodes: group.nodes.iter().cloned().collect(),
        })
        .collect();
    let has_channels = reports.iter().any(|it| {
        it.settings.get("SwitchType").is_some_and(|switch| switch.contains(IMEX_CHANNEL_PLUGIN))
    });
    if has_channels {
        let nodes = reports.iter().filter(|it| it.source.kind == SourceKind::SlurmNodes);
        let busy = nodes.flat_map(|it| &it.nodes).filter(|(_, node)| node.busy == Some(true));
        tenants.extend(busy.map(|(name, _)| ImexTenant {
            name: "a job with an IMEX channel (switch/nvidia_imex)".to_owned(),
            nodes: BTreeSet::from([name.clone()]),
        }));
    }
    tenants
}

/// The domains of `chosen` across which no probe may run, and why. If only one node of a domain
/// takes part, no probe runs across it; `spans` selects the domains whose NVLink spans nodes. A
/// tenant's location is looked up among all nodes that `fleet` claims.
pub fn find_blocked_domains(
    tenants: &[ImexTenant],
    fleet: &Claims,
    chosen: &Claims,
    spans: impl Fn(&ClaimedDomain) -> bool,
) -> BTreeMap<DomainName, String> {
    let probed =
        |name: &DomainName| chosen.domains.iter().any(|it| it.name == *name && 1 < it.nodes.len());
    let mut refused = BTreeMap::new();
    for domain in fleet.domains.iter().filter(|it| probed(&it.name) && spans(it)) {
        let left_out = fleet.left_out.get(&domain.name).into_iter().flatten();
        let claimed: BTreeSet<&NodeName> = domain.nodes.iter().chain(left_out).collect();
        let mut by_who: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for tenant in tenants {
            let here = tenant.nodes.iter().filter(|node| claimed.contains(node));
            for node in here {
                by_who.entry(&tenant.name).or_default().insert(node.as_str());
            }
        }
        let listed: Vec<String> = by_who
            .into_iter()
            .map(|(name, nodes)| format!("{name} on {}", hostlist::fold(nodes)))
            .collect();
        if !listed.is_empty() {
            let why = format!(
                "{} is in use by {}, which a probe across it could disturb; --even-if-tenants \
                 accepts that risk",
                domain.name,
                listed.join(", ")
            );
            refused.insert(domain.name.clone(), why);
        }
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::source_report::{NodeGroup, NodeReport};

    fn claims(domains: &[(&str, &str)]) -> Claims {
        let domain = |(name, list): &(&str, &str)| ClaimedDomain {
            name: (*name).into(),
            nodes: hostlist::expand(list)
                .expect("a list")
                .into_iter()
                .map(NodeName::from)
                .collect(),
            platform: None,
            gpus_per_node: None,
            nic: None,
        };
        Claims { domains: domains.iter().map(domain).collect(), ..Claims::default() }
    }

    fn compute_domain(name: &str, nodes: &[&str]) -> SourceReport {
        let nodes = nodes.iter().map(|node| NodeName::from(*node)).collect();
        let mut report = SourceReport::new(SourceKind::ComputeDomains, "cluster");
        report.groups.push(NodeGroup::new(
            NodeGroupKind::Imex,
            "ComputeDomain",
            name.to_owned(),
            nodes,
        ));
        report
    }

    fn slurm(switch: &str, busy: &[(&str, bool)]) -> Vec<SourceReport> {
        let mut config = SourceReport::new(SourceKind::SlurmConfig, "scontrol");
        config.settings.insert("SwitchType".to_owned(), switch.to_owned());
        let mut nodes = SourceReport::new(SourceKind::SlurmNodes, "scontrol");
        for (name, busy) in busy {
            let node = NodeReport { busy: Some(*busy), ..NodeReport::default() };
            nodes.nodes.insert((*name).into(), node);
        }
        vec![config, nodes]
    }

    fn own(name: &str) -> bool {
        name.starts_with("gate/fabricgate-")
    }

    #[test]
    fn a_tenant_on_any_node_of_a_domain_forbids_probes_across_it() {
        let fleet = claims(&[("rack1", "n[1-4]"), ("rack2", "n[5-8]")]);
        // The tenant's nodes are not among the chosen ones.
        let chosen = claims(&[("rack1", "n[1-2]"), ("rack2", "n[5-6]")]);
        let tenants = find_tenants(&[compute_domain("team/train", &["n3", "n4"])], own);
        let blocked = find_blocked_domains(&tenants, &fleet, &chosen, |_| true);
        assert_eq!(blocked.len(), 1, "{blocked:?}");
        let why = &blocked[&DomainName::from("rack1")];
        assert!(why.contains("ComputeDomain team/train on n[3-4]"), "{why}");
        assert!(why.contains("--even-if-tenants"), "{why}");
        // A node that is left out still belongs to the domain.
        let mut without = claims(&[("rack1", "n[1-2]")]);
        without.left_out.insert("rack1".into(), vec!["n3".into()]);
        assert_eq!(find_blocked_domains(&tenants, &without, &chosen, |_| true).len(), 1);
    }

    #[test]
    fn a_domain_without_tenants_and_a_node_alone_are_probed() {
        let fleet = claims(&[("rack1", "n[1-4]")]);
        let tenants = find_tenants(&[compute_domain("team/train", &["n3"])], own);
        let alone = claims(&[("rack1", "n1")]);
        assert_eq!(find_blocked_domains(&tenants, &fleet, &alone, |_| true), BTreeMap::new());
        assert_eq!(find_blocked_domains(&tenants, &fleet, &fleet, |_| false), BTreeMap::new());
        assert_eq!(find_tenants(&[compute_domain("gate/fabricgate-r-1", &["n3"])], own), []);
        assert_eq!(find_tenants(&[compute_domain("team/empty", &[])], own), []);
        let elsewhere = find_tenants(&[compute_domain("team/train", &["n9"])], own);
        assert_eq!(find_blocked_domains(&elsewhere, &fleet, &fleet, |_| true), BTreeMap::new());
    }

    #[test]
    fn jobs_are_tenants_where_slurm_gives_them_channels() {
        let fleet = claims(&[("rack1", "n[1-4]")]);
        let busy = [("n1", false), ("n3", true), ("n4", true)];
        let with = find_tenants(&slurm("switch/nvidia_imex", &busy), own);
        let blocked = find_blocked_domains(&with, &fleet, &fleet, |_| true);
        let why = &blocked[&DomainName::from("rack1")];
        assert!(why.contains("a job with an IMEX channel (switch/nvidia_imex) on n[3-4]"), "{why}");
        assert_eq!(find_tenants(&slurm("switch/none", &busy), own), []);
        assert_eq!(find_tenants(&slurm("switch/nvidia_imex", &[("n1", false)]), own), []);
    }
}
