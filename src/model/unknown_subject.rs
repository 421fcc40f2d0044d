//! The subject of an unknown.
//!
//! Documents carry the text. One table of prefixes parses a stored text; a text without a known
//! prefix, such as a file, a test or a step, is kept as it is.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::id::{DomainName, NodeName};

/// The subject of an unknown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnknownSubject {
    /// The whole run.
    Run,
    /// One node.
    Node(NodeName),
    /// One domain.
    Domain(DomainName),
    /// The claims of a source.
    Claims(String),
    /// A file, a test or a step, as text: no decision depends on it.
    Other(String),
}

const RUN: &str = "everything";
const NODE_PREFIX: &str = "node ";
const DOMAIN_PREFIX: &str = "domain ";
const CLAIMS_PREFIX: &str = "what is claimed by ";

impl UnknownSubject {
    /// An unknown about this node.
    pub fn node(node: &NodeName) -> Self {
        Self::Node(node.clone())
    }

    /// An unknown about this domain.
    pub fn domain(domain: &DomainName) -> Self {
        Self::Domain(domain.clone())
    }

    /// Parses a stored text.
    pub fn parse(text: &str) -> Self {
        if text == RUN {
            Self::Run
        } else if let Some(node) = text.strip_prefix(NODE_PREFIX) {
            Self::Node(node.into())
        } else if let Some(domain) = text.strip_prefix(DOMAIN_PREFIX) {
            Self::Domain(domain.into())
        } else if let Some(source) = text.strip_prefix(CLAIMS_PREFIX) {
            Self::Claims(source.to_owned())
        } else {
            Self::Other(text.to_owned())
        }
    }
}

impl fmt::Display for UnknownSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run => f.write_str(RUN),
            Self::Node(node) => write!(f, "{NODE_PREFIX}{node}"),
            Self::Domain(domain) => write!(f, "{DOMAIN_PREFIX}{domain}"),
            Self::Claims(source) => write!(f, "{CLAIMS_PREFIX}{source}"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

impl Serialize for UnknownSubject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for UnknownSubject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self::parse(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_read_back_as_it_was_written() {
        let all = [
            UnknownSubject::Run,
            UnknownSubject::Node("n1".into()),
            UnknownSubject::Domain("block01".into()),
            UnknownSubject::Claims("slurm".to_owned()),
            UnknownSubject::Other("nodes/n1/read.txt".to_owned()),
        ];
        for subject in all {
            let text = serde_json::to_string(&subject).expect("a text");
            assert_eq!(serde_json::from_str::<UnknownSubject>(&text).expect("it"), subject);
        }
    }
}
