//! Signatures inside documents: Ed25519 over the document without its signature.
//!
//! Any document with a top-level field `signature` can be signed and verified. The signature covers
//! the JSON as it was read, including fields that only a newer program knows. A private key is
//! never displayed, logged or copied, and a key file that other users may read is refused. The
//! caller's [`SignatureTrust`] decides whether a missing signature matters.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use model::signature;
use model::signature::Signature;
use model::text::clean;

/// The field of the signature.
pub const SIGNATURE_FIELD: &str = "signature";

/// Maximum size of a key file, in bytes. A PEM key has 119.
const MAX_KEY_FILE_BYTES: u64 = 64 << 10;

/// The DER prefix of the 32 bytes of a public key: SEQUENCE of the algorithm 1.3.101.112 and a BIT
/// STRING (RFC 8410, section 4).
const PUBLIC_DER: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// The DER prefix of the 32 bytes of a private key: version 1, the algorithm, and an OCTET STRING
/// in an OCTET STRING (RFC 8410, section 7).
const PRIVATE_DER: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// The reason why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SigningError {
    /// An error of the operating system.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// Users other than its owner may read it.
    #[error(
        "{}: mode {mode:03o}: others may read this private key, expected 600 or 400",
        path.display()
    )]
    ReadableByOthers {
        /// The path of the file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Not a key of the needed kind.
    #[error("{}: {why}", path.display())]
    InvalidKey {
        /// The path of the file.
        path: PathBuf,
        /// The expected content.
        why: &'static str,
    },
    /// The system returned no random bytes.
    #[error("no key was generated: the system returned no random bytes")]
    NoRandomness,
}

impl SigningError {
    /// Whether the operator can correct the error, as opposed to a system error.
    pub fn is_user_error(&self) -> bool {
        matches!(self, Self::ReadableByOthers { .. } | Self::InvalidKey { .. })
    }
}

/// An Ed25519 public key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    raw: [u8; 32],
    id: String,
}

impl PublicKey {
    /// Reads a PEM file, as `openssl pkey -pubout` writes it.
    pub fn read(path: &Path) -> Result<Self, SigningError> {
        let no_key = |why| SigningError::InvalidKey { path: path.to_owned(), why };
        let text = read_contents(path, &open_regular_file(path)?)?;
        let der = SubjectPublicKeyInfoDer::from_pem_slice(&text)
            .map_err(|_| no_key("not a public key in PEM, expected -----BEGIN PUBLIC KEY-----"))?;
        let raw = der.as_ref().strip_prefix(&PUBLIC_DER).and_then(|raw| raw.try_into().ok());
        raw.map(Self::from_raw)
            .ok_or_else(|| no_key("not an Ed25519 key: other algorithms are not supported"))
    }

    fn from_raw(raw: [u8; 32]) -> Self {
        let digest = Sha256::digest(raw);
        let id = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Self { raw, id }
    }

    /// The id of the key: the first 16 hexadecimal digits of the SHA-256 of its 32 bytes.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The key as PEM.
    pub fn to_pem(&self) -> String {
        encode_pem("PUBLIC KEY", &[PUBLIC_DER.as_slice(), &self.raw].concat())
    }
}

/// An Ed25519 private key with its public part.
pub struct SigningKey {
    pair: Ed25519KeyPair,
    public: PublicKey,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SigningKey").field(&self.public.id).finish()
    }
}

impl SigningKey {
    /// Reads a PKCS#8 PEM file, as `openssl genpkey -algorithm ed25519` writes it.
    pub fn read(path: &Path) -> Result<Self, SigningError> {
        let no_key = |why| SigningError::InvalidKey { path: path.to_owned(), why };
        let file = open_regular_file(path)?;
        // Queries the open file: its name may lead to another file by now.
        let mode = file.metadata().map_err(|source| io_error(path, source))?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(SigningError::ReadableByOthers {
                path: path.to_owned(),
                mode: mode & 0o777,
            });
        }
        let text = read_contents(path, &file)?;
        let der = PrivatePkcs8KeyDer::from_pem_slice(&text).map_err(|_| {
            no_key("not a private key in PKCS#8 PEM, expected -----BEGIN PRIVATE KEY-----")
        })?;
        Self::from_der(der.secret_pkcs8_der())
            .ok_or_else(|| no_key("not an Ed25519 key: other algorithms are not supported"))
    }

    /// Generates a key: the key, and its PEM text for a file that only its owner may read.
    pub fn generate() -> Result<(Self, String), SigningError> {
        let mut seed = [0; 32];
        SystemRandom::new().fill(&mut seed).map_err(|_| SigningError::NoRandomness)?;
        // Version 1: openssl refuses version 2 with the public key inside.
        let der = [PRIVATE_DER.as_slice(), &seed].concat();
        let key = Self::from_der(&der).ok_or(SigningError::NoRandomness)?;
        Ok((key, encode_pem("PRIVATE KEY", &der)))
    }

    fn from_der(der: &[u8]) -> Option<Self> {
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).ok()?;
        let raw = pair.public_key().as_ref().try_into().ok()?;
        Some(Self { pair, public: PublicKey::from_raw(raw) })
    }

    /// The public part of the key.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Signs a document, without any signature that it already has.
    pub fn sign<T: Serialize>(&self, document: &T) -> Result<Signature, serde_json::Error> {
        // Through the text: the signature covers the JSON that a reader parses.
        let text = serde_json::to_string(document)?;
        let value: Value = serde_json::from_str(&text)?;
        let signature = self.pair.sign(&signed_payload(&value));
        Ok(Signature {
            algorithm: signature::ED25519.to_owned(),
            key: self.public.id.clone(),
            value: BASE64_STANDARD.encode(signature.as_ref()),
        })
    }
}

