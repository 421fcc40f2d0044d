//! `[burn_in]` of the configuration: the rounds of a burn-in, and the load between them.
//!
//! Checks the text of the section and opens nothing.

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use crate::config::ConfigMistake;
use engine::plan;
use model::probe::{Probe, ProbeScope};
use readers::probe_catalog::ProbeCatalog;

/// Default minutes of load between two rounds: GPUs reach their steady temperature within some
/// minutes of load.
pub const SOAK_MINUTES: f64 = 10.0;

/// The share that a part may lose from the first round to the last: the variation of healthy
/// fabrics, half the loss of one link of 18.
pub const DRIFT: f64 = 0.028;

/// `[burn_in]` of the configuration.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BurnInSection {
    /// Number of complete sweeps of `burn-in`; without it and without `hours` one sweep, and no
    /// acceptance. `--rounds` takes precedence.
    #[schemars(with = "Option<u32>")]
    rounds: Option<Spanned<u32>>,
    /// Hours for which `burn-in` repeats the sweep; no default. With `rounds`, the first limit
    /// reached ends it. `--hours` takes precedence.
    #[schemars(with = "Option<f64>")]
    hours: Option<Spanned<f64>>,
    /// Most hours of a burn-in in all: a round that would not fit is not started. No default.
    #[schemars(with = "Option<f64>")]
    budget_hours: Option<Spanned<f64>>,
    /// Consecutive rounds after which a burn-in ends early if every node passed all of them. No
    /// default.
    #[schemars(with = "Option<u32>")]
    clean_rounds: Option<Spanned<u32>>,
    /// Minutes of load on all nodes concurrently between two rounds, 0 for none; 10 by default.
    /// `--soak-minutes` takes precedence.
    #[schemars(with = "Option<f64>")]
    soak_minutes: Option<Spanned<f64>>,
    /// The probes that make the load, of scope `node` or `domain`; by default
    /// `soak-copy`, `soak-collective` and `soak-collective-domain`.
    #[schemars(with = "Option<Vec<String>>")]
    soak: Option<Vec<Spanned<String>>>,
    /// A node of which a part lost more than this share from the first round to the
    /// last is not accepted (unknown); 0.028 by default.
    #[schemars(with = "Option<f64>")]
    drift: Option<Spanned<f64>>,
}

/// The repetition of a burn-in, as configured.
#[derive(Clone, Debug, PartialEq)]
pub struct BurnInConfig {
    /// Number of rounds.
    pub rounds: Option<u32>,
    /// Hours of repetition.
    pub hours: Option<f64>,
    /// Most hours in all.
    pub budget_hours: Option<f64>,
    /// Consecutive clean rounds after which it ends.
    pub clean_rounds: Option<u32>,
    /// Minutes of load between rounds.
    pub soak_minutes: f64,
    /// The probes that make it.
    pub soak: Vec<Probe>,
    /// The share that a part may lose.
    pub drift: f64,
}

/// Most hours of a burn-in: four weeks.
const MOST_HOURS: f64 = 672.0;

const MOST_ROUNDS: u32 = 10_000;

/// Checks the section.
pub fn parse_burn_in(
    section: BurnInSection,
    catalog: &ProbeCatalog,
) -> Result<BurnInConfig, ConfigMistake> {
    let count = |key: &str, value: Option<Spanned<u32>>| match value {
        Some(value) => match check_rounds(*value.get_ref()) {
            Ok(rounds) => Ok(Some(rounds)),
            Err(why) => Err((value.span().start, format!("{key} {why}"))),
        },
        None => Ok(None),
    };
    let hours = |key: &str, value: Option<Spanned<f64>>| match value {
        Some(value) => match check_hours(*value.get_ref()) {
            Ok(hours) => Ok(Some(hours)),
            Err(why) => Err((value.span().start, format!("{key} {why}"))),
        },
        None => Ok(None),
    };
    let soak_minutes = match section.soak_minutes {
        Some(value) => check_soak(*value.get_ref())
            .map_err(|why| (value.span().start, format!("soak_minutes {why}")))?,
        None => SOAK_MINUTES,
    };
    let drift = match section.drift {
        Some(value) if !(0.0..1.0).contains(value.get_ref()) => {
            let message = format!("drift {}, expected a share from 0 to 1", value.get_ref());
            return Err((value.span().start, message));
        }
        Some(value) => *value.get_ref(),
        None => DRIFT,
    };
    let mut soak = Vec::new();
    match section.soak {
        Some(names) => {
            for name in names {
                let at = name.span().start;
                soak.push(find_soak_probe(name.get_ref(), catalog).map_err(|why| (at, why))?);
            }
        }
        None => {
            let names = plan::SOAK_PROBES.iter();
            soak.extend(names.filter_map(|name| catalog.get(name)).cloned());
        }
    }
    Ok(BurnInConfig {
        rounds: count("rounds", section.rounds)?,
        hours: hours("hours", section.hours)?,
        budget_hours: hours("budget_hours", section.budget_hours)?,
        clean_rounds: count("clean_rounds", section.clean_rounds)?,
        soak_minutes,
        soak,
        drift,
    })
}

