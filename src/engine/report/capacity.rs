//! The schedulable capacity of blocks, for a terminal: one line per block, then a table and advice
//! for each kind of block; levels of blocks between them.
//!
//! Displays the results of `act::capacity` and calculates nothing itself.

use std::fmt::Write as _;

use anstyle::Style;

use super::plain_text::{clip, count_noun, to_plain};
use super::terminal_page::{TerminalPage, new_table};
use super::{TerminalStyle, capacity_levels};
use crate::policy::capacity::{
    BlockOutlook, BlockSurvey, CapacitySurvey, OutageAssumption, SegmentMix, format_percent,
};
use model::hostlist;

/// Most displayed blocks; the rest are counted.
const MOST: usize = 40;

const NAME: usize = 24;

/// Renders the survey.
pub fn render(survey: &CapacitySurvey, style: &TerminalStyle) -> String {
    let mut page = TerminalPage::new(style);
    write_opening(&mut page, survey);
    if 1 < survey.blocks.len() {
        write_overview(&mut page, survey);
    }
    capacity_levels::write_levels_and_jobs(&mut page, survey);
    for (kind, others) in group_blocks(survey) {
        for (assumption, outlook) in survey.assumptions.iter().zip(&kind.outlooks) {
            write_detail(&mut page, kind, &others, assumption, outlook);
        }
    }
    if !survey.notes.is_empty() {
        page.section("Remarks");
        for note in &survey.notes {
            page.paragraph("- ", &to_plain(note), 2);
        }
    }
    page.out
}

fn write_opening(page: &mut TerminalPage, survey: &CapacitySurvey) {
    let nodes: u64 = survey.blocks.iter().map(|it| u64::from(it.block.nodes)).sum();
    let out: u64 = survey.blocks.iter().map(|it| u64::from(it.block.out)).sum();
    let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    let title = format!(
        "{}, {}, {} out now",
        count_noun(survey.blocks.len(), "block", "blocks"),
        count_noun(count(nodes), "node", "nodes"),
        if out == 0 { "none".to_owned() } else { out.to_string() }
    );
    page.styled(Style::new().bold(), &title);
    page.end_line();
    match &survey.mix {
        Some(mix) => page.paragraph("", &format_mix(mix), 0),
        None => page.paragraph(
            "",
            "the segments that jobs request are unknown (--mix, --mix-from): prices are listed by \
             segment only",
            0,
        ),
    }
}

fn format_mix(mix: &SegmentMix) -> String {
    let share = |(segment, share): (u32, f64)| format!("{segment} ({})", format_percent(share));
    let words: Vec<String> = mix.shares().map(share).collect();
    format!("jobs request segments of {} nodes, by their share of node time", words.join(", "))
}

fn write_overview(page: &mut TerminalPage, survey: &CapacitySurvey) {
    let Some(first) = survey.blocks.first().and_then(|block| block.outlooks.first()) else {
        return;
    };
    page.section(&format!("Blocks ({})", survey.blocks.len()));
    let segments = first.segments.iter().map(|left| left.segment.to_string());
    let mut header = vec!["block".to_owned(), "nodes".to_owned(), "out".to_owned()];
    header.extend(segments);
    if survey.mix.is_some() {
        header.extend(["mix".to_owned(), "next drain".to_owned()]);
    }
    let mut table = new_table(&header);
    for it in survey.blocks.iter().take(MOST) {
        let Some(outlook) = it.outlooks.first() else { continue };
        let block = &it.block;
        let mut row = vec![block_name(it), block.nodes.to_string(), block.out.to_string()];
        row.extend(outlook.segments.iter().map(|left| format_number(left.usable)));
        if let Some(mixed) = &outlook.mixed {
            let next = mixed.drains.first().map_or("-".to_owned(), |next| format_number(*next));
            row.extend([format_number(mixed.usable), next]);
        }
        table.add_row(row);
    }
    page.table(" ", &table);
    if MOST < survey.blocks.len() {
        page.faint(&format!("and {} more, all in --json", survey.blocks.len() - MOST), 2);
    }
    let assumed = survey.assumptions.first().map(format_assumption).unwrap_or_default();
    page.faint(&format!("expected usable nodes by segment; {assumed}"), 2);
}

/// Equal blocks, as the first of them and the names of the others.
fn group_blocks(survey: &CapacitySurvey) -> Vec<(&BlockSurvey, Vec<&BlockSurvey>)> {
    let mut kinds: Vec<(&BlockSurvey, Vec<&BlockSurvey>)> = Vec::new();
    for it in &survey.blocks {
        let like = |(one, _): &&mut (&BlockSurvey, Vec<&BlockSurvey>)| {
            (one.block.nodes, one.block.out) == (it.block.nodes, it.block.out)
        };
        match kinds.iter_mut().find(like) {
            Some((_, others)) => others.push(it),
            None => kinds.push((it, Vec::new())),
        }
    }
    kinds
}

