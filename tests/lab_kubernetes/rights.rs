//! The rights of each account that an operator installs, on a real server: exactly those of the
//! guide, and each of them is used.

use super::deploy::manifests::{Right, deploy, documents, rights};
use super::deploy::{APPLY, Answer, Asker, MERGE, STRATEGIC};
use super::lab::{Lab, Simulated, binary, fabricgate, lab};
use super::policy::make_node;
use assert_cmd::Command;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// Rights of every account of a cluster (`system:basic-user`).
const BASIC_USER: [&str; 3] =
    ["selfsubjectaccessreviews", "selfsubjectreviews", "selfsubjectrulesreviews"];

/// Every possible request to this server: group, resource, verb.
async fn universe(admin: &Asker) -> BTreeSet<(String, String, String)> {
    let mut all = BTreeSet::new();
    let mut roots = vec![(String::new(), "/api/v1".to_owned())];
    let groups = admin.get("/apis").await.expect("groups");
    for group in groups["groups"].as_array().expect("groups") {
        let name = group["name"].as_str().expect("a name");
        for version in group["versions"].as_array().expect("versions") {
            let path = version["groupVersion"].as_str().expect("a version");
            roots.push((name.to_owned(), format!("/apis/{path}")));
        }
    }
    for (group, root) in roots {
        let list = admin.get(&root).await.expect("resources");
        for resource in list["resources"].as_array().expect("resources") {
            let name = resource["name"].as_str().expect("a name");
            for verb in resource["verbs"].as_array().expect("verbs") {
                all.insert((
                    group.clone(),
                    name.to_owned(),
                    verb.as_str().expect("a verb").to_owned(),
                ));
            }
        }
    }
    // Resources of drivers and schedulers, verbs that are not separate requests, and a wildcard
    // for future ones.
    let verbs = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
    for (group, resource) in [
        ("resource.nvidia.com", "computedomains"),
        ("resource.nvidia.com", "computedomaincliques"),
        ("kueue.x-k8s.io", "topologies"),
        ("kueue.x-k8s.io", "workloads"),
        ("kai.scheduler", "topologies"),
        ("example.com", "whatever"),
    ] {
        all.extend(verbs.map(|verb| (group.to_owned(), resource.to_owned(), verb.to_owned())));
    }
    for (group, resource, verb) in [
        ("", "users", "impersonate"),
        ("", "serviceaccounts", "impersonate"),
        ("rbac.authorization.k8s.io", "clusterroles", "bind"),
        ("rbac.authorization.k8s.io", "clusterroles", "escalate"),
        ("rbac.authorization.k8s.io", "roles", "bind"),
        ("certificates.k8s.io", "signers", "approve"),
    ] {
        all.insert((group.to_owned(), resource.to_owned(), verb.to_owned()));
    }
    all
}

const ACCOUNTS: [(&str, &str); 3] = [
    ("fabricgate", "fabricgate-gate"),
    ("fabricgate", "fabricgate-prober"),
    ("fabricgate-probes", "fabricgate-worker"),
];

async fn allowed(admin: &Asker, account: (&str, &str), right: &Right) -> bool {
    let (resource, subresource) = right.resource.split_once('/').unwrap_or((&right.resource, ""));
    let (namespace, name) = account;
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {
            "user": format!("system:serviceaccount:{namespace}:{name}"),
            "groups": ["system:authenticated", "system:serviceaccounts",
                format!("system:serviceaccounts:{namespace}")],
            "resourceAttributes": {"namespace": right.within, "verb": right.verb,
                "group": right.group, "resource": resource, "subresource": subresource,
                "name": right.name},
        },
    });
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let answer = admin.post(path, &review).await.expect("an answer");
    answer["status"]["allowed"].as_bool().expect("an answer")
}

