//! Names of things: nodes, domains, GPUs. Cheap to clone, ordered for output.
//!
//! No parsing of host lists here (that is `model::hostlist`).

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Declares a name: a string that is cheap to clone and orders naturally.
macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(from = "String", into = "String")]
        #[schemars(with = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(Arc::from(text))
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(Arc::from(text))
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.as_ref().to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

name! {
    /// A node, as the scheduler names it.
    NodeName
}

name! {
    /// A claimed domain: the nodes somebody says share one fabric.
    DomainName
}

impl NodeName {
    /// Whether `host`, as a tool printed it, means this node: the same name,
    /// or the same but for a DNS suffix that only one of them carries.
    pub fn matches_host(&self, host: &str) -> bool {
        fn is_short_of(short: &str, long: &str) -> bool {
            long.strip_prefix(short).is_some_and(|suffix| suffix.starts_with('.'))
        }
        let node = self.as_str();
        node == host || is_short_of(node, host) || is_short_of(host, node)
    }
}

impl NodeName {
    /// Whether this can be nothing but the name of one node: host lists know
    /// brackets, commas and functions, `ALL` is the whole cluster, and a file
    /// of this name lies where it should.
    pub fn is_one_node(&self) -> bool {
        /// Names of files may have 255 bytes; an ending must fit, too.
        const LONGEST: usize = 200;
        let name = self.as_str();
        name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
            && name.len() <= LONGEST
            && !name.eq_ignore_ascii_case("all")
    }
}

/// One GPU: the node it sits in and its index there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuId {
    /// The node.
    pub node: NodeName,
    /// The device index on that node, as CUDA counts.
    pub gpu: u32,
}

impl GpuId {
    /// The GPU `gpu` of `node`.
    pub fn new(node: NodeName, gpu: u32) -> Self {
        Self { node, gpu }
    }
}

impl fmt::Display for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.node, self.gpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_name_matches_with_and_without_its_dns_suffix() {
        let node = NodeName::from("node0001");
        assert!(node.matches_host("node0001"));
        assert!(node.matches_host("node0001.cluster.local"));
        assert!(!node.matches_host("node00011"));
        assert!(NodeName::from("node0001.a").matches_host("node0001"));
        assert!(!NodeName::from("node0001.a").matches_host("node0001.b"));
        assert!(!NodeName::from("10.7.0.11").matches_host("10.7.0.12"));
    }

    #[test]
    fn what_could_mean_several_nodes_or_another_place_is_no_name_of_one() {
        for name in ["node0001", "a", "_x", "10.7.0.11", "n-1.b_c"] {
            assert!(NodeName::from(name).is_one_node(), "{name}");
        }
        let long = "n".repeat(300);
        for name in ["", "ALL", "all", "n[1-3]", "a,b", "-x", "..", ".x", "a/b", "a\0", "ä", &long]
        {
            assert!(!NodeName::from(name).is_one_node(), "{name}");
        }
    }
}
