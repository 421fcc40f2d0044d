//! The shipped files: each parses without warnings and predicts the published numbers; also tests
//! the messages for faulty files.

use super::*;
use crate::thresholds::fault::ThresholdFault;

fn value(platform: &str, test: &str) -> f64 {
    builtin::builtin_catalogue()
        .platform(platform)
        .and_then(|p| p.expectation(&MeasurementConditions::with_default_size(test)).ok())
        .and_then(|e| e.value)
        .unwrap_or_else(|| panic!("{platform} {test}"))
}

#[test]
fn every_shipped_file_reads_without_a_fault_or_a_warning() {
    let mut catalogue = PlatformCatalogue::default();
    for (name, text) in builtin::BUILTIN_FILES {
        match overlay::apply(&mut catalogue, text, name) {
            Ok(warnings) => assert!(warnings.is_empty(), "{}", warnings[0]),
            Err(faults) => panic!("{}", faults[0]),
        }
    }
    assert_eq!(catalogue.platforms.len(), builtin::BUILTIN_FILES.len());
    assert_eq!(&catalogue, builtin::builtin_catalogue());
}

#[test]
fn every_file_in_the_folder_ships_under_the_name_of_its_platform() {
    let folder =
        std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("thresholds");
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .expect("the folder exists")
        .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".toml"))
        .map(|name| format!("thresholds/{name}"))
        .collect();
    names.sort();
    let shipped: Vec<&str> = builtin::BUILTIN_FILES.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, shipped);
    for platform in builtin::builtin_catalogue().platforms.values() {
        assert_eq!(platform.origin, format!("thresholds/{}.toml", platform.name));
    }
}

#[test]
fn every_number_has_a_source_a_derivation_and_a_floor_of_at_most_nine_tenths() {
    for platform in builtin::builtin_catalogue().platforms.values() {
        for (name, e) in &platform.expectations {
            assert!(8 < e.source.len() && !e.derivation.is_empty(), "{} {name}", platform.name);
            assert!(e.value.is_some() || e.floor.is_some(), "{} {name}", platform.name);
            assert_ne!(e.confidence, ThresholdConfidence::Site, "{} {name}", platform.name);
            if let (Some(value), Some(floor)) = (e.value, e.floor) {
                assert!(floor <= 0.9005 * value, "{} {name}: {floor} of {value}", platform.name);
                // Otherwise being within tolerance could still be broken.
                let lowest = value * (1.0 - e.tolerance);
                assert!(floor <= lowest, "{} {name}: {floor} {lowest}", platform.name);
            }
            // An inherited number is never marked as exact.
            let derived = e.confidence == ThresholdConfidence::Derived && e.value.is_some();
            assert!(!derived || 0.05 <= e.tolerance, "{} {name}", platform.name);
        }
        for c in &platform.collectives {
            assert!(8 < c.source.len(), "{} {}", platform.name, c.testcase);
            let lowest = c.busbw * (1.0 - c.tolerance);
            assert!(c.floor.is_none_or(|f| f <= lowest), "{} {}", platform.name, c.testcase);
        }
    }
}

