//! An NCCL topology XML: NCCL's view of one node, or of several, where it fused the trees of a
//! multi-node NVLink clique.
//!
//! Files from `NCCL_TOPO_DUMP_FILE` contain detected values, files for `NCCL_TOPO_FILE`
//! hand-written ones; they are indistinguishable, so both count as asserted.

use std::collections::{BTreeMap, BTreeSet};

use roxmltree::{Document, Node, ParsingOptions};

use super::reader_util::{
    check_text_size, first_line, node_from_path, push_note, push_problem, quote_text, sanitize_text,
};
use model::id::NodeName;
use model::source_report::{
    ClaimBasis, JobAssumption, NicReport, SourceKind, SourceProblemKind, SourceReport,
};
use model::text_error::{LineIndex, line_column};

/// Limit for elements. NCCL itself rejects far smaller trees.
const MAX_ELEMENTS: u32 = 1_000_000;

/// Limit for NVLinks of one GPU; current GPUs have 18.
const MAX_LINKS: u32 = 1_000;

/// Limit for nets of one file: ten each on 400 fused nodes.
const MAX_NETS: usize = 4_096;

/// Whether a text is an NCCL topology.
pub fn recognises(text: &str) -> bool {
    let Some(at) = text.find("<system") else { return false };
    let only_prolog = !text[..at].split('<').skip(1).any(|tag| !tag.starts_with(['?', '!']));
    only_prolog && text[at..].starts_with("<system ") && text.contains("<cpu ")
}

/// Parses the topology. `place` is its name in messages; a path `nodes/NODE/` in it names the
/// node.
pub fn read(place: &str, text: &str) -> SourceReport {
    read_for_node(node_from_path(place).as_ref(), place, text)
}

/// Parses the topology of this node, or of an unnamed node.
pub fn read_for_node(node: Option<&NodeName>, place: &str, text: &str) -> SourceReport {
    let mut report = SourceReport::new(SourceKind::NcclTopology, place);
    if !check_text_size(&mut report, text) {
        return report;
    }
    let text = text.trim_start_matches('\u{feff}');
    // No DTD, so entities cannot expand; the limit counts elements, not depth.
    let options = ParsingOptions { nodes_limit: MAX_ELEMENTS, ..ParsingOptions::default() };
    let document = match Document::parse_with_options(text, options) {
        Ok(document) => document,
        Err(error) => {
            let (line, column) = error_position(text, &error);
            let at = format!("{place}:{line}:{column}");
            push_problem(&mut report, SourceProblemKind::Malformed, at, first_line(&error));
            return report;
        }
    };
    let root = document.root_element();
    let mut file = NcclTopologyReader { report: &mut report, lines: LineIndex::new(text) };
    if !root.has_tag_name("system") {
        let message = format!(
            "<{}>, expected <system> as NCCL_TOPO_DUMP_FILE writes it",
            sanitize_text(root.tag_name().name())
        );
        file.push_problem(&root, SourceProblemKind::Unsupported, message);
        return report;
    }
    if root.attribute("version").is_some_and(|version| version != "1") {
        let message = format!(
            "version {}, expected 1",
            quote_text(root.attribute("version").unwrap_or_default())
        );
        file.push_problem(&root, SourceProblemKind::Unsupported, message);
    }
    let hosts = read_hosts(&mut file, &root);
    add_claims(&mut report, node, &hosts);
    report
}

/// Line and column of an error. For a truncated text the parser reports the beginning, which is
/// not helpful.
fn error_position(text: &str, error: &roxmltree::Error) -> (usize, usize) {
    use roxmltree::Error::{NoRootNode, UnclosedRootNode, UnexpectedEndOfStream};
    if matches!(error, NoRootNode | UnclosedRootNode | UnexpectedEndOfStream) {
        return line_column(text, text.len());
    }
    let at = error.pos();
    (at.row as usize, at.col as usize)
}

/// Parses the file and reports problems by line.
struct NcclTopologyReader<'s> {
    report: &'s mut SourceReport,
    lines: LineIndex,
}

impl NcclTopologyReader<'_> {
    /// The line of an element, as a location.
    fn location(&self, element: &Node<'_, '_>) -> String {
        format!("{}:{}", self.report.source.place, self.lines.line_at(element.range().start))
    }

    /// Adds a problem of an element.
    fn push_problem(
        &mut self,
        element: &Node<'_, '_>,
        kind: SourceProblemKind,
        message: impl Into<String>,
    ) {
        let at = self.location(element);
        push_problem(self.report, kind, at, message);
    }
}

/// The content of the file for one machine.
#[derive(Default)]
struct NcclTopologyHost {
    /// NVLinks per GPU, by GPU index.
    links: BTreeMap<u32, u32>,
    sm: BTreeSet<String>,
    nics: Vec<NicReport>,
    marks: BTreeMap<String, String>,
}

