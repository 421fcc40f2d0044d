//! What a command measures with: the configuration, as the command line asks for it, and
//! the expectations.

use std::path::PathBuf;

use super::Globals;
use super::acting;
use super::config;
use super::config::Config;
use super::expectations;
use super::expectations::InForce;
use super::failure::Failure;
use super::pausing;
use super::sweep::Args;
use super::sweep::scenario_of;
use control::store::stored::Stored;

/// What a command measures with: the configuration and the expectations.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) config: Config,
    pub(super) in_force: InForce,
}

impl Site {
    /// Both as the command line asks for them.
    pub(super) fn of(
        args: &Args,
        globals: &Globals,
        resumed: Option<&Stored>,
    ) -> Result<Self, Failure> {
        let config = match resumed.and_then(|stored| scenario_of(stored, args)) {
            Some(scenario) => return Self::simulated(args, globals, scenario),
            None => args.simulated.config(globals.config.as_deref())?,
        };
        Self::with(config, args)
    }

    /// Both where the scenario is that of a run that is gone on with.
    pub(super) fn simulated(
        args: &Args,
        globals: &Globals,
        scenario: PathBuf,
    ) -> Result<Self, Failure> {
        Self::with(config::Simulated::by(scenario).config(globals.config.as_deref())?, args)
    }

    fn with(mut config: Config, args: &Args) -> Result<Self, Failure> {
        if args.own_probes {
            config.measure_by_ourselves();
        }
        if args.apply {
            // An hour of measuring must not end with "nobody would be told".
            acting::gate(&config)?;
        }
        pausing::check(&config)?;
        let in_force = expectations::load(&config.thresholds)?;
        if let Some(name) = &config.platform {
            let place = format!("{}: platform", config.path.display());
            expectations::check_platform(&in_force.catalogue, name, &place)?;
        }
        Ok(Self { config, in_force })
    }
}
