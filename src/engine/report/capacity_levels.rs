//! Levels of blocks and jobs of a shape, for a terminal: a table of levels, one of aggregated
//! blocks, and one of the requested job shapes.

use super::plain_text::{clip, list_names};
use super::terminal_page::{TerminalPage, new_table};
use crate::policy::capacity::{
    AggregatedBlock, BlockLevel, CapacitySurvey, JobFit, JobsOfShape, SegmentPlacement,
};

/// Most aggregated blocks that are displayed; the rest are counted.
const MOST: usize = 40;

/// Most characters of the names of an aggregate's blocks.
const NAMES: usize = 32;

/// Most blocks that are named as blocks in which a drain costs a job.
const NAMED: usize = 4;

pub(super) fn write_levels_and_jobs(page: &mut TerminalPage, survey: &CapacitySurvey) {
    if !survey.levels.is_empty() {
        write_levels(page, &survey.levels);
        write_aggregates(page, &survey.levels);
    }
    if !survey.jobs.is_empty() {
        write_jobs(page, survey);
    }
}

fn to_strings(header: &[&str]) -> Vec<String> {
    header.iter().map(|&word| word.to_owned()).collect()
}

fn format_number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{:.2}", value.max(0.0)))
}

fn write_levels(page: &mut TerminalPage, levels: &[BlockLevel]) {
    page.section(&format!("Levels ({})", levels.len()));
    let mut table = new_table(to_strings(&[
        "level",
        "jobs now",
        "none out",
        "a drain costs one in",
        "dearest drain",
    ]));
    for level in levels {
        let costly = level.aggregates.iter().filter(|it| it.is_costly()).count();
        let prices = level.aggregates.iter().filter_map(|it| it.next_drain);
        table.add_row([
            level.size.to_string(),
            level.jobs.to_string(),
            level.jobs_none_out.to_string(),
            format!("{costly} of {}", level.aggregates.len()),
            format_number(prices.reduce(f64::max)),
        ]);
    }
    page.table(" ", &table);
    page.faint(
        "jobs of a level's size that fit at the same time if all nodes that are not out \
         are free",
        2,
    );
}

fn write_aggregates(page: &mut TerminalPage, levels: &[BlockLevel]) {
    let rows: Vec<(u32, &AggregatedBlock)> = levels
        .iter()
        .skip(1)
        .flat_map(|level| level.aggregates.iter().map(|it| (level.size, it)))
        .collect();
    if rows.is_empty() {
        return;
    }
    page.section(&format!("Aggregated blocks ({})", rows.len()));
    let header = ["level", "blocks", "nodes", "out", "jobs", "spare", "usable", "next drain"];
    let mut table = new_table(to_strings(&header));
    for (size, it) in rows.iter().take(MOST) {
        let names = match it.blocks.as_slice() {
            [] => "-".to_owned(),
            [one] => one.clone(),
            [first, .., last] => format!("{first} to {last}"),
        };
        table.add_row([
            size.to_string(),
            clip(&names, NAMES),
            it.nodes.to_string(),
            it.out.to_string(),
            it.jobs.to_string(),
            it.spare.to_string(),
            format_number(it.usable),
            format_number(it.next_drain),
        ]);
    }
    page.table(" ", &table);
    if MOST < rows.len() {
        page.faint(&format!("and {} more, all in --json", rows.len() - MOST), 2);
    }
    page.faint("spare: drains that cost no job of that level; the one after them costs one", 2);
}

fn write_jobs(page: &mut TerminalPage, survey: &CapacitySurvey) {
    page.section("Jobs");
    let header = ["nodes", "segment", "placing", "jobs now", "none out", "a drain costs one in"];
    let mut table = new_table(to_strings(&header));
    for it in &survey.jobs {
        let segment = it.shape.segment.filter(|segment| *segment < it.shape.nodes);
        let placing = segment.map_or("-", |_| placing_text(it.shape.placing));
        table.add_row([
            it.shape.nodes.to_string(),
            segment.map_or_else(|| "-".to_owned(), |segment| segment.to_string()),
            placing.to_owned(),
            fit_text(it.jobs),
            fit_text(it.jobs_none_out),
            describe_costly_blocks(it, survey),
        ]);
    }
    page.table(" ", &table);
}

fn placing_text(placing: SegmentPlacement) -> &'static str {
    match placing {
        SegmentPlacement::Anywhere => "anywhere",
        SegmentPlacement::Consolidated => "consolidated",
        SegmentPlacement::Spread => "spread",
        SegmentPlacement::ConsolidatedAndSpread => "both",
    }
}

/// One number if it is exact, else the range.
fn fit_text(fit: JobFit) -> String {
    if fit.at_least == fit.at_most {
        fit.at_least.to_string()
    } else {
        format!("{} to {}", fit.at_least, fit.at_most)
    }
}

fn describe_costly_blocks(it: &JobsOfShape, survey: &CapacitySurvey) -> String {
    if it.costly.is_empty() {
        return "no block".to_owned();
    }
    let name = |at: &usize| survey.blocks.get(*at)?.block.name.as_deref().map(|it| clip(it, NAMES));
    let names: Vec<String> = it.costly.iter().filter_map(name).collect();
    let count = format!("{} of {}", it.costly.len(), survey.blocks.len());
    if names.is_empty() { count } else { format!("{count}: {}", list_names(&names, NAMED)) }
}
