//! The test node itself: it treats pods as a kubelet would, as far as fabricgate depends on it.
//! Commands in pods run over real websockets, through the API server and the streaming code of
//! Kubernetes.

use std::fs;
use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{AttachParams, LogParams};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use super::lab::{Lab, Nodes, Server, lab, wait_for};

struct Site {
    server: Server,
    namespace: String,
    names: Vec<String>,
    nodes: Nodes,
}

async fn site(lab: &Lab, count: usize, more: &Value) -> Site {
    let server = lab.admin().await;
    let namespace = lab.namespace("nodes").await;
    let mut nodes = lab.nodes();
    let names = nodes.rack(&format!("{namespace}-"), count, more);
    server.wait_until_ready(&names).await;
    Site { server, namespace, names, nodes }
}

impl Site {
    fn pods(&self) -> String {
        format!("/api/v1/namespaces/{}/pods", self.namespace)
    }

    /// A pod on the first node that runs a shell command.
    async fn pod(&self, name: &str, words: &str, more: &Value) -> String {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"nodeName": self.names[0], "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 2,
                "containers": [{"name": "main", "image": "lab:1",
                    "command": ["sh", "-c", words]}]}});
        merge(&mut pod, more);
        self.server.create(&self.pods(), &pod).await;
        name.to_owned()
    }

    async fn phase(&self, name: &str, phase: &str) -> Value {
        self.server.wait_for_phase(&self.namespace, name, phase).await
    }

    fn api(&self) -> Api<Pod> {
        Api::namespaced(self.server.0.clone(), &self.namespace)
    }
}

fn merge(into: &mut Value, more: &Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more.clone(),
    }
}

fn gpus(count: u32) -> Value {
    json!({"limits": {"nvidia.com/gpu": count.to_string()}})
}

/// Runs a command in a pod, with input; its streams and its code.
async fn exec(pods: &Api<Pod>, pod: &str, words: &str, input: Vec<u8>) -> (Vec<u8>, String, i32) {
    let how = AttachParams::default().stdin(true).stdout(true).stderr(true);
    let mut running = pods.exec(pod, ["sh", "-c", words], &how).await.expect("an exec");
    let (mut stdin, mut stdout, mut stderr) = (
        running.stdin().expect("stdin"),
        running.stdout().expect("stdout"),
        running.stderr().expect("stderr"),
    );
    let ended = running.take_status().expect("a status");
    let (mut out, mut err) = (Vec::new(), String::new());
    let write = async {
        stdin.write_all(&input).await.expect("it reads");
        stdin.shutdown().await.expect("a closed stream");
    };
    let (_, read, written) =
        tokio::join!(write, stdout.read_to_end(&mut out), stderr.read_to_string(&mut err));
    read.expect("its stdout");
    written.expect("its stderr");
    let status = ended.await.expect("a status");
    running.join().await.expect("a clean end");
    let code = match status.status.as_deref() {
        Some("Success") => 0,
        _ => {
            let causes = status.details.as_ref().and_then(|details| details.causes.as_ref());
            let code = causes.and_then(|causes| causes.first()?.message.as_ref()?.parse().ok());
            code.unwrap_or_else(|| panic!("{status:?}"))
        }
    };
    (out, err, code)
}

#[tokio::test]
async fn commands_run_in_pods_over_websockets_of_both_kinds() {
    let Some(lab) = lab() else { return };
    // For kubelets before 1.36 the API server translates.
    for old in [false, true] {
        let site = site(&lab, 1, &json!({"old_kubelet": old})).await;
        site.pod("busy", "sleep 600", &json!({})).await;
        site.phase("busy", "Running").await;
        let pods = site.api();
        let output = exec(&pods, "busy", "cat; echo oops >&2; exit 7", b"hello".to_vec()).await;
        assert_eq!(output, (b"hello".to_vec(), "oops\n".to_owned(), 7), "old: {old}");

        let noise: Vec<u8> =
            (0..1_u32 << 20).map(|at| at.wrapping_mul(31).to_le_bytes()[1]).collect();
        let (out, err, code) = exec(&pods, "busy", "cat", noise.clone()).await;
        assert!(out == noise, "{} of {} bytes came back", out.len(), noise.len());
        assert_eq!((err.as_str(), code), ("", 0));

        let mut many = JoinSet::new();
        for number in 0..24 {
            let pods = pods.clone();
            many.spawn(async move {
                let text = format!("line {number}\n").repeat(2_000).into_bytes();
                let (out, _, code) = exec(&pods, "busy", "cat; exit 3", text.clone()).await;
                assert!(out == text && code == 3, "{number}: {} bytes, {code}", out.len());
            });
        }
        while let Some(ended) = many.join_next().await {
            ended.expect("no panic");
        }
    }
}

