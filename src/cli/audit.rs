//! `fabricgate audit`: the pipeline under that profile, on idle nodes only and
//! within a budget, the stalest nodes first.

use super::Globals;
use super::auditing;
use super::auditing::Options;
use super::config::Config;
use super::failure::Failure;
use super::holding;
use super::plan::Profile;
use super::sweep;
use control::launch::Launcher;
use control::launch::slurm::WhenBusy;
use engine::thresholds::Catalogue;
use model::claims::Claims;

/// Measure idle nodes in a short time: state, inside, across.
///
/// Without a budget every idle node is measured. With one those come first that
/// were not measured for longest, so that an audit every night has them all in
/// turn. Ends with 4 where nobody can be measured now.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    sweep: sweep::Args,
    #[command(flatten)]
    options: Options,
}

/// Runs the command.
pub fn run(args: &Args, globals: &Globals) -> anyhow::Result<u8> {
    if args.sweep.resume.is_some() && args.options.are_given() {
        let text = "--resume: whom it measures was chosen when it began; expected none of --minutes, \
                    --nodes-at-most, --share, --share-of-domain, --all beside it";
        return Err(Failure::usage(text).into());
    }
    let mut choose = |config: &mut Config, catalogue: &Catalogue, fleet: Claims| {
        let chosen = args.sweep.chosen(config, catalogue, fleet)?;
        let holds = matches!(config.launcher, Launcher::Slurm(_) | Launcher::Kubernetes(_));
        if holds && !args.sweep.says_when_busy() {
            // An audit is no reason to wait for anybody's work.
            holding::say_when_busy(config, Some(WhenBusy::Skip))?;
        }
        let budget = args.options.budget(config.audit, args.sweep.names_nodes())?;
        auditing::choose(config, catalogue, chosen, budget, args.sweep.seed())
    };
    sweep::run_of(&args.sweep, globals, Profile::Audit, &mut choose)
}
