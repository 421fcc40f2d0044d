//! The readings between two ends, or of a rail, one by one, and the findings about them. Part of an
//! explanation; it judges nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::explain;
use super::explain::MOST;
use super::plain_text::{format_quantity, to_plain};
use model::id::NodeName;
use model::measured_cell::MeasuredCell;
use model::run::Run;
use model::stats::sort_median;
use model::unit::Unit;
use model::verdict::Finding;

/// An end as users write it: `node` or `node:gpu`.
#[derive(Clone, Copy)]
struct ExplainedEnd<'q> {
    text: &'q str,
}

impl ExplainedEnd<'_> {
    /// Whether this is the end of a cell.
    fn matches(&self, node: Option<&NodeName>, gpu: Option<u32>) -> bool {
        let Some(node) = node else { return false };
        let named = gpu.is_some_and(|gpu| self.text == format!("{node}:{gpu}"));
        named || self.text == node.as_str()
    }

    /// Whether a part written as `node` or `node:gpu` is this end, or in it.
    fn matches_text(&self, part: &str) -> bool {
        let node = part.rsplit_once(':').map(|(node, _)| node);
        part == self.text || node == Some(self.text)
    }
}

/// The readings between two ends, written as `A - B` or `A,B`; `None` if the run has no such pair.
pub(super) fn explain_pair(run: &Run, query: &str) -> Option<String> {
    let query = query.strip_prefix("pair ").unwrap_or(query);
    let (a, b) = query.split_once(" - ").or_else(|| query.split_once(','))?;
    let (a, b) = (ExplainedEnd { text: a.trim() }, ExplainedEnd { text: b.trim() });
    let here = |c: &&MeasuredCell| {
        let src = |end: ExplainedEnd<'_>| end.matches(c.src_node.as_ref(), c.src_gpu);
        let dst = |end: ExplainedEnd<'_>| end.matches(c.dst_node.as_ref(), c.dst_gpu);
        (src(a) && dst(b)) || (src(b) && dst(a))
    };
    let cells: Vec<&MeasuredCell> = run.cells.iter().filter(here).collect();
    let about = |f: &&Finding| {
        let gpu = f.locus.gpu.map_or(String::new(), |gpu| format!(":{gpu}"));
        let own = f.locus.node.as_ref().map(|node| format!("{node}{gpu}"));
        let ends = own.as_deref().zip(f.locus.peer.as_deref());
        ends.is_some_and(|(x, y)| {
            (a.matches_text(x) && b.matches_text(y)) || (a.matches_text(y) && b.matches_text(x))
        })
    };
    let about: Vec<&Finding> = run.verdicts.findings.iter().filter(about).collect();
    describe_readings(run, &format!("between {} and {}", a.text, b.text), &cells, &about)
}

/// The readings of one rail.
pub(super) fn explain_rail(run: &Run, query: &str) -> Option<String> {
    let name = query.strip_prefix("rail ").unwrap_or(query);
    let is = |rail: &Option<String>| rail.as_deref() == Some(name);
    let cells: Vec<&MeasuredCell> = run.cells.iter().filter(|c| is(&c.rail)).collect();
    let about: Vec<&Finding> = run.verdicts.findings.iter().filter(|f| is(&f.locus.rail)).collect();
    describe_readings(run, &format!("over rail {name}"), &cells, &about)
}

/// The stage, the test, and both ends.
type ReadingGroupKey = (Option<u8>, String, String);

/// Readings by test, direction and stage, then the findings.
fn describe_readings(
    run: &Run,
    what: &str,
    cells: &[&MeasuredCell],
    about: &[&Finding],
) -> Option<String> {
    if cells.is_empty() && about.is_empty() {
        return None;
    }
    let mut ways: BTreeMap<ReadingGroupKey, (Unit, Vec<f64>)> = BTreeMap::new();
    for cell in cells {
        let Some(value) = cell.value.filter(|v| v.is_finite()) else { continue };
        let end = |node: &Option<NodeName>, gpu: Option<u32>| {
            let gpu = gpu.map_or(String::new(), |gpu| format!(":{gpu}"));
            node.as_ref().map_or("host".to_owned(), |node| format!("{node}{gpu}"))
        };
        let (from, to) = (end(&cell.src_node, cell.src_gpu), end(&cell.dst_node, cell.dst_gpu));
        let key = (cell.stage, cell.testcase.to_string(), format!("{from} to {to}"));
        ways.entry(key).or_insert((cell.unit, Vec::new())).1.push(value);
    }
    let mut out = String::new();
    let _ = writeln!(out, "Readings {}", to_plain(what));
    let count = ways.len();
    for ((stage, testcase, way), (unit, values)) in ways.into_iter().take(MOST) {
        let stage = stage.map_or(String::new(), |stage| format!("stage {stage}, "));
        let all: Vec<String> =
            values.iter().take(MOST).map(|value| format_quantity(*value, Some(unit))).collect();
        let middle = sort_median(&mut values.clone()).unwrap_or(0.0);
        let _ = writeln!(
            out,
            "  {stage}{}, {}: {} (median {})",
            to_plain(&testcase),
            to_plain(&way),
            all.join(", "),
            format_quantity(middle, Some(unit))
        );
    }
    if MOST < count {
        let _ = writeln!(out, "  and {} more", count - MOST);
    }
    if about.is_empty() {
        out.push_str("\nNo finding is about this path.\n");
    } else {
        out.push('\n');
        out.push_str(&explain::render_findings(run, about));
    }
    Some(out)
}
