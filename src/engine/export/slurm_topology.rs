//! Slurm's `topology.yaml` or `topology.conf` with blocks as they were measured.
//!
//! Nodes that were measured apart are in blocks of their own, misplaced ones where
//! they were measured to be. Degraded nodes stay (see [`Degraded`]), and what was not
//! measured stays as claimed, each with a comment. What is written is read back and
//! checked by `act::topology` before anybody sees it; changing an existing file is
//! its work altogether.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::{
    DegradedPlacement, ExportFile, ExportOptions, ExportOutput, ExportRefusal, ExportTarget, refuse,
};
use crate::place::map::{DomainBasis, MeasuredReach, VerifiedMap};
use crate::policy::topology_proposal;
use crate::policy::topology_proposal::{
    SlurmVersion, TopologyContext, TopologyForm, TopologyRequest,
};
use model::finding_class::join_class_names;
use model::hostlist;
use model::id::NodeName;
use model::text::clean;
use model::verdict::Outcome;

/// `--to slurm-topology`.
pub(super) const TARGET: ExportTarget = ExportTarget {
    name: "slurm-topology",
    about: "Slurm's topology.yaml or topology.conf, blocks as measured",
    takes: &["form", "from", "degraded", "block-size", "topology"],
    write,
};

/// The name of the topology, where none is given: what Slurm calls the one of a
/// topology.conf.
const DEFAULT_TOPOLOGY_NAME: &str = "default";

/// The first Slurm that reads topology.yaml and takes blocks below their size.
const FIRST_WITH_YAML: SlurmVersion = SlurmVersion { year: 25, month: 5 };

/// One block to be written.
#[derive(Debug, Default)]
struct SlurmExportBlock {
    nodes: BTreeSet<NodeName>,
    /// What must be known of it, one line each.
    comments: Vec<String>,
}

fn write(map: &VerifiedMap, options: &ExportOptions) -> Result<ExportOutput, ExportRefusal> {
    if let Some(text) = &options.from {
        return change_existing(map, options, text);
    }
    let form = parse_form(options)?.unwrap_or(TopologyForm::Yaml);
    let name = options.topology.as_deref().unwrap_or(DEFAULT_TOPOLOGY_NAME);
    if form == TopologyForm::Conf && name != DEFAULT_TOPOLOGY_NAME {
        return refuse(format!(
            "--topology: a topology.conf has one, which Slurm calls {DEFAULT_TOPOLOGY_NAME}"
        ));
    }
    let mut remarks = Vec::new();
    check_partitions(map, form, name, &mut remarks)?;
    let blocks = build_blocks(map, options.degraded, &mut remarks)?;
    let size = match level_sizes(map, form, &blocks, options.block_size, &mut remarks) {
        Some(levels) => levels,
        None => base_size(form, &blocks, options.block_size, &mut remarks)?.to_string(),
    };
    let text = match form {
        TopologyForm::Yaml => render_yaml(map, name, &size, &blocks),
        TopologyForm::Conf => render_conf(map, &size, &blocks),
    };
    check_written(form, &text, &blocks, name)?;
    let largest = blocks.values().map(|block| block.nodes.len()).max().unwrap_or(0);
    let claimed = largest_claim(map);
    if largest < claimed {
        remarks.push(format!(
            "no block has more than {largest} nodes here, {claimed} are claimed: where the claimed blocks are in \
             force, pending jobs that need more in one block are held for good (BadConstraints, priority 0)"
        ));
    }
    Ok(ExportOutput { files: vec![ExportFile::text(form.file_name(), text)], remarks })
}

