//! A placement request and its answer: candidates, excluded parts with reasons, the selected sets,
//! and the next best ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use super::best_subset;
use super::best_subset::{BestSubset, PairStrengths};
use super::strength_matrix::StrengthScale;
use crate::place::map::{MapDomain, MapMember, MapOrigin, MeasuredReach, VerifiedMap};
use model::finding_class::join_class_names;
use model::id::{GpuId, NodeName};
use model::verdict::Outcome;

/// The format of the answer as JSON.
pub const PLACEMENT_FORMAT: &str = "fabricgate.placement/1";

/// The kind of part to select.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlacementLevel {
    /// Single GPUs.
    Gpu,
    /// Whole nodes.
    Node,
}

impl PlacementLevel {
    fn format_count(self, count: usize) -> String {
        let one = match self {
            Self::Gpu => "GPU",
            Self::Node => "node",
        };
        if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
    }
}

/// The rule that selects a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlacementRule {
    /// The best-connected set.
    Best,
    /// The set whose removal hurts the rest least: the remaining parts are best connected.
    Spare,
}

/// A placement request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementRequest {
    /// The number of parts.
    pub count: usize,
    /// The kind of part.
    pub level: PlacementLevel,
    /// Only on this node (GPUs).
    pub node: Option<NodeName>,
    /// Only in this domain of the map.
    pub domain: Option<String>,
    /// The rules to apply.
    pub rules: Vec<PlacementRule>,
    /// Degraded parts may be selected as well. Failed or unmeasured parts never are.
    pub allow_degraded: bool,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Placement {
    /// `fabricgate.placement/1`.
    pub format: &'static str,
    /// The run behind it.
    pub run: MapOrigin,
    /// The kind of part.
    pub level: PlacementLevel,
    /// The scope: `node NAME` or `domain NAME`.
    pub scope: String,
    /// The number of eligible parts.
    pub candidates: usize,
    /// Excluded parts, and why.
    pub excluded: Vec<ExcludedPart>,
    /// The scale of the numbers: shares of the expected link rate, or GB/s.
    pub scale: StrengthScale,
    /// The smallest relative degradation that the run could detect on every candidate: smaller
    /// differences may be chance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detectable: Option<f64>,
    /// One choice per requested rule.
    pub choices: Vec<PlacementChoice>,
}

/// A part that is not eligible.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ExcludedPart {
    /// The node, or the GPU as `node:index`.
    pub part: String,
    /// The reason for the exclusion.
    pub why: String,
}

/// One selected part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PlacementPart {
    /// Name of the node.
    pub node: NodeName,
    /// The GPU by its index on the node, for a choice of GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// Its UUID, if the run recorded it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
}

impl fmt::Display for PlacementPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gpu {
            Some(gpu) => write!(f, "{}:{gpu}", self.node),
            None => write!(f, "{}", self.node),
        }
    }
}

/// A pair and its strength: the worse of both directions.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PlacementPair {
    /// One end.
    pub a: String,
    /// The other end.
    pub b: String,
    /// The strength, in the answer's scale.
    pub strength: f64,
}

/// A selected set. For [`PlacementRule::Spare`] the numbers describe the remaining parts.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PlacementChoice {
    /// The rule that selected it.
    pub way: PlacementRule,
    /// The set, in order.
    pub parts: Vec<PlacementPart>,
    /// The weakest pair; absent for a set of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weakest: Option<PlacementPair>,
    /// The mean over all pairs; absent for a set of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean: Option<f64>,
    /// Whether no other set is better.
    pub exact: bool,
    /// Upper bound on the weakest pair of any other set; present if `exact` is false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weakest_bound: Option<f64>,
    /// Upper bound on the mean of any set with an equally strong weakest pair; present if `exact`
    /// is false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_bound: Option<f64>,
    /// The best of all other sets; absent if none exists, or if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<NextBestSet>,
}

/// The next best set.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct NextBestSet {
    /// Its parts, in order.
    pub parts: Vec<PlacementPart>,
    /// Its weakest pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weakest: Option<PlacementPair>,
    /// The mean over its pairs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean: Option<f64>,
}

/// Why no set is selected: the request, and the available parts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// The request does not match the run.
    #[error("{0}")]
    InvalidRequest(String),
    /// The run does not have enough parts.
    #[error("{0}")]
    TooFew(String),
}

