//! A model for NVIDIA's topograph: nodes with their accelerator domain, and leaves.
//!
//! The format is that of its model files (`docs/modeling.md` there): `switches`, a map, and
//! `blocks`, a list of nodes with annotations. Unmeasured nodes are declared without a domain,
//! because topograph treats its input as discovered. Leaves are claimed; a sweep does not find
//! switches.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::{ExportFile, ExportOptions, ExportOutput, ExportRefusal, ExportTarget, refuse};
use crate::place::map::VerifiedMap;
use model::id::NodeName;
use model::text::clean;

pub(super) const TARGET: ExportTarget = ExportTarget {
    name: "topograph",
    about: "a model file of NVIDIA's topograph",
    takes: &[],
    write,
};

/// The annotation from which its test and simulated providers read a domain.
const DOMAIN: &str = "accelerator.topology.test/domain";

/// The root switch above the claimed leaves: a model is a tree.
const ROOT: &str = "fabric";

fn write(map: &VerifiedMap, _options: &ExportOptions) -> Result<ExportOutput, ExportRefusal> {
    // A block of a model has one switch and one domain.
    let mut blocks: BTreeMap<(Option<&str>, Option<&str>), BTreeSet<&NodeName>> = BTreeMap::new();
    for (node, member) in &map.members {
        if !node.is_one_node() {
            return refuse(format!("{} is not the name of one node", clean(node.as_str())));
        }
        let measured = map.domain_of(node).filter(|domain| domain.measured.contains(node));
        let domain = measured.map(|domain| domain.name.as_str());
        blocks.entry((domain, member.leaf.as_deref())).or_default().insert(node);
    }
    if blocks.is_empty() {
        return refuse("the run has no nodes");
    }
    let leaves: BTreeSet<&str> = blocks.keys().filter_map(|(_, leaf)| *leaf).collect();
    if leaves.contains(ROOT) {
        return refuse(format!("a leaf is named {ROOT}, which is reserved for the root"));
    }
    let mut text = map.comment_lines("#");
    text.push_str(
        "# Domains are measured; nodes without one were not measured. Leaves are claimed.\n",
    );
    if !leaves.is_empty() {
        let _ = writeln!(text, "switches:\n  {ROOT}:\n    switches:");
        for leaf in &leaves {
            let _ = writeln!(text, "    - {}", quote_yaml(leaf));
        }
    }
    text.push_str("blocks:\n");
    for ((domain, leaf), nodes) in &blocks {
        let switch = leaf.map(|leaf| format!("- switch: {}\n  nodes:\n", quote_yaml(leaf)));
        text.push_str(switch.as_deref().unwrap_or("- nodes:\n"));
        for node in nodes {
            let _ = writeln!(text, "  - {}", quote_yaml(node.as_str()));
        }
        if let Some(domain) = domain {
            let _ = writeln!(text, "  annotations:\n    {DOMAIN}: {}", quote_yaml(domain));
        }
    }
    Ok(ExportOutput::from_file(ExportFile::text("model.yaml", text)))
}

/// Quotes a string for YAML; JSON quoting is valid.
fn quote_yaml(text: &str) -> String {
    serde_json::to_string(&clean(text)).expect("a string is JSON")
}
