//! Single-node domains, for platforms whose NVLink ends at the node.
//!
//! An operator may list all nodes of a cluster on one line, and a scheduler's leaf is not an
//! NVLink domain: such nodes are measured one by one.

use std::collections::BTreeSet;

use model::claims::ClaimedDomain;
use model::id::DomainName;

/// One domain per node of this domain, named after the node; if that name is taken,
/// `DOMAIN.NODE`.
pub(super) fn split_domain(
    domain: &ClaimedDomain,
    is_taken: impl Fn(&DomainName) -> bool,
) -> Vec<ClaimedDomain> {
    let one = |node| {
        let name = DomainName::from(model::id::NodeName::as_str(node));
        let name = match is_taken(&name) {
            true => DomainName::from(format!("{}.{node}", domain.name)),
            false => name,
        };
        ClaimedDomain { name, nodes: vec![node.clone()], ..domain.clone() }
    };
    domain.nodes.iter().map(one).collect()
}

/// Splits every domain of several nodes whose platform ends at the node. `ends_at_node` receives
/// the platform that the domain claims.
pub fn split_domains(
    domains: Vec<ClaimedDomain>,
    ends_at_node: impl Fn(Option<&str>) -> bool,
) -> Vec<ClaimedDomain> {
    let is_split = |d: &ClaimedDomain| 1 < d.nodes.len() && ends_at_node(d.platform.as_deref());
    let kept: BTreeSet<DomainName> =
        domains.iter().filter(|d| !is_split(d)).map(|d| d.name.clone()).collect();
    let split = domains.into_iter().flat_map(|domain| match is_split(&domain) {
        true => split_domain(&domain, |name| kept.contains(name)),
        false => vec![domain],
    });
    split.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::claims_file;

    #[test]
    fn domains_are_split_where_nvlink_ends_at_the_node_and_keep_their_fields() {
        let text = "[[domain]]\nname = \"pod\"\nnodes = \"h[1-3]\"\nplatform = \"hgx-h100\"\nnic = \"nic-ndr-400\"\n\
            [[domain]]\nname = \"h2\"\nnodes = \"n[1-2]\"\nplatform = \"gb200-nvl72\"\n\
            [[domain]]\nname = \"bare\"\nnodes = \"m[1-2]\"\n\
            [[domain]]\nname = \"box\"\nnodes = \"b1\"\nplatform = \"hgx-h100\"\n";
        let claims = claims_file::parse("c", text).expect("good");
        let sizes = |domains: &[ClaimedDomain]| {
            let of = |d: &ClaimedDomain| format!("{}:{}", d.name, d.nodes.len());
            domains.iter().map(of).collect::<Vec<_>>().join(" ")
        };
        let split = split_domains(claims.domains.clone(), |platform| platform == Some("hgx-h100"));
        assert_eq!(sizes(&split), "h1:1 pod.h2:1 h3:1 h2:2 bare:2 box:1");
        assert!(split[..3].iter().all(|d| d.nic.as_deref() == Some("nic-ndr-400")));
        let none = split_domains(claims.domains.clone(), |_| false);
        assert_eq!(none, claims.domains);
    }
}
