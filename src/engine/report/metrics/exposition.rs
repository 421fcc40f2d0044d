//! Families of series as text: OpenMetrics for scrapers, and the older text format for
//! node-exporter's textfile collector, which supports no other.
//!
//! Encodes only; `definitions` lists the series.

use std::fmt;
use std::fmt::Write as _;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

/// The prefix of every name.
pub const PREFIX: &str = "fabricgate";

/// The name and meaning of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricDefinition {
    /// Its name without prefix and unit.
    pub name: &'static str,
    /// Its base unit, the suffix of its name.
    pub unit: Option<&'static str>,
    /// The meaning of its numbers, without the full stop.
    pub help: &'static str,
    /// The labels of its series, in order.
    pub labels: &'static [&'static str],
}

impl MetricDefinition {
    /// The name as it is scraped.
    pub fn full_name(&self) -> String {
        match self.unit {
            Some(unit) => format!("{PREFIX}_{}_{unit}", self.name),
            None => format!("{PREFIX}_{}", self.name),
        }
    }
}

/// A gauge with all its series.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricFamily {
    /// Its definition.
    pub definition: &'static MetricDefinition,
    /// Label values and number of each series.
    pub series: Vec<(Vec<String>, f64)>,
}

impl MetricFamily {
    /// A family without a series.
    pub fn new(definition: &'static MetricDefinition) -> Self {
        Self { definition, series: Vec::new() }
    }

    /// Adds a series. A number that is not finite is left out, because a scraper would store it as
    /// a number.
    pub fn add<const N: usize>(&mut self, values: [&str; N], number: f64) {
        debug_assert_eq!(N, self.definition.labels.len(), "{}", self.definition.name);
        if number.is_finite() {
            self.series.push((values.map(to_printable).into(), number));
        }
    }
}

/// A label's value without characters that would break a line or colour a terminal.
fn to_printable(text: &str) -> String {
    text.chars().map(|it| if it.is_control() { ' ' } else { it }).collect()
}

/// Families in the form that a registry expects.
#[derive(Debug)]
struct MetricCollector(Vec<MetricFamily>);

impl Collector for MetricCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        encode_families(&self.0, encoder)
    }
}

/// Encodes families with a registry.
pub fn encode_families(
    families: &[MetricFamily],
    mut encoder: DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    for MetricFamily { definition: meaning, series } in
        families.iter().filter(|it| !it.series.is_empty())
    {
        let unit = meaning.unit.map(to_unit);
        let help = format!("{}.", meaning.help);
        let mut metric =
            encoder.encode_descriptor(meaning.name, &help, unit.as_ref(), MetricType::Gauge)?;
        for (values, number) in series {
            let labels: Vec<(&str, &str)> =
                meaning.labels.iter().copied().zip(values.iter().map(String::as_str)).collect();
            match labels.is_empty() {
                // A family without labels would get empty braces.
                true => metric.encode_gauge(number)?,
                false => metric.encode_family(&labels)?.encode_gauge(number)?,
            }
        }
    }
    Ok(())
}

fn to_unit(name: &'static str) -> Unit {
    match name {
        "seconds" => Unit::Seconds,
        other => Unit::Other(other.to_owned()),
    }
}

/// Families as OpenMetrics.
pub fn render_openmetrics(families: Vec<MetricFamily>) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(MetricCollector(families)));
    let mut text = String::new();
    encode(&mut text, &registry).expect("a text takes everything");
    text
}

/// Families in the text format before OpenMetrics (version 0.0.4), without units, timestamps and
/// end mark: node-exporter refuses timestamps, and treats the rest as comments.
pub fn render_classic(families: &[MetricFamily]) -> String {
    let mut text = String::new();
    for MetricFamily { definition: meaning, series } in
        families.iter().filter(|it| !it.series.is_empty())
    {
        let name = meaning.full_name();
        let _ = writeln!(text, "# HELP {name} {}.", meaning.help);
        let _ = writeln!(text, "# TYPE {name} gauge");
        for (values, number) in series {
            text.push_str(&name);
            for (at, (label, value)) in meaning.labels.iter().zip(values).enumerate() {
                text.push(if at == 0 { '{' } else { ',' });
                let _ = write!(text, "{label}=\"{}\"", escape_label(value));
            }
            let end = if values.is_empty() { "" } else { "}" };
            let _ = writeln!(text, "{end} {number}");
        }
    }
    text
}

/// Escapes the three special characters of a label's value.
fn escape_label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    static PLAIN: MetricDefinition =
        MetricDefinition { name: "plain", unit: None, help: "One number", labels: &[] };
    static LABELLED: MetricDefinition = MetricDefinition {
        name: "node_worst",
        unit: Some("ratio"),
        help: "The worst",
        labels: &["node", "class"],
    };

    fn families() -> Vec<MetricFamily> {
        let (mut plain, mut labelled) = (MetricFamily::new(&PLAIN), MetricFamily::new(&LABELLED));
        plain.add([], 1_772_600_767.0);
        labelled.add(["a\"b\\c\nd", "x"], 0.5);
        labelled.add(["n2", "x"], f64::NAN);
        vec![plain, labelled, MetricFamily::new(&PLAIN)]
    }

    #[test]
    fn the_old_format_has_no_unit_no_end_and_no_line_within_a_value() {
        assert_eq!(
            render_classic(&families()),
            "# HELP fabricgate_plain One number.\n# TYPE fabricgate_plain gauge\n\
             fabricgate_plain 1772600767\n\
             # HELP fabricgate_node_worst_ratio The worst.\n\
             # TYPE fabricgate_node_worst_ratio gauge\n\
             fabricgate_node_worst_ratio{node=\"a\\\"b\\\\c d\",class=\"x\"} 0.5\n"
        );
    }

    #[test]
    fn openmetrics_has_units_and_an_end() {
        let text = render_openmetrics(families());
        assert_eq!(
            text,
            "# HELP fabricgate_plain One number.\n# TYPE fabricgate_plain gauge\n\
             fabricgate_plain 1772600767.0\n\
             # HELP fabricgate_node_worst_ratio The worst.\n\
             # TYPE fabricgate_node_worst_ratio gauge\n\
             # UNIT fabricgate_node_worst_ratio ratio\n\
             fabricgate_node_worst_ratio{node=\"a\\\"b\\\\c d\",class=\"x\"} 0.5\n# EOF\n"
        );
    }
}
