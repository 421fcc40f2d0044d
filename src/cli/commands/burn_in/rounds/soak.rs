//! The load between two rounds: on all nodes at the same time, stored in the folder of the burn-in.
//! Its findings are not evidence of a round, but a node that breaks under load is excluded.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::cli::commands::burn_in::rounds::BurnInSession;
use crate::cli::stdout::note;
use crate::cli::stored_run;
use crate::cli::sweep;
use control::launch::WorkerProgram;
use control::sweep::RunLocation;
use engine::plan;
use engine::policy::burn_in_termination::BurnInObservation;
use engine::policy::{acceptance as accept, burn_in_termination};
use model::acceptance::{SoakRecord, StopRule};
use model::claims::Claims;
use model::id::NodeName;
use model::probe::Probe;
use model::raw_result::RawResult;

impl BurnInSession<'_> {
    /// Loads all nodes at the same time; false if a signal interrupted it.
    pub(crate) fn soak(&mut self, after: u32) -> anyhow::Result<bool> {
        let claims = accept::participating_claims(&self.claims, &self.acceptance.nodes);
        let minutes = self.acceptance.asked.soak_minutes;
        let probes: Vec<&Probe> = self.site.config.burn_in.soak_probes.iter().collect();
        let basis = self.plan_basis(&claims, self.acceptance.asked.seed)?;
        let simulated = !self.acceptance.real;
        let nodes: usize = claims.domains.iter().map(|domain| domain.nodes.len()).sum();
        let request = plan::PlanRequest {
            probes: &probes,
            // All nodes at the same time; simulated ones are processes on this machine.
            parallel: if simulated { self.site.config.parallel } else { nodes.max(1) },
            ..basis.request()
        };
        let load = plan::plan_soak(&request);
        let began = control::sweep::format_timestamp(control::sweep::now());
        let mut done = SoakRecord {
            after_round: after,
            began: began.clone(),
            minutes: 0.0,
            passes: 0,
            probes: probes.iter().map(|probe| probe.name.clone()).collect(),
            simulated,
            not_on: BTreeMap::new(),
            found: BTreeMap::new(),
        };
        if load.rounds.is_empty() {
            let why = "no load probe can run here".to_owned();
            let all = claims.domains.iter().flat_map(|domain| &domain.nodes);
            done.not_on = all.map(|node| (node.clone(), why.clone())).collect();
            self.acceptance.soaks.push(done);
            self.save()?;
            return Ok(true);
        }
        note(&format!("load on all nodes for {minutes} min, after round {after}"));
        let id = self.unused_name(&format!("soak-{after}"));
        let program = WorkerProgram {
            age: simulated.then(|| format!("{after}:{minutes}:soaking")),
            ..self.program.clone()
        };
        let lasting = match simulated {
            true => Duration::ZERO,
            false => Duration::from_secs_f64(minutes * 60.0),
        };
        let place = RunLocation::New(self.folder.path());
        let ran = self.sweep_round(
            &load,
            &request,
            &claims,
            (&id, &began),
            &program,
            place,
            Some(lasting),
        )?;
        if ran.partial {
            return Ok(false);
        }
        sweep::write_artifacts(&ran, None)?;
        let stored = stored_run::open_run_quietly(ran.folder.path())?;
        let results = stored.results().map_err(stored_run::record_error)?;
        let recordings = stored.recordings_for(&results).map_err(stored_run::record_error)?;
        done.minutes = ran.took.as_secs_f64() / 60.0;
        done.passes = ran.passes;
        done.not_on = find_unloaded_nodes(&claims, &results);
        done.found = burn_in_termination::find_failed_under_load(&ran.run.verdicts);
        let observation = BurnInObservation {
            round: after,
            verdicts: &ran.run.verdicts,
            claims: &claims,
            results: &results,
            recordings: &recordings,
            freeze_domain: usize::MAX,
        };
        let out = burn_in_termination::find_stopped_nodes(&observation);
        // Unknown outcomes while every node loads the fabric are not a reason to stop.
        let hard = |rule| matches!(rule, StopRule::HardFault | StopRule::TooHot | StopRule::Lost);
        for (node, stop) in out.into_iter().filter(|(_, stop)| hard(stop.rule)) {
            self.exclude_node(&node, stop);
        }
        self.discard_round(after);
        self.acceptance.soaks.push(done);
        self.save()?;
        Ok(true)
    }

    /// An unused name in the folder: interrupted load starts again, and its output stays.
    fn unused_name(&self, name: &str) -> String {
        let taken = |name: &String| self.folder.path().join(name).exists();
        let others = (2..).map(|n| format!("{name}-{n}"));
        std::iter::once(name.to_owned()).chain(others).find(|it| !taken(it)).unwrap_or_default()
    }
}

/// Nodes on which no load completed, and why.
fn find_unloaded_nodes(claims: &Claims, results: &[RawResult]) -> BTreeMap<NodeName, String> {
    let nodes = claims.domains.iter().flat_map(|domain| &domain.nodes);
    let why = |node: &NodeName| {
        let mut own_results = results.iter().filter(|it| it.nodes.contains(node)).peekable();
        if own_results.peek().is_none() {
            return Some("nothing was run on it".to_owned());
        }
        let mut last = None;
        for result in own_results {
            if result.ending.is_success() {
                return None;
            }
            last = Some(result);
        }
        let gap = last.and_then(RawResult::gap_reason);
        Some(gap.unwrap_or_else(|| "no load completed".to_owned()))
    };
    nodes.filter_map(|node| Some((node.clone(), why(node)?))).collect()
}
