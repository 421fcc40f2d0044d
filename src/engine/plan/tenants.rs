//! Tenants of NVLink domains: who uses memory across nodes of one while others would
//! be probed.
//!
//! Pure. IMEX domains on different nodes of one clique disturb each other
//! (kubernetes-sigs/dra-driver-nvidia-gpu#892), so a tenant on any node of a domain
//! forbids probes across the domain, also between its idle nodes.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use model::claims::ClaimedDomain;
use model::claims::Claims;
use model::hostlist;
use model::id::DomainName;
use model::id::NodeName;
use model::said::GroupKind;
use model::said::Said;
use model::said::SourceKind;

/// The plugin of Slurm that gives every job an IMEX channel (`SwitchType`).
const CHANNELS: &str = "nvidia_imex";

/// What users do across nodes, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Who, for people.
    pub who: String,
    /// Their nodes.
    pub nodes: BTreeSet<NodeName>,
}

/// Everybody who uses an IMEX domain or channel, by what schedulers say now.
/// `is_own` knows the ComputeDomains that we made.
pub fn of(said: &[Said], is_own: impl Fn(&str) -> bool) -> Vec<Tenant> {
    let domains = said.iter().filter(|it| it.source.kind == SourceKind::ComputeDomains);
    let groups = domains.flat_map(|it| &it.groups).filter(|it| it.kind == GroupKind::Imex);
    let mut tenants: Vec<Tenant> = groups
        .filter(|group| !group.nodes.is_empty() && !is_own(&group.name))
        .map(|group| Tenant {
            who: format!("ComputeDomain {}", group.name),
            nodes: group.nodes.iter().cloned().collect(),
        })
        .collect();
    let has_channels = said
        .iter()
        .any(|it| it.settings.get("SwitchType").is_some_and(|switch| switch.contains(CHANNELS)));
    if has_channels {
        let nodes = said.iter().filter(|it| it.source.kind == SourceKind::SlurmNodes);
        let busy = nodes.flat_map(|it| &it.nodes).filter(|(_, node)| node.busy == Some(true));
        tenants.extend(busy.map(|(name, _)| Tenant {
            who: "a job with an IMEX channel (switch/nvidia_imex)".to_owned(),
            nodes: BTreeSet::from([name.clone()]),
        }));
    }
    tenants
}

/// The domains of `chosen` that nothing may be probed across, and why. A domain of which
/// one node alone takes part is not probed across; `spans` says of which domains the NVLink
/// reaches over nodes. Where a tenant is counts by all nodes that `fleet` claims.
pub fn refused(
    tenants: &[Tenant],
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
                by_who.entry(&tenant.who).or_default().insert(node.as_str());
            }
        }
        let told: Vec<String> = by_who
            .into_iter()
            .map(|(who, nodes)| format!("{who} on {}", hostlist::fold(nodes)))
            .collect();
        if !told.is_empty() {
            let why = format!(
                "{} is in use by {}, which a probe across it could disturb; --even-if-tenants takes \
                 that risk",
                domain.name,
                told.join(", ")
            );
            refused.insert(domain.name.clone(), why);
        }
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::said::Group;
    use model::said::NodeSaid;

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

    fn compute_domain(name: &str, nodes: &[&str]) -> Said {
        let nodes = nodes.iter().map(|node| NodeName::from(*node)).collect();
        let mut said = Said::nothing(SourceKind::ComputeDomains, "cluster");
        said.groups.push(Group::of(GroupKind::Imex, "ComputeDomain", name.to_owned(), nodes));
        said
    }

    fn slurm(switch: &str, busy: &[(&str, bool)]) -> Vec<Said> {
        let mut config = Said::nothing(SourceKind::SlurmConfig, "scontrol");
        config.settings.insert("SwitchType".to_owned(), switch.to_owned());
        let mut nodes = Said::nothing(SourceKind::SlurmNodes, "scontrol");
        for (name, busy) in busy {
            let node = NodeSaid { busy: Some(*busy), ..NodeSaid::default() };
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
        // The tenant's nodes are not among those that were chosen.
        let chosen = claims(&[("rack1", "n[1-2]"), ("rack2", "n[5-6]")]);
        let tenants = of(&[compute_domain("team/train", &["n3", "n4"])], own);
        let told = refused(&tenants, &fleet, &chosen, |_| true);
        assert_eq!(told.len(), 1, "{told:?}");
        let why = &told[&DomainName::from("rack1")];
        assert!(why.contains("ComputeDomain team/train on n[3-4]"), "{why}");
        assert!(why.contains("--even-if-tenants"), "{why}");
        // A node that is left out is of the domain all the same.
        let mut without = claims(&[("rack1", "n[1-2]")]);
        without.left_out.insert("rack1".into(), vec!["n3".into()]);
        assert_eq!(refused(&tenants, &without, &chosen, |_| true).len(), 1);
    }

    #[test]
    fn a_domain_without_tenants_and_a_node_alone_are_probed() {
        let fleet = claims(&[("rack1", "n[1-4]")]);
        let tenants = of(&[compute_domain("team/train", &["n3"])], own);
        let alone = claims(&[("rack1", "n1")]);
        assert_eq!(refused(&tenants, &fleet, &alone, |_| true), BTreeMap::new());
        assert_eq!(refused(&tenants, &fleet, &fleet, |_| false), BTreeMap::new());
        assert_eq!(of(&[compute_domain("gate/fabricgate-r-1", &["n3"])], own), []);
        assert_eq!(of(&[compute_domain("team/empty", &[])], own), []);
        let elsewhere = of(&[compute_domain("team/train", &["n9"])], own);
        assert_eq!(refused(&elsewhere, &fleet, &fleet, |_| true), BTreeMap::new());
    }

    #[test]
    fn jobs_are_tenants_where_slurm_gives_them_channels() {
        let fleet = claims(&[("rack1", "n[1-4]")]);
        let busy = [("n1", false), ("n3", true), ("n4", true)];
        let with = of(&slurm("switch/nvidia_imex", &busy), own);
        let told = refused(&with, &fleet, &fleet, |_| true);
        let why = &told[&DomainName::from("rack1")];
        assert!(why.contains("a job with an IMEX channel (switch/nvidia_imex) on n[3-4]"), "{why}");
        assert_eq!(of(&slurm("switch/none", &busy), own), []);
        assert_eq!(of(&slurm("switch/nvidia_imex", &[("n1", false)]), own), []);
    }
}
