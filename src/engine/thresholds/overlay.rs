//! Applies one file on top of the platforms in force: a site's own numbers win.
//!
//! An expectation is replaced as a whole and keeps the name of its file; expectations that the file
//! does not mention stay unchanged.

use std::collections::BTreeMap;

use super::fault::ThresholdFault;
use super::file::ThresholdFile;
use super::{CollectiveExpectation, Platform, PlatformCatalogue, entry, file, lint};

/// Reads a file and applies it to the catalogue. Returns the warnings; with faults the catalogue
/// stays unchanged.
pub fn apply(
    catalogue: &mut PlatformCatalogue,
    text: &str,
    origin: &str,
) -> Result<Vec<ThresholdFault>, Vec<ThresholdFault>> {
    let sheet = file::parse_file(text, origin, catalogue)?;
    let merged = merge_platform(catalogue, &sheet);
    let warnings = lint::lint_file(&sheet, &merged);
    catalogue.platforms.insert(sheet.platform, merged);
    Ok(warnings)
}

/// The platform with this sheet applied.
pub fn merge_platform(catalogue: &PlatformCatalogue, sheet: &ThresholdFile) -> Platform {
    let under = catalogue
        .platform(&sheet.platform)
        .or_else(|| sheet.base.as_deref().and_then(|base| catalogue.platform(base)));
    let mut platform = match under {
        Some(under) => under.clone(),
        None => Platform {
            name: String::new(),
            title: String::new(),
            devices: Vec::new(),
            gpus_per_node: None,
            nodes_per_domain: None,
            nvlink: None,
            port_rate: None,
            expectations: BTreeMap::new(),
            collectives: Vec::new(),
            origin: String::new(),
        },
    };
    if sheet.base.is_some() {
        // A platform derived from another one has its own machines: its product names must not be
        // claimed twice.
        platform.devices.clear();
    }
    platform.name.clone_from(&sheet.platform);
    platform.origin = match platform.origin.as_str() {
        "" => sheet.origin.clone(),
        before if before == sheet.origin => sheet.origin.clone(),
        before => format!("{before}, {}", sheet.origin),
    };
    if let Some(title) = &sheet.title {
        platform.title.clone_from(title);
    }
    if let Some(devices) = &sheet.devices {
        platform.devices.clone_from(devices);
    }
    platform.gpus_per_node = sheet.gpus_per_node.or(platform.gpus_per_node);
    platform.nodes_per_domain = sheet.nodes_per_domain.or(platform.nodes_per_domain);
    platform.nvlink = sheet.nvlink.clone().or(platform.nvlink);
    platform.port_rate = sheet.port_rate.or(platform.port_rate);
    platform.expectations.extend(sheet.expectations.clone());
    for collective in &sheet.collectives {
        platform.collectives.retain(|other| !entry::has_same_conditions(other, collective));
        platform.collectives.push(collective.clone());
    }
    platform.collectives.sort_by(|a, b| {
        let key = |c: &CollectiveExpectation| {
            (c.testcase.clone(), c.transport.clone(), c.min_ranks, c.max_ranks, c.min_bytes)
        };
        key(a).cmp(&key(b)).then_with(|| a.algorithm.cmp(&b.algorithm))
    });
    platform
}

#[cfg(test)]
mod tests {
    use super::super::{MeasurementConditions, ThresholdConfidence, builtin};
    use super::*;

    const SITE: &str = r#"
format = "fabricgate.thresholds/1"
platform = "hgx-h100"

[test.device_to_device_memcpy_write_ce]
value = 391.5
tolerance = 0.02
source = "burn-in, median of 64 nodes"

[test.device_to_device_memcpy_read_ce]
efficiency = 0.87
tolerance = 0.02
source = "burn-in, median of 64 nodes"

[[collective]]
test = "all_reduce_perf"
min_bytes = "8 GiB"
ranks = 8
algorithm = "NVLS"
transport = "NVLink"
busbw = 470.0
tolerance = 0.02
source = "burn-in"
"#;

    #[test]
    fn a_site_replaces_single_numbers_and_keeps_the_rest_with_their_origin() {
        let mut catalogue = builtin::builtin_catalogue().clone();
        let before = catalogue.platforms["hgx-h100"].clone();
        apply(&mut catalogue, SITE, "site.toml").expect("a sound file");
        let after = &catalogue.platforms["hgx-h100"];
        let write = after
            .expectation(&MeasurementConditions::with_default_size(
                "device_to_device_memcpy_write_ce",
            ))
            .expect("replaced");
        assert_eq!((write.value, write.confidence), (Some(391.5), ThresholdConfidence::Site));
        assert_eq!(write.origin, "site.toml");
        // 18 links x 25 GB/s of the platform below x 0.87.
        let read = after
            .expectation(&MeasurementConditions::with_default_size(
                "device_to_device_memcpy_read_ce",
            ))
            .expect("replaced");
        assert_eq!(read.value, Some(391.5));
        let host = after
            .expectation(&MeasurementConditions::with_default_size("host_to_device_memcpy_ce"));
        assert_eq!(
            host,
            before
                .expectation(&MeasurementConditions::with_default_size("host_to_device_memcpy_ce"))
        );
        assert_eq!(after.title, before.title);
        assert_eq!(after.devices, before.devices);
        assert_eq!(after.collectives.len(), before.collectives.len());
        let site: Vec<_> = after.collectives.iter().filter(|c| c.origin == "site.toml").collect();
        assert_eq!(site.len(), 1);
        assert!((site[0].busbw - 470.0).abs() < 1e-9);
        assert!(after.origin.ends_with(", site.toml"), "{}", after.origin);
        assert_ne!(builtin::digest(&catalogue), builtin::digest(builtin::builtin_catalogue()));
    }

    #[test]
    fn the_last_file_wins() {
        let mut catalogue = builtin::builtin_catalogue().clone();
        apply(&mut catalogue, SITE, "site.toml").expect("a sound file");
        let again = SITE.replace("391.5", "392.5");
        apply(&mut catalogue, &again, "room.toml").expect("a sound file");
        let write = catalogue.platforms["hgx-h100"]
            .expectation(&MeasurementConditions::with_default_size(
                "device_to_device_memcpy_write_ce",
            ))
            .expect("replaced");
        assert_eq!((write.value, write.origin.as_str()), (Some(392.5), "room.toml"));
    }

    #[test]
    fn a_base_gives_a_new_platform_everything_but_its_product_names() {
        let mut catalogue = builtin::builtin_catalogue().clone();
        let text = "format = \"fabricgate.thresholds/1\"\nplatform = \"lab-h100\"\n\
                    base = \"hgx-h100\"\ndevices = [\"Lab H100\"]\ngpus_per_node = 4\n";
        apply(&mut catalogue, text, "lab.toml").expect("a sound file");
        let lab = &catalogue.platforms["lab-h100"];
        let shipped = &catalogue.platforms["hgx-h100"];
        assert_eq!(lab.expectations, shipped.expectations);
        assert_eq!((lab.gpus_per_node, lab.devices.len()), (Some(4), 1));
        let one =
            catalogue.find_by_device("NVIDIA H100 80GB HBM3", Some(8)).map(|p| p.name.as_str());
        assert_eq!(one, Some("hgx-h100"));
    }

    #[test]
    fn a_file_with_a_fault_changes_nothing() {
        let mut catalogue = builtin::builtin_catalogue().clone();
        let text = SITE.replace("tolerance = 0.02\nsource", "tolerance = -1\nsource");
        assert!(apply(&mut catalogue, &text, "site.toml").is_err());
        assert_eq!(&catalogue, builtin::builtin_catalogue());
    }
}
