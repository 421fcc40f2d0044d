//! Two measurements of the same parts, as text and rows: improvements, degradations and parts that
//! are unknown now.
//!
//! Text only; pages and terminals arrange it.

use super::plain_text::{clip, count_noun, format_quantity, rail_name, to_plain};
use super::terminal_page::{TerminalPage, TerminalStyle};
use super::xml::XmlWriter;
use model::comparison::{
    ComparisonOutcome, NodeRepair, PartComparison, RepairReport, RunComparison,
};
use model::text::format_percent;
use model::trend::{FabricPart, FabricPartKind};

/// Longest text of one line, in characters.
const LONGEST: usize = 600;
/// Most rows of one node in a terminal.
const FEW: usize = 8;

/// One row of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComparisonRow {
    /// `better`, `worse`, ...
    pub word: &'static str,
    /// The part.
    pub part: String,
    /// The test.
    pub test: String,
    /// Its earlier number.
    pub before: String,
    /// Its present number.
    pub after: String,
    /// The change, with its sign.
    pub change: String,
    /// The size up to which a change is noise.
    pub noise: String,
}

impl ComparisonRow {
    /// The headers of its columns.
    pub const HEAD: [&'static str; 7] = ["", "part", "test", "before", "after", "change", "noise"];

    /// Its cells.
    pub fn cells(&self) -> [String; 7] {
        [
            self.word.to_owned(),
            self.part.clone(),
            self.test.clone(),
            self.before.clone(),
            self.after.clone(),
            self.change.clone(),
            self.noise.clone(),
        ]
    }
}

/// The name of an outcome.
pub fn difference_word(difference: ComparisonOutcome) -> &'static str {
    match difference {
        ComparisonOutcome::Better => "better",
        ComparisonOutcome::Same => "same",
        ComparisonOutcome::Worse => "worse",
        ComparisonOutcome::OnlyBefore => "not measured now",
        ComparisonOutcome::OnlyAfter => "not measured then",
    }
}

/// A part as users write it.
pub fn part_name(part: &FabricPart) -> String {
    let node = part.node.as_ref().map(ToString::to_string);
    let mut text = match (part.kind, node, part.gpu) {
        (_, Some(node), Some(gpu)) => format!("{node} GPU {gpu}"),
        (FabricPartKind::Domain, _, _) | (_, None, _) => {
            part.domain.as_ref().map_or("everything".to_owned(), ToString::to_string)
        }
        (_, Some(node), None) => node,
    };
    if let Some(rail) = &part.rail {
        text.push(' ');
        text.push_str(&rail_name(rail));
    }
    if let Some(direction) = part.direction {
        text.push(' ');
        text.push_str(direction.as_str());
    }
    if let Some(peer) = &part.peer {
        text.push_str(&format!(" - {peer}"));
    }
    to_plain(&text).into_owned()
}

/// The rows of interest: all changes, and parts that only one measurement has. Unchanged parts are
/// counted by [`summarize`].
pub fn build_rows(comparison: &RunComparison, most: usize) -> Vec<ComparisonRow> {
    let different = comparison.parts.iter().filter(|it| it.difference != ComparisonOutcome::Same);
    different.take(most).map(build_row).collect()
}

/// One row.
pub fn build_row(compared: &PartComparison) -> ComparisonRow {
    let number = |value: Option<f64>| {
        value.map_or("-".to_owned(), |value| format_quantity(value, Some(compared.unit)))
    };
    let signed = |share: f64| {
        format!("{}{}", if share < 0.0 { "-" } else { "+" }, format_percent(share.abs()))
    };
    ComparisonRow {
        word: difference_word(compared.difference),
        part: part_name(&compared.part),
        test: to_plain(&compared.testcase).into_owned(),
        before: number(compared.before),
        after: number(compared.after),
        change: compared.change.map_or("-".to_owned(), signed),
        noise: compared.noise.map_or("-".to_owned(), format_percent),
    }
}

