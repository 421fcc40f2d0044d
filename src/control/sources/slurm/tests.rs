//! A script in place of `scontrol` that fails in the same ways.

use std::path::Path;

use super::*;

/// The answers of a healthy `scontrol` and `sinfo`; scripts put their own cases first.
const HEALTHY: &str = r#"
    "--all ping") echo 'Slurmctld(primary) at head is UP' ;;
    "--all show topology") echo 'BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2' ;;
    "--all show topoconf") printf -- '---\n- topology: t\n  cluster_default: true\n  block:\n    block_sizes:\n    - 2\n    blocks:\n    - block: b1\n      nodes: n[1-2]\n' ;;
    "--all show node --json") echo '{"nodes": []}' ;;
    "--all show partition --json") echo '{"partitions": []}' ;;
    "--all show config") echo 'TopologyPlugin = topology/block' ;;
    "--all --json") echo '{"sinfo": []}' ;;
    *) echo "invalid entity:$3 for keyword:show " >&2; exit 1 ;;
"#;

/// Runs the queries with a script in place of both programs; returns the reports and the queries.
fn ask_script(cases: &str, limit_ms: u64, capture: usize) -> (Vec<SourceReport>, Vec<String>) {
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("slurm");
    let queries = folder.path().join("queries");
    let text =
        format!("echo \"$*\" >>{}\ncase \"$*\" in\n{cases}\n{HEALTHY}\nesac\n", queries.display());
    std::fs::write(&script, text).expect("written");
    let answers = ask_now(&script, limit_ms, capture);
    let queries = std::fs::read_to_string(queries).unwrap_or_default();
    (answers, queries.lines().map(str::to_owned).collect())
}

fn ask_now(script: &Path, limit_ms: u64, capture: usize) -> Vec<SourceReport> {
    let program = vec!["sh".to_owned(), script.display().to_string()];
    let limit = Duration::from_millis(limit_ms);
    let slurm =
        SlurmClientConfig { scontrol: program.clone(), sinfo: program, limit, remote_shell: None };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(fetch_with_capture(&slurm, capture))
}

fn report_of_kind(answers: &[SourceReport], kind: SourceKind) -> &SourceReport {
    answers.iter().find(|report| report.source.kind == kind).expect("an answer of this kind")
}

fn kinds(report: &SourceReport) -> Vec<SourceProblemKind> {
    report.problems.iter().map(|problem| problem.kind).collect()
}

const LONG: u64 = 20_000;

#[test]
fn every_query_is_sent_once_and_named_in_its_report() {
    let (answers, mut queries) = ask_script("", LONG, exec::CAPTURE);
    queries.sort();
    assert_eq!(queries[..2], ["--all --json", "--all ping"]);
    assert_eq!(queries.len(), 7, "{queries:?}");
    let kinds: Vec<SourceKind> = answers.iter().map(|report| report.source.kind).collect();
    assert_eq!(
        kinds,
        [
            SourceKind::SlurmTopology,
            SourceKind::SlurmTopologyYaml,
            SourceKind::SlurmNodes,
            SourceKind::SlurmPartitions,
            SourceKind::SlurmConfig,
            SourceKind::Sinfo,
        ]
    );
    assert!(answers[2].source.place.ends_with("slurm --all show node --json"), "{answers:?}");
}

#[test]
fn a_controller_that_is_down_gets_no_further_query() {
    let down = r#""--all ping") printf 'Slurmctld(primary) at head is DOWN\n'; exit 1 ;;"#;
    let (answers, queries) = ask_script(down, LONG, exec::CAPTURE);
    assert_eq!(queries, ["--all ping"]);
    assert_eq!(answers.len(), 1);
    assert_eq!(kinds(&answers[0]), [SourceProblemKind::Unreachable]);
    let message = &answers[0].problems[0].message;
    assert!(message.starts_with("Slurmctld(primary) at head is DOWN; check that"), "{message}");
}

#[test]
fn a_backup_that_is_up_is_enough() {
    let cases = r#""--all ping") printf 'Slurmctld(primary) at a is DOWN\nSlurmctld(backup) at b is UP\n' ;;"#;
    let (answers, queries) = ask_script(cases, LONG, exec::CAPTURE);
    assert_eq!((answers.len(), queries.len()), (6, 7));
}

