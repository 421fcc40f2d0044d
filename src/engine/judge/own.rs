//! A part against its own history: what still is within what the fleet shows, and
//! is clearly less than it was.
//!
//! Its own history only adds a reference. It lowers no expectation: what was always
//! slow is found by the others, and where another reference decided, it agrees
//! or says nothing.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::arrange::Domain;
use super::fabric::Fabric;
use super::finding::finding;
use super::finding::of_domain;
use super::finding::of_node;
use super::finding::rate;
use super::finding::round;
use super::island::Island;
use super::ledger::Ledger;
use super::level::SMALLEST_FLEET;
use super::past;
use super::past::FEWEST_RUNS;
use super::past::Run;
use super::peel;
use super::roster::Roster;
use model::claims::Claims;
use model::finding_class::FindingClass;
use model::history::History;
use model::history::Showing;
use model::history::Shown;
use model::history::Usual;
use model::id::DomainName;
use model::id::NodeName;
use model::recording::Recording;
use model::recording::Scope;
use model::rule::FindingRule;
use model::rule::RuleKind;
use model::stats;
use model::text::percent;
use model::verdict::Finding;
use model::verdict::Locus;
use model::verdict::LocusKind;
use model::verdict::Outcome;

/// Fewer parts of an island have nothing in common yet.
const FEWEST_PARTS: usize = 4;

/// This share of parts or islands, lower alike, is no coincidence.
const NEARLY_ALL: f64 = 0.75;

/// A part that shows less than it usually did.
#[derive(Clone, Debug)]
struct Lower<'h> {
    part: Showing,
    usual: &'h Usual,
    now: f64,
    /// What it shows now over what it usually did.
    ratio: f64,
    /// How far below is no chance.
    line: f64,
}

/// Holds what parts show against their own history.
pub(super) fn judge(
    domains: &[Domain<'_>],
    judged: &[Vec<(Island<'_>, Fabric)>],
    claims: &Claims,
    recordings: &[Recording],
    history: &History,
    ledger: &mut Ledger,
) {
    if history.is_empty() {
        return;
    }
    let run = past::of_case(domains, judged, claims, recordings);
    let taken = Taken::of(recordings);
    let home: BTreeMap<&NodeName, &DomainName> =
        domains.iter().flat_map(|d| d.nodes.iter().map(move |n| (n, &d.name))).collect();
    // Parts that share a fabric or a rail go up and down together.
    let mut groups: BTreeMap<Group<'_>, Vec<Lower<'_>>> = BTreeMap::new();
    let inside = judged.iter().flatten().map(|(island, _)| island);
    let alone: BTreeSet<&NodeName> = inside.filter_map(|island| island.node.as_ref()).collect();
    for (part, shown) in &run {
        let Some(usual) = history.usual.get(part) else { continue };
        let group = Group {
            domain: home.get(&part.node).copied().filter(|_| part.gpu.is_some()),
            node: Some(&part.node).filter(|n| part.gpu.is_some() && alone.contains(n)).cloned(),
            rail: part.rail.clone(),
            network: part.gpu.is_none(),
            platform: part.platform.clone(),
        };
        groups.entry(group).or_default().push(compared(part, shown, usual));
    }
    not_compared(&run, history, &groups, ledger);
    let mut common: Vec<(Group<'_>, Lower<'_>)> = Vec::new();
    for (group, all) in groups {
        let mut ratios: Vec<f64> = all.iter().map(|l| l.ratio).collect();
        let parts: BTreeSet<(&NodeName, Option<u32>)> =
            all.iter().map(|l| (&l.part.node, l.part.gpu)).collect();
        let middle = stats::median(&mut ratios).filter(|_| FEWEST_PARTS <= parts.len());
        let fell = all.iter().filter(|l| l.ratio < 1.0 - l.line).count();
        #[expect(clippy::cast_precision_loss, reason = "counts of parts")]
        let most = NEARLY_ALL * all.len() as f64 <= fell as f64;
        let together = middle.filter(|_| most);
        if let Some(middle) = together {
            let distance = |l: &&Lower<'_>| (l.ratio - middle).abs();
            let typical = all.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
            common.push((group.clone(), typical.expect("a group has parts").clone()));
        }
        // Beside what all have lost, some have lost more.
        let shift = together.unwrap_or(1.0);
        let mut worst: BTreeMap<(NodeName, Option<u32>, Option<String>), Lower<'_>> =
            BTreeMap::new();
        for lower in all.into_iter().filter(|l| l.ratio / shift < 1.0 - l.line) {
            let key = (lower.part.node.clone(), lower.part.gpu, lower.part.rail.clone());
            let known = worst.entry(key).or_insert_with(|| lower.clone());
            if lower.ratio < known.ratio {
                *known = lower;
            }
        }
        for lower in worst.into_values() {
            part(group.domain, &lower, &taken, ledger);
        }
    }
    whole(&common, judged, &taken, ledger);
}

/// Parts that share a fabric or a rail.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Group<'d> {
    domain: Option<&'d DomainName>,
    /// The node, where the fabric is its own.
    node: Option<NodeName>,
    rail: Option<String>,
    network: bool,
    platform: Option<String>,
}

fn compared<'h>(part: &Showing, shown: &Shown, usual: &'h Usual) -> Lower<'h> {
    #[expect(clippy::cast_precision_loss, reason = "a count of runs")]
    let runs = usual.count as f64;
    // How far a further run may lie from the middle of those there are.
    let between = usual.spread.unwrap_or(0.0).powi(2).max(usual.error.powi(2));
    let error = (shown.error.powi(2) + between * (1.0 + 1.0 / runs)).sqrt();
    Lower {
        part: part.clone(),
        usual,
        now: shown.value,
        ratio: shown.value / usual.median,
        line: peel::LINE.max(peel::ERRORS * error),
    }
}

