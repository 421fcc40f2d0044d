//! Positions of PCI devices from sysfs, and the distance between two of them.

use std::path::{Component, Path};

use super::sysfs;
use model::node_facts::PciDistance;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PciLocation {
    /// Path from the host bridge (`pci0000:00`) over every bridge to the device.
    pub(super) path: Vec<String>,
    /// NUMA node of its processor.
    pub(super) numa_node: Option<u32>,
}

/// An address in the kernel's form: lower case, and a domain of four digits if four suffice. NVML
/// uses eight digits in upper case.
pub(super) fn normalize_address(text: &str) -> String {
    let text = super::query::to_printable(text).to_ascii_lowercase();
    match text.split_once(':') {
        Some((domain, rest)) if domain.len() == 8 && domain.starts_with("0000") => {
            format!("{}:{rest}", &domain[4..])
        }
        _ => text,
    }
}

/// The position of the device with this address.
pub(super) fn locate_address(sys: &Path, address: &str) -> Option<PciLocation> {
    // The address must be exactly one path component.
    let plain = |c: char| c.is_ascii_hexdigit() || matches!(c, ':' | '.');
    if address.is_empty() || address.contains("..") || !address.chars().all(plain) {
        return None;
    }
    locate_link(&sys.join("bus/pci/devices").join(address))
}

/// The position of the device that this sysfs link points to.
pub(super) fn locate_link(link: &Path) -> Option<PciLocation> {
    let folder = link.canonicalize().ok()?;
    Some(PciLocation { path: pci_path(&folder), numa_node: read_numa_node(&folder) })
}

/// NUMA node of a device; -1 means none.
fn read_numa_node(folder: &Path) -> Option<u32> {
    sysfs::read_line(&folder.join("numa_node"))?.parse().ok()
}

/// The components of a sysfs path that are PCI devices.
fn pci_path(folder: &Path) -> Vec<String> {
    let names = folder.components().filter_map(|component| match component {
        Component::Normal(name) => name.to_str(),
        _ => None,
    });
    let below = names.skip_while(|name| !is_host_bridge(name));
    below.take_while(|name| is_host_bridge(name) || is_address(name)).map(str::to_owned).collect()
}

fn is_host_bridge(name: &str) -> bool {
    name.strip_prefix("pci").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_hexdigit()))
}

fn is_address(name: &str) -> bool {
    name.contains(':') && name.contains('.')
}

/// The distance between two devices. Devices below one bridge of a host bridge share a switch: a
/// port of a host bridge has one link.
pub(super) fn relation_between(one: &PciLocation, other: &PciLocation) -> PciDistance {
    let shared = one.path.iter().zip(&other.path).take_while(|(a, b)| a == b).count();
    match (shared, one.numa_node, other.numa_node) {
        (2.., _, _) => PciDistance::SameSwitch,
        (1, _, _) => PciDistance::SameRoot,
        (0, Some(a), Some(b)) if a == b => PciDistance::SameNuma,
        (0, Some(_), Some(_)) => PciDistance::OtherNuma,
        (0, _, _) => PciDistance::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &str, numa_node: Option<u32>) -> PciLocation {
        PciLocation { path: path.split('/').map(str::to_owned).collect(), numa_node }
    }

    #[test]
    fn addresses_are_written_as_the_kernel_does() {
        assert_eq!(normalize_address("00000000:3B:00.0"), "0000:3b:00.0");
        assert_eq!(normalize_address("00010000:3B:00.0"), "00010000:3b:00.0");
        assert_eq!(normalize_address("0009:01:00.0"), "0009:01:00.0");
    }

    #[test]
    fn the_distance_follows_from_the_shared_bridges() {
        let gpu = place("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0", Some(0));
        let sibling =
            place("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0", Some(0));
        assert_eq!(relation_between(&gpu, &sibling), PciDistance::SameSwitch);
        let root = place("pci0000:00/0000:00:02.0/0000:05:00.0", Some(0));
        assert_eq!(relation_between(&gpu, &root), PciDistance::SameRoot);
        let numa = place("pci0000:40/0000:40:01.0/0000:41:00.0", Some(0));
        assert_eq!(relation_between(&gpu, &numa), PciDistance::SameNuma);
        let far = place("pci0000:80/0000:80:01.0/0000:81:00.0", Some(1));
        assert_eq!(relation_between(&gpu, &far), PciDistance::OtherNuma);
        let unknown = place("pci0000:80/0000:80:01.0/0000:81:00.0", None);
        assert_eq!(relation_between(&gpu, &unknown), PciDistance::Unknown);
        assert_eq!(
            relation_between(&PciLocation::default(), &PciLocation::default()),
            PciDistance::Unknown
        );
    }

    #[test]
    fn an_address_outside_of_the_device_folder_is_rejected() {
        assert_eq!(locate_address(Path::new("/sys"), "../../../../etc"), None);
        assert_eq!(locate_address(Path::new("/sys"), ".."), None);
    }
}
