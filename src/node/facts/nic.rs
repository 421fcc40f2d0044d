//! Network interfaces from sysfs: RDMA devices per port, and other hardware interfaces.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::pci::PciLocation;
use super::{pci, sysfs};
use model::gpu_facts::GpuFacts;
use model::node_facts::{GpuDistance, NicFacts};

/// Error counters of RDMA ports in `counters`.
const PORT_COUNTERS: [&str; 9] = [
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_xmit_wait",
];

/// Error counters of RDMA ports in `hw_counters`.
const HARDWARE_COUNTERS: [&str; 7] = [
    "out_of_buffer",
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "rx_icrc_encapsulated",
];

/// Error counters of network devices in `statistics`.
const STATISTICS: [&str; 5] =
    ["rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "rx_crc_errors"];

pub(super) fn read_nics(sys: &Path) -> Vec<NicFacts> {
    let mut found = Vec::new();
    let rdma = sys.join("class/infiniband");
    for device in sysfs::list_names(&rdma).unwrap_or_default() {
        let folder = rdma.join(&device);
        let mut ports: Vec<u32> = sysfs::list_names(&folder.join("ports"))
            .unwrap_or_default()
            .iter()
            .filter_map(|port| port.parse().ok())
            .collect();
        ports.sort_unstable();
        found.extend(ports.into_iter().map(|port| read_rdma_port(sys, &folder, &device, port)));
    }
    let known: BTreeSet<String> =
        found.iter().flat_map(|nic: &NicFacts| nic.net_devices.clone()).collect();
    let net = sys.join("class/net");
    for device in sysfs::list_names(&net).unwrap_or_default() {
        // An interface without a device folder is virtual.
        let folder = net.join(&device);
        if !known.contains(&device) && folder.join("device").exists() {
            found.push(read_net_device(&folder, device));
        }
    }
    found
}

fn read_rdma_port(sys: &Path, folder: &Path, device: &str, port: u32) -> NicFacts {
    let at = folder.join("ports").join(port.to_string());
    let net_devices = sysfs::list_names(&folder.join("device/net")).unwrap_or_default();
    let mac = net_devices.first().and_then(|name| read_mac(&sys.join("class/net").join(name)));
    let link_layer = sysfs::read_line(&at.join("link_layer"));
    // The first GID of an InfiniBand port ends in its GUID; elsewhere a GID is derived from
    // addresses.
    let gid = sysfs::read_line(&at.join("gids/0"))
        .filter(|_| link_layer.as_deref() == Some("InfiniBand"));
    let mut counters = BTreeMap::new();
    read_counters(&at.join("counters"), &PORT_COUNTERS, &mut counters);
    read_counters(&at.join("hw_counters"), &HARDWARE_COUNTERS, &mut counters);
    let nic = NicFacts {
        device: device.to_owned(),
        rdma: true,
        port: Some(port),
        net_devices,
        link_layer,
        state: sysfs::read_line(&at.join("state")).map(|text| parse_state(&text)),
        physical_state: sysfs::read_line(&at.join("phys_state")).map(|text| parse_state(&text)),
        rate_mbit_s: sysfs::read_line(&at.join("rate")).and_then(|text| parse_rate(&text)),
        port_guid: gid.and_then(|gid| {
            gid.rsplitn(5, ':').nth(4).map(str::len).and_then(|from| parse_guid(&gid[from..]))
        }),
        node_guid: sysfs::read_line(&folder.join("node_guid")).and_then(|text| parse_guid(&text)),
        mac,
        firmware: sysfs::read_line(&folder.join("fw_ver")),
        board: sysfs::read_line(&folder.join("board_id")),
        counters,
        ..NicFacts::default()
    };
    with_pci_location(nic, &folder.join("device"))
}

fn read_net_device(folder: &Path, device: String) -> NicFacts {
    let mut counters = BTreeMap::new();
    read_counters(&folder.join("statistics"), &STATISTICS, &mut counters);
    read_counters(folder, &["carrier_changes"], &mut counters);
    // ARPHRD_ETHER and ARPHRD_INFINIBAND of <linux/if_arp.h>.
    let link_layer = match sysfs::read_number(&folder.join("type")) {
        Some(1) => Some("Ethernet".to_owned()),
        Some(32) => Some("InfiniBand".to_owned()),
        _ => None,
    };
    let nic = NicFacts {
        net_devices: vec![device.clone()],
        device,
        link_layer,
        state: sysfs::read_line(&folder.join("operstate")),
        // A link that is down reports -1, or cannot be read.
        rate_mbit_s: sysfs::read_number(&folder.join("speed")),
        mac: read_mac(folder),
        counters,
        ..NicFacts::default()
    };
    with_pci_location(nic, &folder.join("device"))
}

/// Adds the position of its device.
fn with_pci_location(nic: NicFacts, device: &Path) -> NicFacts {
    let Some(PciLocation { path, numa_node }) = pci::locate_link(device) else { return nic };
    let number = |name: &str| {
        // The kernel uses 0 and 255 for "unknown".
        let lanes = sysfs::read_number(&device.join(name)).and_then(|n| u32::try_from(n).ok());
        lanes.filter(|lanes| (1..=64).contains(lanes))
    };
    NicFacts {
        numa_node,
        pci_address: path.last().filter(|_| 1 < path.len()).cloned(),
        pci_path: path,
        pcie_speed: sysfs::read_line(&device.join("current_link_speed")),
        pcie_speed_max: sysfs::read_line(&device.join("max_link_speed")),
        pcie_width: number("current_link_width"),
        pcie_width_max: number("max_link_width"),
        ..nic
    }
}

fn read_counters(folder: &Path, names: &[&str], into: &mut BTreeMap<String, u64>) {
    for name in names {
        if let Some(count) = sysfs::read_number(&folder.join(name)) {
            into.insert((*name).to_owned(), count);
        }
    }
}

fn read_mac(folder: &Path) -> Option<String> {
    let text = sysfs::read_line(&folder.join("address"))?.to_ascii_lowercase();
    // InfiniBand devices have twenty bytes here, which are not a MAC address.
    Some(text).filter(|text| text.len() == 17 && text.bytes().any(|b| b != b'0' && b != b':'))
}

/// Converts `4: ACTIVE` to `active`.
fn parse_state(text: &str) -> String {
    let name = text.split_once(':').map_or(text, |(_, name)| name);
    name.trim().to_ascii_lowercase()
}

/// Converts `400 Gb/sec (4X NDR)` to megabits per second.
fn parse_rate(text: &str) -> Option<u64> {
    let (number, rest) = text.split_once(' ')?;
    if !rest.starts_with("Gb/sec") {
        return None;
    }
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let thousandths: u64 = format!("{part:0<3}").get(..3)?.parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(thousandths)
}

/// Converts `946d:ae03:0021:d9c6` to 16 digits; `None` if all are zero.
fn parse_guid(text: &str) -> Option<String> {
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let is_guid = digits.len() == 16 && digits.bytes().any(|digit| digit != b'0');
    is_guid.then(|| digits.to_ascii_lowercase())
}

/// Adds the distance of every GPU to every network interface, and the NUMA node of every GPU.
pub(super) fn add_gpu_distances(sys: &Path, nics: &mut [NicFacts], gpus: &mut [GpuFacts]) {
    let mut places = Vec::new();
    for gpu in gpus {
        let place =
            gpu.pci_address.as_deref().and_then(|address| pci::locate_address(sys, address));
        gpu.numa_node = place.as_ref().and_then(|place| place.numa_node);
        places.push((gpu.index, place.unwrap_or_default()));
    }
    for nic in nics {
        let own = PciLocation { path: nic.pci_path.clone(), numa_node: nic.numa_node };
        let distance = |(gpu, place): &(u32, PciLocation)| GpuDistance {
            gpu: *gpu,
            relation: pci::relation_between(&own, place),
        };
        nic.gpus = places.iter().map(distance).collect();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use model::node_facts::PciDistance;

    const SWITCH: &str = "devices/pci0000:00/0000:00:01.0/0000:01:00.0";

    fn write(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().expect("a folder")).expect("made");
        fs::write(file, text).expect("written");
    }

    fn link(root: &Path, path: &str, to: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().expect("a folder")).expect("made");
        symlink(root.join(to), file).expect("linked");
    }

    /// A GPU and an InfiniBand port below one switch, and an Ethernet port at the other NUMA node.
    fn machine() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let sys = folder.path();
        let gpu = format!("{SWITCH}/0000:02:00.0/0000:03:00.0");
        write(sys, &format!("{gpu}/numa_node"), "0\n");
        link(sys, "bus/pci/devices/0000:03:00.0", &gpu);
        let nic = format!("{SWITCH}/0000:02:01.0/0000:04:00.0");
        write(sys, &format!("{nic}/numa_node"), "0\n");
        write(sys, &format!("{nic}/current_link_width"), "16\n");
        write(sys, &format!("{nic}/current_link_speed"), "32.0 GT/s PCIe\n");
        write(sys, &format!("{nic}/net/ib0/address"), "00:00:10:29:fe:80\n");
        link(sys, "class/infiniband/mlx5_0/device", &nic);
        let port = "class/infiniband/mlx5_0/ports/1";
        write(sys, &format!("{port}/state"), "4: ACTIVE\n");
        write(sys, &format!("{port}/phys_state"), "5: LinkUp\n");
        write(sys, &format!("{port}/rate"), "400 Gb/sec (4X NDR)\n");
        write(sys, &format!("{port}/link_layer"), "InfiniBand\n");
        write(sys, &format!("{port}/gids/0"), "fe80:0000:0000:0000:946d:ae03:0021:d9c6\n");
        write(sys, &format!("{port}/counters/symbol_error"), "12\n");
        write(sys, &format!("{port}/hw_counters/out_of_sequence"), "3\n");
        write(sys, "class/infiniband/mlx5_0/node_guid", "946d:ae03:0021:d9c5\n");
        let far = "devices/pci0000:80/0000:80:01.0/0000:81:00.0";
        write(sys, &format!("{far}/numa_node"), "1\n");
        link(sys, "class/net/eth0/device", far);
        write(sys, "class/net/eth0/operstate", "up\n");
        write(sys, "class/net/eth0/speed", "25000\n");
        write(sys, "class/net/eth0/type", "1\n");
        write(sys, "class/net/eth0/address", "02:00:00:00:00:0A\n");
        write(sys, "class/net/eth0/statistics/rx_errors", "7\n");
        link(sys, "class/net/ib0/device", &nic);
        write(sys, "class/net/lo/operstate", "unknown\n");
        folder
    }

    #[test]
    fn a_port_has_rate_state_guid_and_counters() {
        let folder = machine();
        let nics = read_nics(folder.path());
        let nic = &nics[0];
        assert_eq!((nic.device.as_str(), nic.port, nic.rdma), ("mlx5_0", Some(1), true));
        assert_eq!(nic.state.as_deref(), Some("active"));
        assert_eq!(nic.physical_state.as_deref(), Some("linkup"));
        assert_eq!(nic.rate_mbit_s, Some(400_000));
        assert_eq!(nic.port_guid.as_deref(), Some("946dae030021d9c6"));
        assert_eq!(nic.node_guid.as_deref(), Some("946dae030021d9c5"));
        assert_eq!((nic.counters["symbol_error"], nic.counters["out_of_sequence"]), (12, 3));
        assert_eq!((nic.pcie_width, nic.pci_address.as_deref()), (Some(16), Some("0000:04:00.0")));
        assert_eq!(nic.net_devices, ["ib0"]);
    }

    #[test]
    fn a_network_device_is_listed_once_and_only_with_hardware() {
        let folder = machine();
        let nics = read_nics(folder.path());
        let devices: Vec<&str> = nics.iter().map(|nic| nic.device.as_str()).collect();
        assert_eq!(devices, ["mlx5_0", "eth0"]);
        let eth0 = &nics[1];
        assert_eq!(
            (eth0.rate_mbit_s, eth0.mac.as_deref()),
            (Some(25_000), Some("02:00:00:00:00:0a"))
        );
        assert_eq!((eth0.rdma, eth0.counters["rx_errors"]), (false, 7));
    }

    #[test]
    fn every_interface_has_the_distance_to_each_gpu() {
        let folder = machine();
        let mut nics = read_nics(folder.path());
        let address = Some("0000:03:00.0".to_owned());
        let mut gpus = [GpuFacts { index: 0, pci_address: address, ..GpuFacts::default() }];
        add_gpu_distances(folder.path(), &mut nics, &mut gpus);
        assert_eq!(gpus[0].numa_node, Some(0));
        assert_eq!(nics[0].gpus, [GpuDistance { gpu: 0, relation: PciDistance::SameSwitch }]);
        assert_eq!(nics[1].gpus, [GpuDistance { gpu: 0, relation: PciDistance::OtherNuma }]);
    }

    #[test]
    fn a_machine_without_sysfs_has_no_interfaces_and_no_panic() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(read_nics(folder.path()).is_empty());
    }

    #[test]
    fn rates_and_states_of_every_speed_are_read() {
        assert_eq!(parse_rate("2.5 Gb/sec (1X SDR)"), Some(2_500));
        assert_eq!(parse_rate("800 Gb/sec (8X NDR)"), Some(800_000));
        assert_eq!(parse_rate("fast"), None);
        assert_eq!(parse_rate("9 furlongs"), None);
        assert_eq!(parse_state("1: DOWN"), "down");
        assert_eq!(parse_guid("0000:0000:0000:0000"), None);
    }
}
