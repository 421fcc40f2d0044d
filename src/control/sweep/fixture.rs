//! Steps, plans, results and folders of them for the tests of this folder.

use std::path::Path;

use super::step::blank_result;
use crate::store;
use crate::store::run_folder::RunFolder;
use crate::store::{ClaimsRecord, file};
use engine::plan::{PLAN_FORMAT, Plan, PlanLimits, PlanRound, PlanStep};
use model::claims::Claims;
use model::parse_output::Tool;
use model::probe::ProbeScope;
use model::raw_result::{ProcessEnding, RawResult};

/// The ending of a successful tool.
pub(super) const EXITED_WELL: ProcessEnding = ProcessEnding::Exited { code: 0 };

/// A step of one node: two readings, and a third if they do not decide.
pub(super) fn step(number: usize) -> PlanStep {
    PlanStep {
        step: number,
        stage: 1,
        probe: "p".to_owned(),
        scope: ProbeScope::Node,
        domain: None,
        nodes: vec!["n1".into()],
        rail: None,
        lane: None,
        readings: 2,
        most_readings: 3,
        parser: Tool::Nvbandwidth,
        argv: [].into(),
        serve: None,
        on_all_nodes: false,
        fallback: None,
        idle_gpus: false,
        estimate_s: 1.0,
        timeout_s: 1.0,
    }
}

/// A plan of one round of the steps with these numbers.
pub(super) fn plan(numbers: &[usize]) -> Plan {
    let steps = numbers.iter().map(|number| step(*number)).collect();
    Plan {
        format: PLAN_FORMAT.to_owned(),
        profile: "audit".to_owned(),
        seed: 0,
        parallel: 1,
        limits: PlanLimits::default(),
        rounds: vec![PlanRound { round: 0, stage: 1, what: "p".to_owned(), steps }],
        sampled: false,
        skipped: Vec::new(),
        estimate_s: 1.0,
        node_seconds: 1.0,
    }
}

/// A reading of a step with this ending; its output has a name.
pub(super) fn result(number: usize, reading: u32, ending: ProcessEnding) -> RawResult {
    let stdout = Some(format!("raw/{number}-{reading}"));
    RawResult { ending, stdout, ..blank_result(&step(number), reading, Vec::new()) }
}

/// The folder of a run that was interrupted with these results.
pub(super) fn write_run(runs: &Path, plan: &Plan, results: &[RawResult]) -> RunFolder {
    let folder = RunFolder::create(runs, "r").expect("made");
    let run = serde_json::json!({
        "format": store::RUN_FORMAT, "state": "running", "seed": 0, "fleet": 1, "policy": {},
        "launcher": {"kind": "local"}, "claims_digest": "c", "thresholds_digest": "t",
        "info": {"id": "r", "created": "2026-03-04T05:06:07Z", "profile": "audit", "source": "s",
            "version": "0.1.0"},
    });
    folder.write_json(file::RUN, &run).expect("written");
    let format = store::CLAIMS_FORMAT.to_owned();
    let claims = ClaimsRecord { format, claims: Claims::default(), changes: None };
    folder.write_json(file::CLAIMS, &claims).expect("written");
    folder.write_plan(file::PLAN, plan).expect("written");
    folder.append(file::RESULTS, results).expect("written");
    folder
}
