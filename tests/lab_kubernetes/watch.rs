//! The standing gate on a real cluster: nodes join, are certified, reboot and are certified
//! again, and of two instances one is active, also if one is paused.

use std::fs;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use control::gate::kubernetes::{KubernetesScheduler, WriteFence};
use control::gate::lease::leader_elector::{LeaderElectionConfig, LeaderElector, LeadershipStatus};
use control::gate::lease::{LeaseFence, LeaseTerm};
use control::gate::scheduler::{Scheduler, SchedulerError};
use control::sources::kubernetes::KubernetesClientConfig as Asked;
use model::kubernetes_node::{KubernetesNodeUpdate, VERDICT};
use model::node_update::NodeUpdate;
use model::source_report::SourceProblemKind;
use serde_json::{Value, json};

use super::lab::{Lab, Nodes, Server, Simulated, binary, lab, wait_for};

/// Fast enough for tests, slow enough for a busy machine.
const LEASE: (u64, u64) = (6, 1);

/// A rack that joins with the start-up taint, and a configuration that watches it.
struct Site {
    server: Server,
    namespace: String,
    names: Vec<String>,
    nodes: Nodes,
    simulated: Simulated,
    folder: tempfile::TempDir,
    kubeconfig: PathBuf,
}

async fn site(lab: &Lab, count: usize) -> Site {
    let server = lab.admin().await;
    let namespace = lab.namespace("watch").await;
    let rack = format!("{namespace}-");
    let mut nodes = lab.nodes();
    let taint = json!({"key": "fabricgate.io/unverified", "effect": "NoSchedule"});
    // Pods are processes of this machine, and report its boot.
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot");
    let more = json!({"taints": [taint], "boot": boot.trim()});
    let names = nodes.rack(&rack, count, &more);
    server.wait_until_ready(&names).await;
    let scenario = format!(
        "title = \"A rack of the lab\"\nseed = 7\nreadings = 2\n[noise]\nsigma = 0.002\n[tools]\n\
         node_tests = [\"host_to_device_memcpy_ce\", \"device_to_host_memcpy_ce\", \
         \"device_to_device_memcpy_read_ce\"]\n\
         domain_tests = [\"multinode_device_to_device_memcpy_read_ce\"]\n\
         [[domain]]\nname = \"{rack}\"\nnodes = \"{rack}[01-{count:02}]\"\n\
         platform = \"gb200-nvl72\"\n"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let claims = format!(
        "[[domain]]\nname = \"{rack}\"\nnodes = \"{rack}[01-{count:02}]\"\nplatform = \"gb200-nvl72\"\n\
         gpus_per_node = 4\n"
    );
    fs::write(folder.path().join("claims.toml"), claims).expect("written");
    let site = Site {
        simulated: Simulated::new(&scenario),
        kubeconfig: lab.kubeconfig("admin"),
        server,
        namespace,
        names,
        nodes,
        folder,
    };
    site.configure("one", "");
    site
}

impl Site {
    /// Writes the configuration of an instance, with these lines in `[watch]`.
    fn configure(&self, instance: &str, more: &str) {
        let (worker, kubeconfig) = (self.simulated.worker(), &self.kubeconfig);
        let (duration, renew) = LEASE;
        let namespace = &self.namespace;
        let config = format!(
            "claims = \"claims.toml\"\n[launcher]\nkind = \"kubernetes\"\nworker = {worker:?}\n\
             [launcher.kubernetes]\nkubeconfig = {kubeconfig:?}\nnamespace = {namespace:?}\n\
             capabilities = []\nimage = \"lab:1\"\nranks = \"names\"\ncompute_domain = \"never\"\n\
             [confirm]\nwait_s = 0\n\
             [probes]\nrun = [\"nvbandwidth-ce\", \"nvidia-smi-nvlink\", \"nvbandwidth-lane\"]\n\
             [sweep]\nmatchings = 2\n\
             [gate]\nstate = \"{instance}\"\nthrough = \"kubernetes\"\n\
             [gate.kubernetes]\nkubeconfig = {kubeconfig:?}\n\
             [watch]\ninterval_s = 2\nconclude_s = 60\nbackoff = {{ first_s = 1, most_s = 5 }}\n\
             lease = {{ namespace = {namespace:?}, name = \"watch\", holder = \"{instance}\", \
             duration_s = {duration}, renew_s = {renew} }}\n{more}\n"
        );
        let file = format!("{instance}.toml");
        fs::write(self.folder.path().join(file), config).expect("written");
    }

    /// Starts an instance without waiting.
    #[expect(clippy::disallowed_methods, reason = "a test is not part of the program")]
    fn start(&self, instance: &str) -> Instance {
        let log = self.folder.path().join(format!("{instance}.jsonl"));
        let out = File::options().create(true).append(true).open(&log).expect("a log");
        let mut command = Command::new(binary());
        let config = format!("{instance}.toml");
        command.args(["--json", "--config", &config, "watch", "--apply"]);
        command.current_dir(self.folder.path()).env_remove("KUBECONFIG");
        let errors = File::create(self.folder.path().join(format!("{instance}.err")));
        command.stdin(Stdio::null()).stdout(out).stderr(errors.expect("a log"));
        Instance { child: command.spawn().expect("the program"), log }
    }

    async fn lease(&self) -> Option<Value> {
        let namespace = &self.namespace;
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/watch");
        self.server.get(&path).await
    }

    /// Status and reason of fabricgate's condition on a node.
    async fn condition(&self, name: &str) -> (String, String) {
        let node = self.server.node(name).await;
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let ours = conditions.iter().find(|it| it["type"] == "GpuFabricVerified");
        let word = |key: &str| ours.and_then(|it| it[key].as_str()).unwrap_or_default().to_owned();
        (word("status"), word("reason"))
    }

    async fn is_unverified(&self, name: &str) -> bool {
        let taints = self.server.node(name).await["spec"]["taints"].to_string();
        taints.contains("fabricgate.io/unverified")
    }

    async fn until_certified(&self, instance: &Instance) {
        for name in &self.names {
            wait_for(&format!("{name} is certified"), async || {
                let condition = self.condition(name).await;
                match condition.0 == "True" && !self.is_unverified(name).await {
                    true => Ok(()),
                    false => Err(format!("{condition:?}\n{}", instance.text())),
                }
            })
            .await;
        }
    }
}

/// A running instance, and its output.
struct Instance {
    child: Child,
    log: PathBuf,
}

impl Instance {
    fn text(&self) -> String {
        fs::read_to_string(&self.log).expect("a log")
    }

    fn events(&self, kind: &str) -> Vec<Value> {
        let text = self.text();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|it| it["event"] == kind).collect()
    }

    async fn until(&self, kind: &str, count: usize) -> Value {
        wait_for(&format!("{count} times {kind}"), async || {
            self.events(kind).into_iter().nth(count - 1).ok_or_else(|| self.text())
        })
        .await
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.child.id()).expect("a number");
        let pid = rustix::process::Pid::from_raw(pid).expect("a process");
        rustix::process::kill_process(pid, signal).expect("signalled");
    }

    /// Terminates it; its exit code.
    fn end(mut self) -> Option<i32> {
        self.signal(rustix::process::Signal::TERM);
        self.child.wait().expect("ended").code()
    }

    /// The process of a job that it started.
    fn job(&self, name: &str) -> rustix::process::Pid {
        let found = node::exec::background::find_marked_processes("FABRICGATE_WATCH_JOB", name);
        *found.expect("/proc").first().unwrap_or_else(|| panic!("{name}: {}", self.text()))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wanted(lab: &Lab, namespace: &str, holder: &str) -> LeaderElectionConfig {
    LeaderElectionConfig {
        kubernetes: lab.asks_as("admin"),
        namespace: namespace.to_owned(),
        name: "of-two".to_owned(),
        holder: holder.to_owned(),
        duration: Duration::from_secs(LEASE.0),
        renew: Duration::from_secs(LEASE.1),
    }
}

async fn held(keeper: &LeaderElector) -> LeaseTerm {
    wait_for("the Lease is held", async || {
        let standing = keeper.status.borrow().clone();
        standing.current_term().cloned().ok_or(format!("{standing:?}"))
    })
    .await
}

#[tokio::test]
async fn of_two_one_holds_the_lease_and_gives_it_to_the_other() {
    let Some(lab) = lab() else { return };
    let namespace = lab.namespace("lease").await;
    let one = LeaderElector::start(wanted(&lab, &namespace, "one")).expect("a thread");
    let first = held(&one).await;
    let two = LeaderElector::start(wanted(&lab, &namespace, "two")).expect("a thread");
    wait_for("two knows of one", async || {
        let standing = two.status.borrow().clone();
        match &standing {
            LeadershipStatus::Waiting { why, is_confirmed: true }
                if why.contains("one holds it") =>
            {
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    // Longer than an unrenewed Lease counts.
    tokio::time::sleep(Duration::from_secs(LEASE.0 + 2)).await;
    assert_eq!(one.status.borrow().current_term(), Some(&first), "it is renewed");
    assert!(two.status.borrow().current_term().is_none());

    // A clock that is years off: only changes of the value count.
    let server = lab.admin().await;
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/of-two");
    server.merge(&path, &json!({"spec": {"renewTime": "2001-01-01T00:00:00.000000Z"}})).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(
        one.status.borrow().current_term(),
        Some(&first),
        "it was written by another, and kept"
    );
    assert!(two.status.borrow().current_term().is_none());

    tokio::task::spawn_blocking(|| one.release()).await.expect("released");
    let second = held(&two).await;
    assert_eq!((second.transitions, second.holder.as_str()), (first.transitions + 1, "two"));
}

#[tokio::test]
async fn only_the_current_leader_writes() {
    let Some(lab) = lab() else { return };
    let namespace = lab.namespace("fence").await;
    let server = lab.admin().await;
    let node = lab.name("fenced");
    let made = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}});
    server.create("/api/v1/nodes", &made).await;
    let labels = [(VERDICT.to_owned(), Some("pass".to_owned()))].into();
    let marks = KubernetesNodeUpdate { labels, ..KubernetesNodeUpdate::default() };
    let change = NodeUpdate { kubernetes: Some(marks), ..NodeUpdate::default() };
    let cluster = |term: Result<LeaseTerm, String>| {
        let fence = LeaseFence::new(lab.asks_as("admin"), term);
        KubernetesScheduler::new(lab.asks_as("admin")).with_fence(std::sync::Arc::new(fence))
    };
    let nodes = [node.as_str().into()];

    let one = LeaderElector::start(wanted(&lab, &namespace, "one")).expect("a thread");
    let first = held(&one).await;
    tokio::task::spawn_blocking(|| one.release()).await.expect("released");
    let two = LeaderElector::start(wanted(&lab, &namespace, "two")).expect("a thread");
    let second = held(&two).await;
    let before = server.node(&node).await["metadata"]["resourceVersion"].clone();
    // The same name in an earlier term is a different holder, too.
    let again = LeaseTerm { holder: "two".to_owned(), ..first.clone() };
    let no_term = Err("FABRICGATE_TERM: no term".to_owned());
    for (term, why) in [(Ok(first), "held by two"), (Ok(again), "in term"), (no_term, "no term")] {
        let error = cluster(term).update_nodes(&nodes, &change).await.expect_err("refused");
        assert!(error.message.contains(why), "{error}");
        assert_eq!(server.node(&node).await["metadata"]["resourceVersion"], before);
    }
    cluster(Ok(second)).update_nodes(&nodes, &change).await.expect("written");
    assert_eq!(server.node(&node).await["metadata"]["labels"][VERDICT], "pass");
    server.delete(&format!("/api/v1/nodes/{node}")).await;
}

#[tokio::test]
async fn a_fence_whose_token_ends_in_the_middle_reads_the_one_that_is_there_then() {
    let Some(lab) = lab() else { return };
    let namespace = lab.namespace("fence-token").await;
    let server = lab.admin().await;
    let keeper = LeaderElector::start(wanted(&lab, &namespace, "one")).expect("a thread");
    let term = held(&keeper).await;
    let kubeconfig = lab.kubeconfig_of(&namespace, "writer").await;
    let rbac = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}");
    let rules =
        json!([{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"]}]);
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "reads"}, "rules": rules});
    server.create(&format!("{rbac}/roles"), &role).await;
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "reads"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reads"},
        "subjects": [{"kind": "ServiceAccount", "name": "writer", "namespace": namespace}]});
    server.create(&format!("{rbac}/rolebindings"), &binding).await;
    let of = |kubeconfig: PathBuf| {
        let server = Asked { kubeconfig: Some(kubeconfig), ..lab.asks_as("admin") };
        LeaseFence::new(server, Ok(term.clone()))
    };
    let message = |answer: Result<(), SchedulerError>| answer.map_err(|error| error.message);

    let copy = kubeconfig.with_extension("copy");
    fs::copy(&kubeconfig, &copy).expect("copied");
    let (kept, renewed) = (of(kubeconfig.clone()), of(copy.clone()));
    for fence in [&kept, &renewed] {
        wait_for("the right to read the Lease", async || message(fence.check().await)).await;
    }
    // Their token is invalid once the account is gone.
    server.delete(&format!("/api/v1/namespaces/{namespace}/serviceaccounts/writer")).await;
    wait_for("the end of the token", async || match of(kubeconfig.clone()).check().await {
        Ok(()) => Err("it still counts".to_owned()),
        Err(_) => Ok(()),
    })
    .await;
    let error = kept.check().await.expect_err("no access");
    assert_eq!(error.kind, SourceProblemKind::Denied, "{error}");
    fs::copy(lab.kubeconfig("admin"), &copy).expect("renewed");
    renewed.check().await.expect("the token that is there now was read");
    tokio::task::spawn_blocking(|| keeper.release()).await.expect("released");
}

