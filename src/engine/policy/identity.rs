//! Which machine a node is: its GPUs, boot, driver and firmware, as its facts,
//! its workers and the tools' outputs name them.
//!
//! Pure. It says what was there and compares nothing: `certificate` does.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use model::certificate::Identity;
use model::gpu_facts::GpuFacts;
use model::id::NodeName;
use model::node_facts::NodeFacts;
use model::raw::RawResult;
use model::recording::Recording;
use model::recording::Scope;
use model::worker::Machine;

/// Longest part of an identity that is taken over from what a tool printed.
const LONGEST: usize = 80;

/// Which machine a node says that it is. Parts of a form that no certificate
/// holds are left out.
pub fn identity(facts: &NodeFacts) -> Identity {
    let gpus = facts.gpus.as_deref().unwrap_or_default();
    let uuids: Option<Vec<String>> =
        gpus.iter().map(|gpu| gpu.uuid.as_deref().and_then(word)).collect();
    let vbios = |gpu: &GpuFacts| {
        let version = gpu.vbios.as_deref().and_then(word)?;
        Some((format!("GPU {} VBIOS", gpu.index), version))
    };
    Identity {
        // Where one does not tell, nobody knows whether they are the same.
        gpus: uuids.unwrap_or_default(),
        boot_id: facts.boot_id.as_deref().and_then(word),
        driver: facts.driver.as_ref().and_then(|it| it.version.as_deref()).and_then(word),
        firmware: gpus.iter().filter_map(vbios).collect(),
    }
}

/// What is known of which machine a node was in a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Seen {
    pub(super) identity: Identity,
    /// It was not one machine throughout.
    pub(super) trouble: Option<String>,
}

impl Seen {
    fn gpus(&mut self, lines: &[String]) {
        let gpus = gpus(lines);
        let uuids: Vec<String> = gpus.values().map(|gpu| gpu.uuid.clone()).collect();
        self.uuids(uuids);
        for (index, gpu) in gpus {
            if let Some(vbios) = gpu.vbios {
                self.identity.firmware.insert(format!("GPU {index} VBIOS"), vbios);
            }
        }
    }

    fn uuids(&mut self, uuids: Vec<String>) {
        if uuids.is_empty() || uuids == self.identity.gpus {
            return;
        }
        if self.identity.gpus.is_empty() {
            self.identity.gpus = uuids;
        } else {
            self.trouble = Some("it had other GPUs during the run than before".to_owned());
        }
    }

    fn driver(&mut self, driver: Option<&str>) {
        let Some(driver) = driver.and_then(word) else { return };
        match &self.identity.driver {
            Some(known) if *known != driver => {
                self.trouble = Some(format!("drivers {known} and {driver} in one run"));
            }
            _ => self.identity.driver = Some(driver),
        }
    }

    fn boot(&mut self, boot: Option<&str>) {
        let Some(boot) = boot.and_then(word) else { return };
        match &self.identity.boot_id {
            Some(known) if *known != boot => {
                self.trouble = Some("it booted during the run".to_owned());
            }
            _ => self.identity.boot_id = Some(boot),
        }
    }
}

fn told_boots(machines: &[Machine]) -> BTreeMap<&NodeName, BTreeSet<String>> {
    let mut told: BTreeMap<&NodeName, BTreeSet<String>> = BTreeMap::new();
    for Machine { node, environment, .. } in machines {
        told.entry(node).or_default().extend(environment.boot_id.as_deref().and_then(word));
    }
    told
}

/// Nodes that booted in the midst of a run: their workers told several boots.
pub fn rebooted(machines: &[Machine]) -> BTreeSet<NodeName> {
    let told = told_boots(machines).into_iter();
    told.filter(|(_, boots)| 1 < boots.len()).map(|(node, _)| node.clone()).collect()
}

/// The boot in which a run measured each node, as workers told it; none for a
/// node that booted in the midst of it.
pub fn boots(machines: &[Machine]) -> BTreeMap<NodeName, String> {
    let one = |(node, boots): (&NodeName, BTreeSet<String>)| {
        let is_one = boots.len() == 1;
        boots.into_iter().next().filter(|_| is_one).map(|boot| (node.clone(), boot))
    };
    told_boots(machines).into_iter().filter_map(one).collect()
}

/// UUIDs of the GPUs of each node in order of index, as workers told them; none
/// where they told different ones, or an index is left out.
pub fn uuids(machines: &[Machine]) -> BTreeMap<NodeName, Vec<String>> {
    let mut told: BTreeMap<&NodeName, Option<Vec<String>>> = BTreeMap::new();
    for Machine { node, environment, .. } in machines {
        let found = gpus(&environment.gpus);
        let is_whole = found.len() == environment.gpus.len()
            && (0..).zip(found.keys()).all(|(at, index): (u32, _)| at == *index);
        let found: Option<Vec<String>> =
            is_whole.then(|| found.into_values().map(|gpu| gpu.uuid).collect());
        match told.get(node) {
            Some(known) if *known != found => drop(told.insert(node, None)),
            Some(_) => {}
            None => drop(told.insert(node, found)),
        }
    }
    let told = told.into_iter().filter_map(|(node, found)| Some((node.clone(), found?)));
    told.filter(|(_, found)| !found.is_empty()).collect()
}

