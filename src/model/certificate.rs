//! The certificate of a node that passed: what it delivered, which run measured it, and until
//! when the result is valid (`fabricgate.certificate/1`).
//!
//! A value. It no longer applies once the node's hardware has been replaced.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::id::{DomainName, NodeName};
use super::signature::Signature;
use super::time_format::format_rfc3339;
use super::unit::Unit;
use super::verdict::MeasuredScope;

/// Format name of one certificate.
pub const CERTIFICATE_FORMAT: &str = "fabricgate.certificate/1";

/// Identifies the machine behind a node name. Fields that were not observed are empty, and an
/// identity without any field equals no other identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MachineIdentity {
    /// UUIDs of its GPUs, in order of index.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
    /// Kernel boot id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// Version of the NVIDIA driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Firmware versions, by component.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub firmware: BTreeMap<String, String>,
}

/// The lowest value measured in one test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TestMinimum {
    /// Name of the test.
    pub testcase: String,
    /// The lowest value over every measurement with this node.
    pub value: f64,
    /// Unit of `value`.
    pub unit: Unit,
    /// The expected value, where the platform has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<f64>,
}

/// Changes that void a certificate before it expires. Replaced GPUs always void it. The policy
/// applies to certificates issued after it was configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct VoidPolicy {
    /// A reboot voids it: NVLinks are retrained and the fabric is joined again.
    pub boot: bool,
    /// The driver changes that void it.
    pub driver: DriverVoidRule,
    /// A change of GPU firmware voids it.
    pub firmware: bool,
}

impl Default for VoidPolicy {
    fn default() -> Self {
        Self { boot: true, driver: DriverVoidRule::Any, firmware: true }
    }
}

impl VoidPolicy {
    /// True if the policy is the default: every change voids.
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }
}

/// The changes of the driver version that void a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DriverVoidRule {
    /// Any version change.
    #[default]
    Any,
    /// A change of the number before the first dot: another driver branch.
    Major,
    /// No version change.
    Never,
}

/// The certificate of one node (`fabricgate.certificate/1`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Certificate {
    /// `fabricgate.certificate/1`.
    pub format: String,
    /// The certified node.
    pub node: NodeName,
    /// Identity of the machine when it was measured.
    pub identity: MachineIdentity,
    /// Its claimed NVLink domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// The platform whose expectations applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// Profile of the run.
    pub profile: String,
    /// The claimed boundaries across which the node was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<MeasuredScope>,
    /// The measurements come from a simulated fabric, not from hardware.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
    /// The lowest measured value, by test.
    pub minima: Vec<TestMinimum>,
    /// The smallest degradation the run would have detected, as a share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detectable: Option<f64>,
    /// Digest of the expectations of the run.
    pub thresholds_digest: String,
    /// Id of the run.
    pub run: String,
    /// Time of the run, RFC 3339.
    pub issued: String,
    /// The same time, in seconds since 1970.
    pub issued_unix: i64,
    /// Expiry time, RFC 3339.
    pub expires: String,
    /// The same time, in seconds since 1970.
    pub expires_unix: i64,
    /// The void policy at the time of issue; absent where every change voids.
    #[serde(default, skip_serializing_if = "VoidPolicy::is_all")]
    pub void_on: VoidPolicy,
    /// Set when the certificate was voided early. The other fields stay: they still document what
    /// the node once delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voided: Option<VoidRecord>,
    /// Signature of the issuer. Removed when the certificate is voided, because the signed
    /// content has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
}

impl Certificate {
    /// An unsigned certificate without minima, for the tests of every crate; times in seconds
    /// since 1970.
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

    /// The lowest ratio of measured to expected value over all tests with an expectation.
    pub fn worst_ratio(&self) -> Option<f64> {
        let ratios = self.minima.iter().filter_map(|minimum| {
            let expected = minimum.expected.filter(|expected| 0.0 < *expected)?;
            Some(minimum.value / expected)
        });
        ratios.reduce(f64::min)
    }
}

/// Why a certificate was voided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VoidRecord {
    /// Time, RFC 3339.
    pub at: String,
    /// The reason.
    pub why: String,
}

/// Whether a certificate is valid, and if not, why.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum CertificateStatus {
    /// Valid now.
    Valid,
    /// Expired, or not valid yet.
    Expired,
    /// Voided, or issued for another machine.
    Void,
    /// Not signed by a trusted key, or changed after signing.
    Untrusted,
    /// The file cannot be parsed.
    Unreadable,
}

impl CertificateStatus {
    /// The name in documents and tables.
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

/// Format name of a list of certificates.
pub const CERTIFICATES_FORMAT: &str = "fabricgate.certificates/1";

/// Certificates with their status (`fabricgate.certificates/1`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CertificatesDocument {
    /// `fabricgate.certificates/1`.
    pub format: String,
    /// Time of the check, RFC 3339.
    pub at: String,
    /// One entry per node, in order of name.
    pub certificates: Vec<CertificateEntry>,
    /// Requested nodes without a certificate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub none: Vec<NodeName>,
}

/// One certificate with its status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CertificateEntry {
    /// The certified node.
    pub node: NodeName,
    /// Path of the certificate file.
    pub file: String,
    /// Status at the time of the check.
    pub standing: CertificateStatus,
    /// The reason, where it is not valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Age in seconds since issue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_s: Option<i64>,
    /// The lowest ratio of measured to expected value over all tests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst_ratio: Option<f64>,
    /// The certificate; absent where it cannot be parsed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Certificate>,
}

/// Format name of the output of `fabricgate certificate verify`.
pub const VERIFICATION_FORMAT: &str = "fabricgate.verification/1";

/// The result of verifying certificates (`fabricgate.verification/1`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VerificationDocument {
    /// `fabricgate.verification/1`.
    pub format: String,
    /// Time of the verification, RFC 3339.
    pub at: String,
    /// The worst result of all.
    pub outcome: VerificationOutcome,
    /// One entry per certificate or acceptance, in the requested order.
    pub certificates: Vec<Verification>,
}

/// Whether a certificate holds for the present machine.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum VerificationOutcome {
    /// It holds.
    Valid,
    /// It cannot be decided.
    Unknown,
    /// It does not hold.
    Invalid,
}

impl VerificationOutcome {
    /// The name in documents and tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Unknown => "unknown",
            Self::Invalid => "not valid",
        }
    }
}

/// Kinds of documents that can be verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VerificationKind {
    /// A certificate of one node.
    #[default]
    Certificate,
    /// An acceptance document of a burn-in.
    Acceptance,
}

/// The result of verifying one document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verification {
    /// Kind of the document; `certificate` where it cannot be parsed.
    #[serde(default)]
    pub kind: VerificationKind,
    /// Path of the file, or the node without a certificate.
    pub file: String,
    /// The certified node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// The result.
    pub outcome: VerificationOutcome,
    /// Why it is invalid or unknown, worst first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub why: Vec<String>,
    /// The result of the signature check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// Parts of the machine's identity that were compared and match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub same: Vec<String>,
    /// Parts that do not match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<IdentityDifference>,
    /// Parts that one side does not report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub untold: Vec<String>,
    /// Expiry time, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    /// Id of the run, or of the burn-in for an acceptance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// It certifies a simulated fabric, not hardware.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
    /// The nodes of an acceptance, in order of name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeName>,
}

/// A part of a machine's identity that changed since certification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IdentityDifference {
    /// Its name: `gpus`, `driver`, `boot`, `firmware of GPU 0 VBIOS`.
    pub part: String,
    /// Description of the difference.
    pub why: String,
    /// Whether the change voids the certificate.
    pub voids: bool,
}
