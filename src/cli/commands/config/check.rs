//! What a configuration means, in words, and what about it is odd.
//!
//! Asks nobody: whether the scheduler answers, `claims` and `doctor` say.

use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::{expectations, stdout};
use crate::config::gate::GateBackend;
use crate::config::sources::SourcesConfig;
use crate::config::watch::WatchConfig;
use crate::config::{ClaimsSource, Config};
use crate::exit::CommandError;
use crate::{config, exit};
use control::launch::{Launcher, remote_shell};
use control::notify::secret::SecretSource;
use engine::policy::action_policy::{Policy, SoftFaults};
use model::shell_quote;

/// The format of `config check --json`.
pub const CHECK_FORMAT: &str = "fabricgate.config-check/1";

/// What is said of a configuration.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ConfigCheckDocument {
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
    means: Vec<ConfigMeaning>,
    /// What it may not have meant.
    warnings: Vec<String>,
}

/// One thing that it means.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
struct ConfigMeaning {
    /// What is spoken of.
    what: &'static str,
    /// What is said of it.
    said: String,
}

/// Reads a configuration and tells what it means.
pub fn check_config(file: Option<&Path>, json: bool) -> anyhow::Result<u8> {
    let name = file.map(|file| file.display().to_string()).unwrap_or_default();
    match read_config(file) {
        Ok(config) => {
            let (means, warnings) =
                (describe_config(&config), collect_warnings(&config, &Path::exists));
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
                stdout::write_json(&checked)?;
            } else {
                let mut text = format!("{name}: ok\n");
                for ConfigMeaning { what, said } in &means {
                    text.push_str(&format!("  {what:<11} {said}\n"));
                }
                for warning in &warnings {
                    text.push_str(&format!("  warning: {warning}\n"));
                }
                stdout::write_text(&text)?;
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
                stdout::write_json(&checked)?;
            }
            Err(error.into())
        }
    }
}

/// A configuration, with the files that must be right for anything to run.
fn read_config(file: Option<&Path>) -> Result<Config, CommandError> {
    let config = config::open(file)?;
    let in_force = expectations::load_thresholds(&config.thresholds)?;
    if let Some(name) = &config.platform {
        let place = format!("{}: platform", config.path.display());
        expectations::check_platform(&in_force.catalogue, name, &place)?;
    }
    config.check_stand_in()?;
    Ok(config)
}

fn describe_config(config: &Config) -> Vec<ConfigMeaning> {
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
            let told = match &gate.backend {
                GateBackend::Scontrol(it) => {
                    format!("Slurm through `{}`", shell_quote::join_quoted(&it.argv))
                }
                GateBackend::Slurmrestd(rest) => {
                    format!("Slurm through slurmrestd at {}", rest.address)
                }
                GateBackend::Kubernetes(_) => "Kubernetes".to_owned(),
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
        ("claims", describe_claims(&config.claims)),
        ("thresholds", describe_thresholds(config)),
        ("launcher", describe_launcher(config)),
        ("probes", format!("{probes}; {readings}")),
        ("confirm", confirm),
        ("run folders", config.run_dir.display().to_string()),
        ("policy", budget),
        ("gate", gate),
        ("watch", format!("looks every {} s; {listens}", watch.interval().as_secs_f64())),
    ]
    .map(|(what, said)| ConfigMeaning { what, said })
    .into()
}

fn describe_thresholds(config: &Config) -> String {
    let mut text = "those that ship".to_owned();
    for file in &config.thresholds {
        text.push_str(&format!(", then {}", file.display()));
    }
    if let Some(platform) = &config.platform {
        text.push_str(&format!("; every domain is a {platform}"));
    }
    text
}

fn describe_claims(source: &ClaimsSource) -> String {
    match source {
        ClaimsSource::Scenario(path) => format!("of the simulated fabric {}", path.display()),
        ClaimsSource::Run(path) => format!("as in the run {}", path.display()),
        ClaimsSource::Sources(wanted) => describe_sources(wanted).join("; "),
    }
}

