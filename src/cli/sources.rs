//! Which sources are asked for claims: the configuration's `[sources]` and
//! `--from`, and the asking itself.
//!
//! What they say is read by `inventory` and weighed by `inventory::reconcile`;
//! here only who is asked, and how long one may take.

use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::config::Config;
use super::config::read_text;
use super::failure::Failure;
use super::stdout::note;
use crate::coordinator;
use crate::exec::lookup;
use crate::inventory::claims_file;
use crate::inventory::reconcile;
use crate::inventory::reconcile::Rules;
use crate::model::claims::Claims;
use crate::model::id::NodeName;
use crate::model::said::Family;
use crate::model::said::ProblemKind;
use crate::model::said::Said;
use crate::model::said::SourceKind;
use crate::sources;
use crate::sources::kubernetes::Kubernetes;
use crate::sources::nodes::Nodes;
use crate::sources::ray::Ray;
use crate::sources::slurm::Slurm;
use crate::sources::slurmrestd::Slurmrestd;
use crate::thresholds::Catalogue;

/// How long one question may take where nothing is said: Slurm's own
/// MessageTimeout is 10 s, and an answer on its way must not be cut off.
const LIMIT: Duration = Duration::from_secs(15);

/// `[sources]` of the configuration.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Section {
    order: Option<Spanned<Vec<Family>>>,
    gpus_per_node: Option<u32>,
    nics_per_node: Option<u32>,
    limit_s: Option<Spanned<f64>>,
    slurm: Option<SlurmSection>,
    slurmrestd: Option<RestSection>,
    kubernetes: Option<KubernetesSection>,
    ray: Option<RaySection>,
    nodes: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct SlurmSection {
    scontrol: Option<Spanned<Vec<String>>>,
    sinfo: Option<Spanned<Vec<String>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RestSection {
    address: Spanned<String>,
    token_file: Option<PathBuf>,
    user: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct KubernetesSection {
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RaySection {
    address: String,
}

/// Where slurmrestd is. The token is read when it is asked, and not before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rest {
    address: String,
    token_file: Option<PathBuf>,
    user: Option<String>,
}

/// Who is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Files and folders.
    pub files: Vec<PathBuf>,
    /// Slurm's controller through its programs.
    pub slurm: Option<Slurm>,
    /// Slurm's controller through slurmrestd.
    pub rest: Option<Rest>,
    /// A Kubernetes API server.
    pub kubernetes: Option<Kubernetes>,
    /// The dashboard of a Ray cluster.
    pub ray: Option<String>,
    /// The nodes themselves, through the launcher.
    pub nodes: bool,
    /// Whose domains are measured.
    pub order: Vec<Family>,
    /// GPUs every node must have.
    pub gpus_per_node: Option<u32>,
    /// NICs of the compute network every node must have.
    pub nics_per_node: Option<u32>,
    /// How long one question may take.
    pub limit: Duration,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            files: Vec::new(),
            slurm: None,
            rest: None,
            kubernetes: None,
            ray: None,
            nodes: false,
            order: Family::ALL.to_vec(),
            gpus_per_node: None,
            nics_per_node: None,
            limit: LIMIT,
        }
    }
}

/// A mistake in a configuration: where it is, and what.
type Mistake = (usize, String);

