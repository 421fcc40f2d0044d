//! Findings for the page: what was found and where, what it rests on, and what
//! a person does next.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::anchors::HtmlAnchors;
use super::history::{Sparkline, sparkline_for_locus};
use super::{FILES, LONGEST, ROWS, TOLD, clip_text};
use crate::report::plain_text::{clip, format_quantity, locus_place, relative_to_source};
use crate::report::{class_text, reference_text};
use model::run::Run;
use model::text::format_percent;
use model::trend::Trend;
use model::verdict::Finding;

/// Findings that show all they rest on from the start.
const OPEN: usize = 3;

/// Prose, or a command inside it.
#[derive(Serialize)]
pub(super) struct AdvicePiece {
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
    next: Vec<AdvicePiece>,
    trend: Option<Sparkline>,
    evidence: Vec<EvidenceText>,
    evidence_more: usize,
    files: usize,
    /// Whether what it rests on is shown from the start.
    open: bool,
}

/// The findings that are told, worst first as the judge ordered them.
pub(super) fn build_findings(
    run: &Run,
    trends: &[Trend],
    domains: &BTreeMap<&str, usize>,
    anchors: &mut HtmlAnchors,
) -> Vec<FindingText> {
    let told = run.verdicts.findings.iter().take(TOLD).enumerate();
    told.map(|(index, f)| {
        let domain = f.locus.domain.as_ref().and_then(|d| domains.get(d.as_str())).copied();
        let anchor = anchors.unique_name("finding", &f.id);
        FindingText {
            domain,
            open: index < OPEN,
            trend: sparkline_for_locus(&f.locus, trends),
            ..build_finding(f, anchor, &run.info.source)
        }
    })
    .collect()
}

/// Advice with its commands, which stand between backticks, taken apart.
fn split_advice(text: &'static str) -> Vec<AdvicePiece> {
    let pieces = text.split('`').enumerate();
    pieces.map(|(at, text)| AdvicePiece { text, command: at % 2 == 1 }).collect()
}

fn reference_rows(finding: &Finding) -> Vec<(&'static str, String, String)> {
    let all = reference_text::list_references(finding).into_iter();
    all.map(|(of, value, ratio)| {
        let value = value.map_or_else(|| "–".to_owned(), |v| format_quantity(v, finding.unit));
        let ratio = ratio.map(|r| format!("{r:.3} of it")).unwrap_or_default();
        (of.prefix(), value, ratio)
    })
    .collect()
}

fn build_finding(finding: &Finding, anchor: String, source: &str) -> FindingText {
    let value =
        |v: Option<f64>| v.map_or_else(|| "–".to_owned(), |v| format_quantity(v, finding.unit));
    let mut evidence: Vec<EvidenceText> = Vec::new();
    let mut at: BTreeMap<(Option<&str>, &str), usize> = BTreeMap::new();
    let files: BTreeSet<_> = finding.evidence.iter().map(|e| &e.file).collect();
    for e in finding.evidence.iter().take(ROWS) {
        let key = (e.testcase.as_deref(), e.detail.as_str());
        let same = *at.entry(key).or_insert_with(|| {
            evidence.push(EvidenceText {
                files: Vec::new(),
                files_more: 0,
                test: e.testcase.as_deref().map(clip_text),
                detail: clip(&relative_to_source(&e.detail, source), LONGEST),
            });
            evidence.len() - 1
        });
        let text = &mut evidence[same];
        if text.files.len() < FILES {
            text.files.push(clip(&relative_to_source(&e.file, source), LONGEST));
        } else {
            text.files_more += 1;
        }
    }
    FindingText {
        anchor,
        name: clip_text(&format!(
            "{}: {}",
            locus_place(&finding.locus),
            class_text::class_title(&finding.class)
        )),
        domain: None,
        node: None,
        next: class_text::class_advice(&finding.class).map(split_advice).unwrap_or_default(),
        trend: None,
        open: false,
        id: clip_text(&finding.id),
        outcome: finding.outcome.as_str(),
        class: clip_text(finding.class.as_str()),
        title: class_text::class_title(&finding.class),
        locus: clip_text(&locus_place(&finding.locus)),
        measured: value(finding.measured),
        held: reference_rows(finding),
        confirmed: finding.confirmed,
        detectable: finding.detectable.map_or_else(|| "not known".to_owned(), format_percent),
        rule: clip_text(&finding.rule.to_string()),
        summary: clip(&relative_to_source(&finding.summary, source), LONGEST),
        evidence,
        evidence_more: finding.evidence.len().saturating_sub(ROWS),
        files: files.len(),
    }
}
