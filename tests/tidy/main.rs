//! The rules of the code base, as tests: they read the sources. No rule here is a matter of taste; each
//! guards an invariant of ARCHITECTURE.md and its message says which.

mod crates;
mod language;
mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use model::disagreement_class::DisagreementClass;
use model::finding_class::FindingClass;
use model::probe_problem_class::ProbeProblemClass;

/// Folders (or files) that are pure: values in, values out.
const PURE: &[&str] = &[
    "src/model",
    "src/engine/plan",
    "src/readers/outputs",
    "src/engine/thresholds",
    "src/engine/judge",
    "src/engine/policy",
    "src/engine/report",
    "src/control/launch",
    "src/engine/export",
    "src/engine/place",
    "src/readers/probe_catalog.rs",
    "src/readers/probe_catalog",
];

/// Names that a pure folder must not mention: files, sockets, processes, clocks, the environment,
/// anything asynchronous.
const IMPURE: &[&str] = &[
    "std::fs",
    "std::net",
    "std::env",
    "std::process",
    "std::time",
    "std::thread",
    "tokio",
    "rustix",
    "jiff",
    "async fn",
    ".await",
    "stdin()",
    "stdout()",
    "stderr()",
    "println!",
];

/// Longest file; a longer one should be split.
const LONGEST_FILE: usize = 600;
const MEDIAN_FILE: usize = 300;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// All files below `folder` with this extension, in order; a file is itself.
fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if root().join(folder).is_file() {
        return vec![root().join(folder)];
    }
    // A rule about a missing folder would always hold.
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        let entries =
            fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for entry in entries {
            let path = entry.expect("a readable folder").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn name(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// A source without its tests, comments and doc comments.
fn code(path: &Path) -> String {
    // A checkout may lie below a folder of this name.
    let is_test = Path::new(&name(path)).components().any(|c| c.as_os_str() == "tests")
        || path.file_name().is_some_and(|f| {
            f == "fixture.rs" || f == "tests.rs" || f.to_string_lossy().ends_with("_tests.rs")
        });
    if is_test {
        return String::new();
    }
    let text = fs::read_to_string(path).expect("a readable source");
    // By convention tests are at the end of a file.
    let body = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(&text);
    body.lines().filter(|l| !l.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The crates of the workspace that are libraries, by the name of their folder in `src`.
const CRATES: &[&str] = &["model", "readers", "engine", "node", "control", "sim", "study"];

/// The crate of a source; the program's sources are in none of the folders.
fn crate_of(file: &str) -> &str {
    let folder = file.strip_prefix("src/").and_then(|rest| rest.split('/').next());
    folder.filter(|folder| CRATES.contains(folder)).unwrap_or("program")
}

/// The top-level modules that a source names, as `crate/module`: `crate::judge` in `src/engine`
/// and `engine::judge` elsewhere are both `engine/judge`.
fn uses(file: &str, code: &str) -> BTreeSet<String> {
    let own = crate_of(file);
    let mut found = BTreeSet::new();
    for (root, name) in CRATES.iter().map(|it| (*it, *it)).chain([("crate", own)]) {
        for (at, path) in code.match_indices(&format!("{root}::")) {
            let is_word = |c: char| c.is_alphanumeric() || "_:".contains(c);
            if code[..at].ends_with(is_word) && !code[..at].ends_with("::") {
                continue;
            }
            let rest = &code[at + path.len()..];
            let named = match rest.strip_prefix('{') {
                Some(list) => list.split('}').next().unwrap_or(list).split(',').collect(),
                None => vec![rest],
            };
            let word = |text: &str| {
                let text = text.trim_start();
                let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
                text[..end.unwrap_or(text.len())].to_owned()
            };
            found.extend(named.into_iter().map(|it| format!("{name}/{}", word(it))));
        }
    }
    found
}

#[test]
fn pure_stages_do_no_io_and_read_no_clock() {
    let mut wrong = Vec::new();
    for folder in PURE {
        for path in files(folder, "rs") {
            let source = code(&path);
            let found = IMPURE.iter().filter(|word| source.contains(**word));
            wrong.extend(found.map(|word| format!("{} mentions {word}", name(&path))));
        }
    }
    assert!(wrong.is_empty(), "invariant 2 (pure stages):\n{}", wrong.join("\n"));
}

/// Properties of a platform that do not depend on conditions.
const TABLES: [&str; 2] = [".expectations", ".collectives"];

#[test]
fn no_stage_compares_with_an_expectation_outside_of_its_domain() {
    // `thresholds::lookup` takes the conditions of a measurement; the tables behind it answer
    // without them.
    let mut wrong = Vec::new();
    for folder in [
        "src/engine/judge",
        "src/engine/place",
        "src/engine/export",
        "src/engine/policy",
        "src/engine/plan",
        "src/control/sweep",
    ] {
        for path in files(folder, "rs") {
            let source = code(&path);
            let named = TABLES.iter().filter(|table| source.contains(*table));
            wrong.extend(named.map(|table| format!("{} uses {table}", name(&path))));
        }
    }
    assert!(wrong.is_empty(), "an expectation holds where it was stated:\n{}", wrong.join("\n"));
    let lookup = code(&root().join("src/engine/thresholds/lookup.rs"));
    assert!(TABLES.iter().all(|table| lookup.contains(table)), "the tables are called otherwise");
}

/// Folders and files that read the text of other programs and of people: tools, drivers,
/// schedulers, API servers, a Reason that Slurm or a person wrote.
const READERS: &[&str] = &[
    "src/node/facts/",
    "src/readers/claims/",
    "src/readers/outputs/",
    "src/node/probes/",
    "src/control/sources/",
    // It answers as the tool does whose error it prints.
    "src/sim/render/",
    // Reasons in Slurm's own field: fabricgate's are parsed there and distinguished from Slurm's.
    "src/engine/policy/drain_reason.rs",
    "src/engine/policy/lost_drains.rs",
    // `scontrol`, `salloc`, `squeue` and the API server.
    "src/node/doctor/scheduler.rs",
    "src/control/gate/slurm_allocation.rs",
    "src/control/gate/slurm_allocation/slurm_commands.rs",
    "src/control/gate/scontrol.rs",
];

/// Fields that hold sentences of this program.
const SENTENCES: &[&str] =
    &["detail", "message", "reason", "rule", "said", "summary", "what", "why"];

/// Methods that parse a text.
const TAKES_APART: &[&str] =
    &["contains", "ends_with", "find", "split_once", "starts_with", "strip_prefix", "strip_suffix"];

/// Decisions use values: the program never parses its own sentences.
#[test]
fn no_decision_reads_a_sentence_that_the_program_wrote() {
    let mut broken = Vec::new();
    for path in files("src", "rs") {
        let name = name(&path);
        if READERS.iter().any(|reader| name.starts_with(reader)) {
            continue;
        }
        // A call may be on a separate line.
        let code: String = code(&path).lines().map(str::trim).collect::<Vec<_>>().join("\n");
        let code = code.replace("\n.", ".");
        for line in code.lines() {
            let calls = TAKES_APART.iter().flat_map(|call| {
                let call = format!(".{call}(");
                line.match_indices(&call).map(|(at, _)| at).collect::<Vec<_>>()
            });
            let of = |at: usize| {
                let receiver = line[..at]
                    .trim_end_matches(".to_string()")
                    .trim_end_matches(".as_str()")
                    .trim_end_matches(".trim()");
                let start = receiver.rfind(|c: char| !c.is_alphanumeric() && c != '_');
                receiver[start.map_or(0, |at| at + 1)..].to_owned()
            };
            if calls.map(of).any(|word| SENTENCES.contains(&word.as_str())) {
                broken.push(format!("{name}: {line}"));
            }
        }
    }
    assert!(broken.is_empty(), "give the producer a typed value:\n{}", broken.join("\n"));
}

#[test]
fn every_test_that_the_map_names_is_there() {
    let map = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let invariants = map.split("## Invariants").nth(1).expect("a section of invariants");
    let invariants = invariants.split("\n## ").next().unwrap_or(invariants);
    let sources: String = ["src", "tests"]
        .iter()
        .flat_map(|folder| files(folder, "rs"))
        .map(|path| fs::read_to_string(path).expect("a readable source"))
        .collect();
    // Names of tests are sentences: three words or more.
    let named: Vec<&str> = invariants
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| 2 < word.matches('_').count() && !word.contains(['/', '.', ' ']))
        .collect();
    assert!(10 < named.len(), "the invariants name their tests");
    let missing: Vec<&str> =
        named.into_iter().filter(|test| !sources.contains(&format!("fn {test}("))).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names tests that are not there: {missing:?}");
}

#[test]
fn only_exec_spawns_and_only_ffi_is_unsafe() {
    let mut wrong = Vec::new();
    for path in files("src", "rs") {
        let (file, source) = (name(&path), code(&path));
        // Calls between fork and exec apply to a command of `exec`.
        let is_limits = file == "src/node/ffi/process_limits.rs";
        let spawns =
            (source.contains("process::Command") && !is_limits) || source.contains("Command::new(");
        if spawns && !file.starts_with("src/node/exec") {
            wrong.push(format!("{file} spawns a process"));
        }
        let is_unsafe = source.contains("unsafe ") || source.contains("unsafe{");
        if is_unsafe && !file.starts_with("src/node/ffi") {
            wrong.push(format!("{file} is unsafe"));
        }
    }
    assert!(wrong.is_empty(), "invariant 3 (exec, ffi):\n{}", wrong.join("\n"));
}

#[test]
fn only_the_gate_changes_a_cluster_and_only_the_shell_uses_it() {
    let mut wrong = Vec::new();
    for path in files("src", "rs") {
        let (file, source) = (name(&path), code(&path));
        let is_gate = file.starts_with("src/control/gate");
        if source.contains("scheduler.change(") && !is_gate {
            wrong.push(format!("{file} changes scheduler state"));
        }
        let is_shell =
            ["src/cli", "src/config", "src/control/sweep"].iter().any(|it| file.starts_with(it));
        if uses(&file, &source).contains("control/gate") && !is_gate && !is_shell {
            wrong.push(format!("{file} uses control::gate"));
        }
    }
    assert!(wrong.is_empty(), "invariant 3 (gate):\n{}", wrong.join("\n"));
}

#[test]
fn every_source_states_its_purpose() {
    let folders = ["src", "tests", "benches"];
    let sources = folders.iter().flat_map(|f| files(f, "rs"));
    let silent: Vec<String> = sources
        .filter(|path| !fs::read_to_string(path).expect("a readable source").starts_with("//! "))
        .map(|path| name(&path))
        .collect();
    assert!(silent.is_empty(), "these files do not open with //!:\n{}", silent.join("\n"));
}

#[test]
fn files_stay_short() {
    let lines = |path: &PathBuf| fs::read_to_string(path).expect("a source").lines().count();
    let sizes = |folder: &str| -> Vec<(usize, String)> {
        let mut sizes: Vec<_> =
            files(folder, "rs").iter().map(|path| (lines(path), name(path))).collect();
        sizes.sort();
        sizes
    };
    let long: Vec<String> = ["src", "tests", "benches"]
        .iter()
        .flat_map(|folder| sizes(folder))
        .filter(|(size, _)| LONGEST_FILE < *size)
        .map(|(size, file)| format!("{file}: {size} lines"))
        .collect();
    assert!(long.is_empty(), "over {LONGEST_FILE} lines, split it:\n{}", long.join("\n"));
    let sizes = sizes("src");
    let median = sizes[sizes.len() / 2].0;
    assert!(median <= MEDIAN_FILE, "the median source has {median} lines, over {MEDIAN_FILE}");
}

#[test]
fn the_map_names_every_folder_of_the_machine() {
    let map = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let folders = fs::read_dir(root().join("src")).expect("src");
    let missing: Vec<String> = folders
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.is_dir())
        .map(|path| format!("{}/", path.file_name().expect("a name").to_string_lossy()))
        .filter(|folder| !map.contains(folder.as_str()))
        .collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md does not name src/{}", missing.join(", src/"));
}

/// The first cells of the table below this heading, split into words.
fn cells_below(map: &str, head: &str) -> Vec<String> {
    let rows = map.split(head).nth(1).unwrap_or_else(|| panic!("{head}"));
    let rows = rows.split("\n\n").next().unwrap_or(rows).lines().skip(2);
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

#[test]
fn exit_codes_are_the_documented_ones() {
    let readme = fs::read_to_string(root().join("README.md")).expect("README.md");
    let codes = fs::read_to_string(root().join("src/exit.rs")).expect("exit.rs");
    let constants: Vec<&str> = codes
        .lines()
        .filter_map(|l| l.strip_prefix("pub const ")?.split_once(": u8 = "))
        .map(|(_, v)| v)
        .collect();
    assert_eq!(constants.len(), 7, "one constant per documented code");
    for value in constants {
        let code = value.trim_end_matches(';');
        assert!(
            readme.contains(&format!("| {code} |")),
            "README.md does not document exit code {code}"
        );
    }
}

/// Formats other than JSON, with the schema of their tables.
const IN_TOML: &[&str] = &["fabricgate.thresholds/1"];

/// The formats of documents that a source names: `"fabricgate.KIND/NUMBER"`.
fn formats(code: &str) -> Vec<String> {
    let quoted = code.split('"').filter(|it| it.starts_with("fabricgate."));
    let is_format = |it: &&str| {
        let (kind, version) = it.split_once('/').unwrap_or_default();
        let is_kind = |c: char| c.is_ascii_lowercase() || ".-".contains(c);
        kind.chars().all(is_kind) && version.parse::<u32>().is_ok()
    };
    quoted.filter(is_format).map(str::to_owned).collect()
}

#[test]
fn every_format_that_is_written_has_a_schema_and_every_schema_a_format() {
    let mut named: BTreeMap<String, String> = BTreeMap::new();
    // The development program's documents have no schema.
    let product = files("src", "rs").into_iter().filter(|path| crate_of(&name(path)) != "study");
    for path in product {
        named.extend(formats(&code(&path)).into_iter().map(|format| (format, name(&path))));
    }
    assert!(40 < named.len(), "formats are not found any more: {named:?}");
    let published: Vec<String> = files("reports/schema", "json")
        .iter()
        .filter_map(|path| {
            let text = fs::read_to_string(path).expect("a readable schema");
            let schema: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            schema["properties"]["format"]["const"].as_str().map(str::to_owned)
        })
        .collect();
    let missing: Vec<_> = named
        .iter()
        .filter(|(format, _)| !published.contains(format) && !IN_TOML.contains(&format.as_str()))
        .collect();
    assert!(
        missing.is_empty(),
        "no schema in reports/schema (see src/cli/schemas.rs): {missing:?}"
    );
    let unwritten: Vec<_> = published.iter().filter(|it| !named.contains_key(*it)).collect();
    assert!(unwritten.is_empty(), "schemas of what nothing writes: {unwritten:?}");
}

#[test]
fn every_class_of_disagreement_is_documented() {
    let document = fs::read_to_string(root().join("docs/claims.md")).expect("docs/claims.md");
    let sources: String =
        files("src/readers/claims/reconcile", "rs").iter().map(|path| code(path)).collect();
    let words: BTreeSet<&str> =
        sources.split(|c: char| !c.is_ascii_alphanumeric() && c != ':').collect();
    for class in DisagreementClass::LISTED {
        let is_made = words.contains(format!("DisagreementClass::{class:?}").as_str());
        assert!(is_made, "nothing in src/readers/claims/reconcile makes {class}");
    }
    let made: BTreeSet<&str> =
        DisagreementClass::LISTED.iter().map(DisagreementClass::as_str).collect();
    let documented = cells_below(&document, "\n| class | severity | what |");
    let documented: BTreeSet<&str> = documented.iter().map(String::as_str).collect();
    assert_eq!(documented, made, "docs/claims.md and DisagreementClass differ");
}

/// Code decides by the enum, which the compiler follows; the names are for documents.
#[test]
fn no_class_is_compared_as_a_string() {
    let of_findings = FindingClass::LISTED.iter().map(FindingClass::as_str);
    let of_claims = DisagreementClass::LISTED.iter().map(DisagreementClass::as_str);
    let of_probes = ProbeProblemClass::LISTED.iter().map(ProbeProblemClass::as_str);
    let names: BTreeSet<&str> =
        of_findings.chain(of_claims).chain(of_probes).filter(|it| it.contains('-')).collect();
    for path in files("src", "rs") {
        let name = name(&path);
        // They define the names. A simulated fleet may have the name of its fault.
        let exempt = [
            "src/model/finding_class.rs",
            "src/model/disagreement_class.rs",
            "src/model/probe_problem_class.rs",
            "src/cli/simulation_option.rs",
            // Names of NVML.
            "src/node/facts/nvml_names.rs",
        ];
        if exempt.contains(&name.as_str()) {
            continue;
        }
        let code = code(&path);
        for quoted in code.split('"').skip(1).step_by(2) {
            assert!(!names.contains(quoted), "{name}: \"{quoted}\" is a variant of an enum");
        }
        for rest in code.split("class").skip(1) {
            let rest = [".as_str()", ".as_deref()"]
                .iter()
                .find_map(|it| rest.strip_prefix(it))
                .unwrap_or(rest);
            let compares = [" == \"", " != \"", " == Some(\"", ".starts_with(\""];
            let is_compared = compares.iter().any(|it| rest.starts_with(it));
            assert!(!is_compared, "{name}: class{}", rest.lines().next().unwrap_or_default());
        }
    }
}

/// The names of the fields of a struct, in order.
fn fields(path: &str, name: &str) -> Vec<String> {
    let source = code(&root().join(path));
    let body = source.split(&format!("struct {name} {{")).nth(1).expect("the struct");
    let body = body.split("\n}").next().expect("its end");
    let field = |line: &str| {
        let line = line.trim().trim_start_matches("pub ");
        let (name, _) = line.split_once(": ")?;
        name.chars().all(|c| c.is_ascii_lowercase() || c == '_').then(|| name.to_owned())
    };
    body.lines().filter_map(field).collect()
}

#[test]
fn every_setting_of_the_gate_is_documented_and_no_other() {
    let document = fs::read_to_string(root().join("docs/gate.md")).expect("docs/gate.md");
    let section = |head: &str| {
        let rows = document.split(head).nth(1).unwrap_or_else(|| panic!("{head}"));
        rows.split("\n\n").next().unwrap_or(rows).to_owned()
    };
    let policy = fields("src/engine/policy/action_policy.rs", "Policy");
    let marks = fields("src/engine/policy/marks.rs", "MarkNames");
    assert!(20 < policy.len() && 3 < marks.len(), "the fields are found: {policy:?} {marks:?}");
    for (head, fields) in [("\n| `[policy]` |", policy), ("\n| `[policy.marks]` |", marks)] {
        let rows = section(head);
        let keys = rows.lines().skip(2).filter_map(|row| row.split('|').nth(1));
        let mut documented: Vec<&str> =
            keys.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        let mut fields: Vec<&str> = fields.iter().map(String::as_str).collect();
        documented.sort_unstable();
        fields.sort_unstable();
        assert_eq!(documented, fields, "docs/gate.md below {head:?} and the struct differ");
    }
    let gate = fields("src/config/gate.rs", "GateSection");
    let shown = section("\n    [gate]\n");
    let mut documented: Vec<&str> =
        shown.lines().filter_map(|row| row.split_once(" = ")).map(|it| it.0.trim()).collect();
    let mut gate: Vec<&str> = gate.iter().map(String::as_str).collect();
    documented.sort_unstable();
    gate.sort_unstable();
    assert_eq!(documented, gate, "docs/gate.md below [gate] and the section differ");
}

/// The keys that a row names in its value, such as `a` and `b` of `key = { a = 1, b = 2 }`.
fn keys_of(row: &str) -> Vec<String> {
    let words: Vec<&str> = row.split_whitespace().collect();
    let keys = words.windows(2).filter(|pair| pair[1] == "=").skip(1).map(|pair| pair[0]);
    keys.map(str::to_owned).collect()
}

#[test]
fn every_setting_of_the_watch_is_documented_and_no_other() {
    let document = fs::read_to_string(root().join("docs/watch.md")).expect("docs/watch.md");
    let shown = document.split("\n    [watch]\n").nth(1).expect("the section");
    let shown = shown.split("\n\n").next().expect("its end");
    let rows: Vec<(&str, &str)> =
        shown.lines().filter_map(|row| Some((row.split_once(" = ")?.0.trim(), row))).collect();
    let sorted = |mut keys: Vec<String>| {
        keys.sort();
        keys
    };
    let source = "src/config/watch.rs";
    let section = fields(source, "WatchConfig");
    assert!(10 < section.len(), "the fields are found: {section:?}");
    let documented = rows.iter().map(|(key, _)| (*key).to_owned()).collect();
    assert_eq!(
        sorted(documented),
        sorted(section),
        "docs/watch.md below [watch] and the section differ"
    );
    for (key, name) in
        [("backoff", "WatchBackoff"), ("profiles", "WatchProfiles"), ("lease", "LeaseConfig")]
    {
        let row = rows.iter().find(|(documented, _)| *documented == key).expect("the row").1;
        assert_eq!(sorted(keys_of(row)), sorted(fields(source, name)), "docs/watch.md: {key}");
    }
}