/// The signed bytes of a document: its compact JSON without the field `signature`, other fields in
/// the order in which they were read.
pub fn signed_payload(document: &Value) -> Vec<u8> {
    let mut document = document.clone();
    if let Some(fields) = document.as_object_mut() {
        fields.retain(|name, _| name != SIGNATURE_FIELD);
    }
    serde_json::to_vec(&document).expect("a JSON value is serializable")
}

/// The result of checking a document's signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignatureStatus {
    /// The document has no signature.
    Unsigned,
    /// The signature of this key matches the document.
    Valid(String),
    /// The signature of this key does not match the document: it changed after signing.
    Invalid(String),
    /// No given key has this id.
    UnknownKey(String),
    /// The signature cannot be read, with the reason.
    Unreadable(String),
}

/// Checks the signature of a document, as it was read, against trusted keys.
pub fn check_signature(document: &Value, keys: &[PublicKey]) -> SignatureStatus {
    let Some(field) = document.get(SIGNATURE_FIELD).filter(|field| !field.is_null()) else {
        return SignatureStatus::Unsigned;
    };
    let found: Signature = match serde_json::from_value(field.clone()) {
        Ok(found) => found,
        Err(error) => return SignatureStatus::Unreadable(clean(&error.to_string())),
    };
    if found.algorithm != signature::ED25519 {
        let (is, known) = (clean(&found.algorithm), signature::ED25519);
        return SignatureStatus::Unreadable(format!("algorithm {is:?}, expected {known:?}"));
    }
    let Ok(bytes) = BASE64_STANDARD.decode(&found.value) else {
        return SignatureStatus::Unreadable("its value is not base64".to_owned());
    };
    let Some(key) = keys.iter().find(|key| key.id == found.key) else {
        return SignatureStatus::UnknownKey(clean(&found.key));
    };
    match UnparsedPublicKey::new(&ED25519, key.raw).verify(&signed_payload(document), &bytes) {
        Ok(()) => SignatureStatus::Valid(key.id.clone()),
        Err(_) => SignatureStatus::Invalid(key.id.clone()),
    }
}

/// The trusted keys, and whether a signature is required.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignatureTrust {
    /// The trusted keys.
    pub keys: Vec<PublicKey>,
    /// Documents without a valid signature of a trusted key are refused.
    pub required: bool,
}

impl SignatureTrust {
    /// The reason why a document is refused, if it is. A document that changed after a trusted key
    /// signed it is always refused, also if no signature is required.
    pub fn explain_refusal(&self, document: &Value) -> Option<String> {
        match check_signature(document, &self.keys) {
            SignatureStatus::Valid(_) => None,
            SignatureStatus::Invalid(key) => {
                Some(format!("its signature by key {key} does not match its content"))
            }
            _ if !self.required => None,
            SignatureStatus::Unsigned => {
                Some("it is unsigned, and a signature is required".to_owned())
            }
            SignatureStatus::UnknownKey(key) => {
                Some(format!("it was signed with key {key}, which is not trusted"))
            }
            SignatureStatus::Unreadable(why) => {
                Some(format!("its signature cannot be read: {why}"))
            }
        }
    }
}

fn io_error(path: &Path, source: io::Error) -> SigningError {
    SigningError::Io { path: path.to_owned(), source }
}

/// Opens a regular file only: reading a pipe might block forever.
fn open_regular_file(path: &Path) -> Result<File, SigningError> {
    let open = || {
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        File::open(path)
    };
    open().map_err(|source| io_error(path, source))
}

fn read_contents(path: &Path, file: &File) -> Result<Vec<u8>, SigningError> {
    let mut bytes = Vec::new();
    file.take(MAX_KEY_FILE_BYTES)
        .read_to_end(&mut bytes)
        .map_err(|source| io_error(path, source))?;
    Ok(bytes)
}

/// PEM text (RFC 7468): lines of 64 characters.
fn encode_pem(label: &str, der: &[u8]) -> String {
    let body = BASE64_STANDARD.encode(der);
    let mut text = format!("-----BEGIN {label}-----\n");
    for line in body.as_bytes().chunks(64) {
        text.extend(line.iter().map(|byte| char::from(*byte)));
        text.push('\n');
    }
    text + &format!("-----END {label}-----\n")
}

#[cfg(test)]
#[path = "document_signature_tests.rs"]
mod tests;
