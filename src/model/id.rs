//! Names of nodes, domains and GPUs. Cheap to clone, ordered for output.
//!
//! `model::hostlist` parses host lists.

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
            /// The name as a string slice.
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
    /// A node, by its name in the scheduler.
    NodeName
}

name! {
    /// A claimed domain: nodes that share one fabric according to a source.
    DomainName
}

impl NodeName {
    /// Whether `host`, as a tool printed it, is this node: the same name, or the same except for
    /// a DNS suffix on one side.
    pub fn matches_host(&self, host: &str) -> bool {
        fn is_short_of(short: &str, long: &str) -> bool {
            long.strip_prefix(short).is_some_and(|suffix| suffix.starts_with('.'))
        }
        let node = self.as_str();
        node == host || is_short_of(node, host) || is_short_of(host, node)
    }
}

impl NodeName {
    /// Whether this can only be the name of one node: host lists contain brackets, commas and
    /// functions, and `ALL` stands for the whole cluster. It must also be safe as a file name.
    pub fn is_one_node(&self) -> bool {
        /// File names are limited to 255 bytes, and a suffix must fit, too.
        const LONGEST: usize = 200;
        let name = self.as_str();
        name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
            && name.len() <= LONGEST
            && !name.eq_ignore_ascii_case("all")
    }
}

/// One GPU: its node and its index on the node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuId {
    /// The node of the GPU.
    pub node: NodeName,
    /// The device index on that node, in CUDA's order.
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
    fn ambiguous_names_and_paths_are_not_the_name_of_one_node() {
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
