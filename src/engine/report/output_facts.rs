//! The facts about machines in an output, in a line or two per kind.
//!
//! Equal facts are listed once, with their GPUs. Nothing is judged: an inactive link is listed as
//! in the output.

use std::collections::BTreeMap;

use super::plain_text::{clip, count_noun, format_number, list_names};
use model::tool_facts::{GpuFabric, GpuLinks, ToolFacts};

/// Longest value taken from a file.
const LONGEST: usize = 200;
/// Most lines of one kind; the rest are counted.
const MOST: usize = 16;

/// All facts, as (name, text) lines.
pub(super) fn describe_facts(facts: &ToolFacts) -> Vec<(String, String)> {
    let mut out = Vec::new();
    let mut add = |what: &str, text: String| out.push((what.to_owned(), text));
    let versions: Vec<String> = [
        ("driver", &facts.driver),
        ("CUDA version of the driver", &facts.cuda_driver),
        ("CUDA runtime", &facts.cuda_runtime),
        ("NCCL", &facts.nccl),
    ]
    .iter()
    .filter_map(|(what, version)| Some(format!("{what} {}", clip(version.as_deref()?, 60))))
    .collect();
    if !versions.is_empty() {
        add("versions", versions.join(", "));
    }
    if !facts.hosts.is_empty() {
        add("hosts", format!("{}: {}", facts.hosts.len(), list_names(&facts.hosts, 6)));
    }
    if !facts.devices.is_empty() {
        add("devices", count_names(facts.devices.iter().map(|d| d.name.as_deref())));
    }
    if !facts.ranks.is_empty() {
        let mut hosts: Vec<&str> = facts.ranks.iter().map(|r| r.host.as_str()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let on = count_noun(hosts.len(), "host", "hosts");
        let devices = count_names(facts.ranks.iter().map(|r| r.name.as_deref()));
        add("ranks", format!("{} on {on}: {devices}", facts.ranks.len()));
    }
    if !facts.transports.is_empty() {
        add("transports", list_names(&facts.transports, 8));
    }
    for (gpus, text) in group_equal(facts.nvlinks.iter().map(|g| (g.gpu, format_links(g)))) {
        add("NVLinks", format!("{gpus}: {text}"));
    }
    for (gpus, text) in group_equal(facts.fabric.iter().map(|g| (g.gpu, format_fabric(g)))) {
        add("fabric", format!("{gpus}: {text}"));
    }
    describe_topology(facts, &mut add);
    describe_imex(facts, &mut add);
    describe_diagnostics(facts, &mut add);
    let values = list_values(facts);
    for text in values.iter().take(MOST) {
        add("values", text.clone());
    }
    if MOST < values.len() {
        add("values", format!("and {} more; --json has all", values.len() - MOST));
    }
    out
}

/// Values under the tool's own names. Values per GPU (`gpu3.name`) become one line per name, those
/// that differ first.
fn list_values(facts: &ToolFacts) -> Vec<String> {
    let mut by_name: BTreeMap<&str, BTreeMap<&str, Vec<u32>>> = BTreeMap::new();
    let mut plain = Vec::new();
    for (name, value) in &facts.parameters {
        let gpu = name.strip_prefix("gpu").and_then(|rest| rest.split_once('.'));
        match gpu.and_then(|(gpu, name)| Some((gpu.parse::<u32>().ok()?, name))) {
            Some((gpu, name)) => {
                by_name.entry(name).or_default().entry(value).or_default().push(gpu);
            }
            None => plain.push(format!("{} {}", clip(name, 60), clip(value, LONGEST))),
        }
    }
    let mut each: Vec<_> = by_name.into_iter().collect();
    each.sort_by_key(|(_, values)| values.len() < 2);
    plain.extend(each.into_iter().map(|(name, values)| {
        let values = values.into_iter().take(MOST).map(|(value, gpus)| {
            let noun = if gpus.len() == 1 { "GPU" } else { "GPUs" };
            format!("{} ({noun} {})", clip(value, 60), format_ranges(&gpus))
        });
        format!("{}: {}", clip(name, 60), values.collect::<Vec<_>>().join(", "))
    }));
    plain
}

/// For example `8 NVIDIA H100`, and so on for every name.
fn count_names<'n>(names: impl Iterator<Item = Option<&'n str>>) -> String {
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    for name in names {
        *count.entry(name.unwrap_or("without a name")).or_default() += 1;
    }
    let each = count.iter().map(|(name, count)| format!("{count} {}", clip(name, 60)));
    list_names(&each.collect::<Vec<_>>(), 6)
}

