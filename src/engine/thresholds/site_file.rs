//! Renders a site's own numbers as a threshold file, which an operator reviews before use.
//!
//! Renders text only; `judge::site_levels` computes the numbers.

use std::fmt::Write as _;

use super::{CollectiveExpectation, file, testcase};
use model::unit::Unit;

/// One test with the level that a site states.
#[derive(Clone, Debug, PartialEq)]
pub struct SiteExpectation {
    /// The test, as the tool names it.
    pub testcase: String,
    /// The stated level.
    pub value: f64,
    /// The unit of level and floor.
    pub unit: Unit,
    /// The smallest message or buffer it applies to, in bytes.
    pub min_bytes: u64,
    /// The allowed deviation of a healthy machine below the level, as a fraction.
    pub tolerance: f64,
    /// A lower value is a fault.
    pub floor: Option<f64>,
    /// The source of the level.
    pub source: String,
    /// Notes for the operator, one line each.
    pub remarks: Vec<String>,
}

/// One collective with the level that a site states; its conditions stay unchanged.
#[derive(Clone, Debug, PartialEq)]
pub struct SiteCollective<'p> {
    /// The conditions it applies under.
    pub conditions: &'p CollectiveExpectation,
    /// Bus bandwidth, in GB/s.
    pub busbw: f64,
    /// The allowed deviation of a healthy machine below the level, as a fraction.
    pub tolerance: f64,
    /// A lower value is a fault, in GB/s.
    pub floor: Option<f64>,
    /// The source of the level.
    pub source: String,
}

/// Renders the file. Expectations that it omits stay unchanged.
pub fn render_site_file(
    platform: &str,
    head: &[String],
    tests: &[SiteExpectation],
    collectives: &[SiteCollective<'_>],
) -> String {
    let mut text = String::new();
    let mut line = |content: std::fmt::Arguments<'_>| {
        let written = writeln!(text, "{content}");
        debug_assert!(written.is_ok(), "writing to a string does not fail");
    };
    for head_line in head {
        line(format_args!("# {}", to_one_line(head_line)));
    }
    line(format_args!("format = {}", quote_toml(file::THRESHOLDS_FORMAT)));
    line(format_args!("platform = {}", quote_toml(platform)));
    for test in tests {
        line(format_args!(""));
        for remark in &test.remarks {
            line(format_args!("# {}", to_one_line(remark)));
        }
        line(format_args!("[test.{}]", quote_toml(&test.testcase)));
        line(format_args!("value = {}", format_level(test.value)));
        if test.unit != Unit::GigabytesPerSecond {
            line(format_args!("unit = {}", quote_toml(&test.unit.to_string())));
        }
        if test.min_bytes != testcase::min_bytes(&test.testcase) {
            line(format_args!("min_bytes = {}", test.min_bytes));
        }
        line(format_args!("{}", render_tolerance(test.tolerance, test.floor, &test.source)));
    }
    for SiteCollective { conditions, busbw, tolerance, floor, source } in collectives {
        line(format_args!(""));
        line(format_args!(
            "# {:.1} % of the {:.1} GB/s expected before ({})",
            busbw / conditions.busbw * 100.0,
            conditions.busbw,
            to_one_line(&conditions.origin)
        ));
        line(format_args!("[[collective]]"));
        line(format_args!("test = {}", quote_toml(&conditions.testcase)));
        line(format_args!("min_bytes = {}", conditions.min_bytes));
        line(format_args!("ranks = [{}, {}]", conditions.min_ranks, conditions.max_ranks));
        line(format_args!("algorithm = {}", quote_toml(&conditions.algorithm)));
        line(format_args!("transport = {}", quote_toml(&conditions.transport)));
        line(format_args!("busbw = {}", format_level(*busbw)));
        line(format_args!("{}", render_tolerance(*tolerance, *floor, source)));
    }
    text
}

/// Renders the keys that follow every level.
fn render_tolerance(tolerance: f64, floor: Option<f64>, source: &str) -> String {
    let floor = floor.map_or(String::new(), |floor| format!("floor = {}\n", format_level(floor)));
    format!(
        "tolerance = {tolerance}\n{floor}confidence = \"site\"\nsource = {}",
        quote_toml(source)
    )
}