impl Section {
    /// Who is asked under this section, with these claims files before.
    pub fn wanted(self, files: Vec<PathBuf>, base: &Path) -> Result<Wanted, Mistake> {
        let mut wanted = Wanted {
            files,
            gpus_per_node: self.gpus_per_node,
            nics_per_node: self.nics_per_node,
            ray: self.ray.map(|ray| ray.address),
            nodes: self.nodes.unwrap_or(false),
            ..Wanted::default()
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
            wanted.slurm = Some(Slurm {
                scontrol: program(slurm.scontrol, "scontrol")?,
                sinfo: program(slurm.sinfo, "sinfo")?,
                limit: wanted.limit,
            });
        }
        if let Some(rest) = self.slurmrestd {
            check_address(rest.address.get_ref())
                .map_err(|said| (rest.address.span().start, said))?;
            wanted.rest = Some(Rest {
                address: rest.address.into_inner(),
                token_file: rest.token_file.map(|file| base.join(file)),
                user: rest.user,
            });
        }
        if let Some(kubernetes) = self.kubernetes {
            wanted.kubernetes = Some(Kubernetes {
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
        "address {address:?}, expected http://HOST:PORT, https://HOST:PORT or unix:/SOCKET"
    ))
}

impl Wanted {
    /// Whether nobody is asked.
    pub fn is_nobody(&self) -> bool {
        self.files.is_empty()
            && self.slurm.is_none()
            && self.rest.is_none()
            && self.kubernetes.is_none()
            && self.ray.is_none()
            && !self.nodes
    }

    /// Who is asked under these words of `--from`; what the configuration says
    /// of those sources holds.
    pub fn from_words(words: &[String], config: Option<&Self>) -> Result<Self, Failure> {
        let mut wanted = match config {
            Some(config) => Self { files: Vec::new(), ..config.clone() },
            None => Self::default(),
        };
        let configured = Self {
            slurm: wanted.slurm.take(),
            rest: wanted.rest.take(),
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
                ("slurmrestd", None) => match &configured.rest {
                    Some(rest) => wanted.rest = Some(rest.clone()),
                    None => {
                        return Err(missing_value(
                            "slurmrestd",
                            "unix:/SOCKET or http://HOST:PORT",
                        ));
                    }
                },
                ("slurmrestd", Some(address)) => {
                    check_address(address)
                        .map_err(|said| Failure::Usage(format!("--from {word}: {said}")))?;
                    let address = address.to_owned();
                    wanted.rest = Some(Rest { address, token_file: None, user: None });
                }
                ("kubernetes", context) => {
                    let known = configured.kubernetes.clone();
                    let mut kubernetes = known.unwrap_or(Kubernetes {
                        kubeconfig: None,
                        context: None,
                        limit: wanted.limit,
                    });
                    kubernetes.context = context.map(str::to_owned).or(kubernetes.context);
                    wanted.kubernetes = Some(kubernetes);
                }
                ("ray", None) => match &configured.ray {
                    Some(ray) => wanted.ray = Some(ray.clone()),
                    None => return Err(missing_value("ray", "http://HEAD:8265")),
                },
                ("ray", Some(address)) => wanted.ray = Some(address.to_owned()),
                ("nodes", None) => wanted.nodes = true,
                ("file" | "files", None) => {
                    wanted.files.extend(config.iter().flat_map(|c| c.files.clone()));
                }
                _ if Path::new(word).exists() => wanted.files.push(PathBuf::from(word)),
                _ => {
                    return Err(Failure::Usage(format!(
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
    pub fn found_here() -> Self {
        let mut wanted = Self::default();
        if lookup::find("scontrol", None).is_some() {
            wanted.slurm = Some(Slurm { limit: wanted.limit, ..Slurm::default() });
        }
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        if set("KUBECONFIG")
            || set("KUBERNETES_SERVICE_HOST")
            || home.join(".kube/config").is_file()
        {
            let limit = wanted.limit;
            wanted.kubernetes = Some(Kubernetes { kubeconfig: None, context: None, limit });
        }
        wanted
    }
}

fn missing_value(name: &str, example: &str) -> Failure {
    Failure::Usage(format!(
        "--from {name}: where is it? Expected {name}={example}, or [sources.{name}]"
    ))
}

/// How nodes are reached, where they are asked themselves.
#[derive(Debug)]
pub struct Reach<'c> {
    /// The configuration, where there is one.
    pub config: Option<&'c Config>,
    /// Expectations, which tell platforms from products.
    pub catalogue: &'c Catalogue,
}

/// Asks everybody that is wanted and weighs what they say.
pub fn claims(wanted: &Wanted, reach: &Reach<'_>) -> Result<Claims, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Environment(format!("no runtime: {error}")))?;
    let mut said = runtime.block_on(ask(wanted));
    let platform_of = |product: &str, gpus: Option<u32>| {
        reach.catalogue.for_product(product, gpus).map(|platform| platform.name.clone())
    };
    let rules = Rules {
        order: wanted.order.clone(),
        gpus_per_node: wanted.gpus_per_node,
        nics_per_node: wanted.nics_per_node,
        platform_of: &platform_of,
    };
    if wanted.nodes {
        let known = reconcile::reconcile(said.clone(), &rules);
        said.push(runtime.block_on(themselves(&known, wanted, reach))?);
    }
    let now = coordinator::shown(coordinator::now());
    for one in &mut said {
        one.source.read_at = Some(now.clone());
    }
    Ok(reconcile::reconcile(said, &rules))
}

/// Asks everybody but the nodes, at the same time.
async fn ask(wanted: &Wanted) -> Vec<Said> {
    let rest = wanted.rest.as_ref().map(|rest| (rest, token(rest)));
    let ray = wanted.ray.clone().map(|address| Ray { address, limit: wanted.limit });
    let slurm = async {
        match &wanted.slurm {
            Some(slurm) => sources::slurm::ask(slurm).await,
            None => Vec::new(),
        }
    };
    let rest = async {
        match rest {
            Some((rest, Ok(token))) => {
                let asked = Slurmrestd {
                    address: rest.address.clone(),
                    token,
                    user: rest.user.clone(),
                    limit: wanted.limit,
                };
                sources::slurmrestd::ask(&asked).await
            }
            Some((rest, Err(failure))) => vec![without_token(rest, &failure)],
            None => Vec::new(),
        }
    };
    let kubernetes = async {
        match &wanted.kubernetes {
            Some(kubernetes) => sources::kubernetes::ask(kubernetes).await,
            None => Vec::new(),
        }
    };
    let ray = async {
        match &ray {
            Some(ray) => sources::ray::ask(ray).await,
            None => Vec::new(),
        }
    };
    let answers = tokio::join!(slurm, rest, kubernetes, ray);
    let mut said = sources::files::read(&wanted.files);
    said.extend(answers.0);
    said.extend(answers.1);
    said.extend(answers.2);
    said.extend(answers.3);
    said
}

/// The token for slurmrestd: from its file, else from `SLURM_JWT` as Slurm's own
/// programs take it.
fn token(rest: &Rest) -> Result<Option<String>, Failure> {
    let text = match &rest.token_file {
        Some(file) => read_text(file)?,
        None => std::env::var("SLURM_JWT").unwrap_or_default(),
    };
    // `scontrol token` prints SLURM_JWT=TOKEN.
    let text = text.trim();
    let token = text.strip_prefix("SLURM_JWT=").unwrap_or(text);
    Ok(Some(token.to_owned()).filter(|token| !token.is_empty()))
}

/// slurmrestd where its token cannot be read: nobody is asked there, and the
/// others are.
fn without_token(rest: &Rest, failure: &Failure) -> Said {
    let mut said = Said::nothing(SourceKind::SlurmNodes, rest.address.as_str());
    let message = format!("not asked, its token cannot be read (token_file): {failure}");
    said.trouble(ProblemKind::Missing, None, message);
    said
}

/// Asks the nodes that the other sources name.
async fn themselves(known: &Claims, wanted: &Wanted, reach: &Reach<'_>) -> Result<Said, Failure> {
    let Some(config) = reach.config else {
        let text = "asking nodes needs a configuration that says how they are reached ([launcher])";
        return Err(Failure::Usage(text.to_owned()));
    };
    let mut names: Vec<NodeName> = known.domains.iter().flat_map(|d| d.nodes.clone()).collect();
    names.sort();
    if names.is_empty() {
        let mut said = Said::nothing(SourceKind::NodeFacts, "fabricgate node facts");
        let message = "no other source names a node that could be asked";
        said.trouble(ProblemKind::Missing, None, message);
        return Ok(said);
    }
    let nodes = Nodes {
        launcher: &config.launcher,
        worker: &config.worker,
        parallel: config.parallel,
        limit: wanted.limit.max(config.connect),
    };
    Ok(sources::nodes::ask(&nodes, &names).await)
}

/// Tells on stderr what of the sources could not be used, before a sweep goes
/// on without it.
pub fn tell_problems(claims: &Claims) {
    for read in &claims.sources {
        for problem in &read.problems {
            note(&format!("{}: {problem}", read.source));
        }
    }
}

/// A claims file that a person wrote is taken as it is or not at all: a typo in
/// it must not silently leave nodes out of a sweep.
pub fn check_own_files(files: &[PathBuf]) -> Result<(), Failure> {
    for file in files.iter().filter(|file| file.is_file()) {
        let text = read_text(file)?;
        if claims_file::recognises(&text) {
            claims_file::parse(&file.display().to_string(), &text).map_err(Failure::usage)?;
        }
    }
    Ok(())
}