#[tokio::test]
async fn each_account_has_exactly_the_rights_of_the_guide_on_the_server() {
    let Some(admin) = Asker::admin().await else { return };
    let objects = admin.install().await;
    let given = rights(&objects);
    let universe = universe(&admin).await;
    // Rights are in force a moment after they are given.
    let last = given.iter().next_back().expect("a right");
    for _ in 0..100 {
        if allowed(&admin, ACCOUNTS[1], last).await {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (mut yes, mut no) = (0, 0);
    for account in ACCOUNTS {
        for within in ["", "fabricgate", "fabricgate-probes", "default", "kube-system"] {
            for (group, resource, verb) in &universe {
                let asked = |name: &str| Right {
                    who: account.1.to_owned(),
                    within: within.to_owned(),
                    group: group.clone(),
                    resource: resource.clone(),
                    name: name.to_owned(),
                    verb: verb.clone(),
                };
                // With the one name that a right may be for, and with another.
                for name in ["fabricgate-watch", "fabricgate-prober", "another"] {
                    let may = given.iter().any(|right| {
                        let right = right.clone();
                        let here = right.within.is_empty() || right.within == within;
                        let it = right.name.is_empty() || right.name == name;
                        here && it
                            && Right { within: within.to_owned(), name: name.to_owned(), ..right }
                                == asked(name)
                    }) || verb == "create" && BASIC_USER.contains(&resource.as_str());
                    assert_eq!(
                        allowed(&admin, account, &asked(name)).await,
                        may,
                        "{:?}",
                        asked(name)
                    );
                    if may {
                        yes += 1;
                    } else {
                        no += 1;
                    }
                    // Only these rights name an object; all others need one request only.
                    if !["leases", "serviceaccounts/token"].contains(&resource.as_str()) {
                        break;
                    }
                }
            }
        }
    }
    println!("asked: {yes} allowed, {no} denied, of {} kinds of requests", universe.len());
    assert!(universe.len() > 300 && yes > given.len() && no > 10 * yes);
}

fn pod(name: &str, account: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"serviceAccountName": account, "automountServiceAccountToken": false,
            "containers": [{"name": "worker", "image": "example.com/worker"}]}})
}

fn is_denied(answer: &Answer) -> bool {
    matches!(answer, Err((403, _)))
}

#[tokio::test]
async fn the_prober_becomes_no_actuator_and_the_actuator_no_prober() {
    let Some(admin) = Asker::admin().await else { return };
    admin.install().await;
    let prober = admin.account("fabricgate", "fabricgate-prober").await;
    let gate = admin.account("fabricgate", "fabricgate-gate").await;
    let worker = admin.account("fabricgate-probes", "fabricgate-worker").await;
    make_node(&admin, "escalate").await;
    for _ in 0..100 {
        if prober.get("/api/v1/nodes").await.is_ok() && gate.get("/api/v1/nodes").await.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let node = "/api/v1/nodes/escalate";
    let probes = "/api/v1/namespaces/fabricgate-probes/pods";
    let gates = "/api/v1/namespaces/fabricgate/pods";
    let mark = json!({"metadata": {"labels": {"fabricgate.io/verdict": "pass"}}});
    let drain =
        json!({"spec": {"taints": [{"key": "fabricgate.io/degraded", "effect": "NoSchedule"}]}});

    let _ = admin.delete(&format!("{probes}/probe?gracePeriodSeconds=0")).await;

    // A pod in the gate's namespace would run as the gate.
    assert!(is_denied(&prober.post(gates, &pod("thief", "fabricgate-gate")).await));
    assert!(is_denied(
        &prober.post("/api/v1/namespaces/kube-system/pods", &pod("thief", "default")).await
    ));
    prober.post(probes, &pod("probe", "fabricgate-worker")).await.expect("a pod of its own");
    // It cannot request more than its namespace allows.
    let mut privileged = pod("privileged", "fabricgate-worker");
    privileged["spec"]["hostPID"] = true.into();
    let answer = prober.post(probes, &privileged).await;
    assert!(matches!(&answer, Err((403, words)) if words.contains("baseline")), "{answer:?}");
    assert!(is_denied(&prober.get("/api/v1/namespaces/fabricgate/secrets").await));
    assert!(is_denied(&prober.get("/api/v1/namespaces/fabricgate-probes/secrets").await));
    let token = "/api/v1/namespaces/fabricgate/serviceaccounts/fabricgate-gate/token";
    let wish =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    for asker in [&prober, &gate, &worker] {
        assert!(is_denied(&asker.post(token, &wish).await));
    }
    assert!(is_denied(&prober.patch(node, MERGE, &mark).await));
    assert!(is_denied(&prober.patch(node, MERGE, &drain).await));
    assert!(is_denied(
        &prober.patch(&format!("{node}/status"), STRATEGIC, &json!({"status": {}})).await
    ));

    assert!(is_denied(&gate.post(probes, &pod("thief", "fabricgate-worker")).await));
    assert!(is_denied(&gate.post(gates, &pod("thief", "fabricgate-prober")).await));
    assert!(is_denied(&gate.delete(&format!("{probes}/probe")).await));
    assert!(is_denied(&gate.delete(node).await));
    let ghost = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "ghost"}});
    assert!(is_denied(&gate.post("/api/v1/nodes", &ghost).await));
    // An apply to a deleted node would recreate it.
    assert!(is_denied(&gate.patch("/api/v1/nodes/ghost?fieldManager=gate", APPLY, &ghost).await));
    assert!(is_denied(&gate.get("/api/v1/namespaces/fabricgate/secrets").await));
    gate.patch(node, MERGE, &mark).await.expect("its own mark");

    for path in ["/api/v1/nodes", probes, gates] {
        assert!(is_denied(&worker.get(path).await), "{path}");
    }
    assert!(is_denied(&worker.post(probes, &pod("thief", "fabricgate-worker")).await));

    admin.delete(&format!("{probes}/probe?gracePeriodSeconds=0")).await.expect("a pod less");
    admin.delete(node).await.expect("a node less");
}