/// Earlier runs under another driver or platform are no reference: said once.
fn not_compared(
    run: &Run,
    history: &History,
    groups: &BTreeMap<Group<'_>, Vec<Lower<'_>>>,
    ledger: &mut Ledger,
) {
    if !groups.is_empty() {
        return;
    }
    let of = |parts: &mut dyn Iterator<Item = &Showing>| -> String {
        let named: BTreeSet<String> = parts
            .map(|part| {
                let driver = part.driver.as_deref().unwrap_or("not named");
                format!("{}, driver {driver}", part.platform.as_deref().unwrap_or("no platform"))
            })
            .collect();
        named.into_iter().take(3).collect::<Vec<_>>().join("; ")
    };
    ledger.notes.push(format!(
        "no part could be compared with its own history: here {}; then {}",
        of(&mut run.keys()),
        of(&mut history.usual.keys())
    ));
}

/// How far back a reference goes, in words.
fn since(usual: &Usual) -> String {
    let day = |when: &str| when.get(..10).unwrap_or(when).to_owned();
    match usual.count {
        1 => format!("its own run of {}", day(&usual.last)),
        count if day(&usual.first) == day(&usual.last) => {
            format!("its own {count} runs of {}", day(&usual.last))
        }
        count => format!("its own {count} runs of {} to {}", day(&usual.first), day(&usual.last)),
    }
}

fn rule(lower: &Lower<'_>) -> FindingRule {
    let driver = lower
        .part
        .driver
        .as_deref()
        .map_or(", driver not named".to_owned(), |driver| format!(" and driver {driver}"));
    RuleKind::OwnHistory.with(format!(
        "more than max({}, 5 standard errors) = {} below the median of earlier runs of the same platform{driver}; \
         the fleet and the expectation did not decide",
        percent(peel::LINE),
        percent(lower.line)
    ))
}

/// Too few runs show whether the part or the run was odd.
fn outcome(usual: &Usual) -> Outcome {
    if usual.count < FEWEST_RUNS { Outcome::Unknown } else { Outcome::Degraded }
}

fn open(usual: &Usual) -> &'static str {
    match usual.count < FEWEST_RUNS {
        true => "; so few runs may have been the odd ones: a third would tell",
        false => "",
    }
}

