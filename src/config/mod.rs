//! The configuration file: sources of claims, the launcher, probes and limits.
//!
//! TOML; an unknown key is an error with its line and column, because a typo in a limit must not
//! fall back to a default. Relative paths are relative to the file.

pub mod audit;
pub mod bounded;
pub mod burn_in;
pub mod certificates;
pub mod gate;
pub mod history;
pub mod launcher;
pub mod metrics;
pub mod notify;
pub mod schema;
pub mod sources;
pub mod watch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;
use toml::de::DeTable;

use crate::config::audit::AuditConfig;
use crate::config::bounded::{BoundedCount, Seconds};
use crate::config::burn_in::BurnInConfig;
use crate::config::certificates::CertificatesConfig;
use crate::config::gate::GateConfig;
use crate::config::history::HistoryConfig;
use crate::config::launcher::LauncherConfig;
use crate::config::metrics::MetricsConfig;
use crate::config::sources::SourcesConfig;
use crate::config::watch::WatchConfig;
use crate::exit::CommandError;
use control::launch::Launcher;
use control::notify::NotifySettings;
use control::sources::input_file;
use control::sweep::ConfirmSettings;
use engine::plan::PlanLimits;
use engine::policy::action_policy::Policy;
use engine::policy::action_policy::removed::REMOVED;
use model::claims::Claims;
use model::probe::Probe;
use model::renamed_keys::{find_key, find_renamed_keys};
use model::text_error::TextError;
use node::exec;
use readers::claims::claims_file;
use readers::probe_catalog;
use readers::probe_catalog::ProbeCatalog;

/// Default delay between a suspicion and its confirmation.
const CONFIRM_AFTER: Duration = Duration::from_secs(30);

/// Most readings of a path while the earlier ones do not decide.
const MOST_READINGS: u32 = 5;

/// The configuration of fabricgate, as written.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    /// The files of claims: a path, or a list of paths. A claims file, Slurm's topology, cabling,
    /// or any other file that `fabricgate claims` reads. Without it, `[sources]` must name a
    /// source, unless the fabric is simulated or replayed.
    claims: Option<ClaimsFiles>,
    /// Live sources of claims. Default: none.
    #[serde(default)]
    sources: sources::SourcesSection,
    /// The folder of run folders. Default: `runs`, next to this file.
    run_dir: Option<PathBuf>,
    /// The site's own threshold files, applied over the built-in ones in this order. Default: none.
    #[serde(default)]
    thresholds: Vec<PathBuf>,
    /// The platform of all domains (`fabricgate thresholds list`); it overrides claims and detected
    /// devices. Without it, each domain's own.
    platform: Option<String>,
    /// Environment variables that programs and nodes get in addition to those that they need
    /// (docs/security.md): names, or prefixes of names followed by `*`. Default: none.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pass_env: Vec<Spanned<String>>,
    /// The launcher, which reaches the nodes. Without it, only this machine is measured.
    #[schemars(with = "Option<launcher::LauncherSection>")]
    launcher: Option<Spanned<launcher::LauncherSection>>,
    /// The probes to run. Without it, the probes of the profile.
    #[serde(default)]
    probes: ProbesSection,
    /// The limits of plans.
    #[serde(default)]
    sweep: PlanLimits,
    /// The confirmation of suspicions by a second measurement.
    #[serde(default)]
    confirm: ConfirmSection,
    /// The limits of actions on nodes. Without it, the restrictive defaults below.
    #[schemars(with = "Option<Policy>")]
    policy: Option<Spanned<Policy>>,
    /// The scheduler that carries out decisions, with `--apply` only. Without it, decisions are
    /// only displayed.
    #[schemars(with = "Option<gate::GateSection>")]
    gate: Option<Spanned<gate::GateSection>>,
    /// The standing gate (`fabricgate watch`).
    #[serde(default)]
    watch: WatchConfig,
    /// The repetition of a burn-in.
    #[serde(default)]
    burn_in: BurnInConfig,
    /// The metrics for monitoring.
    #[serde(default)]
    metrics: MetricsConfig,
    /// The signing key of certificates, and the keys whose signatures are accepted (`fabricgate
    /// certificate`).
    #[serde(default)]
    certificates: CertificatesConfig,
    /// The budget of an audit (`fabricgate audit`).
    #[serde(default)]
    audit: AuditConfig,
    /// The measured levels over time (`fabricgate history`). Without it, every run is added to a file
    /// next to `run_dir`.
    history: Option<HistoryConfig>,
    /// The receivers of the results of runs (`fabricgate notify`). Without it, no message is sent.
    notify: Option<notify::NotifySection>,
}