const PROBER: &str = "fabricgate-prober";
const PROBES: &str = "fabricgate-probes";
const DOMAINS: &str = "computedomains.resource.nvidia.com";
const CLAIMS: &str = "resourceclaims.resource.k8s.io";
const TEMPLATES: &str = "resourceclaimtemplates.resource.k8s.io";

/// Rights that the runs below do not use: account, where, resource, verb, and when it is needed.
const ONLY_WHEN: [(&str, &str, &str, &str, &str); 9] = [
    (PROBER, "", "topologies.kueue.x-k8s.io", "list", "Kueue is installed"),
    (PROBER, "", "topologies.kai.scheduler", "list", "KAI is installed"),
    (PROBER, PROBES, "events", "list", "a pod does not start"),
    (PROBER, PROBES, "pods", "get", "the answer to a create was lost"),
    // Without it this server refuses (observed), although it logs only the get.
    (PROBER, PROBES, "pods/exec", "create", "commands are run over websockets"),
    (PROBER, PROBES, DOMAINS, "get", "the answer to a create was lost"),
    (PROBER, PROBES, TEMPLATES, "create", "GPUs are claimed"),
    (PROBER, PROBES, TEMPLATES, "delete", "GPUs are claimed"),
    (PROBER, PROBES, CLAIMS, "delete", "GPUs are claimed, and a claim is left over"),
];

