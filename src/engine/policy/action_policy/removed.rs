//! Keys that `[policy]` had in earlier versions.
//!
//! A configuration that has one is refused, with a hint what to use instead; the record of an
//! earlier run is read without them.

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::Policy;

/// A key that no longer exists.
#[derive(Clone, Copy, Debug)]
pub struct Removed {
    /// Name of the key in `[policy]`.
    pub key: &'static str,
    /// What to use instead.
    pub instead: &'static str,
}

const EVICTION: &str = "the gate no longer evicts pods: use `kubectl drain`, or a \
                        taint with the effect NoExecute";

const DEVICE: &str = "the gate drains nodes and no longer single GPUs: `fabricgate export RUN \
     --to device-taint-rules` writes the DeviceTaintRule for a user to apply";

/// All removed keys.
pub const REMOVED: &[Removed] = &[
    Removed { key: "device", instead: DEVICE },
    Removed { key: "evict", instead: EVICTION },
    Removed { key: "evict_s", instead: EVICTION },
];

/// Reads the policy that an earlier version may have recorded for a run.
pub fn recorded<'de, D: Deserializer<'de>>(from: D) -> Result<Policy, D::Error> {
    let mut table = Map::<String, Value>::deserialize(from)?;
    for removed in REMOVED {
        table.remove(removed.key);
    }
    Policy::deserialize(Value::Object(table)).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Record {
        #[serde(deserialize_with = "recorded")]
        policy: Policy,
    }

    fn record(key: &str, value: &str) -> Result<Policy, serde_json::Error> {
        let text = format!(r#"{{"policy": {{"per_hour": 0.3, "{key}": {value}}}}}"#);
        serde_json::from_str::<Record>(&text).map(|record| record.policy)
    }

    #[test]
    fn the_record_of_an_earlier_version_is_read_without_them_and_nothing_else_is_passed_over() {
        let policy = Policy { per_hour: 0.3, ..Policy::default() };
        for removed in REMOVED {
            assert_eq!(record(removed.key, "true").expect(removed.key), policy);
        }
        assert!(record("per_day", "1").is_err());
        assert!(record("per_domain", "-1").is_err());
    }
}
