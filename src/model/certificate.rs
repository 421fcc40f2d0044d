//! What a node that passed was shown to deliver, by whom, and until when that
//! counts (`fabricgate.certificate/1`).
//!
//! A value. It says nothing of the node once its hardware is another.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::Serialize;

use super::id::DomainName;
use super::id::NodeName;
use super::unit::Unit;

/// The format of a certificate.
pub const CERTIFICATE_FORMAT: &str = "fabricgate.certificate/1";

/// What tells one machine from another in the same place. What was not seen is
/// empty, and an identity with nothing in it is equal to none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Identity {
    /// UUIDs of its GPUs, in order of index.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
    /// The kernel's boot id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// Driver version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Firmware versions, by what they are of.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub firmware: BTreeMap<String, String>,
}

/// The least that was measured in one test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Minimum {
    /// The test.
    pub testcase: String,
    /// The least over everything that the node took part in.
    pub value: f64,
    /// Its unit.
    pub unit: Unit,
    /// What was expected, where a platform says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<f64>,
}

/// The certificate of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Certificate {
    /// `fabricgate.certificate/1`.
    pub format: String,
    /// The node.
    pub node: NodeName,
    /// The machine that it was then.
    pub identity: Identity,
    /// Its domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// The platform it was held against.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// The profile of the run.
    pub profile: String,
    /// The least that was measured, by test.
    pub minima: Vec<Minimum>,
    /// The smallest degradation that would have been seen, as a share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detectable: Option<f64>,
    /// Digest of the expectations.
    pub thresholds_digest: String,
    /// The run.
    pub run: String,
    /// When the run was made, RFC 3339.
    pub issued: String,
    /// The same in seconds since 1970.
    pub issued_unix: i64,
    /// Until when it counts, RFC 3339.
    pub expires: String,
    /// The same in seconds since 1970.
    pub expires_unix: i64,
    /// It was declared void before its time. The rest stays: what a node once
    /// delivered is worth knowing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voided: Option<Voided>,
}

/// Why a certificate counts no longer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Voided {
    /// When, RFC 3339.
    pub at: String,
    /// Why, in words.
    pub why: String,
}
