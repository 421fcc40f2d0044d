//! `[gate]` of the configuration: the scheduler through which the gate acts, the folder of its
//! record, and its names for marks.
//!
//! Checks the text of the section and opens nothing.

use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use crate::config::ConfigMistake;
use crate::config::bounded::{ProgramArgv, Seconds};
use crate::config::sources::{SlurmrestdSource, SourcesConfig};
use control::gate::executor::DEFAULT_PERSIST_TIME;
use control::gate::recovery::DEFAULT_IN_FLIGHT_TIME;
use control::gate::scheduler::SchedulerTimeouts;
use control::gate::scontrol::ScontrolScheduler;
use control::sources::kubernetes::KubernetesClientConfig;

/// Default timeout of one call; Slurm's own MessageTimeout is 10 s.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a change may take to become visible. A resumed node answers within a second (0.06 to
/// 0.8 s, measured on 26.05 and 24.11); a busy controller takes longer.
pub(crate) const SETTLE_TIME: Duration = Duration::from_secs(10);

/// The same for Kubernetes: an acknowledged write is visible immediately, so the gate only waits
/// after a lost answer.
const KUBERNETES_SETTLE_TIME: Duration = Duration::from_secs(3);

/// An acknowledged write is on etcd's disks.
const KUBERNETES_KEEP_TIME: Duration = Duration::ZERO;

/// `[gate]` of the configuration.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GateSection {
    /// The folder of the journal, the lock and the certificates. Default: `gate`, next to this
    /// file.
    state: Option<PathBuf>,
    /// The interface to the scheduler. Default: `scontrol`.
    #[schemars(with = "Option<GateBackendKind>")]
    through: Option<Spanned<GateBackendKind>>,
    /// Slurm's `scontrol`, with leading arguments if it is reached through another program.
    /// Default: that of `[sources.slurm]`.
    scontrol: Option<ProgramArgv>,
    /// Timeout of one call in seconds. Default: 15; Slurm's own MessageTimeout is 10.
    limit_s: Option<Seconds>,
    /// Seconds that a change may take to become visible. Default: 10; 3 on Kubernetes.
    settle_s: Option<Seconds>,
    /// Seconds for which a change is observed until it is on the controller's disk. Default: 6; 0
    /// on Kubernetes.
    keep_s: Option<Seconds>,
    /// Seconds for which a change may still take effect after its sender has ended. Default: 90.
    in_flight_s: Option<Seconds>,
    /// The account that writes nodes, with `through = "kubernetes"`. Default: the account of
    /// `[sources.kubernetes]`.
    #[schemars(with = "Option<GateKubernetesSection>")]
    kubernetes: Option<Spanned<GateKubernetesSection>>,
}

/// `[gate.kubernetes]`: the account that writes nodes. Missing keys default to
/// `[sources.kubernetes]`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct GateKubernetesSection {
    /// The kubeconfig of the gate's account. Default: that of `[sources.kubernetes]`.
    kubeconfig: Option<PathBuf>,
    /// The context in the kubeconfig. Default: that of `[sources.kubernetes]`, or the file's
    /// current context.
    context: Option<String>,
}

/// The interface to the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum GateBackendKind {
    /// Slurm's program.
    Scontrol,
    /// slurmrestd, at the address of `[sources.slurmrestd]`.
    Slurmrestd,
    /// The API server of a Kubernetes cluster.
    Kubernetes,
}

/// The scheduler that the gate changes.
#[derive(Clone, Debug)]
pub enum GateBackend {
    /// Slurm's controller, through its program.
    Scontrol(ScontrolScheduler),
    /// Slurm's controller, through slurmrestd.
    Slurmrestd(SlurmrestdSource),
    /// A Kubernetes cluster, through its API server.
    Kubernetes(KubernetesClientConfig),
}

/// The gate, as configured.
#[derive(Clone, Debug)]
pub struct GateConfig {
    /// The folder of its record: journal, lock, certificates.
    pub folder: PathBuf,
    /// The scheduler that the gate changes.
    pub backend: GateBackend,
    /// Its timeouts.
    pub timeouts: SchedulerTimeouts,
}

