//! Fuzz targets for inputs other than outputs of tools: almost-JSON, host lists, objects of
//! Kubernetes, and every file that a user or a site writes for fabricgate.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use engine::thresholds::{builtin, file, overlay};
use fabricgate::config;
use model::hostlist;
use model::probe::{ProbeScope, placeholder};
use model::source_report::SourceReport;
use model::text_error::TextError;
use readers::claims::claims_file;
use readers::claims::kubernetes::{compute_domains, nodes, topologies};
use readers::outputs::lenient_json;
use readers::outputs::text::decode;
use readers::probe_catalog;
use serde_json::Value;
use sim::scenario::Scenario;

use super::corpus::corpus;
use super::dice::Dice;
use super::fuzz;
use super::mutation::mutate;

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// The same value with every number as a float: 1 and 1.0 are one number.
fn as_floats(value: &Value) -> Value {
    match value {
        Value::Number(number) => number.as_f64().into(),
        Value::Array(items) => items.iter().map(as_floats).collect(),
        Value::Object(map) => map.iter().map(|(k, v)| (k.clone(), as_floats(v))).collect(),
        other => other.clone(),
    }
}

#[test]
fn broken_json_is_read_as_far_as_it_goes() {
    const TOKENS: &[&str] =
        &["{", "}", "[", "]", ",", ":", "\"a\"", "\\u00", "inf", "-nan", "true", "1e5", "\\"];
    fn own() -> &'static [Vec<u8>] {
        &corpus().dcgm
    }
    let make = |dice: &mut Dice| mutate(dice, own(), &corpus().any, TOKENS);
    fuzz("json", 1000, make, almost_json);
}

/// The lenient JSON reader, compared with serde_json.
pub(super) fn almost_json(bytes: &[u8]) {
    let text = decode(bytes);
    let Some(found) = lenient_json::find_document_where(&text, |_| true) else { return };
    let last = u32::try_from(text.lines().count() + 1).expect("a small text");
    assert!(found.line <= last && depth(&found.value) <= 64);
    if let Some(stop) = &found.stopped {
        assert!(found.line <= stop.line && stop.line <= last, "{stop:?}");
    }
    // An object that serde_json reads is read as the same object. Both take the last of two equal
    // keys.
    if let Ok(strict) = serde_json::from_str::<Value>(&text)
        && strict.is_object()
        && depth(&strict) < 64
    {
        assert_eq!(as_floats(&found.value), as_floats(&strict));
        assert!(found.stopped.is_none() && !found.not_finite);
    }
}

pub(super) fn host_list_seeds() -> Vec<Vec<u8>> {
    const LISTS: &[&str] = &[
        "node[0001-0018]",
        "a[1-3,5],b7,c",
        "r[1-2]n[08-11]-ib",
        "x,y z\nx",
        "n[9-12],n[009-012]",
        "rack1-node[1-20,25,30-31].example.org",
    ];
    LISTS.iter().map(|list| list.as_bytes().to_vec()).collect()
}

#[test]
fn host_lists_fold_back_to_the_same_names() {
    const TOKENS: &[&str] =
        &["[", "]", ",", "-", "[1-9]", "[00-99]", " ", "node", "0", "[1-", "[3-1]", "[a]", "\t"];
    let own = host_list_seeds();
    let make = move |dice: &mut Dice| mutate(dice, &own, &own, TOKENS);
    fuzz("hostlist", 1500, make, host_lists);
}

/// A host list, parsed and printed again.
pub(super) fn host_lists(bytes: &[u8]) {
    let list = String::from_utf8_lossy(bytes);
    match hostlist::expand(&list) {
        Ok(names) => {
            assert!(!names.is_empty() && names.len() <= hostlist::MAX_NAMES);
            let folded = hostlist::fold(names.iter().map(String::as_str));
            let again = hostlist::expand(&folded)
                .unwrap_or_else(|error| panic!("{folded:?} cannot be read: {error}"));
            let once: BTreeSet<&String> = names.iter().collect();
            assert_eq!(again.iter().collect::<BTreeSet<_>>(), once);
            assert_eq!(again.len(), once.len(), "{folded:?} names a node twice");
        }
        Err(error) => assert!(error.offset <= list.len() && !error.to_string().is_empty()),
    }
}

