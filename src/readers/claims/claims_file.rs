//! `claims.toml`: an operator's claims about the fabric.
//!
//! Text in, [`Claims`] out, or one error with line and column. The caller opens the file.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, de};
use toml::Spanned;

use super::single_node_domains;
use model::claims::{ClaimedDomain, ClaimedLeaf, ClaimedRail, Claims};
use model::id::{DomainName, NodeName};
use model::source_report::{NodeGroup, NodeGroupKind, SourceKind, SourceProblemKind, SourceReport};
use model::text_error::TextError;
use model::{hostlist, limits};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClaimsFile {
    #[serde(default)]
    domain: Vec<ClaimsFileDomain>,
    #[serde(default)]
    leaf: Vec<ClaimsFileLeaf>,
    #[serde(default)]
    rail: Vec<ClaimsFileRail>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClaimsFileDomain {
    /// Without a name, `per_node` is true.
    name: Option<Spanned<String>>,
    nodes: Spanned<HostLists>,
    /// Each node is a domain of its own, named after the node.
    per_node: Option<Spanned<bool>>,
    platform: Option<String>,
    #[serde(default, deserialize_with = "limits::deserialize_gpus")]
    gpus_per_node: Option<u32>,
    nic: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClaimsFileLeaf {
    name: Spanned<String>,
    nodes: Spanned<HostLists>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClaimsFileRail {
    name: Spanned<String>,
    device: Option<Spanned<String>>,
    network: Option<Spanned<String>>,
    rdma: Option<Spanned<String>>,
}

/// A host list, or a list of them.
#[derive(Debug)]
enum HostLists {
    One(String),
    Many(Vec<Spanned<String>>),
}

impl<'de> Deserialize<'de> for HostLists {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HostListsVisitor;
        impl<'de> de::Visitor<'de> for HostListsVisitor {
            type Value = HostLists;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a host list such as \"node[0001-0018]\", or a list of node names")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<HostLists, E> {
                Ok(HostLists::One(text.to_owned()))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<HostLists, A::Error> {
                let mut lists = Vec::new();
                while let Some(list) = seq.next_element()? {
                    lists.push(list);
                }
                Ok(HostLists::Many(lists))
            }
        }
        deserializer.deserialize_any(HostListsVisitor)
    }
}

/// Whether a text is a claims file.
pub fn recognises(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim);
    lines.any(|line| line.starts_with("[[domain]]"))
}

/// Parses a claims file. One mistake makes the whole file unusable: a hand-written file is
/// accepted completely or not at all.
pub fn read(place: &str, text: &str) -> SourceReport {
    match parse(place, text) {
        Ok(claims) => to_report(place, &claims),
        Err(error) => {
            let mut report = SourceReport::new(SourceKind::ClaimsFile, place);
            let at = format!("{}:{}:{}", error.file, error.line, error.column);
            report.push_problem(SourceProblemKind::Malformed, at, error.message);
            report
        }
    }
}

/// Parses the text of a claims file. `file` is its name in messages.
pub fn parse(file: &str, text: &str) -> Result<Claims, TextError> {
    let read: ClaimsFile =
        toml::from_str(text).map_err(|e| TextError::from_toml(file, text, &e))?;
    let at = |offset: usize, message: String| TextError::new(file, text, offset, message);
    if read.domain.is_empty() {
        return Err(at(0, "no [[domain]] is claimed".to_owned()));
    }
    let mut claims = Claims::default();
    let mut domains = UniqueNames::new("domain", text);
    let mut owners: BTreeMap<NodeName, DomainName> = BTreeMap::new();
    for domain in read.domain {
        let nodes_at = domain.nodes.span().start;
        let per_node = domain.per_node.as_ref().is_some_and(|per_node_key| *per_node_key.get_ref());
        let name = match (&domain.name, per_node) {
            (Some(name), false) => domains.add(name).map_err(|(o, m)| at(o, m))?,
            (None, true) => String::new(),
            (Some(name), true) => {
                let why = "a domain has a name or per_node = true, which names each domain after \
                    its node";
                return Err(at(name.span().start, why.to_owned()));
            }
            (None, false) => {
                let why = "a domain has a name, or per_node = true where each node is one";
                return Err(at(nodes_at, why.to_owned()));
            }
        };
        let mut nodes = Vec::new();
        for (offset, node) in expand_nodes(text, &domain.nodes).map_err(|(o, m)| at(o, m))? {
            let name = if per_node { node.as_str() } else { &name };
            let name = DomainName::from(name);
            if let Some(owner) = owners.insert(node.clone(), name.clone()) {
                let message = if owner == name {
                    format!("node {node} is in domain {name} twice")
                } else {
                    format!("node {node} is in two domains, {owner} and {name}")
                };
                return Err(at(offset, message));
            }
            nodes.push(node);
        }
        if nodes.is_empty() {
            return Err(at(nodes_at, format!("domain {name} has no nodes")));
        }
        let claimed = ClaimedDomain {
            name: DomainName::from(name),
            nodes,
            platform: domain.platform,
            // 0 means that the nodes have no GPUs: only the network is measured.
            gpus_per_node: domain.gpus_per_node,
            nic: domain.nic,
        };
        let claimed = if per_node {
            single_node_domains::split_domain(&claimed, |_| false)
        } else {
            vec![claimed]
        };
        for one in claimed {
            let name = Spanned::new(nodes_at..nodes_at, one.name.to_string());
            if per_node {
                domains.add(&name).map_err(|(o, m)| at(o, m))?;
            }
            claims.domains.push(one);
        }
    }
    claims.leaves = to_claimed_leaves(text, read.leaf, &owners).map_err(|(o, m)| at(o, m))?;
    claims.rails = to_claimed_rails(text, read.rail).map_err(|(o, m)| at(o, m))?;
    Ok(claims)
}

/// The claims of a file as a source report, to be compared with other sources. `place` is its
/// name.
pub fn to_report(place: &str, claims: &Claims) -> SourceReport {
    let mut report = SourceReport::new(SourceKind::ClaimsFile, place);
    for domain in &claims.domains {
        let mut group = NodeGroup::new(
            NodeGroupKind::Domain,
            "domain",
            domain.name.as_str(),
            domain.nodes.clone(),
        );
        group.platform.clone_from(&domain.platform);
        group.gpus_per_node = domain.gpus_per_node;
        group.nic.clone_from(&domain.nic);
        report.groups.push(group);
    }
    for leaf in &claims.leaves {
        let group =
            NodeGroup::new(NodeGroupKind::Leaf, "leaf", leaf.name.as_str(), leaf.nodes.clone());
        report.groups.push(group);
    }
    report.rails.clone_from(&claims.rails);
    report
}

/// A mistake: its offset, and the message.
type ClaimsFileMistake = (usize, String);

/// Checks that the names of one kind are unique.
struct UniqueNames<'t> {
    kind: &'static str,
    text: &'t str,
    known: BTreeMap<String, usize>,
}

