//! Whether tenants use the NVLink domains that are about to be probed across.
//!
//! Asks the schedulers that a configuration names; what their answer means,
//! `plan::tenants` says.

use std::collections::BTreeMap;

use super::asking;
use super::config::Config;
use super::config::Source;
use super::failure::Failure;
use super::gating;
use super::stdout::note;
use control::launch::Launcher;
use control::sources::kubernetes;
use control::sources::kubernetes::Kubernetes;
use control::sources::slurm;
use engine::plan::Plan;
use engine::plan::Skipped;
use engine::plan::tenants;
use engine::thresholds::Catalogue;
use model::claims::Claims;
use model::hostlist;
use model::id::NodeName;
use model::said::Said;

/// Nodes that are left out because a tenant uses their domain, each with why.
#[derive(Clone, Debug, Default)]
pub(super) struct Tenanted(BTreeMap<NodeName, String>);

impl Tenanted {
    /// Asks who uses the domains of `chosen`. An error where nothing is left to measure.
    pub(super) fn of(
        config: &Config,
        catalogue: &Catalogue,
        fleet: &Claims,
        chosen: &Claims,
    ) -> Result<Self, Failure> {
        if config.launcher.is_stand_in() {
            return Ok(Self::default());
        }
        let said = asked(config)?;
        let spans = |platform: Option<&str>| {
            let known = platform.and_then(|name| catalogue.platform(name));
            known.is_none_or(|platform| platform.spans_nodes())
        };
        let everywhere = config.platform.as_deref();
        let tenants = tenants::of(&said, |name| is_own(config, name));
        let refused = tenants::refused(&tenants, fleet, chosen, |domain| {
            spans(everywhere.or(domain.platform.as_deref()))
        });
        let mut nodes = BTreeMap::new();
        for domain in &chosen.domains {
            let Some(why) = refused.get(&domain.name) else { continue };
            let list = hostlist::fold(domain.nodes.iter().map(NodeName::as_str));
            note(&format!("left out: {list}: {why}"));
            nodes.extend(domain.nodes.iter().map(|node| (node.clone(), why.clone())));
        }
        let tenanted = Self(nodes);
        if !tenanted.0.is_empty() && tenanted.without(chosen).domains.is_empty() {
            let whys: Vec<String> = refused.into_values().collect();
            return Err(Failure::Refused(format!("nothing is measured: {}", whys.join("; "))));
        }
        Ok(tenanted)
    }

    /// Refuses where a node would be left out: a run that was begun is not finished in part.
    pub(super) fn is_none(&self) -> Result<(), Failure> {
        match self.0.values().next() {
            None => Ok(()),
            Some(why) => Err(Failure::Refused(format!("nothing is measured: {why}"))),
        }
    }

    /// The claims of what may be probed.
    pub(super) fn without(&self, claims: &Claims) -> Claims {
        match self.0.is_empty() {
            true => claims.clone(),
            false => claims.with_nodes(|node| !self.0.contains_key(node)),
        }
    }

    /// Puts who was left out into a plan, so that they do not count as measured.
    pub(super) fn tell(&self, plan: &mut Plan) {
        plan.skipped.extend(self.0.iter().map(|(node, why)| Skipped {
            probe: "every probe".to_owned(),
            nodes: vec![node.clone()],
            why: why.clone(),
            not_applicable: false,
        }));
    }
}

/// What schedulers say now.
fn asked(config: &Config) -> Result<Vec<Said>, Failure> {
    let runtime = super::runtime()?;
    let mut said = Vec::new();
    if let Some(slurm) = asking::slurm(config) {
        said.extend(runtime.block_on(slurm::ask(&slurm)));
    }
    if let Some(server) = server(config) {
        said.extend(runtime.block_on(kubernetes::ask(&server)));
    }
    Ok(said)
}

/// The cluster in which nodes are measured, or that is a source.
fn server(config: &Config) -> Option<Kubernetes> {
    if let Launcher::Kubernetes(launcher) = &config.launcher {
        let limit = config.gate.as_ref().map_or(gating::LIMIT, |gate| gate.pace.limit);
        let (kubeconfig, context) = (launcher.kubeconfig.clone(), launcher.context.clone());
        return Some(Kubernetes { kubeconfig, context, limit });
    }
    match &config.claims {
        Source::Sources(wanted) => wanted.kubernetes.clone(),
        Source::Scenario(_) | Source::Run(_) => None,
    }
}

/// Whether a ComputeDomain is one that our launcher made.
fn is_own(config: &Config, name: &str) -> bool {
    match &config.launcher {
        Launcher::Kubernetes(launcher) => name
            .strip_prefix(&launcher.namespace)
            .is_some_and(|name| name.starts_with("/fabricgate-")),
        _ => false,
    }
}