/// Refuses a file that lacks a topology which a partition names: slurmctld takes none of
/// it, and does not start with it.
fn check_partitions(
    map: &VerifiedMap,
    form: TopologyForm,
    name: &str,
    remarks: &mut Vec<String>,
) -> Result<(), ExportRefusal> {
    let Some(partitions) = &map.partitions else {
        remarks.push(
            "which topologies partitions name is not known: where one names another than that of \
             this file, slurmctld refuses it; --from FILE changes the site's own file and keeps \
             the others"
                .to_owned(),
        );
        return Ok(());
    };
    let own = block_name(name);
    let others: BTreeMap<&String, &String> =
        partitions.iter().filter(|(_, topology)| **topology != own).collect();
    let Some((partition, topology)) = others.first_key_value() else { return Ok(()) };
    let (partition, topology) = (clean(partition), clean(topology));
    let more = match others.len() {
        1 => String::new(),
        count => format!(" (and {} partitions more)", count - 1),
    };
    let all_one =
        partitions.values().collect::<BTreeSet<_>>().len() == 1 && form == TopologyForm::Yaml;
    let name_it = if all_one { format!("--topology {topology}, or ") } else { String::new() };
    refuse(format!(
        "partition {partition} names topology {topology}{more}, which a file with {own} alone lacks: \
         slurmctld would refuse it, and not start with it; expected {name_it}--from FILE, the site's \
         topology.yaml, which keeps its other topologies"
    ))
}

/// The form that is asked for.
fn parse_form(options: &ExportOptions) -> Result<Option<TopologyForm>, ExportRefusal> {
    match options.form.as_deref() {
        None => Ok(None),
        Some("yaml") => Ok(Some(TopologyForm::Yaml)),
        Some("conf") => Ok(Some(TopologyForm::Conf)),
        Some(other) => refuse(format!("--form {}: expected yaml or conf", clean(other))),
    }
}

fn largest_claim(map: &VerifiedMap) -> usize {
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    for member in map.members.values() {
        if let Some(claimed) = &member.claimed {
            *sizes.entry(claimed.as_str()).or_default() += 1;
        }
    }
    sizes.into_values().max().unwrap_or(0)
}

/// The blocks by name, with what must be known of each.
fn build_blocks(
    map: &VerifiedMap,
    degraded: DegradedPlacement,
    remarks: &mut Vec<String>,
) -> Result<BTreeMap<String, SlurmExportBlock>, ExportRefusal> {
    let mut blocks: BTreeMap<String, SlurmExportBlock> = BTreeMap::new();
    if !map.domains.iter().any(|domain| 1 < domain.nodes().len()) {
        return refuse(
            "no domain of this run has two nodes or more: blocks are NVLink domains that span nodes",
        );
    }
    for domain in &map.domains {
        let name = block_name(&domain.name);
        if blocks.contains_key(&name) {
            return refuse(format!("two domains would be block {name}"));
        }
        let mut block = SlurmExportBlock::default();
        if domain.basis == DomainBasis::Claimed {
            block.comments.push("as claimed: nobody measured it".to_owned());
        }
        if domain.name != domain.claimed.as_str() {
            let claimed = clean(domain.claimed.as_str());
            block
                .comments
                .push(format!("measured apart from others that are claimed for {claimed}"));
        }
        let mut worse = SlurmExportBlock::default();
        for node in domain.nodes() {
            if !node.is_one_node() {
                return refuse(format!("{} is no name of one node", clean(node.as_str())));
            }
            let Some(member) = map.members.get(node) else { continue };
            let claimed = member.claimed.as_ref().map(|it| clean(it.as_str())).unwrap_or_default();
            if member.is_misplaced {
                block.comments.push(format!("{node}: claimed for {claimed}, measured to be here"));
            }
            if domain.basis == DomainBasis::Measured && !domain.measured.contains(node) {
                let how = match member.reach {
                    MeasuredReach::Nothing => "not measured",
                    // Its own links say nothing about whom it reaches.
                    MeasuredReach::Inside | MeasuredReach::Across => {
                        "not measured against the others"
                    }
                };
                block.comments.push(format!("{node}: as claimed, {how}"));
            }
            let is_worse = Outcome::Degraded <= member.outcome && !member.is_apart;
            if !is_worse || member.is_misplaced {
                block.nodes.insert(node.clone());
                continue;
            }
            let what = format!(
                "{node}: {} ({})",
                member.outcome,
                clean(&join_class_names(&member.classes))
            );
            match degraded {
                DegradedPlacement::Keep => {
                    block.comments.push(format!("{what}, kept: gate it by a drain"));
                    block.nodes.insert(node.clone());
                }
                DegradedPlacement::OwnBlock => {
                    worse.comments.push(what);
                    worse.nodes.insert(node.clone());
                }
                DegradedPlacement::LeaveOut => {
                    block.comments.push(format!("{what}, left out"));
                    remarks.push(format!(
                        "{node} is in no block: pending jobs that need its block whole are held for good; a \
                         drain lets them wait"
                    ));
                }
            }
        }
        if !worse.nodes.is_empty() {
            blocks.insert(format!("{name}.degraded"), worse);
        }
        if !block.nodes.is_empty() {
            blocks.insert(name, block);
        }
    }
    Ok(blocks)
}

