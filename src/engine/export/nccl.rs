//! The NCCL and HybridEP environment for a measured allocation.
//!
//! A variable is set only if the measurement supports its value; the others are listed with the
//! reason, so that their defaults are a known choice.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;

use super::allocation::JobAllocation;
use super::{ExportFile, ExportOptions, ExportOutput, ExportRefusal, ExportTarget, refuse};
use crate::place::map::{MapOrigin, VerifiedMap};
use model::text::clean;
use model::verdict::Outcome;

pub(super) const TARGET: ExportTarget = ExportTarget {
    name: "nccl-env",
    about: "variables of NCCL and HybridEP for an allocation, as shell or JSON",
    takes: &["form", "nodes", "domain", "gpus-per-node"],
    write,
};

/// The format of the JSON form.
pub const ENVIRONMENT_FORMAT: &str = "fabricgate.environment/1";

const NCCL_DOCS: &str = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html";
/// The documentation of HybridEP: section 9.2 of its description, branch hybrid-ep of DeepEP.
const HYBRID_EP_DOCS: &str =
    "https://github.com/deepseek-ai/DeepEP/blob/hybrid-ep/docs/Hybrid-EP_Implementation.md";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
struct NcclVariable {
    name: &'static str,
    value: String,
    /// Its effect, and the measurement behind it.
    why: String,
    /// Its documentation.
    source: &'static str,
}

/// A variable that keeps its default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
struct UnsetNcclVariable {
    name: &'static str,
    why: String,
    /// Its documentation.
    source: &'static str,
}

/// Variables for an allocation (`fabricgate.environment/1`).
#[derive(Debug, Serialize, JsonSchema)]
pub struct EnvironmentDocument<'a> {
    /// `fabricgate.environment/1`.
    format: &'static str,
    /// The tool version and run behind it, and warnings before use.
    note: Vec<String>,
    /// The run behind it.
    run: &'a MapOrigin,
    /// The nodes of the allocation, in order.
    nodes: Vec<&'a str>,
    /// Variables with a value.
    variables: &'a [NcclVariable],
    /// Variables that keep their default.
    not_set: &'a [UnsetNcclVariable],
}

fn write(map: &VerifiedMap, options: &ExportOptions) -> Result<ExportOutput, ExportRefusal> {
    let allocation = JobAllocation::from_options(map, options)?;
    let (mut set, mut unset) = (Vec::new(), Vec::new());
    for variable in [multi_node_variable(map, &allocation), hca_variable(map, &allocation)] {
        variable.map_or_else(|it| unset.push(it), |it| set.push(it));
    }
    for variable in hybrid_ep_variables(&allocation) {
        variable.map_or_else(|it| unset.push(it), |it| set.push(it));
    }
    let file = match options.form.as_deref() {
        None | Some("shell") => ExportFile::text("nccl.env.sh", render_shell(map, &set, &unset)),
        Some("json") => {
            let document = EnvironmentDocument {
                format: ENVIRONMENT_FORMAT,
                note: map.header_lines(),
                run: &map.run,
                nodes: allocation.nodes().map(|(_, node, _)| node.as_str()).collect(),
                variables: &set,
                not_set: &unset,
            };
            let mut bytes =
                serde_json::to_vec_pretty(&document).expect("values of the map are plain data");
            bytes.push(b'\n');
            ExportFile { name: "nccl.env.json".to_owned(), bytes }
        }
        Some(other) => {
            return refuse(format!("--form {}: expected shell or json", clean(other)));
        }
    };
    Ok(ExportOutput { files: vec![file], remarks: allocation.remarks })
}

/// Whether NCCL must use NVLink between nodes.
fn multi_node_variable(
    map: &VerifiedMap,
    allocation: &JobAllocation<'_>,
) -> Result<NcclVariable, UnsetNcclVariable> {
    const NAME: &str = "NCCL_MNNVL_ENABLE";
    let not =
        |why: &str| Err(UnsetNcclVariable { name: NAME, why: why.to_owned(), source: NCCL_DOCS });
    let nodes = allocation.nodes().count();
    let is_sound = allocation.nodes().all(|(_, node, member)| {
        map.domain_of(node).is_some_and(|it| it.measured.contains(node)) && member.is_verified()
    });
    if nodes < 2 {
        return not("one node needs no NVLink between nodes");
    }
    match allocation.pieces.as_slice() {
        [one] if one.is_measured && is_sound => Ok(NcclVariable {
            name: NAME,
            value: "1".to_owned(),
            why: format!(
                "1: multi-node NVLink or an error at start, instead of a silent fallback to NICs; \
                 all {nodes} nodes were measured to reach each other at NVLink speed"
            ),
            source: NCCL_DOCS,
        }),
        [_] => not("not every node was verified: NCCL's default (2) decides by the driver's \
                    report"),
        _ => not(
            "the nodes are in several NVLink domains: NCCL's default (2) uses NVLink inside each \
             if drivers report it",
        ),
    }
}

