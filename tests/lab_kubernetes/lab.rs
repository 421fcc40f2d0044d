//! The lab as tests see it: one cluster for all of them, in which each has its own nodes and
//! namespace.
//!
//! A test that leaves objects behind, or inspects foreign ones, breaks others. Waits have long
//! limits: this machine may be busy.

#![allow(dead_code, reason = "one harness for all tests; not all need all of it")]

use std::fmt::Debug;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use control::sources::kubernetes::KubernetesClientConfig;
use control::sources::tls;
use kube::api::{ListParams, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Request;
use kube::core::params::{DeleteParams, Patch};
use kube::{Client, Config};
use serde_json::{Value, json};

const KUBECONFIG: &str = "FABRICGATE_LAB_KUBERNETES";
/// The program under test, by default the one built with these tests.
const BINARY: &str = "FABRICGATE_LAB_BINARY";
/// Time within which a change must be visible.
const PATIENCE: Duration = Duration::from_secs(90);
/// Poll interval.
const LOOK: Duration = Duration::from_millis(150);

/// Tests share the cluster, its scheduler and its audit log.
static TURN: Mutex<()> = Mutex::new(());
/// Number that makes names unique per test.
static NUMBER: AtomicUsize = AtomicUsize::new(0);

/// The lab's folder: a kubeconfig for each user, logs, the test node.
pub(super) struct Lab {
    pub(super) folder: PathBuf,
    turn: Option<MutexGuard<'static, ()>>,
    /// Started by this test, and ended with it.
    own: Option<tempfile::TempDir>,
}

/// The lab, or `None` where it is missing, which is printed.
#[expect(clippy::print_stdout, reason = "a test that checks nothing reports it")]
pub(super) fn lab() -> Option<Lab> {
    let Some(kubeconfig) = std::env::var_os(KUBECONFIG) else {
        println!("SKIPPED: no Kubernetes to query, `ci/lab-kubernetes test` starts one");
        return None;
    };
    let turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let folder = Path::new(&kubeconfig).parent().expect("a folder").to_owned();
    Some(Lab { folder, turn: Some(turn), own: None })
}

/// A lab of one test, next to the shared one: `variables` are of `ci/lab-kubernetes`.
pub(super) fn own_lab(variables: &[(&str, &str)]) -> Option<Lab> {
    let turn = lab()?.turn.take();
    let own = tempfile::tempdir().expect("a folder");
    let mut command = command(&script());
    let started = command.arg("up").arg(own.path()).envs(variables.iter().copied()).output();
    let started = started.expect("ci/lab-kubernetes");
    let stderr = String::from_utf8_lossy(&started.stderr).into_owned();
    assert!(started.status.success(), "{stderr}{}", String::from_utf8_lossy(&started.stdout));
    Some(Lab { folder: own.path().to_owned(), turn, own: Some(own) })
}

fn script() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/ci/lab-kubernetes").to_owned()
}

#[expect(clippy::disallowed_methods, reason = "a test is not part of the program")]
fn command(program: &str) -> Command {
    Command::new(program)
}

pub(super) fn binary() -> String {
    std::env::var(BINARY).unwrap_or(env!("CARGO_BIN_EXE_fabricgate").to_owned())
}

