//! A made-up `scontrol` that fails in the ways of the real one.

use std::path::Path;

use super::*;

/// What a healthy `scontrol` and `sinfo` answer; scripts put their own cases in
/// front of these.
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

/// Asks a script in the place of both programs, and tells what it was asked.
fn ask_script(cases: &str, limit_ms: u64, capture: usize) -> (Vec<SourceReport>, Vec<String>) {
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("slurm");
    let asked = folder.path().join("asked");
    let text =
        format!("echo \"$*\" >>{}\ncase \"$*\" in\n{cases}\n{HEALTHY}\nesac\n", asked.display());
    std::fs::write(&script, text).expect("written");
    let answers = ask_now(&script, limit_ms, capture);
    let asked = std::fs::read_to_string(asked).unwrap_or_default();
    (answers, asked.lines().map(str::to_owned).collect())
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
    answers.iter().find(|said| said.source.kind == kind).expect("an answer of this kind")
}

fn kinds(said: &SourceReport) -> Vec<SourceProblemKind> {
    said.problems.iter().map(|problem| problem.kind).collect()
}

const LONG: u64 = 20_000;

#[test]
fn every_question_is_put_once_and_names_itself() {
    let (answers, mut asked) = ask_script("", LONG, exec::CAPTURE);
    asked.sort();
    assert_eq!(asked[..2], ["--all --json", "--all ping"]);
    assert_eq!(asked.len(), 7, "{asked:?}");
    let kinds: Vec<SourceKind> = answers.iter().map(|said| said.source.kind).collect();
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
fn a_controller_that_is_down_is_asked_nothing_more() {
    let down = r#""--all ping") printf 'Slurmctld(primary) at head is DOWN\n'; exit 1 ;;"#;
    let (answers, asked) = ask_script(down, LONG, exec::CAPTURE);
    assert_eq!(asked, ["--all ping"]);
    assert_eq!(answers.len(), 1);
    assert_eq!(kinds(&answers[0]), [SourceProblemKind::Unreachable]);
    let message = &answers[0].problems[0].message;
    assert!(message.starts_with("Slurmctld(primary) at head is DOWN; check that"), "{message}");
}

#[test]
fn a_backup_that_is_up_is_enough() {
    let cases = r#""--all ping") printf 'Slurmctld(primary) at a is DOWN\nSlurmctld(backup) at b is UP\n' ;;"#;
    let (answers, asked) = ask_script(cases, LONG, exec::CAPTURE);
    assert_eq!((answers.len(), asked.len()), (6, 7));
}

#[test]
fn a_controller_that_hangs_is_given_up() {
    let (answers, asked) = ask_script(r#""--all ping") exec sleep 60 ;;"#, 300, exec::CAPTURE);
    assert_eq!((answers.len(), asked.len()), (1, 1));
    assert_eq!(kinds(&answers[0]), [SourceProblemKind::Unreachable]);
    let message = &answers[0].problems[0].message;
    assert!(message.starts_with("no answer within 300ms; "), "{message}");
}

#[test]
fn a_question_that_hangs_takes_none_of_the_others_along() {
    let cases = r#""--all show topology") exec sleep 60 ;;"#;
    let (answers, _) = ask_script(cases, 3_000, exec::CAPTURE);
    let hung: Vec<SourceKind> = answers
        .iter()
        .filter(|said| kinds(said).contains(&SourceProblemKind::Unreachable))
        .map(|said| said.source.kind)
        .collect();
    assert_eq!(hung, [SourceKind::SlurmTopology]);
    assert_eq!(answers.len(), 6);
}

#[test]
fn a_program_that_is_not_there_is_missing() {
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
fn a_shell_that_does_not_find_it_says_missing_too() {
    let cases = r#""--all ping") echo 'bash: scontrol: command not found' >&2; exit 127 ;;"#;
    let (answers, _) = ask_script(cases, LONG, exec::CAPTURE);
    assert_eq!(kinds(&answers[0]), [SourceProblemKind::Missing]);
}

#[test]
fn an_empty_topology_that_ended_well_is_no_topology_without_blocks() {
    let cases = r#""--all show topology") echo 'Unable to contact slurm controller (connect failure)' >&2 ;;"#;
    let (answers, _) = ask_script(cases, LONG, exec::CAPTURE);
    let topology = report_of_kind(&answers, SourceKind::SlurmTopology);
    assert_eq!(kinds(topology), [SourceProblemKind::Unreachable]);
    assert!(topology.groups.is_empty() && topology.notes.is_empty());
}

#[test]
fn silence_is_believed_only_where_something_else_explains_it() {
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
fn an_empty_topology_yaml_is_what_a_controller_with_topology_conf_prints() {
    // As Slurm 26.05 prints it.
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
fn a_slurm_without_topoconf_is_no_trouble() {
    let cases =
        r#""--all show topoconf") echo 'invalid entity:topoconf for keyword:show ' >&2; exit 1 ;;"#;
    let (answers, _) = ask_script(cases, LONG, exec::CAPTURE);
    assert!(answers.iter().all(|it| it.source.kind != SourceKind::SlurmTopologyYaml));
    let topology = report_of_kind(&answers, SourceKind::SlurmTopology);
    assert!(topology.notes.iter().any(|note| note.contains("no `show topoconf`")));
    assert_eq!(kinds(topology), []);
}

#[test]
fn a_slurm_without_json_is_asked_for_text() {
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
fn json_longer_than_is_kept_is_asked_for_as_text() {
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
fn who_may_not_ask_is_told_so_and_asked_once() {
    let cases = r#""--all show node --json") printf 'slurm_load_node error: Access/permission denied\033[31m\n' >&2; exit 1 ;;"#;
    let (answers, asked) = ask_script(cases, LONG, exec::CAPTURE);
    let nodes = report_of_kind(&answers, SourceKind::SlurmNodes);
    assert_eq!(kinds(nodes), [SourceProblemKind::Denied]);
    let message = &nodes.problems[0].message;
    assert!(message.starts_with("exit code 1: slurm_load_node error: Access/permission denied"));
    assert!(!message.contains('\u{1b}'), "{message:?}");
    assert!(!asked.iter().any(|it| it.ends_with("show node -o")));
}

#[test]
fn bytes_that_are_no_text_are_remarked_on() {
    let cases =
        r#""--all show config") printf 'Comment = \377\nTopologyPlugin = topology/block\n' ;;"#;
    let (answers, _) = ask_script(cases, LONG, exec::CAPTURE);
    let config = report_of_kind(&answers, SourceKind::SlurmConfig);
    assert!(config.notes.iter().any(|note| note.contains("not UTF-8")), "{config:?}");
}