/// The installed configuration, for nodes of the lab: other paths, simulated tools, and the
/// tokens of both accounts where the kubeconfig names them.
async fn installed(admin: &Asker, lab: &Lab, simulated: &Simulated) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let mut text = fs::read_to_string(deploy().join("base/fabricgate.toml")).expect("a file");
    let mut replace = |from: &str, to: &str| {
        assert!(text.contains(from), "fabricgate.toml has no {from:?}");
        text = text.replace(from, to);
    };
    replace("/var/lib/fabricgate", &at("state"));
    replace("run_dir =", "platform = \"gb200-nvl72\"\nconfirm = { wait_s = 0 }\nrun_dir =");
    let worker = format!("kind = \"kubernetes\"\nworker = {:?}", simulated.worker());
    replace("kind = \"kubernetes\"", &worker);
    replace("registry.example.com/fabricgate-worker:0.1.0", "lab:1");
    replace("[policy]", "[policy]\nsimulated = true\nclean_hours = 0");
    replace("capabilities = []", "capabilities = []\nranks = \"names\"");
    replace("listen = \"0.0.0.0:9464\"\n", "");
    fs::write(at("fabricgate.toml"), &text).expect("written");

    let own = "/var/run/secrets/kubernetes.io/serviceaccount";
    let admins = documents(&lab.kubeconfig("admin")).remove(0);
    let cluster = &admins["clusters"][0]["cluster"];
    let mut text = fs::read_to_string(deploy().join("base/gating.kubeconfig")).expect("a file");
    let mut replace = |from: &str, to: &str| {
        assert!(text.contains(from), "the kubeconfig has no {from:?}");
        text = text.replace(from, to);
    };
    let setting = |key: &str| cluster[key].as_str().expect("a text").to_owned();
    replace("https://kubernetes.default.svc", &setting("server"));
    replace(&format!("{own}/ca.crt"), &setting("certificate-authority"));
    let account = "fabricgate-gate";
    replace(own, &at(account));
    fs::create_dir(at(account)).expect("a folder");
    let token = admin.token("fabricgate", account).await;
    fs::write(Path::new(&at(account)).join("token"), token).expect("written");
    // The prober's is requested, as in the pod.
    replace("/usr/local/bin/fabricgate", &binary());
    replace("/etc/fabricgate/kubeconfig", &at("kubeconfig"));
    replace("/var/run/fabricgate/prober-token", &at("prober-token"));
    fs::write(at("kubeconfig"), text).expect("written");
    folder
}

/// Requests since the log had `before` lines: account, where, resource, verb, and the number of
/// each answer.
fn asked(log: &[Value]) -> BTreeMap<(String, String, String, String), BTreeMap<u64, usize>> {
    let mut asked: BTreeMap<_, BTreeMap<u64, usize>> = BTreeMap::new();
    for event in log {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let user = text(&event["user"]["username"]);
        let Some(account) = user.strip_prefix("system:serviceaccount:") else { continue };
        let Some((_, account)) = account.split_once(':') else { continue };
        let object = &event["objectRef"];
        if !account.starts_with("fabricgate-") || object.is_null() {
            continue;
        }
        let mut resource = text(&object["resource"]);
        if let Some(part) = object["subresource"].as_str() {
            resource = format!("{resource}/{part}");
        }
        if let Some(group) = object["apiGroup"].as_str() {
            resource = format!("{resource}.{group}");
        }
        let key = (account.to_owned(), text(&object["namespace"]), resource, text(&event["verb"]));
        let code = event["responseStatus"]["code"].as_u64().unwrap_or(0);
        *asked.entry(key).or_default().entry(code).or_default() += 1;
    }
    asked
}

