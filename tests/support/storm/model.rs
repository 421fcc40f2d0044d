//! Invariants that must always hold: an independent record of the scheduler's nodes, checked
//! against them.
//!
//! Its only inputs are the scheduler's log of requests and changes, the lines of the journal, and
//! run folders. It knows nothing of the gate's types, and shares no code with it.

use std::collections::{BTreeMap, BTreeSet};

use super::journal::Line;
use super::runs::Evidence;

/// A node's fields, flat: `drain` is the reason of a drain, `down` that of a down node; keys with
/// the prefix `own/` are fabricgate's, and all others are foreign.
pub(crate) type Fields = BTreeMap<String, String>;

/// The reason of a drain.
pub(crate) const DRAIN: &str = "drain";
/// Prefix of fabricgate's fields.
pub(crate) const OWN: &str = "own/";
/// Mark that a person who removes a drain leaves next to it.
const WORDS: [&str; 2] = ["own/extra/fabricgate", "own/condition/GpuFabricVerified"];

/// Author of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The gate, in this command of an episode.
    Gate(u32),
    /// A person.
    Hand,
    /// A scheduler that lost an update.
    Fate,
}

/// An update of the scheduler's nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Order {
    /// Removed fields; a trailing `/` stands for all with that prefix.
    pub(crate) unset: Vec<String>,
    /// Written fields.
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

/// An event of the scheduler's log.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// A request, and its answer.
    Read(BTreeMap<String, Fields>),
    /// An update, whatever its result.
    Sent {
        /// Its nodes.
        nodes: Vec<String>,
        order: Order,
        /// Length of the journal at that moment, in bytes.
        journal: u64,
        /// The run that a drain names had its verdicts on disk at that moment.
        evidence: bool,
    },
    /// An older copy of the journal was restored.
    Restored,
    /// A node changed.
    Became {
        node: String,
        /// Its fields now.
        now: Fields,
    },
}

/// One line of the scheduler's log.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) by: By,
    pub(crate) what: What,
}

/// The largest number of nodes that are out at a time, and that are drained within an hour.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) per_domain: usize,
    pub(crate) outstanding: usize,
    pub(crate) per_hour: usize,
    /// Suspects of one domain that count as a common cause.
    pub(crate) freeze_domain: usize,
    /// Suspects of the fleet that count as one.
    pub(crate) freeze_fleet: usize,
    /// Whole runs that a drained node must pass.
    pub(crate) clean_sweeps: usize,
    /// A finding that may be temporary must be found again, hours later.
    pub(crate) waits: bool,
}

/// All data of an episode, which is shorter than an hour.
#[derive(Clone, Debug)]
pub(crate) struct History {
    /// The nodes at the beginning.
    pub(crate) begin: BTreeMap<String, Fields>,
    pub(crate) log: Vec<Entry>,
    pub(crate) journal: Vec<Line>,
    /// Journals that existed before an older copy replaced them, oldest first.
    pub(crate) earlier: Vec<Vec<Line>>,
    /// Run folders, by run id.
    pub(crate) runs: BTreeMap<String, Evidence>,
    pub(crate) domains: BTreeMap<String, String>,
    pub(crate) limits: Limits,
}

impl History {
    /// A message for every broken invariant.
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

    /// True if fabricgate's journal has an intent with this reason for this node; text may have
    /// been appended to it.
    pub(crate) fn is_ours(&self, node: &str, reason: &str) -> bool {
        let all = self.earlier.iter().flatten().chain(&self.journal);
        let mut drains = all.filter(|line| line.is_intent_of(node) && line.kind == "drain");
        drains.any(|line| is_written(&line.reason, reason))
    }

    /// The journal after this number of restored copies.
    fn of_era(&self, era: usize) -> &[Line] {
        self.earlier.get(era).map_or(&self.journal, Vec::as_slice)
    }

    fn drains<'h>(&'h self, node: &'h str) -> impl Iterator<Item = &'h Line> {
        let is_it = move |line: &&Line| line.is_intent_of(node) && line.kind == "drain";
        self.journal.iter().filter(is_it)
    }

