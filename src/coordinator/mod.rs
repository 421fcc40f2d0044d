//! The shell that drives the pipeline: runs a plan, reads, judges, proposes,
//! and keeps everything in a run folder.
//!
//! It reads the clock, starts processes through `exec`, and decides nothing
//! that a stage decides.

pub mod gaps;
pub mod progress;

mod sweep;

use std::path::Path;

use crate::act::policy;
use crate::act::policy::Coverage;
use crate::act::policy::Policy;
use crate::judge;
use crate::judge::Case;
use crate::judge::Judgement;
use crate::launch::Launcher;
use crate::model::claims::Claims;
use crate::model::parsed::Problem;
use crate::model::parsed::ProblemKind;
use crate::model::raw::Ending;
use crate::model::raw::RawResult;
use crate::model::recording::Recording;
use crate::model::recording::Scope;
use crate::model::run::Run;
use crate::model::run::RunInfo;
use crate::plan::Plan;
use crate::record;
use crate::record::ClaimsRecord;
use crate::record::RecordError;
use crate::record::RunRecord;
use crate::record::State;
use crate::record::file;
use crate::record::folder::Folder;
use crate::thresholds::Catalogue;

pub use progress::Progress;

/// The present moment, RFC 3339 with milliseconds.
#[expect(clippy::disallowed_methods, reason = "the coordinator is where the clock is read")]
pub fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

/// A moment as documents show it.
pub fn shown(moment: jiff::Timestamp) -> String {
    moment.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

/// What a sweep is made of.
#[derive(Debug)]
pub struct Audit<'a> {
    /// What the run is.
    pub info: RunInfo,
    /// What is claimed of the nodes it covers.
    pub claims: &'a Claims,
    /// What is claimed of the whole fleet: the denominator of the budgets.
    pub fleet: &'a Claims,
    /// What to run.
    pub plan: &'a Plan,
    /// How to reach nodes.
    pub launcher: &'a Launcher,
    /// The expectations.
    pub catalogue: &'a Catalogue,
    /// Their digest.
    pub thresholds_digest: &'a str,
    /// The platform a person named.
    pub platform: Option<&'a str>,
    /// What may be proposed.
    pub policy: &'a Policy,
    /// Where run folders go.
    pub runs: &'a Path,
    /// Whom to tell how far it is.
    pub progress: Progress,
}

/// A sweep that was carried out, wholly or in part.
#[derive(Debug)]
pub struct Done {
    /// Everything a report shows.
    pub run: Run,
    /// Its folder.
    pub folder: Folder,
    /// It was interrupted.
    pub partial: bool,
    /// Some tool or node could not be reached.
    pub out_of_reach: bool,
}

