//! What a bundle says on its first page, as values: what, where, how bad, how sure,
//! since when, what was ruled out, which versions, how it was measured.
//!
//! Sentences are made here once, for Markdown and HTML alike. Every one rests on a
//! value of the run; what the run does not tell is said to be not known.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;

use super::BUNDLE_FORMAT;
use super::Case;
use super::partners::Partner;
use super::partners::Partners;
use super::partners::Standing;
use super::plots::Plots;
use super::raws::Index;
use super::redact::NOT_CAUGHT;
use super::serials::NOT_KNOWN;
use super::serials::Serials;
use super::sides::Sides;
use super::since;
use crate::report::class;
use crate::report::plain::clip;
use crate::report::plain::counted;
use crate::report::plain::listed;
use crate::report::plain::place_of;
use crate::report::plain::quantity;
use model::run::RunInfo;
use model::text::percent;
use model::trend::Trend;
use model::unit::Unit;
use model::verdict::Finding;
use model::verdict::Locus;
use model::verdict::LocusKind;
use model::verdict::NodeVerdict;
use model::verdict::Outcome;
use model::verdict::Unknown;

/// Findings told on the page; `bundle.json` has all.
const TOLD: usize = 4;
/// States of the machine told on the page.
const STATES: usize = 3;
/// GPUs named on the page; a node has 8 at most.
const GPUS: usize = 8;
/// Commands named on the page.
const COMMANDS: usize = 5;
/// Characters of one of them.
const COMMAND: usize = 84;
/// Pictures named on the page.
const MOST_PICTURES: usize = 2;
/// Characters of one sentence taken from a run.
const LONGEST: usize = 300;

/// One line of the page: a question, and its answers.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Row {
    /// The question.
    pub(super) what: &'static str,
    /// The answers, in sentences.
    pub(super) says: Vec<String>,
}

/// The page.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Page {
    pub(super) node: String,
    pub(super) run: String,
    pub(super) outcome: String,
    /// The answer in one sentence.
    pub(super) headline: String,
    pub(super) rows: Vec<Row>,
    /// The hardware, as a table with this head.
    pub(super) head: Vec<&'static str>,
    pub(super) hardware: Vec<Vec<String>>,
    /// The chart's markup, made here.
    pub(super) chart: Option<String>,
    pub(super) files: Vec<(String, String)>,
    pub(super) missing: Vec<String>,
    pub(super) redacted: Option<&'static str>,
}

/// `bundle.json`: the same for programs, and whole.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BundleDocument<'a> {
    /// `fabricgate.bundle/1`.
    format: &'static str,
    /// The node.
    node: &'a str,
    /// The run.
    run: &'a RunInfo,
    /// How far the run came, in words.
    state: &'a str,
    /// How the node came out; absent where nothing was judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<&'a NodeVerdict>,
    /// What is held against the node or a part of it.
    against: &'a [Finding],
    /// What is held against something larger that it is in.
    larger: &'a [Finding],
    /// What is not known of it.
    unknown: &'a [Unknown],
    /// Who was measured with it.
    partners: &'a [Partner],
    /// The first of the series of its history, whole.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    trends: Vec<&'a Trend>,
    /// Which hardware it is.
    serials: &'a Serials,
    /// The first page: questions with their answers.
    summary: &'a [Row],
    /// What could not be packed, and why.
    missing: &'a [String],
    /// Names and addresses of others were taken out.
    redacted: bool,
}

pub(super) fn document<'a>(
    case: &'a Case,
    page: &'a Page,
    sides: &'a Sides,
    partners: &'a Partners,
    serials: &'a Serials,
) -> BundleDocument<'a> {
    BundleDocument {
        format: BUNDLE_FORMAT,
        node: case.node.as_str(),
        run: &case.run.info,
        state: &case.state,
        verdict: sides.verdict.as_ref(),
        against: &sides.against,
        larger: &sides.larger,
        unknown: &sides.unknown,
        partners: &partners.each,
        trends: since::ordered(case, sides).into_iter().take(since::DRAWN).collect(),
        serials,
        summary: &page.rows,
        missing: &case.missing,
        redacted: case.redact,
    }
}

