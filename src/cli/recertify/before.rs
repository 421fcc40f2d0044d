//! The run before the repair: found or named, read, and held against the one that
//! was just made.
//!
//! Opens run folders and the journal. What changed is the judge's to compare and
//! `act::repair`'s to say.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::path::Path;
use std::path::PathBuf;

use crate::cli::config::Config;
use crate::cli::earlier::Past;
use crate::cli::failure::Failure;
use crate::cli::show::Repaired;
use crate::cli::stdout::note;
use crate::cli::stored;
use crate::cli::sweep::Swept;
use control::gate::journal;
use control::store::history::identity;
use control::store::stored::Stored;
use engine::judge::compared;
use engine::judge::compared::Side;
use engine::policy::repair;
use engine::policy::repair::Sides;
use model::comparison::COMPARISON_FORMAT;
use model::comparison::Repair;
use model::comparison::Repairs;
use model::comparison::Without;
use model::id::NodeName;
use model::recording::Recording;
use model::run::Run;
use model::trend::ChangeKind;
use model::trend::Changed;
use model::verdict::Outcome;
use readers::claims::reconcile::diff;

/// The run on which our drain of each node rests, where there is a journal.
pub(super) fn drained(config: &Config) -> BTreeMap<NodeName, String> {
    let Some(gate) = &config.gate else { return BTreeMap::new() };
    match journal::look(&gate.folder) {
        Ok(ledger) => ledger.drains.into_iter().map(|(node, drain)| (node, drain.run)).collect(),
        Err(error) => {
            note(&format!("which run a drain rests on is not known: {error}"));
            BTreeMap::new()
        }
    }
}

/// A run before a repair, read.
#[derive(Debug)]
pub(super) struct Before {
    stored: Stored,
    run: Run,
    recordings: Vec<Recording>,
}

/// The run that a person named.
pub(super) fn named(path: &Path) -> Result<Before, Failure> {
    Before::read(path).map_err(|error| match error {
        Failure::Usage(text) => Failure::Usage(format!("--before: {text}")),
        Failure::Environment(text) => Failure::Environment(format!("--before: {text}")),
        Failure::Refused(text) => Failure::Refused(text),
    })
}

impl Before {
    fn read(path: &Path) -> Result<Self, Failure> {
        let stored = stored::open_quietly(path)?;
        let run = stored::run(&stored)?;
        let recordings = stored.recordings().map_err(stored::failure)?;
        Ok(Self { stored, run, recordings })
    }

    fn says_nothing_of(&self, node: &NodeName) -> bool {
        !self.run.verdicts.nodes.iter().any(|it| it.node == *node)
    }

    /// Whether it tells of any of the nodes.
    pub(super) fn check(&self, named: &BTreeSet<NodeName>) -> Result<(), Failure> {
        match !named.is_empty() && named.iter().all(|node| self.says_nothing_of(node)) {
            true => Err(Failure::Usage(format!(
                "--before {}: this run measured none of the nodes named",
                self.stored.path().display()
            ))),
            false => Ok(()),
        }
    }
}

/// What changed of each node since the run before its repair.
pub(super) fn repaired(
    swept: &Swept,
    named: &BTreeSet<NodeName>,
    past: &Past,
    drained: &BTreeMap<NodeName, String>,
    named_before: Option<Before>,
) -> anyhow::Result<Repaired> {
    let mut repairs =
        Repairs { format: COMPARISON_FORMAT.to_owned(), nodes: Vec::new(), without: Vec::new() };
    let now = Now::of(swept)?;
    let mut read: BTreeMap<PathBuf, Result<Before, String>> = BTreeMap::new();
    for node in named {
        let found = match &named_before {
            Some(before) => Ok(before),
            None => match past.of_node(node, drained) {
                None => Err("no earlier run in run_dir measured it".to_owned()),
                Some(path) => {
                    let entry = read
                        .entry(path.clone())
                        .or_insert_with(|| Before::read(path).map_err(|error| error.to_string()));
                    entry.as_ref().map_err(Clone::clone)
                }
            },
        };
        match found.and_then(|before| now.repair(node, before)) {
            Ok(repair) => repairs.nodes.push(repair),
            Err(why) => repairs.without.push(Without { node: node.clone(), why }),
        }
    }
    let commonest = Repaired::commonest(&repairs);
    let mut all = named_before.into_iter().chain(read.into_values().flatten());
    let before = all.find(|it| Some(it.run.info.id.as_str()) == commonest).map(|it| it.run);
    Ok(Repaired { repairs, before })
}