/// One file with claims, or several.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected the path of a claims file, or a list of paths")]
enum ClaimsFiles {
    /// One file.
    One(PathBuf),
    /// Several.
    Many(Vec<PathBuf>),
}

/// `[confirm]` of the configuration.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct ConfirmSection {
    /// Whether suspected parts are measured a second time, with cleared partners. Default: true.
    enabled: Option<bool>,
    /// Delay of this second measurement in seconds, so that transient causes have ended, 0 to
    /// 86400. Default: 30; 0 if the fabric is simulated or replayed.
    wait_s: Option<Seconds>,
}

/// `[probes]` of the configuration.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct ProbesSection {
    /// The probes to run, by name (`fabricgate probes list`), in order. Without it, those of the
    /// profile.
    #[schemars(with = "Option<Vec<String>>")]
    run: Option<Vec<Spanned<String>>>,
    /// A folder with the site's own probe files; a file with the name of a built-in probe replaces
    /// it. Default: none.
    dir: Option<PathBuf>,
    /// Least number of readings of each measurement, 1 to 100. Default: 1.
    readings: Option<BoundedCount<1, 100>>,
    /// Most readings of each measurement while the earlier ones do not decide, `readings` to 100.
    /// Default: 5, or `readings` if that is greater.
    #[schemars(with = "Option<BoundedCount<1, 100>>")]
    most_readings: Option<Spanned<BoundedCount<1, 100>>>,
    /// Measure with fabricgate's native probes instead of nvbandwidth and nccl-tests, even if these
    /// are installed.
    #[serde(default)]
    own: bool,
}

impl ProbesSection {
    /// The least and the greatest number of readings of each measurement.
    fn readings(&self) -> Result<(u32, u32), ConfigMistake> {
        let readings = self.readings.map_or(1, BoundedCount::get);
        match &self.most_readings {
            None => Ok((readings, readings.max(MOST_READINGS))),
            Some(most) if readings <= most.get_ref().get() => Ok((readings, most.get_ref().get())),
            Some(most) => {
                let most_readings = most.get_ref().get();
                let message = format!(
                    "most_readings: {most_readings}, expected readings ({readings}) or more"
                );
                Err((most.span().start, message))
            }
        }
    }

    /// The named probes, among all probes in force; `None` if none is named.
    fn named_probes(&self, catalog: &ProbeCatalog) -> Result<Option<Vec<Probe>>, ConfigMistake> {
        let Some(names) = &self.run else { return Ok(None) };
        if names.is_empty() {
            return Err((0, "probes.run is empty: nothing would be measured".to_owned()));
        }
        let mut probes: Vec<Probe> = Vec::new();
        for name in names {
            let at = name.span().start;
            let Some(probe) = catalog.get(name.get_ref()) else {
                let (name, known) = (name.get_ref(), catalog.joined_names());
                return Err((at, format!("unknown probe {name:?}, expected one of: {known}")));
            };
            if probes.iter().any(|known| known.name == probe.name) {
                let message = format!(
                    "duplicate probe {:?}; for several readings see \
                     probes.readings",
                    probe.name
                );
                return Err((at, message));
            }
            probes.push(probe.clone());
        }
        Ok(Some(probes))
    }
}

/// The limits of actions on nodes.
fn check_policy(section: Option<Spanned<Policy>>) -> Result<Policy, ConfigMistake> {
    let Some(policy) = section else { return Ok(Policy::default()) };
    let at = policy.span().start;
    let policy = policy.into_inner();
    policy.check().map_err(|message| (at, message))?;
    Ok(policy)
}

