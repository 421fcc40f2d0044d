//! Behavior of healthy parts over a year: they differ, wander, dip for minutes, and many of them
//! dip at the same time when a rack warms up, a driver is updated or the measuring host has a
//! transient fault.
//!
//! None of this is a fault: a drain because of it is wrong. No number was measured on an NVL72,
//! because no data is available; docs/false-drains.md has the source or assumption of each. The
//! code uses only hashes and arithmetic and no transcendental functions, because counts are
//! compared exactly.

use std::collections::BTreeMap;

use super::fleet::{FleetPosition, GPUS, NODES};
use sim::noise::{NoiseKey, SimNoise};

pub(super) const DAY_S: f64 = 86_400.0;

/// Permanent differences of GPUs, day-to-day variation, and a slow wander over knots of thirty
/// days; relative standard deviations.
const GPU_SIGMA: [f64; 3] = [0.002, 0.001, 0.0015];
/// Day-to-day variation of a node and of a rack.
const DAILY_SIGMA: [f64; 2] = [0.001, 0.001];
/// Permanent difference and day-to-day variation of a host link: larger than NVLink's, because CPUs
/// and memory are involved.
const HOST_SIGMA: [f64; 2] = [0.008, 0.003];

/// Durations of a transient in minutes, with equal probability.
const TRANSIENT_MINUTES: [f64; 8] = [2.0, 4.0, 8.0, 15.0, 25.0, 45.0, 90.0, 240.0];

/// Rates of transients per day.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransientRates {
    /// A node is slow for a while: heat, power, a stray process.
    pub node: f64,
    /// One GPU of a node is slow for a while.
    pub gpu: f64,
    /// Some nodes of a rack are slow for hours.
    pub rack: f64,
    /// A switch tray of a rack reboots, so the rack has two planes less.
    pub tray: f64,
    /// A day on which the measuring host distorts all readings.
    pub host: f64,
    /// A driver update that slows all nodes by 2 %, node by node over five days.
    pub driver: f64,
    /// A driver update reaches all nodes in one night.
    pub driver_at_once: bool,
    /// Share of readings that dip by themselves.
    pub dips: f64,
    /// Relative standard deviation of one reading, as a multiple of the usual one.
    pub noise: f64,
}

impl TransientRates {
    /// The assumed rates.
    pub const USUAL: Self = Self {
        node: 1.0 / 100.0,
        gpu: 1.0 / 800.0,
        rack: 1.0 / 60.0,
        tray: 1.0 / 60.0,
        host: 4.0 / 365.0,
        driver: 2.0 / 365.0,
        driver_at_once: false,
        dips: 0.005,
        noise: 1.0,
    };

    /// Only noise and differences.
    pub const CALM: Self = Self {
        node: 0.0,
        gpu: 0.0,
        rack: 0.0,
        tray: 0.0,
        host: 0.0,
        driver: 0.0,
        driver_at_once: false,
        dips: 0.0,
        noise: 1.0,
    };
}

/// A part that is slow for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Transient {
    from_s: f64,
    to_s: f64,
    /// Index of the node; absent for all nodes of the rack.
    node: Option<usize>,
    /// Index of the GPU; absent for all GPUs of the node.
    gpu: Option<usize>,
    /// Remaining share of every rate.
    share: f64,
    /// Also slows copies with the host.
    host: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReadingPath {
    Link,
    /// The link between a GPU and its host.
    Host,
    /// All GPUs of a node in a collective.
    Collective,
}

impl ReadingPath {
    /// Relative standard deviation of one reading: 0.06 % is published for copies over NVLink
    /// (nvbandwidth's example), 1 to 3 % is usual for collectives.
    fn sigma(self) -> f64 {
        match self {
            Self::Link => 0.002,
            Self::Host => 0.005,
            Self::Collective => 0.01,
        }
    }
}

#[derive(Debug)]
pub(super) struct TransientSchedule {
    key: NoiseKey,
    rates: TransientRates,
    transients: BTreeMap<(usize, usize), Vec<Transient>>,
    /// Days with a transient fault of the measuring host.
    bad_host_days: Vec<usize>,
    /// Days on which a driver rollout starts.
    driver_days: Vec<usize>,
}

