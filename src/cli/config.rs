//! The configuration file: where claims are, how nodes are reached, what runs.
//!
//! TOML; an unknown key is an error with its line and column, because a typo
//! in a limit must not fall back to a default. Relative paths are relative to
//! the file.

use std::path::Path;
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;

use super::failure::Failure;
use super::input;
use crate::act::policy::Policy;
use crate::inventory::claims_file;
use crate::launch::Launcher;
use crate::model::claims::Claims;
use crate::model::probe::Probe;
use crate::model::span::TextError;
use crate::plan::AUDIT_PROBES;
use crate::probe::catalog;
use crate::probe::catalog::Catalog;

/// Nodes that work at the same time where nothing is said. The tools run on
/// the nodes; here each costs a process and its output.
const PARALLEL: u32 = 64;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    claims: PathBuf,
    run_dir: Option<PathBuf>,
    #[serde(default)]
    thresholds: Vec<PathBuf>,
    platform: Option<String>,
    launcher: Option<Spanned<LauncherSection>>,
    #[serde(default)]
    probes: ProbesSection,
    policy: Option<Spanned<Policy>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LauncherSection {
    kind: LauncherKind,
    template: Option<Spanned<Vec<String>>>,
    parallel: Option<Spanned<u32>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LauncherKind {
    Local,
    Command,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ProbesSection {
    run: Option<Vec<Spanned<String>>>,
    dir: Option<PathBuf>,
    readings: Option<Spanned<u32>>,
}

/// A configuration that was read and checked.
#[derive(Debug)]
pub struct Config {
    /// The file it was read from.
    pub path: PathBuf,
    /// The claims file.
    pub claims: PathBuf,
    /// Where run folders go.
    pub run_dir: PathBuf,
    /// A site's own threshold files.
    pub thresholds: Vec<PathBuf>,
    /// The platform of all domains, over claims and devices.
    pub platform: Option<String>,
    /// How nodes are reached.
    pub launcher: Launcher,
    /// How many nodes work at the same time.
    pub parallel: usize,
    /// The probes to run, in order.
    pub probes: Vec<Probe>,
    /// All probes in force.
    pub catalog: Catalog,
    /// How often each measuring probe runs on a node.
    pub readings: u32,
    /// What may be proposed.
    pub policy: Policy,
}

/// Opens and checks the configuration that the command line names.
pub fn open(path: Option<&Path>) -> Result<Config, Failure> {
    let Some(path) = path else {
        return Err(Failure::usage(
            "no configuration: expected --config FILE or FABRICGATE_CONFIG",
        ));
    };
    let name = path.display().to_string();
    let text = read_text(path)?;
    let base = path.parent().unwrap_or(Path::new(""));
    parse(&name, &text, path, base)
}

/// The text of a file that a person wrote.
pub fn read_text(path: &Path) -> Result<String, Failure> {
    let bytes = input::read(path).map_err(Failure::environment)?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
        let file = path.display().to_string();
        Failure::usage(TextError::at(&file, &text, at, "not UTF-8 text"))
    })
}

fn parse(name: &str, text: &str, path: &Path, base: &Path) -> Result<Config, Failure> {
    let read: File =
        toml::from_str(text).map_err(|e| Failure::usage(TextError::toml(name, text, &e)))?;
    let wrong =
        |offset: usize, message: String| Failure::usage(TextError::at(name, text, offset, message));
    let (launcher, parallel) = match read.launcher {
        None => (Launcher::Local, PARALLEL),
        Some(section) => {
            let at = section.span().start;
            let section = section.into_inner();
            let parallel = match &section.parallel {
                Some(n) if *n.get_ref() == 0 => {
                    return Err(wrong(n.span().start, "parallel 0, expected 1 or more".to_owned()));
                }
                Some(n) => *n.get_ref(),
                None => PARALLEL,
            };
            match (section.kind, section.template) {
                (LauncherKind::Local, None) => (Launcher::Local, parallel),
                (LauncherKind::Local, Some(template)) => {
                    let message =
                        "template: the local launcher has none, expected kind = \"command\"";
                    return Err(wrong(template.span().start, message.to_owned()));
                }
                (LauncherKind::Command, None) => {
                    let message = "launcher of kind \"command\": expected template = [\"ssh\", \"{node}\"] or the like";
                    return Err(wrong(at, message.to_owned()));
                }
                (LauncherKind::Command, Some(template)) => {
                    let at = template.span().start;
                    let launcher = Launcher::Command { template: template.into_inner() };
                    launcher.check(1).map_err(|error| wrong(at, error.to_string()))?;
                    (launcher, parallel)
                }
            }
        }
    };
    let readings = match &read.probes.readings {
        Some(n) if !(1..=100).contains(n.get_ref()) => {
            let message = format!("readings {}, expected 1 to 100", n.get_ref());
            return Err(wrong(n.span().start, message));
        }
        Some(n) => *n.get_ref(),
        None => 1,
    };
    let catalog = probes_in_force(read.probes.dir.map(|dir| base.join(dir)).as_deref())?;
    let mut probes = Vec::new();
    match &read.probes.run {
        None => {
            let named = AUDIT_PROBES.iter().filter_map(|name| catalog.get(name).cloned());
            probes.extend(named);
        }
        Some(names) if names.is_empty() => {
            return Err(wrong(0, "probes.run is empty: nothing would be measured".to_owned()));
        }
        Some(names) => {
            for name in names {
                let Some(probe) = catalog.get(name.get_ref()) else {
                    let message = format!(
                        "there is no probe {:?}, expected one of: {}",
                        name.get_ref(),
                        catalog.names()
                    );
                    return Err(wrong(name.span().start, message));
                };
                if probes.iter().any(|p: &Probe| p.name == probe.name) {
                    let message = format!("probe {:?} is named twice; see readings", probe.name);
                    return Err(wrong(name.span().start, message));
                }
                probes.push(probe.clone());
            }
        }
    }
    let policy = match read.policy {
        None => Policy::default(),
        Some(policy) => {
            let at = policy.span().start;
            let policy = policy.into_inner();
            if !(0.0..=1.0).contains(&policy.freeze_fleet) {
                let message = format!("freeze_fleet {}, expected 0 to 1", policy.freeze_fleet);
                return Err(wrong(at, message));
            }
            policy
        }
    };
    Ok(Config {
        path: path.to_owned(),
        claims: base.join(read.claims),
        run_dir: base.join(read.run_dir.unwrap_or_else(|| PathBuf::from("runs"))),
        thresholds: read.thresholds.into_iter().map(|file| base.join(file)).collect(),
        platform: read.platform,
        launcher,
        parallel: usize::try_from(parallel).unwrap_or(usize::MAX),
        probes,
        catalog,
        readings,
        policy,
    })
}

