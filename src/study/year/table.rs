//! Years as text tables, CSV and a plot.

use std::fmt::Write;

use comfy_table::Table;

use super::YearSetting;
use super::fault::YearFaultClass;
use super::fleet::{GPUS, NODES};
use super::rule::YearRule;
use super::score::{WrongDrainCause, YearClassScore, YearScore, median_and_p95, poisson_limits};
use crate::table::{align_columns, markdown_table};

/// Both tables and the setting.
pub fn render_text(setting: &YearSetting, years: &[(YearRule, YearScore)]) -> String {
    let gpus = setting.racks * NODES * GPUS;
    let mut out = format!(
        "{} x {} days of {gpus} GPUs ({} racks), at most {} of a rack per night, {:.0} % busy, seed {}\n\n",
        setting.worlds,
        setting.days,
        setting.racks,
        setting.share_of_domain.map_or("all".to_owned(), |share| format!("{:.0} %", share * 100.0)),
        setting.busy * 100.0,
        setting.seed
    );
    out.push_str(&format!("{}\n\n{}\n", drain_table(years), delay_table(years)));
    for (rule, score) in years {
        for (class, count) in &score.wrong_by_class {
            out.push_str(&format!("{}: {count} wrong drains for {class}\n", rule.name()));
        }
        for (why, count) in &score.frozen_by {
            out.push_str(&format!("{}: frozen {count} times: {why}\n", rule.name()));
        }
        if 0 < score.level_updates {
            let stated = score.level_updates;
            out.push_str(&format!("{}: operators set new levels {stated} times\n", rule.name()));
        }
    }
    out
}

/// One row per rule: its drains.
fn drain_table(years: &[(YearRule, YearScore)]) -> Table {
    let mut table = markdown_table();
    let mut header: Vec<String> =
        ["rule", "drains", "wrong", "95 %", "per year and 1,000 GPUs"].map(str::to_owned).to_vec();
    header.extend(WrongDrainCause::ALL.iter().map(|cause| cause.as_str().to_owned()));
    header.extend(
        [
            "wrong node-hours",
            "node-hours out",
            "most out",
            "frozen",
            "tripped",
            "stopped",
            "unconfirmed",
            "waited",
            "missed",
        ]
        .map(str::to_owned),
    );
    table.set_header(header);
    for (rule, score) in years {
        let [low, high] = poisson_limits(score.wrong_drains());
        let mut row = vec![
            rule.name(),
            score.drains.to_string(),
            score.wrong_drains().to_string(),
            format!("{low:.1} to {high:.1}"),
            format!("{:.2}", score.per_year(score.wrong_drains() as f64)),
        ];
        row.extend(WrongDrainCause::ALL.iter().map(|cause| wrong_count(score, *cause).to_string()));
        row.extend([
            format!("{:.0}", score.wrong_hours),
            format!("{:.0}", score.hours),
            score.most_out.to_string(),
            score.frozen.to_string(),
            score.tripped.to_string(),
            score.stopped.to_string(),
            score.unconfirmed.to_string(),
            score.deferred.to_string(),
            score.by_class.values().map(|found| found.missed).sum::<u64>().to_string(),
        ]);
        table.add_row(row);
    }
    align_columns(table)
}

/// One row per class of faults: the number of actions, and their delay in days.
fn delay_table(years: &[(YearRule, YearScore)]) -> Table {
    let mut table = markdown_table();
    let mut header = vec!["faults with action; days to action, median / 95 %".to_owned()];
    header.extend(years.iter().map(|(rule, _)| rule.name()));
    table.set_header(header);
    for (class, _) in YearFaultClass::ALL {
        let mut row = vec![class.as_str().to_owned()];
        row.extend(
            years
                .iter()
                .map(|(_, score)| score.by_class.get(&class).map_or("-".into(), format_cell)),
        );
        table.add_row(row);
    }
    align_columns(table)
}