/// Makes the page.
pub(super) fn page(
    case: &Case,
    sides: &Sides,
    partners: &Partners,
    serials: &Serials,
    plots: &Plots,
    index: &Index,
) -> Page {
    let info = &case.run.info;
    let row = |what, says: Vec<String>| Row { what, says };
    let rows = vec![
        row("What", what(case, sides)),
        row("Where", place(case, sides, serials)),
        row("How bad", how_bad(sides)),
        row("How sure", how_sure(sides, partners)),
        row("Since when", since::words(case, sides)),
        row("Ruled out", ruled_out(case, sides, partners)),
        row("Versions", versions(case, serials)),
        row("How measured", how_measured(case, index)),
    ];
    let mut files = vec![
        ("bundle.json".to_owned(), "all of this for programs, findings whole".to_owned()),
        ("serials.csv".to_owned(), "serial numbers, UUIDs, slots, firmware, GUIDs".to_owned()),
        ("evidence/convict.csv".to_owned(), counts(sides.convict.len(), "not as expected")),
        ("evidence/acquit-this-node.csv".to_owned(), counts(sides.fine.len(), "as expected")),
        (
            "evidence/partners.csv".to_owned(),
            format!("{} it was measured with", counted(partners.each.len(), "part", "parts")),
        ),
        (
            "evidence/acquit-partners.csv".to_owned(),
            format!("{} of these with each other", readings(partners.cells.len())),
        ),
        (
            "raw/index.csv".to_owned(),
            format!("what was run, when, and how it ended: {}", outputs(index)),
        ),
    ];
    if !case.trends.is_empty() {
        let series = counted(case.trends.len(), "series", "series");
        let what = format!("{series} of this node over earlier runs and this one");
        files.push(("history.csv".to_owned(), what));
    }
    let pictures: Vec<&str> = plots.captions.iter().map(|it| it.1.as_str()).collect();
    if !pictures.is_empty() {
        files.push(("plots/".to_owned(), listed(&pictures, MOST_PICTURES)));
    }
    let (head, hardware) = hardware(sides, serials);
    Page {
        node: case.node.to_string(),
        run: info.id.clone(),
        outcome: outcome(case, sides).to_uppercase(),
        headline: headline(case, sides),
        rows,
        head,
        hardware,
        chart: plots.chart.clone(),
        files,
        missing: case.missing.clone(),
        redacted: case.redact.then_some(NOT_CAUGHT),
    }
}

/// A part, as sentences begin: `GPU node0007:2`.
fn part(locus: &Locus) -> String {
    let place = place_of(locus);
    match locus.kind {
        LocusKind::Gpu => place.replacen("gpu", "GPU", 1),
        _ => place,
    }
}

fn readings(count: usize) -> String {
    counted(count, "reading", "readings")
}

fn counts(count: usize, how: &str) -> String {
    format!("{} of this node that {} {how}", readings(count), if count == 1 { "is" } else { "are" })
}

fn outputs(index: &Index) -> String {
    let packed = index.entries.iter().filter(|it| it.file.is_some()).count();
    format!("{} packed, {} named", counted(packed, "output", "outputs"), index.entries.len())
}

fn outcome(case: &Case, sides: &Sides) -> &'static str {
    match &sides.verdict {
        Some(verdict) => verdict.outcome.as_str(),
        None if case.judged => "not judged in this run",
        None => "not judged",
    }
}

fn headline(case: &Case, sides: &Sides) -> String {
    let said = of_verdict(case, sides);
    match case.run.info.simulated() {
        Some(simulated) => format!("{simulated}; {said}"),
        None => said,
    }
}

fn of_verdict(case: &Case, sides: &Sides) -> String {
    match (&sides.verdict, sides.against.first()) {
        (_, Some(worst)) => clip(&worst.summary, LONGEST),
        (Some(it), None) if it.outcome == Outcome::Pass => {
            "Nothing in this run convicts this node: everything that had to be measured was, and \
             is as expected."
                .to_owned()
        }
        (Some(it), None) => {
            format!("Nothing in this run convicts this node. {}", clip(&it.reason, LONGEST))
        }
        (None, None) if case.judged => {
            "This run has no verdict on this node, so nothing convicts it.".to_owned()
        }
        (None, None) => {
            "The verdicts of this run cannot be read, so nothing convicts it.".to_owned()
        }
    }
}