/// Result of the program.
#[derive(Debug)]
pub(super) struct ProgramOutput {
    pub(super) code: Option<i32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl ProgramOutput {
    /// Fails with its output if it ended with another code.
    pub(super) fn expect(&self, code: i32) -> &ProgramOutput {
        assert_eq!(self.code, Some(code), "{}\n{}", self.stdout, self.stderr);
        self
    }
}

/// Runs the program in a folder. It knows a cluster only by its arguments and files.
pub(super) fn fabricgate(folder: &Path, words: &[&str]) -> ProgramOutput {
    let mut command = command(&binary());
    command.args(words).current_dir(folder).env_remove("KUBECONFIG").env("HOME", folder);
    let ended = command.stdin(Stdio::null()).output().expect("the program");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    ProgramOutput {
        code: ended.status.code(),
        stdout: text(ended.stdout),
        stderr: text(ended.stderr),
    }
}

/// Waits until `look` returns a value; at the time limit it fails with the last observation.
pub(super) async fn wait_for<T>(what: &str, look: impl AsyncFnMut() -> Result<T, String>) -> T {
    wait_within(PATIENCE, what, look).await
}

/// The same with another limit.
pub(super) async fn wait_within<T>(
    limit: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let begun = Instant::now();
    loop {
        match look().await {
            Ok(found) => return found,
            Err(seen) if begun.elapsed() > limit => {
                panic!("not within {} s: {what}; seen last: {seen}", limit.as_secs());
            }
            Err(_) => tokio::time::sleep(LOOK).await,
        }
    }
}

impl Lab {
    /// The kubeconfig of `admin`, `gate`, `unprivileged` or `expired`.
    pub(super) fn kubeconfig(&self, user: &str) -> PathBuf {
        self.folder.join(format!("{user}.kubeconfig"))
    }

    /// The library's client configuration.
    pub(super) fn asks_as(&self, user: &str) -> KubernetesClientConfig {
        let kubeconfig = Some(self.kubeconfig(user));
        KubernetesClientConfig { kubeconfig, context: None, limit: Duration::from_secs(30) }
    }

    /// A name prefix that no other test has, also not an earlier run against the same cluster.
    pub(super) fn name(&self, word: &str) -> String {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        format!("{word}-{:x}x{number}", std::process::id())
    }

    /// The server as its administrator sees it.
    pub(super) async fn admin(&self) -> Server {
        Server::of(&self.kubeconfig("admin")).await
    }

    /// A new namespace in which pods are admitted.
    pub(super) async fn namespace(&self, word: &str) -> String {
        let (server, name) = (self.admin().await, self.name(word));
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        server.create("/api/v1/namespaces", &namespace).await;
        let account = format!("/api/v1/namespaces/{name}/serviceaccounts/default");
        wait_for(&account, async || server.get(&account).await.ok_or("it is not there".to_owned()))
            .await;
        name
    }

    /// A kubeconfig with a token of a service account, which is created if missing.
    pub(super) async fn kubeconfig_of(&self, namespace: &str, account: &str) -> PathBuf {
        let server = self.admin().await;
        let accounts = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        if server.get(&format!("{accounts}/{account}")).await.is_none() {
            let made = json!({"apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": account}});
            server.create(&accounts, &made).await;
        }
        let wanted = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600}});
        let made = server.create(&format!("{accounts}/{account}/token"), &wanted).await;
        let token = made["status"]["token"].as_str().expect("a token");
        let admin = fs::read_to_string(self.kubeconfig("admin")).expect("a kubeconfig");
        let path = self.folder.join(format!("{namespace}-{account}.kubeconfig"));
        fs::write(&path, admin.replace("admin-token", token)).expect("written");
        path
    }

    /// The server's audit log of requests since its start.
    pub(super) fn audit(&self) -> Vec<Value> {
        let log = fs::read_to_string(self.folder.join("audit.jsonl")).expect("the audit log");
        // The last line may be incomplete.
        log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Starts a test node. It ends with the value, and so do its processes.
    pub(super) fn nodes(&self) -> Nodes {
        let bin = Path::new(&binary()).parent().expect("a folder").to_owned();
        let log =
            fs::OpenOptions::new().create(true).append(true).open(self.folder.join("lab-node.log"));
        let log = log.expect("a log");
        let mut command = command(&self.folder.join("lab-node").display().to_string());
        command
            .arg("-kubeconfig")
            .arg(self.kubeconfig("admin"))
            .arg("-clients")
            .arg(self.folder.join("certs/kubelet-client.crt"))
            .arg("-folder")
            .arg(self.folder.join("pods"))
            .arg("-mark")
            .arg(&self.folder)
            .arg("-path")
            .arg(bin)
            .arg("-entrypoint")
            .arg(binary())
            .env("FABRICGATE_LAB_AT", &self.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log);
        let mut child = command.spawn().expect("the test node");
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let orders = child.stdin.take().expect("a pipe");
        Nodes { child, orders: Some(orders), answers, names: Vec::new() }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.own.is_some() {
            let ended = command(&script()).arg("down").arg(&self.folder).status();
            assert!(ended.is_ok_and(|status| status.success()), "the lab is down");
        }
    }
}