fn write_detail(
    page: &mut TerminalPage,
    kind: &BlockSurvey,
    others: &[&BlockSurvey],
    assumption: &OutageAssumption,
    outlook: &BlockOutlook,
) {
    let block = &kind.block;
    let mut title = String::new();
    if block.name.is_some() {
        let _ = write!(title, "{}", block_name(kind));
        if !others.is_empty() {
            let _ = write!(title, " and {} like it", others.len());
        }
        title.push_str(": ");
    }
    let _ = write!(title, "{}, ", count_noun(block.nodes as usize, "node", "nodes"));
    match block.out {
        0 => title.push_str("none out"),
        out => {
            let _ = write!(title, "{out} out");
            if others.is_empty() && !block.out_nodes.is_empty() {
                let names = hostlist::fold(block.out_nodes.iter().map(|node| node.as_str()));
                let _ = write!(title, " ({})", clip(&names, 60));
            }
        }
    }
    page.section(&title);
    let which = if block.out == 0 { "all nodes" } else { "all others" };
    let chance = match block.up() {
        0 => String::new(),
        _ => format!("; {which} are up {} of the time", format_percent(outlook.all_up)),
    };
    page.faint(&format!("{}{chance}", format_assumption(assumption)), 2);
    let drains = outlook.segments.iter().map(|left| left.drains.len()).max().unwrap_or(0);
    let mut header = ["segment", "now", "usable", "one fits"].map(str::to_owned).to_vec();
    let ordinals = ["next drain", "2nd", "3rd", "4th"].map(str::to_owned);
    header.extend(ordinals.into_iter().take(drains));
    let mut table = new_table(&header);
    for left in &outlook.segments {
        let mut row =
            vec![left.segment.to_string(), left.now.to_string(), format_number(left.usable)];
        row.push(format_percent(left.one_fits));
        row.extend(left.drains.iter().map(|drain| format_number(*drain)));
        table.add_row(row);
    }
    if let Some(mixed) = &outlook.mixed {
        let mut row =
            vec!["mix".to_owned(), String::new(), format_number(mixed.usable), String::new()];
        row.extend(mixed.drains.iter().map(|drain| format_number(*drain)));
        table.add_row(row);
    }
    page.table(" ", &table);
    for sentence in &outlook.advice {
        page.paragraph("", sentence, 2);
    }
}

fn format_assumption(assumption: &OutageAssumption) -> String {
    match assumption {
        OutageAssumption::Independent { unavailable } => {
            format!(
                "assumed: {} of nodes out at a time, independently",
                format_percent(*unavailable)
            )
        }
        OutageAssumption::Observed { .. } => "nodes out at a time as observed".to_owned(),
    }
}

fn block_name(it: &BlockSurvey) -> String {
    it.block.name.as_deref().map_or_else(|| "block".to_owned(), |name| clip(name, NAME))
}

fn format_number(value: f64) -> String {
    let text = format!("{value:.2}");
    // A price is never negative; only rounding can give `-0.00`.
    if text == "-0.00" { "0.00".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::capacity::{CapacityBlock, CapacityQuestion, survey_capacity};

    const STYLE: TerminalStyle = TerminalStyle { width: 100, colour: false };

    fn question(blocks: Vec<CapacityBlock>, mix: Option<&str>) -> CapacityQuestion {
        CapacityQuestion {
            blocks,
            segments: vec![1, 8, 9, 16, 18],
            at_least: None,
            mix: mix.map(|mix| SegmentMix::parse(mix).expect("a mix")),
            assumptions: vec![OutageAssumption::Independent { unavailable: 0.01 }],
            degraded: 1.0 / 18.0,
            exposed: 0.3,
        }
    }

    fn named(name: &str, out: &[&str]) -> CapacityBlock {
        let out_nodes: Vec<_> = out.iter().map(|node| (*node).into()).collect();
        let count = u32::try_from(out.len()).expect("few");
        CapacityBlock { name: Some(name.to_owned()), out_nodes, ..CapacityBlock::new(18, count) }
    }

    fn render_text(question: &CapacityQuestion) -> String {
        render(&survey_capacity(question).expect("a survey"), &STYLE)
    }

    #[test]
    fn a_fleet_is_rendered() {
        let blocks = vec![
            named("block01", &["n3", "n4"]),
            named("block02", &[]),
            named("block03", &[]),
            named("b\u{1b}[31m", &["n60"]),
        ];
        insta::assert_snapshot!(
            "capacity_fleet",
            render_text(&question(blocks, Some("16=6,8=3,1=1")))
        );
    }

    #[test]
    fn a_block_without_a_name_is_rendered() {
        let mut question = question(vec![CapacityBlock::new(18, 0)], None);
        let shares = [(0, 0.9), (1, 0.06), (6, 0.04)].into();
        question.assumptions.push(OutageAssumption::Observed { shares });
        insta::assert_snapshot!("capacity_block", render_text(&question));
    }

    #[test]
    fn blocks_without_usable_nodes_are_reported() {
        for block in
            [CapacityBlock::new(0, 0), CapacityBlock::new(18, 18), CapacityBlock::new(4, 9)]
        {
            let text = render_text(&question(vec![block], Some("16=1")));
            assert!(text.contains("there is nothing to drain"), "{text}");
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }
}
