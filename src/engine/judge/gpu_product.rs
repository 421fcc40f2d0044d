//! Whether a recorded GPU can belong to a platform, by its product name.
//!
//! Names differ between tools, drivers and board vendors, so a GPU with an unlisted name may still
//! belong to this platform. It does not if another platform lists the name, or if the name shows
//! another model or form factor.

use std::collections::BTreeSet;

use crate::thresholds::{Platform, PlatformCatalogue};

/// Why this product does not belong to the platform, with both names; `None` if it does, or may.
pub(super) fn explain_foreign_gpu(
    product: &str,
    platform: &Platform,
    catalogue: &PlatformCatalogue,
) -> Option<String> {
    if platform.devices.is_empty() || platform.has_device(product) {
        return None;
    }
    let other = catalogue.platforms.values().find(|other| other.has_device(product));
    let reported = match other {
        Some(other) => format!("{product} ({})", other.name),
        None if is_other_model(product, &platform.devices) => product.to_owned(),
        None => return None,
    };
    Some(format!(
        "its claimed platform is {}, with GPUs {}, but the tools report {reported}: none of it was \
         compared",
        platform.name,
        platform.devices.join(" or ")
    ))
}

/// Whether a name is another model than all of these, or another form factor.
fn is_other_model(product: &str, devices: &[String]) -> bool {
    let own = GpuProductName::parse(product);
    if own.models.is_empty() {
        return false;
    }
    !devices.iter().map(|device| GpuProductName::parse(device)).any(|known| {
        known.models.is_empty()
            || (known.models.intersection(&own.models).next().is_some() && known.form == own.form)
    })
}

/// How a GPU is connected, as far as its name shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GpuFormFactor {
    /// A module, or a name that does not show it.
    Module,
    /// A card without a bridge in its name.
    Pcie,
    /// A card with bridges, or a board with few GPUs.
    Nvl,
    /// A part of a GPU.
    Mig,
}

/// The parts of a product name that distinguish GPUs.
#[derive(Debug)]
struct GpuProductName {
    /// Tokens with a number that is neither a size nor a form factor: `H100`, `MI300X`, `4090`.
    models: BTreeSet<String>,
    form: GpuFormFactor,
}

impl GpuProductName {
    fn parse(product: &str) -> Self {
        let mut name = Self { models: BTreeSet::new(), form: GpuFormFactor::Module };
        let upper = product.to_ascii_uppercase();
        let tokens = upper.split(|c: char| c.is_whitespace() || matches!(c, '-' | '_' | '/' | '*'));
        for token in tokens {
            match token {
                "MIG" => name.form = GpuFormFactor::Mig,
                "PCIE" => name.form = GpuFormFactor::Pcie,
                _ if token.starts_with("NVL") => name.form = GpuFormFactor::Nvl,
                _ if is_model(token) => _ = name.models.insert(token.to_owned()),
                _ => {}
            }
        }
        name
    }
}

fn is_model(token: &str) -> bool {
    let is_part = ["HBM", "SXM", "GDDR"].iter().any(|part| token.starts_with(part));
    let is_number = 4 <= token.len() && token.bytes().all(|byte| byte.is_ascii_digit());
    let starts_with_letter = token.starts_with(|c: char| c.is_ascii_alphabetic());
    let has_digit = token.bytes().any(|byte| byte.is_ascii_digit());
    is_number || (starts_with_letter && has_digit && !is_part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thresholds::builtin;

    fn why(platform: &str, product: &str) -> Option<String> {
        let catalogue = builtin::builtin_catalogue();
        explain_foreign_gpu(
            product,
            catalogue.platform(platform).expect("a shipped platform"),
            catalogue,
        )
    }

    #[test]
    fn every_listed_gpu_belongs_to_its_own_platform_only() {
        let platforms = || builtin::builtin_catalogue().platforms.values();
        let mut others = 0;
        for platform in platforms().filter(|p| !p.devices.is_empty()) {
            for device in platforms().flat_map(|p| &p.devices) {
                let product = device.replace('*', "");
                let is_own = platform.has_device(&product);
                let reason = why(&platform.name, &product);
                assert_eq!(reason.is_none(), is_own, "{} {product}", platform.name);
                if let Some(reason) = reason {
                    others += 1;
                    assert!(
                        reason.contains(&product) && reason.contains(&platform.name),
                        "{reason}"
                    );
                }
            }
        }
        assert!(100 < others);
    }

    #[test]
    fn similar_names_are_distinguished_and_uninformative_names_are_accepted() {
        let another = [
            ("hgx-h100", "AMD Instinct MI300X"),
            ("hgx-h100", "AMD Instinct MI300X OAM"),
            ("hgx-h100", "Tesla V100-SXM2-16GB"),
            ("hgx-h100", "NVIDIA H100 PCIe"),
            ("hgx-h100", "NVIDIA H100 NVL"),
            ("hgx-h100", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"),
            ("hgx-h100", "NVIDIA H800"),
            ("hgx-h100", "NVIDIA H20"),
            ("hgx-h200", "NVIDIA H200 NVL"),
            ("hgx-a100", "NVIDIA A100-PCIE-40GB"),
            ("hgx-a100", "NVIDIA A100 80GB PCIe"),
            ("hgx-b200", "NVIDIA GB200"),
            ("gb200-nvl72", "NVIDIA B200"),
            ("gb200-nvl72", "NVIDIA GB200 NVL4"),
            ("gb200-nvl72", "NVIDIA GB300"),
            ("rtx-4090", "NVIDIA GeForce RTX 3090"),
            ("l40s", "NVIDIA L40"),
            ("l40s", "Tesla T4"),
        ];
        for (platform, product) in another {
            assert!(why(platform, product).is_some(), "{product} on {platform}");
        }
        let may_be = [
            ("hgx-h100", "NVIDIA H100 80GB HBM3"),
            ("hgx-h100", "NVIDIA H100 SXM5 80GB"),
            ("hgx-h100", "NVIDIA H100 96GB HBM3"),
            ("hgx-h100", "NVIDIA DGX Display"),
            ("hgx-h100", "NVIDIA Graphics Device"),
            ("hgx-a100", "NVIDIA A100-SXM-64GB"),
            ("hgx-b300", "NVIDIA B300 SXM6 AC"),
            ("gh200", "NVIDIA GH200 96GB HBM3"),
            ("gb200-nvl72", "HGX GB200"),
        ];
        for (platform, product) in may_be {
            assert_eq!(why(platform, product), None, "{product} on {platform}");
        }
    }
}