/// Reads `[gate]`; the section itself is at `at`. Missing keys about Slurm default to those of
/// the sources.
pub fn parse_gate(
    section: GateSection,
    at: usize,
    base: &Path,
    wanted: &SourcesConfig,
) -> Result<GateConfig, ConfigMistake> {
    let seconds =
        |value: Option<Seconds>, default: Duration| value.map_or(default, Seconds::duration);
    let through = section.through.as_ref().map(|it| *it.get_ref());
    let (settle, kept) = match through {
        Some(GateBackendKind::Kubernetes) => (KUBERNETES_SETTLE_TIME, KUBERNETES_KEEP_TIME),
        _ => (SETTLE_TIME, DEFAULT_PERSIST_TIME),
    };
    let limit = seconds(section.limit_s, CALL_TIMEOUT);
    let settle = seconds(section.settle_s, settle);
    let kept = seconds(section.keep_s, kept);
    let in_flight = seconds(section.in_flight_s, DEFAULT_IN_FLIGHT_TIME);
    if let (Some(section), false) =
        (&section.kubernetes, through == Some(GateBackendKind::Kubernetes))
    {
        let message = "[gate.kubernetes] has no effect without through = \"kubernetes\"";
        return Err((section.span().start, message.to_owned()));
    }
    let chosen = match (through, &wanted.slurmrestd) {
        (Some(GateBackendKind::Slurmrestd), None) => {
            let at = section.through.as_ref().map_or(at, |it| it.span().start);
            let message = "through \"slurmrestd\": expected [sources.slurmrestd] with its address";
            return Err((at, message.to_owned()));
        }
        (Some(GateBackendKind::Slurmrestd), Some(rest)) => GateBackend::Slurmrestd(rest.clone()),
        (Some(GateBackendKind::Kubernetes), _) => {
            let of = section.kubernetes.map(Spanned::into_inner).unwrap_or_default();
            let known = wanted.kubernetes.as_ref();
            let kubeconfig = of.kubeconfig.map(|file| base.join(file));
            // A context belongs to one kubeconfig, so that of another file does not apply.
            let context = match (&kubeconfig, of.context) {
                (_, Some(context)) => Some(context),
                (Some(_), None) => None,
                (None, None) => known.and_then(|it| it.context.clone()),
            };
            let kubeconfig = kubeconfig.or_else(|| known.and_then(|it| it.kubeconfig.clone()));
            GateBackend::Kubernetes(KubernetesClientConfig { kubeconfig, context, limit })
        }
        _ => {
            let argv = match section.scontrol {
                Some(program) => program.into_words(),
                None => match &wanted.slurm {
                    Some(slurm) => slurm.scontrol.clone(),
                    None => vec!["scontrol".to_owned()],
                },
            };
            let remote_shell = wanted.slurm.as_ref().and_then(|slurm| slurm.remote_shell);
            GateBackend::Scontrol(ScontrolScheduler { argv, limit, remote_shell })
        }
    };
    let folder = base.join(section.state.unwrap_or_else(|| PathBuf::from("gate")));
    Ok(GateConfig {
        folder,
        backend: chosen,
        timeouts: SchedulerTimeouts { limit, settle, persist: kept, in_flight },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, wanted: &SourcesConfig) -> Result<GateConfig, ConfigMistake> {
        let section: GateSection = toml::from_str(text).expect("a section");
        parse_gate(section, 0, Path::new("/site"), wanted)
    }

    fn known() -> SourcesConfig {
        let kubernetes = KubernetesClientConfig {
            kubeconfig: Some(PathBuf::from("/site/read.kubeconfig")),
            context: Some("reader".to_owned()),
            limit: Duration::from_secs(1),
        };
        SourcesConfig { kubernetes: Some(kubernetes), ..SourcesConfig::default() }
    }

    fn way(gate: &GateConfig) -> (Option<&Path>, Option<&str>) {
        let GateBackend::Kubernetes(way) = &gate.backend else { panic!("{:?}", gate.backend) };
        assert_eq!(way.limit, gate.timeouts.limit);
        (way.kubeconfig.as_deref(), way.context.as_deref())
    }

    #[test]
    fn kubernetes_nodes_are_written_with_the_named_or_the_source_s_account() {
        let through = "through = \"kubernetes\"\n";
        let gate = read(through, &known()).expect("good");
        let file = Path::new("/site/read.kubeconfig");
        assert_eq!(way(&gate), (Some(file), Some("reader")));
        assert_eq!(
            (gate.timeouts.persist, gate.timeouts.settle),
            (Duration::ZERO, KUBERNETES_SETTLE_TIME)
        );
        let gate = read(&format!("{through}kubernetes = {{context = \"writer\"}}"), &known());
        assert_eq!(way(&gate.expect("good")), (Some(file), Some("writer")));
        let own = format!("{through}kubernetes = {{kubeconfig = \"write.kubeconfig\"}}");
        let gate = read(&own, &known()).expect("good");
        assert_eq!(way(&gate), (Some(Path::new("/site/write.kubeconfig")), None));
        let gate = read(through, &SourcesConfig::default()).expect("good");
        assert_eq!(way(&gate), (None, None), "the environment's, or the pod's own");
        let gate = read(&format!("{through}keep_s = 2"), &known()).expect("good");
        assert_eq!(gate.timeouts.persist, Duration::from_secs(2));
    }

    #[test]
    fn an_identity_for_kubernetes_without_a_gate_there_is_a_mistake() {
        let text = "kubernetes = {context = \"writer\"}";
        assert!(read(text, &known()).is_err());
        assert!(read("", &known()).is_ok());
    }
}
