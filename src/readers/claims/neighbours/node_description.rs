//! Parses InfiniBand node descriptions: host and device of an adapter, name of a switch.
//!
//! A description is free text, set by rdma-ndd (`%h %d`) or by hand; the firmware's default does
//! not contain a host.

use crate::claims::reader_util::{parse_node_name, sanitize_text};
use model::id::NodeName;

/// The owner of an adapter with a description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AdapterOwner {
    /// A host, with the name of the device where present.
    Host(NodeName, Option<String>),
    /// The aggregation node (SHARP) inside a switch.
    Aggregation,
    /// The description contains no host.
    Nameless,
}

/// Hostnames of unconfigured machines, which many share.
const DEFAULT_HOST_NAMES: [&str; 3] = ["localhost", "localhost.localdomain", "(none)"];

/// Parses the owner of an adapter.
pub(super) fn parse_adapter_owner(description: &str) -> AdapterOwner {
    if description.contains("Aggregation Node") {
        return AdapterOwner::Aggregation;
    }
    // As in "MT4129 ConnectX7   Mellanox Technologies".
    if description.contains("Mellanox Technologies") || description.contains("ConnectX") {
        return AdapterOwner::Nameless;
    }
    let mut words = description.split_whitespace();
    let host =
        words.next().filter(|host| !DEFAULT_HOST_NAMES.contains(host)).and_then(parse_node_name);
    match (host, words.next(), words.next()) {
        (Some(host), device, None) => {
            AdapterOwner::Host(host, device.map(sanitize_text).filter(|device| !device.is_empty()))
        }
        _ => AdapterOwner::Nameless,
    }
}

/// The name of a switch. A managed NVIDIA switch has the description `MF0;NAME:MODEL/U1`, a board
/// of a director `MF0;NAME:MODEL/L01/U1`.
pub(super) fn parse_switch_name(description: &str) -> String {
    let description = sanitize_text(description);
    let Some((_, managed)) = description.split_once(';') else { return description };
    let Some((name, model)) = managed.rsplit_once(':').filter(|(name, _)| !name.is_empty()) else {
        return description;
    };
    match model.split('/').collect::<Vec<_>>()[..] {
        [_, board, _] => format!("{name}/{board}"),
        _ => name.to_owned(),
    }
}

/// Line rate in Mbit/s of a width and a generation, as in `4xNDR`.
pub(super) fn parse_rate(word: &str) -> Option<u64> {
    let (width, generation) = word.split_once('x')?;
    // Data rates of one lane, InfiniBand architecture specification.
    let lane = match generation {
        "SDR" => 2_500,
        "DDR" => 5_000,
        "QDR" | "FDR10" => 10_000,
        "FDR" => 14_062,
        "EDR" => 25_000,
        "HDR" => 50_000,
        "NDR" => 100_000,
        "XDR" => 200_000,
        _ => return None,
    };
    Some(lane * parse_width(width)?)
}

pub(super) fn parse_width(text: &str) -> Option<u64> {
    text.parse().ok().filter(|width| matches!(width, 1 | 2 | 4 | 8 | 12))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_name_a_host_or_none() {
        let host = |name: &str, device: Option<&str>| {
            AdapterOwner::Host(name.into(), device.map(str::to_owned))
        };
        assert_eq!(parse_adapter_owner("node0001 mlx5_0"), host("node0001", Some("mlx5_0")));
        assert_eq!(parse_adapter_owner("RMD7 ibp11s0f0"), host("RMD7", Some("ibp11s0f0")));
        assert_eq!(
            parse_adapter_owner("n1.example.org HCA-2"),
            host("n1.example.org", Some("HCA-2"))
        );
        assert_eq!(parse_adapter_owner("n1"), host("n1", None));
        assert_eq!(
            parse_adapter_owner("Mellanox Technologies Aggregation Node"),
            AdapterOwner::Aggregation
        );
        for other in [
            "MT4129 ConnectX7   Mellanox Technologies",
            "localhost HCA-3",
            "",
            "a b c",
            "-rf mlx5_0",
        ] {
            assert_eq!(parse_adapter_owner(other), AdapterOwner::Nameless, "{other}");
        }
    }

    #[test]
    fn switch_names_are_extracted_from_descriptions() {
        assert_eq!(parse_switch_name("MF0;leaf-04:MQM9701/U1"), "leaf-04");
        assert_eq!(parse_switch_name("MF0;dir-1:MCS8500/L01/U1"), "dir-1/L01");
        assert_eq!(
            parse_switch_name("Quantum Mellanox Technologies"),
            "Quantum Mellanox Technologies"
        );
        assert_eq!(parse_switch_name("MF0;:x"), "MF0;:x");
        assert_eq!(parse_switch_name("a;b"), "a;b");
    }

    #[test]
    fn rates_are_lanes_times_the_generation() {
        assert_eq!(parse_rate("4xNDR"), Some(400_000));
        assert_eq!(parse_rate("4xHDR"), Some(200_000));
        assert_eq!(parse_rate("2xHDR"), Some(100_000));
        for other in ["", "4x???", "99999999999999999999xNDR", "3xNDR", "NDR"] {
            assert_eq!(parse_rate(other), None, "{other}");
        }
    }
}
