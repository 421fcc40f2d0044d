//! IMEX (memory export between nodes): the domain as `nvidia-imex-ctl` reports it, and the channels
//! that the kernel exposes.

use std::path::Path;

use super::sysfs;
use model::node_facts::{ImexFacts, ImexPeer};
use model::tool_facts::ImexStatus;
use readers::outputs;

/// Device name of the channels in `/proc/devices` and below `/dev`.
const CHANNELS: &str = "nvidia-caps-imex-channels";

/// Facts from the kernel; `None` on a machine without NVIDIA devices.
pub(super) fn read_channels(root: &Path) -> Option<ImexFacts> {
    let devices = sysfs::read_text(&root.join("proc/devices"));
    let offered = devices.as_ref().map(|text| text.contains(CHANNELS));
    let folder = root.join("dev").join(CHANNELS);
    let channels = sysfs::list_names(&folder).map(|names| {
        let numbers = names.iter().filter_map(|name| name.strip_prefix("channel")?.parse().ok());
        let mut numbers: Vec<u32> = numbers.collect();
        numbers.sort_unstable();
        numbers
    });
    if channels.is_none() && !devices.is_some_and(|text| text.contains("nvidia")) {
        return None;
    }
    Some(ImexFacts { channels_offered: offered, channels, ..ImexFacts::default() })
}

/// Adds the output of `nvidia-imex-ctl -N -j`, or returns why it is unusable.
pub(super) fn add_imex_domain(output: &[u8], facts: &mut Option<ImexFacts>) -> Result<(), String> {
    let parsed = outputs::parse_output(output);
    let Some(ImexStatus { status, nodes, .. }) = parsed.facts.imex else {
        let why = parsed.problems.first().map(|problem| problem.detail.clone());
        return Err(why.unwrap_or_else(|| "it names no domain".to_owned()));
    };
    let facts = facts.get_or_insert_with(ImexFacts::default);
    facts.domain_state = status;
    facts.nodes = nodes
        .into_iter()
        .map(|node| ImexPeer {
            host: node.host_name.or(node.host).unwrap_or_else(|| format!("node {}", node.index)),
            state: node.status,
        })
        .collect();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_counted_where_the_kernel_offers_them() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(read_channels(folder.path()), None);
        std::fs::create_dir_all(folder.path().join("proc")).expect("a folder");
        let devices = "Character devices:\n195 nvidia\n234 nvidia-caps-imex-channels\n";
        std::fs::write(folder.path().join("proc/devices"), devices).expect("written");
        let found = read_channels(folder.path()).expect("of NVIDIA");
        assert_eq!((found.channels_offered, found.channels), (Some(true), None));
        let dev = folder.path().join("dev").join(CHANNELS);
        std::fs::create_dir_all(&dev).expect("a folder");
        for name in ["channel10", "channel2", "other"] {
            std::fs::write(dev.join(name), "").expect("written");
        }
        let found = read_channels(folder.path()).expect("of NVIDIA");
        assert_eq!(found.channels, Some(vec![2, 10]));
    }

    #[test]
    fn the_domain_is_parsed_from_the_output_of_nvidia_imex_ctl() {
        let output = br#"{"nodes":{"0":{"status":"READY","host":"10.0.0.1","hostName":"n1",
            "connections":{"0":{"host":"10.0.0.1","status":"CONNECTED","changed":true}},
            "changed":true,"version":"570.86.15"}},"timestamp":"1/1/2026 00:00:00.000","status":"UP"}"#;
        let mut facts = None;
        add_imex_domain(output, &mut facts).expect("a domain");
        let facts = facts.expect("facts");
        assert_eq!(facts.domain_state.as_deref(), Some("UP"));
        assert_eq!(
            (facts.nodes[0].host.as_str(), facts.nodes[0].state.as_deref()),
            ("n1", Some("READY"))
        );
        assert!(add_imex_domain(b"imex is not running", &mut None).is_err());
    }
}