#[test]
fn predictions_are_the_published_numbers() {
    let published = [
        ("hgx-a100", "device_to_device_memcpy_write_ce", 275.8),
        ("hgx-a100", "host_to_device_memcpy_ce", 26.0),
        ("hgx-a100", "p2p_unidirectional_write_enabled", 274.0),
        ("hgx-h100", "device_to_device_memcpy_write_ce", 396.0),
        ("hgx-h100", "device_to_device_memcpy_read_ce", 396.0),
        ("hgx-h100", "p2p_unidirectional_write_enabled", 376.0),
        ("hgx-h100", "p2p_bidirectional_enabled", 742.0),
        ("h100-nvl", "device_to_device_memcpy_read_ce", 256.63),
        ("hgx-h200", "device_to_device_memcpy_write_ce", 396.4),
        ("hgx-h200", "device_to_device_bidirectional_memcpy_write_ce_total", 783.73),
        ("hgx-h200", "host_to_device_memcpy_ce", 55.43),
        ("hgx-h200", "device_to_host_memcpy_ce", 55.06),
        ("gh200", "host_to_device_memcpy_ce", 342.39),
        ("gh200", "device_to_host_memcpy_ce", 295.31),
        ("gb200-nvl72", "p2p_unidirectional_write_enabled", 746.0),
        ("gb200-nvl72", "device_to_device_memcpy_read_ce", 768.0),
        ("gb200-nvl72", "multinode_device_to_device_memcpy_read_ce", 768.0),
        ("gb300-nvl72", "device_to_device_memcpy_write_ce", 775.9),
        ("nic-efa-200", "ib_write_bw", 193.72 / 8.0),
    ];
    for (platform, test, number) in published {
        let predicted = value(platform, test);
        assert!((predicted - number).abs() < 0.1, "{platform} {test}: {predicted}, not {number}");
    }
}

#[test]
fn each_stream_of_a_bidirectional_copy_is_half_of_its_total() {
    for platform in builtin::builtin_catalogue().platforms.values() {
        for (name, total) in &platform.expectations {
            let Some(test) = name.strip_suffix("_total") else { continue };
            for part in ["_read1", "_read2", "_write1", "_write2"] {
                let stream = format!("{test}{part}");
                let stream =
                    platform.expectation(&MeasurementConditions::with_default_size(&stream));
                let Ok(stream) = stream else { continue };
                let twice = stream.value.map(|v| v * 2.0);
                let apart = twice.zip(total.value).map(|(a, b)| (a - b).abs());
                assert!(apart.is_some_and(|d| d < 0.05), "{} {test}{part}", platform.name);
            }
        }
    }
}

#[test]
fn every_product_name_belongs_to_one_platform() {
    assert_eq!(lint::find_shared_devices(builtin::builtin_catalogue()), []);
    let names = [
        ("NVIDIA A100-SXM4-80GB", 8, Some("hgx-a100")),
        ("A100-SXM4-40GB", 8, Some("hgx-a100")),
        ("NVIDIA A100-SXM4-40GB", 4, None),
        ("NVIDIA A100 80GB PCIe", 8, None),
        ("NVIDIA H100 80GB HBM3", 8, Some("hgx-h100")),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 8, None),
        ("NVIDIA H100 PCIe", 8, None),
        ("NVIDIA H100 NVL", 2, Some("h100-nvl")),
        ("NVIDIA H200", 8, Some("hgx-h200")),
        ("NVIDIA H200 NVL", 8, None),
        ("NVIDIA GH200 480GB", 1, Some("gh200")),
        ("NVIDIA B200", 8, Some("hgx-b200")),
        ("NVIDIA B300 SXM6 AC", 8, Some("hgx-b300")),
        ("NVIDIA GB200", 4, Some("gb200-nvl72")),
        ("NVIDIA GB300", 4, Some("gb300-nvl72")),
        ("NVIDIA GB300", 1, None),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 8, Some("rtx-pro-6000")),
        ("NVIDIA GeForce RTX 4090", 8, Some("rtx-4090")),
        ("NVIDIA L40S", 4, Some("l40s")),
        ("NVIDIA H800", 8, None),
    ];
    for (product, gpus, platform) in names {
        let found = builtin::builtin_catalogue()
            .find_by_device(product, Some(gpus))
            .map(|p| p.name.as_str());
        assert_eq!(found, platform, "{product} x {gpus}");
    }
}

#[test]
fn a_lost_nvlink_switch_or_half_the_lanes_lies_below_every_floor() {
    for platform in builtin::builtin_catalogue().platforms.values() {
        for (name, e) in &platform.expectations {
            let (Some(value), Some(floor)) = (e.value, e.floor) else { continue };
            let severe = if e.path == TestPath::Nvlink { 0.72 } else { 0.25 };
            assert!(value * severe < floor, "{} {name}", platform.name);
        }
    }
}

