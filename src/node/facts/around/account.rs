//! One account of what was said around a probe.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::Line;
use super::Load;
use super::Reading;
use crate::facts::asking::together;
use model::node_facts::Missing;
use model::probed::Around;
use model::probed::GpuAround;
use model::probed::GpuState;
use model::throttle::ThrottleReason;

/// Takes from `more` what is higher, and what was never seen.
///
/// That a GPU has nothing to do is no reason for a clock below its best that
/// anybody would look into, and is seen between any two tests.
pub(super) fn raise(most: &mut GpuState, more: &GpuState) {
    most.sm_mhz = most.sm_mhz.max(more.sm_mhz);
    most.memory_mhz = most.memory_mhz.max(more.memory_mhz);
    most.power_w = match (most.power_w, more.power_w) {
        (Some(one), Some(other)) => Some(one.max(other)),
        (one, other) => one.or(other),
    };
    most.temperature_c = most.temperature_c.max(more.temperature_c);
    most.pcie_generation = most.pcie_generation.max(more.pcie_generation);
    most.pcie_width = most.pcie_width.max(more.pcie_width);
    for why in &more.throttled {
        if *why != ThrottleReason::Idle && !most.throttled.contains(why) {
            most.throttled.push(why.clone());
        }
    }
}

/// Makes one account of what the process said that watched GPUs around a probe.
///
/// `own` are the processes that the probe itself ran as. `trouble` is why the
/// process did not end by itself, where it did not. Lines that were cut off are
/// left out.
pub fn of(said: &str, own: &[u32], trouble: Option<&str>) -> Around {
    let mut heard = Heard::default();
    for line in said.lines() {
        if let Ok(line) = serde_json::from_str(line) {
            heard.hear(line);
        }
    }
    heard.account(own, trouble.unwrap_or("the process that reads them ended too early"))
}

/// What was heard so far.
#[derive(Default)]
struct Heard {
    count: Option<u32>,
    own_numbers: bool,
    before: BTreeMap<u32, Reading>,
    loads: BTreeMap<u32, Load>,
    after: BTreeMap<u32, Reading>,
    missing: Vec<Missing>,
    /// Why there is nothing at all, where that was said.
    nothing: Option<String>,
}

impl Heard {
    fn hear(&mut self, line: Line) {
        match line {
            Line::NoDriver { why } => self.nothing = Some(why),
            Line::Machine { gpus, own_numbers, missing } => {
                self.count = Some(gpus);
                self.own_numbers = own_numbers;
                self.missing.extend(missing);
            }
            Line::Before(mut reading) => {
                self.lack(&mut reading.missing);
                self.before.insert(reading.index, *reading);
            }
            Line::Load(mut load) => {
                self.lack(&mut load.missing);
                self.loads.insert(load.index, *load);
            }
            Line::After(mut reading) => {
                self.lack(&mut reading.missing);
                self.after.insert(reading.index, *reading);
            }
            Line::Begun | Line::End => {}
        }
    }

    /// What a GPU lacks before and after alike is said once.
    fn lack(&mut self, missing: &mut Vec<Missing>) {
        for missing in missing.drain(..) {
            if !self.missing.contains(&missing) {
                self.missing.push(missing);
            }
        }
    }

    fn account(mut self, own: &[u32], trouble: &str) -> Around {
        let mut around = Around::default();
        let Some(count) = self.count else {
            let why = self.nothing.unwrap_or_else(|| trouble.to_owned());
            around.missing.push(lacking("readings around the probe", Vec::new(), why));
            return around;
        };
        around.samples = self.loads.values().map(|load| load.samples).max().unwrap_or(0);
        let mut missing = std::mem::take(&mut self.missing);
        let without = |readings: &BTreeMap<u32, Reading>| {
            (0..count).filter(|index| !readings.contains_key(index)).collect::<Vec<u32>>()
        };
        for (when, gpus) in [("before", without(&self.before)), ("after", without(&self.after))] {
            if !gpus.is_empty() {
                missing.push(lacking(&format!("readings {when} the probe"), gpus, trouble));
            }
        }
        for index in 0..count {
            around.gpus.push(self.gpu(index, own, &mut missing));
        }
        around.missing = together(missing);
        around
    }

    fn gpu(&self, index: u32, own: &[u32], missing: &mut Vec<Missing>) -> GpuAround {
        let (before, after) = (self.before.get(&index), self.after.get(&index));
        let load = self.loads.get(&index).filter(|load| 0 < load.samples);
        let uuid = before.or(after).and_then(|reading| reading.uuid.clone());
        let state = |reading: Option<&Reading>| {
            reading.map(|it| it.state.clone()).filter(|state| *state != GpuState::default())
        };
        let mut gpu = GpuAround {
            index,
            uuid,
            before: state(before),
            under_load: load.map(|it| it.state.clone()).filter(|it| *it != GpuState::default()),
            after: state(after),
            others: self.others(index, own),
            ..GpuAround::default()
        };
        if let (Some(before), Some(after)) = (before, after) {
            grown(&mut gpu, before, after, missing);
        }
        gpu
    }

    /// Processes on a GPU that are not ours. Where the driver counts processes
    /// otherwise than we do, ours cannot be told by number, and only those that
    /// were there before ours began are surely others.
    fn others(&self, index: u32, own: &[u32]) -> Vec<u32> {
        let before = self.before.get(&index).map(|reading| &reading.processes);
        if !self.own_numbers {
            return before.into_iter().flatten().copied().collect();
        }
        let load = self.loads.get(&index).map(|load| &load.processes);
        let after = self.after.get(&index).map(|reading| &reading.processes);
        let all = [before, load, after].into_iter().flatten().flatten();
        let others: BTreeSet<u32> = all.copied().filter(|pid| !own.contains(pid)).collect();
        others.into_iter().collect()
    }
}

fn lacking(what: &str, gpus: Vec<u32>, why: impl Into<String>) -> Missing {
    Missing { what: what.to_owned(), gpus, why: why.into(), ..Missing::default() }
}

/// By how much counters grew. One that went back was set back by somebody, and
/// says nothing of what happened meanwhile.
fn grown(gpu: &mut GpuAround, before: &Reading, after: &Reading, missing: &mut Vec<Missing>) {
    let index = gpu.index;
    let mut growth = |what: &str, link: Option<u32>, from: u64, to: u64| {
        if to < from {
            let why = format!("it went back from {from} to {to} meanwhile: it was set back");
            let links = link.into_iter().collect();
            missing.push(Missing { links, ..lacking(what, vec![index], why) });
        }
        to.checked_sub(from)
    };
    if let (Some(from), Some(to)) = (before.pcie_replays, after.pcie_replays) {
        gpu.pcie_replays = growth("growth of PCIe replays", None, from, to);
    }
    let at_first: BTreeMap<_, _> = before.links.iter().map(|(link, it)| (link, it)).collect();
    for (link, counters) in &after.links {
        for (name, to) in counters {
            let from = at_first.get(link).and_then(|counters| counters.get(name));
            let Some(from) = from else { continue };
            let what = format!("growth of NVLink errors {name}");
            if let Some(more) = growth(&what, Some(*link), *from, *to).filter(|it| 0 < *it) {
                gpu.link_errors.entry(*link).or_default().insert(name.clone(), more);
            }
        }
    }
}
