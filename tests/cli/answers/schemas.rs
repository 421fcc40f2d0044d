//! Printed and stored documents, checked against the published schemas by an independent
//! validator.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use boon::{Compiler, SchemaIndex, Schemas};
use serde_json::Value;

use super::{fabricgate, root, stderr};

/// Formats that no command below writes: their probes need hardware, their documents a cluster,
/// or thousands of sweeps.
const ELSEWHERE: &[&str] = &["fabricgate.fabric/1", "fabricgate.tcp/1", "fabricgate.topology/1"];

/// Two nodes that a real controller reported, one of them with a GPU that lost links.
const RACK: &str = "title = \"a rack\"\nseed = 7\n[noise]\nsigma = 0.002\n[[domain]]\n\
    name = \"rack\"\nnodes = \"node[0001-0002]\"\nplatform = \"gb200-nvl72\"\n[[fault]]\n\
    kind = \"lost-links\"\ngpu = \"node0002:1\"\ncount = 4\n";

/// The published schemas, compiled, and those that were used.
struct Held {
    schemas: Schemas,
    by_format: BTreeMap<String, SchemaIndex>,
    seen: BTreeSet<String>,
}

impl Held {
    fn new() -> Self {
        let (mut compiler, mut schemas) = (Compiler::new(), Schemas::new());
        let mut by_format = BTreeMap::new();
        for entry in fs::read_dir(root().join("reports/schema")).expect("schemas") {
            let path = entry.expect("a file").path();
            let text = fs::read_to_string(&path).expect("text");
            let schema: Value = serde_json::from_str(&text).expect("JSON");
            let format = schema["properties"]["format"]["const"].as_str().map(str::to_owned);
            let name = format!("file://{}", path.display());
            compiler.add_resource(&name, schema).expect("a schema");
            let index = compiler.compile(&name, &mut schemas).expect("a schema that compiles");
            if let Some(format) = format {
                assert!(by_format.insert(format, index).is_none(), "{name}: two of one format");
            }
        }
        Self { schemas, by_format, seen: BTreeSet::new() }
    }

    fn value(&mut self, value: &Value, whence: &str) {
        let Some(format) = value["format"].as_str().filter(|it| it.starts_with("fabricgate."))
        else {
            return;
        };
        let index = self.by_format.get(format).unwrap_or_else(|| panic!("{whence}: {format}"));
        if let Err(error) = self.schemas.validate(value, *index) {
            panic!("{whence} does not match its schema: {error:#}");
        }
        self.seen.insert(format.to_owned());
    }

    /// One document, or one a line.
    fn text(&mut self, text: &str, whence: &str) {
        match serde_json::from_str::<Value>(text) {
            Ok(value) => self.value(&value, whence),
            Err(_) => {
                for value in text.lines().filter_map(|line| serde_json::from_str(line).ok()) {
                    self.value(&value, whence);
                }
            }
        }
    }

    /// Every JSON file below a folder, regardless of its name.
    fn folder(&mut self, folder: &Path) {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                self.folder(&path);
            } else if let Ok(text) = fs::read_to_string(&path)
                && text.trim_start().starts_with('{')
            {
                self.text(&text, &path.display().to_string());
            }
        }
    }
}

struct Site {
    dir: tempfile::TempDir,
    held: Held,
}

impl Site {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let answer = root().join("tests/recorded/slurm/24.11-scontrol-show-node-2.json");
        let config = format!(
            "run_dir = \"runs\"\n[launcher]\nkind = \"sim\"\nscenario = \"rack.toml\"\n[probes]\n\
             run = [\"nvidia-smi-q\", \"copy\", \"copy-lane\", \"collective\"]\n[confirm]\n\
             wait_s = 0\n[policy]\nsimulated = true\n[burn_in]\nsoak = [\"soak-copy\"]\n\
             soak_minutes = 1\n[certificates]\nkey = \"key.pem\"\n[gate]\nstate = \"gate\"\n\
             settle_s = 0.1\nscontrol = [\"sh\", \"-c\", \"cat {}\"]\n[watch]\ninterval_s = 60\n\
             [history]\nenabled = true\n[notify]\n[[notify.target]]\nname = \"ops\"\n\
             kind = \"generic\"\nurl = \"http://127.0.0.1:9/x\"\ntimeout_s = 0.2\nattempts = 1\n",
            answer.display()
        );
        fs::write(dir.path().join("rack.toml"), RACK).expect("written");
        fs::write(dir.path().join("fabricgate.toml"), config).expect("written");
        Self { dir, held: Held::new() }
    }

    /// Runs a command with `--json`, checks its output against the schema, and returns the first
    /// document.
    fn checked(&mut self, words: &[&str]) -> Value {
        let mut command = fabricgate(words);
        command.arg("--json").current_dir(self.dir.path());
        command.env("FABRICGATE_CONFIG", self.dir.path().join("fabricgate.toml"));
        let output = command.output().expect("fabricgate runs");
        let text = String::from_utf8(output.stdout.clone()).expect("text");
        let first = serde_json::Deserializer::from_str(&text).into_iter::<Value>().next();
        let Some(Ok(first)) = first else { panic!("{words:?}: {text}{}", stderr(&output)) };
        assert!(first["format"].is_string(), "{words:?}: {text}");
        self.held.text(&text, &words.join(" "));
        first
    }

    /// The run folder that a document names.
    fn run_of(&self, document: &Value) -> String {
        format!("runs/{}", document["run"]["id"].as_str().expect("an id"))
    }
}

