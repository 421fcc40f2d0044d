//! What must hold whatever happens: an independent account of the scheduler's
//! nodes, and the promises held against it.
//!
//! It is fed from three sources and no other: the scheduler's own log of what was
//! asked and changed, the lines of the journal, and run folders. It knows nothing
//! of the gate's types, and shares no code with it.

use std::collections::{BTreeMap, BTreeSet};

use super::journal::Line;
use super::runs::Evidence;

/// What a node says, flat: `drain` is the reason of a drain, `down` that of a node
/// that is down; what begins with `own/` is fabricgate's to write, and everything
/// else is somebody else's.
pub(crate) type Fields = BTreeMap<String, String>;

/// The reason of a drain.
pub(crate) const DRAIN: &str = "drain";
/// What fields begin with that are fabricgate's to write.
pub(crate) const OWN: &str = "own/";
/// What a person who takes a drain away leaves beside it.
const WORDS: [&str; 2] = ["own/extra/fabricgate", "own/condition/GpuFabricVerified"];

/// Who did something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The gate, in this command of an episode.
    Gate(u32),
    /// A person.
    Hand,
    /// A scheduler that lost what it was told.
    Fate,
}

/// What a scheduler is told to make of its nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Order {
    /// Fields that go; one that ends with `/` stands for all that begin so.
    pub(crate) unset: Vec<String>,
    /// Fields that are written.
    pub(crate) set: Fields,
}

impl Order {
    /// The node after it.
    pub(crate) fn on(&self, node: &Fields) -> Fields {
        let goes = |key: &String| {
            self.unset.iter().any(|it| it == key || it.ends_with('/') && key.starts_with(it))
        };
        let mut after: Fields = node
            .iter()
            .filter(|(key, _)| !goes(key))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        after.extend(self.set.clone());
        after
    }
}

/// What the scheduler noted.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// Somebody asked, and was answered this.
    Read(BTreeMap<String, Fields>),
    /// Somebody told it something, whatever became of that.
    Told {
        /// Which nodes.
        nodes: Vec<String>,
        /// What.
        order: Order,
        /// How long the journal was at that moment, in bytes.
        journal: u64,
        /// The run that a drain names had its verdicts on disk at that moment.
        evidence: bool,
    },
    /// An older copy of the journal was put back.
    Restored,
    /// A node changed.
    Became {
        /// Which.
        node: String,
        /// What it says now.
        now: Fields,
    },
}

/// One line of the scheduler's log.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Who.
    pub(crate) by: By,
    /// What.
    pub(crate) what: What,
}

/// How much may be out at a time, and be begun within an hour, in nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) per_domain: usize,
    pub(crate) outstanding: usize,
    pub(crate) per_hour: usize,
    /// Suspects of one domain that are a common cause.
    pub(crate) freeze_domain: usize,
    /// Suspects of the fleet that are one.
    pub(crate) freeze_fleet: usize,
    /// Whole runs that a drained node must pass.
    pub(crate) clean_sweeps: usize,
    /// What may pass by itself has to be found again, hours later.
    pub(crate) waits: bool,
}

/// Everything that is known of an episode, which is shorter than an hour.
#[derive(Clone, Debug)]
pub(crate) struct History {
    /// The nodes as they were at first.
    pub(crate) begin: BTreeMap<String, Fields>,
    /// The scheduler's log.
    pub(crate) log: Vec<Entry>,
    /// The journal.
    pub(crate) journal: Vec<Line>,
    /// Journals that were there before an older copy was put back in their place, oldest
    /// first.
    pub(crate) earlier: Vec<Vec<Line>>,
    /// Run folders, by the names of their runs.
    pub(crate) runs: BTreeMap<String, Evidence>,
    /// The domain of each node.
    pub(crate) domains: BTreeMap<String, String>,
    pub(crate) limits: Limits,
}

impl History {
    /// Every promise that was broken, in words.
    pub(crate) fn broken(&self) -> Vec<String> {
        let mut broken = self.lines();
        broken.extend(self.orders());
        broken.extend(self.budgets());
        broken.extend(self.intents());
        broken
    }

