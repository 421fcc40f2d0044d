//! The inputs of a measuring command: the configuration with the command line's overrides, and the
//! expectations.

use std::path::PathBuf;

use crate::cli::expectations::ActiveThresholds;
use crate::cli::simulation_option::SimulationArgs;
use crate::cli::stdout::Globals;
use crate::cli::sweep::{SweepArgs, stored_scenario};
use crate::cli::{expectations, gate_apply};
use crate::config::Config;
use crate::exit::CommandError;
use control::store::run_reader::StoredRun;

/// The configuration and the expectations of a measuring command.
#[derive(Debug)]
pub(crate) struct SweepSetup {
    pub(crate) config: Config,
    pub(crate) in_force: ActiveThresholds,
}

impl SweepSetup {
    /// Loads both according to the command line.
    pub(crate) fn from_args(
        args: &SweepArgs,
        globals: &Globals,
        resumed: Option<&StoredRun>,
    ) -> Result<Self, CommandError> {
        let config = match resumed.and_then(|stored| stored_scenario(stored, args)) {
            Some(scenario) => return Self::from_scenario(args, globals, scenario),
            None => args.simulated.open_config(globals.config.as_deref())?,
        };
        Self::from_config(config, args)
    }

    /// Loads both for a resumed run with a stored scenario.
    pub(crate) fn from_scenario(
        args: &SweepArgs,
        globals: &Globals,
        scenario: PathBuf,
    ) -> Result<Self, CommandError> {
        Self::from_config(
            SimulationArgs::from_scenario(scenario).open_config(globals.config.as_deref())?,
            args,
        )
    }

    fn from_config(mut config: Config, args: &SweepArgs) -> Result<Self, CommandError> {
        if args.own_probes {
            config.use_native_probes();
        }
        if args.apply {
            // Fail now: an hour of measuring must not end with a missing [gate].
            gate_apply::require_gate(&config)?;
        }
        gate_apply::check_not_paused(&config)?;
        let in_force = expectations::load_thresholds(&config.thresholds)?;
        if let Some(name) = &config.platform {
            let place = format!("{}: platform", config.path.display());
            expectations::check_platform(&in_force.catalogue, name, &place)?;
        }
        Ok(Self { config, in_force })
    }
}
