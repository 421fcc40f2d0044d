//! Assumptions about the fabric that follow from the settings of a job.
//!
//! NCCL's variables have the meaning in its source (`init.cc`, `mnnvl.cc`): it uses multi-node
//! NVLink if all ranks report the same ClusterUUID and CliqueId, and it needs cuMem.

use std::collections::BTreeSet;

use super::settings::{JobSetting, JobSettings};
use crate::claims::reader_util::{parse_node_name, push_problem, quote_text};
use model::hostlist;
use model::id::NodeName;
use model::source_report::{JobAssumption, SourceProblemKind, SourceReport};

struct BeliefReader<'s> {
    report: &'s mut SourceReport,
    settings: &'s JobSettings,
}

/// Adds the assumptions behind these settings.
pub(super) fn add_beliefs(report: &mut SourceReport, found: &JobSettings) {
    let mut reader = BeliefReader { report, settings: found };
    let nodes = reader.nodes();
    let gpus = reader.gpus_per_node();
    let first = reader.report.beliefs.len();
    reader.add_hybrid_ep(gpus);
    reader.add_domain_size();
    reader.add_nccl();
    reader.add_segment(gpus);
    // One pod may be one of many: its node alone does not limit a domain.
    let is_part = reader.settings.contains_key("nodeName") && nodes.len() == 1;
    for belief in &mut reader.report.beliefs[first..] {
        if !(is_part && belief.ranks_per_domain.is_some()) {
            belief.nodes.clone_from(&nodes);
        }
    }
    reader.add_node_address();
}

