//! Slurm's `topology.yaml` or `topology.conf` with measured blocks.
//!
//! Nodes that do not reach each other are in separate blocks, misplaced nodes in the block where
//! they were measured. Degraded nodes stay (see [`DegradedPlacement`]), and unmeasured nodes stay
//! as claimed, each with a comment. `act::topology` parses and checks the result before it is
//! returned, and handles changes to an existing file.

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

pub(super) const TARGET: ExportTarget = ExportTarget {
    name: "slurm-topology",
    about: "Slurm's topology.yaml or topology.conf, blocks as measured",
    takes: &["form", "from", "degraded", "block-size", "topology"],
    write,
};

/// The default name of the topology: Slurm's name for the one in a topology.conf.
const DEFAULT_TOPOLOGY_NAME: &str = "default";

/// The first Slurm release that reads topology.yaml and accepts blocks below their size.
const FIRST_WITH_YAML: SlurmVersion = SlurmVersion { year: 25, month: 5 };

#[derive(Debug, Default)]
struct SlurmExportBlock {
    nodes: BTreeSet<NodeName>,
    /// Notes on it, one line each.
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
            "no block here has more than {largest} nodes, {claimed} are claimed: if the claimed \
             blocks are in \
             force, pending jobs that need more in one block are held permanently (BadConstraints, \
             priority 0)"
        ));
    }
    Ok(ExportOutput { files: vec![ExportFile::text(form.file_name(), text)], remarks })
}

/// Refuses a file without a topology that a partition names: slurmctld rejects such a file and does
/// not start.
fn check_partitions(
    map: &VerifiedMap,
    form: TopologyForm,
    name: &str,
    remarks: &mut Vec<String>,
) -> Result<(), ExportRefusal> {
    let Some(partitions) = &map.partitions else {
        remarks.push(
            "the topologies that partitions name are unknown: if one names a topology other than \
             that of \
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
        "partition {partition} names topology {topology}{more}, which a file with {own} alone \
         lacks: \
         slurmctld would refuse it, and not start with it; expected {name_it}--from FILE, the \
         site's topology.yaml, which keeps its other topologies"
    ))
}

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