/// Nodes that run pods as processes of this machine, simulated by one process.
/// `ci/lab-kubernetes.d/node/main.go` documents its commands.
pub(super) struct Nodes {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    names: Vec<String>,
}

impl Nodes {
    /// Sends it a command and returns its answer; fails at a refusal.
    pub(super) fn order(&mut self, order: &Value) -> Value {
        let answer = self.ask(order);
        assert_eq!(answer["ok"], json!(true), "{order}: {answer}");
        answer
    }

    fn ask(&mut self, order: &Value) -> Value {
        let orders = self.orders.as_mut().expect("the test node runs");
        writeln!(orders, "{order}").expect("the test node takes orders");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("the test node answers");
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{order}: {answer}: {error}"))
    }

    /// Adds a node: `spec` is a `NodeSpec` of the test node.
    pub(super) fn add(&mut self, spec: &Value) -> Value {
        let answer = self.order(&json!({"do": "add", "node": spec}));
        self.names.push(spec["name"].as_str().expect("a name").to_owned());
        answer
    }

    /// Adds a rack: nodes `{prefix}01` and on, with 4 GPUs and a clique of the prefix. `more`
    /// adds fields to all of them.
    pub(super) fn rack(&mut self, prefix: &str, count: usize, more: &Value) -> Vec<String> {
        let names: Vec<String> = (1..=count).map(|number| format!("{prefix}{number:02}")).collect();
        for name in &names {
            let mut spec = more.clone();
            spec["name"] = json!(name);
            if spec["gpus"].is_null() {
                spec["gpus"] = json!(4);
            }
            if spec["labels"]["nvidia.com/gpu.clique"].is_null() {
                spec["labels"]["nvidia.com/gpu.clique"] = json!(clique(prefix));
            }
            self.add(&spec);
        }
        names
    }

    /// Reboots a node: its processes end, and it has a new boot ID, also for later processes.
    pub(super) fn reboot(&mut self, name: &str) -> String {
        let answer = self.order(&json!({"do": "reboot", "node": {"name": name}}));
        answer["boot"].as_str().expect("a boot").to_owned()
    }

    /// True if a node reports ready.
    pub(super) fn set_ready(&mut self, name: &str, ready: bool) {
        self.order(&json!({"do": "set", "node": {"name": name, "ready": ready}}));
    }

    /// Removes a node, with its object.
    pub(super) fn remove(&mut self, name: &str) {
        self.order(&json!({"do": "remove", "node": {"name": name}}));
        self.names.retain(|known| known != name);
    }

    /// The processes that run as pods: node, namespace, pod, process.
    pub(super) fn pods(&mut self) -> Vec<Value> {
        let answer = self.order(&json!({"do": "pods"}));
        answer["pods"].as_array().cloned().unwrap_or_default()
    }

    /// Ends it as a machine without power does: its nodes fall silent, and their objects stay.
    pub(super) fn unplug(mut self) {
        self.names.clear();
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for name in std::mem::take(&mut self.names) {
            let orders = self.orders.as_mut().expect("the test node runs");
            // The error has no remedy where the server is gone.
            let _ = writeln!(orders, "{}", json!({"do": "remove", "node": {"name": name}}));
            let _ = self.answers.read_line(&mut String::new());
        }
        self.orders = None;
        let _ = self.child.wait();
    }
}

pub(super) fn clique(rack: &str) -> String {
    let hash = rack.bytes().fold(7u64, |hash, byte| {
        hash.wrapping_mul(31).wrapping_add(u64::from(byte)) & 0xffff_ffff_ffff
    });
    format!("5eed5eed-0000-4000-8000-{hash:012x}.1")
}

/// The server as one user sees it. Objects are plain JSON at plain paths.
pub(super) struct Server(pub(super) Client);