/// The machines in the file, by NCCL's host hash (absent in older files).
fn read_hosts(
    file: &mut NcclTopologyReader<'_>,
    root: &Node<'_, '_>,
) -> BTreeMap<String, NcclTopologyHost> {
    let mut hosts: BTreeMap<String, NcclTopologyHost> = BTreeMap::new();
    let (mut nets, mut skipped) = (0, 0);
    for cpu in root.children().filter(|child| child.has_tag_name("cpu")) {
        let hash = sanitize_text(cpu.attribute("host_hash").unwrap_or_default());
        let host = hosts.entry(hash).or_default();
        for element in cpu.descendants() {
            match element.tag_name().name() {
                "gpu" => read_gpu(file, host, &element),
                "net" if nets < MAX_NETS => {
                    nets += 1;
                    read_net(file, host, &element);
                }
                "net" => skipped += 1,
                _ => {}
            }
        }
    }
    if 0 < skipped {
        let message = format!("{skipped} nets beyond {MAX_NETS} are ignored");
        file.push_problem(root, SourceProblemKind::Unsupported, message);
    }
    if hosts.values().all(|host| host.links.is_empty()) {
        file.push_problem(root, SourceProblemKind::Incomplete, "no GPU, expected <gpu> elements");
    }
    hosts
}

fn read_gpu(
    file: &mut NcclTopologyReader<'_>,
    host: &mut NcclTopologyHost,
    element: &Node<'_, '_>,
) {
    let Some(device) = read_number(file, element, "dev", 4_096) else { return };
    let mut links = 0u32;
    for link in element.children().filter(|child| child.has_tag_name("nvlink")) {
        links = links.saturating_add(read_number(file, &link, "count", MAX_LINKS).unwrap_or(0));
    }
    if host.links.insert(device, links).is_some() {
        let message = format!("GPU {device} occurs twice on one host");
        file.push_problem(element, SourceProblemKind::Contradictory, message);
    }
    host.sm.extend(element.attribute("sm").map(sanitize_text));
}

/// A required numeric attribute of an element.
fn read_number(
    file: &mut NcclTopologyReader<'_>,
    element: &Node<'_, '_>,
    name: &str,
    most: u32,
) -> Option<u32> {
    let written = element.attribute(name).unwrap_or_default();
    let number = written.parse().ok().filter(|number| *number <= most);
    if number.is_none() {
        let tag = element.tag_name().name();
        let message =
            format!("<{tag}> with {name}={}, expected a number up to {most}", quote_text(written));
        file.push_problem(element, SourceProblemKind::Malformed, message);
    }
    number
}

fn read_net(
    file: &mut NcclTopologyReader<'_>,
    host: &mut NcclTopologyHost,
    element: &Node<'_, '_>,
) {
    let word =
        |name: &str| element.attribute(name).map(sanitize_text).filter(|word| !word.is_empty());
    let Some(name) = word("name") else {
        file.push_problem(element, SourceProblemKind::Malformed, "<net> without a name");
        return;
    };
    let device = match word("port").as_deref() {
        None | Some("0" | "1") => name,
        Some(port) => format!("{name}:{port}"),
    };
    if host.nics.iter().any(|nic| nic.device.as_ref() == Some(&device)) {
        let message = format!("net {} occurs twice on one host", quote_text(&device));
        file.push_problem(element, SourceProblemKind::Contradictory, message);
    }
    // The GUID of the system image, not of the port: several ports share it.
    if let Some(guid) = element.attribute("guid").and_then(swap_guid_bytes) {
        host.marks.insert(format!("nccl.net.{device}.system_guid"), guid);
    }
    if let Some(plane) = word("plane") {
        host.marks.insert(format!("nccl.net.{device}.plane"), plane);
    }
    host.nics.push(NicReport {
        device: Some(device),
        rail: word("rail"),
        rate_mbit_s: word("speed").and_then(|speed| speed.parse().ok()).filter(|rate| 0 < *rate),
        basis: Some(ClaimBasis::Asserted),
        at: Some(file.location(element)),
        ..NicReport::default()
    });
}

/// A GUID in the notation of other tools. NCCL reads the eight bytes in network order as a number
/// in host order, and drops leading zeros (`ibv_device_attr` is big endian, every host with
/// NVIDIA GPUs little).
fn swap_guid_bytes(text: &str) -> Option<String> {
    let number = u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()?;
    (number != 0).then(|| format!("{:016x}", number.swap_bytes()))
}

/// `18`, or `0:18 1:17` where GPUs differ.
fn format_links_per_gpu(links: &BTreeMap<u32, u32>) -> String {
    let counts: BTreeSet<u32> = links.values().copied().collect();
    match (counts.first(), counts.len()) {
        (Some(count), 1) => count.to_string(),
        _ => {
            let each = links.iter().map(|(gpu, count)| format!("{gpu}:{count}"));
            each.collect::<Vec<_>>().join(" ")
        }
    }
}

