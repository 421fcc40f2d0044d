//! What a bundle says on its first page, as values: what, where, how bad, how sure,
//! since when, what was ruled out, which versions, how it was measured.
//!
//! Sentences are made here once, for Markdown and HTML alike. Every one rests on a
//! value of the run; what the run does not tell is said to be not known.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;

use super::evidence::NodeEvidence;
use super::partners::{Partner, Partners, Standing};
use super::plots::Plots;
use super::raw_outputs::RawIndex;
use super::redaction::NOT_CAUGHT;
use super::serials::{HardwareSerials, NOT_KNOWN};
use super::{BUNDLE_FORMAT, BundleCase, trends};
use crate::report::class_text;
use crate::report::plain_text::{clip, count_noun, format_quantity, list_names, locus_place};
use model::run::RunInfo;
use model::text::format_percent;
use model::trend::Trend;
use model::unit::Unit;
use model::verdict::{Finding, Locus, LocusKind, NodeVerdict, Outcome, UnknownEntry};

/// Findings told on the page; `bundle.json` has all.
const DESCRIBED_FINDINGS: usize = 4;
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
pub(crate) struct BundleRow {
    /// The question.
    pub(super) what: &'static str,
    /// The answers, in sentences.
    pub(super) says: Vec<String>,
}

/// The page.
#[derive(Clone, Debug, Serialize)]
pub(super) struct BundlePage {
    pub(super) node: String,
    pub(super) run: String,
    pub(super) outcome: String,
    /// The answer in one sentence.
    pub(super) headline: String,
    pub(super) rows: Vec<BundleRow>,
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
    unknown: &'a [UnknownEntry],
    /// Who was measured with it.
    partners: &'a [Partner],
    /// The first of the series of its history, whole.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    trends: Vec<&'a Trend>,
    /// Which hardware it is.
    serials: &'a HardwareSerials,
    /// The first page: questions with their answers.
    summary: &'a [BundleRow],
    /// What could not be packed, and why.
    missing: &'a [String],
    /// Names and addresses of others were taken out.
    redacted: bool,
}

pub(super) fn build_document<'a>(
    case: &'a BundleCase,
    page: &'a BundlePage,
    sides: &'a NodeEvidence,
    partners: &'a Partners,
    serials: &'a HardwareSerials,
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
        trends: trends::order_trends(case, sides).into_iter().take(trends::DRAWN).collect(),
        serials,
        summary: &page.rows,
        missing: &case.missing,
        redacted: case.redact,
    }
}

