//! `fabricgate recertify`: measures nodes after a repair against cleared partners, and compares
//! them with their earlier results.

pub mod prior_run;

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::cli::past_runs::PastRuns;
use crate::cli::plan_scope;
use crate::cli::plan_scope::PlanScope;
use crate::cli::report_output::RepairComparison;
use crate::cli::stdout::{Globals, note};
use crate::cli::sweep;
use crate::cli::sweep::SweepOutput;
use crate::cli::{partner_selection, run_lookup};
use crate::config::Config;
use crate::exit;
use crate::exit::CommandError;
use engine::thresholds::PlatformCatalogue;
use model::claims::Claims;
use model::id::NodeName;
use model::profile::Profile;
use prior_run::PriorRun;

/// Measure nodes after a repair: everything, every pair, against cleared partners.
///
/// Named nodes are measured together with the fewest cleared nodes of their domain that a second
/// measurement needs (nodes with a valid certificate, or that passed their last run), and compared
/// with their own results before the repair: with the run that the gate's drain is based on, else
/// with the last run that found a fault in them, else with the last one that measured them. The
/// effect of the repair is printed; it changes no verdict and no rule for returning nodes. --all
/// measures the whole fleet.
#[derive(Debug, clap::Args)]
pub struct RecertifyArgs {
    #[command(flatten)]
    sweep: sweep::SweepArgs,
    /// Measure all claimed nodes.
    #[arg(long, conflicts_with_all = ["nodes", "resume"])]
    all: bool,
    /// The run before the repair, instead of the one found in run_dir.
    #[arg(long, value_name = "RUN")]
    before: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &RecertifyArgs, globals: &Globals) -> anyhow::Result<u8> {
    if !args.all && !args.sweep.names_nodes() && args.sweep.resume.is_none() {
        let text = "expected NODE, the nodes that were repaired, or --all for all claimed nodes";
        return Err(CommandError::usage(text).into());
    }
    // Read it first: an hour of measuring must not end with "that run cannot be read".
    let named_before = match &args.before {
        Some(path) => Some(prior_run::read_named_run(&run_lookup::find_run(
            path,
            globals.config.as_deref(),
        )?)?),
        None => None,
    };
    let mut past = PastRuns::default();
    let mut named: BTreeSet<NodeName> = BTreeSet::new();
    let mut choose = |config: &mut Config, catalogue: &PlatformCatalogue, fleet: Claims| {
        let (chosen, of_past) =
            select_nodes(args, (config, catalogue), fleet, named_before.as_ref())?;
        past = of_past;
        named.clone_from(&chosen.named);
        Ok(chosen)
    };
    let swept = sweep::measure_sweep(&args.sweep, globals, Profile::Recertify, &mut choose)?;
    let Some(mut swept) = swept else {
        note("no node can be measured now, so nothing is known");
        return Ok(exit::INCONCLUSIVE);
    };
    if args.sweep.resume.is_some() {
        // A run does not record its named nodes, so a resumed one compares all measured nodes.
        named = swept.done.run.verdicts.nodes.iter().map(|it| it.node.clone()).collect();
        past = PastRuns::read(&swept.site.config, args.sweep.run_dir.as_deref());
    }
    let repaired = compare_repair(&swept, &named, &past, named_before)?;
    sweep::report_outcome(&mut swept, &args.sweep, globals, Profile::Recertify, repaired.as_ref())
}

/// The nodes to measure: the named ones and their partners.
fn select_nodes(
    args: &RecertifyArgs,
    (config, catalogue): (&Config, &PlatformCatalogue),
    fleet: Claims,
    named_before: Option<&PriorRun>,
) -> Result<(PlanScope, PastRuns), CommandError> {
    let selection = &args.sweep.selection;
    let named = plan_scope::select_nodes(fleet.clone(), selection)?.named;
    if let Some(before) = named_before {
        before.check_covers(&named)?;
    }
    let past = match named.is_empty() {
        true => PastRuns::default(),
        false => PastRuns::read(config, args.sweep.run_dir.as_deref()),
    };
    Ok((partner_selection::choose_partners(config, catalogue, fleet, selection, &past)?, past))
}

/// The effect of the repair on the named nodes; `None` without named nodes.
fn compare_repair(
    swept: &SweepOutput,
    named: &BTreeSet<NodeName>,
    past: &PastRuns,
    named_before: Option<PriorRun>,
) -> anyhow::Result<Option<RepairComparison>> {
    if named.is_empty() {
        return Ok(None);
    }
    let drained = prior_run::find_drain_runs(&swept.site.config);
    Ok(Some(prior_run::compare_with_prior(swept, named, past, &drained, named_before)?))
}