/// Adds the claims of the file.
fn add_claims(
    report: &mut SourceReport,
    node: Option<&NodeName>,
    hosts: &BTreeMap<String, NcclTopologyHost>,
) {
    let gpus: usize = hosts.values().map(|host| host.links.len()).sum();
    let all: BTreeMap<u32, u32> =
        (0..).zip(hosts.values().flat_map(|host| host.links.values().copied())).collect();
    report.settings.insert("gpus".to_owned(), gpus.to_string());
    report.settings.insert("hosts".to_owned(), hosts.len().to_string());
    for (hash, host) in hosts {
        let counts: BTreeSet<u32> = host.links.values().copied().collect();
        if 1 < counts.len() {
            let of = if hash.is_empty() { String::new() } else { format!(" of host {hash}") };
            push_note(
                report,
                format!("GPUs{of} differ in NVLinks: {}", format_links_per_gpu(&host.links)),
            );
        }
    }
    if 0 < gpus {
        let links = if hosts.len() == 1 {
            hosts.values().next().map(|host| format_links_per_gpu(&host.links)).unwrap_or_default()
        } else {
            format_links_per_gpu(&all)
        };
        report.settings.insert("nvlinks per GPU".to_owned(), links);
    }
    match (hosts.len(), node) {
        (0, _) => {}
        (1, Some(node)) => {
            let Some(host) = hosts.values().next() else { return };
            let entry = report.node_mut(node);
            entry.gpus = u32::try_from(host.links.len()).ok().filter(|gpus| 0 < *gpus);
            entry.nics.clone_from(&host.nics);
            entry.marks.clone_from(&host.marks);
            if !host.links.is_empty() {
                entry.marks.insert("nccl.nvlinks".to_owned(), format_links_per_gpu(&host.links));
            }
            if !host.sm.is_empty() {
                let sm: Vec<&str> = host.sm.iter().map(String::as_str).collect();
                entry.marks.insert("nccl.sm".to_owned(), sm.join(","));
            }
        }
        (1, None) => {
            let message = "the topology of one node, without its name; expected the file under \
                           nodes/NODE/";
            push_problem(
                report,
                SourceProblemKind::Incomplete,
                report.source.place.clone(),
                message,
            );
        }
        (count, _) => {
            report.notes.push(format!(
                "the trees of {count} hosts are fused; the file identifies hosts by a hash, not \
                by name"
            ));
            report.beliefs.push(JobAssumption {
                subject: "NCCL topology".to_owned(),
                ranks_per_domain: u32::try_from(gpus).ok().filter(|gpus| 0 < *gpus),
                multi_node_nvlink: Some(true),
                nodes: Vec::new(),
                at: Some(report.source.place.clone()),
                text: format!("the trees of {count} hosts with {gpus} GPUs are fused into one"),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A topology of one or more hosts with two GPUs each.
    fn topology(hosts: &[&str]) -> String {
        let host = |hash: &&str| {
            let hash =
                if hash.is_empty() { String::new() } else { format!(" host_hash=\"{hash}\"") };
            format!(
                "  <cpu numaid=\"0\"{hash} affinity=\"ff\" arch=\"x86_64\">\n\
                 <pci busid=\"0000:18:00.0\"><gpu dev=\"0\" sm=\"90\" rank=\"0\" gdr=\"1\">\
                 <nvlink target=\"0000:05:00.0\" count=\"10\" tclass=\"0x068000\"/>\
                 <nvlink target=\"0000:06:00.0\" count=\"8\" tclass=\"0x068000\"/></gpu></pci>\n\
                 <pci busid=\"0000:2a:00.0\"><gpu dev=\"1\" sm=\"90\" rank=\"1\" gdr=\"1\">\
                 <nvlink target=\"0000:05:00.0\" count=\"18\" tclass=\"0x068000\"/></gpu></pci>\n\
                 <pci busid=\"0000:19:00.0\"><nic><net name=\"mlx5_0\" dev=\"0\" speed=\"400000\" \
                 port=\"1\" guid=\"0xa87cb10003e1a258\" rail=\"3\" plane=\"1\" maxconn=\"131072\"/>\
                 <net name=\"mlx5_1\" dev=\"1\" speed=\"-1\" port=\"2\" guid=\"0x0\"/></nic></pci>\n\
                 </cpu>\n"
            )
        };
        let cpus: String = hosts.iter().map(host).collect();
        format!("<system version=\"1\">\n{cpus}</system>\n")
    }

    fn problem_lines(report: &SourceReport) -> Vec<String> {
        report.problems.iter().map(|p| format!("{:?} {p}", p.kind)).collect()
    }

    #[test]
    fn a_topology_lists_the_devices_of_its_node() {
        let text = topology(&["0x1f"]);
        assert!(
            recognises(&text) && recognises(&format!("<?xml version=\"1.0\"?>\n<!-- x -->{text}"))
        );
        let report = read("run/nodes/n1/topo.xml", &text);
        assert!(report.problems.is_empty() && report.beliefs.is_empty(), "{report:?}");
        let node = &report.nodes[&"n1".into()];
        assert_eq!((node.gpus, node.marks["nccl.nvlinks"].as_str()), (Some(2), "18"));
        let [first, second] = node.nics.as_slice() else { panic!("{node:?}") };
        assert_eq!((first.device.as_deref(), first.rail.as_deref()), (Some("mlx5_0"), Some("3")));
        assert_eq!(first.rate_mbit_s, Some(400_000));
        assert_eq!((second.device.as_deref(), second.rate_mbit_s), (Some("mlx5_1:2"), None));
        assert_eq!(node.marks["nccl.net.mlx5_0.plane"], "1");
        // 58:a2:e1 is one of Mellanox's prefixes; without the byte swap, none matches.
        assert_eq!(node.marks["nccl.net.mlx5_0.system_guid"], "58a2e10300b17ca8");
        assert!(!node.marks.contains_key("nccl.net.mlx5_1:2.system_guid"));
    }

    #[test]
    fn a_topology_without_a_node_is_reported_with_its_devices() {
        let report = read("topo.xml", &topology(&[""]));
        assert!(report.nodes.is_empty());
        assert!(problem_lines(&report)[0].starts_with("Incomplete topo.xml: "), "{report:?}");
        assert_eq!(
            (report.settings["gpus"].as_str(), report.settings["nvlinks per GPU"].as_str()),
            ("2", "18")
        );
        assert_eq!(read_for_node(Some(&"n2".into()), "topo.xml", &topology(&[""])).nodes.len(), 1);
    }

    #[test]
    fn fused_trees_are_a_belief_in_multi_node_nvlink() {
        let report = read("nodes/n1/topo.xml", &topology(&["0x1f", "0x2f"]));
        assert!(report.nodes.is_empty() && report.problems.is_empty(), "{report:?}");
        let [belief] = report.beliefs.as_slice() else { panic!("{report:?}") };
        assert_eq!((belief.ranks_per_domain, belief.multi_node_nvlink), (Some(4), Some(true)));
    }

    #[test]
    fn a_missing_link_shows_in_its_gpu() {
        let report = read("nodes/n1/t", &topology(&["1"]).replace("count=\"8\"", "count=\"7\""));
        assert_eq!(report.nodes[&"n1".into()].marks["nccl.nvlinks"], "0:17 1:18");
        assert_eq!(report.notes, ["GPUs of host 1 differ in NVLinks: 0:17 1:18"]);
    }

    #[test]
    fn mistakes_are_reported_with_their_position() {
        let good = topology(&["1"]);
        let cut = problem_lines(&read("t", &good[..200]));
        assert!(cut[0].starts_with("Malformed t:3:"), "{cut:?}");
        let of = |text: &str| problem_lines(&read("nodes/n1/t", text));
        let twice = of(&good.replace("gpu dev=\"1\"", "gpu dev=\"0\""));
        assert!(twice[0].starts_with("Contradictory nodes/n1/t:4:"), "{twice:?}");
        let count = of(&good.replace("\"18\"", "\"many\""));
        assert!(count[0].contains("count=\"many\""), "{count:?}");
        assert!(of("<graphs version=\"1\"/>")[0].starts_with("Unsupported"));
        assert!(of("<system version=\"2\"/>")[0].contains("expected 1"));
        assert!(
            of(&good
                .replace("name=\"mlx5_1\"", "name=\"mlx5_0\"")
                .replace("\"2\" guid", "\"1\" guid"))[0]
                .contains("occurs twice")
        );
    }

    #[test]
    fn entity_bombs_and_deep_nesting_are_rejected() {
        let bomb = "<!DOCTYPE s [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;&a;\">]>\n\
                    <system version=\"1\"><cpu x=\"&b;\"/></system>";
        assert!(
            problem_lines(&read("t", bomb))[0].starts_with("Malformed"),
            "{:?}",
            read("t", bomb)
        );
        let tower = format!("<system version=\"1\"><cpu >{}", "<pci>".repeat(300_000));
        assert!(problem_lines(&read("t", &tower))[0].starts_with("Malformed"));
        let wide =
            format!("<system version=\"1\"><cpu >{}</cpu></system>", "<p/>".repeat(1_100_000));
        assert!(problem_lines(&read("t", &wide))[0].starts_with("Malformed"));
        assert!(
            !recognises("") && !recognises("<html><system x=\"<cpu \">") && !recognises("<system")
        );
    }
}