#[tokio::test]
async fn a_rack_joins_is_certified_takes_pods_and_is_certified_again_after_a_boot() {
    let Some(lab) = lab() else { return };
    let mut site = site(&lab, 2).await;
    // A job's pod waits for a certified node.
    let container = json!({"name": "main", "image": "lab:1", "command": ["sleep", "600"],
        "resources": {"limits": {"nvidia.com/gpu": "4"}}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "job"},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container],
            "nodeSelector": {"kubernetes.io/hostname": site.names[0]}}});
    let pods = format!("/api/v1/namespaces/{}/pods", site.namespace);
    site.server.create(&pods, &pod).await;
    let watch = site.start("one");
    site.until_certified(&watch).await;
    site.server.wait_for_phase(&site.namespace, "job", "Running").await;
    let ended = watch.until("ended", 1).await;
    assert_eq!((ended["code"].as_u64(), ended["profile"].as_str()), (Some(0), Some("admit")));
    assert_eq!(watch.events("started").len(), 1, "{}", watch.text());

    // It boots: its certificate no longer counts, and it is measured again.
    let second = site.names[1].clone();
    site.nodes.reboot(&second);
    let marks = watch.until("marks", 1).await;
    assert_eq!(marks["nodes"], json!([second]));
    assert!(marks["why"].as_str().expect("words").contains("booted"), "{marks}");
    let started = watch.until("started", 2).await;
    assert_eq!((&started["cause"], &started["profile"]), (&json!("expired"), &json!("recertify")));
    // The other one runs a pod, and is not measured.
    assert_eq!(started["nodes"], json!([second]));
    assert!(started.get("partners").is_none(), "{started}");
    watch.until("ended", 2).await;

    assert_eq!(watch.end(), Some(0));
    let lease = site.lease().await.expect("a Lease");
    assert!(lease["spec"].get("holderIdentity").is_none(), "given back: {lease}");
}