/// The blocks by name, with notes on each.
fn build_blocks(
    map: &VerifiedMap,
    degraded: DegradedPlacement,
    remarks: &mut Vec<String>,
) -> Result<BTreeMap<String, SlurmExportBlock>, ExportRefusal> {
    let mut blocks: BTreeMap<String, SlurmExportBlock> = BTreeMap::new();
    if !map.domains.iter().any(|domain| 1 < domain.nodes().len()) {
        return refuse(
            "no domain of this run has two nodes or more: blocks are NVLink domains that span \
             nodes",
        );
    }
    for domain in &map.domains {
        let name = block_name(&domain.name);
        if blocks.contains_key(&name) {
            return refuse(format!("two domains would both be named block {name}"));
        }
        let mut block = SlurmExportBlock::default();
        if domain.basis == DomainBasis::Claimed {
            block.comments.push("as claimed: not measured".to_owned());
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
                return refuse(format!("{} is not the name of one node", clean(node.as_str())));
            }
            let Some(member) = map.members.get(node) else { continue };
            let claimed = member.claimed.as_ref().map(|it| clean(it.as_str())).unwrap_or_default();
            if member.is_misplaced {
                block
                    .comments
                    .push(format!("{node}: claimed for {claimed}, measured in this block"));
            }
            if domain.basis == DomainBasis::Measured && !domain.measured.contains(node) {
                let how = match member.reach {
                    MeasuredReach::Nothing => "not measured",
                    // The node's own links do not show which nodes it reaches.
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
                    block.comments.push(format!("{what}, kept: remove it with a drain"));
                    block.nodes.insert(node.clone());
                }
                DegradedPlacement::OwnBlock => {
                    worse.comments.push(what);
                    worse.nodes.insert(node.clone());
                }
                DegradedPlacement::LeaveOut => {
                    block.comments.push(format!("{what}, left out"));
                    remarks.push(format!(
                        "{node} is in no block: pending jobs that need its whole block are held \
                         permanently; a drain lets them wait"
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

/// A name that Slurm, YAML and a host list accept as one token.
fn block_name(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let word: String = name.chars().map(|c| if plain(c) { c } else { '_' }).collect();
    // YAML parses `7`, `no` and `1e3` as other types than strings.
    let is_word = word.starts_with(|c: char| c.is_ascii_alphabetic())
        && !["true", "false", "yes", "no", "on", "off", "null", "y", "n"]
            .contains(&word.to_ascii_lowercase().as_str());
    if is_word { word } else { format!("block-{word}") }
}

/// The site's sizes of several levels, if these blocks still allow them.
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
    let sizes_text = |separator: &str| {
        let all: Vec<String> = map.block_sizes.iter().map(usize::to_string).collect();
        all.join(separator)
    };
    if !fits {
        remarks.push(format!(
            "the site's block sizes are {}, and these blocks are too small for {base}: one level \
             is written",
            sizes_text(", ")
        ));
        return None;
    }
    Some(if form == TopologyForm::Yaml { sizes_text(", ") } else { sizes_text(",") })
}

/// The base block size: the requested one, or the largest that these blocks allow.
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
            "--block-size {size}: the smallest block has {smallest} nodes, and Slurm up to 24.11 \
             accepts none below it; expected {smallest} or less, or --form yaml (25.05 and later)"
        )),
        (_, Some(size)) => Ok(size),
        (TopologyForm::Yaml, None) => Ok(largest),
        (TopologyForm::Conf, None) => {
            if smallest < largest {
                remarks.push(format!(
                    "BlockSizes={smallest}, the size of the smallest block: Slurm up to 24.11 \
                     accepts no block below that size"
                ));
            }
            Ok(smallest)
        }
    }
}

fn render_head(map: &VerifiedMap) -> String {
    format!(
        "{}# Nodes of a block were measured to reach each other at NVLink speed, except where noted.\n",
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
        // A bracketed list at the start of a value is a YAML sequence.
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

/// Parses the result by Slurm's rules.
fn check_written(
    form: TopologyForm,
    text: &str,
    blocks: &BTreeMap<String, SlurmExportBlock>,
    name: &str,
) -> Result<(), ExportRefusal> {
    let nodes = blocks.values().flat_map(|block| block.nodes.iter().cloned()).collect();
    let version = (form == TopologyForm::Yaml).then_some(FIRST_WITH_YAML);
    // A topology.conf does not name its topology.
    let topology = (form == TopologyForm::Yaml).then(|| block_name(name));
    let wanted = TopologyRequest { topology, moves: BTreeMap::new() };
    let ground = TopologyContext { version, nodes };
    let proposal = topology_proposal::propose_topology(text, &wanted, &ground)
        .map_err(|error| ExportRefusal(format!("the generated file cannot be parsed: {error}")))?;
    if let Some(fault) = proposal.blocking_faults().first() {
        return refuse(format!("the generated file is not a topology: {}", fault.what));
    }
    let read: Vec<(&String, &BTreeSet<NodeName>)> = proposal.blocks.iter().collect();
    let meant: Vec<(&String, &BTreeSet<NodeName>)> =
        blocks.iter().map(|(name, block)| (name, &block.nodes)).collect();
    if read == meant { Ok(()) } else { refuse("the generated file parses to a different topology") }
}

/// An existing file with misplaced nodes moved, and every other byte unchanged.
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
    // The header of an earlier fabricgate export is replaced.
    let is_own = |line: &&str| {
        ["# made by fabricgate ", "# SIMULATED: ", "# PARTIAL: "]
            .iter()
            .any(|it| line.starts_with(it))
    };
    let skip: usize = text.split_inclusive('\n').take_while(is_own).map(str::len).sum();
    let text = &text[skip..];
    let mut wanted = TopologyRequest { topology: options.topology.clone(), moves: BTreeMap::new() };
    let mut remarks = Vec::new();
    for (node, member) in &map.members {
        let Some(domain) = &member.domain else { continue };
        if member.is_misplaced {
            wanted.moves.insert(node.clone(), domain.clone());
        } else if map.domain(domain).is_some_and(|it| it.name != it.claimed.as_str()) {
            remarks.push(format!(
                "{node} does not reach the others claimed for {}, and no block of the file is \
                 known to be its own: not moved",
                member.claimed.as_ref().map(|it| clean(it.as_str())).unwrap_or_default()
            ));
        }
    }
    let proposal = topology_proposal::propose_topology(text, &wanted, &TopologyContext::default())
        .map_err(|error| ExportRefusal(format!("--from: {error}")))?;
    if let Some(other) = parse_form(options)?.filter(|it| *it != proposal.form) {
        return refuse(format!(
            "--form: the file of --from is a {} and stays one; expected no --form, or no --from \
             for a {}",
            proposal.form.file_name(),
            other.file_name()
        ));
    }
    let faults = proposal.faults.iter().map(|fault| format!("the file: {}", fault.what));
    remarks.extend(faults.chain(proposal.remarks.iter().cloned()));
    let after = format!("{}{}", map.comment_lines("#"), proposal.after);
    Ok(ExportOutput { files: vec![ExportFile::text(proposal.form.file_name(), after)], remarks })
}
