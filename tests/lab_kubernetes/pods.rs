//! Nodes that are measured through pods: created, awaited, used, and deleted, even if their
//! creator ends.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::lab::{Lab, Nodes, ProgramOutput, Server, Simulated, binary, fabricgate, lab, wait_for};

/// A rack, a namespace for pods, a configuration, and the simulated hardware.
struct Site {
    server: Server,
    namespace: String,
    rack: String,
    names: Vec<String>,
    nodes: Nodes,
    simulated: Simulated,
    folder: tempfile::TempDir,
    kubeconfig: String,
}

fn scenario(rack: &str, count: usize, faults: &str) -> String {
    format!(
        "title = \"A rack of the lab\"\nseed = 7\nreadings = 2\n[noise]\nsigma = 0.002\n[tools]\n\
         node_tests = [\"host_to_device_memcpy_ce\", \"device_to_host_memcpy_ce\", \
         \"device_to_device_memcpy_read_ce\"]\n\
         domain_tests = [\"multinode_device_to_device_memcpy_read_ce\"]\n\
         [[domain]]\nname = \"{rack}\"\nnodes = \"{rack}[01-{count:02}]\"\n\
         platform = \"gb200-nvl72\"\n{faults}"
    )
}

async fn site(lab: &Lab, count: usize, more: &Value) -> Site {
    let server = lab.admin().await;
    let namespace = lab.namespace("pods").await;
    let rack = format!("{namespace}-");
    let mut nodes = lab.nodes();
    let names = nodes.rack(&rack, count, more);
    server.wait_until_ready(&names).await;
    let site = Site {
        simulated: Simulated::new(&scenario(&rack, count, "")),
        folder: tempfile::tempdir().expect("a folder"),
        kubeconfig: lab.kubeconfig("admin").display().to_string(),
        server,
        namespace,
        rack,
        names,
        nodes,
    };
    let claims = format!(
        "[[domain]]\nname = \"{0}\"\nnodes = \"{0}[01-{count:02}]\"\nplatform = \"gb200-nvl72\"\n\
         gpus_per_node = 4\n",
        site.rack
    );
    std::fs::write(site.folder.path().join("claims.toml"), claims).expect("written");
    site.configure("");
    site
}

impl Site {
    /// Writes the configuration, with these lines in `[launcher.kubernetes]`.
    fn configure(&self, more: &str) {
        let (worker, kubeconfig) = (self.simulated.worker(), &self.kubeconfig);
        let config = format!(
            "claims = \"claims.toml\"\n[launcher]\nkind = \"kubernetes\"\nworker = {worker:?}\n\
             [confirm]\nwait_s = 0\n[gate]\nthrough = \"kubernetes\"\n\
             [gate.kubernetes]\nkubeconfig = {kubeconfig:?}\n\
             [launcher.kubernetes]\nkubeconfig = {kubeconfig:?}\nnamespace = {:?}\n\
             capabilities = []\n{more}\n{}{}",
            self.namespace,
            if more.contains("image =") { "" } else { "image = \"lab:1\"\n" },
            if more.contains("compute_domain =") { "" } else { "compute_domain = \"never\"\n" },
        );
        std::fs::write(self.folder.path().join("fabricgate.toml"), config).expect("written");
    }

    fn run(&self, words: &[&str]) -> ProgramOutput {
        let words = [&["--config", "fabricgate.toml", "--no-progress"], words].concat();
        fabricgate(self.folder.path(), &words)
    }

    /// Starts it without waiting.
    #[expect(clippy::disallowed_methods, reason = "a test is not part of the program")]
    fn start(&self, words: &[&str]) -> Child {
        let mut command = Command::new(binary());
        command
            .args(["--config", "fabricgate.toml", "--no-progress"])
            .args(words)
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.spawn().expect("the program")
    }

    fn path(&self, kind: &str) -> String {
        format!("/api/v1/namespaces/{}/{kind}", self.namespace)
    }

    async fn pods(&self) -> Vec<Value> {
        self.server.list(&self.path("pods")).await
    }

    async fn expect_nothing_left(&mut self) {
        let pods = self.pods().await;
        assert!(pods.is_empty(), "{pods:?}");
        let namespace = json!(self.namespace);
        let running = self.nodes.pods();
        assert!(!running.iter().any(|it| it["namespace"] == namespace), "{running:?}");
    }

