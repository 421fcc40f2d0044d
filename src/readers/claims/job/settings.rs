//! The settings of a job that concern the fabric, each with its location. `beliefs` interprets
//! them.

use std::collections::BTreeMap;

use crate::claims::reader_util::{push_note, push_problem, quote_text, sanitize_text};
use model::source_report::{SourceProblemKind, SourceReport};

pub(super) const VARIABLES: [&str; 16] = [
    "NCCL_MNNVL_ENABLE",
    "NCCL_MNNVL_UUID",
    "NCCL_MNNVL_CLIQUE_ID",
    "NCCL_MNNVL_CROSS_CLIQUE",
    "NCCL_NVLS_ENABLE",
    "NCCL_CUMEM_ENABLE",
    "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN",
    "NVLINK_DOMAIN_SIZE",
    "USE_MNNVL",
    "SLURM_JOB_NODELIST",
    "SLURM_NODELIST",
    "SLURM_TOPOLOGY_ADDR",
    "SLURM_TOPOLOGY_ADDR_PATTERN",
    "SLURMD_NODENAME",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_ON_NODE",
];

/// The supported options of sbatch and srun, with their short forms.
pub(super) const OPTIONS: [(&str, &str); 5] = [
    ("--segment", ""),
    ("--nodelist", "-w"),
    ("--nodes", "-N"),
    ("--gpus-per-node", ""),
    ("--gres", ""),
];

/// The supported keys of a pod: its resource requests and its node.
pub(super) const POD_KEYS: [&str; 3] = [
    "nodeName",
    "kai.scheduler/topology-required-placement",
    "kai.scheduler/topology-preferred-placement",
];

/// The longest value that is kept: a host list of a large job.
const MAX_VALUE_BYTES: usize = 1 << 20;

/// Whether a text contains one of the variables, followed by one of these.
pub(super) fn mentions(text: &str, behind: &[&str]) -> bool {
    VARIABLES.iter().any(|name| {
        text.match_indices(name).any(|(at, name)| {
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let rest = &text[at + name.len()..];
            !text[..at].ends_with(is_word) && behind.iter().any(|next| rest.starts_with(next))
        })
    })
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobSetting {
    /// The value; `None` where it depends on context outside the text.
    pub(super) value: Option<String>,
    pub(super) written: String,
    pub(super) line: usize,
}

/// The meaning of a repeated assignment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RepeatPolicy {
    /// The new value replaces the earlier one, as in a script.
    Replaces,
    /// Another part of the job has another value.
    Differs,
}

pub(super) type JobSettings = BTreeMap<&'static str, JobSetting>;

pub(super) struct JobSettingsCollector<'s> {
    pub(super) report: &'s mut SourceReport,
    settings: JobSettings,
}

impl<'s> JobSettingsCollector<'s> {
    pub(super) fn new(report: &'s mut SourceReport) -> Self {
        Self { report, settings: JobSettings::new() }
    }

    /// The supported name that equals this one, if any.
    pub(super) fn known_name(name: &str) -> Option<&'static str> {
        let options = OPTIONS.iter().map(|(long, _)| *long);
        VARIABLES.into_iter().chain(POD_KEYS).chain(options).find(|known| *known == name)
    }

    pub(super) fn set(
        &mut self,
        name: &'static str,
        written: &str,
        line: usize,
        again: RepeatPolicy,
    ) {
        let (value, is_default) = resolve_value(written);
        let setting = JobSetting { value, written: sanitize_text(written), line };
        if is_default {
            push_note(
                self.report,
                format!(
                    "{name}: {} unless set in the \
                environment",
                    setting.written
                ),
            );
        }
        // Every pod of a job has a node; together they are the nodes of the job.
        if name == "nodeName"
            && let Some(JobSetting { value: Some(nodes), .. }) = self.settings.get_mut(name)
        {
            if let Some(more) =
                setting.value.filter(|more| nodes.len() + more.len() < MAX_VALUE_BYTES)
            {
                nodes.push(',');
                nodes.push_str(&more);
            }
            return;
        }
        if let Some(before) = self.settings.get(name)
            && before.value != setting.value
            && again == RepeatPolicy::Differs
        {
            let at = format!("{}:{line}", self.report.source.place);
            let message = format!(
                "{name} is {} here and {} on line {}: parts of one job disagree",
                quote_text(&setting.written),
                quote_text(&before.written),
                before.line
            );
            push_problem(self.report, SourceProblemKind::Contradictory, at, message);
            return;
        }
        self.settings.insert(name, setting);
    }

    pub(super) fn unset(&mut self, name: &str) {
        self.settings.remove(name);
    }

    /// The settings, which are also added to the report as written.
    pub(super) fn finish(self) -> JobSettings {
        for (name, setting) in &self.settings {
            if setting.value.is_none() {
                let note = format!(
                    "{name}: {} depends on context outside the text (line {})",
                    quote_text(&setting.written),
                    setting.line
                );
                push_note(self.report, note);
            }
            self.report.settings.insert((*name).to_owned(), setting.written.clone());
        }
        self.settings
    }
}

/// The value of the written text, and whether it is only the default of a `${NAME:-value}`.
fn resolve_value(written: &str) -> (Option<String>, bool) {
    let written = written.trim();
    if MAX_VALUE_BYTES < written.len() || written.is_empty() {
        return (None, false);
    }
    if !written.contains(['$', '`']) {
        return (Some(written.to_owned()), false);
    }
    let inside = written.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    let default = inside.and_then(|inside| {
        let end = inside.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
        let rest = &inside[end..];
        [":-", ":=", "-", "="].iter().find_map(|sign| rest.strip_prefix(sign))
    });
    match default {
        Some(default) if !default.is_empty() && !default.contains(['$', '`', '{', '}']) => {
            (Some(default.to_owned()), true)
        }
        _ => (None, false),
    }
}
