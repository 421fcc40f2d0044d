//! Two ends, or a rail: what was read between them, reading by reading, and which
//! findings are about them. Part of an explanation; it judges nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::explain;
use super::explain::MOST;
use super::plain::plain;
use super::plain::quantity;
use model::cell::Cell;
use model::id::NodeName;
use model::run::Run;
use model::stats::sort_median;
use model::unit::Unit;
use model::verdict::Finding;

/// An end as people write it: `node` or `node:gpu`.
#[derive(Clone, Copy)]
struct End<'q> {
    text: &'q str,
}

impl End<'_> {
    /// Whether this is the end of a cell.
    fn is(&self, node: Option<&NodeName>, gpu: Option<u32>) -> bool {
        let Some(node) = node else { return false };
        let named = gpu.is_some_and(|gpu| self.text == format!("{node}:{gpu}"));
        named || self.text == node.as_str()
    }

    /// Whether a part written `node` or `node:gpu` is this end, or in it.
    fn is_written(&self, part: &str) -> bool {
        let node = part.rsplit_once(':').map(|(node, _)| node);
        part == self.text || node == Some(self.text)
    }
}

/// What there is between two ends, written `A - B` or `A,B`; nothing where the
/// run has no such pair.
pub(super) fn pair(run: &Run, query: &str) -> Option<String> {
    let query = query.strip_prefix("pair ").unwrap_or(query);
    let (a, b) = query.split_once(" - ").or_else(|| query.split_once(','))?;
    let (a, b) = (End { text: a.trim() }, End { text: b.trim() });
    let here = |c: &&Cell| {
        let src = |end: End<'_>| end.is(c.src_node.as_ref(), c.src_gpu);
        let dst = |end: End<'_>| end.is(c.dst_node.as_ref(), c.dst_gpu);
        (src(a) && dst(b)) || (src(b) && dst(a))
    };
    let cells: Vec<&Cell> = run.cells.iter().filter(here).collect();
    let about = |f: &&Finding| {
        let gpu = f.locus.gpu.map_or(String::new(), |gpu| format!(":{gpu}"));
        let own = f.locus.node.as_ref().map(|node| format!("{node}{gpu}"));
        let ends = own.as_deref().zip(f.locus.peer.as_deref());
        ends.is_some_and(|(x, y)| {
            (a.is_written(x) && b.is_written(y)) || (a.is_written(y) && b.is_written(x))
        })
    };
    let about: Vec<&Finding> = run.verdicts.findings.iter().filter(about).collect();
    told(run, &format!("between {} and {}", a.text, b.text), &cells, &about)
}

/// What there is of one rail.
pub(super) fn rail(run: &Run, query: &str) -> Option<String> {
    let name = query.strip_prefix("rail ").unwrap_or(query);
    let is = |rail: &Option<String>| rail.as_deref() == Some(name);
    let cells: Vec<&Cell> = run.cells.iter().filter(|c| is(&c.rail)).collect();
    let about: Vec<&Finding> = run.verdicts.findings.iter().filter(|f| is(&f.locus.rail)).collect();
    told(run, &format!("over rail {name}"), &cells, &about)
}

/// The stage, the test, and from where to where.
type Way = (Option<u8>, String, String);

/// Readings by test, direction and look, then the findings.
fn told(run: &Run, what: &str, cells: &[&Cell], about: &[&Finding]) -> Option<String> {
    if cells.is_empty() && about.is_empty() {
        return None;
    }
    let mut ways: BTreeMap<Way, (Unit, Vec<f64>)> = BTreeMap::new();
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
    let _ = writeln!(out, "Readings {}", plain(what));
    let count = ways.len();
    for ((stage, testcase, way), (unit, values)) in ways.into_iter().take(MOST) {
        let stage = stage.map_or(String::new(), |stage| format!("stage {stage}, "));
        let all: Vec<String> =
            values.iter().take(MOST).map(|value| quantity(*value, Some(unit))).collect();
        let middle = sort_median(&mut values.clone()).unwrap_or(0.0);
        let _ = writeln!(
            out,
            "  {stage}{}, {}: {} (median {})",
            plain(&testcase),
            plain(&way),
            all.join(", "),
            quantity(middle, Some(unit))
        );
    }
    if MOST < count {
        let _ = writeln!(out, "  and {} more", count - MOST);
    }
    if about.is_empty() {
        out.push_str("\nNothing here was found to be other than expected.\n");
    } else {
        out.push('\n');
        out.push_str(&explain::findings(run, about));
    }
    Some(out)
}
