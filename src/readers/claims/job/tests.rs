//! Job descriptions in every supported form.

use super::*;
use model::source_report::{JobAssumption, SourceProblemKind};

fn belief<'s>(report: &'s SourceReport, subject: &str) -> &'s JobAssumption {
    report
        .beliefs
        .iter()
        .find(|b| b.subject == subject)
        .unwrap_or_else(|| panic!("{subject}: {report:?}"))
}

fn problem_lines(report: &SourceReport) -> Vec<String> {
    report.problems.iter().map(|p| format!("{:?} {p}", p.kind)).collect()
}

const SCRIPT: &str = include_str!("../../../../examples/job.sbatch");

#[test]
fn the_example_lists_the_assumptions_of_its_job() {
    assert!(recognises(SCRIPT));
    let report = read("examples/job.sbatch", SCRIPT);
    assert!(report.problems.is_empty(), "{report:?}");
    let hybrid = belief(&report, "HybridEP");
    assert_eq!((hybrid.ranks_per_domain, hybrid.multi_node_nvlink), (Some(64), Some(true)));
    assert_eq!(hybrid.nodes.len(), 16);
    assert_eq!(hybrid.at.as_deref(), Some("examples/job.sbatch:10"));
    assert_eq!(hybrid.text, "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=64, USE_MNNVL=1");
    let segment = belief(&report, "Slurm --segment");
    assert_eq!((segment.ranks_per_domain, segment.multi_node_nvlink), (Some(64), None));
    assert_eq!(belief(&report, "NCCL").multi_node_nvlink, Some(true));
    assert_eq!(report.settings["--gpus-per-node"], "gb200:4");
}

#[test]
fn environments_are_read_line_by_line_or_with_nul() {
    let lines = "PATH=/bin\nSLURM_JOB_NODELIST=n[1-2,4]\nNCCL_MNNVL_ENABLE=0\nPS1=it's\n\
                 SLURM_TOPOLOGY_ADDR=b1.n1.x\nSLURM_TOPOLOGY_ADDR_PATTERN=block.node\n";
    for text in [lines.to_owned(), lines.replace('\n', "\0")] {
        assert!(recognises(&text));
        let report = read("env", &text);
        assert!(report.problems.is_empty(), "{report:?}");
        let nccl = belief(&report, "NCCL");
        assert_eq!((nccl.multi_node_nvlink, nccl.nodes.len()), (Some(false), 3));
        assert_eq!(report.nodes[&"n1.x".into()].marks["SLURM_TOPOLOGY_ADDR"], "b1.n1.x");
    }
    let other = format!("{lines}SLURMD_NODENAME=n9\n");
    assert!(problem_lines(&read("env", &other))[0].contains("SLURMD_NODENAME is \"n9\""));
}

#[test]
fn assignments_are_found_in_all_forms_of_shells_and_launchers() {
    for text in [
        "export A=1 USE_MNNVL=0 # USE_MNNVL=1",
        "USE_MNNVL='0' python x.py",
        "mpirun -x USE_MNNVL=0 ./x",
        "srun --export=ALL,USE_MNNVL=0,B=2 ./x",
        "docker run --env=USE_MNNVL=0 image",
        "bash -c \"cd /x; export USE_MNNVL=0; ./y\"",
        "if true; then export USE_MNNVL=0; fi",
        "export \\\n  USE_MNNVL=0 \\\n  B=2",
        "USE_MNNVL=1\nUSE_MNNVL=0",
        "export USE_MNNVL=\"${USE_MNNVL:-0}\"",
    ] {
        assert!(recognises(text), "{text}");
        let report = read("x.sh", text);
        assert_eq!(belief(&report, "HybridEP").multi_node_nvlink, Some(false), "{text}");
    }
    for text in ["# USE_MNNVL=1", "USE_MNNVL=1\nunset USE_MNNVL", "MY_USE_MNNVL=1", "USE_MNNVL=$X"]
    {
        assert!(read("x.sh", text).beliefs.is_empty(), "{text}");
    }
    assert!(read("x.sh", "USE_MNNVL=$X").notes[0].contains("context outside the text"));
    assert!(read("x.sh", "USE_MNNVL=${X:-1}").notes[0].contains("unless set in the environment"));
}

