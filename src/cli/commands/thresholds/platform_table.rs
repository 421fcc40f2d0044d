//! One platform as text tables: its numbers, and below them their sources. Renders only.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, presets};

use engine::thresholds::{CollectiveExpectation, Expectation, Platform};
use model::text::format_percent;

/// Width at which the single prose column of a table is wrapped. Names and numbers are never
/// wrapped, so that they can be copied.
const WIDTH: u16 = 150;

/// Renders one platform: the numbers in tables, then their sources, each source once.
pub(crate) fn render_platform(platform: &Platform, digest: &str) -> String {
    let mut text = format!("{}: {}\n", platform.name, platform.title);
    let mut line = |label: &str, value: String| {
        text.push_str(&format!("  {label:<17} {value}\n"));
    };
    line("from", platform.origin.clone());
    if !platform.devices.is_empty() {
        line("devices", platform.devices.join(", "));
    }
    if let Some(gpus) = platform.gpus_per_node {
        line("GPUs per node", gpus.to_string());
    }
    if let Some(nodes) = platform.nodes_per_domain {
        line("nodes per domain", nodes.to_string());
    }
    if let Some(nvlink) = &platform.nvlink {
        let line_rate =
            nvlink.line_rate.map_or_else(String::new, |rate| format!(" (line rate {rate} GB/s)"));
        let total = f64::from(nvlink.links) * nvlink.rate;
        line(
            "NVLink",
            format!("{} links x {} GB/s = {total} GB/s{line_rate}", nvlink.links, nvlink.rate),
        );
        line("", nvlink.source.clone());
    }
    line("digest", digest.to_owned());
    let mut sources = NumberedSources::default();
    if !platform.expectations.is_empty() {
        let mut table = new_table(
            &["test", "value", "unit", "tolerance", "floor", "made of", "known by", "source"],
            "made of",
        );
        for expectation in platform.expectations.values() {
            table.add_row(test_row(expectation, &mut sources));
        }
        align_right(&mut table, &[1, 3, 4]);
        text.push_str(&format!("\n{}\n", trim_table(&table)));
    }
    if !platform.collectives.is_empty() {
        let mut table = new_table(
            &[
                "collective",
                "from",
                "ranks",
                "algorithm",
                "transport",
                "busbw",
                "tolerance",
                "floor",
                "known by",
                "source",
            ],
            "known by",
        );
        for collective in &platform.collectives {
            table.add_row(collective_row(collective, &mut sources));
        }
        align_right(&mut table, &[1, 2, 5, 6, 7]);
        text.push_str(&format!("\n{}\n", trim_table(&table)));
    }
    if platform.expectations.is_empty() && platform.collectives.is_empty() {
        text.push_str("\nNothing is expected: its performance is not known.\n");
    }
    text.push_str(&sources.render());
    text
}

fn test_row(expectation: &Expectation, sources: &mut NumberedSources) -> Vec<String> {
    vec![
        expectation.testcase.clone(),
        format_number(expectation.value),
        expectation.unit.to_string(),
        expectation.value.map_or_else(|| "-".to_owned(), |_| format_percent(expectation.tolerance)),
        format_number(expectation.floor),
        expectation.derivation.clone(),
        expectation.confidence.as_str().to_owned(),
        sources.mark(&expectation.source, &expectation.origin),
    ]
}

fn collective_row(
    collective: &CollectiveExpectation,
    sources: &mut NumberedSources,
) -> Vec<String> {
    let ranks = if collective.min_ranks == collective.max_ranks {
        collective.min_ranks.to_string()
    } else {
        format!("{}-{}", collective.min_ranks, collective.max_ranks)
    };
    vec![
        collective.testcase.clone(),
        format_size(collective.min_bytes),
        ranks,
        collective.algorithm.clone(),
        collective.transport.clone(),
        format_number(Some(collective.busbw)),
        format_percent(collective.tolerance),
        format_number(collective.floor),
        collective.confidence.as_str().to_owned(),
        sources.mark(&collective.source, &collective.origin),
    ]
}

/// Sources in the order of their first use, numbered from 1.
#[derive(Debug, Default)]
struct NumberedSources {
    seen: Vec<(String, String)>,
}

