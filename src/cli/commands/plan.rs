//! `fabricgate plan`: lists what would be measured, and its cost. Runs nothing.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::cli::past_runs::PastRuns;
use crate::cli::plan_scope::{NodeSelectionArgs, PlanBasis};
use crate::cli::simulation_option::SimulationArgs;
use crate::cli::stdout::Globals;
use crate::cli::{audit_scope, expectations, partner_selection, stdout};
use crate::exit;
use crate::exit::CommandError;
use engine::plan::{Plan, PlanRound, PlanStep, cost};
use model::probe::ProbeScope;
use model::profile::Profile;
use model::{hostlist, shell_quote};
use readers::probe_catalog::ProbeCatalog;

/// Show what would be measured, where, and what it costs; run nothing.
#[derive(Debug, clap::Args)]
pub struct PlanArgs {
    /// The profile.
    #[arg(value_enum, value_name = "PROFILE")]
    profile: ProfileArg,
    #[command(flatten)]
    selection: NodeSelectionArgs,
    /// Seed for the order of nodes and pairs.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    simulated: SimulationArgs,
    /// Measure with fabricgate's native probes instead of nvbandwidth and nccl-tests.
    #[arg(long)]
    own_probes: bool,
    /// Show every round with its pairs.
    #[arg(long)]
    rounds: bool,
    #[command(flatten)]
    audit: audit_scope::AuditOptions,
}

/// [`Profile`] as a value of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileArg(pub Profile);

impl clap::ValueEnum for ProfileArg {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self(Profile::Admit),
            Self(Profile::BurnIn),
            Self(Profile::Recertify),
            Self(Profile::Audit),
        ]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        let help = match self.0 {
            Profile::Admit => {
                "before the first job: state, inside nodes, across nodes, collectives"
            }
            Profile::BurnIn => "after building or repair: everything, every pair",
            Profile::Recertify => "from time to time: everything, every pair",
            Profile::Audit => "often, on idle nodes: state, inside nodes, across nodes",
        };
        Some(clap::builder::PossibleValue::new(self.0.as_str()).help(help))
    }
}

/// Runs the command.
pub fn run(args: &PlanArgs, globals: &Globals) -> anyhow::Result<u8> {
    let mut config = args.simulated.open_config(globals.config.as_deref())?;
    if args.own_probes {
        config.use_native_probes();
    }
    let in_force = expectations::load_thresholds(&config.thresholds)?;
    let fleet = config.collect_measurable_claims(&in_force.catalogue)?;
    let past = match args.selection.nodes.is_empty() {
        true => PastRuns::default(),
        false => PastRuns::read(&config, None),
    };
    let mut chosen = partner_selection::choose_partners(
        &config,
        &in_force.catalogue,
        fleet,
        &args.selection,
        &past,
    )?;
    if args.profile.0 == Profile::Audit {
        let budget = args.audit.budget(&config.audit, !args.selection.nodes.is_empty());
        chosen = audit_scope::select_audit_nodes(
            &config,
            &in_force.catalogue,
            chosen,
            budget,
            args.seed,
        )?;
        if chosen.claims.domains.is_empty() {
            stdout::note("no node can be measured now, so nothing is planned");
            return Ok(exit::INCONCLUSIVE);
        }
    } else if args.audit.are_given() {
        let text = "--minutes, --nodes-at-most, --share, --share-of-domain, --all: expected the \
                    profile audit";
        return Err(CommandError::usage(text).into());
    }
    let basis =
        PlanBasis::new(&config, &chosen.claims, &in_force.catalogue, args.profile.0, args.seed)?;
    let plan = basis.make_plan()?;
    if globals.json {
        stdout::write_plan(&plan)?;
    } else {
        stdout::write_text(&render_plan(&plan, &config.catalog, args.rounds))?;
    }
    Ok(exit::PASS)
}

fn render_plan(plan: &Plan, catalog: &ProbeCatalog, with_rounds: bool) -> String {
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
    if plan.sampled {
        text.push_str("pairs of GPUs are sampled: not every pair of a domain is measured\n");
    }
    // Rounds of one probe in one stage follow each other.
    let mut rest = plan.rounds.as_slice();
    while let Some(first) = rest.first().and_then(|round| round.steps.first()) {
        let same = |round: &PlanRound| {
            round.stage == first.stage && round.steps.iter().all(|s| s.probe == first.probe)
        };
        let end = rest.iter().position(|round| !same(round)).unwrap_or(rest.len()).max(1);
        let (rounds, others) = rest.split_at(end);
        rest = others;
        write_stage(&mut text, plan, catalog, rounds, first);
        if with_rounds {
            for round in rounds {
                write_pairs(&mut text, plan, round);
            }
        }
    }
    for skipped in &plan.skipped {
        let _ = writeln!(
            text,
            "left out: {} on {}: {}",
            skipped.probe,
            hostlist::fold(skipped.nodes.iter().map(|node| node.as_str())),
            skipped.why
        );
    }
    text
}