/// Formats a level as tools print it: two decimals; for a lab's hundredths of a GB/s as many as a
/// level computed from links has (`entry::round_hundredths`).
fn format_level(value: f64) -> String {
    if value.abs() < 1.0 { format!("{value:.6}") } else { format!("{value:.2}") }
}

/// Puts text on one line, since a comment ends with its line.
fn to_one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn quote_toml(text: &str) -> String {
    toml::Value::from(to_one_line(text)).to_string()
}

#[cfg(test)]
mod tests {
    use super::super::{builtin, overlay};
    use super::*;

    fn stated(testcase: &str) -> SiteExpectation {
        SiteExpectation {
            testcase: testcase.to_owned(),
            value: 741.26,
            unit: Unit::GigabytesPerSecond,
            min_bytes: 64 << 20,
            tolerance: 0.02,
            floor: Some(652.77),
            source: "median of 288 numbers on 18 nodes, run \"7\"".to_owned(),
            remarks: vec!["0.965 of before\nnot a key = 1".to_owned()],
        }
    }

    #[test]
    fn stated_levels_are_read_back_and_the_rest_stays() {
        let mut catalogue = builtin::builtin_catalogue().clone();
        let before = catalogue.platforms["gb200-nvl72"].clone();
        let test = "multinode_device_to_device_memcpy_read_ce";
        let text = render_site_file(
            "gb200-nvl72",
            &["what a run showed".to_owned()],
            &[stated(test)],
            &[],
        );
        let warnings = overlay::apply(&mut catalogue, &text, "site.toml").expect("a good file");
        assert!(warnings.is_empty(), "{warnings:?}\n{text}");
        let after = &catalogue.platforms["gb200-nvl72"];
        let now = &after.expectations[test];
        assert_eq!((now.value, now.floor, now.tolerance), (Some(741.26), Some(652.77), 0.02));
        assert!(now.source.contains("run \"7\"") && now.origin == "site.toml", "{now:?}");
        let others = |platform: &super::super::Platform| {
            let mut all = platform.expectations.clone();
            all.remove(test);
            all
        };
        assert_eq!(others(after), others(&before));
    }

    #[test]
    fn the_level_of_a_lab_keeps_its_digits_and_can_be_read_back() {
        let mut catalogue = builtin::builtin_catalogue().clone();
        let test = "multinode_device_to_device_memcpy_read_ce";
        let slow = SiteExpectation { value: 0.012_346, floor: Some(0.004), ..stated(test) };
        let text = render_site_file("gb200-nvl72", &[], &[slow], &[]);
        overlay::apply(&mut catalogue, &text, "lab.toml").expect("a good file");
        let now = &catalogue.platforms["gb200-nvl72"].expectations[test];
        assert_eq!((now.value, now.floor), (Some(0.012_346), Some(0.004)));
    }

    #[test]
    fn a_unit_other_than_that_of_bandwidths_is_named() {
        let latency = SiteExpectation {
            unit: Unit::Nanoseconds,
            floor: None,
            ..stated("device_to_device_latency_sm")
        };
        let text = render_site_file("gb200-nvl72", &[], &[latency], &[]);
        assert!(text.contains("unit = \"ns\""), "{text}");
    }

    #[test]
    fn a_stated_collective_replaces_the_one_with_its_conditions() {
        let mut catalogue = builtin::builtin_catalogue().clone();
        let before = catalogue.platforms["gb200-nvl72"].collectives.clone();
        let conditions = &before[0];
        let collective = SiteCollective {
            conditions,
            busbw: conditions.busbw * 0.95,
            tolerance: 0.05,
            floor: Some(1.0),
            source: "a run".to_owned(),
        };
        let text = render_site_file("gb200-nvl72", &[], &[], &[collective]);
        overlay::apply(&mut catalogue, &text, "site.toml").expect("a good file");
        let after = &catalogue.platforms["gb200-nvl72"].collectives;
        assert_eq!(after.len(), before.len());
        let changed: Vec<_> = after.iter().filter(|it| it.origin == "site.toml").collect();
        let [one] = changed.as_slice() else { panic!("{changed:?}\n{text}") };
        assert!((one.busbw - conditions.busbw * 0.95).abs() < 0.01 && one.floor == Some(1.0));
    }
}
