//! What a configuration means, in words, and what about it is odd.
//!
//! Asks nobody: whether the scheduler answers, `claims` and `doctor` say.

use std::path::Path;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;

use crate::act::policy::Policy;
use crate::act::policy::SoftFaults;
use crate::cli::config;
use crate::cli::config::Config;
use crate::cli::config::Source;
use crate::cli::exit;
use crate::cli::expectations;
use crate::cli::failure::Failure;
use crate::cli::gating::Told;
use crate::cli::sources::Wanted;
use crate::cli::stdout;
use crate::cli::watching;
use crate::launch::Launcher;
use crate::model::words;

/// The format of `config check --json`.
pub const CHECK_FORMAT: &str = "fabricgate.config-check/1";

/// What is said of a configuration.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::cli) struct ConfigCheckDocument {
    /// `fabricgate.config-check/1`.
    format: &'static str,
    /// The configuration.
    file: String,
    /// It can be used.
    ok: bool,
    /// Why it cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    mistake: Option<String>,
    /// What it means.
    means: Vec<Meaning>,
    /// What it may not have meant.
    warnings: Vec<String>,
}

/// One thing that it means.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
struct Meaning {
    /// What is spoken of.
    what: &'static str,
    /// What is said of it.
    said: String,
}

/// Reads a configuration and tells what it means.
pub fn check(file: Option<&Path>, json: bool) -> anyhow::Result<u8> {
    let name = file.map(|file| file.display().to_string()).unwrap_or_default();
    match read(file) {
        Ok(config) => {
            let (means, warnings) = (means(&config), warnings(&config, &Path::exists));
            if json {
                let format = CHECK_FORMAT;
                let checked = ConfigCheckDocument {
                    format,
                    file: name,
                    ok: true,
                    mistake: None,
                    means,
                    warnings,
                };
                stdout::json(&checked)?;
            } else {
                let mut text = format!("{name}: ok\n");
                for Meaning { what, said } in &means {
                    text.push_str(&format!("  {what:<11} {said}\n"));
                }
                for warning in &warnings {
                    text.push_str(&format!("  warning: {warning}\n"));
                }
                stdout::text(&text)?;
            }
            Ok(exit::PASS)
        }
        Err(error) => {
            // Nobody was named: there is no file to speak of.
            if json && file.is_some() {
                let checked = ConfigCheckDocument {
                    format: CHECK_FORMAT,
                    file: name,
                    ok: false,
                    mistake: Some(error.to_string()),
                    means: Vec::new(),
                    warnings: Vec::new(),
                };
                stdout::json(&checked)?;
            }
            Err(error.into())
        }
    }
}

/// A configuration, with the files that must be right for anything to run.
fn read(file: Option<&Path>) -> Result<Config, Failure> {
    let config = config::open(file)?;
    let in_force = expectations::load(&config.thresholds)?;
    if let Some(name) = &config.platform {
        let place = format!("{}: platform", config.path.display());
        expectations::check_platform(&in_force.catalogue, name, &place)?;
    }
    config.check_stand_in()?;
    Ok(config)
}

fn means(config: &Config) -> Vec<Meaning> {
    let policy = &config.policy;
    let share = |share: f64| format!("{} %", (share * 1_000.0).round() / 10.0);
    let wait = config.confirm.wait.as_secs_f64();
    let confirm = match config.confirm.enabled {
        true => format!("what is suspect is measured again after {wait} s"),
        false => "nothing is measured again".to_owned(),
    };
    let probes = match &config.probes {
        None => "of the profile".to_owned(),
        Some(probes) => {
            probes.iter().map(|probe| probe.name.as_str()).collect::<Vec<_>>().join(", ")
        }
    };
    let readings = format!("{} to {} readings", config.readings, config.most_readings);
    let budget = format!(
        "at most {} nodes of a domain and {} of the fleet drained by us at a time, {} of it within \
         an hour; {} suspects of a domain are a common cause",
        policy.per_domain,
        share(policy.outstanding),
        share(policy.per_hour),
        policy.freeze_domain
    );
    let gate = match &config.gate {
        None => "nobody is told anything".to_owned(),
        Some(gate) => {
            let told = match &gate.told {
                Told::Scontrol(it) => format!("Slurm through `{}`", words::line(&it.argv)),
                Told::Slurmrestd(rest) => format!("Slurm through slurmrestd at {}", rest.address),
                Told::Kubernetes(_) => "Kubernetes".to_owned(),
            };
            format!("{told} is told with --apply; state in {}", gate.folder.display())
        }
    };
    let watch = &config.watch;
    let listens = match watch.listen {
        Some(address) => format!("answers at {address}"),
        None => "answers nowhere".to_owned(),
    };
    [
        ("claims", claims(&config.claims)),
        ("thresholds", thresholds(config)),
        ("launcher", launcher(config)),
        ("probes", format!("{probes}; {readings}")),
        ("confirm", confirm),
        ("run folders", config.run_dir.display().to_string()),
        ("policy", budget),
        ("gate", gate),
        ("watch", format!("looks every {} s; {listens}", watch.pace.interval.as_secs_f64())),
    ]
    .map(|(what, said)| Meaning { what, said })
    .into()
}