#[test]
fn options_are_read_in_all_their_forms() {
    for text in [
        "#SBATCH -N 4 -w n[1-4] --segment 2\n#SBATCH --gres=gpu:h100:8,craynetwork:1",
        "#SBATCH --nodes=4\nsrun -N4 -wn[1-4] --gpus-per-node=8 --segment=2 ./x",
        "sbatch --nodelist=n[1-4] --segment=2 --gpus-per-node 8 job.sh && USE_MNNVL=1 x",
    ] {
        let report = read("x", text);
        let segment = belief(&report, "Slurm --segment");
        assert_eq!((segment.ranks_per_domain, segment.nodes.len()), (Some(16), 4), "{text}");
    }
}

const POD: &str = r#"apiVersion: v1
kind: Pod
spec:
  nodeName: n7
  containers:
  - name: main
    env:
    - name: NCCL_MNNVL_ENABLE
      value: "1"
    - name: NVLINK_DOMAIN_SIZE
      value: "72"
    - name: NCCL_MNNVL_UUID
      valueFrom: {fieldRef: {fieldPath: metadata.uid}}
    command: ["bash", "-c", "export USE_MNNVL=1; run"]
"#;

#[test]
fn pod_environments_are_read_from_yaml_and_json() {
    assert!(recognises(POD));
    let report = read("pod.yaml", POD);
    assert!(report.problems.is_empty(), "{report:?}");
    let nccl = belief(&report, "NCCL");
    assert_eq!((nccl.multi_node_nvlink, nccl.at.as_deref()), (Some(true), Some("pod.yaml:8")));
    assert_eq!(nccl.nodes, ["n7".into()]);
    assert_eq!(belief(&report, "NVLINK_DOMAIN_SIZE").multi_node_nvlink, Some(true));
    let hybrid = belief(&report, "HybridEP");
    assert_eq!((hybrid.multi_node_nvlink, hybrid.at.as_deref()), (Some(true), Some("pod.yaml:14")));
    assert!(
        report.notes[0].contains("NCCL_MNNVL_UUID is filled in by the cluster"),
        "{:?}",
        report.notes
    );
    let json = "{\"spec\": {\"env\": [{\"name\": \"USE_MNNVL\", \"value\": \"0\"}], \
                \"env_vars\": {\"NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN\": 8}}}";
    assert!(recognises(json));
    let report = read("pod.json", json);
    let hybrid = belief(&report, "HybridEP");
    assert_eq!((hybrid.ranks_per_domain, hybrid.multi_node_nvlink), (Some(8), Some(false)));
}

#[test]
fn disagreeing_containers_of_one_job_are_reported() {
    let two = format!("{POD}---\n{}", POD.replace("\"1\"", "\"0\""));
    let report = read("pods.yaml", &two);
    let problems = problem_lines(&report);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0].starts_with(
            "Contradictory pods.yaml:23: NCCL_MNNVL_ENABLE is \"0\" here and \"1\" on line 8"
        ),
        "{problems:?}"
    );
}

#[test]
fn the_pods_of_one_job_list_its_nodes() {
    let two = format!("{POD}---\n{}---\n{POD}", POD.replace("n7", "n9"));
    let report = read("pods.yaml", &two);
    assert!(report.problems.is_empty(), "{report:?}");
    assert_eq!(belief(&report, "NCCL").nodes, ["n7".into(), "n9".into()]);
}

#[test]
fn incompatible_settings_are_reported() {
    let of = |text: &str| problem_lines(&read("x", text));
    let memory = of("NCCL_MNNVL_ENABLE=1\nNCCL_CUMEM_ENABLE=0\n");
    assert!(
        memory[0].starts_with("Contradictory x:1: ") && memory[0].contains("cuMem"),
        "{memory:?}"
    );
    let ranks =
        of("SLURM_GPUS_PER_NODE=4\nUSE_MNNVL=0\nNUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=8\n");
    assert!(ranks[0].contains("8 ranks in one domain without multi-node NVLink"), "{ranks:?}");
    let report = read("x", "NCCL_MNNVL_UUID=7\nNCCL_MNNVL_CLIQUE_ID=-2\n");
    assert!(
        belief(&report, "NCCL")
            .text
            .contains("look like one; cliques are derived from the chassis")
    );
}

