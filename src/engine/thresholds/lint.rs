//! Legal but suspicious content of a threshold file.
//!
//! Warnings only: a file with warnings still applies. Pure functions.

use super::fault::ThresholdFault;
use super::file::ThresholdFile;
use super::{Expectation, Platform, PlatformCatalogue, TestPath, matches_pattern, testcase};

/// Warnings about the expectations of one file, as part of this platform.
pub fn lint_file(sheet: &ThresholdFile, platform: &Platform) -> Vec<ThresholdFault> {
    let mut warnings = Vec::new();
    for (name, expectation) in &sheet.expectations {
        let Some(place) = sheet.places.get(name) else { continue };
        for (message, help) in lint_expectation(expectation, platform) {
            warnings.push(ThresholdFault { message, help, ..place.clone() });
        }
    }
    warnings.sort_by_key(|warning| (warning.line, warning.column));
    warnings
}

fn lint_expectation(
    expectation: &Expectation,
    platform: &Platform,
) -> Vec<(String, Option<String>)> {
    let mut warnings = Vec::new();
    let name = expectation.testcase.as_str();
    if !testcase::is_known(name) {
        let help = testcase::suggest_testcase(name).map(|other| format!("did you mean `{other}`?"));
        warnings.push((format!("no known tool prints a test `{name}`"), help));
    }
    let bandwidth = expectation.unit.is_bandwidth();
    if bandwidth
        && let (Some(value), Some(floor)) = (expectation.value, expectation.floor)
        && value < floor
    {
        warnings.push((format!("the floor {floor} lies above the value {value}"), None));
    }
    if bandwidth == testcase::is_latency(name) {
        let help = Some("latencies are in ns or us, bandwidths in GB/s".to_owned());
        warnings.push((format!("{name} has the unit {}", expectation.unit), help));
    }
    if expectation.path == TestPath::Nvlink
        && let Some(nvlink) = &platform.nvlink
    {
        let directions = if testcase::sums_directions(name) { 2.0 } else { 1.0 };
        let nominal = directions * f64::from(nvlink.links) * nvlink.rate;
        let highest = [expectation.value, expectation.floor]
            .into_iter()
            .flatten()
            .filter_map(|value| expectation.unit.to_gigabytes_per_second(value))
            .fold(0.0, f64::max);
        if nominal < highest {
            let help = format!("its links carry {nominal} GB/s");
            warnings.push((format!("{highest} GB/s exceeds the nominal rate"), Some(help)));
        }
    }
    warnings
}

/// Product names that two platforms of the same size claim: such a GPU is ambiguous. Returns
/// (platform, platform, name).
pub fn find_shared_devices(catalogue: &PlatformCatalogue) -> Vec<(String, String, String)> {
    let mut shared = Vec::new();
    for a in catalogue.platforms.values() {
        for b in catalogue.platforms.values().filter(|b| b.name != a.name) {
            for pattern in &a.devices {
                // Tests a pattern as a name, with a short text for its star.
                let name = pattern.replace('*', "x");
                let same_size = a.gpus_per_node.is_none()
                    || b.gpus_per_node.is_none()
                    || a.gpus_per_node == b.gpus_per_node;
                if same_size && b.devices.iter().any(|other| matches_pattern(other, &name)) {
                    shared.push((a.name.clone(), b.name.clone(), pattern.clone()));
                }
            }
        }
    }
    shared
}
