//! Which sources are asked for claims, and how long one may take: `[sources]`
//! of the configuration, the words of `--from`, and what is found here.
//!
//! Asks nobody; `asking` does.

use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use super::config::ConfigMistake;
use super::failure::CommandError;
use control::sources::http::ServerAddress;
use control::sources::kubernetes::KubernetesClientConfig;
use control::sources::slurm::SlurmClientConfig;
use model::limits;
use model::source_report::SourceFamily;
use node::exec::path_lookup;

/// How long one question may take where nothing is said: Slurm's own
/// MessageTimeout is 10 s, and an answer on its way must not be cut off.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(15);

/// `[sources]` of the configuration.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SourcesSection {
    /// Families of sources, the one whose domains are measured first. Default: file, slurm,
    /// kubernetes, nodes, cabling, frameworks.
    #[schemars(with = "Option<Vec<SourceFamily>>")]
    order: Option<Spanned<Vec<SourceFamily>>>,
    /// GPUs that every node must have. Without it, nobody is held to a number.
    #[serde(deserialize_with = "limits::deserialize_gpus")]
    gpus_per_node: Option<u32>,
    /// NICs of the compute network that every node must have. Without it, likewise.
    #[serde(deserialize_with = "limits::deserialize_nics")]
    nics_per_node: Option<u32>,
    /// Seconds that one question may take, 0.1 to 3600. Default: 15.
    #[schemars(with = "Option<f64>")]
    limit_s: Option<Spanned<f64>>,
    /// Asks Slurm through its programs; an empty section will do. Without it, it is not asked.
    slurm: Option<SlurmSourceSection>,
    /// Asks Slurm through slurmrestd. Without it, it is not asked.
    slurmrestd: Option<SlurmrestdSourceSection>,
    /// Asks a Kubernetes API server; an empty section will do. Without it, it is not asked.
    kubernetes: Option<KubernetesSourceSection>,
    /// Asks the dashboard of a Ray cluster. Without it, it is not asked.
    ray: Option<RaySourceSection>,
    /// Whether nodes are asked themselves, through the launcher. Default: false.
    nodes: Option<bool>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct SlurmSourceSection {
    /// `scontrol`, with words in front where it is reached through something. Default:
    /// `["scontrol"]`.
    #[schemars(with = "Option<Vec<String>>")]
    scontrol: Option<Spanned<Vec<String>>>,
    /// `sinfo`, likewise. Default: `["sinfo"]`.
    #[schemars(with = "Option<Vec<String>>")]
    sinfo: Option<Spanned<Vec<String>>>,
    /// Whether the words in front of Slurm's programs, in whichever section, end in a shell on
    /// another machine, as those of ssh do: what stands behind them is quoted for it then. Default:
    /// true where one of the words is ssh or the like.
    remote_shell: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SlurmrestdSourceSection {
    /// `http://HOST:PORT`, `https://HOST:PORT` or `unix:/SOCKET`. Required.
    #[schemars(with = "String")]
    address: Spanned<String>,
    /// The file with the token, read when it is needed. Without it, `SLURM_JWT`.
    token_file: Option<PathBuf>,
    /// The user the token is for. Without it, the one it says itself.
    user: Option<String>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct KubernetesSourceSection {
    /// The kubeconfig. Default: `KUBECONFIG`, `~/.kube/config`, or the pod's account.
    kubeconfig: Option<PathBuf>,
    /// The context in it. Default: its current one.
    context: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RaySourceSection {
    /// `http://HEAD:8265`. Required. A password in it is sent, and shown nowhere.
    address: String,
}

/// Where slurmrestd is. The token is read when it is asked, and not before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmrestdSource {
    /// Its address.
    pub address: ServerAddress,
    /// The file with the token.
    pub token_file: Option<PathBuf>,
    /// The user the token is for, where it does not say.
    pub user: Option<String>,
}

/// Who is asked.
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
    /// Whose domains are measured.
    pub order: Vec<SourceFamily>,
    /// GPUs every node must have.
    pub gpus_per_node: Option<u32>,
    /// NICs of the compute network every node must have.
    pub nics_per_node: Option<u32>,
    /// How long one question may take.
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
    /// Who is asked under this section, with these claims files before.
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
            let value = *seconds.get_ref();
            if !(0.1..=3_600.0).contains(&value) {
                let message = format!("limit_s {value}, expected 0.1 to 3600 seconds");
                return Err((seconds.span().start, message));
            }
            wanted.limit = Duration::from_secs_f64(value);
        }
        if let Some(order) = self.order {
            let at = order.span().start;
            wanted.order = order.into_inner();
            let mut once = wanted.order.clone();
            once.sort();
            once.dedup();
            if once.len() < wanted.order.len() {
                return Err((at, "order: a family is named twice".to_owned()));
            }
        }
        if let Some(slurm) = self.slurm {
            let program = |words: Option<Spanned<Vec<String>>>, name: &str| match words {
                None => Ok(vec![name.to_owned()]),
                Some(words) if words.get_ref().is_empty() => {
                    Err((words.span().start, format!("{name} is empty, expected [\"{name}\"]")))
                }
                Some(words) => Ok(words.into_inner()),
            };
            wanted.slurm = Some(SlurmClientConfig {
                scontrol: program(slurm.scontrol, "scontrol")?,
                sinfo: program(slurm.sinfo, "sinfo")?,
                limit: wanted.limit,
                remote_shell: slurm.remote_shell,
            });
        }
        if let Some(rest) = self.slurmrestd {
            check_address(rest.address.get_ref())
                .map_err(|said| (rest.address.span().start, said))?;
            wanted.slurmrestd = Some(SlurmrestdSource {
                address: rest.address.into_inner().into(),
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

fn check_address(address: &str) -> Result<(), String> {
    let known = ["http://", "https://", "unix:/"];
    if known.iter().any(|start| address.starts_with(start)) {
        return Ok(());
    }
    Err(format!(
        "address {}, expected http://HOST:PORT, https://HOST:PORT or unix:/SOCKET",
        ServerAddress::from(address)
    ))
}

impl SourcesConfig {
    /// Whether nobody is asked.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
            && self.slurm.is_none()
            && self.slurmrestd.is_none()
            && self.kubernetes.is_none()
            && self.ray.is_none()
            && !self.nodes
    }

    /// Who is asked under these words of `--from`; what the configuration says
    /// of those sources holds.
    pub fn from_option(words: &[String], config: Option<&Self>) -> Result<Self, CommandError> {
        let mut wanted = match config {
            Some(config) => Self { files: Vec::new(), ..config.clone() },
            None => Self::default(),
        };
        let configured = Self {
            slurm: wanted.slurm.take(),
            slurmrestd: wanted.slurmrestd.take(),
            kubernetes: wanted.kubernetes.take(),
            ray: wanted.ray.take(),
            ..Self::default()
        };
        wanted.nodes = false;
        for word in words {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word.as_str(), None),
            };
            match (name, value) {
                ("slurm", None) => {
                    let mut slurm = configured.slurm.clone().unwrap_or_default();
                    slurm.limit = wanted.limit;
                    wanted.slurm = Some(slurm);
                }
                ("slurmrestd", None) => match &configured.slurmrestd {
                    Some(rest) => wanted.slurmrestd = Some(rest.clone()),
                    None => {
                        return Err(missing_address(
                            "slurmrestd",
                            "unix:/SOCKET or http://HOST:PORT",
                        ));
                    }
                },
                ("slurmrestd", Some(address)) => {
                    check_address(address).map_err(|said| {
                        CommandError::Usage(format!("--from slurmrestd: {said}"))
                    })?;
                    let address = address.into();
                    wanted.slurmrestd =
                        Some(SlurmrestdSource { address, token_file: None, user: None });
                }
                ("kubernetes", context) => {
                    let known = configured.kubernetes.clone();
                    let mut kubernetes = known.unwrap_or(KubernetesClientConfig {
                        kubeconfig: None,
                        context: None,
                        limit: wanted.limit,
                    });
                    kubernetes.context = context.map(str::to_owned).or(kubernetes.context);
                    wanted.kubernetes = Some(kubernetes);
                }
                ("ray", None) => match &configured.ray {
                    Some(ray) => wanted.ray = Some(ray.clone()),
                    None => return Err(missing_address("ray", "http://HEAD:8265")),
                },
                ("ray", Some(address)) => wanted.ray = Some(address.into()),
                ("nodes", None) => wanted.nodes = true,
                ("file" | "files", None) => {
                    wanted.files.extend(config.iter().flat_map(|c| c.files.clone()));
                }
                _ if Path::new(word).exists() => wanted.files.push(PathBuf::from(word)),
                _ => {
                    return Err(CommandError::Usage(format!(
                        "--from {word}: expected slurm, slurmrestd[=ADDRESS], kubernetes[=CONTEXT], \
                         ray[=ADDRESS], nodes, files, or the name of a file that is there"
                    )));
                }
            }
        }
        Ok(wanted)
    }

    /// Who can be asked here without being told: Slurm where its programs are,
    /// Kubernetes where somebody is logged in.
    pub fn detect() -> Self {
        let mut wanted = Self::default();
        if path_lookup::find_program("scontrol", None).is_some() {
            wanted.slurm =
                Some(SlurmClientConfig { limit: wanted.limit, ..SlurmClientConfig::default() });
        }
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        if set("KUBECONFIG")
            || set("KUBERNETES_SERVICE_HOST")
            || home.join(".kube/config").is_file()
        {
            let limit = wanted.limit;
            wanted.kubernetes =
                Some(KubernetesClientConfig { kubeconfig: None, context: None, limit });
        }
        wanted
    }
}

fn missing_address(name: &str, example: &str) -> CommandError {
    CommandError::Usage(format!(
        "--from {name}: where is it? Expected {name}={example}, or [sources.{name}]"
    ))
}
