//! The part of a fleet that a plan covers, and the plan under a configuration.

use std::collections::BTreeSet;

use crate::config::Config;
use crate::exit::CommandError;
use engine::plan;
use engine::plan::Plan;
use engine::thresholds::{Platform, PlatformCatalogue};
use model::claims::{ClaimedDomain, Claims};
use model::hostlist;
use model::id::{DomainName, NodeName};
use model::probe::Probe;
use model::profile::Profile;

/// Options that select nodes.
#[derive(Debug, Default, clap::Args)]
pub struct NodeSelectionArgs {
    /// Nodes or host lists, such as node[0001-0018]; by default all claimed nodes.
    #[arg(value_name = "NODE")]
    pub nodes: Vec<String>,
    /// Measure the other nodes of their domains too: a node needs partners to be measured across
    /// its domain.
    #[arg(long, requires = "nodes")]
    pub with_domain: bool,
    /// Most partner nodes to add to the named ones; 0 for none. By default as many as are needed to
    /// verify a node's claimed connections: [sweep] partners (3) if they are cleared, two more if
    /// one is not.
    #[arg(long, value_name = "N", requires = "nodes", conflicts_with = "with_domain")]
    pub partners: Option<usize>,
}

/// The part of a fleet that a plan covers.
#[derive(Debug)]
pub struct PlanScope {
    /// The claims of the whole fleet.
    pub fleet: Claims,
    /// The claims of the covered part.
    pub claims: Claims,
    /// The nodes that the operator names; empty if all are covered.
    pub named: BTreeSet<NodeName>,
}

/// Restricts the fleet to the named nodes; without names selects all.
pub fn select_nodes(
    fleet: Claims,
    selection: &NodeSelectionArgs,
) -> Result<PlanScope, CommandError> {
    let nodes = &selection.nodes;
    if nodes.is_empty() {
        return Ok(PlanScope { claims: fleet.clone(), fleet, named: BTreeSet::new() });
    }
    let mut wanted: BTreeSet<NodeName> = BTreeSet::new();
    for list in nodes {
        let names = hostlist::expand(list)
            .map_err(|error| CommandError::Usage(format!("NODE {list:?}: {error}")))?;
        for node in names.into_iter().map(NodeName::from) {
            if fleet.domain_of(&node).is_none() {
                let text = format!("NODE {list:?}: no domain claims {node}");
                return Err(CommandError::Usage(text));
            }
            wanted.insert(node);
        }
    }
    let named = wanted.clone();
    if selection.with_domain {
        let named = |it: &&ClaimedDomain| it.nodes.iter().any(|node| wanted.contains(node));
        let whole: Vec<&ClaimedDomain> = fleet.domains.iter().filter(named).collect();
        wanted.extend(whole.into_iter().flat_map(|domain| domain.nodes.iter().cloned()));
    }
    let claims = fleet.with_nodes(|node| wanted.contains(node));
    Ok(PlanScope { fleet, claims, named })
}

/// The inputs of a plan under this configuration.
#[derive(Debug)]
pub struct PlanBasis<'a> {
    config: &'a Config,
    claims: &'a Claims,
    profile: Profile,
    seed: u64,
    probes: Vec<&'a Probe>,
    across: BTreeSet<DomainName>,
}

impl<'a> PlanBasis<'a> {
    /// Collects the inputs; the catalogue of expectations determines which platforms span nodes
    /// with NVLink.
    pub fn new(
        config: &'a Config,
        claims: &'a Claims,
        catalogue: &PlatformCatalogue,
        profile: Profile,
        seed: u64,
    ) -> Result<Self, CommandError> {
        let nodes = claims.domains.iter().map(|d| d.nodes.len()).sum();
        config.launcher.check(nodes).map_err(|error| {
            CommandError::Usage(format!("{}: [launcher]: {error}", config.path.display()))
        })?;
        let across = find_nvlink_domains(claims, catalogue, config.platform.as_deref());
        let probes = match &config.probes {
            Some(named) => named.iter().collect(),
            None => {
                let names = plan::default_probes(profile, claims, &across);
                names.into_iter().filter_map(|name| config.catalog.get(name)).collect()
            }
        };
        Ok(Self { config, claims, profile, seed, probes, across })
    }

