//! What a node that passed was shown to deliver, by whom, and until when that
//! counts (`fabricgate.certificate/1`).
//!
//! A value. It says nothing of the node once its hardware is another.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::id::{DomainName, NodeName};
use super::signature::Signature;
use super::time_format::format_rfc3339;
use super::unit::Unit;
use super::verdict::MeasuredScope;

/// The format of a certificate.
pub const CERTIFICATE_FORMAT: &str = "fabricgate.certificate/1";

/// What tells one machine from another in the same place. What was not seen is
/// empty, and an identity with nothing in it is equal to none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MachineIdentity {
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
pub struct TestMinimum {
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

/// What makes a certificate void before its end, beside other GPUs, which always
/// do. It holds for certificates that are issued from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct VoidPolicy {
    /// Whether a boot does: NVLinks train anew then, and the fabric is joined anew.
    pub boot: bool,
    /// Which other driver does.
    pub driver: DriverVoidRule,
    /// Whether other firmware of a GPU does.
    pub firmware: bool,
}

impl Default for VoidPolicy {
    fn default() -> Self {
        Self { boot: true, driver: DriverVoidRule::Any, firmware: true }
    }
}

impl VoidPolicy {
    /// Whether nothing is left out.
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }
}

/// Which change of the driver makes a certificate void.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DriverVoidRule {
    /// Any other version.
    #[default]
    Any,
    /// Another number before the first dot: another branch of the driver.
    Major,
    /// None.
    Never,
}

impl fmt::Display for DriverVoidRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "any other",
            Self::Major => "another major",
            Self::Never => "no other",
        })
    }
}

/// The certificate of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Certificate {
    /// `fabricgate.certificate/1`.
    pub format: String,
    /// The node.
    pub node: NodeName,
    /// The machine that it was then.
    pub identity: MachineIdentity,
    /// Its domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// The platform it was held against.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// The profile of the run.
    pub profile: String,
    /// Across which boundaries of its claim the node was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<MeasuredScope>,
    /// A simulated fabric answered: no hardware was measured.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
    /// The least that was measured, by test.
    pub minima: Vec<TestMinimum>,
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
    /// What makes it void, as was configured when it was issued; absent where
    /// everything does.
    #[serde(default, skip_serializing_if = "VoidPolicy::is_all")]
    pub void_on: VoidPolicy,
    /// It was declared void before its time. The rest stays: what a node once
    /// delivered is worth knowing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voided: Option<VoidRecord>,
    /// Who signed it. Taken off where it is declared void: what it says then
    /// is not what was signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
}

impl Certificate {
    /// An unsigned certificate without minima, for the tests of every crate; moments in
    /// seconds since 1970.
    pub fn unsigned(node: NodeName, issued_unix: i64, expires_unix: i64) -> Self {
        Self {
            format: CERTIFICATE_FORMAT.to_owned(),
            node,
            identity: MachineIdentity::default(),
            domain: None,
            platform: None,
            profile: "recertify".to_owned(),
            scope: Some(MeasuredScope { inside: true, ..MeasuredScope::default() }),
            simulated: false,
            minima: Vec::new(),
            detectable: None,
            thresholds_digest: "d".to_owned(),
            run: "r1".to_owned(),
            issued: format_rfc3339(issued_unix),
            issued_unix,
            expires: format_rfc3339(expires_unix),
            expires_unix,
            void_on: VoidPolicy::default(),
            voided: None,
            signature: None,
        }
    }

    /// The lowest share of what was expected that any test showed, where
    /// anything was expected.
    pub fn worst_ratio(&self) -> Option<f64> {
        let ratios = self.minima.iter().filter_map(|minimum| {
            let expected = minimum.expected.filter(|expected| 0.0 < *expected)?;
            Some(minimum.value / expected)
        });
        ratios.reduce(f64::min)
    }
}

/// Why a certificate counts no longer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VoidRecord {
    /// When, RFC 3339.
    pub at: String,
    /// Why, in words.
    pub why: String,
}

/// Whether a certificate counts, and if not, why.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum CertificateStatus {
    /// It counts.
    Valid,
    /// Its time has passed, or has yet to come.
    Expired,
    /// It was declared void, or the machine is another.
    Void,
    /// It is not signed by a key that counts, or was changed since.
    Untrusted,
    /// It cannot be read.
    Unreadable,
}

impl CertificateStatus {
    /// Its word in documents and tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Expired => "expired",
            Self::Void => "void",
            Self::Untrusted => "untrusted",
            Self::Unreadable => "unreadable",
        }
    }
}

/// The format of a list of certificates.
pub const CERTIFICATES_FORMAT: &str = "fabricgate.certificates/1";

/// Certificates, and how each stands (`fabricgate.certificates/1`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CertificatesDocument {
    /// `fabricgate.certificates/1`.
    pub format: String,
    /// When they were looked at, RFC 3339.
    pub at: String,
    /// One of each node, in order of name.
    pub certificates: Vec<CertificateEntry>,
    /// Nodes that were asked for and have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub none: Vec<NodeName>,
}

/// One certificate, and how it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CertificateEntry {
    /// The node.
    pub node: NodeName,
    /// Where it is.
    pub file: String,
    /// Whether it counts.
    pub standing: CertificateStatus,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Seconds since it was issued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_s: Option<i64>,
    /// The lowest share of what was expected that any test showed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst_ratio: Option<f64>,
    /// Itself; absent where it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Certificate>,
}

/// The format of what `fabricgate certificate verify` says.
pub const VERIFICATION_FORMAT: &str = "fabricgate.verification/1";

/// What came of verifying certificates (`fabricgate.verification/1`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VerificationDocument {
    /// `fabricgate.verification/1`.
    pub format: String,
    /// When, RFC 3339.
    pub at: String,
    /// The worst of all.
    pub outcome: VerificationOutcome,
    /// One for each certificate or acceptance, in the order in which they were asked for.
    pub certificates: Vec<Verification>,
}

/// Whether a certificate says something of a machine.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum VerificationOutcome {
    /// It does.
    Valid,
    /// Nobody can tell.
    Unknown,
    /// It does not.
    Invalid,
}

impl VerificationOutcome {
    /// Its word in documents and tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Unknown => "unknown",
            Self::Invalid => "not valid",
        }
    }
}

/// What can be verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VerificationKind {
    /// The certificate of one node.
    #[default]
    Certificate,
    /// The acceptance document of a burn-in.
    Acceptance,
}

/// What came of verifying one document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verification {
    /// What it is; a certificate where nobody could read it.
    #[serde(default)]
    pub kind: VerificationKind,
    /// Where it is, or the node that has none.
    pub file: String,
    /// The node it is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// What came of it.
    pub outcome: VerificationOutcome,
    /// Why it is not valid or unknown, worst first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub why: Vec<String>,
    /// What its signature is worth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// Parts of the machine's identity that were compared and are the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub same: Vec<String>,
    /// Parts that differ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<IdentityDifference>,
    /// Parts that one side does not tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub untold: Vec<String>,
    /// Until when it counts, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    /// The run; of an acceptance the burn-in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// It is of a simulated fabric: no hardware was measured.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
    /// The nodes that an acceptance is about, in order of name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeName>,
}

/// A part of a machine's identity that is not as it was certified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IdentityDifference {
    /// Which: `gpus`, `driver`, `boot`, `firmware of GPU 0 VBIOS`.
    pub part: String,
    /// What differs, in words.
    pub why: String,
    /// Whether that makes the certificate void.
    pub voids: bool,
}
