//! `[certificates]` of the configuration: the key that signs certificates, and the keys whose
//! signatures are accepted.
//!
//! Checks the text of the section. Keys are read at their use, and a bad key is reported there: it
//! does not prevent a measurement.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use crate::config::ConfigMistake;
use control::gate::certificates::CertificateSigning;
use control::store::signing::{PublicKey, SignatureTrust, SigningKey};

/// `[certificates]` of the configuration.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CertificatesSection {
    /// The file of the Ed25519 private key (PKCS#8 PEM, mode 600 or 400) that signs new
    /// certificates. Without it, they are not signed.
    key: Option<PathBuf>,
    /// The files of Ed25519 public keys (PEM) whose signatures are accepted in addition to those of
    /// `key`. Default: none.
    public_keys: Vec<PathBuf>,
    /// Whether a certificate without a signature by one of these keys is ignored. Default: false.
    #[schemars(with = "Option<bool>")]
    require_signature: Option<Spanned<bool>>,
}

/// Signatures, as configured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificatesConfig {
    /// The file of the key that signs.
    pub key: Option<PathBuf>,
    /// The files of the keys whose signatures are accepted.
    pub public_keys: Vec<PathBuf>,
    /// Whether certificates without such a signature are ignored.
    pub require_signature: bool,
}

/// Reads `[certificates]`.
pub fn parse_certificates(
    section: CertificatesSection,
    base: &Path,
) -> Result<CertificatesConfig, ConfigMistake> {
    let has_no_key = section.key.is_none() && section.public_keys.is_empty();
    if let Some(required) = section.require_signature.as_ref().filter(|it| *it.get_ref())
        && has_no_key
    {
        let message = "require_signature without a key: no certificate would be accepted, \
             expected key = \"FILE\" or public_keys = [\"FILE\"]";
        return Err((required.span().start, message.to_owned()));
    }
    Ok(CertificatesConfig {
        key: section.key.map(|file| base.join(file)),
        public_keys: section.public_keys.into_iter().map(|file| base.join(file)).collect(),
        require_signature: section.require_signature.is_some_and(Spanned::into_inner),
    })
}

/// The keys of a configuration, as far as they could be read.
#[derive(Debug)]
pub struct CertificateKeys {
    key: Result<Option<SigningKey>, String>,
    /// The certificates that are accepted.
    pub trust: SignatureTrust,
    /// Keys that could not be read.
    pub problems: Vec<String>,
}

impl CertificateKeys {
    /// Why a certificate issued here would not be accepted: it must be signed, and that is not
    /// possible.
    pub fn unsealed_reason(&self) -> Option<String> {
        let what = "certificates must be signed";
        match &self.key {
            _ if !self.trust.required => None,
            Ok(Some(_)) => None,
            Ok(None) => Some(format!("{what}, and no key is configured")),
            Err(why) => Some(format!("{what}: {why}")),
        }
    }

    /// The signing key, and the accepted keys.
    pub fn seal(&self) -> CertificateSigning<'_> {
        CertificateSigning {
            key: self.key.as_ref().map(Option::as_ref).map_err(String::as_str),
            trust: &self.trust,
        }
    }
}

impl CertificatesConfig {
    /// Reads the keys. An unreadable key is a problem in the result and verifies no signature.
    pub fn read_keys(&self) -> CertificateKeys {
        let key = self.key.as_deref().map(SigningKey::read).transpose();
        let key = key.map_err(|error| error.to_string());
        let mut trust = SignatureTrust { keys: Vec::new(), required: self.require_signature };
        let mut troubles = Vec::new();
        match &key {
            Ok(own) => trust.keys.extend(own.as_ref().map(|key| key.public().clone())),
            Err(why) => troubles.push(format!("[certificates] key: {why}")),
        }
        for file in &self.public_keys {
            match PublicKey::read(file) {
                Ok(key) => trust.keys.push(key),
                Err(error) => troubles.push(format!("[certificates] public_keys: {error}")),
            }
        }
        CertificateKeys { key, trust, problems: troubles }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<CertificatesConfig, ConfigMistake> {
        parse_certificates(toml::from_str(text).expect("a section"), Path::new("/site"))
    }

    #[test]
    fn files_are_relative_to_the_configuration_and_signatures_optional() {
        assert_eq!(read(""), Ok(CertificatesConfig::default()));
        let text = "key = \"k.pem\"\npublic_keys = [\"/etc/a.pub\"]\nrequire_signature = true";
        let read = read(text).expect("good");
        assert_eq!(read.key.as_deref(), Some(Path::new("/site/k.pem")));
        assert_eq!(read.public_keys, [Path::new("/etc/a.pub")]);
        assert!(read.require_signature);
    }

    #[test]
    fn an_unverifiable_signature_requirement_is_a_mistake_with_its_location() {
        let (at, message) = read("require_signature = true").expect_err("no key");
        assert_eq!(at, 20);
        assert!(message.contains("public_keys"), "{message}");
        assert!(read("require_signature = false").is_ok());
    }

    #[test]
    fn an_unreadable_key_is_reported_and_the_others_count() {
        let dir = tempfile::tempdir().expect("a folder");
        let (key, _) = SigningKey::generate().expect("chance");
        let public = dir.path().join("p.pub");
        std::fs::write(&public, key.public().to_pem()).expect("written");
        let certifying = CertificatesConfig {
            key: Some(dir.path().join("none.pem")),
            public_keys: vec![public, dir.path().join("none.pub")],
            require_signature: true,
        };
        let keys = certifying.read_keys();
        assert_eq!(keys.trust.keys, [key.public().clone()]);
        assert_eq!(keys.problems.len(), 2, "{:?}", keys.problems);
        assert!(keys.seal().key.is_err());
        assert!(keys.unsealed_reason().expect("told").contains("none.pem"));
        let lax = CertificatesConfig { require_signature: false, ..certifying };
        assert_eq!(lax.read_keys().unsealed_reason(), None);
    }
}
