//! A signature inside a document, over the document without it.
//!
//! A value. What is signed is the document's compact JSON with the field
//! `signature` absent; `record::signing` makes and verifies signatures.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The one algorithm there is (RFC 8032).
pub const ED25519: &str = "ed25519";

/// Who signed, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Signature {
    /// `ed25519`.
    pub algorithm: String,
    /// Which key: the first 16 hexadecimal digits of the SHA-256 of the raw public key.
    pub key: String,
    /// The signature, base64 with padding.
    pub value: String,
}