fn describe_sources(wanted: &SourcesConfig) -> Vec<String> {
    let mut all: Vec<String> = wanted.files.iter().map(|file| file.display().to_string()).collect();
    if let Some(slurm) = &wanted.slurm {
        all.push(format!("Slurm through `{}`", shell_quote::join_quoted(&slurm.scontrol)));
    }
    if let Some(rest) = &wanted.slurmrestd {
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

fn describe_launcher(config: &Config) -> String {
    let how = match &config.launcher {
        Launcher::Local => "this machine alone".to_owned(),
        Launcher::Command { template } => format!("`{}`", shell_quote::join_quoted(template)),
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
fn collect_warnings(config: &Config, is_there: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let mut all = Vec::new();
    let policy = &config.policy;
    if config.gate.is_none() {
        if *policy != Policy::default() {
            all.push("[policy] without [gate]: it is decided, and nobody is told".to_owned());
        }
        if config.watch != WatchConfig::default() {
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
    all.extend(find_unknown_shells(config));
    all.extend(find_exposures(config, &file_mode));
    all.extend(find_missing_files(config, is_there));
    all
}

/// Programs of which the words in front do not tell whether a shell reads what is behind.
fn find_unknown_shells(config: &Config) -> Vec<String> {
    let mut programs: Vec<(&str, &[String], Option<bool>)> = Vec::new();
    if let ClaimsSource::Sources(wanted) = &config.claims
        && let Some(slurm) = &wanted.slurm
    {
        programs.push(("[sources.slurm] scontrol", &slurm.scontrol, slurm.remote_shell));
    }
    if let Some(GateBackend::Scontrol(it)) = config.gate.as_ref().map(|gate| &gate.backend) {
        programs.push(("[gate] scontrol", &it.argv, it.remote_shell));
    }
    if let Launcher::Slurm(slurm) = &config.launcher {
        let it = &slurm.programs;
        programs.push(("[launcher] scontrol", &it.scontrol, it.remote_shell));
        programs.push(("[launcher] salloc", &it.salloc, it.remote_shell));
    }
    programs.dedup_by(|a, b| a.1 == b.1);
    let unknown = programs.into_iter().filter(|(_, program, said)| {
        remote_shell::detect_reader(program, *said) == remote_shell::ArgvReader::Unknown
    });
    unknown
        .map(|(key, program, _)| {
            format!(
                "{key}: nothing tells whether the words behind `{}` are read by a shell (as behind \
                 ssh); what one would run is not said to it: see [sources.slurm] remote_shell",
                shell_quote::join_quoted(program)
            )
        })
        .collect()
}

/// The rights of a file, where it is there.
fn file_mode(path: &Path) -> Option<u32> {
    std::fs::metadata(path).ok().map(|it| it.permissions().mode())
}

/// What lets others read a secret, or ask.
fn find_exposures(config: &Config, rights: &dyn Fn(&Path) -> Option<u32>) -> Vec<String> {
    let mut all = Vec::new();
    let mut files: Vec<(String, &Path)> = Vec::new();
    let mut rests = Vec::new();
    if let ClaimsSource::Sources(wanted) = &config.claims {
        rests.extend(&wanted.slurmrestd);
    }
    if let Some(GateBackend::Slurmrestd(rest)) = config.gate.as_ref().map(|gate| &gate.backend) {
        rests.push(rest);
    }
    rests.dedup();
    for rest in rests {
        if is_plaintext_address(rest.address.as_str()) {
            let text = "[sources.slurmrestd] address: the token goes over http:// in clear text; expected \
                        https://, or unix:/ on this machine";
            all.push(text.to_owned());
        }
        let file = rest.token_file.as_deref();
        files.extend(file.map(|file| ("[sources.slurmrestd] token_file".to_owned(), file)));
    }
    for target in config.notify.iter().flat_map(|notify| &notify.targets) {
        if let SecretSource::Inline(address) = &target.address
            && address.parse_url().is_ok_and(|url| is_plaintext_address(url.as_str()))
        {
            all.push(format!(
                "[[notify.target]] {}: what it is told, and its token, go over http:// in clear text",
                target.name
            ));
        }
        for (key, place) in
            [("url_file", Some(&target.address)), ("bearer_file", target.bearer.as_ref())]
        {
            if let Some(SecretSource::File(file)) = place {
                files.push((format!("[[notify.target]] {}: {key}", target.name), file));
            }
        }
    }
    for (key, file) in files {
        if let Some(mode) = rights(file).filter(|mode| mode & 0o077 != 0) {
            all.push(format!(
                "{key}: {} has mode {:o}: others may read it; `chmod 600` it",
                file.display(),
                mode & 0o777
            ));
        }
    }
    if let Some(address) = config.watch.listen.filter(|it| it.ip().is_unspecified()) {
        all.push(format!(
            "[watch] listen: {address} is all addresses of this machine; name one, or keep others out \
             (a firewall, a NetworkPolicy)"
        ));
    }
    all
}

/// Whether a token to this address can be read on its way.
fn is_plaintext_address(address: &str) -> bool {
    let Some(rest) = address.strip_prefix("http://") else { return false };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let host = match host.strip_prefix('[') {
        Some(six) => six.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let is_here = host.parse::<IpAddr>().is_ok_and(|it| it.is_loopback()) || host == "localhost";
    !is_here
}

/// The files that are named and are not there.
fn find_missing_files(config: &Config, is_there: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let mut named: Vec<(&str, PathBuf)> = Vec::new();
    if let ClaimsSource::Sources(wanted) = &config.claims {
        named.extend(wanted.files.iter().map(|file| ("claims", file.clone())));
        let token = wanted.slurmrestd.as_ref().and_then(|rest| rest.token_file.clone());
        named.extend(token.map(|file| ("[sources.slurmrestd] token_file", file)));
        let kubeconfig = wanted.kubernetes.as_ref().and_then(|it| it.kubeconfig.clone());
        named.extend(kubeconfig.map(|file| ("[sources.kubernetes] kubeconfig", file)));
    }
    if let Launcher::Kubernetes(pods) = &config.launcher {
        named.extend(pods.kubeconfig.clone().map(|it| ("[launcher.kubernetes] kubeconfig", it)));
    }
    if let Some(GateBackend::Kubernetes(it)) = config.gate.as_ref().map(|gate| &gate.backend) {
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
        read_config(Some(&path)).expect("a good file")
    }

    fn warnings_of(text: &str) -> String {
        collect_warnings(&read_text(text), &|_| true).join("\n")
    }

    #[test]
    fn what_is_rarely_meant_is_warned_of_and_a_plain_file_is_not() {
        assert_eq!(warnings_of("claims = \"c\"\n"), "");
        let gate = "claims = \"c\"\n[gate]\n[policy]\nmix = { 16 = 1.0 }\n";
        assert_eq!(warnings_of(gate), "");
        for (text, expected) in [
            ("claims = \"c\"\n[policy]\nper_domain = 1\n", "[policy] without [gate]"),
            ("claims = \"c\"\n[watch]\ninterval_s = 10\n", "[watch] without [gate]"),
            ("claims = \"c\"\n[gate]\n", "mix is absent"),
            ("claims = \"c\"\n[gate]\n[confirm]\nenabled = false\n", "nothing is ever confirmed"),
            ("claims = \"c\"\n[gate]\n[policy]\nconfirmed = false\n", "a single measurement"),
            ("claims = \"c\"\n[gate]\n[policy]\nper_hour = 0\n", "allows no drain"),
            ("claims = \"c\"\n[policy]\nsimulated = true\n", "act on a real scheduler"),
        ] {
            let said = warnings_of(text);
            assert!(said.contains(expected), "{text}: {said}");
        }
    }

    #[test]
    fn what_lets_others_read_a_secret_or_ask_is_warned_of() {
        let rest = |address: &str| {
            format!("[sources.slurmrestd]\naddress = \"{address}\"\ntoken_file = \"t\"\n")
        };
        let hook = "[notify]\n[[notify.target]]\nname = \"ops\"\nkind = \"generic\"\nbearer_file = \"b\"\n";
        let url = |url: &str| format!("claims = \"c\"\n{hook}url = \"{url}\"\n");
        let listens = |at: &str| format!("claims = \"c\"\n[watch]\nlisten = \"{at}:9464\"\n");
        let said =
            |text: &str, mode: u32| find_exposures(&read_text(text), &|_| Some(mode)).join("\n");
        for (text, mode, expected) in [
            (rest("http://slurm:6820"), 0o600, "http://"),
            (rest("https://slurm:6820"), 0o644, "token_file: "),
            (url("http://hooks.example/x"), 0o600, "ops: what it is told"),
            (url("https://hooks.example/x"), 0o640, "ops: bearer_file: "),
            (listens("0.0.0.0"), 0o600, "all addresses"),
            (listens("[::]"), 0o600, "all addresses"),
        ] {
            let said = said(&text, mode);
            assert!(said.contains(expected) && said.lines().count() == 1, "{text}: {said}");
        }
        for text in [
            rest("https://slurm:6820"),
            rest("http://127.0.0.1:6820"),
            rest("http://localhost:6820"),
            rest("http://[::1]:6820"),
            rest("unix:/run/slurmrestd"),
            url("https://hooks.example/x"),
            listens("127.0.0.1"),
            listens("10.0.0.7"),
        ] {
            assert_eq!(said(&text, 0o600), "", "{text}");
        }
    }

    #[test]
    fn a_program_whose_reader_is_not_known_is_named() {
        let text = "claims = \"c\"\n[sources.slurm]\nscontrol = [\"/opt/on-head\", \"scontrol\"]\n";
        let said = warnings_of(text);
        assert!(
            said.contains("[sources.slurm] scontrol: ") && said.contains("remote_shell"),
            "{said}"
        );
        assert_eq!(warnings_of(&format!("{text}remote_shell = true\n")), "");
        let ssh = "claims = \"c\"\n[sources.slurm]\nscontrol = [\"sudo\", \"ssh\", \"head\", \"scontrol\"]\n";
        assert_eq!(warnings_of(ssh), "");
    }

    #[test]
    fn files_that_are_not_there_are_named_with_their_key() {
        let text = "claims = [\"a.toml\", \"b.csv\"]\n[sources.kubernetes]\nkubeconfig = \"k\"\n";
        let config = read_text(text);
        let said = collect_warnings(&config, &|path| path.ends_with("a.toml")).join("\n");
        assert!(!said.contains("a.toml") && said.contains("claims: "), "{said}");
        assert!(said.contains("[sources.kubernetes] kubeconfig: "), "{said}");
    }

    #[test]
    fn every_part_is_told_once() {
        let text = "claims = \"c\"\n[sources.slurm]\n[launcher]\nkind = \"command\"\n\
                    template = [\"ssh\", \"{node}\"]\n[gate]\n";
        let means = describe_config(&read_text(text));
        let said = |what: &str| {
            means.iter().find(|it| it.what == what).map(|it| it.said.clone()).unwrap_or_default()
        };
        assert!(said("claims").ends_with("/c; Slurm through `scontrol`"), "{}", said("claims"));
        assert!(said("launcher").starts_with("`ssh "), "{}", said("launcher"));
        assert!(said("gate").starts_with("Slurm through `scontrol` is told with --apply"));
        assert!(said("policy").contains("3 % of the fleet drained by us"), "{}", said("policy"));
    }
}