/// Passes these variables on to started programs.
fn pass_environment(names: Vec<Spanned<String>>) -> Result<(), ConfigMistake> {
    for name in &names {
        exec::child_environment::check_variable_name(name.get_ref())
            .map_err(|why| (name.span().start, format!("pass_env {:?}: {why}", name.get_ref())))?;
    }
    let names: Vec<String> = names.into_iter().map(Spanned::into_inner).collect();
    exec::child_environment::pass_variables(&names);
    Ok(())
}

/// The origin of the claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimsSource {
    /// Files, schedulers, nodes.
    Sources(Box<SourcesConfig>),
    /// The claims of the simulated scenario.
    Scenario(PathBuf),
    /// The claims of a stored run.
    Run(PathBuf),
}

/// A configuration that was read and checked.
#[derive(Debug)]
pub struct Config {
    /// The file it was read from.
    pub path: PathBuf,
    /// Keys with names of an earlier version.
    pub renamed_keys: Vec<TextError>,
    /// The origin of the claims.
    pub claims: ClaimsSource,
    /// The folder of run folders.
    pub run_dir: PathBuf,
    /// A site's own threshold files.
    pub thresholds: Vec<PathBuf>,
    /// The platform of all domains, which overrides claims and devices.
    pub platform: Option<String>,
    /// How nodes are reached.
    pub launcher: Launcher,
    /// The origin of the launcher: the configuration's section, or the command line.
    pub launcher_from: String,
    /// The command of fabricgate on the nodes.
    pub worker: String,
    /// Timeout of a worker's first answer.
    pub connect: Duration,
    /// How suspicions are confirmed.
    pub confirm: ConfirmSettings,
    /// Most concurrent steps.
    pub parallel: usize,
    /// The probes to run, in order; those of the profile if none is named.
    pub probes: Option<Vec<Probe>>,
    /// All probes in force.
    pub catalog: ProbeCatalog,
    /// Least number of readings of each measuring probe.
    pub readings: u32,
    /// Most readings, while the earlier ones do not decide.
    pub most_readings: u32,
    /// The limits of plans.
    pub limits: PlanLimits,
    /// The limits of proposals.
    pub policy: Policy,
    /// The scheduler that carries out proposals, if configured.
    pub gate: Option<GateConfig>,
    /// The standing gate.
    pub watch: WatchConfig,
    /// The budget of an audit.
    pub audit: AuditConfig,
    /// The signing key of certificates, and the accepted keys.
    pub certificates: CertificatesConfig,
    /// The repetition of a burn-in.
    pub burn_in: BurnInConfig,
    /// The metrics for monitoring.
    pub metrics: MetricsConfig,
    /// The file of the history, and its retention.
    pub history: HistoryConfig,
    /// The receivers of notifications, if any are configured.
    pub notify: Option<NotifySettings>,
    /// Temporary files that must exist as long as this value.
    pub scratch: Option<tempfile::TempDir>,
}

/// A mistake in a configuration: its byte offset, and a message.
pub type ConfigMistake = (usize, String);

/// The JSON Schema of the file.
pub fn json_schema() -> serde_json::Value {
    schema::json_schema_of::<ConfigFile>("fabricgate's configuration")
}

/// Opens and checks the configuration that the command line names.
pub fn open(path: Option<&Path>) -> Result<Config, CommandError> {
    let Some(path) = path else {
        return Err(CommandError::usage(
            "no configuration: expected --config FILE or FABRICGATE_CONFIG",
        ));
    };
    open_with_scenario(path, None)
}

/// The same with this scenario in place of the cluster.
pub(crate) fn open_with_scenario(
    path: &Path,
    scenario: Option<&Path>,
) -> Result<Config, CommandError> {
    let name = path.display().to_string();
    let text = read_text(path)?;
    let base = path.parent().unwrap_or(Path::new(""));
    let config = parse(&name, &text, path, base, scenario)?;
    for warning in &config.renamed_keys {
        anstream::eprintln!("warning: {warning}");
    }
    Ok(config)
}

/// Reads a text file that a user wrote.
pub fn read_text(path: &Path) -> Result<String, CommandError> {
    let bytes = input_file::read(path).map_err(CommandError::environment)?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
        let file = path.display().to_string();
        CommandError::usage(TextError::new(&file, &text, at, "not UTF-8 text"))
    })
}