#[tokio::test]
async fn a_pod_is_a_process_of_its_node_with_its_name_address_and_gpus() {
    let Some(lab) = lab() else { return };
    let mut site = site(&lab, 2, &json!({})).await;
    let container = json!({"name": "main", "image": "lab:1", "resources": gpus(3),
        "command": ["sh", "-c", "echo $NAME on $NODE at $(ADDRESS) >&2; exit $CODE"],
        "env": [{"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "CODE", "value": "0"}]});
    // The scheduler finds a node for it.
    let spec = json!({"nodeName": null, "containers": [container],
        "nodeSelector": {"kubernetes.io/hostname": site.names[1]}});
    site.pod("well", "", &json!({"spec": spec})).await;
    let pod = site.phase("well", "Succeeded").await;
    assert_eq!(pod["spec"]["nodeName"], json!(site.names[1]));
    let address = pod["status"]["podIP"].as_str().expect("an address");
    let node = site.server.node(&site.names[1]).await;
    assert_eq!(node["status"]["addresses"][0]["address"], json!(address));
    let log = site.api().logs("well", &LogParams::default()).await.expect("a log");
    assert_eq!(log, format!("well on {} at {address}\n", site.names[1]));

    // Four GPUs are not six, regardless of the pods' scheduler.
    site.pod("first", "sleep 600", &json!({})).await;
    let mut hungry = json!({"name": "main", "image": "lab:1", "command": ["sleep", "600"]});
    hungry["resources"] = gpus(3);
    let wants = json!({"spec": {"containers": [hungry]}});
    site.pod("second", "", &wants).await;
    site.phase("second", "Running").await;
    site.pod("third", "", &wants).await;
    let refused = site.phase("third", "Failed").await;
    assert_eq!(refused["status"]["reason"], json!("OutOfnvidia.com/gpu"));

    // A reboot ends the running processes, and is visible.
    let before = site.server.node(&site.names[0]).await["status"]["nodeInfo"]["bootID"].clone();
    let boot = site.nodes.reboot(&site.names[0]);
    assert_ne!(before, json!(boot));
    let after = site.server.node(&site.names[0]).await;
    assert_eq!(after["status"]["nodeInfo"]["bootID"], json!(boot));
    let ended = site.phase("second", "Failed").await;
    let code = &ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"];
    assert_eq!(code, &json!(137));
}

#[tokio::test]
async fn pods_wait_fail_expire_and_end_as_on_a_real_node() {
    let Some(lab) = lab() else { return };
    let mut site = site(&lab, 1, &json!({})).await;
    let image = |image: &str| {
        json!({"spec": {"containers": [{"name": "main", "image": image, "command": ["sh", "-c",
            "exit 5"]}]}})
    };
    site.pod("missing", "", &image("registry.invalid/missing:1")).await;
    site.pod("slow", "", &image("slow:2")).await;
    let waits = |pod: &Value, word: &str| {
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == json!(word)
    };
    for word in ["ErrImagePull", "ImagePullBackOff"] {
        let is_so = |pod: &Value| waits(pod, word);
        site.server.wait_for_pod(&site.namespace, "missing", word, is_so).await;
    }
    let ended = site.phase("slow", "Failed").await;
    let code = &ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"];
    assert_eq!(code, &json!(5));

    site.pod("late", "sleep 600", &json!({"spec": {"activeDeadlineSeconds": 1}})).await;
    let late = site.phase("late", "Failed").await;
    assert_eq!(late["status"]["reason"], json!("DeadlineExceeded"));

    // Ignores SIGTERM, with a child in its own session: both are gone when the grace period is
    // over.
    let words = "trap '' TERM; setsid sleep 600 & while :; do sleep 1; done";
    site.pod("deaf", words, &json!({})).await;
    site.phase("deaf", "Running").await;
    let process = site.nodes.pods()[0]["process"].as_u64().expect("a process");
    assert!(Path::new(&format!("/proc/{process}")).exists());
    let path = format!("{}/deaf", site.pods());
    site.server.delete(&path).await;
    site.server.wait_until_gone(&path).await;
    assert_eq!(site.nodes.pods(), [] as [Value; 0]);
    assert_eq!(marked(&lab), 1, "the test node is all that is left");

    // A command in an ended pod gets an error; one in a node without power gets no answer.
    site.pod("orphan", "sleep 600", &json!({})).await;
    site.phase("orphan", "Running").await;
    let Site { server, namespace, names, nodes } = site;
    nodes.unplug();
    assert_eq!(marked(&lab), 0);
    let path = format!("/api/v1/namespaces/{namespace}/pods/orphan");
    let orphan = server.get(&path).await.expect("the pod stays");
    assert_eq!(orphan["status"]["phase"], json!("Running"));
    let mut again = lab.nodes();
    again.add(&json!({"name": names[0], "gpus": 4}));
    server.wait_for_phase(&namespace, "orphan", "Failed").await;
    server.delete(&path).await;
    server.wait_until_gone(&path).await;
}

/// Processes that carry the mark of the lab.
fn marked(lab: &Lab) -> usize {
    let mark = format!("FABRICGATE_LAB_AT={}\0", lab.folder.display());
    let processes = fs::read_dir("/proc").expect("processes").filter_map(Result::ok);
    let environments =
        processes.filter_map(|process| fs::read(process.path().join("environ")).ok());
    let carries = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).contains(&mark);
    environments.filter(carries).count()
}

const DOMAIN: &str = "resource.nvidia.com/computeDomain";

fn claims(name: &str) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": [
            {"name": "gpus", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 4}}]}}}})
}

