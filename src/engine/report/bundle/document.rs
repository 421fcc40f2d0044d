//! `bundle.json`: what a bundle is about, whose hardware it is, and what is not in it.

use schemars::JsonSchema;
use serde::Serialize;

use super::evidence::NodeEvidence;
use super::serials::HardwareSerials;
use super::{BUNDLE_FORMAT, BundleCase};
use model::run::RunInfo;
use model::verdict::{Finding, NodeVerdict, UnknownEntry};

/// The complete statements about the node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BundleDocument<'a> {
    /// `fabricgate.bundle/2`.
    format: &'static str,
    /// The node.
    node: &'a str,
    /// The run.
    run: &'a RunInfo,
    /// How far the run came, in words.
    state: &'a str,
    /// When it ended, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<&'a str>,
    /// How the node came out; absent where nothing was judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<&'a NodeVerdict>,
    /// What is held against the node or a part of it.
    against: &'a [Finding],
    /// What is held against something larger that it is in.
    larger: &'a [Finding],
    /// What is not known of it.
    unknown: &'a [UnknownEntry],
    /// Which hardware it is.
    serials: &'a HardwareSerials,
    /// What could not be packed, and why.
    missing: &'a [String],
    /// Names and addresses of others were taken out.
    redacted: bool,
}

pub(super) fn document<'a>(
    case: &'a BundleCase,
    sides: &'a NodeEvidence,
    serials: &'a HardwareSerials,
) -> BundleDocument<'a> {
    BundleDocument {
        format: BUNDLE_FORMAT,
        node: case.node.as_str(),
        run: &case.run.info,
        state: &case.state,
        ended: case.ended.as_deref(),
        verdict: sides.verdict.as_ref(),
        against: &sides.against,
        larger: &sides.larger,
        unknown: &sides.unknown,
        serials,
        missing: &case.missing,
        redacted: case.redact,
    }
}