fn thresholds(config: &Config) -> String {
    let mut text = "those that ship".to_owned();
    for file in &config.thresholds {
        text.push_str(&format!(", then {}", file.display()));
    }
    if let Some(platform) = &config.platform {
        text.push_str(&format!("; every domain is a {platform}"));
    }
    text
}

fn claims(source: &Source) -> String {
    match source {
        Source::Scenario(path) => format!("of the simulated fabric {}", path.display()),
        Source::Run(path) => format!("as in the run {}", path.display()),
        Source::Sources(wanted) => asked(wanted).join("; "),
    }
}

fn asked(wanted: &Wanted) -> Vec<String> {
    let mut all: Vec<String> = wanted.files.iter().map(|file| file.display().to_string()).collect();
    if let Some(slurm) = &wanted.slurm {
        all.push(format!("Slurm through `{}`", words::line(&slurm.scontrol)));
    }
    if let Some(rest) = &wanted.rest {
        all.push(format!("Slurm through slurmrestd at {}", rest.address));
    }
    if let Some(kubernetes) = &wanted.kubernetes {
        let context = kubernetes.context.as_ref().map(|it| format!(", context {it}"));
        all.push(format!("Kubernetes{}", context.unwrap_or_default()));
    }
    if let Some(ray) = &wanted.ray {
        all.push(format!("Ray at {ray}"));
    }
    if wanted.nodes {
        all.push("the nodes themselves".to_owned());
    }
    all
}

fn launcher(config: &Config) -> String {
    let how = match &config.launcher {
        Launcher::Local => "this machine alone".to_owned(),
        Launcher::Command { template } => format!("`{}`", words::line(template)),
        Launcher::Sim { scenario, .. } => format!("a simulated fabric, {}", scenario.display()),
        Launcher::Replay { run } => format!("a stored run, {}", run.display()),
        Launcher::Slurm(slurm) => match &slurm.partition {
            Some(partition) => format!("jobs of Slurm in partition {partition}"),
            None => "jobs of Slurm".to_owned(),
        },
        Launcher::Kubernetes(pods) => {
            format!("pods of {} in namespace {}", pods.image, pods.namespace)
        }
    };
    format!("{how}; `{}` there; {} steps at a time at most", config.worker, config.parallel)
}

/// What is allowed and yet rarely meant. `is_there` tells whether a file is.
fn warnings(config: &Config, is_there: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let mut all = Vec::new();
    let policy = &config.policy;
    if config.gate.is_none() {
        if *policy != Policy::default() {
            all.push("[policy] without [gate]: it is decided, and nobody is told".to_owned());
        }
        let usual = watching::watching(watching::Section::default(), policy, None);
        if usual.is_ok_and(|usual| usual != config.watch) {
            all.push("[watch] without [gate]: `watch --apply` has nobody to tell".to_owned());
        }
    } else {
        if policy.confirmed && !config.confirm.enabled {
            let text = "[confirm] enabled = false with [policy] confirmed = true: nothing is ever \
                        confirmed, so nothing is ever drained";
            all.push(text.to_owned());
        }
        if !policy.confirmed {
            all.push(
                "[policy] confirmed = false: a single measurement may drain a node".to_owned(),
            );
        }
        if policy.soft == SoftFaults::Price && policy.mix.0.is_empty() {
            let text = "[policy] mix is absent: no drain has a price, and only the budgets bound \
                        drains of degraded nodes";
            all.push(text.to_owned());
        }
        if policy.per_hour == 0.0 || policy.outstanding == 0.0 || policy.per_domain == 0 {
            all.push("[policy] allows no drain at all".to_owned());
        }
    }
    if policy.simulated {
        all.push(
            "[policy] simulated = true: runs of a simulated fabric act on a real scheduler"
                .to_owned(),
        );
    }
    all.extend(missing(config, is_there));
    all
}

