//! Which source a text is, found by looking at it, never by its name.
//!
//! Pure. Every reader says what it recognises; the first that does reads. The
//! order counts only where one format could pass for another.

use super::cabling;
use super::claims_file;
use super::cluster_uuids;
use super::job;
use super::kubernetes;
use super::nccl_topology;
use super::neighbours;
use super::node_facts;
use super::ray;
use super::slurm;
use super::slurm::topology_conf;
use crate::model::said::Said;

/// Tells whether a text is one of a kind.
type Recognises = fn(&str) -> bool;
/// Reads a text under a name.
type Read = fn(&str, &str) -> Said;

/// Formats with an unmistakable head come before those of loose lines.
const READERS: &[(Recognises, Read)] = &[
    (node_facts::recognises, node_facts::read),
    (kubernetes::compute_domains::recognises, kubernetes::compute_domains::read),
    (kubernetes::topologies::recognises, kubernetes::topologies::read),
    (kubernetes::nodes::recognises, kubernetes::nodes::read),
    (slurm::nodes::recognises, slurm::nodes::read),
    (slurm::partitions::recognises, slurm::partitions::read),
    (slurm::sinfo::recognises, slurm::sinfo::read),
    (slurm::config::recognises, slurm::config::read),
    (slurm::show_topology::recognises, slurm::show_topology::read),
    (slurm::topology_yaml::recognises, slurm::topology_yaml::read),
    (ray::recognises, ray::read),
    (nccl_topology::recognises, nccl_topology::read),
    (neighbours::recognises, neighbours::read),
    (cluster_uuids::recognises, cluster_uuids::read),
    (claims_file::recognises, claims_file::read),
    (cabling::recognises, cabling::read),
];

/// Reads a text as what it is, or gives nothing where no reader recognises it.
/// `include` opens the files that a `topology.conf` includes.
pub fn read(place: &str, text: &str, include: &mut topology_conf::Open<'_>) -> Option<Said> {
    if let Some((_, read)) = READERS.iter().find(|(recognises, _)| recognises(text)) {
        return Some(read(place, text));
    }
    if topology_conf::recognises(text) {
        return Some(topology_conf::read(place, text, include));
    }
    // Lines of KEY=VALUE say least of what they are.
    job::recognises(text).then(|| job::read(place, text))
}

/// What can be read, for messages.
pub const KNOWN: &str = "claims.toml, Slurm's topology.yaml or topology.conf, output of scontrol show \
    topology|node|partition|config or sinfo, `kubectl get -o json` of nodes, ComputeDomains or \
    topologies, `fabricgate node facts --json`, lines of NODE: ClusterUUID, a cabling file, LLDP or InfiniBand neighbours, Ray's \
    nodes, an NCCL topology XML, or the environment of a job";
