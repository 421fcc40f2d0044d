//! Findings for the page: what was found and where, what it rests on, and what
//! a person does next.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use serde::Serialize;

use super::FILES;
use super::LONGEST;
use super::ROWS;
use super::TOLD;
use super::anchors::Anchors;
use super::history::Sparkline;
use super::history::sparkline_of;
use super::shown;
use crate::report::class;
use crate::report::compared;
use crate::report::plain::below;
use crate::report::plain::clip;
use crate::report::plain::place_of;
use crate::report::plain::quantity;
use model::run::Run;
use model::text::percent;
use model::trend::Trend;
use model::verdict::Finding;

/// Findings that show all they rest on from the start.
const OPEN: usize = 3;

/// Prose, or a command inside it.
#[derive(Serialize)]
pub(super) struct Piece {
    text: &'static str,
    command: bool,
}

/// What one or more files say alike.
#[derive(Serialize)]
struct EvidenceText {
    files: Vec<String>,
    files_more: usize,
    test: Option<String>,
    detail: String,
}

#[derive(Serialize)]
pub(super) struct FindingText {
    pub(super) anchor: String,
    /// Place and title, for whoever points here.
    pub(super) name: String,
    id: String,
    outcome: &'static str,
    class: String,
    title: String,
    locus: String,
    /// Its domain among those of the filter.
    domain: Option<usize>,
    /// Its node's place on the page.
    pub(super) node: Option<String>,
    measured: String,
    /// What it was compared with, and what it is of that.
    held: Vec<(&'static str, String, String)>,
    confirmed: bool,
    detectable: String,
    rule: String,
    summary: String,
    next: Vec<Piece>,
    trend: Option<Sparkline>,
    evidence: Vec<EvidenceText>,
    evidence_more: usize,
    files: usize,
    /// Whether what it rests on is shown from the start.
    open: bool,
}

/// The findings that are told, worst first as the judge ordered them.
pub(super) fn findings(
    run: &Run,
    trends: &[Trend],
    domains: &BTreeMap<&str, usize>,
    anchors: &mut Anchors,
) -> Vec<FindingText> {
    let told = run.verdicts.findings.iter().take(TOLD).enumerate();
    told.map(|(index, f)| {
        let domain = f.locus.domain.as_ref().and_then(|d| domains.get(d.as_str())).copied();
        let anchor = anchors.name("finding", &f.id);
        FindingText {
            domain,
            open: index < OPEN,
            trend: sparkline_of(&f.locus, trends),
            ..finding(f, anchor, &run.info.source)
        }
    })
    .collect()
}

/// Advice with its commands, which stand between backticks, taken apart.
fn pieces(text: &'static str) -> Vec<Piece> {
    let pieces = text.split('`').enumerate();
    pieces.map(|(at, text)| Piece { text, command: at % 2 == 1 }).collect()
}

fn held(finding: &Finding) -> Vec<(&'static str, String, String)> {
    let all = compared::all(finding).into_iter();
    all.map(|(of, value, ratio)| {
        let value = value.map_or_else(|| "–".to_owned(), |v| quantity(v, finding.unit));
        let ratio = ratio.map(|r| format!("{r:.3} of it")).unwrap_or_default();
        (of.short(), value, ratio)
    })
    .collect()
}

fn finding(finding: &Finding, anchor: String, source: &str) -> FindingText {
    let value = |v: Option<f64>| v.map_or_else(|| "–".to_owned(), |v| quantity(v, finding.unit));
    let mut evidence: Vec<EvidenceText> = Vec::new();
    let mut at: BTreeMap<(Option<&str>, &str), usize> = BTreeMap::new();
    let files: BTreeSet<_> = finding.evidence.iter().map(|e| &e.file).collect();
    for e in finding.evidence.iter().take(ROWS) {
        let key = (e.testcase.as_deref(), e.detail.as_str());
        let same = *at.entry(key).or_insert_with(|| {
            evidence.push(EvidenceText {
                files: Vec::new(),
                files_more: 0,
                test: e.testcase.as_deref().map(shown),
                detail: clip(&below(&e.detail, source), LONGEST),
            });
            evidence.len() - 1
        });
        let text = &mut evidence[same];
        if text.files.len() < FILES {
            text.files.push(clip(&below(&e.file, source), LONGEST));
        } else {
            text.files_more += 1;
        }
    }
    FindingText {
        anchor,
        name: shown(&format!("{}: {}", place_of(&finding.locus), class::title(&finding.class))),
        domain: None,
        node: None,
        next: class::advice(&finding.class).map(pieces).unwrap_or_default(),
        trend: None,
        open: false,
        id: shown(&finding.id),
        outcome: finding.outcome.as_str(),
        class: shown(finding.class.as_str()),
        title: class::title(&finding.class),
        locus: shown(&place_of(&finding.locus)),
        measured: value(finding.measured),
        held: held(finding),
        confirmed: finding.confirmed,
        detectable: finding.detectable.map_or_else(|| "not known".to_owned(), percent),
        rule: shown(&finding.rule.to_string()),
        summary: clip(&below(&finding.summary, source), LONGEST),
        evidence,
        evidence_more: finding.evidence.len().saturating_sub(ROWS),
        files: files.len(),
    }
}