/// Makes the page.
pub(super) fn build_page(
    case: &BundleCase,
    sides: &NodeEvidence,
    partners: &Partners,
    serials: &HardwareSerials,
    plots: &Plots,
    index: &RawIndex,
) -> BundlePage {
    let info = &case.run.info;
    let row = |what, says: Vec<String>| BundleRow { what, says };
    let rows = vec![
        row("What", describe_problem(case, sides)),
        row("Where", describe_place(case, sides, serials)),
        row("How bad", describe_severity(sides)),
        row("How sure", describe_certainty(sides, partners)),
        row("Since when", trends::describe_trends(case, sides)),
        row("Ruled out", describe_exclusions(case, sides, partners)),
        row("Versions", describe_versions(case, serials)),
        row("How measured", describe_method(case, index)),
    ];
    let mut files = vec![
        ("bundle.json".to_owned(), "all of this for programs, findings whole".to_owned()),
        ("serials.csv".to_owned(), "serial numbers, UUIDs, slots, firmware, GUIDs".to_owned()),
        ("evidence/convict.csv".to_owned(), format_counts(sides.convict.len(), "not as expected")),
        (
            "evidence/acquit-this-node.csv".to_owned(),
            format_counts(sides.fine.len(), "as expected"),
        ),
        (
            "evidence/partners.csv".to_owned(),
            format!("{} it was measured with", count_noun(partners.each.len(), "part", "parts")),
        ),
        (
            "evidence/acquit-partners.csv".to_owned(),
            format!("{} of these with each other", count_readings(partners.cells.len())),
        ),
        (
            "raw/index.csv".to_owned(),
            format!("what was run, when, and how it ended: {}", count_outputs(index)),
        ),
    ];
    if !case.trends.is_empty() {
        let series = count_noun(case.trends.len(), "series", "series");
        let what = format!("{series} of this node over earlier runs and this one");
        files.push(("history.csv".to_owned(), what));
    }
    let pictures: Vec<&str> = plots.captions.iter().map(|it| it.1.as_str()).collect();
    if !pictures.is_empty() {
        files.push(("plots/".to_owned(), list_names(&pictures, MOST_PICTURES)));
    }
    let (head, hardware) = hardware_table(sides, serials);
    BundlePage {
        node: case.node.to_string(),
        run: info.id.clone(),
        outcome: outcome_text(case, sides).to_uppercase(),
        headline: headline_text(case, sides),
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
fn part_name(locus: &Locus) -> String {
    let place = locus_place(locus);
    match locus.kind {
        LocusKind::Gpu => place.replacen("gpu", "GPU", 1),
        _ => place,
    }
}

fn count_readings(count: usize) -> String {
    count_noun(count, "reading", "readings")
}

fn format_counts(count: usize, how: &str) -> String {
    format!(
        "{} of this node that {} {how}",
        count_readings(count),
        if count == 1 { "is" } else { "are" }
    )
}

fn count_outputs(index: &RawIndex) -> String {
    let packed = index.entries.iter().filter(|it| it.file.is_some()).count();
    format!("{} packed, {} named", count_noun(packed, "output", "outputs"), index.entries.len())
}

fn outcome_text(case: &BundleCase, sides: &NodeEvidence) -> &'static str {
    match &sides.verdict {
        Some(verdict) => verdict.outcome.as_str(),
        None if case.judged => "not judged in this run",
        None => "not judged",
    }
}

fn headline_text(case: &BundleCase, sides: &NodeEvidence) -> String {
    let said = verdict_text(case, sides);
    match case.run.info.simulation_notice() {
        Some(simulated) => format!("{simulated}; {said}"),
        None => said,
    }
}

fn verdict_text(case: &BundleCase, sides: &NodeEvidence) -> String {
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

fn describe_problem(case: &BundleCase, sides: &NodeEvidence) -> Vec<String> {
    if sides.against.is_empty() {
        return vec![headline_text(case, sides)];
    }
    let mut says: Vec<String> = sides
        .against
        .iter()
        .take(DESCRIBED_FINDINGS)
        .map(|it| {
            let title = class_text::class_title(&it.class);
            format!("{}: {title} ({}), {}", part_name(&it.locus), it.class, it.outcome)
        })
        .collect();
    push_more(&mut says, sides.against.len(), "more in bundle.json");
    says
}

fn push_more(says: &mut Vec<String>, all: usize, what: &str) {
    if DESCRIBED_FINDINGS < all {
        says.push(format!("{} {what}", all - DESCRIBED_FINDINGS));
    }
}

fn describe_place(
    case: &BundleCase,
    sides: &NodeEvidence,
    serials: &HardwareSerials,
) -> Vec<String> {
    let domain = case.run.claims.domain_of(&case.node);
    let known = |it: Option<String>| it.unwrap_or_else(|| NOT_KNOWN.to_owned());
    let platform = domain.and_then(|it| it.platform.as_deref()).unwrap_or(NOT_KNOWN);
    let rack =
        serials.node_fact("rack, as claimed").map(|it| format!(", rack {it}")).unwrap_or_default();
    let domain = domain.map_or(NOT_KNOWN, |it| it.name.as_str());
    let gpus = sides.blamed_gpus();
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
            known(serials.common_value(|it| it.chassis_serial.as_ref())),
            known(serials.common_value(|it| it.slot.as_ref()).or_else(|| {
                serials.node_fact("slot, as claimed").map(|it| format!("{it} (as claimed)"))
            })),
            known(serials.common_value(|it| it.tray.as_ref())),
            serials.node_fact("machine").unwrap_or(NOT_KNOWN),
        ),
    ]
}

fn describe_severity(sides: &NodeEvidence) -> Vec<String> {
    let one = |it: &Finding| {
        let measured = it.measured?;
        let (held, ratio, shows) = match (it.expected, it.peers) {
            (Some(expected), _) => (expected, it.ratio, "is expected"),
            (None, Some(peers)) => (peers, it.ratio_to_peers, "is the peers' median"),
            (None, None) => (it.own?, it.ratio_to_own, "is what it showed before"),
        };
        let loss = ratio.map(|ratio| match it.unit.is_none_or(Unit::is_bandwidth) {
            true if ratio <= 1.0 => format!(", {} less", format_percent(1.0 - ratio)),
            true => format!(", {} more", format_percent(ratio - 1.0)),
            // Of a time, more is worse: its ratio is no share of what is expected.
            false => format!(", ratio {ratio:.3}"),
        });
        Some(format!(
            "{}: {} where {} {shows}{}",
            part_name(&it.locus),
            format_quantity(measured, it.unit),
            format_quantity(held, it.unit),
            loss.unwrap_or_default()
        ))
    };
    let mut says: Vec<String> =
        sides.against.iter().take(DESCRIBED_FINDINGS).filter_map(one).collect();
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

fn describe_certainty(sides: &NodeEvidence, partners: &Partners) -> Vec<String> {
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
            count_readings(suspect.readings),
            ratio.unwrap_or_default()
        ));
    }
    let detectable = sides.verdict.as_ref().and_then(|it| it.detectable);
    says.push(match detectable {
        Some(share) => {
            format!("a loss of {} or more would have been seen here", format_percent(share))
        }
        None => format!("the smallest loss that would have been seen is {NOT_KNOWN}"),
    });
    says
}

