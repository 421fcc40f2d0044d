//! The machine: its GPUs, and the resources and rates of a transfer.
//!
//! Rates are in GB/s, which is bytes per nanosecond. A GPU is named by its number in the driver's
//! order, one of another node as `node:number`.

use crate::description::{Description, wrong};
use crate::fluid::Way;

/// Place of memory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Host,
    Gpu { node: String, gpu: u32 },
}

/// Resources that transfers share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// From the host to a GPU.
    Down(Place),
    /// From a GPU to the host.
    Up(Place),
    /// From the host through a root port of this name.
    RootDown(String),
    /// To the host through a root port.
    RootUp(String),
    /// Out of a GPU's fabric port.
    Out(Place),
    /// Into a GPU's fabric port.
    In(Place),
    /// From one GPU to another.
    Pair(Place, Place),
    /// The switch between all pairs.
    Switch,
    /// A GPU's memory.
    Local(Place),
    /// The host's memory.
    HostMemory,
}

#[derive(Clone, Debug)]
pub struct Gpu {
    pub name: String,
    pub uuid: [u8; 16],
    pub bus: String,
    pub memory: u64,
    /// Bytes of its cache.
    pub cache: i32,
    pub compute_mode: i32,
    pub busy: bool,
}

#[derive(Debug)]
pub struct Machine {
    pub node: String,
    pub cuda: i32,
    pub clique: i32,
    pub imex: bool,
    pub fabric: bool,
    pub stream_memory: bool,
    /// Minimum time of a copy, in nanoseconds.
    pub latency_ns: f64,
    /// All GPUs, by their number in the description.
    pub gpus: Vec<Gpu>,
    /// The numbers of the GPUs that are visible to this process, in its order.
    pub visible: Vec<u32>,
    pub description: Description,
}

/// The first words of the keys of this library. Keys that begin with `nvml` or `nccl` belong to
/// the other libraries.
const KNOWN: &[&str] = &[
    "node",
    "cuda",
    "clique",
    "imex",
    "fabric",
    "stream-memory",
    "latency",
    "gpus",
    "gpu",
    "pair",
    "port",
    "root",
    "switch",
    "local",
    "host-memory",
    "no-peer",
    "wrong-data",
    "hang",
    "fail",
    "die",
    "lost",
    "calls",
    "nvml",
    "nccl",
];

impl Machine {
    pub fn of(description: Description) -> Self {
        description.must_begin_with(KNOWN);
        let number = |words: &[&str], otherwise: i32| description.get(words).unwrap_or(otherwise);
        let flag = |words: &[&str], otherwise| description.is_yes(words).unwrap_or(otherwise);
        let count = number(&["gpus"], 1).unsigned_abs();
        let gpus: Vec<Gpu> = (0..count).map(|gpu| Gpu::of(&description, gpu)).collect();
        Self {
            node: description.get(&["node"]).unwrap_or("node0".to_owned()),
            cuda: number(&["cuda"], 13_000),
            clique: number(&["clique"], 1),
            imex: flag(&["imex"], true),
            fabric: flag(&["fabric"], true),
            stream_memory: flag(&["stream-memory"], true),
            latency_ns: description.get(&["latency"]).unwrap_or(2.0) * 1e3,
            visible: visible(&gpus),
            gpus,
            description,
        }
    }

    pub fn place(&self, gpu: u32) -> Place {
        Place::Gpu { node: self.node.clone(), gpu }
    }

    /// True if one GPU of this node can reach the memory of another.
    pub fn can_access(&self, from: u32, to: u32) -> bool {
        let (from, to) = (from.to_string(), to.to_string());
        from != to && self.description.is_yes(&["no-peer", &from, &to]).is_none()
    }

    fn named(&self, place: &Place) -> String {
        match place {
            Place::Host => "host".to_owned(),
            Place::Gpu { node, gpu } if *node == self.node => gpu.to_string(),
            Place::Gpu { node, gpu } => format!("{node}:{gpu}"),
        }
    }

    fn rate(&self, words: &[&str]) -> Option<f64> {
        self.description.get(words)
    }

    /// The resources between two places: over the fabric where the copy is `direct`, over the
    /// host otherwise.
    pub fn way(&self, from: &Place, to: &Place, direct: bool) -> Way<Resource> {
        match (from, to) {
            (Place::Host, Place::Host) => {
                vec![(Resource::HostMemory, self.rate(&["host-memory"]).unwrap_or(100.0))]
            }
            (Place::Host, gpu) => self.down(gpu),
            (gpu, Place::Host) => self.up(gpu),
            (from, to) if from == to => {
                vec![(Resource::Local(to.clone()), self.rate(&["local"]).unwrap_or(1500.0))]
            }
            (from, to) if direct => self.across(from, to),
            (from, to) => self.up(from).into_iter().chain(self.down(to)).collect(),
        }
    }