impl NumberedSources {
    fn mark(&mut self, source: &str, origin: &str) -> String {
        let known = self.seen.iter().position(|(s, o)| s == source && o == origin);
        let at = known.unwrap_or_else(|| {
            self.seen.push((source.to_owned(), origin.to_owned()));
            self.seen.len() - 1
        });
        format!("[{}]", at + 1)
    }

    fn render(&self) -> String {
        let mut text = String::new();
        if !self.seen.is_empty() {
            text.push_str("\nsources\n");
        }
        let one_file = self.seen.iter().all(|(_, origin)| origin == &self.seen[0].1);
        for (number, (source, origin)) in self.seen.iter().enumerate() {
            let file = if one_file { String::new() } else { format!(" ({origin})") };
            text.push_str(&format!("{:>5} {source}{file}\n", format!("[{}]", number + 1)));
        }
        text
    }
}

/// A table whose column `prose` may wrap.
pub(crate) fn new_table(header: &[&str], prose: &str) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(WIDTH);
    table.set_header(header.iter().copied());
    for (name, column) in header.iter().zip(table.column_iter_mut()) {
        if *name != prose {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table
}

/// Aligns these columns to the right.
pub(crate) fn align_right(table: &mut Table, columns: &[usize]) {
    for column in columns {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// A table without trailing blanks.
pub(crate) fn trim_table(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// A number that may be unknown.
pub(crate) fn format_count(value: Option<u32>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn format_number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
}

/// Bytes in the largest binary unit that divides them.
fn format_size(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes.trailing_zeros() >= shift && (bytes >> shift) > 0 {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::thresholds::{PlatformCatalogue, overlay};

    const LAB: &str = r#"
format = "fabricgate.thresholds/1"
platform = "lab"
title = "A lab"
devices = ["NVIDIA Lab"]

[link.nvlink]
count = 4
rate = 25.0
source = "a data sheet"

[test.device_to_device_memcpy_write_ce]
efficiency = 0.9
tolerance = 0.05
floor_ratio = 0.8
confidence = "third-party"
source = "a report"

[[collective]]
test = "all_reduce_perf"
min_bytes = "512 MiB"
ranks = [4, 8]
algorithm = "Ring"
transport = "NVLink"
busbw = 80.0
tolerance = 0.05
confidence = "derived"
source = "another report"
"#;

    const SITE: &str = r#"
format = "fabricgate.thresholds/1"
platform = "lab"
[test.p2p_bidirectional_enabled]
floor = 120.0
source = "a burn-in of the site"
"#;

    #[test]
    fn show_explains_every_number_and_names_the_file_once_there_are_several() {
        let mut catalogue = PlatformCatalogue::default();
        overlay::apply(&mut catalogue, LAB, "lab.toml").expect("a sound file");
        overlay::apply(&mut catalogue, SITE, "site.toml").expect("a sound file");
        insta::assert_snapshot!(render_platform(&catalogue.platforms["lab"], "0123456789abcdef"), @r#"
        lab: A lab
          from              lab.toml, site.toml
          devices           NVIDIA Lab
          NVLink            4 links x 25 GB/s = 100 GB/s
                            a data sheet
          digest            0123456789abcdef

         test                              value  unit  tolerance  floor  made of                          known by     source
         device_to_device_memcpy_write_ce   90.0  GB/s      5.0 %   72.0  4 links x 25 GB/s x 0.9          third-party  [1]
         p2p_bidirectional_enabled             -  GB/s          -  120.0  a floor only, no level is known  site         [2]

         collective          from  ranks  algorithm  transport  busbw  tolerance  floor  known by  source
         all_reduce_perf  512 MiB    4-8  Ring       NVLink      80.0      5.0 %      -  derived   [3]

        sources
          [1] a report (lab.toml)
          [2] a burn-in of the site (site.toml)
          [3] another report (lab.toml)
        "#);
    }

    #[test]
    fn sizes_have_the_largest_unit_that_divides_them() {
        let sizes = [(8 << 30, "8 GiB"), (512 << 20, "512 MiB"), (3 << 10, "3 KiB"), (7, "7 B")];
        for (bytes, text) in sizes {
            assert_eq!(format_size(bytes), text);
        }
        assert_eq!(format_size(0), "0 B");
    }
}
