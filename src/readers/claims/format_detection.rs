//! Detects the source format of a text by its content, never by its name.
//!
//! Pure. Every reader has a predicate; the first that matches parses the text. The order matters
//! only where one format could pass for another.

use super::slurm::topology_conf;
use super::{
    cabling, claims_file, cluster_uuids, job, kubernetes, nccl_topology, neighbours, node_facts,
    ray, slurm,
};
use model::source_report::SourceReport;

/// Whether a text has a format.
type FormatPredicate = fn(&str) -> bool;
/// Parses a text under a name.
type FormatReader = fn(&str, &str) -> SourceReport;

/// Formats with an unmistakable head come before those of loose lines.
const READERS: &[(FormatPredicate, FormatReader)] = &[
    (node_facts::recognises, node_facts::read),
    (slurm::nodes::recognises, slurm::nodes::read),
    (slurm::partitions::recognises, slurm::partitions::read),
    (slurm::config::recognises, slurm::config::read),
    (slurm::show_topology::recognises, slurm::show_topology::read),
    (slurm::topology_yaml::recognises, slurm::topology_yaml::read),
    (ray::recognises, ray::read),
    (nccl_topology::recognises, nccl_topology::read),
    (neighbours::recognises, neighbours::read),
    (cluster_uuids::recognises, cluster_uuids::read),
    (claims_file::recognises, claims_file::read),
    (cabling::recognises, cabling::read),
    // Without a header, it identifies columns by their content.
    (slurm::sinfo::recognises, slurm::sinfo::read),
];

/// Kubernetes objects: one file may contain several kinds, and each reader takes its own kind.
const KUBERNETES_READERS: &[(FormatPredicate, FormatReader)] = &[
    (kubernetes::nodes::recognises, kubernetes::nodes::read),
    (kubernetes::compute_domains::recognises, kubernetes::compute_domains::read),
    (kubernetes::topologies::recognises, kubernetes::topologies::read),
];

/// Parses a text in its detected format; empty if no reader recognises it. `include` opens the
/// files that a `topology.conf` includes.
pub fn read_text(
    place: &str,
    text: &str,
    include: &mut topology_conf::IncludeOpener<'_>,
) -> Vec<SourceReport> {
    let objects = KUBERNETES_READERS.iter().filter(|(recognises, _)| recognises(text));
    let objects: Vec<SourceReport> = objects.map(|(_, read)| read(place, text)).collect();
    if !objects.is_empty() {
        return objects;
    }
    if let Some((_, read)) = READERS.iter().find(|(recognises, _)| recognises(text)) {
        return vec![read(place, text)];
    }
    if topology_conf::recognises(text) || has_only_includes(text) {
        return vec![topology_conf::read(place, text, include)];
    }
    // Lines of KEY=VALUE are the least specific format.
    if job::recognises(text) { vec![job::read(place, text)] } else { Vec::new() }
}

/// Whether a text only includes other files, as only a `topology.conf` may.
fn has_only_includes(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
    let is_include = |line: &str| {
        line.split_whitespace().next().is_some_and(|word| word.eq_ignore_ascii_case("include"))
    };
    lines.next().is_some_and(is_include) && lines.all(is_include)
}

/// The known formats, for messages.
pub const KNOWN_FORMATS: &str = "claims.toml, Slurm's topology.yaml or topology.conf, output of scontrol show \
    topology|node|partition|config or sinfo, `kubectl get -o json` of nodes, ComputeDomains or \
    topologies, `fabricgate node facts --json`, lines of NODE: ClusterUUID, a cabling file, LLDP or InfiniBand neighbours, Ray's \
    nodes, an NCCL topology XML, or the environment of a job";

#[cfg(test)]
mod tests {
    use super::*;
    use model::source_report::SourceKind;