#[tokio::test]
async fn a_rebooted_node_takes_no_pods_until_it_passes_if_configured() {
    let Some(lab) = lab() else { return };
    let mut site = site(&lab, 2).await;
    let rest = "[policy]\noutstanding = 1.0\n";
    site.configure("one", &format!("expired = \"taint\"\n{rest}"));
    let watch = site.start("one");
    site.until_certified(&watch).await;
    watch.until("ended", 1).await;
    let names = site.names.clone();
    site.nodes.reboot(&names[1]);
    // Its marks first, and the taint immediately after: ten minutes are for failures.
    wait_for("the taint is reported", async || {
        let marked = watch.events("marks");
        let is_so = |it: &&Value| it["why"].to_string().contains("takes no new pods");
        let marked = marked.iter().find(is_so).cloned().ok_or_else(|| watch.text())?;
        assert_eq!(
            (&marked["nodes"], &marked["result"]),
            (&json!([names[1]]), &json!("as written"))
        );
        Ok(())
    })
    .await;
    // A pass removes it, and no other node has one.
    watch.until("ended", 2).await;
    site.until_certified(&watch).await;
    assert_eq!(watch.end(), Some(0));
}

#[tokio::test]
async fn a_paused_leader_s_child_writes_nothing_after_another_took_over() {
    let Some(lab) = lab() else { return };
    let site = site(&lab, 2).await;
    let off = "profiles = { unverified = \"off\", missing = \"off\", expired = \"off\" }";
    site.configure("two", off);
    let one = site.start("one");
    let job = one.until("started", 1).await["job"].as_str().expect("a name").to_owned();
    let child = one.job(&job);
    one.signal(rustix::process::Signal::STOP);
    rustix::process::kill_process(child, rustix::process::Signal::STOP).expect("paused");
    let two = site.start("two");
    let leading = two.until("leading", 1).await;
    assert!(leading["term"].as_str().expect("a term").contains("/two/"), "{leading}");

    // The child resumes alone, measures to its end, and tries to write.
    rustix::process::kill_process(child, rustix::process::Signal::CONT).expect("goes on");
    let log = site.folder.path().join(format!("one/watch/{job}.log"));
    wait_for("the child was refused", async || {
        let log_text = fs::read_to_string(&log).expect("a log");
        if log_text.contains("another instance is active") { Ok(()) } else { Err(log_text) }
    })
    .await;
    wait_for("the child has ended", async || {
        let found = node::exec::background::find_marked_processes("FABRICGATE_WATCH_JOB", &job);
        // Its parent sleeps and does not reap it: a dead process has no environment.
        if found.expect("/proc").is_empty() { Ok(()) } else { Err(String::new()) }
    })
    .await;
    for name in &site.names {
        assert!(site.is_unverified(name).await);
        assert_eq!(site.condition(name).await.0, "");
    }

    // The previous leader resumes, and detects that it no longer leads.
    one.signal(rustix::process::Signal::CONT);
    one.until("lost", 1).await;
    one.until("waiting", 1).await;
    assert_eq!(two.end(), Some(0));
    one.until("leading", 2).await;
    site.until_certified(&one).await;
    assert_eq!(one.end(), Some(0));
}