pub(crate) fn parse(
    name: &str,
    text: &str,
    path: &Path,
    base: &Path,
    scenario: Option<&Path>,
) -> Result<Config, CommandError> {
    let mistake =
        |(at, what): ConfigMistake| CommandError::usage(TextError::new(name, text, at, what));
    let read: ConfigFile = toml::from_str(text).map_err(|error| match find_removed_key(text) {
        Some(removed) => mistake(removed),
        None => CommandError::usage(describe_toml_error(name, text, &error)),
    })?;
    let files = match read.claims {
        Some(ClaimsFiles::One(file)) => vec![base.join(file)],
        Some(ClaimsFiles::Many(files)) => files.iter().map(|file| base.join(file)).collect(),
        None => Vec::new(),
    };
    let wanted = read.sources.into_config(files, base).map_err(&mistake)?;
    let scontrol = wanted.slurm.as_ref().map(|slurm| slurm.scontrol.as_slice());
    let remote_shell = wanted.slurm.as_ref().and_then(|slurm| slurm.remote_shell);
    let mut reach = match read.launcher {
        None => LauncherConfig::default(),
        Some(section) => {
            let at = section.span().start;
            launcher::parse_launcher(section.into_inner(), at, base, scontrol).map_err(&mistake)?
        }
    };
    if let Some(scenario) = scenario {
        reach.simulate(scenario);
    }
    let LauncherConfig { launcher, parallel, worker, connect } = reach;
    let gate = match read.gate {
        None => None,
        Some(section) => {
            let at = section.span().start;
            let gate = gate::parse_gate(section.into_inner(), at, base, &wanted);
            Some(gate.map_err(&mistake)?)
        }
    };
    let claims = match (wanted.is_empty() || scenario.is_some(), &launcher) {
        (false, _) => ClaimsSource::Sources(Box::new(wanted)),
        (true, Launcher::Sim { scenario, .. }) => ClaimsSource::Scenario(scenario.clone()),
        (true, Launcher::Replay { run }) => ClaimsSource::Run(run.clone()),
        (true, _) => {
            let message = "claims is missing, expected the path of a claims file, or [sources]";
            return Err(mistake((0, message.to_owned())));
        }
    };
    let confirm = parse_confirm(&read.confirm, &launcher);
    let (readings, most_readings) = read.probes.readings().map_err(&mistake)?;
    let catalog = load_probes(read.probes.dir.as_ref().map(|dir| base.join(dir)).as_deref())?;
    let probes = read.probes.named_probes(&catalog).map_err(&mistake)?;
    let policy = check_policy(read.policy).map_err(&mistake)?;
    let watch = read.watch.from_section(&policy, gate.as_ref()).map_err(&mistake)?;
    let certificates = read.certificates.from_section(base).map_err(&mistake)?;
    let burn_in = read.burn_in.from_section(&catalog).map_err(&mistake)?;
    let history = read.history.map(|section| section.from_section(base)).transpose();
    let history = history.map_err(&mistake)?.unwrap_or_default();
    let notify = read.notify.map(|section| notify::parse_notify(section, base)).transpose();
    let notify = notify.map_err(&mistake)?;
    pass_environment(read.pass_env).map_err(&mistake)?;
    let mut launcher = launcher;
    if let Launcher::Kubernetes(pods) = &launcher {
        // The variables are set in the pods on purpose, so processes there get them.
        exec::child_environment::pass_variables(&pods.env.keys().cloned().collect::<Vec<_>>());
    }
    launcher.set_carried_variables(exec::child_environment::srun_export_names());
    if let Launcher::Slurm(slurm) = &mut launcher {
        slurm.programs.remote_shell = remote_shell;
    }
    let mut config = Config {
        path: path.to_owned(),
        renamed_keys: find_renamed_keys(name, text, watch::RENAMED_KEYS),
        claims,
        run_dir: base.join(read.run_dir.unwrap_or_else(|| PathBuf::from("runs"))),
        thresholds: read.thresholds.into_iter().map(|file| base.join(file)).collect(),
        platform: read.platform,
        launcher,
        launcher_from: match scenario {
            Some(_) => "--sim".to_owned(),
            None => format!("{name}: [launcher]"),
        },
        worker,
        connect,
        confirm,
        parallel,
        probes,
        catalog,
        readings,
        most_readings,
        limits: read.sweep,
        policy,
        gate,
        watch,
        audit: read.audit,
        certificates,
        burn_in,
        metrics: read.metrics.resolve_paths(base),
        history,
        notify,
        scratch: None,
    };
    if read.probes.own {
        config.use_native_probes();
    }
    Ok(config)
}