#[test]
fn every_document_keeps_to_its_published_schema() {
    let mut site = Site::new();
    let path = site.dir.path().to_owned();
    let keygen = fabricgate(&["certificate", "keygen", "key.pem"]).current_dir(&path).output();
    assert!(keygen.expect("fabricgate runs").status.success());
    // The gate's actions and journal; a scheduler that never shows a change leaves actions open.
    let first = site.checked(&["recertify", "--all", "--no-progress", "--apply"]);
    let run = site.run_of(&first);
    site.checked(&["gate", "status"]);
    site.checked(&["gate", "log"]);
    site.checked(&["gate", "recover"]);
    site.checked(&["watch", "--once", "--apply"]);
    site.checked(&["watch", "--once"]);
    // Runs, and their reports.
    site.checked(&["recertify", "node0002", "--no-progress"]);
    site.checked(&["burn-in", "--rounds", "2", "--no-progress"]);
    site.checked(&["plan", "burn-in"]);
    site.checked(&["report", &run]);
    site.checked(&["explain", &run, "node0002"]);
    site.checked(&["report", &run, "--bundle", "node0002", "--output", "b.tar.gz"]);
    site.checked(&["certificate", "show", "--run", &run]);
    site.checked(&["certificate", "verify", "node0001", "--run", &run]);
    site.checked(&["history"]);
    site.checked(&["history", "prune", "--older-than", "1"]);
    let shown = site.checked(&["notify", "test", "--dry-run"]);
    site.held.value(&shown["targets"][0]["payload"], "a notice");
    site.checked(&["notify", "test"]);
    // The map, and the files written from it.
    let trusted = "--even-if-simulated";
    site.checked(&["export", &run, trusted, "--to", "map", "--output", "map.json"]);
    for (target, form) in [("map", None), ("ranks", Some("json")), ("nccl-env", Some("json"))] {
        let mut words = vec!["export", &run, trusted, "--to", target];
        words.extend(form.into_iter().flat_map(|form| ["--form", form]));
        let answer = site.checked(&words);
        let content = answer["files"][0]["content"].as_str().expect("its text");
        site.held.text(content, target);
    }
    site.checked(&["place", &run, trusted, "-k", "2", "--node", "node0001"]);
    // Commands that need no run.
    site.checked(&["config", "check"]);
    site.checked(&["config", "keys"]);
    site.checked(&["probes", "list"]);
    fs::write(path.join("probe.toml"), "name = 1\n").expect("written");
    site.checked(&["probes", "check", "probe.toml"]);
    site.checked(&["doctor"]);
    site.checked(&["node", "facts"]);
    let rack = root().join("tests/recorded/rack-lost-link").display().to_string();
    site.checked(&["judge", &rack]);
    let output = format!("{rack}/nodes/node0001/nvbandwidth-1.txt");
    site.checked(&["parse", &output]);
    site.checked(&["claims", &format!("{rack}/claims.toml")]);
    site.checked(&["sim", "record", "rack.toml", "recorded"]);
    let pod = root().join("examples/all-low-alike.toml").display().to_string();
    let swept = site.checked(&["audit", "--sim", &pod, "--no-progress"]);
    let run = site.run_of(&swept);
    site.checked(&["thresholds", "measured", &run]);
    site.checked(&["capacity", "--nodes", "4", "--segment", "2"]);
    // Files that all of these commands left on disk.
    let Site { dir, mut held } = site;
    held.folder(dir.path());
    let mut archive = bundle(&dir.path().join("b.tar.gz"));
    archive.retain(|(name, _)| name.ends_with(".json"));
    assert!(!archive.is_empty());
    for (name, text) in archive {
        held.text(&text, &name);
    }
    let missed: Vec<&String> = held
        .by_format
        .keys()
        .filter(|it| !held.seen.contains(*it) && !ELSEWHERE.contains(&it.as_str()))
        .collect();
    assert!(missed.is_empty(), "nothing was held against the schemas of {missed:?}");
}

/// The files of an archive.
fn bundle(path: &Path) -> Vec<(String, String)> {
    let bytes = fs::read(path).expect("an archive");
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(bytes.as_slice()));
    let entries = archive.entries().expect("entries");
    let file = |entry: std::io::Result<tar::Entry<'_, _>>| {
        let mut entry = entry.expect("an entry");
        let name = entry.path().expect("a name").display().to_string();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut bytes).expect("read");
        (name, String::from_utf8_lossy(&bytes).into_owned())
    };
    entries.map(file).collect()
}
