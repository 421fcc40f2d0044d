//! The default probes.

use std::collections::BTreeSet;

use model::claims::{ClaimedDomain, Claims};
use model::id::DomainName;
use model::profile::Profile;

/// The probes for every node, by stage: state first, then the copy-engine matrices and one
/// collective.
const NODE_PROBES: [(u8, &str); 5] = [
    (0, "nvidia-smi-q"),
    (0, "nvidia-smi-nvlink"),
    (0, "nvidia-smi-topo"),
    (1, "nvbandwidth-ce"),
    (1, "nccl-all-reduce"),
];

/// The names of those probes.
pub const AUDIT_PROBES: &[&str] =
    &[NODE_PROBES[0].1, NODE_PROBES[1].1, NODE_PROBES[2].1, NODE_PROBES[3].1, NODE_PROBES[4].1];

/// Additional probes for a domain of several nodes, by stage.
const DOMAIN_PROBES: &[(u8, &str)] = &[
    (0, "nvidia-imex"),
    (2, "nvbandwidth-lane"),
    (4, "nccl-all-reduce-domain"),
    (4, "nccl-all-gather-domain"),
    (4, "nccl-reduce-scatter-domain"),
    (4, "nccl-alltoall-domain"),
    (5, "nvbandwidth-pair"),
];

/// The probes of a profile, for these claims, in the order they run.
///
/// Cross-node probes are included if NVLink joins a domain of several nodes, or if its platform is
/// not claimed: then the plan lists what is left out and why.
///
/// RDMA probes measure the scale-out network if rails name RDMA devices; fabricgate's TCP probe
/// does if rails have other devices or the nodes have no GPUs. Without a claimed rail, a GPU node's
/// default address is on its management network, which does not measure the fabric.
pub fn default_probes(
    profile: Profile,
    claims: &Claims,
    nvlink_across: &BTreeSet<DomainName>,
) -> Vec<&'static str> {
    let mut probes: Vec<(u8, &'static str)> = Vec::new();
    let has_gpus = claims.domains.iter().any(|d| d.gpus_per_node != Some(0));
    if has_gpus {
        probes.extend(NODE_PROBES);
        let may_span = |d: &ClaimedDomain| d.platform.is_none() || nvlink_across.contains(&d.name);
        if claims.domains.iter().any(|d| 1 < claims.count_claimed_nodes(d) && may_span(d)) {
            probes.extend(DOMAIN_PROBES);
        }
    }
    if 1 < claims.count_all_claimed_nodes() {
        if claims.rails.iter().any(|rail| rail.rdma.is_some()) {
            probes.extend([(2, "ib-write-bw"), (2, "ib-read-bw")]);
        } else if !claims.rails.is_empty() || !has_gpus {
            probes.push((2, "tcp"));
        }
    }
    probes.retain(|(stage, _)| profile.has_stage(*stage));
    probes.sort_by_key(|(stage, _)| *stage);
    probes.into_iter().map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use readers::claims::claims_file;
    use readers::probe_catalog::ProbeCatalog;

    fn probes_for(profile: Profile, claims: &str) -> Vec<&'static str> {
        let across = BTreeSet::from(["rack".into()]);
        default_probes(profile, &claims_file::parse("c", claims).expect("good"), &across)
    }

    #[test]
    fn every_default_is_built_in_and_of_the_stage_it_is_listed_for() {
        let catalog = ProbeCatalog::built_in();
        let network = [(2, "ib-write-bw"), (2, "ib-read-bw"), (2, "tcp")];
        for (stage, name) in NODE_PROBES.iter().chain(DOMAIN_PROBES).chain(&network) {
            let probe = catalog.get(name).unwrap_or_else(|| panic!("{name} is not built in"));
            assert_eq!(probe.stage, *stage, "{name}");
        }
    }

    #[test]
    fn the_network_is_measured_where_something_is_known_of_it() {
        let nodes = "[[domain]]\nname = \"a\"\nnodes = \"a[1-2]\"\n";
        assert!(!probes_for(Profile::Audit, nodes).contains(&"tcp"));
        let plain = format!("{nodes}gpus_per_node = 0\n");
        assert_eq!(probes_for(Profile::Audit, &plain), ["tcp"]);
        let rail = format!("{nodes}[[rail]]\nname = \"r0\"\ndevice = \"eth1\"\n");
        assert!(probes_for(Profile::Audit, &rail).contains(&"tcp"));
        let rdma = format!("{nodes}[[rail]]\nname = \"r0\"\nrdma = \"mlx5_0\"\n");
        let probes = probes_for(Profile::Audit, &rdma);
        assert!(probes.contains(&"ib-write-bw") && !probes.contains(&"tcp"), "{probes:?}");
    }

    #[test]
    fn a_profile_adds_the_probes_of_its_stages() {
        let nodes = "[[domain]]\nname = \"a\"\nnodes = \"a[1-2]\"\n";
        let count = |profile| probes_for(profile, nodes).len();
        assert_eq!(
            (count(Profile::Audit), count(Profile::Admit), count(Profile::BurnIn)),
            (7, 11, 12)
        );
        let board = format!("{nodes}platform = \"hgx-h100\"\n");
        assert_eq!(probes_for(Profile::BurnIn, &board), AUDIT_PROBES);
        let rack = board.replace("\"a\"", "\"rack\"");
        assert_eq!(probes_for(Profile::BurnIn, &rack).len(), 12);
        let one = "[[domain]]\nname = \"a\"\nnodes = \"a1\"\n";
        assert_eq!(probes_for(Profile::BurnIn, one), AUDIT_PROBES);
    }
}
