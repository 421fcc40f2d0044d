//! Queries the requested sources and merges their reports into claims.
//!
//! `inventory` parses the reports and `claims::reconcile` merges them; this module orders the
//! queries. A source that does not answer is recorded as a problem and ends nothing.

use std::path::{Path, PathBuf};

use crate::cli::simulation_option::build_fabric;
use crate::cli::stdout::note;
use crate::cli::{expectations, stored_run};
use crate::config::gate::GateBackend;
use crate::config::sources::{SlurmrestdSource, SourcesConfig};
use crate::config::{ClaimsSource, Config, read_text, sources as sources_config};
use crate::exit::CommandError;
use control::launch::Launcher;
use control::sources::kubernetes::KubernetesClientConfig;
use control::sources::nodes::NodeCommandRunner;
use control::sources::ray::RayClientConfig;
use control::sources::slurm::SlurmClientConfig;
use control::sources::slurmrestd::SlurmrestdClientConfig;
use control::store::file;
use control::{sources, sweep};
use engine::report::plain_text::to_plain;
use engine::thresholds::PlatformCatalogue;
use model::claims::Claims;
use model::id::NodeName;
use model::source_report::{SourceKind, SourceProblemKind, SourceReport};
use node::exec::executable;
use readers::claims;
use readers::claims::reconcile::ReconcileRules;
use readers::claims::{claims_file, reconcile};

/// Queries all requested sources and merges their reports. Nodes are reached through the launcher
/// of `config`; `catalogue` maps products to platforms.
pub fn collect_claims(
    wanted: &SourcesConfig,
    config: Option<&Config>,
    catalogue: &PlatformCatalogue,
) -> Result<Claims, CommandError> {
    let runtime = crate::cli::runtime::build_runtime()?;
    let mut reports = runtime.block_on(ask_sources(wanted))?;
    let platform_of = |product: &str, gpus: Option<u32>| {
        catalogue.find_by_product(product, gpus).map(|platform| platform.name.clone())
    };
    let platform = config.and_then(|config| config.platform.as_deref());
    let rules = ReconcileRules {
        order: wanted.order.clone(),
        gpus_per_node: wanted.gpus_per_node,
        nics_per_node: wanted.nics_per_node,
        platform_of: &platform_of,
        ends_at_node: &|claimed| expectations::nvlink_ends_at_node(catalogue, platform.or(claimed)),
    };
    if wanted.nodes {
        let known = reconcile::reconcile_reports(reports.clone(), &rules);
        reports.push(runtime.block_on(ask_nodes(&known, wanted, config))?);
    }
    let now = sweep::format_timestamp(sweep::now());
    for one in &mut reports {
        one.source.read_at = Some(now.clone());
    }
    Ok(reconcile::reconcile_reports(reports, &rules))
}

/// Queries all sources except the nodes, concurrently.
async fn ask_sources(wanted: &SourcesConfig) -> Result<Vec<SourceReport>, CommandError> {
    let rest = wanted.slurmrestd.as_ref().map(|rest| (rest, read_slurmrestd_token(rest)));
    let ray = wanted.ray.clone().map(|address| RayClientConfig { address, limit: wanted.limit });
    let slurm = async {
        match &wanted.slurm {
            Some(slurm) => sources::slurm::fetch_claims(slurm).await,
            None => Vec::new(),
        }
    };
    let rest = async {
        match rest {
            Some((rest, Ok(token))) => {
                let client = SlurmrestdClientConfig {
                    address: rest.address.clone(),
                    token,
                    user: rest.user.clone(),
                    limit: wanted.limit,
                };
                sources::slurmrestd::fetch_claims(&client).await
            }
            Some((rest, Err(failure))) => vec![missing_token_report(rest, &failure)],
            None => Vec::new(),
        }
    };
    let kubernetes = async {
        match &wanted.kubernetes {
            Some(kubernetes) => sources::kubernetes::fetch_claims(kubernetes).await,
            None => Vec::new(),
        }
    };
    let ray = async {
        match &ray {
            Some(ray) => sources::ray::fetch_claims(ray).await,
            None => Vec::new(),
        }
    };
    let scheduler_reports = tokio::join!(slurm, rest, kubernetes, ray);
    let (runs, files): (Vec<PathBuf>, Vec<PathBuf>) =
        wanted.files.iter().cloned().partition(|path| path.join(file::RUN).is_file());
    let mut reports = sources::files::read(&files);
    for run in &runs {
        reports.push(read_measured_claims(run)?);
    }
    reports.extend(scheduler_reports.0);
    reports.extend(scheduler_reports.1);
    reports.extend(scheduler_reports.2);
    reports.extend(scheduler_reports.3);
    Ok(reports)
}