impl Server {
    pub(super) async fn of(kubeconfig: &Path) -> Server {
        tls::install_provider();
        let read = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
        Server(Client::try_from(config.expect("a configuration")).expect("a client"))
    }

    pub(super) async fn create(&self, path: &str, object: &Value) -> Value {
        self.try_create(path, object).await.unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    pub(super) async fn try_create(
        &self,
        path: &str,
        object: &Value,
    ) -> Result<Value, kube::Error> {
        self.try_create_by("lab", path, object).await
    }

    /// Creates an object with a given field manager.
    pub(super) async fn try_create_by(
        &self,
        manager: &str,
        path: &str,
        object: &Value,
    ) -> Result<Value, kube::Error> {
        let by = PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() };
        let body = serde_json::to_vec(object).expect("JSON");
        self.0.request(Request::new(path).create(&by, body).expect("a request")).await
    }

    /// The object, or `None` where it does not exist.
    pub(super) async fn get(&self, path: &str) -> Option<Value> {
        let (parent, name) = path.rsplit_once('/').expect("a path");
        let request = Request::new(parent).get(name, &kube::api::GetParams::default());
        match self.0.request(request.expect("a request")).await {
            Ok(found) => Some(found),
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            Err(error) => panic!("{path}: {error}"),
        }
    }

    pub(super) async fn list(&self, path: &str) -> Vec<Value> {
        let request = Request::new(path).list(&ListParams::default()).expect("a request");
        let listed: Result<Value, kube::Error> = self.0.request(request).await;
        let listed = listed.unwrap_or_else(|error| panic!("{path}: {error}"));
        listed["items"].as_array().expect("items").clone()
    }

    /// A JSON merge patch; the object afterwards.
    pub(super) async fn merge(&self, path: &str, patch: &Value) -> Value {
        self.patch(path, &Patch::Merge(patch), None).await
    }

    /// The same where it may be refused.
    pub(super) async fn try_merge(&self, path: &str, patch: &Value) -> Result<Value, kube::Error> {
        self.try_patch(path, &Patch::Merge(patch), None).await
    }

    /// A patch of the status: strategic, so that foreign conditions stay.
    pub(super) async fn status(&self, path: &str, status: &Value) -> Value {
        self.patch(path, &Patch::Strategic(json!({"status": status})), Some("status")).await
    }

    /// A strategic patch of the status as given, which may be refused.
    pub(super) async fn try_status(&self, path: &str, patch: &Value) -> Result<Value, kube::Error> {
        self.try_patch(path, &Patch::Strategic(patch), Some("status")).await
    }

    /// The same by a merge patch, the only kind for custom resources: lists are replaced.
    pub(super) async fn merge_status(&self, path: &str, status: &Value) -> Value {
        self.patch(path, &Patch::Merge(json!({"status": status})), Some("status")).await
    }

    async fn patch<P: serde::Serialize + Debug>(
        &self,
        path: &str,
        patch: &Patch<P>,
        part: Option<&str>,
    ) -> Value {
        let patched = self.try_patch(path, patch, part).await;
        patched.unwrap_or_else(|error| panic!("{path}: {patch:?}: {error}"))
    }

    async fn try_patch<P: serde::Serialize + Debug>(
        &self,
        path: &str,
        patch: &Patch<P>,
        part: Option<&str>,
    ) -> Result<Value, kube::Error> {
        let (parent, name) = path.rsplit_once('/').expect("a path");
        let (request, by) = (Request::new(parent), PatchParams::default());
        let request = match part {
            Some(part) => request.patch_subresource(part, name, &by, patch),
            None => request.patch(name, &by, patch),
        };
        self.0.request(request.expect("a request")).await
    }

    /// Deletes an object; a missing one is not an error.
    pub(super) async fn delete(&self, path: &str) {
        let (parent, name) = path.rsplit_once('/').expect("a path");
        let request = Request::new(parent).delete(name, &DeleteParams::default());
        let deleted: Result<Value, kube::Error> = self.0.request(request.expect("a request")).await;
        match deleted {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => panic!("{path}: {error}"),
        }
    }

