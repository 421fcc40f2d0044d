//! `[certificates]` of the configuration: the key that signs certificates, and the keys whose
//! certificates count.
//!
//! Keys are read where they are used, and a bad key is reported there: it does not prevent a
//! measurement.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use crate::config::ConfigMistake;
use control::gate::certificates::CertificateSigning;
use control::store::document_signature::{PublicKey, SignatureTrust, SigningKey};

/// `[certificates]` of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CertificatesConfig {
    /// The file of the Ed25519 private key (PKCS#8 PEM, mode 600 or 400) that signs new
    /// certificates. Without it, they are not signed.
    pub key: Option<PathBuf>,
    /// The files of Ed25519 public keys (PEM) whose signatures are accepted in addition to those of
    /// `key`. Default: none.
    pub public_keys: Vec<PathBuf>,
    /// Whether a certificate without a signature by one of these keys is ignored. Default: false.
    #[schemars(with = "Option<bool>")]
    require_signature: Option<Spanned<bool>>,
}

impl CertificatesConfig {
    /// A section of the file, checked, with relative paths in this folder.
    pub fn from_section(self, base: &Path) -> Result<Self, ConfigMistake> {
        if let Some(required) = self.require_signature.as_ref().filter(|it| *it.get_ref())
            && self.key.is_none()
            && self.public_keys.is_empty()
        {
            let message = "require_signature without a key: no certificate would be accepted, \
                           expected key = \"FILE\" or public_keys = [\"FILE\"]";
            return Err((required.span().start, message.to_owned()));
        }
        Ok(Self {
            key: self.key.map(|file| base.join(file)),
            public_keys: self.public_keys.into_iter().map(|file| base.join(file)).collect(),
            require_signature: self.require_signature,
        })
    }

    /// Whether a certificate without a valid signature counts as none.
    pub fn requires_signature(&self) -> bool {
        self.require_signature.as_ref().is_some_and(|it| *it.get_ref())
    }
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
        let mut trust = SignatureTrust { keys: Vec::new(), required: self.requires_signature() };
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
        let section: CertificatesConfig = toml::from_str(text).expect("a section");
        section.from_section(Path::new("/site"))
    }

    #[test]
    fn relative_files_are_in_the_folder_of_the_configuration_and_no_signature_is_required_by_default()
     {
        assert_eq!(read(""), Ok(CertificatesConfig::default()));
        let text = "key = \"k.pem\"\npublic_keys = [\"/etc/a.pub\"]\nrequire_signature = true";
        let read = read(text).expect("good");
        assert_eq!(read.key.as_deref(), Some(Path::new("/site/k.pem")));
        assert_eq!(read.public_keys, [Path::new("/etc/a.pub")]);
        assert!(read.requires_signature());
    }

    #[test]
    fn a_required_signature_without_a_key_is_a_mistake_with_its_place() {
        let (at, message) = read("require_signature = true").expect_err("no key");
        assert_eq!(at, 20);
        assert!(message.contains("public_keys"), "{message}");
        assert!(read("require_signature = false").is_ok());
    }

    #[test]
    fn a_key_that_cannot_be_read_is_reported_and_the_others_count() {
        let dir = tempfile::tempdir().expect("a folder");
        let (key, _) = SigningKey::generate().expect("chance");
        let public = dir.path().join("p.pub");
        std::fs::write(&public, key.public().to_pem()).expect("written");
        let certifying = CertificatesConfig {
            key: Some(dir.path().join("none.pem")),
            public_keys: vec![public, dir.path().join("none.pub")],
            require_signature: Some(Spanned::new(0..0, true)),
        };
        let keys = certifying.read_keys();
        assert_eq!(keys.trust.keys, [key.public().clone()]);
        assert_eq!(keys.problems.len(), 2, "{:?}", keys.problems);
        assert!(keys.seal().key.is_err());
        assert!(keys.unsealed_reason().expect("a reason").contains("none.pem"));
        let lax = CertificatesConfig { require_signature: None, ..certifying };
        assert_eq!(lax.read_keys().unsealed_reason(), None);
    }
}