/// Checks that an error points into its text.
pub(super) fn points_into(text: &str, error: &TextError) {
    let lines = text.matches('\n').count() + 1;
    assert!((1..=lines).contains(&error.line) && 1 <= error.column, "{error}");
    let shown = error.to_string();
    assert!(shown.starts_with("f.toml:") && !shown.trim_end().contains('\n'), "{shown:?}");
}

pub(super) fn texts(folder: &str) -> Vec<Vec<u8>> {
    // `ci/fuzz` compiles this file in a separate package.
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let root = above.find(|it| it.join("thresholds").is_dir()).expect("the repository");
    let folder = root.join(folder);
    let mut paths: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "{}", folder.display());
    paths.iter().map(|path| fs::read(path).expect("a readable file")).collect()
}

const TOML: &[&str] = &[
    "=",
    "[",
    "]",
    "[[",
    "]]",
    "\"",
    "'''",
    "#",
    "\n",
    "true",
    "1979-05-27T07:32:00Z",
    "0.5",
    "-1",
    "nan",
    "inf",
    "{",
    "}",
    "a.b.c",
    "\"\\u0000\"",
    "[]",
    "\"n[1-9]\"",
];

/// Invariants of every source, for any input.
pub(super) fn speaks_sense(report: &SourceReport) {
    for problem in &report.problems {
        assert!(!problem.message.trim().is_empty(), "a problem without words");
    }
    for group in &report.groups {
        assert!(
            !group.scheme.is_empty() && group.nodes.iter().all(|node| !node.as_str().is_empty())
        );
        let once: BTreeSet<_> = group.nodes.iter().collect();
        assert_eq!(once.len(), group.nodes.len(), "a node twice in {}", group.name);
    }
    let shown = serde_json::to_string(report).expect("it can be written down");
    assert!(!shown.chars().any(char::is_control));
}

#[test]
fn kubernetes_objects_never_break_their_reader() {
    const TOKENS: &[&str] = &[
        "\"kind\":\"Node\"",
        "\"kind\":\"NodeList\"",
        "\"kind\":\"ComputeDomain\"",
        "\"items\":[",
        "\"items\":null",
        "\"metadata\":{\"name\":\"n9\"",
        "\"labels\":{",
        "\"nvidia.com/gpu.clique\":\"00000000-0000-0000-0000-000000000000.32766\"",
        "\"fabric.topograph.run/tier-4294967296\":\"s\"",
        "\"nodeLabel\":\"kubernetes.io/hostname\"",
        "\"cliqueID\":\"\"",
        "\"continue\":\"x\"",
        "apiVersion: v1\nkind: Node\nmetadata: {name: n}\n---\n",
        "NAME LABELS\n",
        "&a [*a, *a]",
        "\u{7}",
        "null",
    ];
    let own = kubernetes_seeds();
    let make = move |dice: &mut Dice| mutate(dice, &own, &own, TOKENS);
    fuzz("kubernetes", 1500, make, kubernetes_objects);
}