fn format_cell(found: &YearClassScore) -> String {
    let days = |[middle, late]: [f64; 2]| format!("; {middle:.1} / {late:.1}");
    let days = median_and_p95(&found.acted_on).map(days).unwrap_or_default();
    format!("{} of {}{days}", found.acted_on.len(), found.faults)
}

fn wrong_count(score: &YearScore, cause: WrongDrainCause) -> u64 {
    score.wrong_by_cause.get(&cause).copied().unwrap_or(0)
}

/// One line per rule and class, and one total line per rule.
pub fn render_csv(years: &[(YearRule, YearScore)]) -> String {
    let mut out = String::from(
        "rule,class,faults,acted_on,told_of,missed,median_days,p95_days,drains,wrong_drains,wrong_node_hours,most_out\n",
    );
    for (rule, score) in years {
        let rule = rule.name();
        let mut line = |text: String| {
            let written = writeln!(out, "{text}");
            debug_assert!(written.is_ok(), "writing to a string does not fail");
        };
        line(format!(
            "\"{rule}\",all,,,,,,,{},{},{:.1},{}",
            score.drains,
            score.wrong_drains(),
            score.wrong_hours,
            score.most_out
        ));
        for (class, found) in &score.by_class {
            let days = median_and_p95(&found.acted_on)
                .map_or(",".to_owned(), |[middle, late]| format!("{middle:.2},{late:.2}"));
            line(format!(
                "\"{rule}\",\"{}\",{},{},{},{},{days},,,,",
                class.as_str(),
                found.faults,
                found.acted_on.len(),
                found.reported.len(),
                found.missed
            ));
        }
    }
    out
}

/// Plots wrong drains against missed faults, one dot per rule: the lower left is best.
pub fn render_svg(years: &[(YearRule, YearScore)]) -> String {
    const SIZE: [f64; 2] = [640.0, 380.0];
    const LEFT: f64 = 60.0;
    const BOTTOM: f64 = 48.0;
    let missed =
        |score: &YearScore| score.by_class.values().map(|found| found.missed).sum::<u64>() as f64;
    let wrong = |score: &YearScore| score.per_year(score.wrong_drains() as f64);
    let most =
        |of: &dyn Fn(&YearScore) -> f64| years.iter().map(|(_, s)| of(s)).fold(1.0, f64::max);
    let (most_missed, most_wrong) = (most(&missed), most(&wrong));
    // Square roots spread small numbers, and zero stays visible.
    let x = |value: f64| LEFT + (value / most_wrong).sqrt() * (SIZE[0] - LEFT - 170.0);
    let y =
        |value: f64| SIZE[1] - BOTTOM - (value / most_missed).sqrt() * (SIZE[1] - BOTTOM - 40.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"16\">Wrong drains and missed faults of a year, by rule (root axes)</text>\n\
         <path d=\"M{LEFT} 30V{2:.1}H{3:.1}\" stroke=\"#333\" fill=\"none\"/>\n\
         <text x=\"{LEFT}\" y=\"{4:.1}\">wrong drains per year, 1,000 GPUs: 0 to {most_wrong:.1}</text>\n\
         <text x=\"14\" y=\"{5:.1}\" transform=\"rotate(-90 14 {5:.1})\">missed: 0 to {most_missed:.0}</text>\n",
        SIZE[0],
        SIZE[1],
        SIZE[1] - BOTTOM,
        SIZE[0] - 20.0,
        SIZE[1] - 16.0,
        SIZE[1] - BOTTOM,
    );
    for (rule, score) in years {
        let colour = if matches!(rule, YearRule::Scheme(_)) { "#0072b2" } else { "#d55e00" };
        let (at, up) = (x(wrong(score)), y(missed(score)));
        let name = rule.name().replace('&', "&amp;").replace('<', "&lt;");
        out.push_str(&format!(
            "<circle cx=\"{at:.1}\" cy=\"{up:.1}\" r=\"4\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{name}</text>\n",
            at + 7.0,
            up + 4.0
        ));
    }
    out.push_str("</svg>\n");
    out
}
