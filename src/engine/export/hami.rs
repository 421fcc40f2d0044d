//! GPU pair scores in HAMi's format, from measurements instead of link counts, under fabricgate's
//! own key; with HAMi's annotation as input, also the pairs that HAMi scores higher than measured.
//!
//! HAMi's score of a pair is 100 per NVLink between them plus at most 60 for their PCI Express
//! path. Here it is 100 times the number of links that the measured rate corresponds to; the second
//! term is not measured and is absent.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::labels::is_object_name;
use super::{
    ExportFile, ExportOptions, ExportOutput, ExportRefusal, ExportTarget, refuse, select_members,
};
use crate::place::map::{MapMember, VerifiedMap};
use crate::place::strength_matrix::StrengthScale;
use model::id::{GpuId, NodeName};
use model::shell_quote;
use model::text::clean;

/// fabricgate's key, in HAMi's schema.
const SCORES_KEY: &str = "fabricgate.io/node-nvidia-score";
const RUN_KEY: &str = "fabricgate.io/node-nvidia-score-run";
/// HAMi's own key.
const HAMI_KEY: &str = "hami.io/node-nvidia-score";
/// HAMi's points for one NVLink.
const POINTS_PER_LINK: f64 = 100.0;
/// A pair counts as lower than scored from half a link on: a smaller difference may be noise, a
/// larger one is a link.
const NOISE_LINKS: f64 = 0.5;

pub(super) const TARGET: ExportTarget = ExportTarget {
    name: "hami-scores",
    about: "measured scores of GPU pairs in HAMi's schema, and the pairs that HAMi scores higher",
    takes: &["nodes", "domain", "hami"],
    write,
};

/// Scores of one node: by UUID, of every other GPU.
type HamiScores = BTreeMap<String, BTreeMap<String, u32>>;

fn write(map: &VerifiedMap, options: &ExportOptions) -> Result<ExportOutput, ExportRefusal> {
    if map.matrix.scale != StrengthScale::Share {
        return refuse(
            "the expected link rate of this platform is unknown, so a rate cannot be converted to \
             a number of links; expected a run of a platform with NVLinks in thresholds",
        );
    }
    let believed = options.hami.as_deref().map(parse_hami_scores).transpose()?;
    let mut remarks = Vec::new();
    let mut all: BTreeMap<&NodeName, HamiScores> = BTreeMap::new();
    for (node, member) in select_members(map, options)? {
        match score_node(map, node, member) {
            Ok((scores, remark)) => {
                remarks.extend(remark);
                all.insert(node, scores);
            }
            Err(why) => remarks.push(format!("no scores of {}: {why}", clean(node.as_str()))),
        }
    }
    if all.is_empty() {
        return refuse(format!(
            "no pair of GPUs inside a node was measured. {}",
            remarks.join("; ")
        ));
    }
    let mut script = format!("#!/bin/sh\n{}", map.comment_lines("#"));
    script.push_str(&format!(
        "# 100 points per NVLink that the measured rate corresponds to; unmeasured pairs are \
         absent.\n\
         # {HAMI_KEY} is HAMi's own and is not touched.\nset -eu\n"
    ));
    let mut whole = serde_json::Map::new();
    for (node, scores) in &all {
        let list: Vec<Value> =
            scores.iter().map(|(uuid, score)| json!({ "uuid": uuid, "score": score })).collect();
        let list = Value::from(list);
        if is_object_name(node.as_str()) {
            let name = node.to_string();
            let annotations =
                [format!("{SCORES_KEY}={list}"), format!("{RUN_KEY}={}", clean(&map.run.id))];
            let command = ["kubectl", "annotate", "--overwrite", "node", &name].map(str::to_owned);
            let words: Vec<String> = command.into_iter().chain(annotations).collect();
            script.push_str(&shell_quote::join_quoted(&words));
            script.push('\n');
        } else {
            remarks.push(format!("no command for {}: not a valid node name", clean(node.as_str())));
        }
        whole.insert(node.to_string(), list);
    }
    let document = json!({ "note": map.header_lines(), "run": map.run.id, "nodes": whole });
    let mut files = vec![
        ExportFile::text("hami-scores.sh", script),
        ExportFile::text("hami-scores.json", format!("{document:#}\n")),
    ];
    if let Some(believed) = &believed {
        let (file, found) = compare_scores(map, &all, believed);
        files.insert(0, file);
        remarks.extend(found);
    }
    Ok(ExportOutput { files, remarks })
}