/// The built-in probes, and those of a site's folder over them.
pub fn probes_in_force(dir: Option<&Path>) -> Result<Catalog, Failure> {
    let mut catalog = Catalog::built_in();
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
        list().map_err(|error| Failure::Environment(format!("{}: {error}", dir.display())))?;
    for file in files {
        let text = read_text(&file)?;
        let name = file.display().to_string();
        let probe = catalog::parse(&name, &text).map_err(Failure::usage)?;
        // Two files of a site with one name: neither is the one that is meant.
        if let Some(other) = catalog.get(&probe.name)
            && Path::new(&other.origin).parent() == Some(dir)
        {
            let (probe, other) = (&probe.name, &other.origin);
            return Err(Failure::Usage(format!("{name}: probe {probe:?} is also in {other}")));
        }
        catalog.add(probe);
    }
    Ok(catalog)
}

/// Opens and reads a claims file.
pub fn claims(path: &Path) -> Result<Claims, Failure> {
    let text = read_text(path)?;
    claims_file::parse(&path.display().to_string(), &text).map_err(Failure::usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, String> {
        parse("f.toml", text, Path::new("/etc/f.toml"), Path::new("/etc"))
            .map_err(|error| error.to_string())
    }

    fn complaint(text: &str) -> String {
        read(text).expect_err("a bad file")
    }

    #[test]
    fn paths_are_relative_to_the_file_and_defaults_are_small() {
        let config = read("claims = \"c.toml\"\n").expect("good");
        assert_eq!(config.claims, Path::new("/etc/c.toml"));
        assert_eq!(config.run_dir, Path::new("/etc/runs"));
        assert_eq!((config.launcher, config.readings), (Launcher::Local, 1));
        assert_eq!(config.probes.len(), AUDIT_PROBES.len());
        assert_eq!(config.policy, Policy::default());
    }

    #[test]
    fn mistakes_are_named_with_line_and_column() {
        let with = |rest: &str| complaint(&format!("claims = \"c\"\n{rest}"));
        assert!(with("claim = 1\n").starts_with("f.toml:2:1: unknown field `claim`"));
        assert!(with("[policy]\nper_domian = 3\n").starts_with("f.toml:3:1: unknown field"));
        assert!(with("[launcher]\nkind = \"slurm\"\n").starts_with("f.toml:3:8: unknown variant"));
        assert!(with("[launcher]\nkind = \"command\"\n").contains("expected template"));
        assert!(
            with("[launcher]\nkind = \"command\"\ntemplate = [\"x\"]\n").starts_with("f.toml:4:12")
        );
        assert!(with("[launcher]\nkind = \"local\"\nparallel = 0\n").contains("parallel 0"));
        let said = with("[probes]\nrun = [\"nvbandwith\"]\n");
        assert!(said.starts_with("f.toml:3:8: there is no probe \"nvbandwith\""), "{said}");
        assert!(with("[probes]\nrun = []\n").contains("nothing would be measured"));
        assert!(with("[probes]\nreadings = 0\n").contains("readings 0"));
        assert!(with("[policy]\nfreeze_fleet = 5\n").contains("0 to 1"));
    }
}
