//! Checks whether tenants use the NVLink domains that a sweep would probe across.
//!
//! Queries the schedulers of a configuration; `plan::tenants` interprets their answers.

use std::collections::BTreeMap;

use crate::cli::collect_claims;
use crate::cli::stdout::note;
use crate::config::{ClaimsSource, Config, gate};
use crate::exit::CommandError;
use control::launch::Launcher;
use control::sources::kubernetes::KubernetesClientConfig;
use control::sources::{kubernetes, slurm};
use engine::plan::{Plan, SkippedProbe, tenants};
use engine::thresholds::PlatformCatalogue;
use model::claims::Claims;
use model::hostlist;
use model::id::NodeName;
use model::source_report::SourceReport;

/// Nodes that are left out because a tenant uses their domain, with the reason.
#[derive(Clone, Debug, Default)]
pub(crate) struct TenantExclusions(BTreeMap<NodeName, String>);

impl TenantExclusions {
    /// Queries the tenants of the domains of `chosen`. An error if nothing is left to measure.
    pub(crate) fn query(
        config: &Config,
        catalogue: &PlatformCatalogue,
        fleet: &Claims,
        chosen: &Claims,
    ) -> Result<Self, CommandError> {
        if config.launcher.is_stand_in() {
            return Ok(Self::default());
        }
        let reports = ask_schedulers(config)?;
        let spans = |platform: Option<&str>| {
            let known = platform.and_then(|name| catalogue.platform(name));
            known.is_none_or(|platform| platform.spans_nodes())
        };
        let everywhere = config.platform.as_deref();
        let tenants = tenants::find_tenants(&reports, |name| is_own(config, name));
        let refused = tenants::find_blocked_domains(&tenants, fleet, chosen, |domain| {
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
        if !tenanted.0.is_empty() && tenanted.restrict_claims(chosen).domains.is_empty() {
            let whys: Vec<String> = refused.into_values().collect();
            return Err(CommandError::Refused(format!("nothing is measured: {}", whys.join("; "))));
        }
        Ok(tenanted)
    }

    /// An error if any node is left out: a started run must not continue with a part of its nodes.
    pub(crate) fn check_empty(&self) -> Result<(), CommandError> {
        match self.0.values().next() {
            None => Ok(()),
            Some(why) => Err(CommandError::Refused(format!("nothing is measured: {why}"))),
        }
    }

    /// The claims without the nodes that are left out.
    pub(crate) fn restrict_claims(&self, claims: &Claims) -> Claims {
        match self.0.is_empty() {
            true => claims.clone(),
            false => claims.with_nodes(|node| !self.0.contains_key(node)),
        }
    }

    /// Lists the left-out nodes in a plan as skipped, so that they do not count as measured.
    pub(crate) fn mark_plan(&self, plan: &mut Plan) {
        plan.skipped.extend(self.0.iter().map(|(node, why)| SkippedProbe {
            probe: "every probe".to_owned(),
            nodes: vec![node.clone()],
            why: why.clone(),
            not_applicable: false,
        }));
    }
}

/// The current reports of the schedulers.
fn ask_schedulers(config: &Config) -> Result<Vec<SourceReport>, CommandError> {
    let runtime = crate::cli::runtime::build_runtime()?;
    let mut reports = Vec::new();
    if let Some(slurm) = collect_claims::slurm_controller(config) {
        reports.extend(runtime.block_on(slurm::fetch_claims(&slurm)));
    }
    if let Some(server) = kubernetes_server(config) {
        reports.extend(runtime.block_on(kubernetes::fetch_claims(&server)));
    }
    Ok(reports)
}

/// The Kubernetes cluster of the launcher, or of the sources.
fn kubernetes_server(config: &Config) -> Option<KubernetesClientConfig> {
    if let Launcher::Kubernetes(launcher) = &config.launcher {
        let limit = config.gate.as_ref().map_or(gate::CALL_TIMEOUT, |gate| gate.timeouts.limit);
        let (kubeconfig, context) = (launcher.kubeconfig.clone(), launcher.context.clone());
        return Some(KubernetesClientConfig { kubeconfig, context, limit });
    }
    match &config.claims {
        ClaimsSource::Sources(wanted) => wanted.kubernetes.clone(),
        ClaimsSource::Scenario(_) | ClaimsSource::Run(_) => None,
    }
}

/// Whether fabricgate's launcher created a ComputeDomain.
fn is_own(config: &Config, name: &str) -> bool {
    match &config.launcher {
        Launcher::Kubernetes(launcher) => name
            .strip_prefix(&launcher.namespace)
            .is_some_and(|name| name.starts_with("/fabricgate-")),
        _ => false,
    }
}