/// The number of parts per outcome, with the greatest change named first.
pub fn summarize(comparison: &RunComparison) -> Vec<String> {
    let all = |difference| comparison.parts.iter().filter(move |it| it.difference == difference);
    let mut lines = Vec::new();
    for difference in [ComparisonOutcome::Worse, ComparisonOutcome::Better] {
        let count = all(difference).count();
        if let Some(most) = all(difference).next() {
            let row = build_row(most);
            lines.push(format!(
                "{} {}, the most {} in {}: {} -> {} ({}, noise {})",
                count_noun(count, "reading is", "readings are"),
                row.word,
                row.part,
                row.test,
                row.before,
                row.after,
                row.change,
                row.noise
            ));
        }
    }
    for (difference, text) in [
        (ComparisonOutcome::Same, "the same within noise"),
        (ComparisonOutcome::OnlyBefore, "not measured now, so unknown"),
        (ComparisonOutcome::OnlyAfter, "not measured then"),
    ] {
        let count = all(difference).count();
        if 0 < count {
            lines.push(format!("{} {text}", count_noun(count, "reading is", "readings are")));
        }
    }
    if lines.is_empty() {
        lines.push("no test was measured in both".to_owned());
    }
    lines
}

fn describe_sides(comparison: &RunComparison) -> String {
    let day = |when: &str| when.get(..16).unwrap_or(when).replace('T', " ");
    clip(&format!("run {} of {}", comparison.before, day(&comparison.before_created)), LONGEST)
}

/// The effects of repairs, for a terminal, below a report.
pub fn render_terminal(repairs: &RepairReport, style: &TerminalStyle) -> String {
    let mut page = TerminalPage::new(style);
    page.section("What the repair changed");
    for repair in &repairs.nodes {
        let head = format!("{}, against {}", repair.node, describe_sides(&repair.comparison));
        page.paragraph("", &head, 2);
        for line in describe_repair(repair) {
            page.paragraph("- ", &line, 4);
        }
        let different =
            repair.comparison.parts.iter().filter(|it| it.difference != ComparisonOutcome::Same);
        for row in different.take(FEW).map(build_row) {
            let ComparisonRow { word, part, test, before, after, change, .. } = row;
            page.faint(&format!("{word}: {part}, {test}: {before} -> {after} ({change})"), 6);
        }
    }
    for without in &repairs.without {
        let text = format!("{}: not compared: {}", without.node, without.why);
        page.paragraph("", &text, 2);
    }
    page.out
}

/// The sentences about one node.
pub fn describe_repair(repair: &NodeRepair) -> Vec<String> {
    let own = repair.text.iter().map(|line| clip(line, LONGEST));
    own.chain(summarize(&repair.comparison)).collect()
}

/// A JUnit document with the effects of repairs as a suite of its own. It fails nothing: the
/// verdict is in the other suites.
pub fn append_to_junit(document: &str, repairs: &RepairReport) -> String {
    const END: &str = "</testsuites>";
    let Some(at) = document.rfind(END) else { return document.to_owned() };
    let count = (repairs.nodes.len() + repairs.without.len()).to_string();
    let mut xml = XmlWriter::fragment();
    let totals =
        [("name", "repair"), ("tests", count.as_str()), ("failures", "0"), ("errors", "0")];
    xml.open("testsuite", &totals);
    let mut case = |name: &str, text: &str| {
        xml.open("testcase", &[("classname", "repair"), ("name", name), ("time", "0")]);
        xml.text("system-out", &[], text);
        xml.close();
    };
    for repair in &repairs.nodes {
        let mut lines = vec![format!("against {}", describe_sides(&repair.comparison))];
        lines.extend(describe_repair(repair));
        case(&to_plain(repair.node.as_str()), &lines.join("\n"));
    }
    for without in &repairs.without {
        let text = clip(&format!("not compared: {}", without.why), LONGEST);
        case(&to_plain(without.node.as_str()), &text);
    }
    let suite = xml.finish();
    let more = repairs.nodes.len() + repairs.without.len();
    format!("{}{suite}{}", add_test_count(&document[..at], more), &document[at..])
}

/// The document with this many more cases in its total count.
fn add_test_count(document: &str, more: usize) -> String {
    const COUNT: &str = " tests=\"";
    let counted = || {
        let root = document.find("<testsuites")?;
        let end = root + document[root..].find('>')?;
        let from = root + document[root..end].find(COUNT)? + COUNT.len();
        let to = from + document[from..end].find('"')?;
        let count: usize = document[from..to].parse().ok()?;
        Some(format!("{}{}{}", &document[..from], count + more, &document[to..]))
    };
    counted().unwrap_or_else(|| document.to_owned())
}

#[cfg(test)]
#[path = "comparison_tests.rs"]
mod tests;