fn detail(lower: &Lower<'_>) -> String {
    format!(
        "{} {} GB/s, {} usual in {}",
        lower.part.testcase,
        rate(lower.now),
        rate(lower.usual.median),
        since(lower.usual)
    )
}

/// Another reference decided; its own history agrees.
fn agree(found: &mut Finding, lower: &Lower<'_>) {
    if found.class == FindingClass::BelowOwnHistory || found.rule.history_agrees {
        return;
    }
    found.rule.history_agrees = true;
    let file = found.evidence.first().map_or(String::new(), |e| e.file.clone());
    *found = found.clone().because(&file, Some(&lower.part.testcase), detail(lower));
}

/// One part that is below its own history and was not found otherwise.
fn part(domain: Option<&DomainName>, lower: &Lower<'_>, taken: &Taken<'_>, ledger: &mut Ledger) {
    let Showing { node, gpu, rail, .. } = &lower.part;
    let against = |f: &Finding| {
        f.locus.node.as_ref() == Some(node)
            && (f.locus.gpu.is_none() || f.locus.gpu == *gpu)
            && f.locus.rail == *rail
            && f.locus.kind != LocusKind::Pair
            && f.share().is_some()
            && f.class != FindingClass::BelowOwnHistory
    };
    let detail = detail(lower);
    let mut is_known = false;
    ledger.change_of_node(node, |found| {
        if against(found) {
            is_known = true;
            agree(found, lower);
        }
    });
    if is_known {
        return;
    }
    let what = match (gpu, rail) {
        (Some(gpu), _) => format!("GPU {node}:{gpu}"),
        (None, Some(rail)) => format!("{node} over {rail}"),
        (None, None) => node.to_string(),
    };
    let kind = if gpu.is_some() { LocusKind::Gpu } else { LocusKind::Rail };
    let locus = Locus {
        kind,
        domain: domain.cloned(),
        node: Some(node.clone()),
        gpu: *gpu,
        rail: rail.clone(),
        ..Locus::of(kind)
    };
    let said = format!(
        "{what} shows {} GB/s ({}), {} below the {} of {}, while it is within what the others show{}",
        rate(lower.now),
        lower.part.testcase,
        percent(1.0 - lower.ratio),
        rate(lower.usual.median),
        since(lower.usual),
        open(lower.usual)
    );
    let found = finding(outcome(lower.usual), FindingClass::BelowOwnHistory, locus, rule(lower))
        .below_own(lower.now, lower.usual.median)
        .saying(said.clone());
    let found = Finding { detectable: Some(round(lower.line)), ..found };
    if found.outcome == Outcome::Unknown {
        ledger.doubt(node, said);
    }
    ledger.find(with_files(found, &lower.part, taken, &detail));
}

/// The recordings of a run, by the nodes that took part: on a day on which all is lower
/// each part asks for its own.
struct Taken<'r> {
    recordings: &'r [Recording],
    of: Roster<Vec<usize>>,
}

impl<'r> Taken<'r> {
    fn of(recordings: &'r [Recording]) -> Self {
        let mut by_name: BTreeMap<NodeName, Vec<usize>> = BTreeMap::new();
        for (at, recording) in recordings.iter().enumerate() {
            let names: BTreeSet<NodeName> = match &recording.scope {
                Scope::Node(node) => [node.clone()].into(),
                Scope::Pair(a, b) => [a.clone(), b.clone()].into(),
                Scope::Domain(_) => {
                    let ranks = recording.parsed.facts.ranks.iter();
                    ranks.map(|rank| NodeName::from(rank.host.as_str())).collect()
                }
            };
            names.into_iter().for_each(|name| by_name.entry(name).or_default().push(at));
        }
        let mut of = Roster::default();
        by_name.into_iter().for_each(|(name, all)| of.add(&name, all));
        Self { recordings, of }
    }

    /// Those that a node took part in, in order.
    fn by(&self, node: &NodeName) -> impl Iterator<Item = &'r Recording> {
        let places: BTreeSet<usize> = self.of.alike(node.as_str()).flatten().copied().collect();
        places.into_iter().map(|at| &self.recordings[at])
    }
}

