//! `claims.toml`: what a person claims about the fabric.
//!
//! Text in, [`Claims`] out, or one error that points at line and column. The
//! file itself is opened by the caller.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de;
use toml::Spanned;

use super::hostlist;
use crate::model::claims::ClaimedDomain;
use crate::model::claims::Claims;
use crate::model::id::DomainName;
use crate::model::id::NodeName;
use crate::model::span::TextError;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    domain: Vec<Domain>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Domain {
    name: Spanned<String>,
    nodes: Spanned<Nodes>,
    platform: Option<String>,
    gpus_per_node: Option<Spanned<u32>>,
    nic: Option<String>,
}

/// A host list, or a list of them.
#[derive(Debug)]
enum Nodes {
    One(String),
    Many(Vec<Spanned<String>>),
}

impl<'de> Deserialize<'de> for Nodes {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Nodes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a host list such as \"node[0001-0018]\", or a list of node names")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Nodes, E> {
                Ok(Nodes::One(text.to_owned()))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Nodes, A::Error> {
                let mut lists = Vec::new();
                while let Some(list) = seq.next_element()? {
                    lists.push(list);
                }
                Ok(Nodes::Many(lists))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Reads the text of a claims file. `file` is its name in messages.
pub fn parse(file: &str, text: &str) -> Result<Claims, TextError> {
    let read: File = toml::from_str(text).map_err(|e| TextError::toml(file, text, &e))?;
    let at = |offset: usize, message: String| TextError::at(file, text, offset, message);
    if read.domain.is_empty() {
        return Err(at(0, "no [[domain]] is claimed".to_owned()));
    }
    let mut claims = Claims::default();
    let mut domains: BTreeMap<DomainName, usize> = BTreeMap::new();
    let mut owners: BTreeMap<NodeName, DomainName> = BTreeMap::new();
    for domain in read.domain {
        let name_at = domain.name.span().start;
        let name = domain.name.into_inner();
        if !is_plain(&name) {
            let message = format!("domain name {name:?}: expected letters, digits, '.', '_', '-'");
            return Err(at(name_at, message));
        }
        let name = DomainName::from(name);
        if let Some(first) = domains.insert(name.clone(), name_at) {
            let (line, _) = crate::model::span::line_column(text, first);
            return Err(at(name_at, format!("domain {name} is already claimed in line {line}")));
        }
        let nodes_at = domain.nodes.span().start;
        let mut nodes = Vec::new();
        for (offset, list) in lists(&domain.nodes) {
            let expanded = hostlist::expand(list).map_err(|error| {
                // The list's own offset counts only where the text stands in
                // the file as it is, without escapes.
                let inside = text[offset..].get(1..=list.len()) == Some(list);
                let place = if inside { offset + 1 + error.offset } else { offset };
                at(place, format!("nodes {list:?}: {error}"))
            })?;
            for node in expanded {
                let node = NodeName::from(node);
                if let Some(owner) = owners.insert(node.clone(), name.clone()) {
                    let message = if owner == name {
                        format!("node {node} is in domain {name} twice")
                    } else {
                        format!("node {node} is in two domains, {owner} and {name}")
                    };
                    return Err(at(offset, message));
                }
                nodes.push(node);
            }
        }
        if nodes.is_empty() {
            return Err(at(nodes_at, format!("domain {name} has no nodes")));
        }
        if let Some(gpus) = &domain.gpus_per_node
            && *gpus.get_ref() == 0
        {
            return Err(at(gpus.span().start, "gpus_per_node is 0, expected 1 or more".to_owned()));
        }
        claims.domains.push(ClaimedDomain {
            name,
            nodes,
            platform: domain.platform,
            gpus_per_node: domain.gpus_per_node.map(Spanned::into_inner),
            nic: domain.nic,
        });
    }
    Ok(claims)
}

/// The host lists with their offsets.
fn lists(nodes: &Spanned<Nodes>) -> Vec<(usize, &str)> {
    match nodes.get_ref() {
        Nodes::One(list) => vec![(nodes.span().start, list)],
        Nodes::Many(lists) => {
            lists.iter().map(|l| (l.span().start, l.get_ref().as_str())).collect()
        }
    }
}

/// Whether a name can be a folder and a column: it is shown and stored as it is.
fn is_plain(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(text: &str) -> String {
        parse("c.toml", text).expect_err("a bad file").to_string()
    }

    #[test]
    fn domains_come_in_their_order_with_all_they_say() {
        let claims = parse(
            "c.toml",
            "[[domain]]\nname = \"b2\"\nnodes = \"n[03-04]\"\nplatform = \"hgx-h100\"\n\
             gpus_per_node = 8\nnic = \"ndr400\"\n[[domain]]\nname = \"b1\"\nnodes = [\"n01\", \"n02\"]\n",
        )
        .expect("good");
        let [first, second] = claims.domains.as_slice() else { panic!("{claims:?}") };
        assert_eq!((first.name.as_str(), first.gpus_per_node), ("b2", Some(8)));
        assert_eq!(first.nodes, [NodeName::from("n03"), NodeName::from("n04")]);
        assert_eq!(
            (first.platform.as_deref(), first.nic.as_deref()),
            (Some("hgx-h100"), Some("ndr400"))
        );
        assert_eq!(second.nodes, [NodeName::from("n01"), NodeName::from("n02")]);
    }

    #[test]
    fn a_typo_in_a_key_is_named_with_its_place() {
        let said = complaint("[[domain]]\nname = \"a\"\nnodes = \"n1\"\nplatfrom = \"x\"\n");
        assert!(said.starts_with("c.toml:4:1: ") && said.contains("platfrom"), "{said}");
    }

    #[test]
    fn contradictions_are_named_with_their_place() {
        let twice =
            "[[domain]]\nname = \"a\"\nnodes = \"n1\"\n[[domain]]\nname = \"a\"\nnodes = \"n2\"\n";
        assert_eq!(complaint(twice), "c.toml:5:8: domain a is already claimed in line 2");
        let shared = "[[domain]]\nname = \"a\"\nnodes = \"n[1-3]\"\n[[domain]]\nname = \"b\"\nnodes = [\"n5\", \"n3\"]\n";
        assert_eq!(complaint(shared), "c.toml:6:16: node n3 is in two domains, a and b");
        assert!(
            complaint("[[domain]]\nname = \"a\"\nnodes = [\"n1\", \"n1\"]\n").contains("twice")
        );
    }

    #[test]
    fn a_bad_host_list_is_named_down_to_its_character() {
        let said = complaint("[[domain]]\nname = \"a\"\nnodes = \"n[1-3\"\n");
        assert_eq!(said, "c.toml:3:11: nodes \"n[1-3\": character 2: this [ is never closed");
    }

    #[test]
    fn nothing_claimed_is_an_error_and_not_an_empty_pass() {
        assert!(complaint("").contains("no [[domain]]"));
        assert!(complaint("[[domain]]\nname = \"a\"\nnodes = []\n").contains("has no nodes"));
        assert!(complaint("[[domain]]\nname = \"a\"\nnodes = \"\"\n").contains("empty"));
        assert!(complaint("[[domain]]\nname = \"a\"\nnodes = 3\n").contains("host list"));
        assert!(complaint("[[domain]]\nname = \"../x\"\nnodes = \"n\"\n").contains("domain name"));
        assert!(
            complaint("[[domain]]\nname = \"a\"\nnodes = \"n\"\ngpus_per_node = 0\n")
                .contains("1 or more")
        );
    }
}