    /// The journal's lines follow each other.
    fn lines(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for (at, line) in (1..).zip(&self.journal) {
            if line.seq != at {
                broken.push(format!("line {at} of the journal has number {}", line.seq));
            }
        }
        for pair in self.journal.windows(2) {
            if pair[1].epoch < pair[0].epoch || pair[1].unix < pair[0].unix {
                broken.push(format!("line {} of the journal goes back in time", pair[1].seq));
            }
        }
        broken
    }

    /// Whether this reason is one that our journal meant for this node; words may
    /// have been appended to it.
    pub(crate) fn is_ours(&self, node: &str, reason: &str) -> bool {
        let all = self.earlier.iter().flatten().chain(&self.journal);
        let mut drains = all.filter(|line| line.is_intent_of(node) && line.kind == "drain");
        drains.any(|line| is_written(&line.reason, reason))
    }

    /// The journal as it was when so many copies had been put back.
    fn of_era(&self, era: usize) -> &[Line] {
        self.earlier.get(era).map_or(&self.journal, Vec::as_slice)
    }

    fn drains<'h>(&'h self, node: &'h str) -> impl Iterator<Item = &'h Line> {
        let is_it = move |line: &&Line| line.is_intent_of(node) && line.kind == "drain";
        self.journal.iter().filter(is_it)
    }

    /// What the gate told the scheduler was its own to tell, was meant in the
    /// journal before, and rests on evidence that was there.
    fn orders(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let mut seen: BTreeMap<(u32, &str), &Fields> = BTreeMap::new();
        let mut era = 0;
        let mut nodes = self.begin.clone();
        // Drains of ours that a person took away, with our words beside them.
        let mut undone: BTreeMap<&str, String> = BTreeMap::new();
        for entry in &self.log {
            era += usize::from(matches!(entry.what, What::Restored));
            if let What::Became { node, now } = &entry.what {
                let was = nodes.insert(node.clone(), now.clone()).unwrap_or_default();
                let (kept, drained) = (was.get(DRAIN).cloned(), now.contains_key(DRAIN));
                undone.remove(node.as_str());
                if let (By::Hand, Some(reason), false) = (entry.by, kept, drained)
                    && WORDS.iter().any(|key| now.contains_key(*key))
                {
                    undone.insert(node, reason);
                }
            }
            if let What::Told { nodes, order, .. } = &entry.what {
                let again = order.set.get(DRAIN);
                let again = nodes.iter().filter(|node| {
                    again.is_some_and(|again| {
                        undone.get(node.as_str()).is_some_and(|it| it == again)
                    })
                });
                broken.extend(again.map(|node| format!("{node}: an undo was overridden")));
            }
            let By::Gate(gate) = entry.by else { continue };
            match &entry.what {
                What::Read(nodes) => {
                    seen.extend(nodes.iter().map(|(name, node)| ((gate, name.as_str()), node)));
                }
                What::Told { nodes, order, journal, evidence } => {
                    for node in nodes {
                        let Some(before) = seen.get(&(gate, node.as_str())) else {
                            broken.push(format!("{node} was changed without being read"));
                            continue;
                        };
                        let known = Known { node, era, journal: *journal, evidence: *evidence };
                        broken.extend(self.told(&known, before, &order.on(before)));
                    }
                }
                What::Became { .. } | What::Restored => {}
            }
        }
        broken
    }

    /// One node of an order: as it was read last, and as it was to be.
    fn told(&self, known: &Known<'_>, before: &Fields, after: &Fields) -> Vec<String> {
        let Known { node, .. } = known;
        let mut broken = Vec::new();
        let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        let changed = keys.into_iter().filter(|key| before.get(*key) != after.get(*key));
        for key in changed {
            let (was, is) = (before.get(key), after.get(key));
            if key == DRAIN {
                broken.extend(self.drained(known, was, is));
            } else if key.starts_with(OWN) {
                // What was forgotten may be said again: it was meant before.
                if !self.until(known).any(|line| line.is_intent_of(node)) {
                    broken.push(format!("{node}: {key} was written without an intent"));
                }
            } else {
                broken.push(format!("{node}: {key} is not ours: {was:?} became {is:?}"));
            }
        }
        let is_drained = !before.contains_key(DRAIN) && after.contains_key(DRAIN);
        if is_drained && is_kept(before) {
            broken.push(format!("{node} was out by somebody else, and drained"));
        }
        broken
    }

    fn until<'h>(&'h self, known: &Known<'_>) -> impl Iterator<Item = &'h Line> {
        let end = known.journal;
        self.of_era(known.era).iter().take_while(move |line| line.end <= end)
    }