impl BeliefReader<'_> {
    fn setting(&self, name: &str) -> Option<(&JobSetting, &str)> {
        let setting = self.settings.get(name)?;
        Some((setting, setting.value.as_deref()?))
    }

    fn location(&self, setting: &JobSetting) -> String {
        format!("{}:{}", self.report.source.place, setting.line)
    }

    fn push_malformed(&mut self, name: &str, expected: &str) {
        let Some(setting) = self.settings.get(name) else { return };
        let message = format!("{name}={}: expected {expected}", quote_text(&setting.written));
        let at = self.location(setting);
        push_problem(self.report, SourceProblemKind::Malformed, at, message);
    }

    fn positive_count(&mut self, name: &str) -> Option<u32> {
        let (_, value) = self.setting(name)?;
        let count = value.parse().ok().filter(|count| 0 < *count);
        if count.is_none() {
            self.push_malformed(name, "a whole number above 0");
        }
        count
    }

    fn flag(&mut self, name: &str) -> Option<bool> {
        let (_, value) = self.setting(name)?;
        let flag = match value.to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Some(true),
            "0" | "false" | "no" | "off" => Some(false),
            _ => None,
        };
        if flag.is_none() {
            self.push_malformed(name, "0 or 1");
        }
        flag
    }

    /// An integer that must be one of `expected`.
    fn one_of(&mut self, name: &str, expected: &[i64]) -> Option<i64> {
        let (_, value) = self.setting(name)?;
        let number = value.parse().ok().filter(|number| expected.contains(number));
        if number.is_none() {
            let words: Vec<String> = expected.iter().map(ToString::to_string).collect();
            self.push_malformed(name, &words.join(", "));
        }
        number
    }

    /// Those of these settings that are present, as written, and the location of the first.
    fn as_written(&self, names: &[&str]) -> (String, Option<String>) {
        let found: Vec<(&str, &JobSetting)> =
            names.iter().filter_map(|name| Some((*name, self.settings.get(name)?))).collect();
        let words: Vec<String> =
            found.iter().map(|(name, setting)| format!("{name}={}", setting.written)).collect();
        (words.join(", "), found.first().map(|(_, setting)| self.location(setting)))
    }

    fn nodes(&mut self) -> Vec<NodeName> {
        for name in ["SLURM_JOB_NODELIST", "SLURM_NODELIST", "--nodelist", "nodeName"] {
            let Some((_, list)) = self.setting(name) else { continue };
            match hostlist::expand(list) {
                Ok(names) => {
                    let mut once = BTreeSet::new();
                    let nodes = names.into_iter().map(NodeName::from);
                    return nodes.filter(|node| once.insert(node.clone())).collect();
                }
                Err(error) => self.push_malformed(name, &format!("a host list; {error}")),
            }
        }
        Vec::new()
    }

    /// GPUs per node: `4`, `gb200:4`, and for gres `gpu:gb200:4` among others.
    fn gpus_per_node(&mut self) -> Option<u32> {
        for name in ["--gpus-per-node", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"] {
            let Some((_, value)) = self.setting(name) else { continue };
            let count = value.rsplit(':').next().and_then(|count| count.parse().ok());
            if count.is_none() {
                self.push_malformed(name, "a number of GPUs such as 4 or gb200:4");
            }
            return count;
        }
        let (_, gres) = self.setting("--gres")?;
        let gpu = gres.split(',').find(|part| *part == "gpu" || part.starts_with("gpu:"))?;
        gpu.rsplit(':').next()?.parse().ok()
    }

    fn add_hybrid_ep(&mut self, gpus: Option<u32>) {
        const RANKS: &str = "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN";
        let (written, at) = self.as_written(&[RANKS, "USE_MNNVL"]);
        let ranks = self.positive_count(RANKS);
        let across = self.flag("USE_MNNVL");
        if let (Some(ranks), Some(false), Some(gpus)) = (ranks, across, gpus)
            && gpus < ranks
        {
            let message = format!(
                "{written}: {ranks} ranks in one domain without multi-node NVLink, on nodes of \
                 {gpus} GPUs"
            );
            push_problem(self.report, SourceProblemKind::Contradictory, at.clone(), message);
        }
        if ranks.is_some() || across.is_some() {
            self.report.beliefs.push(JobAssumption {
                subject: "HybridEP".to_owned(),
                ranks_per_domain: ranks,
                multi_node_nvlink: across,
                nodes: Vec::new(),
                at,
                text: written,
            });
        }
    }

    /// The largest domain of the platform, of which the job may have only a part.
    fn add_domain_size(&mut self) {
        /// The largest server has 16: a larger number implies multi-node NVLink.
        const LARGEST_SERVER: u32 = 16;
        let (written, at) = self.as_written(&["NVLINK_DOMAIN_SIZE"]);
        if let Some(size) = self.positive_count("NVLINK_DOMAIN_SIZE") {
            self.report.beliefs.push(JobAssumption {
                subject: "NVLINK_DOMAIN_SIZE".to_owned(),
                ranks_per_domain: None,
                multi_node_nvlink: (LARGEST_SERVER < size).then_some(true),
                nodes: Vec::new(),
                at,
                text: written,
            });
        }
    }

    fn add_nccl(&mut self) {
        let (mut written, at) = self.as_written(&[
            "NCCL_MNNVL_ENABLE",
            "NCCL_MNNVL_UUID",
            "NCCL_MNNVL_CLIQUE_ID",
            "NCCL_MNNVL_CROSS_CLIQUE",
            "NCCL_CUMEM_ENABLE",
            "NCCL_NVLS_ENABLE",
        ]);
        if at.is_none() {
            return;
        }
        let enable = self.one_of("NCCL_MNNVL_ENABLE", &[0, 1, 2]);
        let memory = self.one_of("NCCL_CUMEM_ENABLE", &[-2, 0, 1]);
        let crosses = self.flag("NCCL_MNNVL_CROSS_CLIQUE") == Some(true);
        if enable == Some(1) && memory == Some(0) {
            let message =
                format!("{written}: multi-node NVLink is forced, but it needs cuMem, which is off");
            push_problem(self.report, SourceProblemKind::Contradictory, at.clone(), message);
        }
        if self.setting("NCCL_MNNVL_UUID").is_some_and(|(_, value)| value != "-1") {
            written += "; the ClusterUUID is overridden, so ranks of several fabrics look like one";
        }
        match self.setting("NCCL_MNNVL_CLIQUE_ID").map(|(_, value)| value.to_owned()).as_deref() {
            Some("-2") => written += "; cliques are derived from the chassis serial number",
            Some("-1") | None => {}
            Some(_) => written += "; the CliqueId is overridden",
        }
        let multi_node_nvlink = match (enable, memory) {
            (Some(0), _) | (_, Some(0)) => Some(false),
            (Some(1), _) => Some(true),
            _ if crosses => Some(true),
            // NCCL decides at start-up.
            _ => None,
        };
        self.report.beliefs.push(JobAssumption {
            subject: "NCCL".to_owned(),
            ranks_per_domain: None,
            multi_node_nvlink,
            nodes: Vec::new(),
            at,
            text: written,
        });
    }

    /// `--segment=N`: every N nodes must come from one block.
    fn add_segment(&mut self, gpus: Option<u32>) {
        let Some(segment) = self.positive_count("--segment") else { return };
        let (written, at) = self.as_written(&["--segment"]);
        self.report.beliefs.push(JobAssumption {
            subject: "Slurm --segment".to_owned(),
            ranks_per_domain: gpus.and_then(|gpus| segment.checked_mul(gpus)),
            multi_node_nvlink: None,
            nodes: Vec::new(),
            at,
            text: format!("{written}: every {segment} nodes share a block"),
        });
    }

    /// The node address that Slurm reports to a task, as a mark of the node.
    fn add_node_address(&mut self) {
        const ADDRESS: &str = "SLURM_TOPOLOGY_ADDR";
        let Some((_, address)) = self.setting(ADDRESS) else { return };
        let pattern = self.setting("SLURM_TOPOLOGY_ADDR_PATTERN").map(|(_, pattern)| pattern);
        // Names of nodes may contain dots: the pattern determines the number of parts.
        let last = pattern
            .filter(|pattern| pattern.ends_with("node"))
            .and_then(|pattern| address.splitn(pattern.split('.').count(), '.').last());
        let own = self.setting("SLURMD_NODENAME").map(|(_, name)| name);
        if let (Some(own), Some(last)) = (own, last)
            && own != last
        {
            let message = format!(
                "{ADDRESS} ends with {}, SLURMD_NODENAME is {}",
                quote_text(last),
                quote_text(own)
            );
            let at = self.settings.get(ADDRESS).map(|setting| self.location(setting));
            push_problem(self.report, SourceProblemKind::Contradictory, at, message);
            return;
        }
        let Some(node) = own.or(last).and_then(parse_node_name) else { return };
        let marks = [ADDRESS, "SLURM_TOPOLOGY_ADDR_PATTERN"].iter().filter_map(|name| {
            Some(((*name).to_owned(), self.settings.get(name)?.written.clone()))
        });
        let marks: Vec<_> = marks.collect();
        self.report.node_mut(&node).marks.extend(marks);
    }
}
