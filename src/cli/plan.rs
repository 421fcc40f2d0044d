//! `fabricgate plan`: what would be measured, and what it costs. Runs nothing.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::Globals;
use super::config;
use super::config::Config;
use super::exit;
use super::failure::Failure;
use super::stdout;
use crate::inventory::hostlist;
use crate::model::claims::Claims;
use crate::model::id::NodeName;
use crate::model::probe::Probe;
use crate::model::raw;
use crate::plan;
use crate::plan::Plan;

/// Show what would be measured, where, and what it costs; run nothing.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The profile.
    #[arg(value_enum, value_name = "PROFILE")]
    profile: Profile,
    /// Nodes or host lists, such as node[0001-0018]; all claimed ones where none is given.
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,
    /// The seed of the order of nodes.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

/// A profile of the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Profile {
    /// State and links inside every node.
    Audit,
}

impl Profile {
    /// The name used in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Audit => "audit",
        }
    }
}

/// Claims of which a plan covers a part.
#[derive(Debug)]
pub struct Chosen {
    /// All that is claimed.
    pub fleet: Claims,
    /// The part that was asked for.
    pub claims: Claims,
}

/// The claimed nodes among `nodes`, or all where none is named.
pub fn choose(fleet: Claims, nodes: &[String]) -> Result<Chosen, Failure> {
    if nodes.is_empty() {
        return Ok(Chosen { claims: fleet.clone(), fleet });
    }
    let mut wanted: BTreeSet<NodeName> = BTreeSet::new();
    for list in nodes {
        let names = hostlist::expand(list)
            .map_err(|error| Failure::Usage(format!("NODE {list:?}: {error}")))?;
        for node in names.into_iter().map(NodeName::from) {
            if fleet.domain_of(&node).is_none() {
                let text = format!("NODE {list:?}: no domain claims {node}");
                return Err(Failure::Usage(text));
            }
            wanted.insert(node);
        }
    }
    let mut claims = fleet.clone();
    for domain in &mut claims.domains {
        domain.nodes.retain(|node| wanted.contains(node));
    }
    claims.domains.retain(|domain| !domain.nodes.is_empty());
    Ok(Chosen { fleet, claims })
}

/// The plan of a profile under this configuration.
pub fn make(
    config: &Config,
    claims: &Claims,
    profile: Profile,
    seed: u64,
) -> Result<Plan, Failure> {
    let nodes = claims.domains.iter().map(|d| d.nodes.len()).sum();
    config.launcher.check(nodes).map_err(|error| {
        Failure::Usage(format!("{}: [launcher]: {error}", config.path.display()))
    })?;
    let probes: Vec<&Probe> = config.probes.iter().collect();
    Ok(plan::inside_nodes(&plan::Request {
        claims,
        profile: profile.as_str(),
        probes: &probes,
        readings: config.readings,
        parallel: config.parallel,
        seed,
    }))
}

/// Runs the command.
pub fn run(args: &Args, globals: &Globals) -> anyhow::Result<u8> {
    let config = config::open(globals.config.as_deref())?;
    let chosen = choose(config::claims(&config.claims)?, &args.nodes)?;
    let plan = make(&config, &chosen.claims, args.profile, args.seed)?;
    if globals.json {
        stdout::json(&plan)?;
    } else {
        stdout::text(&shown(&plan, &config))?;
    }
    Ok(exit::PASS)
}

fn shown(plan: &Plan, config: &Config) -> String {
    let nodes = plan.nodes();
    let mut text = format!(
        "{}: {} steps on {} nodes, {} at a time, about {:.0} s, {:.0} node-seconds\n",
        plan.profile,
        plan.steps().count(),
        nodes.len(),
        plan.parallel.min(nodes.len()),
        plan.estimate_s,
        plan.node_seconds
    );
    for probe in &config.probes {
        let steps = || plan.steps().filter(|s| s.probe == probe.name);
        let mut on: Vec<&str> = steps().flat_map(|s| &s.nodes).map(|n| n.as_str()).collect();
        on.sort_unstable();
        let Some(first) = steps().next() else { continue };
        let _ = writeln!(
            text,
            "stage {} {}: {} steps of about {} s (limit {} s), disturbs {}",
            probe.stage,
            probe.name,
            steps().count(),
            probe.cost_s,
            probe.timeout_s,
            probe.disturbs.as_str()
        );
        let _ = writeln!(text, "    on {}", hostlist::fold(on));
        let _ = writeln!(text, "    {}", crate::model::words::line(&first.argv));
    }
    for skipped in &plan.skipped {
        let _ = writeln!(
            text,
            "left out: {} on {}: {}",
            skipped.probe,
            raw::place(&skipped.nodes),
            skipped.why
        );
    }
    text
}