impl TransientSchedule {
    pub(super) fn new(key: NoiseKey, climate: TransientRates, days: usize, racks: usize) -> Self {
        let key = key.with_name("weather");
        let mut schedule = Self {
            key,
            rates: climate,
            transients: BTreeMap::new(),
            bad_host_days: Vec::new(),
            driver_days: Vec::new(),
        };
        for day in 0..days {
            let of_day = key.with_part(day as u64);
            if of_day.with_name("host").fraction() < climate.host {
                schedule.bad_host_days.push(day);
            }
            if of_day.with_name("driver").fraction() < climate.driver {
                schedule.driver_days.push(day);
            }
            for rack in 0..racks {
                let spells = draw_transients(of_day.with_part(rack as u64), climate, day);
                if !spells.is_empty() {
                    schedule.transients.insert((day, rack), spells);
                }
            }
        }
        schedule
    }

    /// Number of driver updates of a node by a day.
    pub(super) fn driver_count(&self, spot: FleetPosition, day: usize) -> usize {
        let comes = |begin: &&usize| {
            let key =
                self.key.with_name("comes").with_part(**begin as u64).with_part(spot.number());
            let late = if self.rates.driver_at_once { 0.0 } else { key.fraction() * 5.0 };
            *(*begin) as f64 + late <= day as f64
        };
        self.driver_days.iter().filter(comes).count()
    }

    /// The factor on one end of a reading at a moment. `generation` counts replacements of the GPU.
    pub(super) fn end_factor(
        &self,
        (spot, gpu): (FleetPosition, usize),
        path: ReadingPath,
        at_s: f64,
        generation: u64,
    ) -> f64 {
        let day = day_of(at_s);
        let own = self.key.with_part(spot.number()).with_part(gpu as u64);
        let each = own.with_name("part").with_part(generation);
        let mut factor = match path {
            ReadingPath::Host => {
                // Well above the line, like real hosts, and never below it.
                draw_normal(each.with_name("host"), HOST_SIGMA[0])
                    * draw_normal(own.with_name("host").with_part(day as u64), HOST_SIGMA[1])
            }
            ReadingPath::Link | ReadingPath::Collective => {
                let knot = |at: usize| {
                    draw_normal(each.with_name("knot").with_part(at as u64), GPU_SIGMA[2])
                };
                let (before, into) = (day / 30, (day % 30) as f64 / 30.0);
                let wander = knot(before) * (1.0 - into) + knot(before + 1) * into;
                draw_normal(each, GPU_SIGMA[0])
                    * draw_normal(own.with_part(day as u64), GPU_SIGMA[1])
                    * wander
                    * draw_normal(
                        self.key.with_name("node").with_part(spot.number()).with_part(day as u64),
                        DAILY_SIGMA[0],
                    )
                    * draw_normal(
                        self.key
                            .with_name("rack")
                            .with_part(spot.rack as u64)
                            .with_part(day as u64),
                        DAILY_SIGMA[1],
                    )
            }
        };
        for _ in 0..self.driver_count(spot, day) {
            factor *= 0.98;
        }
        let spells = self.transients.get(&(day, spot.rack)).map(Vec::as_slice).unwrap_or_default();
        for spell in spells {
            let here = spell.from_s <= at_s && at_s < spell.to_s;
            let concerns = spell.node.is_none_or(|node| node == spot.node)
                && spell.gpu.is_none_or(|own| own == gpu)
                && (spell.host || path != ReadingPath::Host);
            if here && concerns {
                factor *= spell.share;
            }
        }
        factor
    }

    /// True if a transient affects a node at a moment.
    pub(super) fn is_affected(&self, spot: FleetPosition, at_s: f64) -> bool {
        let spells = self.transients.get(&(day_of(at_s), spot.rack));
        spells.into_iter().flatten().any(|spell| {
            spell.node.is_none_or(|node| node == spot.node)
                && spell.from_s <= at_s + 3_600.0
                && at_s - 3_600.0 < spell.to_s
        })
    }