fn what(case: &Case, sides: &Sides) -> Vec<String> {
    if sides.against.is_empty() {
        return vec![headline(case, sides)];
    }
    let mut says: Vec<String> = sides
        .against
        .iter()
        .take(TOLD)
        .map(|it| {
            let title = class::title(&it.class);
            format!("{}: {title} ({}), {}", part(&it.locus), it.class, it.outcome)
        })
        .collect();
    more(&mut says, sides.against.len(), "more in bundle.json");
    says
}

fn more(says: &mut Vec<String>, all: usize, what: &str) {
    if TOLD < all {
        says.push(format!("{} {what}", all - TOLD));
    }
}

fn place(case: &Case, sides: &Sides, serials: &Serials) -> Vec<String> {
    let domain = case.run.claims.domain_of(&case.node);
    let known = |it: Option<String>| it.unwrap_or_else(|| NOT_KNOWN.to_owned());
    let platform = domain.and_then(|it| it.platform.as_deref()).unwrap_or(NOT_KNOWN);
    let rack = serials.of("rack, as claimed").map(|it| format!(", rack {it}")).unwrap_or_default();
    let domain = domain.map_or(NOT_KNOWN, |it| it.name.as_str());
    let gpus = sides.gpus();
    let parts = match gpus.as_slice() {
        [] => String::new(),
        some => {
            let names: Vec<String> = some.iter().map(|it| format!("GPU {it}")).collect();
            format!(", {}", names.join(" and "))
        }
    };
    vec![
        format!("node {}{parts}; domain {domain}{rack}; platform {platform}", case.node),
        format!(
            "chassis serial {}; slot {}; tray {}; machine {}",
            known(serials.common(|it| it.chassis_serial.as_ref())),
            known(serials.common(|it| it.slot.as_ref()).or_else(|| {
                serials.of("slot, as claimed").map(|it| format!("{it} (as claimed)"))
            })),
            known(serials.common(|it| it.tray.as_ref())),
            serials.of("machine").unwrap_or(NOT_KNOWN),
        ),
    ]
}

fn how_bad(sides: &Sides) -> Vec<String> {
    let one = |it: &Finding| {
        let measured = it.measured?;
        let (held, ratio, shows) = match (it.expected, it.peers) {
            (Some(expected), _) => (expected, it.ratio, "is expected"),
            (None, Some(peers)) => (peers, it.ratio_to_peers, "is the peers' median"),
            (None, None) => (it.own?, it.ratio_to_own, "is what it showed before"),
        };
        let loss = ratio.map(|ratio| match it.unit.is_none_or(Unit::is_bandwidth) {
            true if ratio <= 1.0 => format!(", {} less", percent(1.0 - ratio)),
            true => format!(", {} more", percent(ratio - 1.0)),
            // Of a time, more is worse: its ratio is no share of what is expected.
            false => format!(", ratio {ratio:.3}"),
        });
        Some(format!(
            "{}: {} where {} {shows}{}",
            part(&it.locus),
            quantity(measured, it.unit),
            quantity(held, it.unit),
            loss.unwrap_or_default()
        ))
    };
    let mut says: Vec<String> = sides.against.iter().take(TOLD).filter_map(one).collect();
    // What rests on no test is what the machine says of itself.
    let evidence = sides.against.iter().flat_map(|it| &it.evidence);
    let mut states: Vec<&str> = Vec::new();
    for it in evidence.filter(|it| it.testcase.is_none()) {
        if !states.contains(&it.detail.as_str()) {
            states.push(&it.detail);
        }
    }
    says.extend(states.iter().take(STATES).map(|it| clip(it, LONGEST)));
    if says.is_empty() {
        says.push(match sides.against.len() {
            0 => "nothing is below what is expected of it".to_owned(),
            _ => "no rate is told; see the evidence in bundle.json".to_owned(),
        });
    }
    says
}

fn how_sure(sides: &Sides, partners: &Partners) -> Vec<String> {
    let mut says = Vec::new();
    if !sides.against.is_empty() {
        let confirmed = sides.against.iter().filter(|it| it.confirmed).count();
        says.push(match (confirmed, sides.against.len()) {
            (0, _) => "not confirmed: one measurement only, no second look agreed".to_owned(),
            (yes, all) if yes == all => {
                "confirmed: a second, independent measurement agreed".to_owned()
            }
            (yes, all) => format!("{yes} of {all} findings confirmed by a second measurement"),
        });
    }
    let suspect = &partners.suspect;
    if 0 < suspect.readings {
        let ratio = suspect.median_ratio.map(|it| format!(", median at {it:.3} of the reference"));
        says.push(format!(
            "{} of {} with its partners are low{}",
            suspect.low,
            readings(suspect.readings),
            ratio.unwrap_or_default()
        ));
    }
    let detectable = sides.verdict.as_ref().and_then(|it| it.detectable);
    says.push(match detectable {
        Some(share) => format!("a loss of {} or more would have been seen here", percent(share)),
        None => format!("the smallest loss that would have been seen is {NOT_KNOWN}"),
    });
    says
}