    pub(super) async fn node(&self, name: &str) -> Value {
        self.get(&format!("/api/v1/nodes/{name}")).await.unwrap_or_else(|| panic!("no node {name}"))
    }

    /// Waits until nodes accept pods: ready, and without the taint of new ones.
    pub(super) async fn wait_until_ready(&self, names: &[String]) {
        for name in names {
            wait_for(&format!("node {name} is ready"), async || {
                let node = self.node(name).await;
                let taints = node["spec"]["taints"].to_string();
                match taints.contains("node.kubernetes.io/not-ready") {
                    false => Ok(()),
                    true => Err(format!("{taints} {}", node["status"]["conditions"])),
                }
            })
            .await;
        }
    }

    /// Waits until a pod's status is as expected; the pod then.
    pub(super) async fn wait_for_pod(
        &self,
        namespace: &str,
        name: &str,
        what: &str,
        is_so: impl Fn(&Value) -> bool,
    ) -> Value {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        wait_for(&format!("pod {name} is {what}"), async || match self.get(&path).await {
            Some(pod) if is_so(&pod) => Ok(pod),
            Some(pod) => Err(pod["status"].to_string()),
            None => Err("it is not there".to_owned()),
        })
        .await
    }

    /// Waits for a pod's phase; the pod then.
    pub(super) async fn wait_for_phase(&self, namespace: &str, name: &str, phase: &str) -> Value {
        self.wait_for_pod(namespace, name, phase, |pod| pod["status"]["phase"] == phase).await
    }

    pub(super) async fn wait_until_gone(&self, path: &str) {
        wait_for(&format!("{path} is gone"), async || match self.get(path).await {
            None => Ok(()),
            Some(found) => Err(found.to_string()),
        })
        .await;
    }
}

/// A simulated fabric on nodes of the lab: a scenario whose nodes have the names of the
/// cluster's, and the simulated tools. A test simulates a repair by rewriting it while it is in
/// use.
pub(super) struct Simulated(tempfile::TempDir);

impl Simulated {
    pub(super) fn new(scenario: &str) -> Simulated {
        let folder = tempfile::tempdir().expect("a folder");
        let tools = folder.path().join("tools");
        fs::create_dir(&tools).expect("a folder");
        for name in sim::tool_dispatch::NAMES {
            symlink(binary(), tools.join(name)).expect("a link");
        }
        let simulated = Simulated(folder);
        simulated.rewrite(scenario);
        // Every pod of the lab receives its node's name, from any creator.
        let script = format!(
            "#!/bin/sh\n\
             export FABRICGATE_SIM={} FABRICGATE_SIM_NODE=$FABRICGATE_LAB_NODE\n\
             export PATH={}:$PATH\n\
             exec {} \"$@\"\n",
            simulated.scenario().display(),
            tools.display(),
            binary()
        );
        let worker = simulated.0.path().join("fabricgate");
        fs::write(&worker, script).expect("written");
        fs::set_permissions(&worker, fs::Permissions::from_mode(0o755)).expect("changed");
        simulated
    }

    /// Replaces the whole scenario.
    pub(super) fn rewrite(&self, scenario: &str) {
        let new = self.0.path().join("scenario.new");
        fs::write(&new, scenario).expect("written");
        fs::rename(new, self.scenario()).expect("renamed");
    }

    pub(super) fn scenario(&self) -> PathBuf {
        self.0.path().join("scenario.toml")
    }

    /// The stand-in for fabricgate in a pod: the program with the scenario, the node's name and
    /// the simulated tools around it.
    pub(super) fn worker(&self) -> PathBuf {
        self.0.path().join("fabricgate")
    }

    /// The same as the environment of a container, for pods that tests create.
    pub(super) fn environment(&self) -> Value {
        let tools = self.0.path().join("tools").display().to_string();
        let path = std::env::var("PATH").expect("a PATH");
        json!([
            {"name": "FABRICGATE_SIM", "value": self.scenario()},
            {"name": "FABRICGATE_SIM_NODE",
                "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "PATH", "value": format!("{tools}:{path}")},
        ])
    }
}