/// Groups GPUs with equal values.
fn group_equal(each: impl Iterator<Item = (u32, String)>) -> Vec<(String, String)> {
    let mut by_text: Vec<(String, Vec<u32>)> = Vec::new();
    for (gpu, text) in each {
        match by_text.iter_mut().find(|(same, _)| *same == text) {
            Some((_, gpus)) => gpus.push(gpu),
            None => by_text.push((text, vec![gpu])),
        }
    }
    let more = by_text.len().saturating_sub(MOST);
    let lines = by_text.into_iter().take(MOST).map(|(text, gpus)| {
        let noun = if gpus.len() == 1 { "GPU" } else { "GPUs" };
        (format!("{noun} {}", format_ranges(&gpus)), text)
    });
    let mut lines: Vec<_> = lines.collect();
    if 0 < more {
        lines.push(("and".to_owned(), format!("{more} more kinds; --json has all")));
    }
    lines
}

/// For example `0-3, 6`.
fn format_ranges(numbers: &[u32]) -> String {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let runs = sorted.chunk_by(|a, b| a.checked_add(1) == Some(*b));
    let each = runs.map(|run| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    });
    list_names(&each.collect::<Vec<_>>(), 12)
}

fn format_links(gpu: &GpuLinks) -> String {
    if gpu.all_inactive {
        return "all links inactive".to_owned();
    }
    let listed: Vec<_> = gpu.links.iter().filter(|l| l.active.is_some()).collect();
    let mut parts = Vec::new();
    if listed.is_empty() {
        parts.push(format!("{}, state not reported", count_noun(gpu.links.len(), "link", "links")));
    } else {
        let up = listed.iter().filter(|l| l.active == Some(true)).count();
        parts.push(format!("{up} of {} listed links active", listed.len()));
        let down: Vec<u32> =
            listed.iter().filter(|l| l.active == Some(false)).map(|l| l.link).collect();
        if !down.is_empty() {
            parts.push(format!("inactive {}", format_ranges(&down)));
        }
    }
    let mut rates: Vec<f64> = gpu.links.iter().filter_map(|l| l.rate).collect();
    rates.sort_by(f64::total_cmp);
    if let (Some(low), Some(high)) = (rates.first(), rates.last()) {
        parts.push(if low == high {
            format!("{} GB/s each", format_number(*low))
        } else {
            format!("{} to {} GB/s", format_number(*low), format_number(*high))
        });
    }
    let mut errors: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, count) in gpu.links.iter().flat_map(|l| &l.errors) {
        let sum = errors.entry(name).or_default();
        *sum = sum.saturating_add(count.unwrap_or(0));
    }
    if !errors.is_empty() {
        let some: Vec<String> = errors
            .iter()
            .filter(|(_, count)| 0 < **count)
            .map(|(name, count)| format!("{} {count}", clip(name, 40)))
            .collect();
        parts.push(if some.is_empty() {
            "no errors counted".to_owned()
        } else {
            list_names(&some, 6)
        });
    }
    parts.join(", ")
}

fn format_fabric(gpu: &GpuFabric) -> String {
    let value =
        |v: &Option<String>| v.as_deref().map_or_else(|| "not reported".into(), |v| clip(v, 60));
    let mut text = format!("state {}, status {}", value(&gpu.state), value(&gpu.status));
    // Values that do not apply would fill the line on every machine without a fabric.
    let applies = |v: &&String| v.as_str() != "N/A";
    if let Some(clique) = gpu.clique_id.as_ref().filter(applies) {
        text.push_str(&format!(", clique {}", clip(clique, 40)));
    }
    if let Some(cluster) = gpu.cluster_uuid.as_ref().filter(applies) {
        text.push_str(&format!(", cluster {}", clip(cluster, 40)));
    }
    let health = gpu.health.iter().filter(|(_, v)| applies(v));
    let health: Vec<String> =
        health.map(|(k, v)| format!("{}: {}", clip(k, 40), clip(v, 40))).collect();
    if !health.is_empty() {
        text.push_str(&format!("; {}", list_names(&health, 8)));
    }
    text
}

