//! Recordings grouped by domain and node, and the platform of each domain.
//!
//! A claim assigns a node to a domain; without a claim, the recordings do. Ambiguity stays a doubt;
//! the code never guesses.

use std::collections::{BTreeMap, BTreeSet};

use super::fabric_group::pair_matrices;
use super::host_index::HostIndex;
use super::{JudgeInput, gpu_product, rail_readings};
use crate::thresholds::{NicPorts, Platform};
use model::claims::{ClaimedDomain, Claims};
use model::id::{DomainName, GpuId, NodeName};
use model::limits;
use model::parse_output::ParseOutput;
use model::tool_recording::{RecordingScope, ToolRecording};
use model::unknown_subject::UnknownSubject;
use model::verdict::UnknownEntry;

/// One domain with all its recordings.
#[derive(Debug)]
pub(super) struct DomainRecordings<'a> {
    pub(super) name: DomainName,
    /// Its claimed or recorded nodes.
    pub(super) nodes: Vec<NodeName>,
    pub(super) platform: Option<&'a Platform>,
    /// How many of its claimed nodes are excluded from this judgement.
    pub(super) left_out: usize,
    /// The class of its scale-out NICs, if it is claimed and known.
    pub(super) nic: Option<&'a Platform>,
    /// The NICs of each node, if their class and count are claimed.
    pub(super) nics: Option<NicPorts>,
    pub(super) gpus_per_node: Option<u32>,
    pub(super) per_node: BTreeMap<NodeName, Vec<&'a ToolRecording>>,
    pub(super) across_nodes: Vec<&'a ToolRecording>,
    /// Ambiguities that stay unknown.
    pub(super) doubts: Vec<UnknownEntry>,
    /// Nodes whose recorded GPUs do not belong to the platform, with the recorded product: their
    /// recordings are not judged.
    pub(super) foreign: BTreeMap<NodeName, String>,
    host_index: HostIndex<()>,
    /// Its nodes by alias (for example an address), for aliases that name exactly one node.
    aliases: BTreeMap<String, NodeName>,
}

impl DomainRecordings<'_> {
    /// Whether NVLink connects GPUs of different nodes here.
    pub(super) fn spans_nodes(&self) -> bool {
        self.platform.is_some_and(Platform::spans_nodes) && 1 < self.nodes.len()
    }

    /// Whether its claim asserts an NVLink domain shared by several nodes, including nodes that did
    /// not take part. False if NVLink ends at the node.
    pub(super) fn claims_partners(&self) -> bool {
        1 < self.nodes.len() + self.left_out && self.platform.is_none_or(Platform::spans_nodes)
    }

    /// The node that a host name means: a node of this domain if one matches, else the name itself.
    pub(super) fn node_of_host(&self, host: &str) -> NodeName {
        self.host_index.find_name(host).cloned().unwrap_or_else(|| NodeName::from(host))
    }

    /// The same for tools that print addresses (`nvidia-imex-ctl` in its text form).
    pub(super) fn node_of_address(&self, host: &str) -> NodeName {
        let alias = || self.aliases.get(host).cloned();
        let known = self.host_index.find_name(host).cloned().or_else(alias);
        known.unwrap_or_else(|| NodeName::from(host))
    }

    /// Maps ranks to GPUs from the output. If several ranks of a host report the same device (each
    /// saw only its own), they are numbered by rank.
    pub(super) fn gpus_of_ranks(&self, parsed: &ParseOutput) -> BTreeMap<u32, GpuId> {
        let mut by_host: BTreeMap<&str, Vec<(u32, u32)>> = BTreeMap::new();
        for rank in &parsed.facts.ranks {
            by_host.entry(&rank.host).or_default().push((rank.rank, rank.device));
        }
        let mut gpus = BTreeMap::new();
        for (host, mut ranks) in by_host {
            let node = self.node_of_host(host);
            ranks.sort_unstable();
            let distinct: BTreeSet<u32> = ranks.iter().map(|(_, device)| *device).collect();
            for (at, (rank, device)) in (0u32..).zip(&ranks) {
                let gpu = if distinct.len() == ranks.len() { *device } else { at };
                if limits::MAX_GPUS_PER_NODE <= gpu {
                    continue;
                }
                gpus.insert(*rank, GpuId::new(node.clone(), gpu));
            }
        }
        gpus
    }
}

