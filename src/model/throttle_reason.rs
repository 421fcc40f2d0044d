//! Reasons why a GPU is throttled (`nvmlClocksEventReason*`).

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why clocks are below their maximum.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ThrottleReason {
    /// The GPU is idle.
    Idle,
    /// Application clocks are set.
    ApplicationClocks,
    /// Software power cap: the power limit is reached.
    SoftwarePowerCap,
    /// Hardware slowdown: heat, a power brake or a fast rise of the power draw.
    HardwareSlowdown,
    /// Limited by a sync boost group.
    SyncBoost,
    /// Software thermal slowdown: the driver detected overheating.
    SoftwareThermalSlowdown,
    /// Hardware thermal slowdown: the hardware detected overheating.
    HardwareThermalSlowdown,
    /// Power brake requested by the power supply.
    HardwarePowerBrake,
    /// Display clocks are set.
    DisplayClocks,
    /// A limit of the board is reached.
    BoardLimit,
    /// Clocks are limited for the reliability of the GPU.
    Reliability,
    /// A reason unknown to this version, as text.
    Other(String),
}

use ThrottleReason::*;

/// The NVML bit and the text of each reason.
static NVML_REASONS: [(u64, ThrottleReason, &str); 11] = [
    (0x1, Idle, "idle"),
    (0x2, ApplicationClocks, "application clocks"),
    (0x4, SoftwarePowerCap, "software power cap"),
    (0x8, HardwareSlowdown, "hardware slowdown"),
    (0x10, SyncBoost, "sync boost"),
    (0x20, SoftwareThermalSlowdown, "software thermal slowdown"),
    (0x40, HardwareThermalSlowdown, "hardware thermal slowdown"),
    (0x80, HardwarePowerBrake, "hardware power brake"),
    (0x100, DisplayClocks, "display clocks"),
    (0x200, BoardLimit, "board limit"),
    (0x400, Reliability, "reliability"),
];

impl ThrottleReason {
    /// Decodes NVML's bits.
    pub fn from_bits(bits: u64) -> Vec<Self> {
        let known: u64 = NVML_REASONS.iter().map(|(bit, _, _)| bit).sum();
        let named = NVML_REASONS.iter().filter(|(bit, _, _)| bits & bit != 0);
        let mut reasons: Vec<Self> = named.map(|(_, reason, _)| reason.clone()).collect();
        if bits & !known != 0 {
            reasons.push(Other(format!("bits {:#x}", bits & !known)));
        }
        reasons
    }

    /// The reason with this text.
    pub fn parse(text: &str) -> Self {
        let known = NVML_REASONS.iter().find(|(_, _, words)| *words == text);
        known.map_or_else(|| Other(text.to_owned()), |(_, reason, _)| reason.clone())
    }

    /// Whether the reason indicates a fault of the GPU, its cooling or its power supply.
    pub fn is_fault(&self) -> bool {
        match self {
            HardwareSlowdown
            | SoftwareThermalSlowdown
            | HardwareThermalSlowdown
            | HardwarePowerBrake => true,
            // NVML does not describe the limits of board and reliability as a fault.
            Idle | ApplicationClocks | SoftwarePowerCap | SyncBoost | DisplayClocks
            | BoardLimit | Reliability | Other(_) => false,
        }
    }
}

impl fmt::Display for ThrottleReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Other(text) => f.write_str(text),
            known => {
                let row = NVML_REASONS.iter().find(|(_, reason, _)| reason == known);
                f.write_str(row.map_or("", |(_, _, words)| *words))
            }
        }
    }
}

impl Serialize for ThrottleReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ThrottleReason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self::parse(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason_texts(bits: u64) -> Vec<String> {
        ThrottleReason::from_bits(bits).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn bits_without_a_name_are_kept() {
        assert_eq!(reason_texts(0x24), ["software power cap", "software thermal slowdown"]);
        assert_eq!(reason_texts(0x801), ["idle", "bits 0x800"]);
        assert!(reason_texts(0).is_empty());
    }

    #[test]
    fn a_reason_is_read_back_as_it_was_written() {
        let all = ThrottleReason::from_bits(0xfff);
        assert_eq!(all.len(), NVML_REASONS.len() + 1);
        for reason in all {
            assert_eq!(ThrottleReason::parse(&reason.to_string()), reason);
        }
    }
}