    /// A foreign pod with this number of GPUs.
    async fn foreign_pod(&self, name: &str, node: &str, gpus: u32, more: &Value) {
        let container = json!({"name": "main", "image": "lab:1", "command": ["sleep", "600"],
            "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}});
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"nodeName": node, "terminationGracePeriodSeconds": 1,
                "containers": [container]}});
        pod["metadata"]["labels"] = more.clone();
        self.server.create(&self.path("pods"), &pod).await;
        self.server.wait_for_phase(&self.namespace, name, "Running").await;
    }

    /// The journal's events of holds, in order.
    fn holds(&self) -> Vec<String> {
        let journal = self.folder.path().join("gate/journal.jsonl");
        let text = std::fs::read_to_string(journal).unwrap_or_default();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let events = lines.filter_map(|line| line["event"].as_str().map(str::to_owned));
        events.filter(|event| event == "holding" || event == "freed").collect()
    }
}

fn verdict(output: &ProgramOutput) -> (String, Vec<String>) {
    let document: Value = serde_json::from_str(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}\n{}", output.stdout, output.stderr));
    let verdicts = &document["verdicts"];
    let findings = verdicts["findings"].as_array().expect("findings");
    let scopes = findings.iter().map(|it| it.to_string()).collect();
    (verdicts["outcome"].as_str().expect("an outcome").to_owned(), scopes)
}

#[tokio::test]
async fn a_whole_audit_runs_through_pods_and_leaves_nothing_behind() {
    let Some(lab) = lab() else { return };
    // They join with the start-up taint, which fabricgate's pods tolerate and others do not.
    let taint = json!({"key": "fabricgate.io/unverified", "effect": "NoSchedule"});
    let mut site = site(&lab, 3, &json!({"taints": [taint]})).await;
    site.configure("ranks = \"names\"");
    let output = site.run(&["audit", "--json"]);
    output.expect(0);
    let (outcome, findings) = verdict(&output);
    assert_eq!((outcome.as_str(), findings.len()), ("pass", 0), "{findings:?}");
    site.expect_nothing_left().await;
    assert_eq!(site.holds(), ["holding", "freed"]);
    for name in &site.names {
        let node = site.server.node(name).await;
        assert!(node["spec"]["taints"].to_string().contains("unverified"), "nothing is lifted");
        assert_eq!(node["spec"]["unschedulable"], Value::Null);
    }

    // A node whose GPUs are in use is left out and reported, and the others are measured. Where
    // no ranks start in other pods, every pod runs its part of the probes across nodes.
    let busy = site.names[1].clone();
    site.foreign_pod("training", &busy, 4, &json!({})).await;
    site.configure("");
    let output = site.run(&["audit", "--json"]);
    output.expect(4);
    assert!(output.stderr.contains(&format!("left out: {busy}: ")), "{}", output.stderr);
    assert!(!output.stderr.contains(&format!("left out: {}", site.names[0])), "{}", output.stderr);
    assert!(!output.stdout.contains("ranks of [launcher.kubernetes]"), "{}", output.stdout);
    let pods = site.pods().await;
    assert_eq!(pods.len(), 1, "only theirs: {pods:?}");
    assert_eq!(pods[0]["status"]["phase"], "Running", "and it was left alone");
}

#[tokio::test]
async fn a_fault_is_found_through_pods_as_through_any_launcher() {
    let Some(lab) = lab() else { return };
    let mut site = site(&lab, 3, &json!({})).await;
    let fault = format!(
        "[[fault]]\nkind = \"lost-links\"\ngpu = \"{}:2\"\ncount = 1\nfirst = 5\n",
        site.names[1]
    );
    site.simulated.rewrite(&scenario(&site.rack, 3, &fault));
    site.configure("ranks = \"names\"");
    let output = site.run(&["audit", "--json"]);
    output.expect(3);
    let (_, findings) = verdict(&output);
    assert!(!findings.is_empty());
    assert!(findings.iter().all(|it| it.contains(&site.names[1])), "{findings:?}");
    site.expect_nothing_left().await;
}

