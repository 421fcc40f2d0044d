//! `fabricgate config check`: describes a configuration in plain text and warns about unusual
//! settings.
//!
//! Contacts no scheduler and no node; `claims` and `doctor` check that they answer.

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

/// The result of `config check`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ConfigCheckDocument {
    /// `fabricgate.config-check/1`.
    format: &'static str,
    /// Path of the configuration file.
    file: String,
    /// Whether the configuration is usable.
    ok: bool,
    /// Why the configuration is not usable.
    #[serde(skip_serializing_if = "Option::is_none")]
    mistake: Option<String>,
    /// The effective settings, one entry per section.
    means: Vec<ConfigMeaning>,
    /// Settings that are valid but probably not intended.
    warnings: Vec<String>,
}

/// One effective setting.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
struct ConfigMeaning {
    /// The section.
    what: &'static str,
    /// The description of its effect.
    #[serde(rename = "said")]
    message: String,
}

/// Checks a configuration and prints its effective settings and warnings.
pub fn check_config(file: Option<&Path>, json: bool) -> anyhow::Result<u8> {
    let name = file.map(|file| file.display().to_string()).unwrap_or_default();
    match read_config(file) {
        Ok(config) => {
            let (means, mut warnings) =
                (describe_config(&config), collect_warnings(&config, &Path::exists));
            if json {
                // In text they are on standard error, as with every command.
                warnings.extend(config.renamed_keys.iter().map(ToString::to_string));
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
                for ConfigMeaning { what, message: effect } in &means {
                    text.push_str(&format!("  {what:<11} {effect}\n"));
                }
                for warning in &warnings {
                    text.push_str(&format!("  warning: {warning}\n"));
                }
                stdout::write_text(&text)?;
            }
            Ok(exit::PASS)
        }
        Err(error) => {
            // Without a file argument, the document has no file to name.
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

/// Opens a configuration and the files without which no command can run.
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
        true => format!("suspects are measured again after {wait} s"),
        false => "suspects are not measured again".to_owned(),
    };
    let probes = match &config.probes {
        None => "those of the profile".to_owned(),
        Some(probes) => {
            probes.iter().map(|probe| probe.name.as_str()).collect::<Vec<_>>().join(", ")
        }
    };
    let readings = format!("{} to {} readings", config.readings, config.most_readings);
    let budget = format!(
        "at most {} nodes of a domain and {} of the fleet drained by fabricgate at a time, {} of \
         it within an hour; {} suspects of a domain count as a common cause",
        policy.per_domain,
        share(policy.outstanding),
        share(policy.per_hour),
        policy.freeze_domain
    );
    let gate = match &config.gate {
        None => "none: no node is drained".to_owned(),
        Some(gate) => {
            let backend = match &gate.backend {
                GateBackend::Scontrol(it) => {
                    format!("Slurm through `{}`", shell_quote::join_quoted(&it.argv))
                }
                GateBackend::Slurmrestd(rest) => {
                    format!("Slurm through slurmrestd at {}", rest.address)
                }
                GateBackend::Kubernetes(_) => "Kubernetes".to_owned(),
            };
            format!("{backend}, changed with --apply; state in {}", gate.folder.display())
        }
    };
    let watch = &config.watch;
    let listens = match watch.listen {
        Some(address) => format!("serves HTTP at {address}"),
        None => "serves no HTTP".to_owned(),
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
        ("watch", format!("a round every {} s; {listens}", watch.interval().as_secs_f64())),
    ]
    .map(|(what, effect)| ConfigMeaning { what, message: effect })
    .into()
}

fn describe_thresholds(config: &Config) -> String {
    let mut text = "the built-in ones".to_owned();
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
        ClaimsSource::Scenario(path) => format!("from the simulated fabric {}", path.display()),
        ClaimsSource::Run(path) => format!("from the run {}", path.display()),
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
            Some(partition) => format!("Slurm jobs in partition {partition}"),
            None => "Slurm jobs".to_owned(),
        },
        Launcher::Kubernetes(pods) => {
            format!("pods of image {} in namespace {}", pods.image, pods.namespace)
        }
    };
    format!(
        "{how}; worker command `{}`; at most {} steps at a time",
        config.worker, config.parallel
    )
}

/// Warns about settings that are allowed but rarely intended. `is_there` reports whether a file
/// exists.
fn collect_warnings(config: &Config, is_there: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let mut all = Vec::new();
    let policy = &config.policy;
    if config.gate.is_none() {
        if *policy != Policy::default() {
            all.push("[policy] without [gate]: actions are decided but not carried out".to_owned());
        }
        if config.watch != WatchConfig::default() {
            all.push(
                "[watch] without [gate]: `watch --apply` has no scheduler to act on".to_owned(),
            );
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

/// Warns about programs for which it is unknown whether a shell parses their arguments.
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
    let unknown = programs.into_iter().filter(|(_, program, setting)| {
        remote_shell::detect_reader(program, *setting) == remote_shell::ArgvReader::Unknown
    });
    unknown
        .map(|(key, program, _)| {
            format!(
                "{key}: it is unknown whether a shell parses the arguments after `{}` (as after \
                 ssh); arguments that a shell would expand are not passed: see [sources.slurm] \
                 remote_shell",
                shell_quote::join_quoted(program)
            )
        })
        .collect()
}

/// The mode bits of a file; `None` for a file that does not exist.
fn file_mode(path: &Path) -> Option<u32> {
    std::fs::metadata(path).ok().map(|it| it.permissions().mode())
}

/// Warns about secrets that other users can read and ports that other hosts can reach.
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
            let text = "[sources.slurmrestd] address: the token is sent over http:// in clear \
                        text; expected https://, or unix:/ on this machine";
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
                "[[notify.target]] {}: notifications and their token are sent over http:// in \
                 clear text",
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
                "{key}: {} has mode {:o}: other users may read it; run `chmod 600` on it",
                file.display(),
                mode & 0o777
            ));
        }
    }
    if let Some(address) = config.watch.listen.filter(|it| it.ip().is_unspecified()) {
        all.push(format!(
            "[watch] listen: {address} listens on all addresses of this machine; set one, or restrict \
             access (a firewall, a NetworkPolicy)"
        ));
    }
    all
}

