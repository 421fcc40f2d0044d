//! The manifests that an operator installs, on a real server: it accepts them, and the Job of
//! another product ends by fabricgate's exit code. `rights` tests the rights of accounts,
//! `policy` the admission policy.
//!
//! Leaves the objects of `ci/deploy` behind, and no node.

#[path = "../support/manifests.rs"]
pub(super) mod manifests;

use std::collections::BTreeMap;
use std::io;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use assert_cmd::Command;
use axum::http;
use control::sources::tls;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use manifests::{OVERLAYS, called, deploy, documents, overlay, pod_template};
use serde_json::{Value, json};

pub(super) const MERGE: &str = "application/merge-patch+json";
pub(super) const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub(super) const APPLY: &str = "application/apply-patch+yaml";

/// A client of the server.
pub(super) struct Asker(Client);

/// The server's answer, or its status and message.
pub(super) type Answer = Result<Value, (u16, String)>;

async fn configuration() -> Option<Config> {
    let path: PathBuf = std::env::var_os("FABRICGATE_LAB_KUBERNETES")?.into();
    tls::install_provider();
    let read = Kubeconfig::read_from(path).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
    Some(config.expect("a configuration"))
}

impl Asker {
    /// The administrator, where a lab is available.
    pub(super) async fn admin() -> Option<Self> {
        let Some(config) = configuration().await else {
            print_note("no Kubernetes laboratory (ci/lab-kubernetes test): nothing is tested");
            return None;
        };
        Some(Self(Client::try_from(config).expect("a client")))
    }

    pub(super) async fn token(&self, namespace: &str, name: &str) -> String {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
        let wish = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600}});
        let made = self.post(&path, &wish).await.expect("a token");
        made["status"]["token"].as_str().expect("a token").to_owned()
    }

    /// An account with its own token.
    pub(super) async fn account(&self, namespace: &str, name: &str) -> Self {
        let token = self.token(namespace, name).await;
        let mut config = configuration().await.expect("a laboratory");
        config.auth_info = AuthInfo { token: Some(token.into()), ..AuthInfo::default() };
        Self(Client::try_from(config).expect("a client"))
    }

    async fn ask(&self, method: &str, path: &str, kind: &str, body: Vec<u8>) -> Answer {
        let request =
            http::Request::builder().method(method).uri(path).header("content-type", kind);
        match self.0.request::<Value>(request.body(body).expect("a request")).await {
            Ok(document) => Ok(document),
            Err(kube::Error::Api(status)) => Err((status.code, status.message.clone())),
            Err(error) => panic!("{method} {path}: {error}"),
        }
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "application/json", Vec::new()).await
    }

    pub(super) async fn post(&self, path: &str, object: &Value) -> Answer {
        self.ask("POST", path, "application/json", bytes(object)).await
    }

    pub(super) async fn patch(&self, path: &str, kind: &str, patch: &Value) -> Answer {
        self.ask("PATCH", path, kind, bytes(patch)).await
    }

    pub(super) async fn delete(&self, path: &str) -> Answer {
        self.ask("DELETE", path, "application/json", Vec::new()).await
    }

    /// Creates the objects of the overlays.
    pub(super) async fn install(&self) -> Vec<Value> {
        let mut made = BTreeMap::new();
        for name in OVERLAYS {
            for object in rendered(name) {
                made.entry(called(&object)).or_insert(object);
            }
        }
        let mut objects: Vec<Value> = made.into_values().collect();
        // As kubectl does: objects that others need come first.
        objects.sort_by_key(|object| object["kind"] != "Namespace");
        for object in &objects {
            // As `kubectl apply --server-side`. Strict: a field that the server does not know is
            // refused and not dropped.
            let name = object["metadata"]["name"].as_str().expect("a name");
            let mut how = "fieldManager=operator&force=true&fieldValidation=Strict".to_owned();
            // None of its pods may run here.
            if pod_template(object).is_some() {
                how.push_str("&dryRun=All");
            }
            let path = format!("{}/{name}?{how}", collection(object));
            let answer = self.patch(&path, APPLY, object).await;
            assert!(answer.is_ok(), "{}: {answer:?}", called(object));
        }
        objects
    }
}

