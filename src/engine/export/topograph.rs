//! A model for NVIDIA's topograph: nodes with their accelerator domain, and leaves.
//!
//! The form is that of its model files (`docs/modeling.md` there): `switches`, a map,
//! and `blocks`, a list of nodes with annotations. Nodes that nobody measured are
//! declared without a domain: topograph takes what it is given for discovered. Leaves
//! are claimed; a sweep does not find switches.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::{ExportFile, ExportOptions, ExportOutput, ExportRefusal, ExportTarget, refuse};
use crate::place::map::VerifiedMap;
use model::id::NodeName;
use model::text::clean;

/// `--to topograph`.
pub(super) const TARGET: ExportTarget = ExportTarget {
    name: "topograph",
    about: "a model file of NVIDIA's topograph",
    takes: &[],
    write,
};

/// The annotation that its test and simulated providers read a domain from.
const DOMAIN: &str = "accelerator.topology.test/domain";

/// The switch that claimed leaves hang below: a model is a tree.
const ROOT: &str = "fabric";

fn write(map: &VerifiedMap, _options: &ExportOptions) -> Result<ExportOutput, ExportRefusal> {
    // A block of a model has one switch and one domain.
    let mut blocks: BTreeMap<(Option<&str>, Option<&str>), BTreeSet<&NodeName>> = BTreeMap::new();
    for (node, member) in &map.members {
        if !node.is_one_node() {
            return refuse(format!("{} is no name of one node", clean(node.as_str())));
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
        return refuse(format!("a leaf is called {ROOT}, which is the name of the root here"));
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

/// A string as YAML has it in double quotes, which is as JSON has it.
fn quote_yaml(text: &str) -> String {
    serde_json::to_string(&clean(text)).expect("a string is JSON")
}