/// Groups the recordings of a case by domain.
pub(super) fn group_by_domain<'a>(case: &JudgeInput<'a>) -> (Vec<DomainRecordings<'a>>, Claims) {
    let mut claims = case.claims.clone();
    let mut placed: Vec<(DomainName, Option<NodeName>, &'a ToolRecording)> = Vec::new();

    // Runs across nodes come first: they show which nodes form a domain.
    let folders: HostIndex<()> = case
        .recordings
        .iter()
        .filter_map(|r| match &r.scope {
            RecordingScope::Node(node) => Some(node),
            RecordingScope::Domain(_) | RecordingScope::Pair(..) => None,
        })
        .collect();
    let given: BTreeSet<&DomainName> = case.claims.domains.iter().map(|d| &d.name).collect();
    for recording in case.recordings {
        let RecordingScope::Domain(folder) = &recording.scope else { continue };
        // A run over the network does not show which nodes share a domain.
        if rail_readings::is_of_network(recording) {
            continue;
        }
        let name = match given.contains(folder) {
            // The claim is under test: hosts beyond it are a finding, not members.
            true => folder.clone(),
            false => place_domain(&mut claims, folder, recording, &folders),
        };
        placed.push((name, None, recording));
    }
    // The domain of every node; the first one for a node that two domains claim.
    let mut node_domains: HostIndex<DomainName> = HostIndex::default();
    for domain in &claims.domains {
        domain.nodes.iter().for_each(|node| node_domains.add(node, domain.name.clone()));
    }
    for recording in case.recordings {
        let RecordingScope::Node(folder) = &recording.scope else { continue };
        let (node, name) = match node_domains.find(folder.as_str()) {
            Some((node, name)) => (node.clone(), name.clone()),
            None => {
                (folder.clone(), add_single_node_domain(&mut claims, &mut node_domains, folder))
            }
        };
        placed.push((name, Some(node), recording));
    }

    for node in case
        .recordings
        .iter()
        .filter(|r| rail_readings::is_of_network(r))
        .flat_map(rail_readings::named_nodes)
    {
        if node_domains.find(node.as_str()).is_none() {
            add_single_node_domain(&mut claims, &mut node_domains, &node);
        }
    }

    let mut here: BTreeMap<DomainName, Vec<(Option<NodeName>, &'a ToolRecording)>> =
        BTreeMap::new();
    for (name, node, recording) in placed {
        here.entry(name).or_default().push((node, recording));
    }
    let domains = claims
        .domains
        .iter()
        .map(|claimed| {
            let here = here.get(&claimed.name).map_or(&[][..], Vec::as_slice);
            build_domain(case, claimed, here.iter().cloned())
        })
        .collect();
    (domains, claims)
}

/// Adds a domain for a node that no domain claims, and returns its name.
fn add_single_node_domain(
    claims: &mut Claims,
    node_domains: &mut HostIndex<DomainName>,
    node: &NodeName,
) -> DomainName {
    let name = DomainName::from(node.as_str());
    claims.domains.push(new_unclaimed_domain(name.clone(), vec![node.clone()]));
    node_domains.add(node, name.clone());
    name
}

fn new_unclaimed_domain(name: DomainName, nodes: Vec<NodeName>) -> ClaimedDomain {
    ClaimedDomain { name, nodes, platform: None, gpus_per_node: None, nic: None }
}

/// The domain of a recording across nodes, if no claim has its name: the domain of an earlier
/// recording, else the domain of most of its hosts, else a new one.
fn place_domain(
    claims: &mut Claims,
    folder: &DomainName,
    recording: &ToolRecording,
    folders: &HostIndex<()>,
) -> DomainName {
    // A node is named after its folder, whatever DNS suffix the tool prints.
    let named =
        |host: &str| folders.find_name(host).cloned().unwrap_or_else(|| NodeName::from(host));
    let hosts: BTreeSet<&str> =
        recording.parsed.facts.ranks.iter().map(|r| r.host.as_str()).collect();
    if let Some(known) = claims.domains.iter_mut().find(|d| d.name == *folder) {
        for host in hosts {
            if !known.nodes.iter().any(|n| n.matches_host(host)) {
                known.nodes.push(named(host));
            }
        }
        return folder.clone();
    }
    let members = |d: &ClaimedDomain| {
        hosts.iter().filter(|h| d.nodes.iter().any(|n| n.matches_host(h))).count()
    };
    let most = claims.domains.iter().max_by_key(|d| members(d));
    if let Some(most) = most.filter(|d| hosts.len() < 2 * members(d)) {
        return most.name.clone();
    }
    // A node has one domain: nodes that already have one keep it.
    let claimed: HostIndex<()> = claims.domains.iter().flat_map(|d| &d.nodes).collect();
    let free = hosts.iter().filter(|h| claimed.find_name(h).is_none());
    let nodes = free.map(|h| named(h)).collect::<BTreeSet<_>>().into_iter().collect();
    claims.domains.push(new_unclaimed_domain(folder.clone(), nodes));
    folder.clone()
}

fn build_domain<'a>(
    case: &JudgeInput<'a>,
    claimed: &ClaimedDomain,
    recordings: impl Iterator<Item = (Option<NodeName>, &'a ToolRecording)>,
) -> DomainRecordings<'a> {
    let mut own: BTreeMap<NodeName, Vec<&'a ToolRecording>> = BTreeMap::new();
    let mut across = Vec::new();
    for (node, recording) in recordings {
        match node {
            Some(node) => own.entry(node).or_default().push(recording),
            None => across.push(recording),
        }
    }
    let mut doubts = Vec::new();
    if claimed.nodes.is_empty() && across.iter().any(|r| !pair_matrices(r).is_empty()) {
        let why = "its hosts are claimed by several domains, so its pairs measure none of them";
        doubts.push(UnknownEntry {
            what: UnknownSubject::domain(&claimed.name),
            why: why.to_owned(),
        });
    }
    let set = ClaimedRecordings { claimed, per_node: &mut own, across_nodes: &mut across };
    let (platform, foreign) = resolve_platform(case, set, &mut doubts);
    let nic = claimed.nic.as_deref().and_then(|name| case.catalogue.platform(name));
    DomainRecordings {
        name: claimed.name.clone(),
        nodes: claimed.nodes.clone(),
        left_out: case.claims.left_out.get(&claimed.name).map_or(0, Vec::len),
        host_index: claimed.nodes.iter().collect(),
        aliases: collect_aliases(case.claims, claimed),
        gpus_per_node: claimed.gpus_per_node.or(platform.and_then(|p| p.gpus_per_node)),
        platform,
        nic,
        nics: claimed_nics(nic, case.claims.rails.len()),
        per_node: own,
        across_nodes: across,
        doubts,
        foreign,
    }
}

/// The nodes of a domain by alias, without aliases that several nodes share.
fn collect_aliases(claims: &Claims, claimed: &ClaimedDomain) -> BTreeMap<String, NodeName> {
    let mut by_alias: BTreeMap<&str, BTreeSet<&NodeName>> = BTreeMap::new();
    for node in &claimed.nodes {
        let aliases = claims.nodes.get(node).map(|n| n.aliases.as_slice()).unwrap_or_default();
        for alias in aliases {
            by_alias.entry(alias).or_default().insert(node);
        }
    }
    let one = |(alias, nodes): (&str, BTreeSet<&NodeName>)| {
        let node = nodes.first().filter(|_| nodes.len() == 1)?;
        Some((alias.to_owned(), (*node).clone()))
    };
    by_alias.into_iter().filter_map(one).collect()
}

/// The NICs of a node, if their class and every rail are claimed.
fn claimed_nics(class: Option<&Platform>, rails: usize) -> Option<NicPorts> {
    let count = u32::try_from(rails).ok().filter(|count| 0 < *count)?;
    Some(NicPorts { count, gigabits: class?.port_rate? * 8.0 })
}

struct ClaimedRecordings<'s, 'a> {
    claimed: &'s ClaimedDomain,
    per_node: &'s mut BTreeMap<NodeName, Vec<&'a ToolRecording>>,
    across_nodes: &'s mut Vec<&'a ToolRecording>,
}

impl<'a> ClaimedRecordings<'_, 'a> {
    fn all(&self) -> impl Iterator<Item = &'a ToolRecording> {
        self.per_node.values().flatten().chain(self.across_nodes.iter()).copied()
    }

    /// Removes recordings that name GPUs of another platform. A run that included such a GPU does
    /// not count for the others either.
    fn take_foreign(
        &mut self,
        case: &JudgeInput<'a>,
        platform: &Platform,
    ) -> BTreeMap<NodeName, String> {
        let mut foreign: BTreeMap<NodeName, String> = BTreeMap::new();
        let explain =
            |product: &str| gpu_product::explain_foreign_gpu(product, platform, case.catalogue);
        self.per_node.retain(|node, recordings| {
            let found =
                collect_product_names(recordings.iter().copied()).iter().find_map(|p| explain(p));
            let is_foreign = found.is_some();
            foreign.extend(found.map(|reason| (node.clone(), reason)));
            !is_foreign
        });
        let known: HostIndex<()> = self.claimed.nodes.iter().collect();
        self.across_nodes.retain(|recording| {
            let ranks = recording.parsed.facts.ranks.iter();
            for (host, reason) in
                ranks.filter_map(|r| Some((&r.host, explain(r.name.as_deref()?)?)))
            {
                let node = known.find_name(host).cloned().unwrap_or_else(|| host.as_str().into());
                foreign.entry(node).or_insert(reason);
            }
            !collect_product_names(std::iter::once(*recording)).iter().any(|p| explain(p).is_some())
        });
        self.per_node.retain(|node, _| !foreign.contains_key(node));
        foreign
    }
}

