//! The filters of the page's template: they convert values of the model to the terms of terminal
//! and text reports.

use minijinja::Environment;
use minijinja::value::Serde;

use super::history::{draw_sparkline, part_name};
use super::{LONGEST, clip_text};
use crate::report::plain_text::{
    clip, format_amount, format_number, format_quantity, locus_place, relative_to_source, unit_name,
};
use crate::report::{class_text, comparison, reference_text};
use model::comparison::{ComparisonOutcome, NodeRepair};
use model::finding_class::FindingClass;
use model::text::format_percent;
use model::trend::{FabricPart, Trend};
use model::unit::Unit;
use model::verdict::{Finding, Locus};

const ABSENT: &str = "–";

pub(super) fn add_filters(environment: &mut Environment<'_>) {
    environment.add_filter("short", |text: &str| clip_text(text));
    environment.add_filter("text", |text: &str| clip(text, LONGEST));
    environment.add_filter("clip", |text: &str, most: usize| clip(text, most));
    environment.add_filter("relative", |text: &str, source: &str| {
        clip(&relative_to_source(text, source), LONGEST)
    });
    environment.add_filter("amount", |value: Option<f64>, unit: Serde<Unit>| {
        value.map_or_else(|| ABSENT.to_owned(), |it| format_amount(it, Some(unit.0)))
    });
    environment.add_filter("number", |value: Option<f64>| {
        value.map_or_else(|| ABSENT.to_owned(), format_number)
    });
    environment.add_filter("quantity", |value: f64, unit: Serde<Unit>| {
        format_quantity(value, Some(unit.0))
    });
    environment.add_filter("ratio", |ratio: Option<f64>| {
        ratio.map_or_else(|| ABSENT.to_owned(), |it| format!("{it:.3}"))
    });
    environment.add_filter("unit", |unit: Serde<Unit>| unit_name(Some(unit.0)));
    environment.add_filter("percent", |share: Option<f64>| {
        share.map_or_else(|| ABSENT.to_owned(), format_percent)
    });
    environment.add_filter("change", |share: Option<f64>| match share {
        Some(share) if share < 0.0 => format!("−{}", format_percent(-share)),
        Some(share) => format!("+{}", format_percent(share)),
        None => ABSENT.to_owned(),
    });
    environment.add_filter("part", |part: Serde<FabricPart>| part_name(&part));
    environment.add_filter("sparkline", |trend: Serde<Trend>| draw_sparkline(&trend));
    environment
        .add_filter("difference", |it: Serde<ComparisonOutcome>| comparison::difference_word(it.0));
    environment
        .add_filter("repair_lines", |it: Serde<NodeRepair>| comparison::describe_repair(&it));
    environment.add_filter("place", |locus: Serde<Locus>| clip_text(&locus_place(&locus)));
    environment
        .add_filter("class_title", |class: Serde<FindingClass>| class_text::class_title(&class));
    // Advice with its commands: the odd parts between backticks.
    environment.add_filter("class_advice", |class: Serde<FindingClass>| -> Vec<&'static str> {
        class_text::class_advice(&class).map(|it| it.split('`').collect()).unwrap_or_default()
    });
    environment
        .add_filter("measured", |finding: Serde<Finding>| quantity(&finding, finding.measured));
    environment.add_filter("references", |finding: Serde<Finding>| -> Vec<Vec<String>> {
        let all = reference_text::list_references(&finding).into_iter();
        all.map(|(of, value, ratio)| {
            let ratio = ratio.map(|r| format!("{r:.3} of it")).unwrap_or_default();
            vec![of.prefix().to_owned(), quantity(&finding, value), ratio]
        })
        .collect()
    });
}

fn quantity(finding: &Finding, value: Option<f64>) -> String {
    value.map_or_else(|| ABSENT.to_owned(), |it| format_quantity(it, finding.unit))
}