pub(super) fn kubernetes_seeds() -> Vec<Vec<u8>> {
    let clique = "11111111-2222-3333-4444-555555555555.7";
    let node = |name: &str| {
        format!(
            r#"{{"apiVersion":"v1","kind":"Node","metadata":{{"name":"{name}","labels":{{
            "nvidia.com/gpu.clique":"{clique}","nvidia.com/gpu.count":"4","x/rack":"r1",
            "accelerator.topograph.run/domain":"{clique}","fabric.topograph.run/tier-0":"l1"}},
            "annotations":{{"topology.slinky.slurm.net/spec":"topo-switch:s1,topo-block:b1",
            "hami.io/node-nvidia-score":"[]"}}}},"spec":{{"taints":[{{"key":"a","effect":"b"}}]}},
            "status":{{"conditions":[{{"type":"Ready","status":"True"}}]}}}}"#
        )
    };
    let list = |items: &[String]| {
        format!("{{\"apiVersion\":\"v1\",\"items\":[{}],\"kind\":\"List\"}}", items.join(","))
    };
    let domain = format!(
        r#"{{"apiVersion":"resource.nvidia.com/v1beta1","kind":"ComputeDomain","metadata":
        {{"name":"c","namespace":"n","uid":"u"}},"spec":{{"numNodes":2}},"status":{{"status":"Ready",
        "nodes":[{{"name":"n1","cliqueID":"{clique}","index":0,"status":"Ready"}},{{"name":"n2","cliqueID":""}}]}}}}"#
    );
    let topology =
        r#"{"apiVersion":"kueue.x-k8s.io/v1beta2","kind":"Topology","metadata":{"name":"t"},
        "spec":{"levels":[{"nodeLabel":"x/rack"},{"nodeLabel":"kubernetes.io/hostname"}]}}"#
            .to_owned();
    [
        list(&[node("n1"), node("n2")]),
        list(&[domain, topology, node("n1")]),
        format!("apiVersion: v1\nkind: Node\nmetadata:\n  name: y1\n  labels:\n    nvidia.com/gpu.clique: {clique}\n"),
        "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnodes:\n- role: worker\n  labels: {a: b}\n".to_owned(),
        format!("NAME STATUS LABELS\nn1 Ready a=b,nvidia.com/gpu.clique={clique}\n"),
        format!("NAME   VERSION   GPU.CLIQUE\nn1               {clique}\nn\u{e9}2    v\n"),
    ]
    .map(String::into_bytes)
    .to_vec()
}

/// Objects of Kubernetes, by each of their readers.
pub(super) fn kubernetes_objects(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let nodes = nodes::read("n.json", &text);
    speaks_sense(&nodes);
    let known: BTreeSet<_> = nodes.nodes.keys().collect();
    assert!(nodes.groups.iter().flat_map(|g| &g.nodes).all(|node| known.contains(node)));
    if !nodes.nodes.is_empty() {
        assert!(nodes::recognises(&text), "read, and not recognised");
    }
    let domains = compute_domains::read("c.json", &text);
    speaks_sense(&domains);
    assert!(domains.groups.is_empty() || compute_domains::recognises(&text));
    let topologies = topologies::read("t.json", &text);
    speaks_sense(&topologies);
    assert!(topologies.groups.is_empty() || topologies::recognises(&text));
}

pub(super) fn claims_seeds() -> Vec<Vec<u8>> {
    vec![
        b"[[domain]]\nname = \"r1\"\nnodes = \"n[01-04]\"\nplatform = \"hgx-h100\"\n\
          gpus_per_node = 8\n"
            .to_vec(),
        b"[[domain]]\nname = \"a\"\nnodes = [\"x1\", \"x[2-3]\"]\nnic = \"ndr-400\"\n\
          [[domain]]\nname = \"b\"\nnodes = \"y\"\n"
            .to_vec(),
    ]
}

#[test]
fn claims_are_read_whole_or_refused_at_a_place() {
    let own = claims_seeds();
    let make = move |dice: &mut Dice| mutate(dice, &own, &own, TOML);
    fuzz("claims", 800, make, claims_files);
}

pub(super) fn claims_files(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match claims_file::parse("f.toml", &text) {
        Ok(claims) => {
            let nodes: Vec<_> = claims.domains.iter().flat_map(|d| &d.nodes).collect();
            let once: BTreeSet<_> = nodes.iter().collect();
            assert!(!nodes.is_empty() && once.len() == nodes.len());
            assert!(claims.domains.iter().all(|d| !d.nodes.is_empty()));
        }
        Err(error) => points_into(&text, &error),
    }
}

pub(super) fn threshold_seeds() -> Vec<Vec<u8>> {
    builtin::BUILTIN_FILES.iter().map(|(_, text)| text.as_bytes().to_vec()).collect()
}

#[test]
fn threshold_files_are_read_whole_or_refused_with_every_place() {
    let own = threshold_seeds();
    let make = move |dice: &mut Dice| mutate(dice, &own, &own, TOML);
    fuzz("thresholds", 150, make, threshold_files);
}