impl<'t> UniqueNames<'t> {
    fn new(kind: &'static str, text: &'t str) -> Self {
        Self { kind, text, known: BTreeMap::new() }
    }

    fn add(&mut self, name: &Spanned<String>) -> Result<String, ClaimsFileMistake> {
        let (offset, kind) = (name.span().start, self.kind);
        let name = name.get_ref();
        if !is_plain_name(name) {
            let message = format!("{kind} name {name:?}: expected letters, digits, '.', '_', '-'");
            return Err((offset, message));
        }
        if let Some(first) = self.known.insert(name.clone(), offset) {
            let (line, _) = model::text_error::line_column(self.text, first);
            return Err((offset, format!("{kind} {name} is already claimed on line {line}")));
        }
        Ok(name.clone())
    }
}

fn to_claimed_leaves(
    text: &str,
    read: Vec<ClaimsFileLeaf>,
    domains: &BTreeMap<NodeName, DomainName>,
) -> Result<Vec<ClaimedLeaf>, ClaimsFileMistake> {
    let mut names = UniqueNames::new("leaf", text);
    let mut owners: BTreeMap<NodeName, String> = BTreeMap::new();
    let mut leaves = Vec::new();
    for leaf in read {
        let name = names.add(&leaf.name)?;
        let mut nodes = Vec::new();
        for (offset, node) in expand_nodes(text, &leaf.nodes)? {
            if !domains.contains_key(&node) {
                let message = format!("leaf {name}: no domain contains node {node}");
                return Err((offset, message));
            }
            if let Some(owner) = owners.insert(node.clone(), name.clone()) {
                let message = if owner == name {
                    format!("node {node} is in leaf {name} twice")
                } else {
                    format!("node {node} is in two leaves, {owner} and {name}")
                };
                return Err((offset, message));
            }
            nodes.push(node);
        }
        if nodes.is_empty() {
            return Err((leaf.nodes.span().start, format!("leaf {name} has no nodes")));
        }
        leaves.push(ClaimedLeaf { name, nodes });
    }
    Ok(leaves)
}