#[tokio::test]
async fn a_pod_that_does_not_run_is_reported_and_costs_only_its_node() {
    let Some(lab) = lab() else { return };
    let mut site = site(&lab, 2, &json!({})).await;
    for (settings, words) in [
        ("rdma = { \"rdma/hca\" = 1 }\nstart_s = 4", "Insufficient rdma/hca"),
        ("image = \"registry.invalid/missing:1\"\nstart_s = 4", "Pull"),
        ("image = \"slow:600\"\nstart_s = 3", "ContainerCreating"),
        ("service_account = \"missing\"", "its pod cannot be created"),
        ("resource = \"example.com/none\"", "it offers no example.com/none"),
    ] {
        site.configure(settings);
        let output = site.run(&["audit"]);
        output.expect(5);
        assert!(
            output.stderr.contains("left out: ") && output.stderr.contains(words),
            "{output:?}"
        );
        assert!(output.stderr.contains("no node can be measured now"), "{output:?}");
        site.expect_nothing_left().await;
    }
    // A node with an untolerated taint is left out before a pod is created for it.
    let taint = json!([{"key": "example.com/theirs", "effect": "NoSchedule"}]);
    let node = format!("/api/v1/nodes/{}", site.names[0]);
    site.server.merge(&node, &json!({"spec": {"taints": taint}})).await;
    site.configure("ranks = \"names\"");
    let output = site.run(&["audit"]);
    output.expect(4);
    let expected = format!("left out: {}: taint example.com/theirs", site.names[0]);
    assert!(output.stderr.contains(&expected), "{}", output.stderr);
    site.configure("ranks = \"names\"\ntolerations = [{ key = \"example.com/theirs\" }]");
    site.run(&["audit"]).expect(0);
    site.expect_nothing_left().await;
    let holds = site.holds();
    assert_eq!(
        holds.iter().filter(|it| *it == "holding").count(),
        holds.iter().filter(|it| *it == "freed").count(),
        "{holds:?}"
    );
}

#[tokio::test]
async fn busy_nodes_are_awaited_if_requested() {
    let Some(lab) = lab() else { return };
    let mut site = site(&lab, 2, &json!({})).await;
    site.configure("ranks = \"names\"\nbusy = \"wait\"\nwait_s = 120");
    site.foreign_pod("training", &site.names[0], 1, &json!({})).await;
    // An audit does not wait for others' work, unless the operator requests it.
    let mut sweep = site.start(&["audit", "--when-busy", "wait"]);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(site.pods().await.len(), 1, "no pod of fabricgate's waits for busy GPUs");
    site.server.delete(&format!("{}/training", site.path("pods"))).await;
    let ended = sweep.wait().expect("it ends");
    assert_eq!(ended.code(), Some(0));
    site.expect_nothing_left().await;
}

#[tokio::test]
async fn pods_of_a_killed_process_are_found_by_journal_and_by_labels() {
    let Some(lab) = lab() else { return };
    let mut site = site(&lab, 2, &json!({})).await;
    // An installation of fabricgate has the same name, and belongs to no run.
    let ours = json!({"app.kubernetes.io/name": "fabricgate"});
    site.foreign_pod("watch", &site.names[0], 0, &ours).await;
    let name = |pods: &[Value]| -> Vec<Value> {
        pods.iter().map(|pod| pod["metadata"]["name"].clone()).collect()
    };

    killed(&site, 1).await;
    let output = site.run(&["gate", "recover"]);
    output.expect(0);
    assert!(output.stderr.contains("left behind by process"), "{}", output.stderr);
    assert_eq!(name(&site.pods().await), [json!("watch")]);
    assert_eq!(site.holds(), ["holding", "freed"]);

    // The record is lost with its folder.
    killed(&site, 1).await;
    std::fs::remove_dir_all(site.folder.path().join("gate")).expect("removed");
    let output = site.run(&["gate", "recover"]);
    output.expect(0);
    assert!(output.stderr.contains("in no journal of this host"), "{}", output.stderr);
    assert_eq!(name(&site.pods().await), [json!("watch")]);

    // The next sweep does the same before it begins.
    killed(&site, 1).await;
    site.configure("ranks = \"names\"");
    let output = site.run(&["audit"]);
    output.expect(0);
    assert!(output.stderr.contains("left behind by process"), "{}", output.stderr);
    assert_eq!(name(&site.pods().await), [json!("watch")]);

    // Objects that a process on another machine may need stay until their expiry.
    killed(&site, 1).await;
    std::fs::remove_dir_all(site.folder.path().join("gate")).expect("removed");
    for pod in site.pods().await {
        let metadata = &pod["metadata"];
        let Some(owner) = metadata["annotations"]["fabricgate.io/held-by"].as_str() else {
            continue;
        };
        let mut owner: Value = serde_json::from_str(owner).expect("JSON");
        owner["host"] = "elsewhere".into();
        let path = format!("{}/{}", site.path("pods"), metadata["name"].as_str().expect("a name"));
        let annotations = json!({"fabricgate.io/held-by": owner.to_string()});
        site.server.merge(&path, &json!({"metadata": {"annotations": annotations}})).await;
    }
    let output = site.run(&["gate", "recover"]);
    output.expect(6);
    assert!(
        output.stderr.contains("on elsewhere, whose state is unknown here"),
        "{}",
        output.stderr
    );
    assert!(output.stderr.contains("gate recover --gone elsewhere --why"), "{}", output.stderr);
    assert_eq!(site.pods().await.len(), 3);
    for pod in site.pods().await {
        let name = pod["metadata"]["name"].as_str().expect("a name").to_owned();
        if name != "watch" {
            let over = json!({"metadata": {"annotations": {"fabricgate.io/until": "1000"}}});
            site.server.merge(&format!("{}/{name}", site.path("pods")), &over).await;
        }
    }
    site.run(&["gate", "recover"]).expect(0);
    assert_eq!(name(&site.pods().await), [json!("watch")]);
    site.server.delete(&format!("{}/watch", site.path("pods"))).await;
    site.server.wait_until_gone(&format!("{}/watch", site.path("pods"))).await;
    site.expect_nothing_left().await;
}