#[test]
fn a_rack_spans_nodes_and_a_nic_has_no_gpus() {
    let catalogue = builtin::builtin_catalogue();
    for rack in ["gb200-nvl72", "gb300-nvl72"] {
        let rack = catalogue.platform(rack).expect("a shipped platform");
        assert!(rack.spans_nodes());
        assert_eq!((rack.nodes_per_domain, rack.gpus_per_node), (Some(18), Some(4)));
    }
    assert!(!catalogue.platform("hgx-h100").expect("a shipped platform").spans_nodes());
    assert!(
        catalogue.platforms.values().all(|p| p.name.starts_with("nic-") == p.devices.is_empty())
    );
}

#[test]
fn the_digest_follows_the_numbers_and_nothing_else() {
    let digest = builtin::digest(builtin::builtin_catalogue());
    assert_eq!(digest.len(), 16);
    let mut moved = builtin::builtin_catalogue().clone();
    for platform in moved.platforms.values_mut() {
        platform.origin = "elsewhere".to_owned();
        for e in platform.expectations.values_mut() {
            e.origin = "elsewhere".to_owned();
        }
    }
    assert_eq!(builtin::digest(&moved), digest);
    let h100 = moved.platforms.get_mut("hgx-h100").expect("a shipped platform");
    h100.collectives[0].tolerance += 0.001;
    assert_ne!(builtin::digest(&moved), digest);
}

const SOUND: &str = r#"format = "fabricgate.thresholds/1"
platform = "lab"
title = "A lab"
devices = ["NVIDIA Lab"]

[link.nvlink]
count = 18
rate = 25.0
source = "a data sheet"

[test.device_to_device_memcpy_write_ce]
efficiency = 0.88
tolerance = 0.05
floor_ratio = 0.90
confidence = "third-party"
source = "a report"

[[collective]]
test = "all_reduce_perf"
min_bytes = "8 GiB"
ranks = 8
algorithm = "NVLS"
transport = "NVLink"
busbw = 478.0
tolerance = 0.05
confidence = "derived"
source = "a report"
"#;

/// The faults of the sound file after one change.
fn faults(from: &str, to: &str) -> String {
    assert!(SOUND.contains(from), "{from}");
    let text = SOUND.replacen(from, to, 1);
    match file::parse_file(&text, "lab.toml", builtin::builtin_catalogue()) {
        Ok(_) => "no fault".to_owned(),
        Err(faults) => faults.iter().map(ThresholdFault::to_string).collect::<Vec<_>>().join("\n"),
    }
}

#[test]
fn a_sound_file_has_no_fault() {
    assert_eq!(faults("A lab", "A laboratory"), "no fault");
}