/// A name that Slurm, YAML and a host list take as one word.
fn block_name(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let word: String = name.chars().map(|c| if plain(c) { c } else { '_' }).collect();
    // YAML takes `7`, `no` and `1e3` for something else than words.
    let is_word = word.starts_with(|c: char| c.is_ascii_alphabetic())
        && !["true", "false", "yes", "no", "on", "off", "null", "y", "n"]
            .contains(&word.to_ascii_lowercase().as_str());
    if is_word { word } else { format!("block-{word}") }
}

/// Sizes of several levels, as the site has them, where these blocks still allow them.
fn level_sizes(
    map: &VerifiedMap,
    form: TopologyForm,
    blocks: &BTreeMap<String, SlurmExportBlock>,
    wanted: Option<u32>,
    remarks: &mut Vec<String>,
) -> Option<String> {
    let [base, above @ ..] = map.block_sizes.as_slice() else { return None };
    if above.is_empty() || wanted.is_some() {
        return None;
    }
    let sizes = || blocks.values().map(|block| block.nodes.len());
    let fits = match form {
        TopologyForm::Yaml => sizes().any(|size| *base <= size),
        TopologyForm::Conf => sizes().all(|size| *base <= size),
    };
    let told = |separator: &str| {
        let all: Vec<String> = map.block_sizes.iter().map(usize::to_string).collect();
        all.join(separator)
    };
    if !fits {
        remarks.push(format!(
            "the site's block sizes are {}, and these blocks are too small for {base}: one level is \
             written",
            told(", ")
        ));
        return None;
    }
    Some(if form == TopologyForm::Yaml { told(", ") } else { told(",") })
}

/// The base block size: what is asked for, or what these blocks allow.
fn base_size(
    form: TopologyForm,
    blocks: &BTreeMap<String, SlurmExportBlock>,
    wanted: Option<u32>,
    remarks: &mut Vec<String>,
) -> Result<usize, ExportRefusal> {
    let sizes = || blocks.values().map(|block| block.nodes.len());
    let (smallest, largest) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
    let wanted = wanted.and_then(|size| usize::try_from(size).ok());
    match (form, wanted) {
        (_, Some(0)) => refuse("--block-size 0: expected 1 or more"),
        (_, Some(size)) if largest < size => {
            refuse(format!("--block-size {size}: the largest block has {largest} nodes"))
        }
        (TopologyForm::Conf, Some(size)) if smallest < size => refuse(format!(
            "--block-size {size}: the smallest block has {smallest} nodes, and Slurm up to 24.11 takes none \
             below it; expected {smallest} or less, or --form yaml (25.05 and later)"
        )),
        (_, Some(size)) => Ok(size),
        (TopologyForm::Yaml, None) => Ok(largest),
        (TopologyForm::Conf, None) => {
            if smallest < largest {
                remarks.push(format!(
                    "BlockSizes={smallest}, as many as the smallest block has: Slurm up to 24.11 takes no block \
                     below it"
                ));
            }
            Ok(smallest)
        }
    }
}

fn render_head(map: &VerifiedMap) -> String {
    format!(
        "{}# Nodes of a block were measured to reach each other at NVLink speed, except where it says otherwise.\n",
        map.comment_lines("#")
    )
}

fn render_yaml(
    map: &VerifiedMap,
    name: &str,
    size: &str,
    blocks: &BTreeMap<String, SlurmExportBlock>,
) -> String {
    let name = block_name(name);
    let mut text = render_head(map);
    let _ = write!(
        text,
        "---\n- topology: {name}\n  cluster_default: true\n  block:\n    block_sizes: [{size}]\n    blocks:\n"
    );
    for (name, block) in blocks {
        for comment in &block.comments {
            let _ = writeln!(text, "      # {comment}");
        }
        let nodes = hostlist::fold(block.nodes.iter().map(NodeName::as_str));
        // A list in brackets is a sequence where it begins a value.
        let _ = writeln!(text, "      - block: {name}\n        nodes: \"{nodes}\"");
    }
    text
}