/// Selects a placement.
pub fn choose_placement(
    map: &VerifiedMap,
    request: &PlacementRequest,
) -> Result<Placement, PlacementError> {
    let (scope, nodes) = resolve_scope(map, request)?;
    let mut excluded = Vec::new();
    let mut parts: Vec<PlacementPart> = Vec::new();
    for node in nodes {
        let Some(member) = map.members.get(&node) else { continue };
        if let Some(why) = exclusion_reason(member, request) {
            excluded.push(ExcludedPart { part: node.to_string(), why });
            continue;
        }
        match request.level {
            PlacementLevel::Node => parts.push(PlacementPart { node, gpu: None, uuid: None }),
            PlacementLevel::Gpu => collect_gpus(&node, member, request, &mut parts, &mut excluded),
        }
    }
    let strengths = build_strengths(map, request.level, &parts);
    let few = |what: String| {
        let out = match excluded.len() {
            0 => String::new(),
            n => format!("; {n} left out, the first: {}: {}", excluded[0].part, excluded[0].why),
        };
        PlacementError::TooFew(format!("{what} in {scope}{out}"))
    };
    let (wanted, has) =
        (request.level.format_count(request.count), request.level.format_count(parts.len()));
    if request.count == 0 || parts.len() < request.count {
        return Err(few(format!("{wanted} requested, {has} eligible")));
    }
    let mut choices = Vec::new();
    for way in &request.rules {
        let choice = match way {
            PlacementRule::Best => choose_best(&strengths, &parts, request.count),
            PlacementRule::Spare => choose_spare(&strengths, &parts, request.count),
        };
        let choice = choice.ok_or_else(|| {
            let what = match way {
                PlacementRule::Best => {
                    format!("found no {wanted} that were all measured with each other")
                }
                PlacementRule::Spare => {
                    format!(
                        "without {wanted}, found no remaining set that was all measured with each \
                         other"
                    )
                }
            };
            few(format!("{what} ({has} eligible)"))
        })?;
        choices.push(choice);
    }
    let nodes: BTreeSet<&NodeName> = parts.iter().map(|part| &part.node).collect();
    // One unknown strength makes the total unknown.
    let each: Option<Vec<f64>> =
        nodes.iter().map(|node| map.members.get(*node)?.detectable).collect();
    let detectable = each.into_iter().flatten().max_by(f64::total_cmp);
    Ok(Placement {
        format: PLACEMENT_FORMAT,
        run: map.run.clone(),
        level: request.level,
        scope,
        candidates: parts.len(),
        excluded,
        scale: map.matrix.scale,
        detectable,
        choices,
    })
}

/// The scope as text, and its candidates by name.
fn resolve_scope(
    map: &VerifiedMap,
    request: &PlacementRequest,
) -> Result<(String, Vec<NodeName>), PlacementError> {
    let question = |why: String| Err(PlacementError::InvalidRequest(why));
    if let Some(node) = &request.node {
        return match (request.level, map.members.contains_key(node)) {
            (PlacementLevel::Node, _) => question(
                "--node: a single node leaves no choice of nodes, expected --level gpu".to_owned(),
            ),
            (PlacementLevel::Gpu, false) => {
                question(format!("--node {node}: the run has no such node"))
            }
            (PlacementLevel::Gpu, true) => Ok((format!("node {node}"), vec![node.clone()])),
        };
    }
    let all = || {
        let names: Vec<&str> = map.domains.iter().map(|domain| domain.name.as_str()).collect();
        match names.len() {
            0..=8 => names.join(", "),
            n => format!("{} and {} more", names[..8].join(", "), n - 8),
        }
    };
    let domain: &MapDomain = match &request.domain {
        Some(name) => match map.domain(name) {
            Some(domain) => domain,
            None => return question(format!("--domain {name}: the run has {}", all())),
        },
        None => match map.domains.as_slice() {
            [one] => one,
            [] => return question("the run has no domain".to_owned()),
            _ => {
                return question(format!("several domains: expected --domain, one of {}", all()));
            }
        },
    };
    let nodes = domain.nodes().into_iter().cloned().collect();
    Ok((format!("domain {}", domain.name), nodes))
}

/// Why no part of this node is eligible.
fn exclusion_reason(member: &MapMember, request: &PlacementRequest) -> Option<String> {
    let has_gpu_to_blame = member.gpus.values().any(|gpu| gpu.outcome.is_some());
    match member.outcome {
        _ if member.reach == MeasuredReach::Nothing => Some("not measured".to_owned()),
        _ if request.level == PlacementLevel::Node && member.reach != MeasuredReach::Across => {
            Some("not measured against other nodes".to_owned())
        }
        Outcome::Pass => None,
        // Only one GPU of the node is faulty; the other GPUs are eligible.
        Outcome::Degraded if request.allow_degraded => None,
        Outcome::Degraded if request.level == PlacementLevel::Gpu && has_gpu_to_blame => None,
        outcome => Some(format!("{outcome}: {}", member.reason)),
    }
}