#[tokio::test]
async fn a_watch_that_is_killed_leaves_nothing_that_its_successor_does_not_end() {
    let Some(lab) = lab() else { return };
    let site = site(&lab, 2).await;
    let mut first = site.start("one");
    let job = first.until("started", 1).await["job"].as_str().expect("a name").to_owned();
    let child = first.job(&job);
    first.child.kill().expect("killed");
    first.child.wait().expect("reaped");
    // So that it still works when the successor takes over. Not before: the kernel sends a hangup
    // to a stopped group whose parent dies.
    rustix::process::kill_process(child, rustix::process::Signal::STOP).expect("paused");
    let second = site.start("one");
    // Both write into one log.
    second.until("leading", 2).await;
    rustix::process::kill_process(child, rustix::process::Signal::CONT).expect("goes on");
    let trouble = second.until("trouble", 1).await;
    let what = trouble["what"].as_str().expect("words");
    assert!(what.contains(&job) && what.contains("were ended"), "{what}");
    assert!(
        node::exec::background::find_marked_processes("FABRICGATE_WATCH_JOB", &job)
            .expect("/proc")
            .is_empty()
    );
    site.until_certified(&second).await;
    assert_eq!(second.end(), Some(0));
}

#[tokio::test]
async fn a_job_that_is_killed_certifies_nothing_and_the_next_one_takes_its_pods_back() {
    let Some(lab) = lab() else { return };
    let site = site(&lab, 2).await;
    let watch = site.start("one");
    let job = watch.until("started", 1).await["job"].as_str().expect("a name").to_owned();
    let child = watch.job(&job);
    let pods = format!("/api/v1/namespaces/{}/pods", site.namespace);
    let names = async || -> Vec<String> {
        let pods = site.server.list(&pods).await;
        pods.iter().map(|pod| pod["metadata"]["name"].to_string()).collect()
    };
    let left = wait_for("its pods are there", async || {
        let names = names().await;
        if names.len() == site.names.len() { Ok(names) } else { Err(format!("{names:?}")) }
    })
    .await;
    rustix::process::kill_process(child, rustix::process::Signal::KILL).expect("killed");
    let ended = watch.until("ended", 1).await;
    assert_eq!((&ended["outcome"], ended.get("code")), (&json!("killed"), None), "{ended}");

    // Without a command: missing certificates are the cause.
    let next = watch.until("started", 2).await;
    assert_eq!(next["cause"], "unverified", "{next}");
    site.until_certified(&watch).await;
    let ended = watch.until("ended", 2).await;
    assert_eq!(ended["code"], 0, "{ended}");
    let next = next["job"].as_str().expect("a name");
    let log = fs::read_to_string(site.folder.path().join(format!("one/watch/{next}.log")));
    let log = log.expect("a log");
    assert!(log.contains("left behind by process"), "{left:?}: {log}");
    assert_eq!(watch.end(), Some(0));
    assert_eq!(names().await, [""; 0], "{left:?}");
}
