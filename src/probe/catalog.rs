//! Probe files into [`Probe`]s, and the catalog of those in force.
//!
//! Text in, values out; a mistake points at file, line and column. Files are
//! opened by the caller. A site's file replaces the built-in probe of the same
//! name.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use crate::model::parsed::Tool;
use crate::model::probe::Disturbs;
use crate::model::probe::Grain;
use crate::model::probe::Preconditions;
use crate::model::probe::Probe;
use crate::model::probe::ProbeScope;
use crate::model::probe::placeholder::GPUS;
use crate::model::span::TextError;

/// The files of `probes/`.
const BUILT_IN: &[(&str, &str)] = &[
    ("probes/nccl-all-reduce.toml", include_str!("../../probes/nccl-all-reduce.toml")),
    ("probes/nvbandwidth-ce.toml", include_str!("../../probes/nvbandwidth-ce.toml")),
    ("probes/nvbandwidth.toml", include_str!("../../probes/nvbandwidth.toml")),
    ("probes/nvidia-smi-nvlink.toml", include_str!("../../probes/nvidia-smi-nvlink.toml")),
    ("probes/nvidia-smi-q.toml", include_str!("../../probes/nvidia-smi-q.toml")),
    ("probes/nvidia-smi-topo.toml", include_str!("../../probes/nvidia-smi-topo.toml")),
];

/// The longest a probe may be allowed to run: a day is a mistake, not a limit.
const LONGEST_S: f64 = 86_400.0;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Spanned<String>,
    title: String,
    parser: Tool,
    argv: Spanned<Vec<Spanned<String>>>,
    scope: ProbeScope,
    stage: Spanned<u8>,
    #[serde(default)]
    requires: Preconditions,
    cost_s: Spanned<f64>,
    timeout_s: Spanned<f64>,
    disturbs: Disturbs,
}

/// All probes in force, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalog {
    /// The probes.
    pub probes: BTreeMap<String, Probe>,
}

impl Catalog {
    /// The probes that are compiled in.
    pub fn built_in() -> Self {
        let mut catalog = Self::default();
        for (file, text) in BUILT_IN {
            let probe = parse(file, text).expect("a test reads every built-in probe");
            catalog.add(probe);
        }
        catalog
    }

    /// Adds a probe; gives back the one of the same name that it replaces.
    pub fn add(&mut self, probe: Probe) -> Option<Probe> {
        self.probes.insert(probe.name.clone(), probe)
    }

    /// The probe of this name.
    pub fn get(&self, name: &str) -> Option<&Probe> {
        self.probes.get(name)
    }

    /// All names, for messages.
    pub fn names(&self) -> String {
        self.probes.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}

/// Reads the text of a probe file. `file` is its name in messages.
pub fn parse(file: &str, text: &str) -> Result<Probe, TextError> {
    let read: File = toml::from_str(text).map_err(|e| TextError::toml(file, text, &e))?;
    let wrong = |offset: usize, message: String| Err(TextError::at(file, text, offset, message));
    let name = read.name.get_ref();
    // The name becomes part of a file name in the run folder.
    let plain = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    if !plain {
        let message = format!("name {name:?}: expected letters, digits, '-' and '_'");
        return wrong(read.name.span().start, message);
    }
    if read.argv.get_ref().first().is_none_or(|program| program.get_ref().is_empty()) {
        return wrong(read.argv.span().start, "argv: expected at least a program".to_owned());
    }
    for word in read.argv.get_ref() {
        let rest = word.get_ref().replace(GPUS, "");
        if rest.contains(['{', '}']) || rest.contains('\0') {
            let message = format!("argv {:?}: the only placeholder is {GPUS}", word.get_ref());
            return wrong(word.span().start, message);
        }
    }
    if 1 < *read.stage.get_ref() {
        let message =
            format!("stage {}: a probe of one node is of stage 0 or 1", read.stage.get_ref());
        return wrong(read.stage.span().start, message);
    }
    for (key, seconds) in [("cost_s", &read.cost_s), ("timeout_s", &read.timeout_s)] {
        let value = *seconds.get_ref();
        if !(0.0 < value && value <= LONGEST_S) {
            let message = format!("{key} {value}: expected seconds above 0, at most {LONGEST_S}");
            return wrong(seconds.span().start, message);
        }
    }
    if read.timeout_s.get_ref() < read.cost_s.get_ref() {
        let message = "timeout_s is below cost_s: a healthy node would run into it".to_owned();
        return wrong(read.timeout_s.span().start, message);
    }
    Ok(Probe {
        name: read.name.into_inner(),
        title: read.title,
        parser: read.parser,
        argv: read.argv.into_inner().into_iter().map(Spanned::into_inner).collect(),
        serve: None,
        scope: read.scope,
        grain: Grain::Node,
        reads_itself: false,
        stage: read.stage.into_inner(),
        requires: read.requires,
        cost_s: read.cost_s.into_inner(),
        timeout_s: read.timeout_s.into_inner(),
        disturbs: read.disturbs,
        origin: file.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "name = \"x\"\ntitle = \"X\"\nparser = \"nvbandwidth\"\n\
        argv = [\"x\", \"-g\", \"{gpus}\"]\nscope = \"node\"\nstage = 1\ncost_s = 2\ntimeout_s = 5\n\
        disturbs = \"gpus\"\n";

    fn complaint(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from));
        parse("p.toml", &GOOD.replace(from, to)).expect_err("a bad file").to_string()
    }

    #[test]
    fn every_built_in_probe_can_be_read_and_is_called_like_its_file() {
        for (file, text) in BUILT_IN {
            let probe = parse(file, text).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(format!("probes/{}.toml", probe.name), *file);
        }
        assert_eq!(Catalog::built_in().probes.len(), BUILT_IN.len());
    }

    #[test]
    fn every_file_of_the_folder_is_compiled_in() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("probes");
        let files = std::fs::read_dir(folder).expect("the folder is there");
        let toml = files.filter(|f| {
            f.as_ref().is_ok_and(|f| f.path().extension().is_some_and(|e| e == "toml"))
        });
        assert_eq!(toml.count(), BUILT_IN.len());
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        assert!(complaint("stage = 1", "stage = 7").starts_with("p.toml:6:9: stage 7"));
        assert!(complaint("{gpus}", "{nodes}").starts_with("p.toml:4:20: argv"));
        assert!(complaint("timeout_s = 5", "timeout_s = 1").contains("below cost_s"));
        assert!(complaint("timeout_s = 5", "timeout_s = inf").contains("expected seconds"));
        assert!(complaint("timeout_s", "timeout").starts_with("p.toml:8:1: unknown field"));
        assert!(
            complaint("\"nvbandwidth\"", "\"nvbw\"").starts_with("p.toml:3:10: unknown variant")
        );
        assert!(complaint("name = \"x\"", "name = \"../x\"").contains("p.toml:1:8"));
        assert!(complaint("[\"x\", \"-g\", \"{gpus}\"]", "[]").contains("at least a program"));
    }
}