/// Writes one probe in one stage.
fn write_stage(
    text: &mut String,
    plan: &Plan,
    catalog: &ProbeCatalog,
    rounds: &[PlanRound],
    first: &PlanStep,
) {
    let steps = || rounds.iter().flat_map(|round| &round.steps);
    let disturbs = catalog.get(&first.probe).map_or("unknown", |probe| probe.disturbs.as_str());
    let readings = match (first.readings, first.most_readings) {
        (1, 1) => String::new(),
        (n, most) if n == most => format!(" x {n} readings"),
        (n, most) => format!(" x {n} to {most} readings"),
    };
    let time: f64 = rounds.iter().map(|round| cost::estimate_round(round, plan.parallel)).sum();
    let _ = writeln!(
        text,
        "stage {} {}: {} steps of about {} s{readings} (limit {} s), disturbs {disturbs}",
        first.stage,
        first.probe,
        steps().count(),
        first.estimate_s,
        first.timeout_s,
    );
    let what = match first.scope {
        ProbeScope::Node => "nodes",
        ProbeScope::Pair => "pairs",
        ProbeScope::Rail => "pairs and rails",
        ProbeScope::Domain => "domains",
    };
    let _ = writeln!(
        text,
        "    {} round{} of up to {} {what}, about {time:.0} s",
        rounds.len(),
        if rounds.len() == 1 { "" } else { "s" },
        rounds.iter().map(|round| round.steps.len()).max().unwrap_or(0)
    );
    let on: BTreeSet<&str> = steps().flat_map(|s| &s.nodes).map(|n| n.as_str()).collect();
    let _ = writeln!(text, "    on {}", hostlist::fold(on));
    let _ = writeln!(text, "    {}", shell_quote::join_quoted(&first.argv));
    if first.on_all_nodes {
        let _ = writeln!(text, "    on every node that takes part");
    }
    if let Some(serve) = &first.serve {
        let _ = writeln!(
            text,
            "    with, on the other node, {}",
            shell_quote::join_quoted(&serve.argv)
        );
    }
    if let Some(fallback) = &first.fallback {
        let on = if fallback.on_all_nodes { ", on every node" } else { "" };
        let _ = writeln!(
            text,
            "    if that is missing{on}, {}",
            shell_quote::join_quoted(&fallback.argv)
        );
    }
}

/// Writes the pairs of one round.
fn write_pairs(text: &mut String, plan: &Plan, round: &PlanRound) {
    let _ = writeln!(
        text,
        "    round {}: {}, about {:.0} s",
        round.round,
        round.what,
        cost::estimate_round(round, plan.parallel)
    );
    for step in &round.steps {
        let nodes: Vec<&str> = step.nodes.iter().map(|node| node.as_str()).collect();
        let place = match step.scope {
            ProbeScope::Domain => hostlist::fold(nodes),
            _ => nodes.join(" - "),
        };
        let rail = step.rail.as_ref().map(|rail| format!(", rail {rail}")).unwrap_or_default();
        let lane = step.lane.map(|lane| format!(", lane {lane}")).unwrap_or_default();
        let _ = writeln!(text, "        step {}: {place}{rail}{lane}", step.step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::plan_scope::fixture;
    use engine::plan;
    use engine::plan::PlanLimits;
    use model::probe::Probe;

    #[test]
    fn a_plan_shows_its_stages_rounds_and_pairs() {
        let (claims, catalog) = (fixture::claims(), ProbeCatalog::built_in());
        let names = ["nvbandwidth-lane", "tcp", "nvidia-smi-q"];
        let probes: Vec<&Probe> = names.iter().filter_map(|name| catalog.get(name)).collect();
        let plan = plan::plan_sweep(&plan::PlanRequest {
            claims: &claims,
            profile: Profile::Audit,
            probes: &probes,
            readings: 3,
            most_readings: 5,
            parallel: 64,
            seed: 0,
            nvlink_across: &BTreeSet::from(["block1".into()]),
            limits: PlanLimits::default(),
        });
        let text = render_plan(&plan, &catalog, true);
        let expect = |part: &str| assert!(text.contains(part), "{part:?} is not in\n{text}");
        expect("audit: 17 steps on 7 nodes");
        expect("pairs of GPUs are sampled");
        expect("stage 2 nvbandwidth-lane: 6 steps of about 10 s x 3 to 5 readings");
        expect("    3 rounds of up to 2 pairs, about 90 s");
        expect("nvbandwidth-lane: node pairs, 3 of 3, about 30 s");
        // The third node of the second leaf has a round of its own.
        expect("    2 rounds of up to 3 pairs and rails, about 18 s");
        expect(", rail rail0\n");
        expect("    with, on the other node, ");
        expect("left out: nvbandwidth-lane on h[1-3]: needs NVLink between nodes");
        assert!(!render_plan(&plan, &catalog, false).contains(", rail rail0"));
    }
}