/// The scores of one node, and the pairs left out.
fn score_node(
    map: &VerifiedMap,
    node: &NodeName,
    member: &MapMember,
) -> Result<(HamiScores, Option<String>), String> {
    let domain = map.domain_of(node).ok_or("it is in no domain")?;
    let links = domain.nvlinks.ok_or("the NVLinks of its platform are unknown")?;
    let gpus: Vec<(GpuId, &String)> = member
        .gpus
        .iter()
        .filter_map(|(index, gpu)| Some((GpuId::new(node.clone(), *index), gpu.uuid.as_ref()?)))
        .collect();
    if gpus.len() < member.gpus.len() {
        return Err("the UUIDs of its GPUs are unknown".to_owned());
    }
    let mut scores = HamiScores::new();
    let (mut pairs, mut measured) = (0, 0);
    for (a, uuid) in &gpus {
        for (b, other) in gpus.iter().filter(|(b, _)| b != a) {
            pairs += 1;
            // Both directions: HAMi gives no score to a pair that differs by direction.
            let Some(share) = map.matrix.weaker_direction(a, b) else { continue };
            measured += 1;
            let score = to_points(share, links);
            scores.entry((*uuid).clone()).or_default().insert((*other).clone(), score);
        }
    }
    match measured {
        0 => Err("no pair of its GPUs was measured both ways".to_owned()),
        some if some < pairs => {
            let gone = (pairs - some) / 2;
            let name = clean(node.as_str());
            Ok((scores, Some(format!("{gone} pairs of {name} were not measured both ways"))))
        }
        _ => Ok((scores, None)),
    }
}

/// A share of the combined link rate in HAMi's points, capped at the number of links.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "0 to 100 times 18 links"
)]
fn to_points(share: f64, links: u32) -> u32 {
    (POINTS_PER_LINK * f64::from(links) * share.clamp(0.0, 1.0)).round() as u32
}

/// HAMi's annotation by node, from node objects (`kubectl get nodes -o json`), or from an object of
/// annotations by node.
fn parse_hami_scores(text: &str) -> Result<BTreeMap<String, HamiScores>, ExportRefusal> {
    let wrong = |why: String| {
        ExportRefusal(format!(
            "--hami: {why}, expected what `kubectl get nodes -o json` writes, or the annotation \
             {HAMI_KEY} by name of node"
        ))
    };
    let read: Value = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    let mut found = BTreeMap::new();
    let mut take = |name: &str, annotation: &Value| -> Result<(), ExportRefusal> {
        let list = match annotation {
            Value::String(text) => serde_json::from_str(text)
                .map_err(|error| wrong(format!("{}: {error}", clean(name))))?,
            other => other.clone(),
        };
        let items = list.as_array().ok_or_else(|| wrong(format!("{}: not a list", clean(name))))?;
        let mut scores = HamiScores::new();
        for item in items {
            let uuid = item["uuid"].as_str().unwrap_or_default().to_owned();
            let peers = item["score"].as_object().into_iter().flatten();
            let peers = peers.filter_map(|(peer, score)| {
                Some((peer.clone(), u32::try_from(score.as_u64()?).ok()?))
            });
            scores.entry(uuid).or_default().extend(peers);
        }
        found.insert(name.to_owned(), scores);
        Ok(())
    };
    let nodes = match (read["items"].as_array(), read["kind"].as_str()) {
        (Some(items), _) => Some(items.as_slice()),
        (None, Some("Node")) => Some(std::slice::from_ref(&read)),
        _ => None,
    };
    match (nodes, read.as_object()) {
        (Some(nodes), _) => {
            for node in nodes {
                let meta = &node["metadata"];
                let annotation = &meta["annotations"][HAMI_KEY];
                if !annotation.is_null() {
                    take(meta["name"].as_str().unwrap_or_default(), annotation)?;
                }
            }
        }
        (None, Some(fields)) => {
            for (name, annotation) in fields {
                take(name, annotation)?;
            }
        }
        _ => return Err(wrong("not an object".to_owned())),
    }
    if found.is_empty() {
        return Err(wrong("no node has the annotation".to_owned()));
    }
    Ok(found)
}

