//! The sources of claims and the timeout of their queries: `[sources]` of the configuration, the
//! arguments of `--from`, and the sources that this machine can reach.
//!
//! Queries no source; `cli::collect_claims` does.

use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use toml::Spanned;

use crate::config::ConfigMistake;
use crate::config::bounded::{BoundedNumber, ProgramArgv};
use control::sources::http::ServerAddress;
use control::sources::kubernetes::KubernetesClientConfig;
use control::sources::slurm::SlurmClientConfig;
use model::limits;
use model::source_report::SourceFamily;

/// Default timeout of one query: Slurm's own MessageTimeout is 10 s, and an answer in flight must
/// not be cut off.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(15);

/// `[sources]` of the configuration.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SourcesSection {
    /// Families of sources, in order of priority: domains of the first are measured. Default: file,
    /// slurm, kubernetes, nodes, cabling, frameworks.
    #[schemars(with = "Option<Vec<SourceFamily>>")]
    order: Option<Spanned<Vec<SourceFamily>>>,
    /// GPUs that every node must have. Without it, no number is required.
    #[serde(deserialize_with = "limits::deserialize_gpus")]
    gpus_per_node: Option<u32>,
    /// NICs of the compute network that every node must have. Without it, no number is required.
    #[serde(deserialize_with = "limits::deserialize_nics")]
    nics_per_node: Option<u32>,
    /// Timeout of one query in seconds, 0.1 to 3600. Default: 15.
    limit_s: Option<BoundedNumber<100, 3_600_000>>,
    /// Queries Slurm through its programs; an empty section suffices. Without it, this source is
    /// not queried.
    slurm: Option<SlurmSourceSection>,
    /// Queries Slurm through slurmrestd. Without it, this source is not queried.
    slurmrestd: Option<SlurmrestdSourceSection>,
    /// Queries a Kubernetes API server; an empty section suffices. Without it, this source is not
    /// queried.
    kubernetes: Option<KubernetesSourceSection>,
    /// Queries the dashboard of a Ray cluster. Without it, this source is not queried.
    ray: Option<RaySourceSection>,
    /// Whether to query the nodes themselves, through the launcher. Default: false.
    nodes: Option<bool>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct SlurmSourceSection {
    /// `scontrol`, with leading arguments if it is reached through another program. Default:
    /// `["scontrol"]`.
    scontrol: Option<ProgramArgv>,
    /// `sinfo`, with leading arguments if it is reached through another program. Default:
    /// `["sinfo"]`.
    sinfo: Option<ProgramArgv>,
    /// Whether the leading arguments of Slurm's programs, in any section, end in a shell on another
    /// machine, as those of ssh do: the arguments after them are then quoted for that shell.
    /// Default: true if one of the leading arguments is ssh or a similar program.
    remote_shell: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SlurmrestdSourceSection {
    /// `http://HOST:PORT`, `https://HOST:PORT` or `unix:/SOCKET`. Required.
    #[serde(deserialize_with = "read_address")]
    address: String,
    /// The file with the token, read when it is needed. Without it, `SLURM_JWT`.
    token_file: Option<PathBuf>,
    /// The user of the token. Without it, the user in the token.
    user: Option<String>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct KubernetesSourceSection {
    /// The kubeconfig. Default: `KUBECONFIG`, `~/.kube/config`, or the pod's service account.
    kubeconfig: Option<PathBuf>,
    /// The context in the kubeconfig. Default: its current context.
    context: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RaySourceSection {
    /// `http://HEAD:8265`. Required. A password in it is sent, and never displayed.
    address: String,
}

/// The address and credentials of slurmrestd. The token is read only when slurmrestd is queried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmrestdSource {
    /// Its address.
    pub address: ServerAddress,
    /// The file with the token.
    pub token_file: Option<PathBuf>,
    /// The user of the token, if the token names none.
    pub user: Option<String>,
}

/// The live sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourcesConfig {
    /// Files and folders.
    pub files: Vec<PathBuf>,
    /// Slurm's controller through its programs.
    pub slurm: Option<SlurmClientConfig>,
    /// Slurm's controller through slurmrestd.
    pub slurmrestd: Option<SlurmrestdSource>,
    /// A Kubernetes API server.
    pub kubernetes: Option<KubernetesClientConfig>,
    /// The dashboard of a Ray cluster.
    pub ray: Option<ServerAddress>,
    /// The nodes themselves, through the launcher.
    pub nodes: bool,
    /// The order of priority of the domains to measure.
    pub order: Vec<SourceFamily>,
    /// GPUs that every node must have.
    pub gpus_per_node: Option<u32>,
    /// NICs of the compute network that every node must have.
    pub nics_per_node: Option<u32>,
    /// Timeout of one query.
    pub limit: Duration,
}

impl Default for SourcesConfig {
    fn default() -> Self {
        Self {
            files: Vec::new(),
            slurm: None,
            slurmrestd: None,
            kubernetes: None,
            ray: None,
            nodes: false,
            order: SourceFamily::ALL.to_vec(),
            gpus_per_node: None,
            nics_per_node: None,
            limit: DEFAULT_TIMEOUT,
        }
    }
}

impl SourcesSection {
    /// The sources of this section, after these claims files.
    pub fn into_config(
        self,
        files: Vec<PathBuf>,
        base: &Path,
    ) -> Result<SourcesConfig, ConfigMistake> {
        let mut wanted = SourcesConfig {
            files,
            gpus_per_node: self.gpus_per_node,
            nics_per_node: self.nics_per_node,
            ray: self.ray.map(|ray| ray.address.into()),
            nodes: self.nodes.unwrap_or(false),
            ..SourcesConfig::default()
        };
        if let Some(seconds) = self.limit_s {
            wanted.limit = seconds.duration();
        }
        if let Some(order) = self.order {
            let at = order.span().start;
            wanted.order = order.into_inner();
            let mut once = wanted.order.clone();
            once.sort();
            once.dedup();
            if once.len() < wanted.order.len() {
                return Err((at, "order: a duplicate family".to_owned()));
            }
        }
        if let Some(slurm) = self.slurm {
            let program = |words: Option<ProgramArgv>, name: &str| {
                words.map_or_else(|| vec![name.to_owned()], ProgramArgv::into_words)
            };
            wanted.slurm = Some(SlurmClientConfig {
                scontrol: program(slurm.scontrol, "scontrol"),
                sinfo: program(slurm.sinfo, "sinfo"),
                limit: wanted.limit,
                remote_shell: slurm.remote_shell,
            });
        }
        if let Some(rest) = self.slurmrestd {
            wanted.slurmrestd = Some(SlurmrestdSource {
                address: rest.address.into(),
                token_file: rest.token_file.map(|file| base.join(file)),
                user: rest.user,
            });
        }
        if let Some(kubernetes) = self.kubernetes {
            wanted.kubernetes = Some(KubernetesClientConfig {
                kubeconfig: kubernetes.kubeconfig.map(|file| base.join(file)),
                context: kubernetes.context,
                limit: wanted.limit,
            });
        }
        Ok(wanted)
    }
}

fn read_address<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let address = String::deserialize(from)?;
    check_address(&address).map_err(D::Error::custom)?;
    Ok(address)
}

pub(crate) fn check_address(address: &str) -> Result<(), String> {
    let known = ["http://", "https://", "unix:/"];
    if known.iter().any(|start| address.starts_with(start)) {
        return Ok(());
    }
    Err(format!(
        "{}, expected http://HOST:PORT, https://HOST:PORT or unix:/SOCKET",
        ServerAddress::from(address)
    ))
}

impl SourcesConfig {
    /// Whether no source is configured.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
            && self.slurm.is_none()
            && self.slurmrestd.is_none()
            && self.kubernetes.is_none()
            && self.ray.is_none()
            && !self.nodes
    }
}