    fn down(&self, gpu: &Place) -> Way<Resource> {
        let name = self.named(gpu);
        let rate = self.rate(&["gpu", &name, "down"]).or(self.rate(&["gpu", "down"]));
        let mut way = vec![(Resource::Down(gpu.clone()), rate.unwrap_or(55.0))];
        if let Some((root, capacity)) = self.root(&name) {
            way.push((Resource::RootDown(root), capacity));
        }
        way
    }

    fn up(&self, gpu: &Place) -> Way<Resource> {
        let name = self.named(gpu);
        let rate = self.rate(&["gpu", &name, "up"]).or(self.rate(&["gpu", "up"]));
        let mut way = vec![(Resource::Up(gpu.clone()), rate.unwrap_or(55.0))];
        if let Some((root, capacity)) = self.root(&name) {
            way.push((Resource::RootUp(root), capacity));
        }
        way
    }

    /// The root port above a GPU, and its rate each way.
    fn root(&self, gpu: &str) -> Option<(String, f64)> {
        let root: String = self.description.get(&["gpu", gpu, "root"])?;
        let capacity = self.rate(&["root", &root]);
        let capacity = capacity.unwrap_or_else(|| wrong(&format!("root {root} has no rate")));
        Some((root, capacity))
    }

    fn across(&self, from: &Place, to: &Place) -> Way<Resource> {
        let (source, target) = (self.named(from), self.named(to));
        let usual = self.rate(&["pair"]).unwrap_or(390.0);
        let pair = self.rate(&["pair", &source, &target]).unwrap_or(usual);
        let port = |gpu: &str| {
            self.rate(&["port", gpu]).or(self.rate(&["port"])).unwrap_or(usual.max(pair))
        };
        let mut way = vec![
            (Resource::Pair(from.clone(), to.clone()), pair),
            (Resource::Out(from.clone()), port(&source)),
            (Resource::In(to.clone()), port(&target)),
        ];
        if let Some(switch) = self.rate(&["switch"]) {
            way.push((Resource::Switch, switch));
        }
        way
    }

    /// True if data on this way arrives wrong.
    pub fn is_wrong(&self, from: &Place, to: &Place) -> bool {
        let (from, to) = (self.named(from), self.named(to));
        self.description.is_yes(&["wrong-data", &from, &to]).is_some()
    }
}

/// The GPUs that the environment shows, as in CUDA's programming guide: in the order of the bus
/// where requested, and the listed ones up to the first unknown one.
fn visible(gpus: &[Gpu]) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..).zip(gpus).map(|(number, _)| number).collect();
    if std::env::var("CUDA_DEVICE_ORDER").is_ok_and(|order| order == "PCI_BUS_ID") {
        numbers.sort_by_key(|number| gpus[*number as usize].bus.clone());
    }
    let Ok(list) = std::env::var("CUDA_VISIBLE_DEVICES") else { return numbers };
    let asked = list.split(',').map(|word| word.trim().parse::<usize>().ok());
    asked.map_while(|ordinal| numbers.get(ordinal?).copied()).collect()
}

impl Gpu {
    fn of(description: &Description, gpu: u32) -> Self {
        let number = gpu.to_string();
        let own = |what: &str| description.get::<String>(&["gpu", &number, what]);
        let all = |what: &str| description.get::<String>(&["gpu", what]);
        let get = |what: &str| own(what).or_else(|| all(what));
        let parsed = |what: &str, otherwise: u64| {
            let read = |text: String| text.parse().unwrap_or_else(|_| wrong(&text));
            get(what).map_or(otherwise, read)
        };
        let name = get("name").unwrap_or("Stub H100".to_owned());
        let mig = get("mig").is_some_and(|text| text == "yes");
        let bus = format!("0000:{:02X}:00.0", 0x1b + 0x10 * gpu);
        // Eight constant bytes, and the number.
        let mut uuid = [0xab; 16];
        uuid[8..12].copy_from_slice(&gpu.to_be_bytes());
        Self {
            // In the driver's notation of an instance: the whole GPU's name, then the slice.
            name: if mig { format!("{name} MIG 1g.10gb") } else { name },
            uuid,
            bus: get("bus").unwrap_or(bus),
            memory: parsed("memory", 80 << 30).saturating_sub(parsed("used", 0)),
            // Hopper's value.
            cache: i32::try_from(parsed("cache", 50 << 20)).unwrap_or(i32::MAX),
            compute_mode: i32::try_from(parsed("compute-mode", 0)).unwrap_or(0),
            busy: get("busy").is_some_and(|text| text == "yes"),
        }
    }
}