/// HAMi's scores next to the measured ones, as a table, and a summary sentence.
fn compare_scores(
    map: &VerifiedMap,
    measured: &BTreeMap<&NodeName, HamiScores>,
    believed: &BTreeMap<String, HamiScores>,
) -> (ExportFile, Vec<String>) {
    let mut out = map.comment_lines("#");
    out.push_str("node,gpu,peer,hami_score,hami_links,measured_score,measured_links,says\n");
    let mut remarks = Vec::new();
    let (mut lower, mut unmeasured, mut equal) = (0, 0, 0);
    for (node, scores) in measured {
        let Some(beliefs) = believed.get(node.as_str()) else {
            remarks.push(format!("HAMi has no scores for {}", clean(node.as_str())));
            continue;
        };
        for (uuid, peer) in scored_pairs(beliefs) {
            let way = |from: &str, to: &str| beliefs.get(from).and_then(|it| it.get(to)).copied();
            let (there, back) = (way(uuid, peer), way(peer, uuid));
            let Some(score) = there.or(back) else { continue };
            let ours = scores.get(uuid).and_then(|it| it.get(peer));
            // The PCI Express term is less than one link.
            let links = score / 100;
            let verdict = match ours {
                // A pair with a missing direction has no equal scores.
                _ if there != back => "hami-asymmetric",
                None => "not-measured",
                Some(ours)
                    if f64::from(*ours) / POINTS_PER_LINK <= f64::from(links) - NOISE_LINKS =>
                {
                    "lower"
                }
                Some(ours)
                    if f64::from(links) + NOISE_LINKS <= f64::from(*ours) / POINTS_PER_LINK =>
                {
                    "higher"
                }
                Some(_) => "as-believed",
            };
            lower += u32::from(verdict == "lower");
            unmeasured += u32::from(verdict == "not-measured");
            equal += u32::from(verdict == "as-believed");
            let shown = |value: Option<String>| value.unwrap_or_default();
            out.push_str(&format!(
                "{},{},{},{score},{links},{},{},{verdict}\n",
                escape_field(node.as_str()),
                escape_field(uuid),
                escape_field(peer),
                shown(ours.map(ToString::to_string)),
                shown(ours.map(|it| format!("{:.2}", f64::from(*it) / POINTS_PER_LINK))),
            ));
        }
    }
    remarks.push(format!(
        "of HAMi's pairs, {lower} were measured lower than scored, {equal} as scored, \
         {unmeasured} not measured"
    ));
    (ExportFile::text("hami-comparison.csv", out), remarks)
}

/// The pairs that HAMi scores in one direction or both, each once.
fn scored_pairs(beliefs: &HamiScores) -> BTreeSet<(&str, &str)> {
    let each = beliefs.iter().flat_map(|(uuid, peers)| {
        peers
            .keys()
            .map(move |peer| (uuid.as_str().min(peer.as_str()), uuid.as_str().max(peer.as_str())))
    });
    each.filter(|(uuid, peer)| uuid != peer).collect()
}

/// Escapes a table field: names come from outside.
fn escape_field(text: &str) -> String {
    let text = clean(text);
    let is_bare = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'));
    if is_bare && !text.starts_with('-') {
        return text;
    }
    format!("\"'{}\"", text.replace('"', "\"\""))
}
