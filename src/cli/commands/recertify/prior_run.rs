//! The run before a repair: finds it, reads it, and compares it with the re-certification.
//!
//! Opens run folders and the journal. The judge compares the runs and `act::repair` summarizes the
//! changes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::cli::past_runs::PastRuns;
use crate::cli::report_output::RepairComparison;
use crate::cli::stdout::note;
use crate::cli::stored_run;
use crate::cli::sweep::SweepOutput;
use crate::config::Config;
use crate::exit::CommandError;
use control::gate::journal;
use control::store::history::node_identity;
use control::store::run_reader::StoredRun;
use engine::judge::run_comparison;
use engine::judge::run_comparison::ComparisonSide;
use engine::policy::repair_summary;
use engine::policy::repair_summary::RepairSides;
use model::comparison::{COMPARISON_FORMAT, NodeRepair, RepairReport, UncomparedNode};
use model::id::NodeName;
use model::run::Run;
use model::tool_recording::ToolRecording;
use model::trend::{RunChange, RunChangeKind};
use model::verdict::Outcome;
use readers::claims::reconcile::diff;

/// The run that each of the gate's drains is based on, if there is a journal.
pub(crate) fn find_drain_runs(config: &Config) -> BTreeMap<NodeName, String> {
    let Some(gate) = &config.gate else { return BTreeMap::new() };
    match journal::read_state(&gate.folder) {
        Ok(ledger) => ledger.drains.into_iter().map(|(node, drain)| (node, drain.run)).collect(),
        Err(error) => {
            note(&format!("the runs that drains are based on are unknown: {error}"));
            BTreeMap::new()
        }
    }
}

/// A run before a repair, with its recordings.
#[derive(Debug)]
pub(crate) struct PriorRun {
    stored: StoredRun,
    run: Run,
    recordings: Vec<ToolRecording>,
}

/// Reads the run given with --before.
pub(crate) fn read_named_run(path: &Path) -> Result<PriorRun, CommandError> {
    PriorRun::read(path).map_err(|error| match error {
        CommandError::Usage(text) => CommandError::Usage(format!("--before: {text}")),
        CommandError::Environment(text) => CommandError::Environment(format!("--before: {text}")),
        CommandError::Refused(text) => CommandError::Refused(text),
    })
}

impl PriorRun {
    fn read(path: &Path) -> Result<Self, CommandError> {
        let stored = stored_run::open_run_quietly(path)?;
        let run = stored_run::read_run(&stored)?;
        let recordings = stored.recordings().map_err(stored_run::record_error)?;
        Ok(Self { stored, run, recordings })
    }

    fn lacks_node(&self, node: &NodeName) -> bool {
        !self.run.verdicts.nodes.iter().any(|it| it.node == *node)
    }

    /// Checks that the run measured at least one of the nodes.
    pub(crate) fn check_covers(&self, named: &BTreeSet<NodeName>) -> Result<(), CommandError> {
        match !named.is_empty() && named.iter().all(|node| self.lacks_node(node)) {
            true => Err(CommandError::Usage(format!(
                "--before {}: this run measured none of the named nodes",
                self.stored.path().display()
            ))),
            false => Ok(()),
        }
    }
}

/// The changes of each node since the run before its repair.
pub(crate) fn compare_with_prior(
    swept: &SweepOutput,
    named: &BTreeSet<NodeName>,
    past: &PastRuns,
    drained: &BTreeMap<NodeName, String>,
    named_before: Option<PriorRun>,
) -> anyhow::Result<RepairComparison> {
    let mut repairs = RepairReport {
        format: COMPARISON_FORMAT.to_owned(),
        nodes: Vec::new(),
        without: Vec::new(),
    };
    let now = RecertificationRun::read(swept)?;
    let mut read: BTreeMap<PathBuf, Result<PriorRun, String>> = BTreeMap::new();
    for node in named {
        let found = match &named_before {
            Some(before) => Ok(before),
            None => match past.run_to_compare(node, drained) {
                None => Err("no earlier run in run_dir measured it".to_owned()),
                Some(path) => {
                    let entry = read
                        .entry(path.clone())
                        .or_insert_with(|| PriorRun::read(path).map_err(|error| error.to_string()));
                    entry.as_ref().map_err(Clone::clone)
                }
            },
        };
        match found.and_then(|before| now.compare_node(node, before)) {
            Ok(repair) => repairs.nodes.push(repair),
            Err(why) => repairs.without.push(UncomparedNode { node: node.clone(), why }),
        }
    }
    let commonest = RepairComparison::most_compared_run(&repairs);
    let mut all = named_before.into_iter().chain(read.into_values().flatten());
    let before = all.find(|it| Some(it.run.info.id.as_str()) == commonest).map(|it| it.run);
    Ok(RepairComparison { repairs, before })
}