    /// One text of every kind, each as short as real ones can be.
    const TEXTS: &[(SourceKind, &str)] = &[
        (SourceKind::ClaimsFile, "[[domain]]\nname = \"a\"\nnodes = \"n[1-2]\"\n"),
        (SourceKind::SlurmTopologyYaml, "- topology: t\n  cluster_default: true\n  flat: true\n"),
        (SourceKind::SlurmTopologyConf, "BlockName=b1 Nodes=n[1-2]\nBlockSizes=2\n"),
        (SourceKind::SlurmTopologyConf, "SwitchName=s1 Nodes=n[1-2]\n"),
        (SourceKind::SlurmTopologyConf, "# two parts\nInclude a.conf\nInclude b.conf\n"),
        (SourceKind::SlurmTopology, "BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\n"),
        (SourceKind::SlurmNodes, "NodeName=n1 Arch=x86_64 CPUTot=4 State=IDLE Gres=gpu:4\n"),
        (
            SourceKind::SlurmNodes,
            "{\"nodes\": [{\"name\": \"n1\", \"state\": [\"IDLE\"], \"gres\": \"gpu:4\", \"slurmd_start_time\": 1}], \"meta\": {\"plugin\": {\"data_parser\": \"data_parser/v0.0.45\"}}}",
        ),
        (
            SourceKind::Sinfo,
            "PARTITION AVAIL TIMELIMIT NODES STATE NODELIST\nmain* up infinite 2 idle n[1-2]\n",
        ),
        (
            SourceKind::KubernetesNodes,
            "{\"apiVersion\": \"v1\", \"kind\": \"Node\", \"metadata\": {\"name\": \"n1\"}}",
        ),
        (
            SourceKind::ComputeDomains,
            "{\"apiVersion\": \"resource.nvidia.com/v1beta1\", \"kind\": \"ComputeDomain\", \
             \"metadata\": {\"name\": \"d\", \"namespace\": \"x\"}, \"status\": {\"status\": \"Ready\"}}",
        ),
        (
            SourceKind::KubernetesTopologies,
            "{\"apiVersion\": \"kueue.x-k8s.io/v1beta2\", \"kind\": \"Topology\", \"metadata\": \
             {\"name\": \"t\"}, \"spec\": {\"levels\": [{\"nodeLabel\": \"a/b\"}]}}",
        ),
        (SourceKind::Cabling, "node,rail,leaf,port\nn1,rail0,leaf1,1\n"),
        (SourceKind::NodeFacts, "n1: 0a0a0a0a-1111-4222-8333-444444444444\n"),
        (SourceKind::NcclTopology, "<system version=\"1\"><cpu numaid=\"0\"/></system>"),
        (SourceKind::Job, "export NCCL_MNNVL_ENABLE=1\n"),
    ];

    #[test]
    fn every_text_is_read_in_its_format() {
        for (kind, text) in TEXTS {
            let mut include = |name: &str| Err(format!("{name}: not here"));
            let report = read_text("x", text, &mut include);
            let [report] = &report[..] else { panic!("{kind:?}: {report:?}") };
            assert_eq!(report.source.kind, *kind, "{text}");
        }
    }

    #[test]
    fn no_text_is_recognised_by_two_readers() {
        for (kind, text) in TEXTS {
            let readers = READERS
                .iter()
                .chain(KUBERNETES_READERS)
                .filter(|(recognises, _)| recognises(text))
                .count();
            let others = usize::from(topology_conf::recognises(text) || has_only_includes(text))
                + usize::from(job::recognises(text));
            assert_eq!(readers + others, 1, "{kind:?}: {text}");
        }
    }

    #[test]
    fn unknown_text_is_not_read() {
        for text in ["", "dear diary\n", "{}", "[]", "<html></html>", "a,b\n1,2\n", "key: value\n"]
        {
            let mut include = |_: &str| Err(String::new());
            assert!(read_text("x", text, &mut include).is_empty(), "{text:?}");
        }
    }

    #[test]
    fn a_file_of_several_kinds_of_objects_is_several_sources() {
        let node = "{\"apiVersion\": \"v1\", \"kind\": \"Node\", \"metadata\": {\"name\": \"n1\"}}";
        let domain = "{\"apiVersion\": \"resource.nvidia.com/v1beta1\", \"kind\": \"ComputeDomain\", \
             \"metadata\": {\"name\": \"d\", \"namespace\": \"x\"}}";
        let list = format!(
            "{{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [{node}, {domain}]}}"
        );
        let kinds: Vec<SourceKind> = read_text("x", &list, &mut |_| Err(String::new()))
            .iter()
            .map(|s| s.source.kind)
            .collect();
        assert_eq!(kinds, [SourceKind::KubernetesNodes, SourceKind::ComputeDomains]);
    }
}