/// The platform that the operator named, else the claimed one, else the one of the recorded GPUs. A
/// named or claimed platform is compared with the recorded GPUs.
fn resolve_platform<'a>(
    case: &JudgeInput<'a>,
    mut set: ClaimedRecordings<'_, 'a>,
    doubts: &mut Vec<UnknownEntry>,
) -> (Option<&'a Platform>, BTreeMap<NodeName, String>) {
    let claimed = set.claimed;
    let what = UnknownSubject::domain(&claimed.name);
    let Some(name) = case.platform.or(claimed.platform.as_deref()) else {
        return (detect_platform(case, claimed, set.all(), doubts), BTreeMap::new());
    };
    let Some(platform) = case.catalogue.platform(name) else {
        let why = format!("no expectations are known for platform {name}");
        doubts.push(UnknownEntry { what, why });
        return (None, BTreeMap::new());
    };
    let measured = set.all().next().is_some();
    let foreign = set.take_foreign(case, platform);
    // If no recording is left, the platform name is wrong.
    if measured && set.all().next().is_none() && !foreign.is_empty() {
        let reasons: BTreeSet<&String> = foreign.values().collect();
        doubts.extend(
            reasons.into_iter().map(|why| UnknownEntry { what: what.clone(), why: why.clone() }),
        );
        return (None, foreign);
    }
    (Some(platform), foreign)
}