/// Starts a sweep whose pods never run, next to as many foreign pods, and kills it once they
/// exist.
async fn killed(site: &Site, others: usize) {
    site.configure("image = \"slow:3600\"\nstart_s = 600");
    let mut sweep = site.start(&["audit"]);
    wait_for("its pods are there", async || {
        let count = site.pods().await.len();
        if count == site.names.len() + others { Ok(()) } else { Err(format!("{count} pods")) }
    })
    .await;
    sweep.kill().expect("it runs");
    sweep.wait().expect("it ended");
}

#[tokio::test]
async fn workers_without_a_coordinator_end_and_their_pods_are_found() {
    let Some(lab) = lab() else { return };
    let mut site = site(&lab, 2, &json!({})).await;
    site.configure("ranks = \"names\"");
    let mut sweep = site.start(&["burn-in"]);
    wait_for("its pods run", async || {
        let pods = site.pods().await;
        let running = pods.iter().filter(|pod| pod["status"]["phase"] == "Running").count();
        if running == 2 { Ok(()) } else { Err(format!("{pods:?}")) }
    })
    .await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    sweep.kill().expect("it runs");
    sweep.wait().expect("it ended");
    let output = site.run(&["gate", "recover"]);
    output.expect(0);
    site.expect_nothing_left().await;
}

/// The result of `node attach`, with this input.
#[expect(clippy::disallowed_methods, reason = "a test is not part of the program")]
fn attach(
    kubeconfig: &Path,
    namespace: &str,
    pod: &str,
    words: &[&str],
    input: &[u8],
) -> ProgramOutput {
    let mut command = Command::new(binary());
    command.args(["node", "attach", "--namespace", namespace, "--pod", pod, "--container", "main"]);
    command.arg("--kubeconfig").arg(kubeconfig).arg("--").args(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program");
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_vec();
    let writing = std::thread::spawn(move || {
        // It may have ended without reading.
        let _ = stdin.write_all(&input);
    });
    let mut stdout = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut stdout).expect("text");
    let mut stderr = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("text");
    let code = child.wait().expect("it ends").code();
    writing.join().expect("written");
    ProgramOutput { code, stdout, stderr }
}

#[tokio::test]
async fn output_of_a_pods_command_returns_whole_with_its_ending() {
    let Some(lab) = lab() else { return };
    for old in [false, true] {
        let site = site(&lab, 1, &json!({"old_kubelet": old})).await;
        site.foreign_pod("p", &site.names[0], 0, &json!({})).await;
        let admin = lab.kubeconfig("admin");
        let run = |words: &[&str], input: &[u8]| attach(&admin, &site.namespace, "p", words, input);

        let output = run(&["sh", "-c", "cat; echo oops >&2; exit 7"], b"one\ntwo\n");
        assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("one\ntwo\n", "oops\n"));
        assert_eq!(output.code, Some(7));
        // More than any buffer on the way, both ways, and the end of the input ends it.
        let lines: String = (0..200_000).map(|number| format!("line {number}\n")).collect();
        let output = run(&["cat"], lines.as_bytes());
        assert_eq!(output.code, Some(0), "{}", output.stderr);
        assert!(output.stdout == lines, "{} of {} bytes", output.stdout.len(), lines.len());
        let output = run(&["sh", "-c", "exec <&-; yes | head -c 3000000"], b"");
        assert_eq!((output.code, output.stdout.len()), (Some(0), 3_000_000));
    }
}