/// The files that are named and are not there.
fn missing(config: &Config, is_there: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let mut named: Vec<(&str, PathBuf)> = Vec::new();
    if let Source::Sources(wanted) = &config.claims {
        named.extend(wanted.files.iter().map(|file| ("claims", file.clone())));
        let token = wanted.rest.as_ref().and_then(|rest| rest.token_file.clone());
        named.extend(token.map(|file| ("[sources.slurmrestd] token_file", file)));
        let kubeconfig = wanted.kubernetes.as_ref().and_then(|it| it.kubeconfig.clone());
        named.extend(kubeconfig.map(|file| ("[sources.kubernetes] kubeconfig", file)));
    }
    if let Launcher::Kubernetes(pods) = &config.launcher {
        named.extend(pods.kubeconfig.clone().map(|it| ("[launcher.kubernetes] kubeconfig", it)));
    }
    if let Some(Told::Kubernetes(it)) = config.gate.as_ref().map(|gate| &gate.told) {
        named.extend(it.kubeconfig.clone().map(|it| ("[gate.kubernetes] kubeconfig", it)));
    }
    named.sort();
    named.dedup_by(|a, b| a.1 == b.1);
    let absent = named.into_iter().filter(|(_, file)| !is_there(file));
    absent.map(|(key, file)| format!("{key}: {} is not there", file.display())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Config {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("f.toml");
        std::fs::write(&path, text).expect("written");
        read(Some(&path)).expect("a good file")
    }

    fn warned(text: &str) -> String {
        warnings(&read_text(text), &|_| true).join("\n")
    }

    #[test]
    fn what_is_rarely_meant_is_warned_of_and_a_plain_file_is_not() {
        assert_eq!(warned("claims = \"c\"\n"), "");
        let gate = "claims = \"c\"\n[gate]\n[policy]\nmix = { 16 = 1.0 }\n";
        assert_eq!(warned(gate), "");
        for (text, expected) in [
            ("claims = \"c\"\n[policy]\nper_domain = 1\n", "[policy] without [gate]"),
            ("claims = \"c\"\n[watch]\ninterval_s = 10\n", "[watch] without [gate]"),
            ("claims = \"c\"\n[gate]\n", "mix is absent"),
            ("claims = \"c\"\n[gate]\n[confirm]\nenabled = false\n", "nothing is ever confirmed"),
            ("claims = \"c\"\n[gate]\n[policy]\nconfirmed = false\n", "a single measurement"),
            ("claims = \"c\"\n[gate]\n[policy]\nper_hour = 0\n", "allows no drain"),
            ("claims = \"c\"\n[policy]\nsimulated = true\n", "act on a real scheduler"),
        ] {
            let said = warned(text);
            assert!(said.contains(expected), "{text}: {said}");
        }
    }

    #[test]
    fn files_that_are_not_there_are_named_with_their_key() {
        let text = "claims = [\"a.toml\", \"b.csv\"]\n[sources.kubernetes]\nkubeconfig = \"k\"\n";
        let config = read_text(text);
        let said = warnings(&config, &|path| path.ends_with("a.toml")).join("\n");
        assert!(!said.contains("a.toml") && said.contains("claims: "), "{said}");
        assert!(said.contains("[sources.kubernetes] kubeconfig: "), "{said}");
    }

    #[test]
    fn every_part_is_told_once() {
        let text = "claims = \"c\"\n[sources.slurm]\n[launcher]\nkind = \"command\"\n\
                    template = [\"ssh\", \"{node}\"]\n[gate]\n";
        let means = means(&read_text(text));
        let said = |what: &str| {
            means.iter().find(|it| it.what == what).map(|it| it.said.clone()).unwrap_or_default()
        };
        assert!(said("claims").ends_with("/c; Slurm through `scontrol`"), "{}", said("claims"));
        assert!(said("launcher").starts_with("`ssh "), "{}", said("launcher"));
        assert!(said("gate").starts_with("Slurm through `scontrol` is told with --apply"));
        assert!(said("policy").contains("3 % of the fleet drained by us"), "{}", said("policy"));
    }
}