fn to_claimed_rails(
    text: &str,
    read: Vec<ClaimsFileRail>,
) -> Result<Vec<ClaimedRail>, ClaimsFileMistake> {
    let mut names = UniqueNames::new("rail", text);
    let mut rails = Vec::new();
    for rail in read {
        let at = rail.name.span().start;
        let name = names.add(&rail.name)?;
        if rail.device.is_none() && rail.network.is_none() && rail.rdma.is_none() {
            let message = format!("rail {name}: expected at least one of device, network and rdma");
            return Err((at, message));
        }
        for (key, device) in [("device", &rail.device), ("rdma", &rail.rdma)] {
            // They become arguments of commands on every node.
            if let Some(device) = device.as_ref().filter(|device| !is_device(device.get_ref())) {
                let message = format!("{key} {:?}: expected a device name", device.get_ref());
                return Err((device.span().start, message));
            }
        }
        if let Some(network) = rail.network.as_ref().filter(|n| !is_network(n.get_ref())) {
            let message = format!(
                "network {:?}: expected an address and a length, such as \"10.7.0.0/16\"",
                network.get_ref()
            );
            return Err((network.span().start, message));
        }
        rails.push(ClaimedRail {
            name,
            device: rail.device.map(Spanned::into_inner),
            network: rail.network.map(Spanned::into_inner),
            rdma: rail.rdma.map(Spanned::into_inner),
        });
    }
    Ok(rails)
}

/// Whether this is a valid name of a network or RDMA device, VLANs and bonds included.
fn is_device(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':' | '@'))
}

/// Whether this is a network in CIDR notation.
fn is_network(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else { return false };
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let is_number = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
    is_number && length.parse::<u8>().is_ok_and(|length| length <= longest)
}

/// The nodes of host lists, each with the offset of its list.
fn expand_nodes(
    text: &str,
    nodes: &Spanned<HostLists>,
) -> Result<Vec<(usize, NodeName)>, ClaimsFileMistake> {
    let mut all = Vec::new();
    for (offset, list) in host_lists(nodes) {
        let names = hostlist::expand(list).map_err(|error| {
            // The offset within the list is exact only if the file contains the text literally,
            // without escapes.
            let inside = text[offset..].get(1..=list.len()) == Some(list);
            let place = if inside { offset + 1 + error.offset } else { offset };
            (place, format!("nodes {list:?}: {error}"))
        })?;
        all.extend(names.into_iter().map(|node| (offset, NodeName::from(node))));
    }
    Ok(all)
}

/// The host lists with their offsets.
fn host_lists(nodes: &Spanned<HostLists>) -> Vec<(usize, &str)> {
    match nodes.get_ref() {
        HostLists::One(list) => vec![(nodes.span().start, list)],
        HostLists::Many(lists) => {
            lists.iter().map(|l| (l.span().start, l.get_ref().as_str())).collect()
        }
    }
}