fn with_files(mut found: Finding, part: &Showing, taken: &Taken<'_>, detail: &str) -> Finding {
    let has =
        |r: &&Recording| r.parsed.measurements.iter().any(|m| m.testcase() == Some(&part.testcase));
    for recording in taken.by(&part.node).filter(has).take(4) {
        found = found.because(&recording.file, Some(&part.testcase), detail);
    }
    found
}

/// Fabrics that are lower as a whole: nobody's part, and of several alike the
/// instrument's or the fleet's.
fn whole(
    common: &[(Group<'_>, Lower<'_>)],
    judged: &[Vec<(Island<'_>, Fabric)>],
    taken: &Taken<'_>,
    ledger: &mut Ledger,
) {
    let all = judged.iter().flatten().filter(|(island, _)| !island.directed.is_empty()).count();
    let fabrics: Vec<&(Group<'_>, Lower<'_>)> = common.iter().filter(|(g, _)| !g.network).collect();
    let everywhere = SMALLEST_FLEET <= fabrics.len() && fabrics.len() * 4 >= all * 3;
    let tells = "what changed since (clocks, power limits, firmware, the tool) or the measurement: the same test \
                 with the tool and settings of then would tell";
    if everywhere {
        let (group, lower) = fabrics[0];
        let said = format!(
            "{} of {all} fabrics of {} show {} less than in {}: one cause above them, {tells}",
            fabrics.len(),
            group.platform.as_deref().unwrap_or("no platform"),
            percent(1.0 - lower.ratio),
            since(lower.usual)
        );
        let locus = Locus { peer: group.platform.clone(), ..Locus::of(LocusKind::Instrument) };
        let found = finding(Outcome::Unknown, FindingClass::BelowOwnHistory, locus, rule(lower))
            .below_own(lower.now, lower.usual.median)
            .saying(said);
        ledger.find(with_files(found, &lower.part, taken, "a typical part"));
    }
    for (group, lower) in common.iter().filter(|(g, _)| g.network || !everywhere) {
        let locus = match (group.domain, &group.node) {
            (Some(domain), Some(node)) => of_node(domain, node),
            (Some(domain), None) => of_domain(LocusKind::Domain, domain),
            (None, _) => Locus { rail: group.rail.clone(), ..Locus::of(LocusKind::Instrument) },
        };
        // A whole level that another reference found low already is said.
        let is_level = |f: &Finding| {
            let whole = f.locus.gpu.is_none() && f.locus.kind != LocusKind::Pair;
            whole
                && f.share().is_some()
                && (f.locus.domain.as_ref(), &f.locus.node, &f.locus.rail)
                    == (group.domain, &group.node, &group.rail)
        };
        // A rail as a whole is in no domain, and there are few of those.
        let mut is_known = false;
        let mut joins = |found: &mut Finding| {
            if !is_known && is_level(found) {
                is_known = true;
                agree(found, lower);
            }
        };
        match group.domain {
            Some(domain) => ledger.change_of_domain(domain, &mut joins),
            None => ledger.change(&mut joins),
        }
        if is_known {
            continue;
        }
        let what = match (&group.node, group.domain) {
            (Some(node), _) => format!("all of {node}"),
            (None, Some(domain)) => format!("all of {domain}"),
            (None, None) => "all ends of the network".to_owned(),
        };
        let said = format!(
            "{what} shows {} less than in {} ({} of {} GB/s): {tells}",
            percent(1.0 - lower.ratio),
            since(lower.usual),
            rate(lower.now),
            rate(lower.usual.median)
        );
        let is_part = group.node.is_some();
        let outcome =
            if is_part || group.domain.is_some() { outcome(lower.usual) } else { Outcome::Unknown };
        let found = finding(outcome, FindingClass::BelowOwnHistory, locus, rule(lower))
            .below_own(lower.now, lower.usual.median)
            .saying(said.clone());
        if let Some(node) = group.node.as_ref().filter(|_| found.outcome == Outcome::Unknown) {
            ledger.doubt(node, said);
        }
        ledger.find(with_files(found, &lower.part, taken, "a typical part"));
    }
}
