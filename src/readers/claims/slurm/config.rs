//! `scontrol show config`: the settings that matter to a gate.
//!
//! Only these are kept: the rest is long, and some of it (users, paths of keys) must not be
//! stored in a run.

use super::host_list_budget::{SlurmTextPosition, strip_bom};
use model::source_report::{SourceKind, SourceProblemKind, SourceReport};

/// The kept settings, by their name in the output.
const KEPT_SETTINGS: &[&str] = &[
    "AuthAltTypes",
    "AuthType",
    "ClusterName",
    "CredType",
    "GresTypes",
    "HealthCheckInterval",
    "HealthCheckNodeState",
    "HealthCheckProgram",
    "LaunchParameters",
    "MaxNodeCount",
    "MessageTimeout",
    "PrivateData",
    "RebootProgram",
    "ReconfigFlags",
    "ResumeTimeout",
    "ReturnToService",
    "SLURM_VERSION",
    "SelectType",
    "SelectTypeParameters",
    "SlurmctldHost",
    "SlurmctldParameters",
    "SlurmctldTimeout",
    "SlurmdParameters",
    "SlurmdTimeout",
    "SuspendProgram",
    "SwitchParameters",
    "SwitchType",
    "TopologyParam",
    "TopologyPlugin",
];

const HEADER: &str = "Configuration data as of";

/// Whether a text is the output of `scontrol show config`.
pub fn recognises(text: &str) -> bool {
    let text = strip_bom(text).trim_start();
    text.starts_with(HEADER)
        || ["SLURM_VERSION", "ClusterName"].iter().all(|key| {
            text.lines().any(|line| parse_setting(line).is_some_and(|(name, _)| name == *key))
        })
}

/// Parses `Name = value`.
fn parse_setting(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once(" = ").or_else(|| Some((line.strip_suffix(" =")?, "")))?;
    let name = name.trim();
    (!name.is_empty() && !name.contains(char::is_whitespace)).then_some((name, value.trim()))
}

/// Parses the output. `place` is its name in messages.
pub fn read(place: &str, text: &str) -> SourceReport {
    let mut report = SourceReport::new(SourceKind::SlurmConfig, place);
    for (index, line) in strip_bom(text).lines().enumerate() {
        if line.starts_with("Slurmctld(") && line.trim_end().ends_with("is DOWN") {
            let at = SlurmTextPosition::new(place, index + 1, 1).to_string();
            report.push_problem(SourceProblemKind::Unreachable, at, line.trim().to_owned());
        }
        let Some((name, value)) = parse_setting(line) else { continue };
        // `SlurmctldHost[0]`, `SlurmctldHost[1]`: the controller and its backups.
        let base = name.split('[').next().unwrap_or(name);
        if KEPT_SETTINGS.contains(&base) {
            report.settings.insert(name.to_owned(), value.to_owned());
        }
    }
    if report.settings.is_empty() {
        let message = "none of the expected settings found; the controller may not have answered";
        report.push_problem(SourceProblemKind::Incomplete, None, message);
        return report;
    }
    match report.settings.get("SwitchType").map(String::as_str) {
        Some(kind) if kind.contains("nvidia_imex") => {
            report.notes.push(format!("Slurm assigns IMEX channels to jobs (SwitchType={kind})"));
        }
        Some(kind) => {
            report
                .notes
                .push(format!("Slurm assigns no IMEX channels to jobs (SwitchType={kind})"));
        }
        None => {}
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Configuration data as of 2026-11-21T04:00:00\n\
        AccountingStorageUser   = secret\n\
        AuthType                = auth/slurm\n\
        ClusterName             = lab\n\
        RebootProgram           = (null)\n\
        ReturnToService         = 1\n\
        SLURM_VERSION           = 26.05.5\n\
        SlurmctldHost[0]        = head(127.0.0.1)\n\
        SlurmctldHost[1]        = spare\n\
        SwitchParameters        = imex_channel_count=2048\n\
        SwitchType              = switch/nvidia_imex\n\
        TopologyParam           = (null)\n\
        TopologyPlugin          = topology/block\n\n\
        Cgroup Support Configuration:\n\
        CgroupPlugin            = disabled\n\n\
        Slurmctld(primary) at head is UP\n";

    #[test]
    fn only_the_relevant_settings_are_kept() {
        assert!(recognises(TEXT));
        let report = read("scontrol show config", TEXT);
        assert_eq!(report.settings["TopologyPlugin"], "topology/block");
        assert_eq!(report.settings["SlurmctldHost[1]"], "spare");
        assert_eq!(report.settings["SwitchParameters"], "imex_channel_count=2048");
        assert_eq!(report.settings["RebootProgram"], "(null)");
        assert!(!report.settings.contains_key("AccountingStorageUser"));
        assert!(report.problems.is_empty());
        assert_eq!(
            report.notes,
            ["Slurm assigns IMEX channels to jobs (SwitchType=switch/nvidia_imex)"]
        );
    }

    #[test]
    fn a_missing_imex_plugin_and_a_dead_controller_are_reported() {
        let text = TEXT.replace("switch/nvidia_imex", "(null)").replace("is UP", "is DOWN");
        let report = read("f", &text);
        assert_eq!(report.notes, ["Slurm assigns no IMEX channels to jobs (SwitchType=(null))"]);
        assert_eq!(report.problems[0].kind, SourceProblemKind::Unreachable);
        assert_eq!(report.problems[0].at.as_deref(), Some("f:18:1"));
    }

    #[test]
    fn an_empty_answer_is_incomplete() {
        assert!(!recognises("") && !recognises("a = b\n") && !recognises("key=value\n"));
        for text in ["", "Configuration data as of now\n", "slurm_load_ctl_conf error: no\n"] {
            assert_eq!(read("f", text).problems[0].kind, SourceProblemKind::Incomplete, "{text:?}");
        }
    }
}