/// Whether a token sent to this address travels unencrypted over a network.
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

/// Warns about files that the configuration names and that do not exist.
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
    absent.map(|(key, file)| format!("{key}: {} does not exist", file.display())).collect()
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
    fn rarely_intended_settings_are_warned_of_and_a_plain_file_is_not() {
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
            let warnings = warnings_of(text);
            assert!(warnings.contains(expected), "{text}: {warnings}");
        }
    }

    #[test]
    fn readable_secrets_and_open_ports_are_warned_of() {
        let rest = |address: &str| {
            format!("[sources.slurmrestd]\naddress = \"{address}\"\ntoken_file = \"t\"\n")
        };
        let hook = "[notify]\n[[notify.target]]\nname = \"ops\"\nkind = \"generic\"\n\
                    bearer_file = \"b\"\n";
        let url = |url: &str| format!("claims = \"c\"\n{hook}url = \"{url}\"\n");
        let listens = |at: &str| format!("claims = \"c\"\n[watch]\nlisten = \"{at}:9464\"\n");
        let exposures =
            |text: &str, mode: u32| find_exposures(&read_text(text), &|_| Some(mode)).join("\n");
        for (text, mode, expected) in [
            (rest("http://slurm:6820"), 0o600, "http://"),
            (rest("https://slurm:6820"), 0o644, "token_file: "),
            (url("http://hooks.example/x"), 0o600, "ops: notifications and their token"),
            (url("https://hooks.example/x"), 0o640, "ops: bearer_file: "),
            (listens("0.0.0.0"), 0o600, "all addresses"),
            (listens("[::]"), 0o600, "all addresses"),
        ] {
            let warnings = exposures(&text, mode);
            assert!(
                warnings.contains(expected) && warnings.lines().count() == 1,
                "{text}: {warnings}"
            );
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
            assert_eq!(exposures(&text, 0o600), "", "{text}");
        }
    }

    #[test]
    fn a_program_whose_reader_is_not_known_is_named() {
        let text = "claims = \"c\"\n[sources.slurm]\nscontrol = [\"/opt/on-head\", \"scontrol\"]\n";
        let warnings = warnings_of(text);
        assert!(
            warnings.contains("[sources.slurm] scontrol: ") && warnings.contains("remote_shell"),
            "{warnings}"
        );
        assert_eq!(warnings_of(&format!("{text}remote_shell = true\n")), "");
        let ssh = "claims = \"c\"\n[sources.slurm]\n\
                   scontrol = [\"sudo\", \"ssh\", \"head\", \"scontrol\"]\n";
        assert_eq!(warnings_of(ssh), "");
    }

    #[test]
    fn a_key_with_its_earlier_name_is_a_warning_with_its_place() {
        let config = read_text("claims = \"c\"\n[watch]\ntogether = 2\n");
        let warnings: Vec<String> = config.renamed_keys.iter().map(ToString::to_string).collect();
        assert!(
            warnings[0].contains(":3:1: ") && warnings[0].contains("min_nodes"),
            "{warnings:?}"
        );
        assert!(read_text("claims = \"c\"\n[watch]\nmin_nodes = 2\n").renamed_keys.is_empty());
    }

    #[test]
    fn missing_files_are_named_with_their_key() {
        let text = "claims = [\"a.toml\", \"b.csv\"]\n[sources.kubernetes]\nkubeconfig = \"k\"\n";
        let config = read_text(text);
        let warnings = collect_warnings(&config, &|path| path.ends_with("a.toml")).join("\n");
        assert!(!warnings.contains("a.toml") && warnings.contains("claims: "), "{warnings}");
        assert!(warnings.contains("[sources.kubernetes] kubeconfig: "), "{warnings}");
    }

    #[test]
    fn every_section_is_described_once() {
        let text = "claims = \"c\"\n[sources.slurm]\n[launcher]\nkind = \"command\"\n\
                    template = [\"ssh\", \"{node}\"]\n[gate]\n";
        let means = describe_config(&read_text(text));
        let effect = |what: &str| {
            means.iter().find(|it| it.what == what).map(|it| it.message.clone()).unwrap_or_default()
        };
        assert!(effect("claims").ends_with("/c; Slurm through `scontrol`"), "{}", effect("claims"));
        assert!(effect("launcher").starts_with("`ssh "), "{}", effect("launcher"));
        assert!(effect("gate").starts_with("Slurm through `scontrol`, changed with --apply"));
        let policy = effect("policy");
        assert!(policy.contains("3 % of the fleet drained by fabricgate"), "{policy}");
    }
}