#[test]
fn a_hanging_controller_is_given_up() {
    let (answers, queries) = ask_script(r#""--all ping") exec sleep 60 ;;"#, 300, exec::CAPTURE);
    assert_eq!((answers.len(), queries.len()), (1, 1));
    assert_eq!(kinds(&answers[0]), [SourceProblemKind::Unreachable]);
    let message = &answers[0].problems[0].message;
    assert!(message.starts_with("no answer within 300ms; "), "{message}");
}

#[test]
fn a_hanging_query_does_not_affect_the_others() {
    let cases = r#""--all show topology") exec sleep 60 ;;"#;
    let (answers, _) = ask_script(cases, 3_000, exec::CAPTURE);
    let hung: Vec<SourceKind> = answers
        .iter()
        .filter(|report| kinds(report).contains(&SourceProblemKind::Unreachable))
        .map(|report| report.source.kind)
        .collect();
    assert_eq!(hung, [SourceKind::SlurmTopology]);
    assert_eq!(answers.len(), 6);
}

#[test]
fn an_absent_program_is_missing() {
    let slurm = SlurmClientConfig {
        scontrol: vec!["no-such-scontrol".to_owned()],
        ..SlurmClientConfig::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let answers = runtime.expect("a runtime").block_on(fetch_claims(&slurm));
    assert_eq!(answers.len(), 1);
    assert_eq!(kinds(&answers[0]), [SourceProblemKind::Missing]);
    assert_eq!(answers[0].source.place, "no-such-scontrol --all ping");
    let message = &answers[0].problems[0].message;
    assert!(message.starts_with("no-such-scontrol: not found; Slurm's commands"), "{message}");
}

#[test]
fn a_program_that_a_shell_does_not_find_is_missing_too() {
    let cases = r#""--all ping") echo 'bash: scontrol: command not found' >&2; exit 127 ;;"#;
    let (answers, _) = ask_script(cases, LONG, exec::CAPTURE);
    assert_eq!(kinds(&answers[0]), [SourceProblemKind::Missing]);
}

#[test]
fn an_empty_topology_with_exit_code_0_is_not_a_flat_topology() {
    let cases = r#""--all show topology") echo 'Unable to contact slurm controller (connect failure)' >&2 ;;"#;
    let (answers, _) = ask_script(cases, LONG, exec::CAPTURE);
    let topology = report_of_kind(&answers, SourceKind::SlurmTopology);
    assert_eq!(kinds(topology), [SourceProblemKind::Unreachable]);
    assert!(topology.groups.is_empty() && topology.notes.is_empty());
}

#[test]
fn an_empty_topology_counts_only_with_another_explanation() {
    let silent = r#""--all show topology") ;; "--all show topoconf") echo 'invalid entity:topoconf for keyword:show ' >&2; exit 1 ;;"#;
    let (answers, _) = ask_script(silent, LONG, exec::CAPTURE);
    assert_eq!(
        kinds(report_of_kind(&answers, SourceKind::SlurmTopology)),
        [SourceProblemKind::Incomplete]
    );

    let flat = format!(
        "{silent} \"--all show config\") echo 'TopologyPlugin          = topology/flat' ;;"
    );
    let (answers, _) = ask_script(&flat, LONG, exec::CAPTURE);
    let topology = report_of_kind(&answers, SourceKind::SlurmTopology);
    assert_eq!(kinds(topology), []);
    assert_eq!(topology.notes[0], "no blocks and no switches: TopologyPlugin is topology/flat");
}

#[test]
fn a_controller_with_topology_conf_prints_an_empty_topology_yaml() {
    // The output of Slurm 26.05.
    let hollow = r#""--all show topoconf") printf -- '%%YAML 1.1\n---\n- topology: default\n  cluster_default: false\n  block: {}\n  flat: {}\n  ring: {}\n  torus3d: {}\n  tree: {}\n...\n' ;;"#;
    let (answers, _) = ask_script(hollow, LONG, exec::CAPTURE);
    assert!(answers.iter().all(|it| it.source.kind != SourceKind::SlurmTopologyYaml));
    let topology = report_of_kind(&answers, SourceKind::SlurmTopology);
    assert!(topology.notes.iter().any(|it| it.contains("topology.conf")), "{topology:?}");

    let silent = format!("{hollow} \"--all show topology\") ;;");
    let (answers, _) = ask_script(&silent, LONG, exec::CAPTURE);
    assert_eq!(
        kinds(report_of_kind(&answers, SourceKind::SlurmTopology)),
        [SourceProblemKind::Incomplete]
    );

    let flat = r#"
        "--all show topology") ;;
        "--all show topoconf") printf -- '---\n- topology: t\n  cluster_default: true\n  block: {}\n  flat: true\n' ;;
    "#;
    let (answers, _) = ask_script(flat, LONG, exec::CAPTURE);
    assert_eq!(kinds(report_of_kind(&answers, SourceKind::SlurmTopology)), []);
    assert_eq!(
        report_of_kind(&answers, SourceKind::SlurmTopologyYaml).source.kind.label(),
        "Slurm topology.yaml"
    );
}

