//! Fleets to plan for, for tests.

use std::collections::BTreeSet;

use super::{Plan, PlanLimits, PlanRequest, plan_sweep};
use model::claims::Claims;
use model::id::DomainName;
use model::probe::Probe;
use model::profile::Profile;
use readers::claims::claims_file;
use readers::probe_catalog;
use readers::probe_catalog::ProbeCatalog;

/// The owned input of a plan.
#[derive(Debug)]
pub(super) struct PlanFixture {
    pub(super) claims: Claims,
    pub(super) probes: Vec<Probe>,
    pub(super) across: BTreeSet<DomainName>,
    pub(super) profile: Profile,
    pub(super) readings: u32,
    pub(super) most_readings: u32,
    pub(super) parallel: usize,
    pub(super) seed: u64,
    pub(super) limits: PlanLimits,
}

/// A probe of scope pair that reads lanes one by one.
pub(super) const LANES: &str = "name = \"lanes\"\ntitle = \"T\"\nparser = \"nvbandwidth\"\n\
    argv = [\"x\", \"{peer}\", \"{lane}\"]\nscope = \"pair\"\ngrain = \"gpu\"\nstage = 2\n\
    cost_s = 2\ntimeout_s = 5\ndisturbs = \"gpus\"\n[requires]\nnvlink_across = true\n";

impl PlanFixture {
    /// A fixture with these claims and probes; domains whose names begin with "rack" are joined by
    /// NVLink.
    pub(super) fn new(profile: Profile, claims: &str, probes: &[&str]) -> Self {
        let claims = claims_file::parse("claims", claims).unwrap_or_else(|e| panic!("{e}"));
        let mut catalog = ProbeCatalog::built_in();
        catalog.add(probe_catalog::parse_probe("lanes", LANES).unwrap_or_else(|e| panic!("{e}")));
        let probe = |name: &&str| catalog.get(name).unwrap_or_else(|| panic!("{name}")).clone();
        let domains = claims.domains.iter().map(|d| d.name.clone());
        Self {
            across: domains.filter(|name| name.as_str().starts_with("rack")).collect(),
            probes: probes.iter().map(probe).collect(),
            claims,
            profile,
            readings: 1,
            most_readings: 1,
            parallel: 64,
            seed: 1,
            limits: PlanLimits::default(),
        }
    }

    /// The request, for as long as `act` lasts.
    pub(super) fn with_request<T>(&self, act: impl FnOnce(&PlanRequest<'_>) -> T) -> T {
        let probes: Vec<&Probe> = self.probes.iter().collect();
        act(&PlanRequest {
            claims: &self.claims,
            profile: self.profile,
            probes: &probes,
            readings: self.readings,
            most_readings: self.most_readings,
            parallel: self.parallel,
            seed: self.seed,
            nvlink_across: &self.across,
            limits: self.limits,
        })
    }

    pub(super) fn plan(&self) -> Plan {
        self.with_request(plan_sweep)
    }
}

/// A domain: name, host list, GPUs of each node.
pub(super) fn domain(name: &str, nodes: &str, gpus: u32) -> String {
    format!("[[domain]]\nname = {name:?}\nnodes = {nodes:?}\ngpus_per_node = {gpus}\n")
}

/// A leaf: name, host list.
pub(super) fn leaf(name: &str, nodes: &str) -> String {
    format!("[[leaf]]\nname = {name:?}\nnodes = {nodes:?}\n")
}

/// A rail with all its keys.
pub(super) fn rail(number: u32) -> String {
    format!(
        "[[rail]]\nname = \"rail{number}\"\ndevice = \"eth{number}\"\nrdma = \"mlx5_{number}\"\n"
    )
}
