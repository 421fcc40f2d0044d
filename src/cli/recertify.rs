//! `fabricgate recertify`: nodes measured after a repair, against partners that are
//! cleared, and held against what they showed before.

mod before;

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::Globals;
use super::config::Config;
use super::earlier::Past;
use super::exit;
use super::failure::Failure;
use super::partners;
use super::plan;
use super::plan::Chosen;
use super::plan::Profile;
use super::runs;
use super::show::Repaired;
use super::stdout::note;
use super::sweep;
use super::sweep::Swept;
use before::Before;
use engine::thresholds::Catalogue;
use model::claims::Claims;
use model::id::NodeName;

/// Measure nodes after a repair: everything, every pair, against cleared partners.
///
/// Named nodes are measured together with the fewest cleared nodes of their domain that
/// a second look needs (those with a valid certificate, or that passed their last run),
/// and compared with what they themselves showed before the repair: with the run on
/// which our drain of them rests, else with the last run that found something against
/// them, else with the last one that measured them. What the repair changed is told;
/// it changes no verdict and no rule for giving nodes back. --all measures the whole
/// fleet.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    sweep: sweep::Args,
    /// Measure all claimed nodes.
    #[arg(long, conflicts_with_all = ["nodes", "resume"])]
    all: bool,
    /// The run before the repair, instead of the one that is found in run_dir.
    #[arg(long, value_name = "RUN")]
    before: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &Args, globals: &Globals) -> anyhow::Result<u8> {
    if !args.all && !args.sweep.names_nodes() && args.sweep.resume.is_none() {
        let text = "expected NODE, the nodes that were repaired, or --all for all claimed nodes";
        return Err(Failure::usage(text).into());
    }
    // An hour of measuring must not end with "that run cannot be read".
    let named_before = match &args.before {
        Some(path) => Some(before::named(&runs::folder(path, globals.config.as_deref())?)?),
        None => None,
    };
    let mut past = Past::default();
    let mut named: BTreeSet<NodeName> = BTreeSet::new();
    let mut choosing = |config: &mut Config, catalogue: &Catalogue, fleet: Claims| {
        let (chosen, of_past) = choose(args, (config, catalogue), fleet, named_before.as_ref())?;
        past = of_past;
        named.clone_from(&chosen.named);
        Ok(chosen)
    };
    let swept = sweep::measured(&args.sweep, globals, Profile::Recertify, &mut choosing)?;
    let Some(mut swept) = swept else {
        note("nobody can be measured now, so nothing is known");
        return Ok(exit::INCONCLUSIVE);
    };
    if args.sweep.resume.is_some() {
        // Whom it is about, nobody wrote down: all that is measured.
        named = swept.done.run.verdicts.nodes.iter().map(|it| it.node.clone()).collect();
        past = Past::of(&swept.site.config, args.sweep.run_dir.as_deref());
    }
    let repaired = repaired(&swept, &named, &past, named_before)?;
    sweep::told(&mut swept, &args.sweep, globals, Profile::Recertify, repaired.as_ref())
}

/// The nodes that are measured: those named and their partners.
fn choose(
    args: &Args,
    (config, catalogue): (&Config, &Catalogue),
    fleet: Claims,
    named_before: Option<&Before>,
) -> Result<(Chosen, Past), Failure> {
    let selection = &args.sweep.selection;
    let named = plan::choose(fleet.clone(), selection)?.named;
    if let Some(before) = named_before {
        before.check(&named)?;
    }
    let past = match named.is_empty() {
        true => Past::default(),
        false => Past::of(config, args.sweep.run_dir.as_deref()),
    };
    Ok((partners::choose(config, catalogue, fleet, selection, &past)?, past))
}

/// What the repair changed, of the nodes that were named; `None` where none was.
fn repaired(
    swept: &Swept,
    named: &BTreeSet<NodeName>,
    past: &Past,
    named_before: Option<Before>,
) -> anyhow::Result<Option<Repaired>> {
    if named.is_empty() {
        return Ok(None);
    }
    let drained = before::drained(&swept.site.config);
    Ok(Some(before::repaired(swept, named, past, &drained, named_before)?))
}