/// The NICs that passed on every node.
fn hca_variable(
    map: &VerifiedMap,
    allocation: &JobAllocation<'_>,
) -> Result<NcclVariable, UnsetNcclVariable> {
    const NAME: &str = "NCCL_IB_HCA";
    let not = |why: String| Err(UnsetNcclVariable { name: NAME, why, source: NCCL_DOCS });
    if map.rails.is_empty() {
        return not("no rails were measured".to_owned());
    }
    let (mut well, mut bad): (Vec<&str>, Vec<String>) = (Vec::new(), Vec::new());
    for (name, rail) in &map.rails {
        let shown = clean(name);
        let ends = |outcome: Outcome| {
            allocation.nodes().find(|(_, _, member)| {
                member.rails.get(name).map_or(Outcome::Unknown, |end| end.outcome) == outcome
            })
        };
        if let Some((_, node, _)) = ends(Outcome::Unknown) {
            return not(format!(
                "rail {shown} of {node} was not measured or not compared: omitting it would lose \
                 its bandwidth, and naming it would mark it as verified"
            ));
        }
        let Some(device) = rail.rdma.as_deref() else {
            return not(format!("no claim names the RDMA device of rail {shown}"));
        };
        // NCCL's list contains commas, colons and a leading sign.
        if device.is_empty()
            || !device.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
        {
            return not(format!("{} is not a device name", clean(device)));
        }
        match ends(Outcome::Degraded).or_else(|| ends(Outcome::Failed)) {
            Some((_, node, _)) => bad.push(format!("{device} ({shown} of {node})")),
            None => well.push(device),
        }
    }
    if well.is_empty() {
        return not(format!("no rail passed on every node: {}", bad.join(", ")));
    }
    let without =
        if bad.is_empty() { String::new() } else { format!("; without {}", bad.join(", ")) };
    Ok(NcclVariable {
        name: NAME,
        value: format!("={}", well.join(",")),
        why: format!("=: exactly these devices; each passed on every node{without}"),
        source: NCCL_DOCS,
    })
}

/// HybridEP's ranks per NVLink domain, and whether it uses fabric handles.
fn hybrid_ep_variables(
    allocation: &JobAllocation<'_>,
) -> [Result<NcclVariable, UnsetNcclVariable>; 2] {
    const RANKS: &str = "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN";
    const MNNVL: &str = "USE_MNNVL";
    let not = |name, why: &str| {
        Err(UnsetNcclVariable { name, why: why.to_owned(), source: HYBRID_EP_DOCS })
    };
    if !allocation.pieces.iter().all(|piece| piece.is_measured) {
        let why = "not every node was measured against others: HybridEP detects it at run time";
        return [not(RANKS, why), not(MNNVL, why)];
    }
    let sizes: BTreeSet<usize> = allocation.pieces.iter().map(|piece| piece.nodes.len()).collect();
    let nodes = sizes.iter().copied().fold(0, gcd);
    let per_node = usize::try_from(allocation.gpus_per_node).unwrap_or(usize::MAX);
    let ranks = nodes.saturating_mul(per_node);
    let how = if sizes.len() == 1 {
        format!("measured: {nodes} of its nodes in every domain")
    } else {
        let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
        format!(
            "measured: {} of its nodes in its domains, sizes divisible by {nodes}",
            sizes.join(", ")
        )
    };
    let set = NcclVariable {
        name: RANKS,
        value: ranks.to_string(),
        why: format!(
            "{how}, {per_node} GPUs each (ranks in the order of `export --to ranks`; it must \
             divide their number)"
        ),
        source: HYBRID_EP_DOCS,
    };
    let mnnvl = if 1 < nodes {
        Ok(NcclVariable {
            name: MNNVL,
            value: "1".to_owned(),
            why: "fabric handles between nodes; they were measured to reach each other at NVLink \
                  speed"
                .to_owned(),
            source: HYBRID_EP_DOCS,
        })
    } else if allocation.pieces.iter().all(|piece| piece.nodes.len() == 1) {
        Ok(NcclVariable {
            name: MNNVL,
            value: "0".to_owned(),
            why: "handles inside a node: no two nodes of the allocation share an NVLink domain"
                .to_owned(),
            source: HYBRID_EP_DOCS,
        })
    } else {
        not(
            MNNVL,
            "some nodes share an NVLink domain and others do not: HybridEP detects it at run time",
        )
    };
    [Ok(set), mnnvl]
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn render_shell(map: &VerifiedMap, set: &[NcclVariable], unset: &[UnsetNcclVariable]) -> String {
    let mut text = map.comment_lines("#");
    for NcclVariable { name, value, why, source } in set {
        let _ =
            writeln!(text, "# {}\n# {source}\nexport {name}={}", clean(why), quote_shell(value));
    }
    for UnsetNcclVariable { name, why, .. } in unset {
        let _ = writeln!(text, "# {name} is not set: {}", clean(why));
    }
    text
}

/// Quotes a shell argument unless it is plain.
fn quote_shell(word: &str) -> String {
    let is_plain = !word.is_empty()
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"=,_.:-".contains(&b));
    if is_plain { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}