/// Nodes that were not one machine throughout a run, and why: nothing is said on them
/// that a certificate would not say.
pub fn unsure(
    machines: &[Machine],
    results: &[RawResult],
    recordings: &[Recording],
) -> BTreeMap<NodeName, String> {
    let seen = identities(machines, results, recordings).into_iter();
    seen.filter_map(|(node, seen)| Some((node, seen.trouble?))).collect()
}

/// Which machine every node was, as workers, readings and outputs name it.
pub(super) fn identities(
    machines: &[Machine],
    results: &[RawResult],
    recordings: &[Recording],
) -> BTreeMap<NodeName, Seen> {
    let mut seen: BTreeMap<NodeName, Seen> = BTreeMap::new();
    for Machine { node, environment, .. } in machines {
        let one = seen.entry(node.clone()).or_default();
        one.boot(environment.boot_id.as_deref());
        one.driver(environment.driver.as_deref());
        one.gpus(&environment.gpus);
    }
    for result in results.iter().filter(|result| !result.gpus.is_empty()) {
        if let Some(first) = result.nodes.first() {
            seen.entry(first.clone()).or_default().gpus(&result.gpus);
        }
    }
    for recording in recordings {
        let Scope::Node(node) = &recording.scope else { continue };
        let facts = &recording.parsed.facts;
        let one = seen.entry(node.clone()).or_default();
        one.driver(facts.driver.as_deref());
        let by_index: BTreeMap<u32, Option<String>> = facts
            .devices
            .iter()
            .map(|device| (device.index, device.uuid.as_deref().and_then(word)))
            .collect();
        // An output that leaves out the UUID of one GPU lists none of them.
        if let Some(uuids) = by_index.into_values().collect::<Option<Vec<String>>>() {
            one.uuids(uuids);
        }
    }
    seen
}

/// One GPU as a worker's line names it.
struct Gpu {
    uuid: String,
    vbios: Option<String>,
}

/// `index, UUID, clocks, clocks, temperature, power, VBIOS`, by index. Older
/// workers leave the last out.
fn gpus(lines: &[String]) -> BTreeMap<u32, Gpu> {
    let mut gpus = BTreeMap::new();
    for line in lines {
        let mut fields = line.split(',').map(str::trim);
        let index = fields.next().and_then(|index| index.parse().ok());
        let uuid = fields.next().filter(|uuid| uuid.starts_with("GPU-")).and_then(word);
        if let (Some(index), Some(uuid)) = (index, uuid) {
            gpus.insert(index, Gpu { uuid, vbios: fields.nth(4).and_then(word) });
        }
    }
    gpus
}

/// A version or an id as a tool printed it, where it can be one: `[N/A]` is
/// none.
fn word(text: &str) -> Option<String> {
    let text = text.trim();
    let harmless = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    let fits = !text.is_empty() && text.len() <= LONGEST;
    (fits && text.chars().all(harmless)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_no_gpus_are_no_identity() {
        let lines = [
            "No devices were found",
            "0",
            "x, GPU-a",
            "1, [N/A]",
            "2, GPU-\u{1b}[31m",
            "3, GPU-d, 1980 MHz, 2619 MHz, 31, 118.2 W, [N/A]",
            "10, GPU-k",
            "9, GPU-j",
        ];
        let found = gpus(&lines.map(str::to_owned));
        let uuids: Vec<&str> = found.values().map(|gpu| gpu.uuid.as_str()).collect();
        assert_eq!(uuids, ["GPU-d", "GPU-j", "GPU-k"]);
        assert!(found.values().all(|gpu| gpu.vbios.is_none()));
    }

    #[test]
    fn a_machine_is_who_it_says_it_is_as_far_as_it_says_so() {
        let gpu = |index, uuid: Option<&str>, vbios: &str| GpuFacts {
            index,
            uuid: uuid.map(str::to_owned),
            vbios: Some(vbios.to_owned()),
            ..GpuFacts::default()
        };
        let mut facts = NodeFacts {
            boot_id: Some("b-1\n".to_owned()),
            gpus: Some(vec![gpu(0, Some("GPU-a"), "96.1"), gpu(1, Some("GPU-b"), "[N/A]")]),
            ..NodeFacts::default()
        };
        let told = identity(&facts);
        assert_eq!(told.gpus, ["GPU-a", "GPU-b"]);
        assert_eq!((told.boot_id.as_deref(), told.driver), (Some("b-1"), None));
        assert_eq!(told.firmware, [("GPU 0 VBIOS".to_owned(), "96.1".to_owned())].into());
        facts.gpus = Some(vec![gpu(0, Some("GPU-a"), "96.1"), gpu(1, None, "96.1")]);
        assert!(identity(&facts).gpus.is_empty(), "one that is not told makes all unknown");
    }
}