/// The platform of the recorded GPUs.
fn detect_platform<'a>(
    case: &JudgeInput<'a>,
    claimed: &ClaimedDomain,
    recordings: impl Iterator<Item = &'a ToolRecording>,
    doubts: &mut Vec<UnknownEntry>,
) -> Option<&'a Platform> {
    let products = collect_product_names(recordings);
    let what = UnknownSubject::domain(&claimed.name);
    // No GPU is claimed, so no platform applies.
    if claimed.gpus_per_node == Some(0) && products.is_empty() {
        return None;
    }
    let mut found: BTreeMap<&str, &Platform> = BTreeMap::new();
    let mut nameless = Vec::new();
    for product in &products {
        match case.catalogue.find_by_device(product, claimed.gpus_per_node) {
            Some(platform) => {
                found.insert(&platform.name, platform);
            }
            None => nameless.push(product.clone()),
        }
    }
    let why = match (found.len(), nameless.is_empty()) {
        (1, true) => return found.into_values().next(),
        (0, true) => "no output names its GPUs; set the platform with --platform or in claims.toml"
            .to_owned(),
        (0, false) => format!("no expectations are known for {}", nameless.join(", ")),
        (_, true) => format!(
            "GPUs of several platforms: {}",
            found.into_keys().collect::<Vec<_>>().join(", ")
        ),
        (_, false) => format!("GPUs of several kinds, among them {}", nameless.join(", ")),
    };
    doubts.push(UnknownEntry { what, why });
    None
}

/// Product names of all GPUs that the recordings list.
fn collect_product_names<'a>(
    recordings: impl Iterator<Item = &'a ToolRecording>,
) -> BTreeSet<String> {
    let mut products = BTreeSet::new();
    for recording in recordings {
        let facts = &recording.parsed.facts;
        let names = facts.devices.iter().map(|d| &d.name);
        let names = names.chain(facts.ranks.iter().map(|r| &r.name));
        let names = names.chain(facts.nvlinks.iter().map(|l| &l.name));
        let names = names.chain(facts.fabric.iter().map(|f| &f.name));
        products.extend(names.flatten().cloned());
    }
    // NCCL and old drivers print this for boards they do not recognise.
    products.retain(|p| p != "NVIDIA Graphics Device");
    products
}