fn render_conf(
    map: &VerifiedMap,
    size: &str,
    blocks: &BTreeMap<String, SlurmExportBlock>,
) -> String {
    let mut text = render_head(map);
    for (name, block) in blocks {
        for comment in &block.comments {
            let _ = writeln!(text, "# {comment}");
        }
        let nodes = hostlist::fold(block.nodes.iter().map(NodeName::as_str));
        let _ = writeln!(text, "BlockName={name} Nodes={nodes}");
    }
    let _ = writeln!(text, "BlockSizes={size}");
    text
}

/// Reads back what was written, as Slurm's own rules have it.
fn check_written(
    form: TopologyForm,
    text: &str,
    blocks: &BTreeMap<String, SlurmExportBlock>,
    name: &str,
) -> Result<(), ExportRefusal> {
    let nodes = blocks.values().flat_map(|block| block.nodes.iter().cloned()).collect();
    let version = (form == TopologyForm::Yaml).then_some(FIRST_WITH_YAML);
    // A topology.conf does not name its own.
    let topology = (form == TopologyForm::Yaml).then(|| block_name(name));
    let wanted = TopologyRequest { topology, moves: BTreeMap::new() };
    let ground = TopologyContext { version, nodes };
    let proposal =
        topology_proposal::propose_topology(text, &wanted, &ground).map_err(|error| {
            ExportRefusal(format!("what would be written cannot be read back: {error}"))
        })?;
    if let Some(fault) = proposal.blocking_faults().first() {
        return refuse(format!("what would be written is not a topology: {}", fault.what));
    }
    let read: Vec<(&String, &BTreeSet<NodeName>)> = proposal.blocks.iter().collect();
    let meant: Vec<(&String, &BTreeSet<NodeName>)> =
        blocks.iter().map(|(name, block)| (name, &block.nodes)).collect();
    if read == meant { Ok(()) } else { refuse("what would be written reads otherwise than meant") }
}

/// An existing file with misplaced nodes moved, and every other letter as it is.
fn change_existing(
    map: &VerifiedMap,
    options: &ExportOptions,
    text: &str,
) -> Result<ExportOutput, ExportRefusal> {
    if options.degraded != DegradedPlacement::Keep || options.block_size.is_some() {
        return refuse(
            "--from: an existing file keeps its nodes and sizes; only misplaced nodes move",
        );
    }
    // Of an earlier export of ours only the file itself is kept.
    let ours = |line: &&str| {
        ["# made by fabricgate ", "# SIMULATED: ", "# PARTIAL: "]
            .iter()
            .any(|it| line.starts_with(it))
    };
    let skip: usize = text.split_inclusive('\n').take_while(ours).map(str::len).sum();
    let text = &text[skip..];
    let mut wanted = TopologyRequest { topology: options.topology.clone(), moves: BTreeMap::new() };
    let mut remarks = Vec::new();
    for (node, member) in &map.members {
        let Some(domain) = &member.domain else { continue };
        if member.is_misplaced {
            wanted.moves.insert(node.clone(), domain.clone());
        } else if map.domain(domain).is_some_and(|it| it.name != it.claimed.as_str()) {
            remarks.push(format!(
                "{node} was measured apart from others that are claimed for {}, and no block of the file is \
                 known to be its own: not moved",
                member.claimed.as_ref().map(|it| clean(it.as_str())).unwrap_or_default()
            ));
        }
    }
    let proposal = topology_proposal::propose_topology(text, &wanted, &TopologyContext::default())
        .map_err(|error| ExportRefusal(format!("--from: {error}")))?;
    if let Some(other) = parse_form(options)?.filter(|it| *it != proposal.form) {
        return refuse(format!(
            "--form: the file of --from is a {} and stays one; expected no --form, or no --from for a {}",
            proposal.form.file_name(),
            other.file_name()
        ));
    }
    let faults = proposal.faults.iter().map(|fault| format!("the file: {}", fault.what));
    remarks.extend(faults.chain(proposal.remarks.iter().cloned()));
    let after = format!("{}{}", map.comment_lines("#"), proposal.after);
    Ok(ExportOutput { files: vec![ExportFile::text(proposal.form.file_name(), after)], remarks })
}