/// The claims that the measurements of a stored run support, regardless of that run's own claims.
fn read_measured_claims(path: &Path) -> Result<SourceReport, CommandError> {
    let stored = stored_run::open_run_quietly(path)?;
    let run = stored_run::read_run(&stored)?;
    let place = path.display().to_string();
    Ok(claims::nvlink_reach::read(&place, &run.info.created, &run.claims, &run.cells))
}

/// The token for slurmrestd: from its file, else from `SLURM_JWT`, the variable that Slurm's
/// commands read.
fn read_slurmrestd_token(rest: &SlurmrestdSource) -> Result<Option<String>, CommandError> {
    let text = match &rest.token_file {
        Some(file) => read_text(file)?,
        None => std::env::var("SLURM_JWT").unwrap_or_default(),
    };
    // `scontrol token` prints SLURM_JWT=TOKEN.
    let text = text.trim();
    let token = text.strip_prefix("SLURM_JWT=").unwrap_or(text);
    Ok(Some(token.to_owned()).filter(|token| !token.is_empty()))
}

/// The report for a slurmrestd whose token cannot be read. It is not queried; the other sources
/// are.
fn missing_token_report(rest: &SlurmrestdSource, failure: &CommandError) -> SourceReport {
    let mut report = SourceReport::new(SourceKind::SlurmNodes, rest.address.to_string());
    let message = format!("not queried: its token cannot be read (token_file): {failure}");
    report.push_problem(SourceProblemKind::Missing, None, message);
    report
}

/// Queries the nodes that the other sources name.
async fn ask_nodes(
    known: &Claims,
    wanted: &SourcesConfig,
    config: Option<&Config>,
) -> Result<SourceReport, CommandError> {
    let Some(config) = config else {
        let text = "querying nodes needs a configuration with a [launcher]";
        return Err(CommandError::Usage(text.to_owned()));
    };
    let mut names: Vec<NodeName> = known.domains.iter().flat_map(|d| d.nodes.clone()).collect();
    names.sort();
    if names.is_empty() {
        let mut report = SourceReport::new(SourceKind::NodeFacts, "fabricgate node facts");
        let message = "no other source names a node to query";
        report.push_problem(SourceProblemKind::Missing, None, message);
        return Ok(report);
    }
    let nodes = NodeCommandRunner {
        launcher: &config.launcher,
        worker: &config.worker,
        parallel: config.parallel,
        limit: wanted.limit.max(config.connect),
        allocation: None,
    };
    Ok(sources::nodes::fetch_facts(&nodes, &names).await)
}

/// The Slurm controller, if a source, the launcher or the gate reaches it through `scontrol`.
pub fn slurm_controller(config: &Config) -> Option<SlurmClientConfig> {
    let by_source = match &config.claims {
        ClaimsSource::Sources(wanted) => wanted.slurm.clone(),
        ClaimsSource::Scenario(_) | ClaimsSource::Run(_) => None,
    };
    let by = |scontrol: &Vec<String>, remote_shell| SlurmClientConfig {
        scontrol: scontrol.clone(),
        remote_shell,
        ..SlurmClientConfig::default()
    };
    by_source.or_else(|| match (&config.launcher, config.gate.as_ref().map(|gate| &gate.backend)) {
        (Launcher::Slurm(it), _) => Some(by(&it.programs.scontrol, it.programs.remote_shell)),
        (_, Some(GateBackend::Scontrol(it))) => Some(by(&it.argv, it.remote_shell)),
        _ => None,
    })
}

