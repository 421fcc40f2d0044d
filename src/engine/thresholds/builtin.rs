//! The compiled-in files of `thresholds/`, and the digest of any set of expectations.
//!
//! The tests below check the shipped files, so reading them cannot fail at run time.

use std::fmt::Write as _;
use std::sync::OnceLock;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{PlatformCatalogue, overlay};

/// Name and text of every shipped file.
pub const BUILTIN_FILES: &[(&str, &str)] = &[
    ("thresholds/gb200-nvl72.toml", include_str!("../../../thresholds/gb200-nvl72.toml")),
    ("thresholds/gb300-nvl72.toml", include_str!("../../../thresholds/gb300-nvl72.toml")),
    ("thresholds/gh200.toml", include_str!("../../../thresholds/gh200.toml")),
    ("thresholds/h100-nvl.toml", include_str!("../../../thresholds/h100-nvl.toml")),
    ("thresholds/hgx-a100.toml", include_str!("../../../thresholds/hgx-a100.toml")),
    ("thresholds/hgx-b200.toml", include_str!("../../../thresholds/hgx-b200.toml")),
    ("thresholds/hgx-b300.toml", include_str!("../../../thresholds/hgx-b300.toml")),
    ("thresholds/hgx-h100.toml", include_str!("../../../thresholds/hgx-h100.toml")),
    ("thresholds/hgx-h200.toml", include_str!("../../../thresholds/hgx-h200.toml")),
    ("thresholds/hgx-v100.toml", include_str!("../../../thresholds/hgx-v100.toml")),
    ("thresholds/l40s.toml", include_str!("../../../thresholds/l40s.toml")),
    ("thresholds/nic-efa-200.toml", include_str!("../../../thresholds/nic-efa-200.toml")),
    ("thresholds/nic-hdr-200.toml", include_str!("../../../thresholds/nic-hdr-200.toml")),
    ("thresholds/nic-ndr-400.toml", include_str!("../../../thresholds/nic-ndr-400.toml")),
    ("thresholds/nic-roce-400.toml", include_str!("../../../thresholds/nic-roce-400.toml")),
    ("thresholds/nic-xdr-800.toml", include_str!("../../../thresholds/nic-xdr-800.toml")),
    ("thresholds/rtx-4090.toml", include_str!("../../../thresholds/rtx-4090.toml")),
    ("thresholds/rtx-5090.toml", include_str!("../../../thresholds/rtx-5090.toml")),
    ("thresholds/rtx-a6000.toml", include_str!("../../../thresholds/rtx-a6000.toml")),
    ("thresholds/rtx-pro-6000.toml", include_str!("../../../thresholds/rtx-pro-6000.toml")),
];

/// The expectations of all shipped files.
pub fn builtin_catalogue() -> &'static PlatformCatalogue {
    static CATALOGUE: OnceLock<PlatformCatalogue> = OnceLock::new();
    CATALOGUE.get_or_init(|| {
        let mut catalogue = PlatformCatalogue::default();
        for (name, text) in BUILTIN_FILES {
            overlay::apply(&mut catalogue, text, name)
                .expect("the tests of this file read every shipped file");
        }
        catalogue
    })
}

/// The first 16 hexadecimal digits of the SHA-256 of the expectations, written as JSON with sorted
/// keys and without the names of their files: the same numbers have the same digest, wherever they
/// come from.
pub fn digest(catalogue: &PlatformCatalogue) -> String {
    let value = serde_json::to_value(catalogue).expect("expectations are plain data");
    let mut canonical = String::new();
    write_canonical(&value, &mut canonical);
    let mut hex = String::with_capacity(16);
    for byte in Sha256::digest(canonical.as_bytes()).iter().take(8) {
        write!(hex, "{byte:02x}").expect("writing to a string cannot fail");
    }
    hex
}

fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().filter(|key| *key != "origin").collect();
            keys.sort();
            out.push('{');
            for key in keys {
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                write_canonical(&map[key], out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for item in items {
                write_canonical(item, out);
                out.push(',');
            }
            out.push(']');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}