/// Whether a name is safe as a folder name and a column header: it is used unchanged.
fn is_plain_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(text: &str) -> String {
        parse("c.toml", text).expect_err("a bad file").to_string()
    }

    #[test]
    fn domains_keep_their_order_and_all_fields() {
        let claims = parse(
            "c.toml",
            "[[domain]]\nname = \"b2\"\nnodes = \"n[03-04]\"\nplatform = \"hgx-h100\"\n\
             gpus_per_node = 8\nnic = \"ndr400\"\n[[domain]]\nname = \"b1\"\nnodes = [\"n01\", \"n02\"]\n",
        )
        .expect("good");
        let [first, second] = claims.domains.as_slice() else { panic!("{claims:?}") };
        assert_eq!((first.name.as_str(), first.gpus_per_node), ("b2", Some(8)));
        assert_eq!(first.nodes, [NodeName::from("n03"), NodeName::from("n04")]);
        assert_eq!(
            (first.platform.as_deref(), first.nic.as_deref()),
            (Some("hgx-h100"), Some("ndr400"))
        );
        assert_eq!(second.nodes, [NodeName::from("n01"), NodeName::from("n02")]);
    }

    #[test]
    fn per_node_makes_a_domain_of_every_node_with_its_name() {
        let text = "[[domain]]\nnodes = \"hgx[001-100]\"\nper_node = true\nplatform = \"hgx-h100\"\n\
                    [[domain]]\nname = \"rack\"\nnodes = \"n[1-2]\"\nper_node = false\n";
        let claims = parse("c.toml", text).expect("good");
        assert_eq!(claims.domains.len(), 101);
        for domain in &claims.domains[..100] {
            assert_eq!(domain.nodes, [NodeName::from(domain.name.as_str())]);
            assert_eq!(domain.platform.as_deref(), Some("hgx-h100"));
        }
        assert_eq!(claims.domains[99].name.as_str(), "hgx100");
        assert_eq!(claims.domains[100].nodes.len(), 2);
        let with = |more: &str| complaint(&format!("[[domain]]\nnodes = \"n[1-2]\"\n{more}"));
        assert!(with("").contains("per_node = true"));
        assert!(with("name = \"a\"\nper_node = true\n").contains("names each domain"));
        let taken = "per_node = true\n[[domain]]\nname = \"n2\"\nnodes = \"m1\"\n";
        assert!(with(taken).contains("n2 is already claimed"), "{}", with(taken));
    }

    #[test]
    fn a_typo_in_a_key_is_reported_with_its_position() {
        let error = complaint("[[domain]]\nname = \"a\"\nnodes = \"n1\"\nplatfrom = \"x\"\n");
        assert!(error.starts_with("c.toml:4:1: ") && error.contains("platfrom"), "{error}");
    }

    #[test]
    fn contradictions_are_reported_with_their_position() {
        let twice =
            "[[domain]]\nname = \"a\"\nnodes = \"n1\"\n[[domain]]\nname = \"a\"\nnodes = \"n2\"\n";
        assert_eq!(complaint(twice), "c.toml:5:8: domain a is already claimed on line 2");
        let shared = "[[domain]]\nname = \"a\"\nnodes = \"n[1-3]\"\n[[domain]]\nname = \"b\"\nnodes = [\"n5\", \"n3\"]\n";
        assert_eq!(complaint(shared), "c.toml:6:16: node n3 is in two domains, a and b");
        assert!(
            complaint("[[domain]]\nname = \"a\"\nnodes = [\"n1\", \"n1\"]\n").contains("twice")
        );
    }

    #[test]
    fn a_bad_host_list_is_reported_with_its_character() {
        let error = complaint("[[domain]]\nname = \"a\"\nnodes = \"n[1-3\"\n");
        assert_eq!(error, "c.toml:3:11: nodes \"n[1-3\": character 2: this [ is never closed");
    }

    #[test]
    fn a_file_without_claims_is_an_error() {
        assert!(complaint("").contains("no [[domain]]"));
        assert!(complaint("[[domain]]\nname = \"a\"\nnodes = []\n").contains("has no nodes"));
        assert!(complaint("[[domain]]\nname = \"a\"\nnodes = \"\"\n").contains("empty"));
        assert!(complaint("[[domain]]\nname = \"a\"\nnodes = 3\n").contains("host list"));
        assert!(complaint("[[domain]]\nname = \"../x\"\nnodes = \"n\"\n").contains("domain name"));
    }

    const NODES: &str = "[[domain]]\nname = \"a\"\nnodes = \"n[1-4]\"\n";

    #[test]
    fn leaves_and_rails_are_read_with_all_fields() {
        let more = "gpus_per_node = 0\n[[leaf]]\nname = \"l1\"\nnodes = [\"n[1-2]\", \"n4\"]\n\
            [[rail]]\nname = \"rail0\"\ndevice = \"eth1.7\"\nnetwork = \"fd00:7::/64\"\n\
            [[rail]]\nname = \"rail1\"\nrdma = \"mlx5_0\"\n";
        let claims = parse("c.toml", &format!("{NODES}{more}")).expect("good");
        assert_eq!(claims.domains[0].gpus_per_node, Some(0));
        let leaf = &claims.leaves[0];
        assert_eq!((leaf.name.as_str(), leaf.nodes.len()), ("l1", 3));
        let [first, second] = claims.rails.as_slice() else { panic!("{claims:?}") };
        assert_eq!(first.device.as_deref(), Some("eth1.7"));
        assert_eq!(first.network.as_deref(), Some("fd00:7::/64"));
        assert_eq!((second.device.as_deref(), second.rdma.as_deref()), (None, Some("mlx5_0")));
    }

    #[test]
    fn mistakes_of_leaves_are_reported_with_their_position() {
        let with = |leaves: &str| complaint(&format!("{NODES}{leaves}"));
        let leaf =
            |name: &str, nodes: &str| format!("[[leaf]]\nname = {name:?}\nnodes = {nodes}\n");
        assert_eq!(
            with(&leaf("l", "[\"n1\", \"n9\"]")),
            "c.toml:6:16: leaf l: no domain contains node n9"
        );
        let two = leaf("l", "\"n[1-2]\"") + &leaf("m", "\"n2\"");
        assert_eq!(with(&two), "c.toml:9:9: node n2 is in two leaves, l and m");
        let same = leaf("l", "\"n1\"") + &leaf("l", "\"n2\"");
        assert_eq!(with(&same), "c.toml:8:8: leaf l is already claimed on line 5");
        assert!(with(&leaf("l", "[\"n1\", \"n1\"]")).contains("twice"));
        assert!(with(&leaf("l", "[]")).contains("has no nodes"));
        assert!(with(&leaf("a b", "\"n1\"")).starts_with("c.toml:5:8: leaf name"));
        assert!(with(&leaf("l", "\"n[1-2\"")).starts_with("c.toml:6:11: nodes"));
    }

    #[test]
    fn mistakes_of_rails_are_reported_with_their_position() {
        let with = |rails: &str| complaint(&format!("{NODES}{rails}"));
        let bare = with("[[rail]]\nname = \"r\"\n");
        assert!(bare.starts_with("c.toml:5:8: rail r: expected at least one of"), "{bare}");
        for network in ["10.0.0.0", "10.0.0.0/33", "10.0.0/8", "x/8", "10.0.0.0/", "10.0.0.0/+8"] {
            let error = with(&format!("[[rail]]\nname = \"r\"\nnetwork = {network:?}\n"));
            assert!(error.starts_with("c.toml:6:11: network"), "{error}");
        }
        let error = with("[[rail]]\nname = \"r\"\ndevice = \"-x; y\"\n");
        assert!(error.starts_with("c.toml:6:10: device"), "{error}");
        let rail = "[[rail]]\nname = \"r\"\ndevice = \"eth1\"\n";
        let twice = with(&format!("{rail}{rail}"));
        assert_eq!(twice, "c.toml:8:8: rail r is already claimed on line 5");
        assert!(with("[[rail]]\nname = \"r\"\ndevise = \"eth1\"\n").contains("devise"));
    }

    #[test]
    fn a_truncated_file_is_read_or_rejected_with_a_position() {
        let text = format!(
            "{NODES}[[leaf]]\nname = \"l\"\nnodes = [\"n[1-2]\"]\n\
             [[rail]]\nname = \"r\"\nnetwork = \"10.0.0.0/8\"\nrdma = \"mlx5_0\"\n"
        );
        for end in 0..text.len() {
            if let Err(error) = parse("c.toml", &text[..end]) {
                assert!(error.to_string().starts_with("c.toml:"), "{error}");
            }
        }
    }
}