#[test]
fn malformed_jobs_are_reported_with_their_position() {
    let of = |text: &str| problem_lines(&read("x", text));
    assert!(
        of("\nNCCL_MNNVL_ENABLE=7\n")[0]
            .starts_with("Malformed x:2: NCCL_MNNVL_ENABLE=\"7\": expected 0, 1, 2")
    );
    assert!(of("NVLINK_DOMAIN_SIZE=-1")[0].contains("a whole number above 0"));
    assert!(of("USE_MNNVL=maybe")[0].contains("expected 0 or 1"));
    assert!(of("SLURM_JOB_NODELIST=n[1-\nUSE_MNNVL=1")[0].contains("this [ is never closed"));
    assert!(of("SLURM_GPUS_PER_NODE=many")[0].contains("a number of GPUs"));
    let yaml = of("spec:\n  env: [USE_MNNVL: {{ .Values.x }\n");
    assert!(yaml[0].starts_with("Malformed x:") && yaml[0].matches(':').count() >= 3, "{yaml:?}");
    assert!(of("{\"env\": [")[0].starts_with("Malformed x:1:9"));
    assert!(read("x", "").beliefs.is_empty() && !recognises("") && !recognises("kind: Pod\n"));
}

#[test]
fn an_environment_in_flow_style_is_read() {
    let pod = "apiVersion: v1\nkind: Pod\nspec:\n  nodeName: n7\n  containers:\n  - name: main\n    \
               env: [{name: NCCL_MNNVL_ENABLE, value: \"1\"}]\n";
    assert!(recognises(pod));
    let report = read("pod.yaml", pod);
    assert_eq!((belief(&report, "NCCL").multi_node_nvlink, report.problems.len()), (Some(true), 0));
    // A variable in prose does not make a text a manifest.
    assert!(!recognises("The text mentions NCCL_MNNVL_ENABLE, and more.\n"));
}

#[test]
fn nested_and_aliased_values_do_not_expand() {
    let tower = format!("a: {}", "[".repeat(100_000));
    assert_eq!(read("x", &tower).problems[0].kind, SourceProblemKind::Malformed);
    let mut laughs = "a0: &a0 [USE_MNNVL, x, x, x, x, x, x, x, x]\n".to_owned();
    for n in 1..12 {
        let before = format!("*a{}, ", n - 1).repeat(9);
        laughs.push_str(&format!("a{n}: &a{n} [{}]\n", before.trim_end_matches(", ")));
    }
    assert_eq!(read("x", &laughs).problems[0].kind, SourceProblemKind::Malformed);
    let quotes = "bash -c \"".repeat(20_000) + "USE_MNNVL=1";
    assert!(read("x", &quotes).problems.is_empty());
}

#[test]
fn a_domain_size_is_that_of_the_platform_and_one_pod_is_not_the_job() {
    let rack = read("x", "SLURM_JOB_NODELIST=n[1-16]\nNVLINK_DOMAIN_SIZE=72\n");
    let size = belief(&rack, "NVLINK_DOMAIN_SIZE");
    assert_eq!((size.ranks_per_domain, size.multi_node_nvlink), (None, Some(true)));
    let server = read("x", "NVLINK_DOMAIN_SIZE=8\n");
    assert_eq!(belief(&server, "NVLINK_DOMAIN_SIZE").multi_node_nvlink, None);
    let ranks = POD.replace("NVLINK_DOMAIN_SIZE", "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN");
    let report = read("pod.yaml", &ranks);
    assert!(belief(&report, "HybridEP").nodes.is_empty(), "{report:?}");
    assert_eq!(belief(&report, "NCCL").nodes, ["n7".into()]);
}

#[test]
fn options_of_the_launched_command_are_not_slurm_options() {
    for command in [
        "srun --mpi=pmix all_reduce_perf -w 20",
        "srun -l -N 2 python t.py -w 8",
        "sbatch --gpus-per-node 4 job.sh -wn9 --nodelist=n9",
    ] {
        let text = format!("#SBATCH --nodelist=n[1-2]\nexport USE_MNNVL=1\n{command}\n");
        let nodes = belief(&read("x", &text), "HybridEP").nodes.clone();
        assert_eq!(nodes, ["n1".into(), "n2".into()], "{command}");
    }
}