fn ruled_out(case: &Case, sides: &Sides, partners: &Partners) -> Vec<String> {
    let mut says = Vec::new();
    let all = partners.each.len();
    if 0 < all {
        let fine = partners.count(Standing::Acquitted);
        says.push(format!("its partners: {fine} of {all} are fine with others"));
        for standing in [Standing::Accused, Standing::LowWithOthers, Standing::NotMeasured] {
            let count = partners.count(standing);
            if 0 < count {
                says.push(format!(
                    "not ruled out: {} {}",
                    counted(count, "partner", "partners"),
                    standing.words()
                ));
            }
        }
        let among = &partners.among;
        if 0 < among.readings {
            let ratio = among.median_ratio.map(|it| format!(", median at {it:.3}"));
            says.push(format!(
                "the fabric between them, and the tool: {} of {} of partners with each other are low{}",
                among.low,
                readings(among.readings),
                ratio.unwrap_or_default()
            ));
        }
    } else {
        says.push("nothing: it was measured with nobody".to_owned());
    }
    let blamed = sides.gpus();
    let others: BTreeSet<u32> = sides
        .fine
        .iter()
        .filter_map(|at| case.run.cells.get(*at))
        .flat_map(|it| [(&it.src_node, it.src_gpu), (&it.dst_node, it.dst_gpu)])
        .filter(|(node, _)| node.as_ref() == Some(&case.node))
        .filter_map(|(_, gpu)| gpu.filter(|gpu| !blamed.contains(gpu)))
        .collect();
    if !blamed.is_empty() && !others.is_empty() {
        let names: Vec<String> = others.iter().map(ToString::to_string).collect();
        says.push(format!(
            "the rest of the node: nothing is held against GPU {}",
            names.join(", ")
        ));
    }
    let larger: Vec<String> =
        sides.larger.iter().map(|it| format!("{} ({})", part(&it.locus), it.class)).collect();
    says.push(match larger.len() {
        0 => "its domain and leaf: nothing is held against them".to_owned(),
        _ => format!("not ruled out, something larger: {}", listed(&larger, 3)),
    });
    for unknown in sides.unknown.iter().take(2) {
        let what = format!("{}: {}", unknown.what, unknown.why);
        says.push(format!("not known: {}", clip(&what, LONGEST)));
    }
    says
}

fn versions(case: &Case, serials: &Serials) -> Vec<String> {
    let mut tools: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for it in case.recordings.iter().filter(|it| is_own(it, case)) {
        let Some(tool) = it.parsed.tool else { continue };
        let versions = tools.entry(tool.as_str()).or_default();
        versions.extend(it.parsed.tool_version.as_deref());
    }
    let tools: Vec<String> = tools
        .into_iter()
        .map(|(tool, versions)| match versions.len() {
            0 => tool.to_owned(),
            _ => format!("{tool} {}", versions.into_iter().collect::<Vec<_>>().join(", ")),
        })
        .collect();
    let of = |what| serials.of(what).unwrap_or(NOT_KNOWN);
    vec![
        format!(
            "driver {}; CUDA {}; NCCL {}; kernel {}; VBIOS {}",
            of("driver"),
            of("CUDA"),
            of("NCCL"),
            of("kernel"),
            serials.common(|it| it.vbios.as_ref()).unwrap_or_else(|| NOT_KNOWN.to_owned())
        ),
        format!(
            "fabricgate {}, expectations {}; tools: {}",
            case.run.info.version,
            if case.run.verdicts.thresholds_digest.is_empty() {
                NOT_KNOWN.to_owned()
            } else {
                clip(&case.run.verdicts.thresholds_digest, 24)
            },
            if tools.is_empty() { NOT_KNOWN.to_owned() } else { listed(&tools, 8) }
        ),
    ]
}

