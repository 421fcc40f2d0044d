//! `[burn_in]` of the configuration: the rounds of a burn-in, and the load between them.

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use crate::config::ConfigMistake;
use crate::config::bounded::{BoundedCount, BoundedNumber, PositiveNumber};
use engine::plan;
use model::probe::{Probe, ProbeScope};
use readers::probe_catalog::ProbeCatalog;

/// Rounds of a burn-in.
pub type BurnInRounds = BoundedCount<1, 10_000>;

/// Hours of a burn-in, up to four weeks.
pub type BurnInHours = PositiveNumber<672>;

/// Minutes of load between two rounds, up to a day.
pub type SoakMinutes = BoundedNumber<0, 1_440_000>;

/// `[burn_in]` of the configuration.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BurnInConfig {
    /// Number of complete sweeps of `burn-in`; without it and without `hours` one sweep, and no
    /// acceptance. `--rounds` takes precedence.
    pub rounds: Option<BurnInRounds>,
    /// Hours for which `burn-in` repeats the sweep; no default. With `rounds`, the first limit
    /// reached ends it. `--hours` takes precedence.
    pub hours: Option<BurnInHours>,
    /// Most hours of a burn-in in all: a round that would not fit is not started. No default.
    pub budget_hours: Option<BurnInHours>,
    /// Consecutive rounds after which a burn-in ends early if every node passed all of them. No
    /// default.
    pub clean_rounds: Option<BurnInRounds>,
    /// Minutes of load on all nodes concurrently between two rounds, 0 for none; 10 by default.
    /// `--soak-minutes` takes precedence.
    pub soak_minutes: SoakMinutes,
    /// The probes that make the load, of scope `node` or `domain`; by default
    /// `soak-copy`, `soak-collective` and `soak-collective-domain`.
    #[schemars(with = "Option<Vec<String>>")]
    soak: Option<Vec<Spanned<String>>>,
    /// The same, from the catalog.
    #[serde(skip)]
    pub soak_probes: Vec<Probe>,
    /// A node of which a part lost more than this share from the first round to the
    /// last is not accepted (unknown); 0.028 by default.
    pub drift: BoundedNumber<0, 999>,
}

impl Default for BurnInConfig {
    fn default() -> Self {
        Self {
            rounds: None,
            hours: None,
            budget_hours: None,
            clean_rounds: None,
            // GPUs reach their steady temperature within some minutes of load.
            soak_minutes: 10.0.into(),
            soak: None,
            soak_probes: Vec::new(),
            // Healthy fabrics differ by so much: half the loss of one link of 18.
            drift: 0.028.into(),
        }
    }
}

impl BurnInConfig {
    /// A section of the file, with its probes from the catalog.
    pub fn from_section(self, catalog: &ProbeCatalog) -> Result<Self, ConfigMistake> {
        let soak_probes = match &self.soak {
            Some(names) => names
                .iter()
                .map(|name| {
                    let found = find_soak_probe(name.get_ref(), catalog);
                    found.map_err(|why| (name.span().start, why))
                })
                .collect::<Result<_, _>>()?,
            None => {
                let names = plan::SOAK_PROBES.iter();
                names.filter_map(|name| catalog.get(name)).cloned().collect()
            }
        };
        Ok(Self { soak_probes, ..self })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_section_is_one_sweep_and_load_is_of_known_probes() {
        let catalog = ProbeCatalog::built_in();
        let read = |text: &str| {
            let section: BurnInConfig = toml::from_str(text).expect("its shape");
            section.from_section(&catalog)
        };
        let empty = read("").expect("good");
        assert_eq!((empty.rounds, empty.hours, empty.soak_probes.len()), (None, None, 3));
        for (text, expected) in [
            ("soak = [\"tcp\"]", "soak \"tcp\" is of scope rail, expected"),
            ("soak = [\"gpu-burn\"]", "unknown probe \"gpu-burn\", expected one of"),
        ] {
            let (at, message) = read(text).expect_err("a mistake");
            assert!(message.starts_with(expected), "{text}: {message}");
            assert_eq!(at, 8, "{text}");
        }
        let one = read("rounds = 3\nsoak = [\"soak-copy\"]\nsoak_minutes = 0").expect("good");
        assert_eq!((one.rounds, one.soak_probes.len()), (Some(3.into()), 1));
        assert!(toml::from_str::<BurnInConfig>("hours = -1").is_err());
    }
}