fn describe_exclusions(
    case: &BundleCase,
    sides: &NodeEvidence,
    partners: &Partners,
) -> Vec<String> {
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
                    count_noun(count, "partner", "partners"),
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
                count_readings(among.readings),
                ratio.unwrap_or_default()
            ));
        }
    } else {
        says.push("nothing: it was measured with nobody".to_owned());
    }
    let blamed = sides.blamed_gpus();
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
        sides.larger.iter().map(|it| format!("{} ({})", part_name(&it.locus), it.class)).collect();
    says.push(match larger.len() {
        0 => "its domain and leaf: nothing is held against them".to_owned(),
        _ => format!("not ruled out, something larger: {}", list_names(&larger, 3)),
    });
    for unknown in sides.unknown.iter().take(2) {
        let what = format!("{}: {}", unknown.what, unknown.why);
        says.push(format!("not known: {}", clip(&what, LONGEST)));
    }
    says
}

fn describe_versions(case: &BundleCase, serials: &HardwareSerials) -> Vec<String> {
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
    let of = |what| serials.node_fact(what).unwrap_or(NOT_KNOWN);
    vec![
        format!(
            "driver {}; CUDA {}; NCCL {}; kernel {}; VBIOS {}",
            of("driver"),
            of("CUDA"),
            of("NCCL"),
            of("kernel"),
            serials.common_value(|it| it.vbios.as_ref()).unwrap_or_else(|| NOT_KNOWN.to_owned())
        ),
        format!(
            "fabricgate {}, expectations {}; tools: {}",
            case.run.info.version,
            if case.run.verdicts.thresholds_digest.is_empty() {
                NOT_KNOWN.to_owned()
            } else {
                clip(&case.run.verdicts.thresholds_digest, 24)
            },
            if tools.is_empty() { NOT_KNOWN.to_owned() } else { list_names(&tools, 8) }
        ),
    ]
}

/// Whether a recording is of this node, or of a run it took part in.
fn is_own(it: &model::tool_recording::ToolRecording, case: &BundleCase) -> bool {
    use model::tool_recording::RecordingScope;
    let by_scope = match &it.scope {
        RecordingScope::Node(node) => *node == case.node,
        RecordingScope::Pair(a, b) => *a == case.node || *b == case.node,
        RecordingScope::Domain(_) => false,
    };
    by_scope || it.nodes.contains(&case.node)
}

/// What is told of one probe.
#[derive(Default)]
struct BundleProbe<'a> {
    command: &'a str,
    nodes: usize,
    is_cited: bool,
    /// By step and reading, whether it ended well.
    readings: BTreeMap<(usize, u32), bool>,
}

fn describe_method(case: &BundleCase, index: &RawIndex) -> Vec<String> {
    let info = &case.run.info;
    let ended = case.ended.as_deref().unwrap_or(NOT_KNOWN);
    let mut says = vec![format!(
        "run {} ({}, {}), begun {}, ended {ended}",
        info.id, info.profile, case.state, info.created
    )];
    let mut probes: BTreeMap<&str, BundleProbe<'_>> = BTreeMap::new();
    for it in &index.entries {
        let probe = probes.entry(&it.probe).or_default();
        probe.command = &it.command;
        probe.nodes = it.nodes.len();
        probe.is_cited |= it.cited;
        probe.readings.insert((it.step, it.reading), it.exit == Some(0));
    }
    let mut order: Vec<(&&str, &BundleProbe<'_>)> = probes.iter().collect();
    // What findings rest on first, then what is most of all this node's.
    order.sort_by_key(|(name, it)| (!it.is_cited, it.nodes, **name));
    for (name, probe) in order.iter().take(COMMANDS) {
        let bad = probe.readings.values().filter(|well| !**well).count();
        let bad = if bad == 0 { String::new() } else { format!(", {bad} not ended well") };
        let readings = count_noun(probe.readings.len(), "reading", "readings");
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

fn hardware_table(
    sides: &NodeEvidence,
    serials: &HardwareSerials,
) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let head = vec!["GPU", "UUID", "board serial", "PCI address", "VBIOS", "chassis / slot / tray"];
    let blamed = sides.blamed_gpus();
    let known = |it: &Option<String>| it.clone().unwrap_or_else(|| NOT_KNOWN.to_owned());
    let mut order: Vec<_> = serials.gpus.iter().collect();
    order.sort_by_key(|it| (!blamed.contains(&it.index), it.index));
    let one = |it: &&super::serials::GpuHardware| {
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
            let case = fixture::build_case(run, "node0007");
            describe_severity(&NodeEvidence::from_case(&case)).remove(0)
        };
        let rate = said(Unit::GigabytesPerSecond, 300.0, 400.0, 0.75);
        assert!(rate.ends_with(" is expected, 25.0 % less"), "{rate}");
        let time = said(Unit::Microseconds, 4.0, 3.0, 0.75);
        assert!(time.ends_with(" is expected, ratio 0.750"), "{time}");
        let high = said(Unit::GigabytesPerSecond, 440.0, 400.0, 1.1);
        assert!(high.ends_with(" is expected, 10.0 % more"), "{high}");
    }
}