/// A file of thresholds, merged into the built-in ones.
pub(super) fn threshold_files(bytes: &[u8]) {
    let text = match file::decode_text(bytes, "f.toml") {
        Ok(text) => text,
        Err(fault) => {
            assert!(1 <= fault.line && !fault.to_string().is_empty());
            return;
        }
    };
    let before = builtin::builtin_catalogue();
    let mut catalogue = before.clone();
    match overlay::apply(&mut catalogue, text, "f.toml") {
        Ok(_) => {
            for expectation in catalogue.platforms.values().flat_map(|p| p.expectations.values()) {
                let numbers = [expectation.value, expectation.floor];
                let good = |n: &f64| n.is_finite() && 0.0 < *n;
                assert!(numbers.iter().flatten().all(good), "{expectation:?}");
                assert!((0.0..1.0).contains(&expectation.tolerance), "{expectation:?}");
            }
        }
        Err(faults) => {
            assert!(!faults.is_empty() && catalogue == *before);
            let lines = u32::try_from(text.matches('\n').count() + 1).expect("a small text");
            assert!(faults.iter().all(|f| (1..=lines).contains(&f.line)), "{faults:?}");
            assert!(faults.iter().all(|f| !f.to_string().is_empty()));
        }
    }
}

#[test]
fn probe_files_are_read_whole_or_refused_at_a_place() {
    let own = texts("probes");
    let make = move |dice: &mut Dice| mutate(dice, &own, &own, TOML);
    fuzz("probes", 400, make, probe_files);
}

pub(super) fn probe_files(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match probe_catalog::parse_probe("f.toml", &text) {
        Ok(probe) => {
            assert!(!probe.argv.is_empty());
            assert!(!probe.command_words().any(|word| word.contains('\0')));
            assert!(0.0 < probe.timeout_s && probe.timeout_s.is_finite());
            assert!(!probe.name.contains(['/', '.']) && !probe.name.is_empty());
            // Every brace is a placeholder with a value.
            for word in probe.command_words() {
                let fill = |word: String, name: &&str| word.replace(name, "");
                let rest = placeholder::ALL.iter().fold(word.clone(), fill);
                assert!(!rest.contains(['{', '}']), "{word:?}");
            }
            let is_two_sided = matches!(probe.scope, ProbeScope::Pair | ProbeScope::Rail);
            assert!(
                is_two_sided
                    || (probe.serve.is_none() && !probe.uses_placeholder(placeholder::PEER))
            );
            assert!(probe.serve.is_some() || !probe.uses_placeholder(placeholder::PORT));
            assert_eq!(probe.reads_itself, probe.uses_placeholder(placeholder::READINGS));
            assert!([0, 1, 2, 4, 5].contains(&probe.stage));
        }
        Err(error) => points_into(&text, &error),
    }
}

