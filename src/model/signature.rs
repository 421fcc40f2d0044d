//! A signature inside a document, over the document without it.
//!
//! A value. The signed content is the document's compact JSON without the field `signature`;
//! `record::signing` creates and verifies signatures.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The only supported algorithm (RFC 8032).
pub const ED25519: &str = "ed25519";

/// The key and the signature of a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Signature {
    /// `ed25519`.
    pub algorithm: String,
    /// Id of the key: the first 16 hexadecimal digits of the SHA-256 of the raw public key.
    pub key: String,
    /// The signature, base64 with padding.
    pub value: String,
}