/// Prints each source problem on stderr before a sweep continues without that source.
pub fn print_source_problems(claims: &Claims) {
    for read in &claims.sources {
        for problem in &read.problems {
            note(&to_plain(&format!("{}: {problem}", read.source)));
        }
    }
}

/// Rejects an invalid claims file written by hand: a typo in it must not silently leave nodes out
/// of a sweep.
pub fn check_claims_files(files: &[PathBuf]) -> Result<(), CommandError> {
    for file in files.iter().filter(|file| file.is_file()) {
        let text = read_text(file)?;
        if claims_file::recognises(&text) {
            claims_file::parse(&file.display().to_string(), &text).map_err(CommandError::usage)?;
        }
    }
    Ok(())
}

impl SourcesConfig {
    /// The sources for these values of `--from`; the configuration supplies their settings.
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
                    sources_config::check_address(address).map_err(|reason| {
                        CommandError::Usage(format!("--from slurmrestd: {reason}"))
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
                        "--from {word}: expected slurm, slurmrestd[=ADDRESS], \
                         kubernetes[=CONTEXT], ray[=ADDRESS], nodes, files, or the name of an \
                         existing file"
                    )));
                }
            }
        }
        Ok(wanted)
    }

    /// The sources that this machine can query without a configuration: Slurm if `scontrol` is
    /// installed, Kubernetes if a kubeconfig or a service account exists.
    pub fn detect() -> Self {
        let mut wanted = Self::default();
        if executable::find_program("scontrol", None).is_some() {
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
        "--from {name}: no address; expected {name}={example}, or [sources.{name}]"
    ))
}

impl Config {
    /// The claims of the configured source; `catalogue` maps products to platforms.
    pub fn collect_claims(&self, catalogue: &PlatformCatalogue) -> Result<Claims, CommandError> {
        match &self.claims {
            ClaimsSource::Sources(wanted) => {
                check_claims_files(&wanted.files)?;
                collect_claims(wanted, Some(self), catalogue)
            }
            ClaimsSource::Scenario(path) => {
                let fabric = build_fabric(path).map_err(|error| self.stand_in_error(&error))?;
                let text = sim::recorded_files::network_claims_toml(&fabric);
                claims_file::parse(&path.display().to_string(), &text).map_err(CommandError::usage)
            }
            ClaimsSource::Run(path) => {
                let stored = stored_run::open_run_quietly(path);
                Ok(stored.map_err(|error| self.stand_in_error(&error))?.claims)
            }
        }
    }

    /// The claims for a sweep: reports unreadable sources, continues without them, and needs at
    /// least one domain.
    pub fn collect_measurable_claims(
        &self,
        catalogue: &PlatformCatalogue,
    ) -> Result<Claims, CommandError> {
        let claims = self.collect_claims(catalogue)?;
        print_source_problems(&claims);
        if claims.domains.is_empty() {
            let text = format!(
                "{}: no source claims a domain, so there is nothing to measure: name the nodes in \
                 a claims.toml ([[domain]] with per_node = true where NVLink ends at the node), or \
                 set `platform` in addition to a topology of leaves",
                self.path.display()
            );
            return Err(CommandError::Environment(text));
        }
        Ok(claims)
    }

    /// Checks the scenario or run that replaces real nodes: otherwise every node would report the
    /// same mistake.
    pub fn check_stand_in(&self) -> Result<(), CommandError> {
        let checked = match &self.launcher {
            Launcher::Sim { scenario, .. } => build_fabric(scenario).map(|_| ()),
            Launcher::Replay { run } => stored_run::open_run_quietly(run).map(|_| ()),
            Launcher::Local
            | Launcher::Command { .. }
            | Launcher::Slurm(_)
            | Launcher::Kubernetes(_) => Ok(()),
        };
        checked.map_err(|error| self.stand_in_error(&error))
    }

    fn stand_in_error(&self, error: &CommandError) -> CommandError {
        let (from, kind) = (&self.launcher_from, self.launcher.as_str());
        let text = format!("{from}, kind \"{kind}\": {error}");
        match error {
            CommandError::Usage(_) => CommandError::Usage(text),
            CommandError::Environment(_) => CommandError::Environment(text),
            CommandError::Refused(_) => CommandError::Refused(text),
        }
    }
}