fn describe_topology(facts: &ToolFacts, add: &mut impl FnMut(&str, String)) {
    let Some(topology) = &facts.topology else { return };
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for kind in topology.rows.iter().flat_map(|r| &r.connections) {
        *kinds.entry(kind).or_default() += 1;
    }
    kinds.remove("X");
    let each: Vec<String> = kinds.iter().map(|(k, n)| format!("{} {n}", clip(k, 20))).collect();
    let devices = count_noun(topology.rows.len(), "device", "devices");
    add("topology", format!("{devices}; connections {}", list_names(&each, 12)));
}

fn describe_imex(facts: &ToolFacts, add: &mut impl FnMut(&str, String)) {
    let Some(imex) = &facts.imex else { return };
    let status = imex.status.as_deref().map_or_else(|| "not reported".to_owned(), |s| clip(s, 40));
    let members = count_noun(imex.nodes.len(), "member", "members");
    add("IMEX", format!("domain {status}, {members}"));
    let mut by_status: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for node in &imex.nodes {
        let name = node.host_name.as_deref().or(node.host.as_deref()).unwrap_or("no name");
        by_status.entry(node.status.as_deref().unwrap_or("not reported")).or_default().push(name);
    }
    for (status, names) in by_status.iter().take(MOST) {
        add("IMEX", format!("{} {}: {}", names.len(), clip(status, 40), list_names(names, 6)));
    }
}

fn describe_diagnostics(facts: &ToolFacts, add: &mut impl FnMut(&str, String)) {
    if facts.diagnostics.is_empty() {
        return;
    }
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    for result in &facts.diagnostics {
        *count.entry(&result.status).or_default() += 1;
    }
    let each: Vec<String> = count.iter().map(|(s, n)| format!("{n} {}", clip(s, 20))).collect();
    add("diagnostics", list_names(&each, 8));
    let rest = facts.diagnostics.iter().filter(|d| d.status != "pass" && d.status != "skip");
    for result in rest.take(MOST) {
        let gpu = result.gpu.map(|g| format!(" GPU {g}")).unwrap_or_default();
        let why = clip(&result.messages.join("; "), LONGEST);
        let colon = if why.is_empty() { "" } else { ": " };
        let (test, status) = (clip(&result.test, 60), clip(&result.status, 20));
        add("diagnostics", format!("{test}{gpu} {status}{colon}{why}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::tool_facts::ToolNvlink;

    #[test]
    fn gpus_that_are_alike_are_one_line_and_the_odd_one_is_another() {
        let gpu = |gpu: u32, down: Option<u32>| GpuLinks {
            gpu,
            links: (0..4)
                .map(|link| ToolNvlink {
                    link,
                    active: Some(Some(link) != down),
                    rate: (Some(link) != down).then_some(25.0),
                    ..ToolNvlink::default()
                })
                .collect(),
            ..GpuLinks::default()
        };
        let nvlinks = (0..8).map(|g| gpu(g, (g == 5).then_some(2))).collect();
        let facts = ToolFacts { nvlinks, ..ToolFacts::default() };
        let lines: Vec<String> = describe_facts(&facts).into_iter().map(|(_, text)| text).collect();
        assert_eq!(
            lines,
            [
                "GPUs 0-4, 6-7: 4 of 4 listed links active, 25.00 GB/s each",
                "GPU 5: 3 of 4 listed links active, inactive 2, 25.00 GB/s each"
            ]
        );
    }

    #[test]
    fn values_per_gpu_are_one_line_per_name_with_differing_ones_first() {
        let pairs = [
            ("gpu0.ecc", "On"),
            ("gpu0.retired", "0"),
            ("gpu1.ecc", "On"),
            ("gpu1.retired", "5"),
            ("gpu.odd", "x"),
        ];
        let parameters = pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let lines = list_values(&ToolFacts { parameters, ..ToolFacts::default() });
        assert_eq!(lines, ["gpu.odd x", "retired: 0 (GPU 0), 5 (GPU 1)", "ecc: On (GPUs 0-1)"]);
    }

    #[test]
    fn an_output_that_tells_nothing_has_no_lines() {
        assert!(describe_facts(&ToolFacts::default()).is_empty());
    }
}
