//! Parses probe files into [`Probe`]s, and holds the catalog of probes in force.
//!
//! Text in, values out; an error has file, line and column. The caller opens the files. A site's
//! file replaces the built-in probe of the same name.

mod validation;

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;
use validation::check_probe_file;

use model::parse_output::Tool;
use model::probe::{
    PairCoverage, Probe, ProbeFallback, ProbeGranularity, ProbeImpact, ProbePreconditions,
    ProbeScope, ProbeServer, ReadySignal, placeholder,
};
use model::renamed_keys::{RenamedKey, find_renamed_keys};
use model::text_error::TextError;

/// The files of `probes/`.
const BUILT_IN: &[(&str, &str)] = &[
    ("probes/collective-domain.toml", include_str!("../../probes/collective-domain.toml")),
    ("probes/collective.toml", include_str!("../../probes/collective.toml")),
    ("probes/copy-domain.toml", include_str!("../../probes/copy-domain.toml")),
    ("probes/copy-lane.toml", include_str!("../../probes/copy-lane.toml")),
    ("probes/copy-pair.toml", include_str!("../../probes/copy-pair.toml")),
    ("probes/copy.toml", include_str!("../../probes/copy.toml")),
    ("probes/ib-read-bw.toml", include_str!("../../probes/ib-read-bw.toml")),
    ("probes/ib-write-bw.toml", include_str!("../../probes/ib-write-bw.toml")),
    ("probes/iperf3.toml", include_str!("../../probes/iperf3.toml")),
    (
        "probes/nccl-all-gather-domain.toml",
        include_str!("../../probes/nccl-all-gather-domain.toml"),
    ),
    (
        "probes/nccl-all-reduce-domain-srun.toml",
        include_str!("../../probes/nccl-all-reduce-domain-srun.toml"),
    ),
    (
        "probes/nccl-all-reduce-domain.toml",
        include_str!("../../probes/nccl-all-reduce-domain.toml"),
    ),
    ("probes/nccl-all-reduce.toml", include_str!("../../probes/nccl-all-reduce.toml")),
    ("probes/nccl-alltoall-domain.toml", include_str!("../../probes/nccl-alltoall-domain.toml")),
    (
        "probes/nccl-reduce-scatter-domain.toml",
        include_str!("../../probes/nccl-reduce-scatter-domain.toml"),
    ),
    ("probes/nccl-sendrecv-domain.toml", include_str!("../../probes/nccl-sendrecv-domain.toml")),
    ("probes/nvbandwidth-ce.toml", include_str!("../../probes/nvbandwidth-ce.toml")),
    ("probes/nvbandwidth-domain.toml", include_str!("../../probes/nvbandwidth-domain.toml")),
    ("probes/nvbandwidth-lane.toml", include_str!("../../probes/nvbandwidth-lane.toml")),
    ("probes/nvbandwidth-pair.toml", include_str!("../../probes/nvbandwidth-pair.toml")),
    ("probes/nvbandwidth.toml", include_str!("../../probes/nvbandwidth.toml")),
    ("probes/nvidia-imex.toml", include_str!("../../probes/nvidia-imex.toml")),
    ("probes/nvidia-smi-nvlink.toml", include_str!("../../probes/nvidia-smi-nvlink.toml")),
    ("probes/nvidia-smi-q.toml", include_str!("../../probes/nvidia-smi-q.toml")),
    ("probes/nvidia-smi-topo.toml", include_str!("../../probes/nvidia-smi-topo.toml")),
    ("probes/nvloom.toml", include_str!("../../probes/nvloom.toml")),
    ("probes/p2p-bandwidth-latency.toml", include_str!("../../probes/p2p-bandwidth-latency.toml")),
    (
        "probes/soak-collective-domain.toml",
        include_str!("../../probes/soak-collective-domain.toml"),
    ),
    ("probes/soak-collective.toml", include_str!("../../probes/soak-collective.toml")),
    ("probes/soak-copy.toml", include_str!("../../probes/soak-copy.toml")),
    ("probes/tcp.toml", include_str!("../../probes/tcp.toml")),
];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProbeFile {
    name: Spanned<String>,
    title: String,
    parser: Tool,
    argv: Spanned<Vec<Spanned<String>>>,
    serve: Option<ServeSection>,
    #[serde(alias = "together")]
    on_all_nodes: Option<Spanned<bool>>,
    #[serde(alias = "otherwise")]
    fallback: Option<FallbackSection>,
    scope: ProbeScope,
    grain: Option<Spanned<ProbeGranularity>>,
    covers: Option<Spanned<PairCoverage>>,
    reads_itself: Option<Spanned<bool>>,
    stage: Spanned<u8>,
    #[serde(default)]
    requires: ProbePreconditions,
    cost_s: Spanned<f64>,
    timeout_s: Spanned<f64>,
    disturbs: ProbeImpact,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FallbackSection {
    parser: Tool,
    argv: Spanned<Vec<Spanned<String>>>,
    #[serde(alias = "together")]
    on_all_nodes: Option<Spanned<bool>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServeSection {
    argv: Spanned<Vec<Spanned<String>>>,
    ready: Spanned<ReadySignal>,
}

/// All probes in force, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProbeCatalog {
    /// The probes, by name.
    pub probes: BTreeMap<String, Probe>,
}

impl ProbeCatalog {
    /// The catalog of built-in probes.
    pub fn built_in() -> Self {
        let mut catalog = Self::default();
        for (file, text) in BUILT_IN {
            let probe = parse_probe(file, text).expect("a test reads every built-in probe");
            catalog.add(probe);
        }
        catalog
    }

    /// Adds a probe; returns the replaced one of the same name.
    pub fn add(&mut self, probe: Probe) -> Option<Probe> {
        self.probes.insert(probe.name.clone(), probe)
    }

    /// The probe of this name.
    pub fn get(&self, name: &str) -> Option<&Probe> {
        self.probes.get(name)
    }

    /// All names, for messages.
    pub fn joined_names(&self) -> String {
        self.probes.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}

/// Keys of probe files that have another name now.
const RENAMED_KEYS: &[RenamedKey] = &[
    RenamedKey { tables: &[], old: "together", new: "on_all_nodes" },
    RenamedKey { tables: &[], old: "otherwise", new: "fallback" },
    RenamedKey { tables: &["otherwise"], old: "together", new: "on_all_nodes" },
    RenamedKey { tables: &["fallback"], old: "together", new: "on_all_nodes" },
];

/// A warning for each key of a probe file, and for each option of a native probe, that has another
/// name now.
pub fn find_renamed_probe_keys(file: &str, text: &str) -> Vec<TextError> {
    let mut warnings = find_renamed_keys(file, text, RENAMED_KEYS);
    if let Ok(read) = toml::from_str::<ProbeFile>(text) {
        let commands = [Some(&read.argv), read.fallback.as_ref().map(|it| &it.argv)];
        let native =
            commands.into_iter().flatten().map(Spanned::get_ref).filter(|argv| {
                argv.first().is_some_and(|word| word.get_ref() == placeholder::SELF)
            });
        for word in native.flatten().filter(|word| word.get_ref() == "--together") {
            let message = "\"--together\" is the old name of \"--on-all-nodes\"; rename it";
            warnings.push(TextError::new(file, text, word.span().start, message));
        }
    }
    warnings
}

/// Parses a probe file. `file` is its name in messages.
pub fn parse_probe(file: &str, text: &str) -> Result<Probe, TextError> {
    let read: ProbeFile = toml::from_str(text).map_err(|e| TextError::from_toml(file, text, &e))?;
    check_probe_file(&read)
        .map_err(|(offset, message)| TextError::new(file, text, offset, message))?;
    Ok(Probe {
        name: read.name.into_inner(),
        title: read.title,
        parser: read.parser,
        argv: argv_strings(read.argv),
        serve: read.serve.map(|s| ProbeServer {
            argv: argv_strings(s.argv).into(),
            ready: s.ready.into_inner(),
        }),
        on_all_nodes: read.on_all_nodes.is_some_and(Spanned::into_inner),
        fallback: read.fallback.map(|it| ProbeFallback {
            parser: it.parser,
            argv: argv_strings(it.argv).into(),
            on_all_nodes: it.on_all_nodes.is_some_and(Spanned::into_inner),
        }),
        scope: read.scope,
        grain: read.grain.map(Spanned::into_inner).unwrap_or_default(),
        covers: read.covers.map(Spanned::into_inner).unwrap_or_default(),
        reads_itself: read.reads_itself.map(Spanned::into_inner).unwrap_or_default(),
        stage: read.stage.into_inner(),
        requires: read.requires,
        cost_s: read.cost_s.into_inner(),
        timeout_s: read.timeout_s.into_inner(),
        disturbs: read.disturbs,
        origin: file.to_owned(),
    })
}

fn argv_strings(argv: Spanned<Vec<Spanned<String>>>) -> Vec<String> {
    argv.into_inner().into_iter().map(Spanned::into_inner).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "name = \"x\"\ntitle = \"X\"\nparser = \"nvbandwidth\"\n\
        argv = [\"x\", \"-g\", \"{gpus}\"]\nscope = \"node\"\nstage = 1\ncost_s = 2\ntimeout_s = 5\n\
        disturbs = \"gpus\"\n";

    fn complaint(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from));
        parse_probe("p.toml", &GOOD.replace(from, to)).expect_err("a bad file").to_string()
    }

    #[test]
    fn every_built_in_probe_is_read_and_has_the_name_of_its_file() {
        for (file, text) in BUILT_IN {
            let probe = parse_probe(file, text).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(format!("probes/{}.toml", probe.name), *file);
        }
        assert_eq!(ProbeCatalog::built_in().probes.len(), BUILT_IN.len());
    }

    #[test]
    fn every_file_of_the_folder_is_compiled_in() {
        let folder =
            std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("probes");
        let files = std::fs::read_dir(folder).expect("the folder of probes");
        let toml = files.filter(|f| {
            f.as_ref().is_ok_and(|f| f.path().extension().is_some_and(|e| e == "toml"))
        });
        assert_eq!(toml.count(), BUILT_IN.len());
    }

    #[test]
    fn mistakes_are_reported_with_their_position() {
        assert!(complaint("stage = 1", "stage = 7").starts_with("p.toml:6:9: stage 7"));
        assert!(complaint("{gpus}", "{nodes}").starts_with("p.toml:4:20: argv"));
        assert!(complaint("{gpus}", "{gpu}").contains("the placeholders are {gpus}"));
        assert!(complaint("timeout_s = 5", "timeout_s = 1").contains("below cost_s"));
        assert!(complaint("timeout_s = 5", "timeout_s = inf").contains("expected seconds"));
        assert!(complaint("timeout_s", "timeout").starts_with("p.toml:8:1: unknown field"));
        assert!(
            complaint("\"nvbandwidth\"", "\"nvbw\"").starts_with("p.toml:3:10: unknown variant")
        );
        assert!(complaint("name = \"x\"", "name = \"../x\"").contains("p.toml:1:8"));
        assert!(complaint("[\"x\", \"-g\", \"{gpus}\"]", "[]").contains("at least a program"));
    }

    const PAIR: &str = "name = \"x\"\ntitle = \"X\"\nparser = \"nvbandwidth\"\n\
        argv = [\"x\", \"{hosts}\"]\nscope = \"pair\"\nstage = 2\ncost_s = 2\ntimeout_s = 5\n\
        disturbs = \"gpus\"\n[fallback]\nparser = \"fabricgate-tcp\"\n\
        argv = [\"{self}\", \"{node}\"]\non_all_nodes = true\n";

    #[test]
    fn a_fallback_is_read_and_its_mistakes_are_reported() {
        let probe = parse_probe("p.toml", PAIR).unwrap_or_else(|error| panic!("{error}"));
        let fallback = probe.fallback.clone().expect("it has one");
        assert!(!probe.on_all_nodes && fallback.on_all_nodes);
        assert_eq!(fallback.argv[..], ["{self}", "{node}"]);
        let own = probe.into_fallback();
        assert_eq!((own.argv, own.parser), (fallback.argv.to_vec(), Tool::FabricgateTcp));
        assert!(own.on_all_nodes && own.fallback.is_none());

        let error_of = |from: &str, to: &str| {
            assert!(PAIR.contains(from), "{from}");
            parse_probe("p.toml", &PAIR.replace(from, to)).expect_err("a bad file").to_string()
        };
        for (from, to, expected) in [
            (
                "{node}",
                "{readings}",
                "p.toml:12:19: fallback.argv \"{readings}\": {readings} is not available",
            ),
            ("{node}", "{peer}", "p.toml:12:19: fallback.argv \"{peer}\": {peer} is not available"),
            ("{node}", "{port}", "p.toml:12:19: fallback.argv \"{port}\": {port} is not available"),
            ("{node}", "{rail}", "p.toml:12:19: fallback.argv \"{rail}\": {rail} is not available"),
            ("[\"{self}\", \"{node}\"]", "[]", "p.toml:12:8: fallback.argv: expected at least"),
            ("\"pair\"", "\"rail\"", "p.toml:13:16: on_all_nodes: nodes take part in"),
            ("\"fabricgate-tcp\"", "\"tpc\"", "p.toml:11:10: unknown variant"),
            ("on_all_nodes = true", "to = true", "p.toml:13:1: unknown field"),
            (
                "\"{hosts}\"]",
                "\"{readings}\"]\nreads_itself = true",
                "p.toml:13:8: fallback: it takes",
            ),
            (
                "\"{hosts}\"]",
                "\"{lane}\"]\ngrain = \"gpu\"",
                "p.toml:13:8: grain \"gpu\": fallback",
            ),
        ] {
            let error = error_of(from, to);
            assert!(error.starts_with(expected), "{to}: {error}");
        }
        let alone = PAIR.replace("on_all_nodes = true\n", "").replace("{node}", "{peer}");
        assert!(parse_probe("p.toml", &alone).is_ok(), "one node alone may know the other's name");
    }

    #[test]
    fn a_multi_node_command_has_neither_a_server_nor_a_peer() {
        let on_all_nodes = PAIR.replace("stage = 2", "stage = 2\non_all_nodes = true");
        assert!(parse_probe("p.toml", &on_all_nodes).expect("good").on_all_nodes);
        let error = |text: &str| parse_probe("p.toml", text).expect_err("a bad file").to_string();
        let peer = error(&on_all_nodes.replace("{hosts}", "{peer_address}"));
        assert!(peer.contains("{peer_address} is not available in this command"), "{peer}");
        let serve = "[serve]\nargv = [\"x\"]\nready = \"line\"\n";
        let serves = error(&format!("{on_all_nodes}{serve}"));
        assert!(serves.starts_with("p.toml:7:16: on_all_nodes: every node"), "{serves}");
        let node = complaint("stage = 1", "stage = 1\non_all_nodes = true");
        assert!(node.starts_with("p.toml:7:16: on_all_nodes: nodes take part"), "{node}");
    }

    const RAIL: &str = "name = \"x\"\ntitle = \"X\"\nparser = \"perftest\"\n\
        argv = [\"x\", \"{peer_address}\", \"-p\", \"{port}\"]\nscope = \"rail\"\nstage = 2\ncost_s = 2\n\
        timeout_s = 5\ndisturbs = \"network\"\n[serve]\nargv = [\"x\", \"{port}\"]\nready = \"port\"\n";

    fn of_a_rail(from: &str, to: &str) -> String {
        assert!(RAIL.contains(from));
        parse_probe("p.toml", &RAIL.replace(from, to)).expect_err("a bad file").to_string()
    }

    #[test]
    fn all_settings_of_a_two_node_probe_are_read() {
        let probe = parse_probe("p.toml", RAIL).expect("good");
        let serve = probe.serve.expect("two sides");
        assert_eq!((serve.argv.len(), serve.ready), (2, ReadySignal::Port));
        assert_eq!((probe.scope, probe.covers), (ProbeScope::Rail, PairCoverage::None));
        let pair = GOOD
            .replace("\"node\"", "\"pair\"\ngrain = \"gpu\"\ncovers = \"lane\"")
            .replace("stage = 1", "stage = 5")
            .replace("{gpus}", "{hosts}/{lane}");
        let pair = format!("{pair}[requires]\nnvlink_across = true\n");
        let probe = parse_probe("p.toml", &pair).unwrap_or_else(|error| panic!("{error}: {pair}"));
        assert_eq!((probe.grain, probe.covers), (ProbeGranularity::Gpu, PairCoverage::Lane));
        assert!(probe.requires.nvlink_across && probe.serve.is_none());
    }

    #[test]
    fn the_old_names_of_keys_are_read_with_a_warning() {
        let old = PAIR
            .replace("[fallback]", "[otherwise]")
            .replace("on_all_nodes = true", "together = true");
        assert_eq!(parse_probe("p.toml", &old), parse_probe("p.toml", PAIR));
        let warnings = find_renamed_probe_keys("p.toml", &old);
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(find_renamed_probe_keys("p.toml", PAIR).is_empty());
        let old = PAIR.replace("[\"{self}\", ", "[\"{self}\", \"--together\", ");
        let warnings = find_renamed_probe_keys("p.toml", &old);
        let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
        assert!(warning.to_string().starts_with("p.toml:12:19: \"--together\""), "{warning}");
    }

    #[test]
    fn mistakes_of_two_sided_probes_are_reported_with_their_position() {
        let error = of_a_rail("[\"x\", \"{port}\"]", "[\"x\"]");
        assert!(error.starts_with("p.toml:11:8: serve.argv does not contain {port}"), "{error}");
        let error = of_a_rail("ready = \"port\"", "ready = \"line\"");
        assert!(error.contains("the command chooses the port"), "{error}");
        let error = of_a_rail("[\"x\", \"{port}\"]", "[\"x\", \"{lane}\"]");
        assert!(
            error.starts_with("p.toml:11:14: serve.argv \"{lane}\": {lane} is not available"),
            "{error}"
        );
        let error = of_a_rail("[serve]\nargv = [\"x\", \"{port}\"]\nready = \"port\"\n", "");
        assert!(
            error.starts_with("p.toml:4:38: argv \"{port}\": {port} needs a [serve]"),
            "{error}"
        );
        assert!(of_a_rail("stage = 2", "stage = 4").contains("belongs to stage 2, 5"));
        assert!(of_a_rail("stage = 2", "stage = 3").starts_with("p.toml:6:9: stage 3"));
        assert!(of_a_rail("ready = \"port\"", "").contains("missing field `ready`"));
        assert!(of_a_rail("stage = 2", "stage = 2\ncovers = \"all\"").contains("covers \"all\""));
        assert!(of_a_rail("stage = 2", "stage = 2\ngrain = \"gpu\"").contains("has no lanes"));
        let error = of_a_rail("stage = 2", "stage = 2\nreads_itself = true");
        assert!(error.starts_with("p.toml:7:16: reads_itself: argv does not contain"), "{error}");
        assert!(of_a_rail("{peer_address}", "{readings}").contains("needs reads_itself"));
        let error = complaint("disturbs", "serve = { argv = [\"x\"], ready = \"port\" }\ndisturbs");
        assert!(error.contains("has no second node"), "{error}");
    }
}