#[tokio::test]
async fn a_failed_start_in_a_pod_is_reported_in_one_sentence() {
    let Some(lab) = lab() else { return };
    let mut site = site(&lab, 1, &json!({})).await;
    site.foreign_pod("p", &site.names[0], 0, &json!({})).await;
    let (admin, unprivileged) = (lab.kubeconfig("admin"), lab.kubeconfig("unprivileged"));
    let namespace = site.namespace.clone();
    let failure = |kubeconfig: &Path, pod: &str, words: &[&str]| {
        let output = attach(kubeconfig, &namespace, pod, words, b"");
        assert_eq!((output.code, output.stdout.as_str()), (Some(255), ""), "{}", output.stderr);
        assert_eq!(output.stderr.trim().lines().count(), 1, "{}", output.stderr);
        output.stderr
    };
    assert!(failure(&unprivileged, "p", &["true"]).contains("403"));
    assert!(failure(&lab.kubeconfig("expired"), "p", &["true"]).contains("401"));
    assert!(failure(&admin, "q", &["true"]).contains("it is gone"));
    // The runtime reports the failed start, with a shell's code or with none.
    let output = attach(&admin, &namespace, "p", &["/no/such/program"], b"");
    assert!(matches!(output.code, Some(126 | 127 | 255)), "{output:?}");
    assert!(output.stderr.contains("/no/such/program"), "{output:?}");

    // The node is lost while it runs: that is not the command's end.
    let pods = namespace.clone();
    let running = tokio::task::spawn_blocking({
        let admin = admin.clone();
        move || attach(&admin, &pods, "p", &["sh", "-c", "echo begun; exec sleep 600"], b"")
    });
    tokio::time::sleep(Duration::from_secs(2)).await;
    site.nodes.reboot(&site.names[0]);
    let output = running.await.expect("it ends");
    assert_eq!(output.stdout, "begun\n");
    assert!(matches!(output.code, Some(137 | 255)), "{output:?}");
}

#[tokio::test]
async fn claims_and_compute_domains_are_made_for_a_run_and_gone_after_its_pods() {
    let Some(lab) = lab() else { return };
    let mut site = site(&lab, 2, &json!({"dra": true})).await;
    site.configure("gpus = \"claim\"\ncompute_domain = \"auto\"\nranks = \"names\"");
    let output = site.run(&["audit"]);
    output.expect(0);
    site.expect_nothing_left().await;
    let (dra, nvidia) = ("/apis/resource.k8s.io/v1", "/apis/resource.nvidia.com/v1beta1");
    for (group, kind) in
        [(dra, "resourceclaims"), (dra, "resourceclaimtemplates"), (nvidia, "computedomains")]
    {
        let path = format!("{group}/namespaces/{}/{kind}", site.namespace);
        let left = site.server.list(&path).await;
        assert!(left.is_empty(), "{kind}: {left:?}");
    }
    // In the order of the server's audit log.
    let of_ours = |verb: &str, resource: &str| -> Vec<usize> {
        let log = lab.audit();
        let is_it = |line: &Value| {
            let object = &line["objectRef"];
            line["verb"] == verb
                && object["namespace"] == site.namespace.as_str()
                && object["resource"] == resource
                && object["subresource"].is_null()
                // Every other pod here names a program.
                && line["userAgent"].is_null()
                && line["user"]["username"] == "admin"
        };
        (0..log.len()).filter(|at| is_it(&log[*at])).collect()
    };
    let (made, deleted) =
        (of_ours("create", "computedomains"), of_ours("delete", "computedomains"));
    assert_eq!((made.len(), deleted.len()), (1, 1));
    let pods = of_ours("delete", "pods");
    assert!(pods.iter().any(|at| *at < deleted[0]) && made[0] < pods[0], "{pods:?} {deleted:?}");
    assert!(of_ours("create", "pods").iter().all(|at| made[0] < *at));
}