    /// The request to the plan stage.
    pub fn request(&self) -> plan::PlanRequest<'_> {
        plan::PlanRequest {
            claims: self.claims,
            profile: self.profile,
            probes: &self.probes,
            readings: self.config.readings,
            most_readings: self.config.most_readings,
            parallel: self.config.parallel,
            seed: self.seed,
            nvlink_across: &self.across,
            limits: self.config.limits,
        }
    }

    /// Makes the plan and checks it against the plan rules.
    pub fn make_plan(&self) -> anyhow::Result<Plan> {
        let plan = plan::plan_sweep(&self.request());
        if let Some(wrong) = plan::lint::lint_plan(&plan, self.claims).first() {
            anyhow::bail!("the plan breaks its own rules: {wrong}");
        }
        Ok(plan)
    }
}

/// The domains whose claimed platform connects nodes by NVLink.
pub fn find_nvlink_domains(
    claims: &Claims,
    catalogue: &PlatformCatalogue,
    platform: Option<&str>,
) -> BTreeSet<DomainName> {
    let spans = |name: &str| catalogue.platform(name).is_some_and(Platform::spans_nodes);
    let domains = claims.domains.iter();
    let across = domains.filter(|d| platform.or(d.platform.as_deref()).is_some_and(spans));
    across.map(|domain| domain.name.clone()).collect()
}

#[cfg(test)]
pub(crate) mod fixture {
    //! A fleet of a rack, three single nodes, two leaves and a rail, for the tests of plans.

    use model::claims::Claims;
    use readers::claims::claims_file;

    const FLEET: &str = "[[domain]]\nname = \"block1\"\nnodes = \"a[1-4]\"\n\
        platform = \"gb200-nvl72\"\ngpus_per_node = 4\n\
        [[domain]]\nname = \"h\"\nnodes = \"h[1-3]\"\nplatform = \"hgx-h100\"\ngpus_per_node = 8\n\
        [[leaf]]\nname = \"l1\"\nnodes = \"a[1-4]\"\n[[leaf]]\nname = \"l2\"\nnodes = \"h[1-3]\"\n\
        [[rail]]\nname = \"rail0\"\ndevice = \"eth1\"\n";

    pub(crate) fn claims() -> Claims {
        claims_file::parse("c", FLEET).expect("good")
    }
}

#[cfg(test)]
mod tests {
    use super::fixture::claims;
    use super::*;
    use engine::thresholds::builtin;

    #[test]
    fn only_platforms_of_several_nodes_are_joined_by_nvlink() {
        let catalogue = builtin::builtin_catalogue();
        let of = |platform| find_nvlink_domains(&claims(), catalogue, platform);
        assert_eq!(of(None), BTreeSet::from(["block1".into()]));
        assert_eq!(of(Some("gb300-nvl72")).len(), 2, "a named platform takes precedence");
        assert!(of(Some("hgx-h200")).is_empty());
    }

    #[test]
    fn a_part_of_a_fleet_keeps_the_part_of_its_leaves() {
        let part = NodeSelectionArgs {
            nodes: vec!["a[1-2]".to_owned()],
            with_domain: false,
            partners: None,
        };
        let chosen = select_nodes(claims(), &part).expect("claimed");
        assert_eq!((chosen.claims.domains.len(), chosen.claims.leaves.len()), (1, 1));
        assert_eq!(chosen.claims.leaves[0].nodes.len(), 2);
        assert_eq!(chosen.fleet.leaves.len(), 2);
    }

    #[test]
    fn with_domain_selects_the_rest_of_the_domain() {
        let whole =
            NodeSelectionArgs { nodes: vec!["a3".to_owned()], with_domain: true, partners: None };
        let chosen = select_nodes(claims(), &whole).expect("claimed");
        assert_eq!(chosen.claims.domains.len(), 1);
        assert_eq!(chosen.claims.domains[0].nodes.len(), 4);
    }
}