/// Whether a recording is of this node, or of a run it took part in.
fn is_own(it: &model::recording::Recording, case: &Case) -> bool {
    use model::recording::Scope;
    let by_scope = match &it.scope {
        Scope::Node(node) => *node == case.node,
        Scope::Pair(a, b) => *a == case.node || *b == case.node,
        Scope::Domain(_) => false,
    };
    by_scope || it.nodes.contains(&case.node)
}

/// What is told of one probe.
#[derive(Default)]
struct Probe<'a> {
    command: &'a str,
    nodes: usize,
    is_cited: bool,
    /// By step and reading, whether it ended well.
    readings: BTreeMap<(usize, u32), bool>,
}

fn how_measured(case: &Case, index: &Index) -> Vec<String> {
    let info = &case.run.info;
    let ended = case.ended.as_deref().unwrap_or(NOT_KNOWN);
    let mut says = vec![format!(
        "run {} ({}, {}), begun {}, ended {ended}",
        info.id, info.profile, case.state, info.created
    )];
    let mut probes: BTreeMap<&str, Probe<'_>> = BTreeMap::new();
    for it in &index.entries {
        let probe = probes.entry(&it.probe).or_default();
        probe.command = &it.command;
        probe.nodes = it.nodes.len();
        probe.is_cited |= it.cited;
        probe.readings.insert((it.step, it.reading), it.exit == Some(0));
    }
    let mut order: Vec<(&&str, &Probe<'_>)> = probes.iter().collect();
    // What findings rest on first, then what is most of all this node's.
    order.sort_by_key(|(name, it)| (!it.is_cited, it.nodes, **name));
    for (name, probe) in order.iter().take(COMMANDS) {
        let bad = probe.readings.values().filter(|well| !**well).count();
        let bad = if bad == 0 { String::new() } else { format!(", {bad} not ended well") };
        let readings = counted(probe.readings.len(), "reading", "readings");
        says.push(format!("{name} ({readings}{bad}): {}", clip(probe.command, COMMAND)));
    }
    if COMMANDS < probes.len() {
        says.push(format!("{} more probes in raw/index.csv", probes.len() - COMMANDS));
    }
    if probes.is_empty() {
        says.push("no reading of this node is on record".to_owned());
    }
    says
}

fn hardware(sides: &Sides, serials: &Serials) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let head = vec!["GPU", "UUID", "board serial", "PCI address", "VBIOS", "chassis / slot / tray"];
    let blamed = sides.gpus();
    let known = |it: &Option<String>| it.clone().unwrap_or_else(|| NOT_KNOWN.to_owned());
    let mut order: Vec<_> = serials.gpus.iter().collect();
    order.sort_by_key(|it| (!blamed.contains(&it.index), it.index));
    let one = |it: &&super::serials::Gpu| {
        let mark = if blamed.contains(&it.index) { " (blamed)" } else { "" };
        let place = match (&it.chassis_serial, &it.slot, &it.tray) {
            (None, None, None) => NOT_KNOWN.to_owned(),
            (a, b, c) => format!("{} / {} / {}", known(a), known(b), known(c)),
        };
        vec![
            format!("{}{mark}", it.index),
            known(&it.uuid),
            known(&it.board_serial),
            known(&it.pci_address),
            known(&it.vbios),
            place,
        ]
    };
    (head, order.iter().take(GPUS).map(one).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::bundle::fixture;
    use crate::report::fixture::rack;

    #[test]
    fn how_bad_it_is_says_less_only_of_what_should_be_more() {
        let said = |unit: Unit, measured: f64, expected: f64, ratio: f64| {
            let mut run = rack();
            let finding = &mut run.verdicts.findings[0];
            (finding.unit, finding.ratio) = (Some(unit), Some(ratio));
            (finding.measured, finding.expected) = (Some(measured), Some(expected));
            let case = fixture::case(run, "node0007");
            how_bad(&Sides::of(&case)).remove(0)
        };
        let rate = said(Unit::GigabytesPerSecond, 300.0, 400.0, 0.75);
        assert!(rate.ends_with(" is expected, 25.0 % less"), "{rate}");
        let time = said(Unit::Microseconds, 4.0, 3.0, 0.75);
        assert!(time.ends_with(" is expected, ratio 0.750"), "{time}");
        let high = said(Unit::GigabytesPerSecond, 440.0, 400.0, 1.1);
        assert!(high.ends_with(" is expected, 10.0 % more"), "{high}");
    }
}