    /// True if the measuring host has a transient fault on a day.
    pub(super) fn is_bad_host_day(&self, day: usize) -> bool {
        self.bad_host_days.contains(&day)
    }

    /// The noise factor of one reading.
    pub(super) fn noise_factor(&self, path: ReadingPath, key: NoiseKey, at_s: f64) -> f64 {
        let bad = self.is_bad_host_day(day_of(at_s));
        let sigma = path.sigma() * self.rates.noise * if bad { 8.0 } else { 1.0 };
        // One reading in a hundred has three times the spread: tails are heavy.
        let wide = if key.with_name("tail").fraction() < 0.01 { 3.0 } else { 1.0 };
        let dips =
            SimNoise { sigma: sigma * wide, dip_rate: self.rates.dips, ..SimNoise::default() };
        dips.factor(key) * if bad { 0.97 } else { 1.0 }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "days of a year that begins at 0"
)]
pub(super) fn day_of(at_s: f64) -> usize {
    (at_s / DAY_S).max(0.0) as usize
}

/// One plus a nearly normal number.
fn draw_normal(key: NoiseKey, sigma: f64) -> f64 {
    SimNoise { sigma, dip_rate: 0.0, ..SimNoise::default() }.factor(key)
}

/// One of several values with equal probability.
pub(super) fn draw_one(key: NoiseKey, of: &[f64]) -> f64 {
    of[draw_below(key, of.len())]
}

/// A random integer below a limit.
pub(super) fn draw_below(key: NoiseKey, limit: usize) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a fraction of a small number"
    )]
    let number = (key.fraction() * limit as f64) as usize;
    number.min(limit.saturating_sub(1))
}

/// Transients of a rack on a day.
fn draw_transients(key: NoiseKey, climate: TransientRates, day: usize) -> Vec<Transient> {
    let mut spells = Vec::new();
    let between = |key: NoiseKey, least: f64, most: f64| least + (most - least) * key.fraction();
    let time = |key: NoiseKey, minutes: f64| {
        let from_s = (day as f64 + key.with_name("from").fraction()) * DAY_S;
        (from_s, from_s + minutes * 60.0)
    };
    for node in 0..NODES {
        let own = key.with_name("node").with_part(node as u64);
        if own.fraction() < climate.node {
            let (from_s, to_s) = time(own, draw_one(own.with_name("for"), &TRANSIENT_MINUTES));
            let share = 1.0 - between(own.with_name("depth"), 0.03, 0.30);
            spells.push(Transient { from_s, to_s, node: Some(node), gpu: None, share, host: true });
        }
        for gpu in 0..GPUS {
            let own = own.with_name("gpu").with_part(gpu as u64);
            if own.fraction() < climate.gpu {
                let (from_s, to_s) = time(own, draw_one(own.with_name("for"), &TRANSIENT_MINUTES));
                let share = 1.0 - between(own.with_name("depth"), 0.03, 0.30);
                let gpu = Some(gpu);
                spells.push(Transient { from_s, to_s, node: Some(node), gpu, share, host: true });
            }
        }
    }
    let own = key.with_name("rack");
    if own.fraction() < climate.rack {
        let (from_s, to_s) = time(own, between(own.with_name("for"), 60.0, 480.0));
        for node in 0..NODES {
            let of_node = own.with_part(node as u64);
            if of_node.fraction() < 1.0 / 3.0 {
                let share = 1.0 - between(of_node.with_name("depth"), 0.02, 0.12);
                spells.push(Transient {
                    from_s,
                    to_s,
                    node: Some(node),
                    gpu: None,
                    share,
                    host: true,
                });
            }
        }
    }
    let own = key.with_name("tray");
    if own.fraction() < climate.tray {
        let (from_s, to_s) = time(own, between(own.with_name("for"), 3.0, 10.0));
        let share = 16.0 / 18.0;
        spells.push(Transient { from_s, to_s, node: None, gpu: None, share, host: false });
    }
    spells
}