struct RecertificationRun<'a> {
    run: &'a Run,
    recordings: Vec<ToolRecording>,
    identities: BTreeMap<NodeName, node_identity::NodeIdentity>,
}

impl<'a> RecertificationRun<'a> {
    fn read(swept: &'a SweepOutput) -> Result<Self, CommandError> {
        let stored = stored_run::open_run_quietly(swept.done.folder.path())?;
        let recordings = stored.recordings().map_err(stored_run::record_error)?;
        let identities = read_identities(&stored, &recordings)?;
        Ok(Self { run: &swept.done.run, recordings, identities })
    }

    fn compare_node(&self, node: &NodeName, before: &PriorRun) -> Result<NodeRepair, String> {
        let then = before.run.verdicts.nodes.iter().find(|it| it.node == *node);
        let id = &before.run.info.id;
        let then = then.ok_or_else(|| format!("run {id} did not measure it"))?;
        let was =
            read_identities(&before.stored, &before.recordings).map_err(|it| it.to_string())?;
        let changes = self.list_changes(node, before, was.get(node));
        let side = |run: &'a Run, recordings: &'a [ToolRecording]| ComparisonSide {
            run: &run.info.id,
            created: &run.info.created,
            cells: &run.cells,
            recordings,
        };
        let earlier = ComparisonSide {
            run: &before.run.info.id,
            created: &before.run.info.created,
            cells: &before.run.cells,
            recordings: &before.recordings,
        };
        let later = side(self.run, &[]);
        let later = ComparisonSide { recordings: &self.recordings, ..later };
        let comparison = run_comparison::compare_runs(&earlier, &later, &|part| {
            part.node.as_ref() == Some(node)
        });
        let after = self.run.verdicts.nodes.iter().find(|it| it.node == *node);
        let summary = repair_summary::summarize_repair(&RepairSides {
            node,
            before: then,
            found: &before.run.verdicts.findings,
            after: &self.run.verdicts,
            comparison: &comparison,
            changes: &changes,
        });
        Ok(NodeRepair {
            node: node.clone(),
            before: then.outcome,
            before_reason: then.reason.clone(),
            after: after.map_or(Outcome::Unknown, |it| it.outcome),
            text: summary,
            changes,
            comparison,
        })
    }

    /// The differences of the machine and of its claims.
    fn list_changes(
        &self,
        node: &NodeName,
        before: &PriorRun,
        was: Option<&node_identity::NodeIdentity>,
    ) -> Vec<RunChange> {
        let changed = |kind, what: String, before: String, after: String| RunChange {
            run: self.run.info.id.clone(),
            at: self.run.info.created.clone(),
            node: Some(node.clone()),
            kind,
            what,
            before,
            after,
        };
        let is = self.identities.get(node);
        let both = was
            .zip(is)
            .map(|(was, is)| node_identity::identity_differences(was, is))
            .unwrap_or_default();
        let mut all: Vec<RunChange> = both
            .into_iter()
            .map(|(what, was, is)| {
                changed(node_identity::IdentityField::from_name(&what).kind, what, was, is)
            })
            .collect();
        // A run covers a part of the fleet: other nodes in another part are not a change of this
        // node.
        let of = |run: &Run| run.claims.domain_of(node).map(|domain| domain.name.to_string());
        if let (Some(was), Some(is)) = (of(&before.run), of(self.run))
            && was != is
        {
            all.push(changed(RunChangeKind::Claim, "domain".to_owned(), was, is));
        }
        let (then, now) = (&before.stored.claims.nodes, &self.run.claims.nodes);
        if let (Some(was), Some(is)) = (then.get(node), now.get(node)) {
            let known: BTreeSet<String> = all.iter().map(|change| change.what.clone()).collect();
            for (what, was, is) in diff::changed_facts(was, is) {
                // Identities cover some of these facts, also for nodes whose sources were not read.
                if what != "boot id" && !known.contains(what) {
                    all.push(changed(RunChangeKind::Claim, what.to_owned(), was, is));
                }
            }
        }
        all
    }
}

fn read_identities(
    stored: &StoredRun,
    recordings: &[ToolRecording],
) -> Result<BTreeMap<NodeName, node_identity::NodeIdentity>, CommandError> {
    let machines = stored.machines().map_err(stored_run::record_error)?;
    Ok(node_identity::node_identities(&stored.claims, &machines, recordings))
}