fn claiming(template: &str) -> Value {
    let container = json!({"name": "main", "image": "lab:1", "command": ["sleep", "600"],
        "resources": {"claims": [{"name": "it"}]}});
    json!({"spec": {"nodeName": null, "containers": [container],
        "resourceClaims": [{"name": "it", "resourceClaimTemplateName": template}]}})
}

#[tokio::test]
async fn the_scheduler_allocates_gpus_of_a_driver() {
    let Some(lab) = lab() else { return };
    let site = site(&lab, 1, &json!({"dra": true})).await;
    let templates =
        format!("/apis/resource.k8s.io/v1/namespaces/{}/resourceclaimtemplates", site.namespace);
    site.server.create(&templates, &claims("all")).await;
    // Other tests' nodes may offer some too.
    let mut wanted = claiming("all");
    wanted["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": site.names[0]});
    site.pod("has", "", &wanted).await;
    site.phase("has", "Running").await;
    site.pod("waits", "", &wanted).await;
    let is_so = |pod: &Value| pod["status"]["conditions"].to_string().contains("Unschedulable");
    site.server.wait_for_pod(&site.namespace, "waits", "unschedulable", is_so).await;
    let path = format!("{}/has", site.pods());
    site.server.delete(&path).await;
    site.phase("waits", "Running").await;
}

