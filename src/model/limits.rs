//! Upper limits for counts in external input: claims, objects of an API server, run folders,
//! outputs. Readers check a count before they allocate anything of that size.

use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// GPUs of one node, and thus the largest index plus one. The largest machines have 16,
/// MIG-sliced ones 112; this is nine times that, and a table of all pairs of such a node has a
/// million cells.
pub const MAX_GPUS_PER_NODE: u32 = 1_024;

/// NICs of one node: as many as GPUs.
pub const MAX_NICS_PER_NODE: u32 = MAX_GPUS_PER_NODE;

/// GPUs in one table of all pairs. The largest announced NVLink domain has 576; a table of this
/// size takes about 50 MB while it is judged.
pub const MAX_GPUS_IN_TABLE: usize = 2_048;

/// Nodes of one claimed group, ranks of one job, or GPUs that a job expects in one domain: twice
/// the size of the largest published clusters.
pub const MAX_MEMBERS: u32 = 1 << 20;

/// Readings of one step of a plan. Profiles take a few dozen at most.
pub const MAX_READINGS: u32 = 10_000;

/// Why this count exceeds the limit, if it does.
pub fn limit_error(count: u64, most: u32, of: &str) -> Option<String> {
    (u64::from(most) < count).then(|| format!("{count} {of}, expected at most {most}"))
}

fn deserialize_limited<'de, D: Deserializer<'de>>(
    deserializer: D,
    most: u32,
    of: &str,
) -> Result<Option<u32>, D::Error> {
    let count = Option::<u32>::deserialize(deserializer)?;
    match count.and_then(|count| limit_error(count.into(), most, of)) {
        Some(why) => Err(D::Error::custom(why)),
        None => Ok(count),
    }
}

/// GPUs per node, for `deserialize_with`.
pub fn deserialize_gpus<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u32>, D::Error> {
    deserialize_limited(deserializer, MAX_GPUS_PER_NODE, "GPUs per node")
}

/// NICs per node, for `deserialize_with`.
pub fn deserialize_nics<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u32>, D::Error> {
    deserialize_limited(deserializer, MAX_NICS_PER_NODE, "NICs per node")
}

/// Members of a group, for `deserialize_with`.
pub fn deserialize_members<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u32>, D::Error> {
    deserialize_limited(deserializer, MAX_MEMBERS, "members")
}

/// Readings of a step, for `deserialize_with`.
pub fn deserialize_readings<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let count = u32::deserialize(deserializer)?;
    match limit_error(count.into(), MAX_READINGS, "readings") {
        Some(why) => Err(D::Error::custom(why)),
        None => Ok(count),
    }
}