/// The load probe of this name.
fn find_soak_probe(name: &str, catalog: &ProbeCatalog) -> Result<Probe, String> {
    match catalog.get(name) {
        Some(probe) if matches!(probe.scope, ProbeScope::Node | ProbeScope::Domain) => {
            Ok(probe.clone())
        }
        Some(probe) => Err(format!(
            "soak {name:?} is of scope {}, expected a probe of scope node or domain",
            probe.scope.as_str()
        )),
        None => Err(format!("unknown probe {name:?}, expected one of: {}", catalog.joined_names())),
    }
}

/// A number of rounds, or the error.
pub fn check_rounds(rounds: u32) -> Result<u32, String> {
    match (1..=MOST_ROUNDS).contains(&rounds) {
        true => Ok(rounds),
        false => Err(format!("{rounds}, expected 1 to {MOST_ROUNDS}")),
    }
}

/// A number of hours, or the error.
pub fn check_hours(hours: f64) -> Result<f64, String> {
    match 0.0 < hours && hours <= MOST_HOURS {
        true => Ok(hours),
        false => Err(format!("{hours}, expected hours above 0, at most {MOST_HOURS}")),
    }
}

/// Minutes of load, or the error.
pub fn check_soak(minutes: f64) -> Result<f64, String> {
    match (0.0..=1_440.0).contains(&minutes) {
        true => Ok(minutes),
        false => Err(format!("{minutes}, expected 0 to 1440 minutes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<BurnInConfig, ConfigMistake> {
        parse_burn_in(toml::from_str(text).expect("its shape"), &ProbeCatalog::built_in())
    }

    #[test]
    fn the_default_is_one_sweep_and_mistakes_have_a_location() {
        let nothing = read("").expect("good");
        assert_eq!((nothing.rounds, nothing.hours, nothing.soak.len()), (None, None, 3));
        assert_eq!((nothing.soak_minutes, nothing.drift), (SOAK_MINUTES, DRIFT));
        for (text, at, expected) in [
            ("rounds = 0", 9, "rounds 0, expected 1 to 10000"),
            ("hours = -1", 8, "hours -1, expected hours above 0"),
            ("budget_hours = 1000", 15, "budget_hours 1000, expected hours above 0"),
            ("clean_rounds = 0", 15, "clean_rounds 0, expected 1"),
            ("soak_minutes = 1e9", 15, "soak_minutes 1000000000, expected 0 to 1440"),
            ("drift = 1.5", 8, "drift 1.5, expected a share"),
            ("soak = [\"tcp\"]", 8, "soak \"tcp\" is of scope rail, expected"),
            ("soak = [\"gpu-burn\"]", 8, "unknown probe \"gpu-burn\", expected one of"),
        ] {
            let (place, message) = read(text).expect_err("a mistake");
            assert!(message.starts_with(expected), "{text}: {message}");
            assert_eq!(place, at, "{text}");
        }
        let read = read("rounds = 3\nsoak = [\"soak-copy\"]\nsoak_minutes = 0").expect("good");
        assert_eq!((read.rounds, read.soak.len(), read.soak_minutes), (Some(3), 1, 0.0));
    }
}