    fn drained(
        &self,
        known: &Known<'_>,
        was: Option<&String>,
        is: Option<&String>,
    ) -> Option<String> {
        let Known { node, evidence, .. } = known;
        if let Some(was) = was
            && !self.is_ours(node, was)
        {
            return Some(format!("{node}: somebody else's drain {was:?} became {is:?}"));
        }
        let open = |kind: &str| {
            self.until(known).any(|line| {
                let is_it = line.is_intent_of(node) && line.kind == kind;
                is_it && !self.until(known).any(|end| end.ends(&line.id))
            })
        };
        match is {
            Some(reason) => {
                let meant = self.until(known).any(|line| {
                    line.is_intent_of(node) && line.kind == "drain" && line.reason == *reason
                });
                if !meant || !open("drain") {
                    return Some(format!("{node}: {reason:?} was told without an open intent"));
                }
                (!evidence).then(|| format!("{node}: {reason:?} names a run without verdicts"))
            }
            None => {
                (!open("release")).then(|| format!("{node} was given back without an open intent"))
            }
        }
    }

    /// What is out at a time, at every moment, and what was begun.
    fn budgets(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let mut nodes = self.begin.clone();
        let mut begun: BTreeSet<(String, String)> = BTreeSet::new();
        let mut era = 0;
        for entry in &self.log {
            era += usize::from(matches!(entry.what, What::Restored));
            let What::Became { node, now } = &entry.what else { continue };
            let was = nodes.insert(node.clone(), now.clone()).unwrap_or_default();
            // What came back with an older store, no later change of anything else brought.
            let is_drain = was.get(DRAIN) != now.get(DRAIN) && now.contains_key(DRAIN);
            if let (By::Gate(_), Some(reason)) = (entry.by, now.get(DRAIN))
                && self.is_ours(node, reason)
            {
                begun.insert((node.clone(), reason.clone()));
            }
            let out = self.out(&nodes);
            let Limits { per_domain, outstanding, per_hour, .. } = self.limits;
            let mut told = |what: &str, is: usize, most: usize| {
                if most < is && is_drain && matches!(entry.by, By::Gate(_)) {
                    broken.push(format!("{node}: {is} {what}, and {most} are allowed"));
                }
            };
            told("nodes are out", out.len(), outstanding);
            // What a journal lost with its later lines can be known by what stands alone.
            let is_known = |(node, reason): &&(String, String)| {
                let stands = nodes[node].get(DRAIN).is_some_and(|is| is_written(reason, is));
                let mut lines = self.of_era(era).iter();
                stands || lines.any(|line| line.is_intent_of(node) && line.reason == *reason)
            };
            told("drains were begun", begun.iter().filter(is_known).count(), per_hour);
            let domain = self.domains.get(node);
            let beside = out.iter().filter(|it| self.domains.get(**it) == domain).count();
            told("nodes of its domain are out", beside, per_domain);
        }
        broken
    }