fn parse_confirm(section: &ConfirmSection, launcher: &Launcher) -> ConfirmSettings {
    // Simulated faults are not transient, and stored ones are past.
    let default = if launcher.is_stand_in() { Duration::ZERO } else { CONFIRM_AFTER };
    ConfirmSettings {
        enabled: section.enabled.unwrap_or(true),
        wait: section.wait_s.map_or(default, Seconds::duration),
    }
}

/// A TOML error at its place. A value has its key before it: `wait_s: -1, expected 0 to 86400`.
fn describe_toml_error(name: &str, text: &str, error: &toml::de::Error) -> TextError {
    let mut described = TextError::from_toml(name, text, error);
    let at = error.span().map_or(0, |span| span.start);
    let line = text[..at].rsplit('\n').next().unwrap_or_default();
    let before = line.trim_end().strip_suffix('=').map(str::trim_end);
    if let Some(key) = before.and_then(|it| it.rsplit([' ', ',', '{', '[']).next()) {
        described.message = format!("{}: {}", key.trim_matches('"'), described.message);
    }
    described
}

/// The built-in probes, with those of a site's folder added or replaced.
pub fn load_probes(dir: Option<&Path>) -> Result<ProbeCatalog, CommandError> {
    let mut catalog = ProbeCatalog::built_in();
    let Some(dir) = dir else { return Ok(catalog) };
    let list = || -> std::io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == "toml") {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    };
    let files =
        list().map_err(|error| CommandError::Environment(format!("{}: {error}", dir.display())))?;
    let mut own: BTreeMap<String, String> = BTreeMap::new();
    for file in files {
        let text = read_text(&file)?;
        let name = file.display().to_string();
        for warning in probe_catalog::find_renamed_probe_keys(&name, &text) {
            anstream::eprintln!("warning: {warning}");
        }
        let probe = probe_catalog::parse_probe(&name, &text).map_err(CommandError::usage)?;
        // Two site files have the same probe name, so it is unclear which one is meant.
        if let Some(other) = own.insert(probe.name.clone(), name.clone()) {
            let probe = &probe.name;
            return Err(CommandError::Usage(format!("{name}: probe {probe:?} is also in {other}")));
        }
        catalog.add(probe);
    }
    Ok(catalog)
}

impl Config {
    /// The history of the runs in a folder, if they are kept in one: those of a simulated fabric
    /// only if the configuration names a history.
    pub fn history_path(&self, runs: &Path) -> Option<PathBuf> {
        let is_kept =
            self.history.enabled && (self.history.explicit || !self.launcher.is_stand_in());
        is_kept.then(|| self.history.path_for(runs))
    }

    /// Uses the native fallback of every probe that has one.
    pub fn use_native_probes(&mut self) {
        let named = self.probes.iter_mut().flatten();
        for probe in self.catalog.probes.values_mut().chain(named) {
            *probe = probe.clone().into_fallback();
        }
    }
}

/// Opens and reads a claims file.
pub fn read_claims_file(path: &Path) -> Result<Claims, CommandError> {
    let text = read_text(path)?;
    claims_file::parse(&path.display().to_string(), &text).map_err(CommandError::usage)
}

#[cfg(test)]
mod tests;

/// The first such key of a file.
fn find_removed_key(text: &str) -> Option<ConfigMistake> {
    let file = DeTable::parse(text).ok()?;
    let removed = REMOVED.iter().filter_map(|it| {
        let at = find_key(file.get_ref(), &["policy"], it.key)?;
        Some((at, format!("[policy] {}: removed: {}", it.key, it.instead)))
    });
    removed.min()
}