#[test]
fn an_unknown_key_is_reported_with_a_suggestion() {
    insta::assert_snapshot!(faults("floor_ratio = 0.90", "floor_ration = 0.90"), @r#"
    lab.toml:14:1: unknown key `floor_ration`
     14 | floor_ration = 0.90
        | ^^^^^^^^^^^^ did you mean `floor_ratio`?
    "#);
}

#[test]
fn a_misspelt_key_is_one_fault_and_not_also_a_missing_key() {
    insta::assert_snapshot!(faults("tolerance = 0.05", "tolerence = 0.05"), @r#"
    lab.toml:13:1: unknown key `tolerence`
     13 | tolerence = 0.05
        | ^^^^^^^^^ did you mean `tolerance`?
    "#);
}

#[test]
fn a_wrong_type_is_reported_with_the_type_that_was_found() {
    insta::assert_snapshot!(faults("tolerance = 0.05", "tolerance = \"5 %\""), @r#"
    lab.toml:13:13: `tolerance` is a number, found a string
     13 | tolerance = "5 %"
        |             ^^^^^
    "#);
}

#[test]
fn a_duplicate_key_is_a_fault() {
    insta::assert_snapshot!(faults("tolerance = 0.05", "tolerance = 0.05\ntolerance = 0.06"), @r#"
    lab.toml:14:1: duplicate key
     14 | tolerance = 0.06
        | ^^^^^^^^^
    "#);
}

#[test]
fn all_numbers_out_of_range_are_reported_together() {
    let bad = "efficiency = 88.0\ntolerance = -0.05";
    insta::assert_snapshot!(faults("efficiency = 0.88\ntolerance = 0.05", bad), @r#"
    lab.toml:12:14: `efficiency` is out of range
     12 | efficiency = 88.0
        |              ^^^^ from 0.001 to 1.05
    lab.toml:13:13: `tolerance` is out of range
     13 | tolerance = -0.05
        |             ^^^^^ from 0 to 0.5
    "#);
}

#[test]
fn a_number_without_a_source_is_a_fault() {
    insta::assert_snapshot!(faults("source = \"a report\"", "# no source"), @r#"
    lab.toml:11:1: `source` is missing
     11 | [test.device_to_device_memcpy_write_ce]
        | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ every number needs a source
    "#);
}

#[test]
fn invalid_toml_is_a_fault_at_its_position() {
    insta::assert_snapshot!(faults("devices = [\"NVIDIA Lab\"]", "devices = [\"NVIDIA Lab\""), @r#"
    lab.toml:6:1: missing comma between array elements, expected `,`
     6 | [link.nvlink]
       | ^
    "#);
}

#[test]
fn an_efficiency_without_its_link_is_a_fault() {
    insta::assert_snapshot!(faults("[link.nvlink]", "[link.host]"), @r#"
    lab.toml:12:14: `efficiency` needs [link.pcie]
     12 | efficiency = 0.88
        |              ^^^^ or state a `value`
    "#);
}

#[test]
fn an_efficiency_in_another_unit_than_that_of_links_is_a_fault() {
    let to = "efficiency = 0.88\nunit = \"Gb/s\"";
    insta::assert_snapshot!(faults("efficiency = 0.88", to), @r#"
    lab.toml:13:8: `efficiency` makes a level in GB/s, not in Gb/s
     13 | unit = "Gb/s"
        |        ^^^^^^ leave `unit` out, or state a `value`
    "#);
}

#[test]
fn a_value_outside_the_choices_is_a_fault() {
    insta::assert_snapshot!(faults("\"third-party\"", "\"third party\""), @r#"
    lab.toml:15:14: `third party` is not a valid confidence
     15 | confidence = "third party"
        |              ^^^^^^^^^^^^^ did you mean `third-party`?
    "#);
}

#[test]
fn a_newer_format_is_refused() {
    insta::assert_snapshot!(faults("thresholds/1", "thresholds/2"), @r#"
    lab.toml:1:10: `fabricgate.thresholds/2` is newer than this version of fabricgate
     1 | format = "fabricgate.thresholds/2"
       |          ^^^^^^^^^^^^^^^^^^^^^^^^^ format = "fabricgate.thresholds/1"
    "#);
}

#[test]
fn a_collective_without_its_conditions_and_a_bad_size_are_faults() {
    insta::assert_snapshot!(faults("min_bytes = \"8 GiB\"\nranks = 8", "min_bytes = \"8 GB\""), @r#"
    lab.toml:18:1: `ranks` is missing
     18 | [[collective]]
        | ^^^^^^^^^^^^^^ an expectation of a collective states all its conditions
    lab.toml:20:13: `min_bytes` is not a size
     20 | min_bytes = "8 GB"
        |             ^^^^^^ bytes, or a text such as "8 GiB"
    "#);
}

#[test]
fn a_value_and_an_efficiency_exclude_each_other_and_like_needs_a_test() {
    insta::assert_snapshot!(faults("efficiency = 0.88", "efficiency = 0.88\nvalue = 396.0"), @r#"
    lab.toml:13:9: `value` and `efficiency` exclude each other
     13 | value = 396.0
        |         ^^^^^
    "#);
    let to = "like = \"device_to_device_memcpy_read_ce\"";
    insta::assert_snapshot!(faults("efficiency = 0.88", to), @r#"
    lab.toml:12:8: this file has no [test.device_to_device_memcpy_read_ce]
     12 | like = "device_to_device_memcpy_read_ce"
        |        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ did you mean `device_to_device_memcpy_write_ce`?
    "#);
}

#[test]
fn a_new_platform_without_a_title_is_a_fault() {
    insta::assert_snapshot!(faults("title = \"A lab\"\n", ""), @r#"
    lab.toml:1:1: `title` is missing
     1 | format = "fabricgate.thresholds/1"
       | ^ a new platform needs one, or a `base` to start from
    "#);
}

#[test]
fn a_base_that_does_not_exist_is_reported_with_a_suggestion() {
    insta::assert_snapshot!(faults("title = \"A lab\"", "base = \"hgx-h10\""), @r#"
    lab.toml:3:8: platform `hgx-h10` does not exist
     3 | base = "hgx-h10"
       |        ^^^^^^^^^ did you mean `hgx-h100`?
    "#);
}

#[test]
fn invalid_utf8_is_a_fault_at_its_line() {
    let fault = file::decode_text(b"a = 1\nb = \"\xff\"\n", "x.toml").expect_err("no UTF-8");
    insta::assert_snapshot!(fault, @r#"
    x.toml:2:6: byte 0xff is not UTF-8
     2 | b = "�
       |      ^
    "#);
}

#[test]
fn suspicious_content_is_a_warning() {
    let text = SOUND.replace("floor_ratio = 0.90", "floor = 420.0").replace(
        "[test.device_to_device_memcpy_write_ce]",
        "[test.device_to_device_memcpy_write]\npath = \"nvlink\"",
    ) + "\n[test.p2p_bidirectional_enabled]\nvalue = 950.0\ntolerance = 0.05\nsource = \"?\"\n\
         confidence = \"derived\"\n";
    let mut catalogue = PlatformCatalogue::default();
    let warnings = overlay::apply(&mut catalogue, &text, "lab.toml").expect("legal");
    let rendered: Vec<String> = warnings.iter().map(ThresholdFault::to_string).collect();
    insta::assert_snapshot!(rendered.join("\n"), @r#"
    lab.toml:11:7: no known tool prints a test `device_to_device_memcpy_write`
     11 | [test.device_to_device_memcpy_write]
        |       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ did you mean `device_to_device_memcpy_write_ce`?
    lab.toml:11:7: the floor 420 lies above the value 396
     11 | [test.device_to_device_memcpy_write]
        |       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    lab.toml:30:7: 950 GB/s exceeds the nominal rate
     30 | [test.p2p_bidirectional_enabled]
        |       ^^^^^^^^^^^^^^^^^^^^^^^^^ its links carry 900 GB/s
    "#);
}

#[test]
fn truncated_and_corrupted_files_do_not_make_the_reader_panic() {
    for cut in 0..SOUND.len() {
        let _ = file::parse_file(&SOUND[..cut], "x", builtin::builtin_catalogue());
    }
    let bytes = SOUND.as_bytes();
    for at in 0..bytes.len() {
        for other in [b'"', b'[', b']', b'=', b'\n', b'-', b'9', 0xc3] {
            let mut changed = bytes.to_vec();
            changed[at] = other;
            if let Ok(text) = file::decode_text(&changed, "x") {
                let _ =
                    file::parse_file(text, "x", builtin::builtin_catalogue()).map_err(|faults| {
                        assert!(!faults.is_empty());
                        faults.iter().map(ThresholdFault::to_string).collect::<Vec<_>>()
                    });
            }
        }
    }
}