/// Together they have every section, and most keys.
pub(super) fn configuration_seeds() -> Vec<Vec<u8>> {
    [
        "claims = \"claims.toml\"\nrun_dir = \"runs\"\nplatform = \"hgx-h100\"\n\
         [launcher]\nkind = \"command\"\ntemplate = [\"ssh\", \"{node}\"]\nparallel = 8\n\
         [probes]\nrun = [\"nvbandwidth\"]\nreadings = 3\n[policy]\nper_domain = 2\n",
        "claims = \"/c.toml\"\nthresholds = [\"t.toml\"]\n[launcher]\nkind = \"local\"\n",
        "[sources]\norder = [\"kubernetes\", \"nodes\"]\ngpus_per_node = 4\nlimit_s = 2.5\n\
         [sources.slurm]\nscontrol = [\"env\", \"scontrol\"]\n\
         [sources.ray]\naddress = \"http://u:p@head:8265\"\n\
         [launcher]\nkind = \"slurm\"\npartition = \"p\"\nbusy = \"reserve\"\nuser = \"ops\"\n\
         drained = \"no-allocate\"\ntime_limit = \"4:00:00\"\noptions = [\"--mem=0\"]\n\
         [sweep]\nmatchings = 3\ncross_leaf = 2\npartners = 4\n\
         [confirm]\nenabled = true\nwait_s = 0\n\
         [policy]\nsoft = \"price\"\nmix = { 16 = 0.6, 8 = 0.4 }\nshadow = [\"lost-links\"]\n\
         again_hours = 4\nagain_days = 7\nprice_ceiling = 1.5\ncertificate_days_burn_in = 30\n\
         [policy.certificate_void]\ndriver = \"major\"\nfirmware = false\n\
         [policy.marks]\nverified = \"ok\"\nextra = false\n\
         [gate]\nstate = \"gate\"\nthrough = \"scontrol\"\nscontrol = [\"scontrol\"]\nkeep_s = 6\n\
         [watch]\ninterval_s = 60\nlisten = \"127.0.0.1:9400\"\naudit_every_h = 24\n\
         [watch.backoff]\nfirst_s = 300\nmost_s = 21600\n\
         [watch.profiles]\nexpired = \"recertify\"\nmissing = \"off\"\n\
         [audit]\nminutes = 20\nshare_of_domain = 0.25\n\
         [history]\nkeep_days = 30\nthin_after_days = 60\nkeep_runs_days = 90\n",
        "run_dir = \"r\"\n[sources.slurmrestd]\naddress = \"unix:/run/s\"\ntoken_file = \"t\"\n\
         [launcher]\nkind = \"sim\"\nscenario = \"s.toml\"\nworkers = false\n\
         [gate]\nthrough = \"slurmrestd\"\nlimit_s = 15\n\
         [burn_in]\nrounds = 4\nhours = 12\nclean_rounds = 2\nsoak_minutes = 10\ndrift = 0.028\n\
         [metrics]\ntextfile = \"f.prom\"\nnodes = 100\n\
         [certificates]\npublic_keys = [\"k.pem\"]\nrequire_signature = true\n\
         [notify]\nsite = \"a\"\nwithin_s = 20\nstands_h = 24\n\
         [[notify.target]]\nname = \"ops\"\nkind = \"slack\"\nurl = \"https://h/x\"\non = [\"failed\"]\n\
         [[notify.target]]\nname = \"am\"\nkind = \"alertmanager\"\nurl_env = \"AM\"\nper_hour = 9\n",
        "[sources.kubernetes]\nkubeconfig = \"k\"\ncontext = \"c\"\n\
         [launcher]\nkind = \"kubernetes\"\nworker = \"/fabricgate\"\n\
         [launcher.kubernetes]\nimage = \"i:1\"\ngpus = \"claim\"\nranks = \"names\"\nshm = \"16Gi\"\n\
         rdma = { \"rdma/hca\" = 8 }\nenv = { NCCL_DEBUG = \"INFO\" }\nhost_network = true\n\
         [[launcher.kubernetes.tolerations]]\nkey = \"k\"\neffect = \"NoSchedule\"\n\
         [policy]\nslinky = \"kubernetes\"\n\
         [gate]\nthrough = \"kubernetes\"\n[gate.kubernetes]\ncontext = \"gate\"\n\
         [watch]\nexpired = \"taint\"\n[watch.lease]\nname = \"l\"\nduration_s = 15\nrenew_s = 5\n",
        "[launcher]\nkind = \"replay\"\nrun = \"runs/r1\"\n[history]\nenabled = false\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

#[test]
fn configurations_are_read_whole_or_refused_with_one_message() {
    let own = configuration_seeds();
    let folder = tempfile::tempdir().expect("a folder");
    for good in &own {
        let path = folder.path().join("f.toml");
        fs::write(&path, good).expect("written");
        config::open(Some(&path)).unwrap_or_else(|error| panic!("a seed is none: {error}"));
    }
    let make = move |dice: &mut Dice| mutate(dice, &own, &own, TOML);
    fuzz("config", 400, make, configuration_files);
}

/// A configuration, as the program opens it.
pub(super) fn configuration_files(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("f.toml");
    fs::write(&path, bytes).expect("written");
    match config::open(Some(&path)) {
        Ok(config) => {
            assert!(
                config.probes.as_ref().is_none_or(|p| !p.is_empty())
                    && 0 < config.parallel
                    && 0 < config.readings
            );
        }
        Err(error) => {
            let shown = error.to_string();
            assert!(shown.contains("f.toml:"), "no place: {shown}");
        }
    }
}

#[test]
fn scenarios_are_read_whole_or_refused_with_one_message() {
    let own = texts("examples");
    let make = move |dice: &mut Dice| mutate(dice, &own, &own, TOML);
    fuzz("scenarios", 300, make, scenario_files);
}

pub(super) fn scenario_files(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Err(error) = Scenario::parse(&text) {
        assert!(!error.to_string().is_empty());
    }
}