    /// Each update of the gate touches only its own fields, was an intent in the journal before,
    /// and rests on evidence that existed.
    fn orders(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let mut seen: BTreeMap<(u32, &str), &Fields> = BTreeMap::new();
        let mut era = 0;
        let mut nodes = self.begin.clone();
        // fabricgate's drains that a person removed, with a mark next to the reason.
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
            if let What::Sent { nodes, order, .. } = &entry.what {
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
                What::Sent { nodes, order, journal, evidence } => {
                    for node in nodes {
                        let Some(before) = seen.get(&(gate, node.as_str())) else {
                            broken.push(format!("{node} was changed without being read"));
                            continue;
                        };
                        let known = Known { node, era, journal: *journal, evidence: *evidence };
                        broken.extend(self.check_update(&known, before, &order.on(before)));
                    }
                }
                What::Became { .. } | What::Restored => {}
            }
        }
        broken
    }

    /// One node of an update: as last read, and as it was to become.
    fn check_update(&self, known: &Known<'_>, before: &Fields, after: &Fields) -> Vec<String> {
        let Known { node, .. } = known;
        let mut broken = Vec::new();
        let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        let changed = keys.into_iter().filter(|key| before.get(*key) != after.get(*key));
        for key in changed {
            let (was, is) = (before.get(key), after.get(key));
            if key == DRAIN {
                broken.extend(self.drained(known, was, is));
            } else if key.starts_with(OWN) {
                // A forgotten mark may be written again: its intent is older.
                if !self.until(known).any(|line| line.is_intent_of(node)) {
                    broken.push(format!("{node}: {key} was written without an intent"));
                }
            } else {
                broken.push(format!("{node}: {key} is not fabricgate's: {was:?} became {is:?}"));
            }
        }
        let is_drained = !before.contains_key(DRAIN) && after.contains_key(DRAIN);
        if is_drained && is_kept(before) {
            broken.push(format!("{node} was already out, and drained"));
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
            return Some(format!("{node}: a foreign drain {was:?} became {is:?}"));
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
                    return Some(format!("{node}: {reason:?} was sent without an open intent"));
                }
                (!evidence).then(|| format!("{node}: {reason:?} names a run without verdicts"))
            }
            None => {
                (!open("release")).then(|| format!("{node} was given back without an open intent"))
            }
        }
    }

    /// Nodes that are out, at every moment, and drains that were begun.
    fn budgets(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let mut nodes = self.begin.clone();
        let mut begun: BTreeSet<(String, String)> = BTreeSet::new();
        let mut era = 0;
        for entry in &self.log {
            era += usize::from(matches!(entry.what, What::Restored));
            let What::Became { node, now } = &entry.what else { continue };
            let was = nodes.insert(node.clone(), now.clone()).unwrap_or_default();
            // A node that returned with an older store: no other later change explains it.
            let is_drain = was.get(DRAIN) != now.get(DRAIN) && now.contains_key(DRAIN);
            if let (By::Gate(_), Some(reason)) = (entry.by, now.get(DRAIN))
                && self.is_ours(node, reason)
            {
                begun.insert((node.clone(), reason.clone()));
            }
            let out = self.out(&nodes);
            let Limits { per_domain, outstanding, per_hour, .. } = self.limits;
            let mut problem = |what: &str, is: usize, most: usize| {
                if most < is && is_drain && matches!(entry.by, By::Gate(_)) {
                    broken.push(format!("{node}: {is} {what}, and {most} are allowed"));
                }
            };
            problem("nodes are out", out.len(), outstanding);
            // Entries that a journal lost with its later lines can be derived from the nodes.
            let is_known = |(node, reason): &&(String, String)| {
                let stands = nodes[node].get(DRAIN).is_some_and(|is| is_written(reason, is));
                let mut lines = self.of_era(era).iter();
                stands || lines.any(|line| line.is_intent_of(node) && line.reason == *reason)
            };
            problem("drains were begun", begun.iter().filter(is_known).count(), per_hour);
            let domain = self.domains.get(node);
            let beside = out.iter().filter(|it| self.domains.get(**it) == domain).count();
            problem("nodes of its domain are out", beside, per_domain);
        }
        broken
    }

    /// Nodes that fabricgate drained.
    pub(crate) fn out<'n>(&self, nodes: &'n BTreeMap<String, Fields>) -> Vec<&'n String> {
        let is_out = |(name, node): &(&String, &Fields)| {
            node.get(DRAIN).is_some_and(|reason| self.is_ours(name, reason))
        };
        nodes.iter().filter(is_out).map(|(name, _)| name).collect()
    }

    /// Every intent rests on a run with that verdict.
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
                (!accused || !is_bad).then(|| {
                    format!("{id}: run {} has outcome {outcome}: {:?}", line.run, line.findings)
                })
            }
            "certify" => {
                (outcome != "pass").then(|| format!("{id}: the run has outcome {outcome}"))
            }
            "release" => {
                let mut drained =
                    lines.iter().filter(|it| it.is_intent_of(node) && it.kind == "drain");
                let drained = drained.rfind(|it| it.seq < line.seq);
                let Some(drained) = drained else {
                    return Some(format!("{id}: fabricgate never drained it"));
                };
                let clean = self.runs.values().filter(|run| {
                    let passed = run.nodes.get(node).is_some_and(|it| it == "pass");
                    passed && run.is_whole && is_since(drained, run)
                });
                let clean = clean.count();
                (clean < self.limits.clean_sweeps)
                    .then(|| format!("{id}: it passed {clean} runs since it was drained"))
            }
            other => Some(format!("{id}: unknown kind {other:?}")),
        }
    }

    /// The current nodes.
    pub(crate) fn now(&self) -> BTreeMap<String, Fields> {
        let mut nodes = self.begin.clone();
        for entry in &self.log {
            if let What::Became { node, now } = &entry.what {
                nodes.insert(node.clone(), now.clone());
            }
        }
        nodes
    }

    /// Differences from the state that this run requires; it is the last of several equal,
    /// undisturbed ones.
    pub(crate) fn unsettled(&self, run: &str) -> Vec<String> {
        let Some(run) = self.runs.get(run) else {
            return vec![format!("run {run} has no readable verdicts")];
        };
        let mut broken = Vec::new();
        let ended: BTreeSet<&String> = self.journal.iter().filter_map(Line::ended).collect();
        let open = self.journal.iter().filter(|it| it.event == "intent" && !ended.contains(&it.id));
        broken.extend(open.map(|it| format!("{} is open yet", it.id)));
        let nodes = self.now();
        // A drain in fabricgate's form counts, regardless of its author.
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
            // A person's down state: only a person returns the node.
            let is_down = node.contains_key("down");
            let is_left = is_down || self.is_brought_back(name);
            if outcome == "pass" && as_written && !is_left && self.passes(name) {
                broken.push(format!("{name} passed again and again, and is out"));
            }
        }
        broken
    }

    /// True if the breaker has tripped since a person last reset it: no drain is allowed then,
    /// whatever a run finds.
    pub(crate) fn is_tripped(&self) -> bool {
        let last = |event: &str| self.journal.iter().rposition(|line| line.event == event);
        last("reset") < last("tripped")
    }

    /// True if a person removed fabricgate's last drain of it.
    fn is_undone(&self, node: &str) -> bool {
        let last = self.drains(node).last().map(|it| it.seq);
        self.journal.iter().any(|it| it.event == "undone" && it.node == node && last < Some(it.seq))
    }

    /// True if an older store restored an ended drain of fabricgate's: a person decides whose it
    /// is.
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

    /// True if its first finding must be confirmed by a second.
    fn is_awaited(&self, node: &str) -> bool {
        let last = |event: &str| {
            self.journal.iter().rposition(|line| line.event == event && line.node == node)
        };
        self.limits.waits && last("cleared") < last("suspected")
    }

    /// True if a clock that is ahead wrote the drain: later measurements seem to precede it.
    fn is_ahead(&self, drain: &Line) -> bool {
        self.runs.values().all(|run| run.created <= drain.unix)
    }

    /// True if enough whole runs passed since the drain.
    fn passes(&self, node: &str) -> bool {
        let Some(drained) = self.drains(node).last() else { return false };
        let passed = |run: &&Evidence| {
            run.is_whole
                && drained.unix < run.created
                && run.nodes.get(node).is_some_and(|it| it == "pass")
        };
        self.limits.clean_sweeps < self.runs.values().filter(passed).count()
    }

    /// True if a budget keeps this node in service.
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

    /// Drains that may have existed for a while: all except denied ones.
    fn spent(&self) -> usize {
        let refunded: BTreeSet<&String> =
            self.journal.iter().filter(|it| it.result == "failed").map(|it| &it.id).collect();
        let begun = self.journal.iter().filter(|it| it.event == "intent" && it.kind == "drain");
        begun.filter(|it| !refunded.contains(&it.id)).count()
    }
}

/// The node when the update was sent.
struct Known<'k> {
    node: &'k str,
    era: usize,
    journal: u64,
    evidence: bool,
}

/// True if another cause keeps jobs away from it: a node that is down, cordoned, or has a foreign
/// taint.
fn is_kept(node: &Fields) -> bool {
    let keeps = |key: &String| {
        let is_taint = key.starts_with("taint/") && key.ends_with(":NoSchedule");
        key == "down" || key == "unschedulable" || is_taint
    };
    node.keys().any(keeps)
}

/// True if a reason is the written one, possibly with appended text.
fn is_written(written: &str, is: &str) -> bool {
    let rest = is.strip_prefix(written).filter(|_| !written.is_empty());
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
}

/// True if a run began after this line was written: by the true times where both are known,
/// otherwise by their clocks. A line of the journal has the machine's uptime to a hundredth of a
/// second.
fn is_since(line: &Line, run: &Evidence) -> bool {
    match line.truly.zip(run.began) {
        Some((then, began)) => then - 0.05 < began,
        None => line.unix < run.created,
    }
}