/// Why a sweep could not be carried out at all.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The run folder cannot be written.
    #[error("the run cannot be recorded")]
    Record(#[from] RecordError),
    /// The runtime cannot be started.
    #[error("the runtime cannot be started")]
    Runtime(#[source] std::io::Error),
}

/// Carries out a sweep. The run folder is made first and tells at every
/// moment how far the run came.
pub fn audit(audit: &Audit<'_>) -> Result<Done, AuditError> {
    let folder = Folder::create(audit.runs, &audit.info.id)?;
    let mut record = RunRecord {
        format: record::RUN_FORMAT.to_owned(),
        info: audit.info.clone(),
        state: State::Running,
        ended: None,
        seed: audit.plan.seed,
        launcher: audit.launcher.clone(),
        platform: audit.platform.map(str::to_owned),
        policy: audit.policy.clone(),
        fleet: audit.fleet.domains.iter().map(|d| d.nodes.len()).sum(),
        claims_digest: record::digest(audit.claims),
        thresholds_digest: audit.thresholds_digest.to_owned(),
    };
    let claims =
        ClaimsRecord { format: record::CLAIMS_FORMAT.to_owned(), claims: audit.claims.clone() };
    folder.write_json(file::CLAIMS, &claims)?;
    folder.write_json(file::PLAN, audit.plan)?;
    folder.write_json(file::RUN, &record)?;

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(AuditError::Runtime)?;
    let sweep = runtime.block_on(sweep::run(audit, &folder))?;

    let case = Judged {
        claims: audit.claims,
        plan: audit.plan,
        results: &sweep.results,
        recordings: sweep.recordings,
        catalogue: audit.catalogue,
        thresholds_digest: audit.thresholds_digest,
        platform: audit.platform,
    };
    let judgement = judged(case);
    folder.write_json(file::VERDICTS, &judgement.verdicts)?;
    folder.write_lines(file::CELLS, &judgement.cells)?;
    let coverage = coverage(audit.plan, audit.launcher, &sweep.results);
    let actions = policy::propose(&judgement.verdicts, audit.fleet, audit.policy, Some(coverage));
    folder.write_json(file::ACTIONS, &actions)?;
    record.state = if sweep.interrupted { State::Partial } else { State::Complete };
    record.ended = Some(shown(now()));
    folder.write_json(file::RUN, &record)?;

    let out_of_reach = sweep.results.iter().any(|r| is_out_of_reach(r, audit.launcher));
    Ok(Done {
        run: Run {
            info: audit.info.clone(),
            claims: judgement.claims,
            cells: judgement.cells,
            verdicts: judgement.verdicts,
            actions: Some(actions),
        },
        folder,
        partial: sweep.interrupted,
        out_of_reach,
    })
}

/// Whether a step says more of the environment than of the node's fabric.
fn is_out_of_reach(result: &RawResult, launcher: &Launcher) -> bool {
    let unconnected = match result.ending {
        Ending::Exited { code } => launcher.is_connect_failure(code),
        _ => false,
    };
    unconnected || result.ending.is_out_of_reach()
}

/// How much of the plan came back: a tool that ran to its end, well or not.
pub fn coverage(plan: &Plan, launcher: &Launcher, results: &[RawResult]) -> Coverage {
    let returned = results
        .iter()
        .filter(|r| {
            let ended = matches!(r.ending, Ending::Exited { .. } | Ending::Signalled { .. });
            ended && !is_out_of_reach(r, launcher)
        })
        .count();
    Coverage { planned: plan.steps().map(|s| s.readings as usize).sum(), returned }
}

/// What a stored or a live run is judged from.
#[derive(Debug)]
pub struct Judged<'a> {
    /// What was claimed of the nodes it covers.
    pub claims: &'a Claims,
    /// What was planned.
    pub plan: &'a Plan,
    /// What was run.
    pub results: &'a [RawResult],
    /// What was read.
    pub recordings: Vec<Recording>,
    /// The expectations.
    pub catalogue: &'a Catalogue,
    /// Their digest.
    pub thresholds_digest: &'a str,
    /// The platform a person named.
    pub platform: Option<&'a str>,
}

/// The judge's word, and an unknown for everything that was planned and did
/// not come back. The order in which steps ended makes no difference.
pub fn judged(mut run: Judged<'_>) -> Judgement {
    run.recordings.sort_by(|a, b| (&a.scope, &a.file).cmp(&(&b.scope, &b.file)));
    let mut judgement = judge::judge(&Case {
        claims: run.claims,
        recordings: &run.recordings,
        catalogue: run.catalogue,
        thresholds_digest: run.thresholds_digest,
        platform: run.platform,
        cells: true,
        sampled: false,
    });
    let gaps = gaps::of_run(run.plan, run.results, &run.recordings);
    gaps::close(&mut judgement.verdicts, run.claims, &gaps);
    judgement
}

/// Reads the output of one step; `None` where there is nothing to read. An
/// output whose tool did not end well is never complete, whatever it looks
/// like.
pub fn recording(result: &RawResult, stdout: &[u8]) -> Option<Recording> {
    let file = result.stdout.clone()?;
    let gap = result.gap();
    if gap.is_some() && stdout.iter().all(u8::is_ascii_whitespace) {
        return None;
    }
    let mut parsed = crate::measure::read(stdout);
    if let Some(why) = gap {
        parsed.complete = false;
        if !parsed.has(ProblemKind::Error) && !parsed.has(ProblemKind::Corrupt) {
            parsed.problems.push(Problem::new(ProblemKind::Truncated, why));
        }
    }
    Some(Recording::new(Scope::Node(result.nodes[0].clone()), file, parsed))
}

/// Where the standard output of a step goes inside the run folder. `raw/` has
/// the layout of a folder of recorded outputs, so it can be judged as one.
fn stdout_file(node: &str, probe: &str, reading: u32) -> String {
    format!("raw/nodes/{node}/{probe}.{reading}.txt")
}

/// Where its standard error goes.
fn stderr_file(node: &str, probe: &str, reading: u32) -> String {
    format!("stderr/nodes/{node}/{probe}.{reading}.txt")
}