    /// Nodes that are drained by us.
    pub(crate) fn out<'n>(&self, nodes: &'n BTreeMap<String, Fields>) -> Vec<&'n String> {
        let is_out = |(name, node): &(&String, &Fields)| {
            node.get(DRAIN).is_some_and(|reason| self.is_ours(name, reason))
        };
        nodes.iter().filter(is_out).map(|(name, _)| name).collect()
    }

    /// Every intent rests on a run that says so.
    fn intents(&self) -> Vec<String> {
        let eras = self.earlier.iter().map(Vec::as_slice).chain([self.journal.as_slice()]);
        eras.flat_map(|lines| {
            let intents = lines.iter().filter(|it| it.event == "intent");
            intents.filter_map(|it| self.unfounded(lines, it))
        })
        .collect()
    }

    fn unfounded(&self, lines: &[Line], line: &Line) -> Option<String> {
        let (node, id) = (&line.node, &line.id);
        let Some(run) = self.runs.get(&line.run) else {
            return Some(format!("{id}: run {} has no readable verdicts", line.run));
        };
        let outcome = run.nodes.get(node).map_or("nothing", String::as_str);
        match line.kind.as_str() {
            "drain" | "relabel" => {
                let accused = line.findings.iter().any(|id| {
                    let found = run.findings.get(id);
                    found.is_some_and(|it| it.node.as_ref() == Some(node) && it.confirmed)
                });
                let is_bad = matches!(outcome, "degraded" | "failed");
                (!accused || !is_bad)
                    .then(|| format!("{id}: run {} says {outcome}: {:?}", line.run, line.findings))
            }
            "certify" => (outcome != "pass").then(|| format!("{id}: the run says {outcome}")),
            "release" => {
                let mut drained =
                    lines.iter().filter(|it| it.is_intent_of(node) && it.kind == "drain");
                let drained = drained.rfind(|it| it.seq < line.seq);
                let Some(drained) = drained else {
                    return Some(format!("{id}: it was never drained by us"));
                };
                let clean = self.runs.values().filter(|run| {
                    let passed = run.nodes.get(node).is_some_and(|it| it == "pass");
                    passed && run.is_whole && is_since(drained, run)
                });
                let clean = clean.count();
                (clean < self.limits.clean_sweeps)
                    .then(|| format!("{id}: it passed {clean} runs since it was drained"))
            }
            other => Some(format!("{id}: nobody knows {other:?}")),
        }
    }

    /// The nodes as they are now.
    pub(crate) fn now(&self) -> BTreeMap<String, Fields> {
        let mut nodes = self.begin.clone();
        for entry in &self.log {
            if let What::Became { node, now } = &entry.what {
                nodes.insert(node.clone(), now.clone());
            }
        }
        nodes
    }

    /// What is not as this run, the last of several alike that nothing disturbed,
    /// asks for.
    pub(crate) fn unsettled(&self, run: &str) -> Vec<String> {
        let Some(run) = self.runs.get(run) else {
            return vec![format!("run {run} has no readable verdicts")];
        };
        let mut broken = Vec::new();
        let ended: BTreeSet<&String> = self.journal.iter().filter_map(Line::ended).collect();
        let open = self.journal.iter().filter(|it| it.event == "intent" && !ended.contains(&it.id));
        broken.extend(open.map(|it| format!("{} is open yet", it.id)));
        let nodes = self.now();
        // What is drained in our form counts, whoever wrote it.
        let is_out =
            |node: &Fields| node.get(DRAIN).is_some_and(|it| it.starts_with("fabricgate:"));
        let out: BTreeSet<&String> =
            nodes.iter().filter(|(_, node)| is_out(node)).map(|(name, _)| name).collect();
        let unknown = out.iter().filter(|name| {
            let reason = &nodes[**name][DRAIN];
            !self.drains(name).any(|line| is_written(&line.reason, reason))
        });
        let unknown = unknown.count();
        let all = run.findings.values();
        let confirmed = all.clone().filter(|it| it.confirmed);
        let accused: BTreeSet<&String> = confirmed.filter_map(|it| it.node.as_ref()).collect();
        let suspect: BTreeSet<&String> = all.filter_map(|it| it.node.as_ref()).collect();
        for (name, node) in &nodes {
            let outcome = run.nodes.get(name).map_or("nothing", String::as_str);
            let is_bad = matches!(outcome, "degraded" | "failed") && accused.contains(name);
            let is_free = !node.contains_key(DRAIN) && !is_kept(node);
            let is_excused = self.is_tripped() || self.is_undone(name) || self.is_awaited(name);
            if is_bad && is_free && !is_excused && !self.is_full(name, &out, &suspect, unknown) {
                broken.push(format!("{name} is {outcome} and in service"));
            }
            let as_written = node.get(DRAIN).is_some_and(|is| {
                self.drains(name).any(|line| line.reason == *is && !self.is_ahead(line))
            });
            // Who is down, a person's word, is given back by nobody else.
            let is_down = node.contains_key("down");
            let is_left = is_down || self.is_brought_back(name);
            if outcome == "pass" && as_written && !is_left && self.passes(name) {
                broken.push(format!("{name} passed again and again, and is out"));
            }
        }
        broken
    }

    /// Whether the breaker has tripped since a person reset it last: nothing may be
    /// taken out then, whatever a run says.
    pub(crate) fn is_tripped(&self) -> bool {
        let last = |event: &str| self.journal.iter().rposition(|line| line.event == event);
        last("reset") < last("tripped")
    }

    /// Whether a person took our last drain of it away.
    fn is_undone(&self, node: &str) -> bool {
        let last = self.drains(node).last().map(|it| it.seq);
        self.journal.iter().any(|it| it.event == "undone" && it.node == node && last < Some(it.seq))
    }

    /// Whether an older store brought back a drain of ours that had ended: a person says
    /// whose it is.
    fn is_brought_back(&self, node: &str) -> bool {
        let mut now = self.begin.get(node).cloned().unwrap_or_default();
        let mut by = None;
        for entry in &self.log {
            let What::Became { node: of, now: is } = &entry.what else { continue };
            if of == node {
                by = if now.get(DRAIN) == is.get(DRAIN) { by } else { Some(entry.by) };
                now.clone_from(is);
            }
        }
        let Some(reason) = now.get(DRAIN).filter(|_| by == Some(By::Fate)) else { return false };
        let meant = self.drains(node).filter(|line| is_written(&line.reason, reason));
        let meant = meant.last().map(|line| line.seq);
        let ends = |line: &&Line| {
            line.node == node && line.event == "undone"
                || line.is_intent_of(node) && line.kind == "release"
        };
        self.journal.iter().filter(ends).any(|line| meant < Some(line.seq))
    }

    /// Whether a first sight of it waits for a second one.
    fn is_awaited(&self, node: &str) -> bool {
        let last = |event: &str| {
            self.journal.iter().rposition(|line| line.event == event && line.node == node)
        };
        self.limits.waits && last("cleared") < last("suspected")
    }

    /// Whether a drain was written by a clock that is ahead: what was measured since
    /// seems to be from before.
    fn is_ahead(&self, drain: &Line) -> bool {
        self.runs.values().all(|run| run.created <= drain.unix)
    }

    /// Whether enough whole runs passed since it was drained.
    fn passes(&self, node: &str) -> bool {
        let Some(drained) = self.drains(node).last() else { return false };
        let passed = |run: &&Evidence| {
            run.is_whole
                && drained.unix < run.created
                && run.nodes.get(node).is_some_and(|it| it == "pass")
        };
        self.limits.clean_sweeps < self.runs.values().filter(passed).count()
    }

    /// Whether a budget keeps this node in service.
    fn is_full(
        &self,
        node: &str,
        out: &BTreeSet<&String>,
        suspect: &BTreeSet<&String>,
        unknown: usize,
    ) -> bool {
        let domain = self.domains.get(node);
        let beside = |nodes: &BTreeSet<&String>| {
            nodes.iter().filter(|it| self.domains.get(**it) == domain).count()
        };
        let Limits { per_domain, outstanding, per_hour, freeze_domain, freeze_fleet, .. } =
            self.limits;
        let begun = self.spent() + unknown;
        per_domain <= beside(out)
            || outstanding <= out.len()
            || per_hour <= begun
            || freeze_domain <= beside(suspect)
            || freeze_fleet <= suspect.len()
    }

    /// Drains that may have been there for a while: all but those that were denied.
    fn spent(&self) -> usize {
        let refunded: BTreeSet<&String> =
            self.journal.iter().filter(|it| it.result == "failed").map(|it| &it.id).collect();
        let begun = self.journal.iter().filter(|it| it.event == "intent" && it.kind == "drain");
        begun.filter(|it| !refunded.contains(&it.id)).count()
    }
}

/// What was there when the scheduler was told.
struct Known<'k> {
    node: &'k str,
    era: usize,
    journal: u64,
    evidence: bool,
}

/// Whether somebody else keeps jobs away from it: a node that is down, cordoned,
/// or has a taint of others.
fn is_kept(node: &Fields) -> bool {
    let keeps = |key: &String| {
        let is_taint = key.starts_with("taint/") && key.ends_with(":NoSchedule");
        key == "down" || key == "unschedulable" || is_taint
    };
    node.keys().any(keeps)
}

/// Whether a reason is what was written, or that with words appended.
fn is_written(written: &str, is: &str) -> bool {
    let rest = is.strip_prefix(written).filter(|_| !written.is_empty());
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
}

/// Whether a run was begun after this line was written: by the real time of both where
/// that is known, else by what their clocks said. A line of the journal knows how long the
/// machine was up to a hundredth of a second.
fn is_since(line: &Line, run: &Evidence) -> bool {
    match line.truly.zip(run.began) {
        Some((then, began)) => then - 0.05 < began,
        None => line.unix < run.created,
    }
}
