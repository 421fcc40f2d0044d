//! Faults of a year, which last until an operator repairs them.
//!
//! Rates are per year for a fleet of 7,200 GPUs; docs/false-drains.md states their sources.

use super::fleet::{FleetPosition, GPUS, YearFleet};
use super::transients::{DAY_S, draw_below};
use sim::fault::{HostLinkDirection, SimFault, SimLinkDirection};
use sim::noise::NoiseKey;

/// The GPU-days that rates refer to.
const GPU_DAYS: f64 = 7_200.0 * 365.0;

/// Class of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum YearFaultClass {
    /// A GPU lost one NVLink of eighteen.
    Link,
    /// A GPU lost three NVLinks.
    Links,
    /// A GPU lost one NVLink in one direction.
    OneWay,
    /// A GPU lost a link on half of the days.
    Flapping,
    /// A GPU loses a little more of its rate every day.
    Drift,
    /// All GPUs of a node lost a switch plane.
    NodePlane,
    /// All nodes of a rack lost a switch plane.
    Plane,
    /// The host link of a GPU has half its width or generation.
    HostLink,
    /// Everything on a node is 20 % slower.
    SlowNode,
    /// NVLink is up but unused on a node.
    FabricDown,
    /// The IMEX daemon of a node is not reachable.
    Imex,
    /// A GPU delivers wrong data.
    Corrupt,
}

impl YearFaultClass {
    /// All classes in table order, with their number per year.
    pub const ALL: [(Self, f64); 12] = [
        (Self::Link, 40.0),
        (Self::Links, 15.0),
        (Self::OneWay, 10.0),
        (Self::Flapping, 15.0),
        (Self::Drift, 15.0),
        (Self::NodePlane, 15.0),
        (Self::Plane, 6.0),
        (Self::HostLink, 25.0),
        (Self::SlowNode, 10.0),
        (Self::FabricDown, 10.0),
        (Self::Imex, 10.0),
        (Self::Corrupt, 5.0),
    ];

    /// The name in tables and documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Link => "one link lost",
            Self::Links => "three links lost",
            Self::OneWay => "one link lost, one way",
            Self::Flapping => "a link that flaps",
            Self::Drift => "drift, 0.2 % a day",
            Self::NodePlane => "a plane lost to a node",
            Self::Plane => "a plane lost to a rack",
            Self::HostLink => "host link at half",
            Self::SlowNode => "a node 20 % slow",
            Self::FabricDown => "NVLink unused",
            Self::Imex => "IMEX not reachable",
            Self::Corrupt => "wrong data",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct YearFault {
    pub(super) class: YearFaultClass,
    pub(super) position: FleetPosition,
    pub(super) gpu: usize,
    /// Start in seconds since the start of the year.
    pub(super) from_s: f64,
    key: NoiseKey,
}

/// All faults in order of time; `often` multiplies all rates.
pub(super) fn draw_faults(
    key: NoiseKey,
    fleet: &YearFleet,
    days: usize,
    often: f64,
) -> Vec<YearFault> {
    let mut troubles = Vec::new();
    for (at, (class, a_year)) in YearFaultClass::ALL.into_iter().enumerate() {
        let a_day = a_year / GPU_DAYS * GPUS as f64 * often;
        for spot in fleet.positions() {
            for day in 0..days {
                let key = key
                    .with_name("trouble")
                    .with_part(at as u64)
                    .with_part(spot.number())
                    .with_part(day as u64);
                if key.fraction() < a_day {
                    let from_s = (day as f64 + key.with_name("from").fraction()) * DAY_S;
                    let gpu = draw_below(key.with_name("gpu"), GPUS);
                    troubles.push(YearFault { class, position: spot, gpu, from_s, key });
                }
            }
        }
    }
    troubles.sort_by(|a, b| a.from_s.total_cmp(&b.from_s));
    troubles
}

impl YearFault {
    /// True if several nodes share the fault.
    pub(super) fn is_shared(&self) -> bool {
        self.class == YearFaultClass::Plane
    }

    /// The simulated fault on a day; `None` if the fault has another effect, or none on this day.
    pub(super) fn sim_fault(&self, day: usize) -> Option<SimFault> {
        let gpu = format!("{}:{}", self.position.name(), self.gpu);
        let node = self.position.name();
        let first = u32::try_from(draw_below(self.key.with_name("first"), 15)).unwrap_or(0);
        let links = |count: u32, direction: SimLinkDirection| {
            Some(SimFault::LostLinks { gpu: gpu.clone(), count, first, direction })
        };
        match self.class {
            YearFaultClass::Link => links(1, SimLinkDirection::Both),
            YearFaultClass::Links => links(3, SimLinkDirection::Both),
            YearFaultClass::OneWay => links(1, SimLinkDirection::Tx),
            YearFaultClass::Flapping
                if self.key.with_name("on").with_part(day as u64).fraction() < 0.5 =>
            {
                links(1, SimLinkDirection::Both)
            }
            YearFaultClass::Flapping | YearFaultClass::Drift => None,
            YearFaultClass::NodePlane => Some(SimFault::PlaneOutForNode { node, count: 1, first }),
            YearFaultClass::Plane => {
                let domain = format!("r{:03}", self.position.rack);
                Some(SimFault::PlaneOut { domain, count: 1, first })
            }
            YearFaultClass::HostLink => {
                Some(SimFault::HostLink { gpu, share: 0.5, direction: HostLinkDirection::Both })
            }
            YearFaultClass::SlowNode => Some(SimFault::PowerCap { node, share: 0.8 }),
            YearFaultClass::FabricDown => Some(SimFault::FabricDown { node }),
            YearFaultClass::Imex => Some(SimFault::ImexPeerMissing { node }),
            YearFaultClass::Corrupt => Some(SimFault::Corrupt { gpu }),
        }
    }

    /// Share of its GPU's link rate that drift leaves at a moment.
    pub(super) fn drift_share(&self, at_s: f64) -> f64 {
        if self.class != YearFaultClass::Drift || at_s < self.from_s {
            return 1.0;
        }
        (1.0 - 0.002 * (at_s - self.from_s) / DAY_S).max(0.7)
    }
}