#[test]
fn a_slurm_without_topoconf_is_not_a_problem() {
    let cases =
        r#""--all show topoconf") echo 'invalid entity:topoconf for keyword:show ' >&2; exit 1 ;;"#;
    let (answers, _) = ask_script(cases, LONG, exec::CAPTURE);
    assert!(answers.iter().all(|it| it.source.kind != SourceKind::SlurmTopologyYaml));
    let topology = report_of_kind(&answers, SourceKind::SlurmTopology);
    assert!(topology.notes.iter().any(|note| note.contains("no `show topoconf`")));
    assert_eq!(kinds(topology), []);
}

#[test]
fn a_slurm_without_json_is_queried_for_text() {
    let cases = r#"
        *--json) echo "scontrol: unrecognized option '--json'" >&2; exit 1 ;;
        "--all show node -o") echo 'NodeName=n1 State=IDLE' ;;
        "--all show partition -o") echo 'PartitionName=main Nodes=n1 State=UP' ;;
        "--all") echo 'PARTITION AVAIL TIMELIMIT NODES STATE NODELIST' ;;
    "#;
    let (answers, _) = ask_script(cases, LONG, exec::CAPTURE);
    let nodes = report_of_kind(&answers, SourceKind::SlurmNodes);
    assert!(nodes.source.place.ends_with("show node -o"), "{nodes:?}");
    assert!(nodes.notes.iter().any(|note| note.contains("unrecognized option")), "{nodes:?}");
    assert!(
        report_of_kind(&answers, SourceKind::SlurmPartitions)
            .source
            .place
            .ends_with("partition -o")
    );
    assert!(report_of_kind(&answers, SourceKind::Sinfo).source.place.ends_with("--all"));
}

#[test]
fn json_beyond_the_limit_is_queried_as_text() {
    let cases = r#"
        "--all show node --json") printf '{"nodes": [%5000s]}' '' ;;
        "--all show node -o") echo 'NodeName=n1 State=IDLE' ;;
        "--all show config") printf 'A = %5000s' b ;;
    "#;
    let (answers, _) = ask_script(cases, LONG, 4_096);
    let nodes = report_of_kind(&answers, SourceKind::SlurmNodes);
    assert!(nodes.source.place.ends_with("show node -o"), "{nodes:?}");
    assert!(nodes.notes.iter().any(|it| it.contains("limit of 4096 bytes")), "{nodes:?}");
    let config = report_of_kind(&answers, SourceKind::SlurmConfig);
    assert_eq!(kinds(config), [SourceProblemKind::Incomplete]);
}

#[test]
fn a_denied_query_is_reported_and_not_repeated() {
    let cases = r#""--all show node --json") printf 'slurm_load_node error: Access/permission denied\033[31m\n' >&2; exit 1 ;;"#;
    let (answers, queries) = ask_script(cases, LONG, exec::CAPTURE);
    let nodes = report_of_kind(&answers, SourceKind::SlurmNodes);
    assert_eq!(kinds(nodes), [SourceProblemKind::Denied]);
    let message = &nodes.problems[0].message;
    assert!(message.starts_with("exit code 1: slurm_load_node error: Access/permission denied"));
    assert!(!message.contains('\u{1b}'), "{message:?}");
    assert!(!queries.iter().any(|it| it.ends_with("show node -o")));
}

#[test]
fn bytes_that_are_not_text_are_noted() {
    let cases =
        r#""--all show config") printf 'Comment = \377\nTopologyPlugin = topology/block\n' ;;"#;
    let (answers, _) = ask_script(cases, LONG, exec::CAPTURE);
    let config = report_of_kind(&answers, SourceKind::SlurmConfig);
    assert!(config.notes.iter().any(|note| note.contains("not UTF-8")), "{config:?}");
}
