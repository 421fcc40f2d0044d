//! The load between two rounds of a burn-in: every probe in every place where it can run, all
//! places concurrently.
//!
//! Pure. The number of repetitions depends on the clock, which the coordinator reads.

use super::command::{PlanContext, StepLocation};
use super::sweep::number_rounds;
use super::{Plan, PlanRequest, PlanRound, SkippedProbe};
use model::claims::ClaimedDomain;
use model::id::NodeName;
use model::probe::ProbeScope;

/// The profile name of load plans.
pub const SOAK_PROFILE: &str = "soak";

/// The default load probes.
pub const SOAK_PROBES: &[&str] = &["soak-copy", "soak-collective", "soak-collective-domain"];

/// Plans one pass of load. Pair and rail probes load only part of the nodes and are left out.
pub fn plan_soak(request: &PlanRequest<'_>) -> Plan {
    let once = PlanRequest { readings: 1, most_readings: 1, ..*request };
    let ground = PlanContext::new(&once);
    let (mut rounds, mut skipped) = (Vec::new(), Vec::new());
    for probe in request.probes {
        let mut steps = Vec::new();
        let mut skip = |domain: &ClaimedDomain, why: String| {
            let (probe, nodes) = (probe.name.clone(), domain.nodes.clone());
            skipped.push(SkippedProbe { probe, nodes, why, not_applicable: true });
        };
        for domain in &request.claims.domains {
            if let Err(omitted) = ground.check_probe(probe, domain) {
                skip(domain, omitted.why);
                continue;
            }
            let places: Vec<Vec<NodeName>> = match probe.scope {
                ProbeScope::Node => domain.nodes.iter().map(|node| vec![node.clone()]).collect(),
                ProbeScope::Domain => vec![domain.nodes.clone()],
                ProbeScope::Pair | ProbeScope::Rail => {
                    skip(
                        domain,
                        format!("a probe of scope {} does not generate load", probe.scope.as_str()),
                    );
                    continue;
                }
            };
            let stage = probe.stage;
            steps.extend(
                places
                    .into_iter()
                    .map(|nodes| ground.build_step(probe, &StepLocation::new(stage, nodes))),
            );
        }
        if !steps.is_empty() {
            let what = format!("{}: load on all nodes", probe.name);
            rounds.push(PlanRound { round: 0, stage: probe.stage, what, steps });
        }
    }
    number_rounds(&mut rounds, 0, 0);
    Plan::from_rounds(request, SOAK_PROFILE, rounds, skipped)
}

/// The same pass again, numbered after the rounds and steps of `plan`.
pub fn repeat_soak(pass: &Plan, plan: &Plan) -> Plan {
    let mut next = pass.clone();
    let steps = plan.steps().map(|step| step.step + 1).max().unwrap_or(0);
    number_rounds(&mut next.rounds, plan.rounds.len(), steps);
    next
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::plan::{PlanLimits, lint};
    use model::probe::Probe;
    use model::profile::Profile;
    use readers::claims::claims_file;
    use readers::probe_catalog::ProbeCatalog;

    #[test]
    fn all_places_are_loaded_concurrently_and_again_with_new_numbers() {
        let text = "[[domain]]\nname = \"rack\"\nnodes = \"a[1-3]\"\ngpus_per_node = 4\n\
            [[domain]]\nname = \"h\"\nnodes = \"h1\"\ngpus_per_node = 8\n";
        let claims = claims_file::parse("c", text).expect("good");
        let catalog = ProbeCatalog::built_in();
        let probes: Vec<&Probe> =
            SOAK_PROBES.iter().map(|name| catalog.get(name).expect("built in")).collect();
        let pass = plan_soak(&PlanRequest {
            claims: &claims,
            profile: Profile::BurnIn,
            probes: &probes,
            readings: 3,
            most_readings: 5,
            parallel: 8,
            seed: 0,
            nvlink_across: &BTreeSet::from(["rack".into()]),
            limits: PlanLimits::default(),
        });
        let of = |probe: &str| pass.steps().filter(|step| step.probe == probe).count();
        assert_eq!(
            (of("soak-copy"), of("soak-collective"), of("soak-collective-domain")),
            (4, 4, 1)
        );
        assert!(pass.steps().all(|step| (step.readings, step.most_readings) == (1, 1)));
        assert!(pass.skipped.iter().any(|it| it.probe == "soak-collective-domain"));
        let mut whole = pass.clone();
        whole.rounds.extend(repeat_soak(&pass, &whole).rounds);
        whole.rounds.extend(repeat_soak(&pass, &whole).rounds);
        assert_eq!(lint::lint_plan(&whole, &claims), []);
        assert_eq!(whole.steps().count(), 27);
    }
}