/// The eligible GPUs of a node.
fn collect_gpus(
    node: &NodeName,
    member: &MapMember,
    request: &PlacementRequest,
    parts: &mut Vec<PlacementPart>,
    excluded: &mut Vec<ExcludedPart>,
) {
    for (index, gpu) in &member.gpus {
        match gpu.outcome {
            Some(Outcome::Degraded) if request.allow_degraded => {}
            None | Some(Outcome::Pass) => {}
            Some(outcome) => {
                let why = format!("{outcome}: {}", join_class_names(&gpu.classes));
                excluded.push(ExcludedPart { part: format!("{node}:{index}"), why });
                continue;
            }
        }
        parts.push(PlacementPart { node: node.clone(), gpu: Some(*index), uuid: gpu.uuid.clone() });
    }
}

fn build_strengths(
    map: &VerifiedMap,
    level: PlacementLevel,
    parts: &[PlacementPart],
) -> PairStrengths {
    match level {
        PlacementLevel::Gpu => {
            let ids: Vec<GpuId> = parts
                .iter()
                .map(|part| GpuId::new(part.node.clone(), part.gpu.unwrap_or_default()))
                .collect();
            PairStrengths::new(parts.len(), |a, b| map.matrix.weaker_direction(&ids[a], &ids[b]))
        }
        PlacementLevel::Node => {
            let nodes = map.matrix.node_strengths();
            let at: BTreeMap<&NodeName, BTreeMap<&NodeName, f64>> =
                nodes.iter().fold(BTreeMap::new(), |mut at, ((from, to), value)| {
                    at.entry(from).or_default().insert(to, *value);
                    at
                });
            let way = |a: usize, b: usize| at.get(&parts[a].node)?.get(&parts[b].node).copied();
            PairStrengths::new(parts.len(), |a, b| Some(way(a, b)?.min(way(b, a)?)))
        }
    }
}

fn choose_best(
    strengths: &PairStrengths,
    parts: &[PlacementPart],
    count: usize,
) -> Option<PlacementChoice> {
    let chosen = best_subset::find_best(strengths, count)?;
    let next = if chosen.is_exact { best_subset::find_next(strengths, &chosen) } else { None };
    let next = next.map(|it| build_next(parts, &it, it.set.clone()));
    Some(build_choice(PlacementRule::Best, parts, &chosen, chosen.set.clone(), next))
}

/// The complement of the best-connected rest.
fn choose_spare(
    strengths: &PairStrengths,
    parts: &[PlacementPart],
    count: usize,
) -> Option<PlacementChoice> {
    let others =
        |set: &[usize]| -> Vec<usize> { (0..parts.len()).filter(|at| !set.contains(at)).collect() };
    let rest = parts.len() - count;
    if rest == 0 {
        // The set takes all parts, so none remains.
        let none = BestSubset {
            set: Vec::new(),
            weakest: None,
            sum: 0,
            is_exact: true,
            weakest_bound: 0,
            sum_bound: 0,
        };
        return Some(build_choice(PlacementRule::Spare, parts, &none, others(&[]), None));
    }
    let kept = best_subset::find_best(strengths, rest)?;
    let next = if kept.is_exact { best_subset::find_next(strengths, &kept) } else { None };
    let next = next.map(|it| build_next(parts, &it, others(&it.set)));
    Some(build_choice(PlacementRule::Spare, parts, &kept, others(&kept.set), next))
}

fn build_choice(
    way: PlacementRule,
    parts: &[PlacementPart],
    measured: &BestSubset,
    set: Vec<usize>,
    next: Option<NextBestSet>,
) -> PlacementChoice {
    let NextBestSet { parts: own, weakest, mean } = build_next(parts, measured, set);
    let bound = |value: u64| (!measured.is_exact).then(|| from_millionths(value));
    PlacementChoice {
        way,
        parts: own,
        weakest,
        mean,
        exact: measured.is_exact,
        weakest_bound: bound(measured.weakest_bound),
        mean_bound: mean_of(measured.sum_bound, measured.set.len()).filter(|_| !measured.is_exact),
        next,
    }
}

fn build_next(parts: &[PlacementPart], measured: &BestSubset, set: Vec<usize>) -> NextBestSet {
    let pair = |(a, b, strength): (usize, usize, u64)| PlacementPair {
        a: parts[a].to_string(),
        b: parts[b].to_string(),
        strength: from_millionths(strength),
    };
    NextBestSet {
        parts: set.into_iter().map(|at| parts[at].clone()).collect(),
        weakest: measured.weakest.map(pair),
        mean: mean_of(measured.sum, measured.set.len()),
    }
}

/// Converts millionths for display: four decimals.
fn from_millionths(millionths: u64) -> f64 {
    let hundreds = (millionths + 50) / 100;
    #[expect(clippy::cast_precision_loss, reason = "below 2^52")]
    let value = hundreds as f64;
    value / 1e4
}

fn mean_of(sum: u64, count: usize) -> Option<f64> {
    let pairs = u64::try_from(count * count.saturating_sub(1) / 2).ok()?;
    sum.checked_div(pairs).map(from_millionths)
}