/// Prints which parts of a test are skipped.
fn print_note(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

fn bytes(object: &Value) -> Vec<u8> {
    serde_json::to_vec(object).expect("JSON")
}

/// The path at which objects of this kind are created.
fn collection(object: &Value) -> String {
    let version = object["apiVersion"].as_str().expect("a version");
    let root = if version == "v1" { "/api/v1".to_owned() } else { format!("/apis/{version}") };
    let kind = object["kind"].as_str().expect("a kind").to_lowercase();
    let plural = if kind.ends_with('y') {
        format!("{}ies", &kind[..kind.len() - 1])
    } else {
        format!("{kind}s")
    };
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{root}/namespaces/{namespace}/{plural}"),
        None => format!("{root}/{plural}"),
    }
}

/// An overlay as kustomize renders it; without kustomize, as this test does.
fn rendered(name: &str) -> Vec<Value> {
    let ours = overlay(name);
    let run = Command::new(deploy().join("render")).arg(name).output().expect("a shell");
    let stderr = String::from_utf8_lossy(&run.stderr);
    if run.status.code() == Some(77) {
        print_note(&stderr);
        return ours;
    }
    assert!(run.status.success(), "{name}: {stderr}");
    let text = String::from_utf8(run.stdout).expect("text");
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
    let plain = |objects: &[Value]| -> BTreeMap<String, Value> {
        let mut plain = BTreeMap::new();
        for object in objects {
            let mut object = object.clone();
            nameless(&mut object);
            plain.insert(called(&object), object);
        }
        plain
    };
    let (theirs, ours_plain) = (plain(&documents), plain(&ours));
    assert!(theirs.keys().eq(ours_plain.keys()), "{name}: kustomize makes other objects");
    for (object, what) in &theirs {
        assert_eq!(Some(what), ours_plain.get(object), "{name}: {object} differs from kustomize's");
    }
    documents
}

/// Without the suffix of generated names, and without a generator's other additions.
fn nameless(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if map.get("kind").is_some_and(|kind| kind == "ConfigMap") {
                map["metadata"].as_object_mut().expect("metadata").remove("labels");
            }
            map.values_mut().for_each(nameless);
        }
        Value::Array(list) => list.iter_mut().for_each(nameless),
        Value::String(text) if text.len() == 21 && text.starts_with("fabricgate-") => {
            "fabricgate".clone_into(text);
        }
        _ => {}
    }
}

#[tokio::test]
async fn a_real_server_takes_every_manifest_and_lets_its_pods_into_their_namespaces() {
    let Some(admin) = Asker::admin().await else { return };
    let objects = admin.install().await;
    let mut pods = 0;
    for object in &objects {
        let Some(template) = pod_template(object) else { continue };
        let namespace = object["metadata"]["namespace"].as_str().expect("a namespace");
        let path = format!("/api/v1/namespaces/{namespace}/pods?dryRun=All&fieldValidation=Strict");
        let mut pod = template.clone();
        pod["apiVersion"] = "v1".into();
        pod["kind"] = "Pod".into();
        pod["metadata"]["name"] = "tried".into();
        pod["spec"]["restartPolicy"] = "Never".into();
        admin
            .post(&path, &pod)
            .await
            .unwrap_or_else(|answer| panic!("{}: {answer:?}", called(object)));
        // The level of the namespace is in force: the same pod as root is refused.
        pod["spec"]["securityContext"]["runAsNonRoot"] = false.into();
        let answer = admin.post(&path, &pod).await;
        assert!(matches!(&answer, Err((403, words)) if words.contains("restricted")), "{answer:?}");
        pods += 1;
    }
    assert_eq!(pods, 5);
    // Of the other products only node-readiness-controller's rule is known here.
    let rule = documents(&deploy().join("integrations/node-readiness-rule.yaml")).remove(0);
    let rules = collection(&rule);
    if admin.get(&rules).await.is_ok() {
        let tried = format!("{rules}?dryRun=All&fieldValidation=Strict");
        let answer = admin.post(&tried, &rule).await;
        assert!(answer.is_ok(), "{answer:?}");
    }
}

