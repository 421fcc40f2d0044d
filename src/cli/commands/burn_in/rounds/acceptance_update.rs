//! Updates the acceptance after a completed round: excluded nodes, measured levels, the comparison
//! with the first round, and whether the round is repeated.

use std::collections::{BTreeMap, BTreeSet};

use crate::cli::commands::burn_in::rounds::BurnInSession;
use crate::cli::stdout::note;
use crate::cli::stored_run;
use control::store::run_reader::StoredRun;
use engine::judge::run_comparison;
use engine::judge::run_comparison::ComparisonSide;
use engine::policy::burn_in_termination::BurnInObservation;
use engine::policy::{acceptance as accept, burn_in_termination, certificate, identity};
use model::acceptance::{BurnInStop, NodeRound, StopRule};
use model::id::NodeName;
use model::measured_cell::MeasuredCell;
use model::run::{Run, RunInfo};
use model::tool_recording::ToolRecording;
use model::trend::FabricPart;
use model::verdict::Outcome;

impl BurnInSession<'_> {
    pub(crate) fn record_round(
        &mut self,
        number: u32,
        run: Run,
        stored: &StoredRun,
    ) -> anyhow::Result<()> {
        let results = stored.results().map_err(stored_run::record_error)?;
        let recordings = stored.recordings_for(&results).map_err(stored_run::record_error)?;
        let machines = stored.machines().map_err(stored_run::record_error)?;
        let (boots, gpus) = (identity::boot_ids(&machines), identity::gpu_uuids(&machines));
        let rebooted = identity::find_rebooted(&machines);
        let verdicts = &run.verdicts;
        let out = burn_in_termination::find_stopped_nodes(&BurnInObservation {
            round: number,
            verdicts,
            claims: &run.claims,
            results: &results,
            recordings: &recordings,
            freeze_domain: self.site.config.policy.freeze_domain,
        });
        if let Some(round) = self.acceptance.rounds.last_mut() {
            round.ended = Some(stored.record.ended.clone().unwrap_or_default());
            round.outcome = Some(verdicts.outcome);
            round.claims_digest = Some(stored.record.claims_digest.clone());
            round.thresholds_digest = Some(verdicts.thresholds_digest.clone());
            round.nodes = verdicts
                .nodes
                .iter()
                .map(|it| NodeRound {
                    node: it.node.clone(),
                    outcome: it.outcome,
                    reason: it.reason.clone(),
                    boot_id: boots.get(&it.node).cloned(),
                    gpus: gpus.get(&it.node).cloned().unwrap_or_default(),
                    rebooted: rebooted.contains(&it.node),
                })
                .collect();
        }
        for (node, stop) in out {
            self.exclude_node(&node, stop);
        }
        self.discard_round(number);
        let minima = certificate::node_minima(&run.cells);
        accept::add_round(&mut self.acceptance.nodes, &minima, verdicts);
        accept::add_versions(&mut self.acceptance.versions, &recordings);
        self.acceptance.thresholds_digest = Some(verdicts.thresholds_digest.clone());
        self.compare_round(&run, &recordings)?;
        self.last = Some(run);
        self.save()
    }

    /// Compares a round with the first one; for nodes that started over since, with the round in
    /// which they did, so that two different machines or boots are not compared.
    fn compare_round(&mut self, run: &Run, recordings: &[ToolRecording]) -> anyhow::Result<()> {
        let rounds = &self.acceptance.rounds;
        let others = burn_in_termination::find_replaced_machines(rounds);
        let known =
            burn_in_termination::find_replaced_machines(&rounds[..rounds.len().saturating_sub(1)]);
        let mut since: BTreeMap<u32, BTreeSet<&NodeName>> = BTreeMap::new();
        for (node, anew) in &others {
            if known.get(node) != Some(anew) {
                let rule = anew.rule.as_str();
                note(&format!("{node} restarts ({rule}): {}", anew.why));
            }
            since.entry(anew.after_round + 1).or_default().insert(node);
        }
        let last = comparison_side(&run.info, &run.cells, recordings);
        let against = |then: &str, is_meant: &dyn Fn(&NodeName) -> bool| {
            let then = stored_run::open_run_quietly(&self.runs.join(then))?;
            let cells = then.cells().map_err(stored_run::record_error)?;
            let read = then.recordings().map_err(stored_run::record_error)?;
            let first = comparison_side(&then.record.info, &cells, &read);
            let of = |part: &FabricPart| part.node.as_ref().is_none_or(is_meant);
            anyhow::Ok(run_comparison::compare_runs(&first, &last, &of))
        };
        if let Some(first) = rounds.first().filter(|it| it.run != run.info.id) {
            let comparison = against(&first.run, &|node| !others.contains_key(node))?;
            self.acceptance.comparison = Some(comparison);
        }
        let mut since_anew = Vec::new();
        for (begun, nodes) in since {
            let begun = self.acceptance.rounds.iter().find(|it| it.round == begun);
            if let Some(begun) = begun.filter(|it| it.run != run.info.id) {
                let mut comparison = against(&begun.run, &|node| nodes.contains(node))?;
                comparison.parts.retain(|it| it.part.node.is_some());
                since_anew.push(comparison);
            }
        }
        self.acceptance.since_anew = since_anew;
        Ok(())
    }

    /// Sets a round aside if a node was faulty or lost and left other nodes with an unknown
    /// outcome: they could not be measured with it. The round is repeated without that node.
    pub(crate) fn discard_round(&mut self, number: u32) {
        let is_fault =
            |rule| matches!(rule, StopRule::Lost | StopRule::HardFault | StopRule::TooHot);
        let out: BTreeMap<&NodeName, &BurnInStop> = self
            .acceptance
            .nodes
            .iter()
            .filter_map(|node| Some((&node.node, node.out.as_ref()?)))
            .collect();
        let left = out.values().any(|stop| stop.after_round == number && is_fault(stop.rule));
        let again = self.acceptance.rounds.iter().filter(|round| round.set_aside).count();
        let found = self.acceptance.rounds.iter_mut().find(|round| round.round == number);
        let Some(round) =
            found.filter(|_| left && again < burn_in_termination::MAX_REPEATED_ROUNDS)
        else {
            return;
        };
        let open = |it: &NodeRound| it.outcome == Outcome::Unknown && !out.contains_key(&it.node);
        round.set_aside = round.nodes.iter().any(open);
    }

    pub(crate) fn exclude_node(&mut self, node: &NodeName, stop: BurnInStop) {
        let known = self.acceptance.nodes.iter_mut().find(|it| it.node == *node);
        if let Some(known) = known.filter(|known| known.out.is_none()) {
            let rule = stop.rule.as_str().replace('_', " ");
            note(&format!("{node} is excluded ({rule}): {}", stop.why));
            known.out = Some(stop);
        }
    }
}

fn comparison_side<'a>(
    info: &'a RunInfo,
    cells: &'a [MeasuredCell],
    recordings: &'a [ToolRecording],
) -> ComparisonSide<'a> {
    ComparisonSide { run: &info.id, created: &info.created, cells, recordings }
}