#[tokio::test]
async fn a_compute_domain_labels_the_nodes_of_its_pods_until_it_goes() {
    let Some(lab) = lab() else { return };
    let site = site(&lab, 2, &json!({})).await;
    let domains =
        format!("/apis/resource.nvidia.com/v1beta1/namespaces/{}/computedomains", site.namespace);
    let domain = json!({"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain",
        "metadata": {"name": "probe"}, "spec": {"numNodes": 2,
            "channel": {"resourceClaimTemplate": {"name": "probe-channel"}}}});
    let made = site.server.create(&domains, &domain).await;
    let uid = made["metadata"]["uid"].as_str().expect("a uid").to_owned();
    for name in &site.names {
        let mut wanted = claiming("probe-channel");
        wanted["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": name});
        site.pod(name, "", &wanted).await;
    }
    for name in &site.names {
        site.phase(name, "Running").await;
        assert_eq!(site.server.node(name).await["metadata"]["labels"][DOMAIN], json!(uid));
    }
    let path = format!("{domains}/probe");
    let ready = site.server.get(&path).await.expect("the domain")["status"].clone();
    assert_eq!(ready["status"], json!("Ready"), "{ready}");
    assert_eq!(ready["nodes"].as_array().map(Vec::len), Some(2), "{ready}");
    let clique = super::lab::clique(&format!("{}-", site.namespace));
    assert_eq!(ready["nodes"][0]["cliqueID"], json!(clique));

    let changed = json!({"spec": {"numNodes": 3}});
    let refused = site.server.try_merge(&path, &changed).await.expect_err("it is immutable");
    assert!(refused.to_string().contains("immutable"), "{refused}");

    // A node that is removed under running pods takes them with it.
    site.server.delete(&path).await;
    site.server.wait_until_gone(&path).await;
    for name in &site.names {
        assert_eq!(site.server.node(name).await["metadata"]["labels"][DOMAIN], Value::Null);
        site.phase(name, "Failed").await;
    }
}

#[tokio::test]
async fn pods_have_volumes_and_a_private_token() {
    let Some(lab) = lab() else { return };
    let site = site(&lab, 1, &json!({})).await;
    let maps = format!("/api/v1/namespaces/{}/configmaps", site.namespace);
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "said"},
        "data": {"a": "alpha", "b": "beta"}});
    site.server.create(&maps, &map).await;
    let mounts = json!([{"name": "said", "mountPath": "/etc/lab-volume/said", "readOnly": true},
        {"name": "space", "mountPath": "/var/lib/lab-volume"}]);
    let container = |name: &str, words: &str| {
        json!({"name": name, "image": "lab:1", "command": ["sh", "-c", words],
            "volumeMounts": mounts})
    };
    let words = "cat /etc/lab-volume/said/* /var/lib/lab-volume/file; touch /etc/lab-volume/said/x || \
        curl -sS --cacert $D/ca.crt -H \"Authorization: Bearer $(cat $D/token)\" \
        -d \"$ASK\" -H 'Content-Type: application/json' $AT; sleep 600";
    let mut main = container("main", words);
    main["env"] = json!([
        {"name": "D", "value": "/var/run/secrets/kubernetes.io/serviceaccount"},
        {"name": "AT", "value": "https://$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)\
            /apis/authentication.k8s.io/v1/selfsubjectreviews"},
        {"name": "ASK", "value": json!({"apiVersion": "authentication.k8s.io/v1",
            "kind": "SelfSubjectReview"}).to_string()}]);
    site.pod(
        "has",
        "",
        &json!({"spec": {
            "initContainers": [container("first", "echo gamma > /var/lib/lab-volume/file")],
            "containers": [main],
            "volumes": [
                {"name": "said", "configMap": {"name": "said",
                    "items": [{"key": "a", "path": "a"}, {"key": "b", "path": "b"}]}},
                {"name": "space", "emptyDir": {}}]}}),
    )
    .await;
    site.phase("has", "Running").await;
    let account = format!("system:serviceaccount:{}:default", site.namespace);
    let log = wait_for("the pod's log", async || {
        let log =
            site.api().logs("has", &LogParams::default()).await.map_err(|it| it.to_string())?;
        if log.contains("groups") { Ok(log) } else { Err(log) }
    })
    .await;
    assert!(log.starts_with("alphabetagamma\n") && log.contains(&account), "{log}");
    assert!(log.contains("Read-only file system"), "{log}");
    let (seen, _, _) = exec(&site.api(), "has", "cat /var/lib/lab-volume/file", Vec::new()).await;
    assert_eq!(seen, b"gamma\n");
    for path in ["/etc/lab-volume", "/var/lib/lab-volume"] {
        assert!(!Path::new(path).exists(), "{path} is the pod's own");
    }
}