/// The run that was just made.
struct Now<'a> {
    run: &'a Run,
    recordings: Vec<Recording>,
    identities: BTreeMap<NodeName, identity::Identity>,
}

impl<'a> Now<'a> {
    fn of(swept: &'a Swept) -> Result<Self, Failure> {
        let stored = stored::open_quietly(swept.done.folder.path())?;
        let recordings = stored.recordings().map_err(stored::failure)?;
        let identities = identities(&stored, &recordings)?;
        Ok(Self { run: &swept.done.run, recordings, identities })
    }

    fn repair(&self, node: &NodeName, before: &Before) -> Result<Repair, String> {
        let then = before.run.verdicts.nodes.iter().find(|it| it.node == *node);
        let id = &before.run.info.id;
        let then = then.ok_or_else(|| format!("run {id} does not tell of it"))?;
        let was = identities(&before.stored, &before.recordings).map_err(|it| it.to_string())?;
        let changes = self.changes(node, before, was.get(node));
        let side = |run: &'a Run, recordings: &'a [Recording]| Side {
            run: &run.info.id,
            created: &run.info.created,
            cells: &run.cells,
            recordings,
        };
        let earlier = Side {
            run: &before.run.info.id,
            created: &before.run.info.created,
            cells: &before.run.cells,
            recordings: &before.recordings,
        };
        let later = side(self.run, &[]);
        let later = Side { recordings: &self.recordings, ..later };
        let comparison =
            compared::compare(&earlier, &later, &|part| part.node.as_ref() == Some(node));
        let after = self.run.verdicts.nodes.iter().find(|it| it.node == *node);
        let says = repair::says(&Sides {
            node,
            before: then,
            found: &before.run.verdicts.findings,
            after: &self.run.verdicts,
            comparison: &comparison,
            changes: &changes,
        });
        Ok(Repair {
            node: node.clone(),
            before: then.outcome,
            before_reason: then.reason.clone(),
            after: after.map_or(Outcome::Unknown, |it| it.outcome),
            says,
            changes,
            comparison,
        })
    }

    /// What is not as it was: the machine, and what is claimed of it.
    fn changes(
        &self,
        node: &NodeName,
        before: &Before,
        was: Option<&identity::Identity>,
    ) -> Vec<Changed> {
        let changed = |kind, what: String, before: String, after: String| Changed {
            run: self.run.info.id.clone(),
            at: self.run.info.created.clone(),
            node: Some(node.clone()),
            kind,
            what,
            before,
            after,
        };
        let is = self.identities.get(node);
        let both = was.zip(is).map(|(was, is)| identity::differences(was, is)).unwrap_or_default();
        let mut all: Vec<Changed> = both
            .into_iter()
            .map(|(what, was, is)| changed(identity::IdentityName::read(&what).kind, what, was, is))
            .collect();
        // A run covers a part of the fleet: that others are in another part is no
        // change of this node.
        let of = |run: &Run| run.claims.domain_of(node).map(|domain| domain.name.to_string());
        if let (Some(was), Some(is)) = (of(&before.run), of(self.run))
            && was != is
        {
            all.push(changed(ChangeKind::Claim, "domain".to_owned(), was, is));
        }
        let (then, now) = (&before.stored.claims.nodes, &self.run.claims.nodes);
        if let (Some(was), Some(is)) = (then.get(node), now.get(node)) {
            let told: BTreeSet<String> = all.iter().map(|change| change.what.clone()).collect();
            for (what, was, is) in diff::facts_changed(was, is) {
                // Identities hold some of it, and know it of whoever was not read.
                if what != "boot id" && !told.contains(what) {
                    all.push(changed(ChangeKind::Claim, what.to_owned(), was, is));
                }
            }
        }
        all
    }
}

fn identities(
    stored: &Stored,
    recordings: &[Recording],
) -> Result<BTreeMap<NodeName, identity::Identity>, Failure> {
    let machines = stored.machines().map_err(stored::failure)?;
    Ok(identity::identities(&stored.claims, &machines, recordings))
}
