//! `fabricgate audit`: the sweep with that profile, on idle nodes only and within a budget; nodes
//! with the oldest measurement first.

use crate::cli::audit_scope::AuditOptions;
use crate::cli::stdout::Globals;
use crate::cli::sweep;
use crate::cli::{allocation, audit_scope};
use crate::config::Config;
use crate::exit::CommandError;
use control::launch::Launcher;
use control::launch::slurm::BusyNodePolicy;
use engine::thresholds::PlatformCatalogue;
use model::claims::Claims;
use model::profile::Profile;

/// Measure idle nodes in a short time: state, inside nodes, across nodes.
///
/// Without a budget it measures every idle node. With a budget, the nodes with the oldest
/// measurement come first, so that a nightly audit covers all nodes in turn. The exit code is 4 if
/// no node can be measured now.
#[derive(Debug, clap::Args)]
pub struct AuditArgs {
    #[command(flatten)]
    sweep: sweep::SweepArgs,
    #[command(flatten)]
    options: AuditOptions,
}

/// Runs the command.
pub fn run(args: &AuditArgs, globals: &Globals) -> anyhow::Result<u8> {
    if args.sweep.resume.is_some() && args.options.are_given() {
        let text = "--resume: the run's nodes were selected when it began; expected none of \
                    --minutes, --nodes-at-most, --share, --share-of-domain, --all";
        return Err(CommandError::usage(text).into());
    }
    let mut choose = |config: &mut Config, catalogue: &PlatformCatalogue, fleet: Claims| {
        let chosen = args.sweep.select_nodes(config, catalogue, fleet)?;
        let holds = matches!(config.launcher, Launcher::Slurm(_) | Launcher::Kubernetes(_));
        if holds && !args.sweep.has_when_busy() {
            // An audit does not wait for running jobs.
            allocation::override_when_busy(config, Some(BusyNodePolicy::Skip))?;
        }
        let budget = args.options.budget(&config.audit, args.sweep.names_nodes());
        audit_scope::select_audit_nodes(config, catalogue, chosen, budget, args.sweep.seed())
    };
    sweep::run_with(&args.sweep, globals, Profile::Audit, &mut choose)
}