/// The Job that NVSentinel makes of fabricgate's template, as it fills it in.
fn validation(name: &str) -> Value {
    let values = documents(&deploy().join("integrations/nvsentinel-validation.yaml")).remove(0);
    let template = values["templates"]["fabricgate-job.yaml"].as_str().expect("a template");
    let filled = template
        .replace("{{.ValidationRequestName}}-{{.TestGroupName}}", name)
        .replace("{{.Timeout}}", "7200")
        .replace("{{(index .Nodes 0).NodeName}}", "node-a");
    assert!(!filled.contains("{{"), "{filled}");
    serde_saphyr::from_str(&filled).expect("YAML")
}

#[tokio::test]
async fn only_a_pass_completes_the_job_that_another_product_waits_for() {
    let Some(admin) = Asker::admin().await else { return };
    let lab = PathBuf::from(std::env::var_os("FABRICGATE_LAB_KUBERNETES").expect("a laboratory"));
    if !lab.with_file_name("kube-controller-manager.log").exists() {
        println!("SKIPPED: no controllers (FABRICGATE_LAB_BARE), so no controller runs Jobs");
        return;
    }
    admin.install().await;
    let jobs = "/apis/batch/v1/namespaces/fabricgate/jobs";
    // As cli::exit defines them: 0 is a pass.
    for code in 0..=6 {
        let name = format!("validation-{code}");
        let _ = admin.delete(&format!("{jobs}/{name}?propagationPolicy=Background")).await;
        let mut job = validation(&name);
        // Its pod must not run: the test plays the kubelet's report.
        job["spec"]["template"]["spec"]["schedulerName"] = "absent".into();
        admin.post(&format!("{jobs}?fieldValidation=Strict"), &job).await.expect("a Job");
        let pods = format!(
            "/api/v1/namespaces/fabricgate/pods?labelSelector=batch.kubernetes.io/job-name={name}"
        );
        let pod = wait_for(&admin, &pods, |list| list["items"][0]["metadata"]["name"].is_string());
        let pod = pod.await["items"][0].clone();
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        let ended = json!({"exitCode": code, "reason": "Ended"});
        let status = json!({"status": {"phase": phase, "containerStatuses": [{
            "name": "recertify", "image": "fabricgate", "imageID": "", "ready": false,
            "restartCount": 0, "state": {"terminated": ended}}]}});
        let at = pod["metadata"]["name"].as_str().expect("a name");
        let at = format!("/api/v1/namespaces/fabricgate/pods/{at}/status");
        admin.patch(&at, STRATEGIC, &status).await.expect("a status");
        let is = |job: &Value, kind: &str| -> bool {
            let conditions = job["status"]["conditions"].as_array();
            conditions.is_some_and(|all| {
                all.iter().any(|it| it["type"] == kind && it["status"] == "True")
            })
        };
        let at = format!("{jobs}/{name}");
        let ended = |job: &Value| is(job, "Complete") || is(job, "Failed");
        let job = wait_for(&admin, &at, ended).await;
        assert_eq!((is(&job, "Complete"), is(&job, "Failed")), (code == 0, code != 0), "{code}");
        // It was not retried either.
        let listed = admin.get(&pods).await.expect("pods");
        assert_eq!(listed["items"].as_array().expect("pods").len(), 1, "{code}");
        let gone = format!("{jobs}/{name}?propagationPolicy=Background");
        admin.delete(&gone).await.expect("a Job less");
    }
}

/// The object once it is as expected.
async fn wait_for(admin: &Asker, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..600 {
        let read = admin.get(path).await;
        if let Ok(read) = &read
            && wanted(read)
        {
            return read.clone();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{path}: never came to be as wanted: {:?}", admin.get(path).await);
}