#[tokio::test]
async fn whole_runs_use_every_right_that_is_given_and_are_refused_nothing() {
    let Some(lab) = lab() else { return };
    let Some(admin) = Asker::admin().await else { return };
    let objects = admin.install().await;
    let simulated = Simulated::new(&scenario("least-", true));
    let mut nodes = lab.nodes();
    // Simulated nodes have the boot of this machine.
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot");
    let unverified = json!({"boot": boot.trim(),
        "taints": [{"key": "fabricgate.io/unverified", "effect": "NoSchedule"}]});
    let names = nodes.rack("least-", 4, &unverified);
    lab.admin().await.wait_until_ready(&names).await;
    let folder = installed(&admin, &lab, &simulated).await;
    // With a Lease of an earlier run, none would be created.
    let lease = "/apis/coordination.k8s.io/v1/namespaces/fabricgate/leases/fabricgate-watch";
    let _ = admin.delete(lease).await;
    let before = lab.audit().len();
    let run = |words: &[&str], code: i32| {
        let mut all = words.to_vec();
        all.extend(["--config", "fabricgate.toml", "--no-progress"]);
        let output = fabricgate(folder.path(), &all);
        output.expect(code);
        output
    };
    let rack: Vec<&str> = names.iter().map(String::as_str).collect();
    let with =
        |words: &[&'static str]| -> Vec<&str> { words.iter().chain(&rack).copied().collect() };
    run(&["claims"], 0);
    let output = run(&with(&["admit", "--apply"]), 3);
    let node = |name: &str| format!("/api/v1/nodes/{name}");
    let marked = admin.get(&node("least-03")).await.expect("a node");
    assert!(marked["spec"]["taints"].to_string().contains("fabricgate.io/degraded"), "{output:?}");
    // Repaired, and measured until it is returned.
    simulated.rewrite(&scenario("least-", false));
    let mut back = marked;
    let mut message = String::new();
    // Two clean runs return it; a third is needed where the first began too soon after the drain
    // to count.
    for _ in 0..3 {
        let output = run(&["recertify", "--with-domain", "--apply", "least-03"], 0);
        message = format!("{}\n{}", output.stdout, output.stderr);
        back = admin.get(&node("least-03")).await.expect("a node");
        if !back["spec"]["taints"].to_string().contains("fabricgate.io") {
            break;
        }
    }
    assert!(!back["spec"]["taints"].to_string().contains("fabricgate.io"), "{message}");
    assert_eq!(back["metadata"]["labels"]["fabricgate.io/verdict"], "pass", "{message}");
    run(&["gate", "status"], 0);
    run(&["watch", "--apply", "--once"], 0);
    // It runs until a signal ends it, and this test sends none.
    let watch = Command::new(binary())
        .args(["watch", "--apply", "--config", "fabricgate.toml"])
        .current_dir(folder.path())
        .timeout(Duration::from_secs(15))
        .output()
        .expect("the program");
    assert_eq!(watch.status.code(), None, "{}", String::from_utf8_lossy(&watch.stderr));

    // The log is written a moment after the answer.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let asked = asked(&lab.audit()[before..]);
    let mut used = BTreeSet::new();
    for ((who, within, resource, verb), answers) in &asked {
        assert!(!answers.contains_key(&403), "{who} was refused {verb} {resource} in {within:?}");
        used.insert((who.as_str(), within.as_str(), resource.clone(), verb.as_str()));
    }
    let given = rights(&objects);
    let mut idle = BTreeSet::new();
    for right in &given {
        let group =
            if right.group.is_empty() { String::new() } else { format!(".{}", right.group) };
        let resource = format!("{}{group}", right.resource);
        let is_used = used.iter().any(|(who, within, asked, verb)| {
            *who == right.who
                && *asked == resource
                && *verb == right.verb
                && (right.within.is_empty() || *within == right.within)
        });
        if !is_used {
            idle.insert((right.who.clone(), right.within.clone(), resource, right.verb.clone()));
        }
    }
    let known = ONLY_WHEN.map(|(who, within, resource, verb, when)| {
        assert!(!when.is_empty());
        (who.to_owned(), within.to_owned(), resource.to_owned(), verb.to_owned())
    });
    assert_eq!(idle, BTreeSet::from(known), "rights that no run used, and those that say when");
    println!("{} kinds of requests, none refused", used.len());
    // Its holder was killed.
    admin.delete(lease).await.expect("a Lease less");
}

/// A rack of four, with or without a GPU that has lost a link.
fn scenario(prefix: &str, bad: bool) -> String {
    let mut text = format!(
        "title = \"A rack of the laboratory\"\nseed = 7\nreadings = 3\n\n[noise]\nsigma = 0.01\n\n\
         [[domain]]\nname = \"rack\"\nnodes = \"{prefix}[01-04]\"\nplatform = \"gb200-nvl72\"\n"
    );
    if bad {
        text.push_str(&format!(
            "\n[[fault]]\nkind = \"lost-links\"\ngpu = \"{prefix}03:2\"\ncount = 1\nfirst = 5\n"
        ));
    }
    text
}
