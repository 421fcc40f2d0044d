//! Findings for the page: place and evidence.

use std::collections::{BTreeMap, BTreeSet};

use minijinja::Value;
use serde::Serialize;

use super::history::sparkline_for_locus;
use super::{FILES, HtmlAnchors, LONGEST, MOST_FINDINGS, ROWS, clip_text};
use crate::report::class_text;
use crate::report::plain_text::{clip, locus_place, relative_to_source};
use model::run::Run;
use model::trend::Trend;
use model::verdict::Finding;

/// Number of findings whose evidence is open from the start.
const OPEN: usize = 3;

/// Evidence of one or more files with the same text.
#[derive(Serialize)]
struct EvidenceGroup {
    files: Vec<String>,
    files_more: usize,
    test: Option<String>,
    detail: String,
}

/// A finding with its place on the page.
#[derive(Serialize)]
pub(super) struct HtmlFinding<'a> {
    #[serde(flatten)]
    finding: &'a Finding,
    pub(super) anchor: String,
    /// Place and title: the text of links to it.
    pub(super) name: String,
    trend: Option<Value>,
    evidence_groups: Vec<EvidenceGroup>,
    evidence_more: usize,
    files: usize,
    open: bool,
}

/// The findings of the page, worst first in the judge's order.
pub(super) fn build_findings<'a>(
    run: &'a Run,
    trends: &[Trend],
    anchors: &mut HtmlAnchors,
) -> Vec<HtmlFinding<'a>> {
    let build = |(index, finding): (usize, &'a Finding)| {
        let locus = &finding.locus;
        let title = class_text::class_title(&finding.class);
        let files: BTreeSet<_> = finding.evidence.iter().map(|e| &e.file).collect();
        HtmlFinding {
            finding,
            anchor: anchors.unique_name("finding", &finding.id),
            name: clip_text(&format!("{}: {title}", locus_place(locus))),
            trend: sparkline_for_locus(locus, trends),
            evidence_groups: group_evidence(finding, &run.info.source),
            evidence_more: finding.evidence.len().saturating_sub(ROWS),
            files: files.len(),
            open: index < OPEN,
        }
    };
    run.verdicts.findings.iter().take(MOST_FINDINGS).enumerate().map(build).collect()
}

fn group_evidence(finding: &Finding, source: &str) -> Vec<EvidenceGroup> {
    let mut groups: Vec<EvidenceGroup> = Vec::new();
    let mut at: BTreeMap<(Option<&str>, &str), usize> = BTreeMap::new();
    for e in finding.evidence.iter().take(ROWS) {
        let key = (e.testcase.as_deref(), e.detail.as_str());
        let same = *at.entry(key).or_insert_with(|| {
            groups.push(EvidenceGroup {
                files: Vec::new(),
                files_more: 0,
                test: e.testcase.as_deref().map(clip_text),
                detail: clip(&relative_to_source(&e.detail, source), LONGEST),
            });
            groups.len() - 1
        });
        let group = &mut groups[same];
        if group.files.len() < FILES {
            group.files.push(clip(&relative_to_source(&e.file, source), LONGEST));
        } else {
            group.files_more += 1;
        }
    }
    groups
}
