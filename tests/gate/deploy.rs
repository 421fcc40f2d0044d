//! The manifests that an operator installs, without a cluster: they are complete and agree with
//! each other, with the guide, and with the program.
//!
//! `tests/lab_kubernetes/deploy.rs` tests them on a server.

mod apart;
#[path = "../support/manifests.rs"]
mod manifests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use assert_cmd::Command;
use manifests::{OVERLAYS, Right, called, deploy, documents, overlay, pod_template, rights};
use serde_json::{Value, json};

/// All files below `ci/deploy` with this extension.
fn files(extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![deploy()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The objects of all overlays and components, each once.
fn everything() -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for name in OVERLAYS {
        for object in overlay(name) {
            all.insert(called(&object), object);
        }
    }
    all
}

#[test]
fn every_manifest_is_in_an_overlay_or_belongs_to_another_product() {
    let made = everything();
    let mut count = 0;
    for path in files("yaml") {
        let documents = documents(&path);
        assert!(!documents.is_empty(), "{}", path.display());
        if path.ends_with("kustomization.yaml") || path.starts_with(deploy().join("integrations")) {
            continue;
        }
        for document in documents {
            assert!(
                made.contains_key(&called(&document)),
                "{}: {}",
                path.display(),
                called(&document)
            );
            count += 1;
        }
    }
    // A map is generated, everything else is in a file.
    assert_eq!(made.len(), count + 1);
}

#[test]
fn nothing_of_an_overlay_that_observes_may_change_a_node() {
    let observing = rights(&overlay("observing"));
    assert!(!observing.is_empty());
    for right in observing {
        assert_eq!(right.who, "fabricgate-prober", "{right:?}");
        let reads = ["get", "list", "watch"].contains(&right.verb.as_str());
        assert!(reads || right.within == "fabricgate-probes", "{right:?}");
    }
}

/// In two processes neither identity can assume the other.
#[test]
fn only_the_gate_that_also_measures_may_have_a_token_of_the_prober() {
    for name in OVERLAYS {
        let given = rights(&overlay(name));
        let asks = given.iter().any(|right| right.resource == "serviceaccounts/token");
        assert_eq!(asks, name == "standing", "{name}");
    }
}

#[test]
fn no_account_may_both_make_pods_and_change_nodes() {
    let all: Vec<Value> = everything().into_values().collect();
    let rights = rights(&all);
    let who = |what: &dyn Fn(&Right) -> bool| -> BTreeSet<&str> {
        rights.iter().filter(|right| what(right)).map(|right| right.who.as_str()).collect()
    };
    let writes = |right: &Right| !["get", "list", "watch"].contains(&right.verb.as_str());
    let pods = who(&|right| right.resource.starts_with("pods") && writes(right));
    let nodes = who(&|right| right.resource.starts_with("nodes") && writes(right));
    assert_eq!(pods, BTreeSet::from(["fabricgate-prober"]));
    assert_eq!(nodes, BTreeSet::from(["fabricgate-gate"]));
    for right in &rights {
        assert!(
            !["*", "bind", "escalate", "impersonate"].contains(&right.verb.as_str()),
            "{right:?}"
        );
        assert!(right.resource != "*" && right.group != "*", "{right:?}");
        assert!(right.resource != "secrets", "{right:?}");
        // The gate that also measures requests tokens of the measuring account; no other account
        // requests any.
        let is_account = right.resource.starts_with("serviceaccounts");
        let of_prober = right.who == "fabricgate-gate"
            && right.resource == "serviceaccounts/token"
            && right.verb == "create"
            && right.name == "fabricgate-prober"
            && right.within == "fabricgate";
        assert!(!is_account || of_prober, "{right:?}");
        if right.resource == "nodes" {
            assert!(["get", "list", "watch", "patch"].contains(&right.verb.as_str()), "{right:?}");
        }
        // An account that creates pods in the gate's namespace could run as the gate.
        let makes = right.resource.starts_with("pods") && right.verb == "create";
        assert!(!makes || right.within == "fabricgate-probes", "{right:?}");
    }
    assert!(rights.iter().all(|right| right.who != "fabricgate-worker"));
}

/// The table of rights in the guide: account, where, resource, verbs, why.
fn documented_rights() -> BTreeSet<Right> {
    let guide = fs::read_to_string(deploy().join("../../docs/kubernetes.md")).expect("the guide");
    let mut documented = BTreeSet::new();
    for line in guide.lines().filter(|line| line.starts_with("| `fabricgate-")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [who, within, resources, verbs, why] = cells[..] else { panic!("{line}: five cells") };
        assert!(!why.is_empty(), "{line}: no purpose is given");
        let quoted = |cell: &str| -> Vec<String> {
            cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
        };
        for resource in quoted(resources) {
            let (resource, name) = match resource.split_once(' ') {
                Some((resource, name)) => (resource.to_owned(), name.to_owned()),
                None => (resource, String::new()),
            };
            // In kubectl's notation: nodes/status, leases.coordination.k8s.io.
            let (resource, group) = resource.split_once('.').unwrap_or((&resource, ""));
            for verb in quoted(verbs) {
                documented.insert(Right {
                    who: quoted(who).remove(0),
                    within: quoted(within).into_iter().next().unwrap_or_default(),
                    group: group.to_owned(),
                    resource: resource.to_owned(),
                    name: name.clone(),
                    verb,
                });
            }
        }
    }
    documented
}

#[test]
fn the_guide_lists_every_right_and_no_other() {
    let all: Vec<Value> = everything().into_values().collect();
    let given = rights(&all);
    let documented = documented_rights();
    let only = |a: &BTreeSet<Right>, b: &BTreeSet<Right>| -> Vec<Right> {
        a.difference(b).cloned().collect()
    };
    assert_eq!(only(&given, &documented), [], "given and not documented");
    assert_eq!(only(&documented, &given), [], "documented and not given");
}

/// Which identities' tokens each container holds.
const TOKENS: [(&str, &[&str]); 5] = [
    ("audit", &["prober"]),
    ("burn-in", &["prober"]),
    ("measure", &["prober"]),
    ("tell", &["gate"]),
    // It requests the prober's.
    ("watch", &["gate"]),
];

#[test]
fn pods_name_existing_objects_and_have_the_required_fields() {
    let mut seen = BTreeMap::new();
    for name in OVERLAYS {
        let objects = overlay(name);
        for object in &objects {
            let Some(template) = pod_template(object) else { continue };
            let place = called(object);
            let namespace = object["metadata"]["namespace"].as_str().expect("a namespace");
            let is_there = |kind: &str, name: &Value| {
                let name = name.as_str().unwrap_or_default();
                assert!(
                    objects.iter().any(|it| called(it) == format!("{kind} {namespace}/{name}")),
                    "{name}: {place} names {kind} {name:?}, which no manifest defines"
                );
            };
            let spec = &template["spec"];
            is_there("ServiceAccount", &spec["serviceAccountName"]);
            assert_eq!(spec["automountServiceAccountToken"], false, "{place}");
            assert_eq!(spec["securityContext"]["runAsNonRoot"], true, "{place}");
            assert_eq!(
                spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault",
                "{place}"
            );
            for volume in spec["volumes"].as_array().expect("volumes") {
                if let Some(claim) = volume.get("persistentVolumeClaim") {
                    is_there("PersistentVolumeClaim", &claim["claimName"]);
                }
                if let Some(secret) = volume.get("secret") {
                    is_there("Secret", &secret["secretName"]);
                }
                if let Some(map) = volume.get("configMap") {
                    is_there("ConfigMap", &map["name"]);
                    let maps = objects.iter().find(|it| it["kind"] == "ConfigMap").expect("a map");
                    for item in map["items"].as_array().expect("items") {
                        let key = item["key"].as_str().expect("a key");
                        assert!(maps["data"].get(key).is_some(), "{place}: no {key}");
                    }
                }
            }
            if object["kind"] != "Deployment" {
                let job = if object["kind"] == "Job" {
                    &object["spec"]
                } else {
                    &object["spec"]["jobTemplate"]["spec"]
                };
                assert_eq!(job["backoffLimit"], 0, "{place}: a verdict is not tried again");
                assert_eq!(spec["restartPolicy"], "Never", "{place}");
            }
            for container in containers(spec) {
                let (name, tokens) = container_holds(container, spec, &place);
                seen.insert(name, tokens);
            }
        }
    }
    let expected = TOKENS.map(|(name, tokens)| {
        (name.to_owned(), tokens.iter().map(|it| (*it).to_owned()).collect())
    });
    assert_eq!(seen, BTreeMap::from(expected));
}

fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers"]
        .into_iter()
        .filter_map(|key| spec.get(key))
        .flat_map(|it| it.as_array().expect("a list"))
}

/// The container's name, and the accounts of its tokens.
fn container_holds(container: &Value, spec: &Value, place: &str) -> (String, BTreeSet<String>) {
    let name = container["name"].as_str().expect("a name").to_owned();
    let image = container["image"].as_str().expect("an image");
    assert!(image.contains('/') && image.contains(':'), "{place}: {image} is named by no overlay");
    assert_eq!(container["imagePullPolicy"], "IfNotPresent", "{place}");
    let context = &container["securityContext"];
    assert_eq!(context["allowPrivilegeEscalation"], false, "{place}");
    assert_eq!(context["readOnlyRootFilesystem"], true, "{place}");
    assert_eq!(context["capabilities"]["drop"], json!(["ALL"]), "{place}");
    assert!(container["resources"]["requests"]["memory"].is_string(), "{place}");
    let mut tokens = BTreeMap::new();
    let mut kubeconfig = String::new();
    for mount in container["volumeMounts"].as_array().expect("mounts") {
        let volumes = spec["volumes"].as_array().expect("volumes");
        let volume = volumes.iter().find(|it| it["name"] == mount["name"]);
        let volume = volume.unwrap_or_else(|| panic!("{place}: no volume {}", mount["name"]));
        let at = mount["mountPath"].as_str().expect("a path");
        if at.starts_with("/var/run/secrets/") {
            assert_eq!(mount["readOnly"], true, "{place}");
            // Not a Secret: its token would not expire.
            assert!(volume.get("projected").is_some(), "{place}: {volume}");
            let account = spec["serviceAccountName"].as_str().expect("an account");
            let whose = account.strip_prefix("fabricgate-").expect("ours");
            tokens.insert(whose.to_owned(), format!("{at}/token"));
        }
        if at == "/etc/fabricgate" {
            let items = volume["configMap"]["items"].as_array().expect("items");
            let item = items.iter().find(|it| it["path"] == "kubeconfig").expect("a kubeconfig");
            kubeconfig = item["key"].as_str().expect("a key").to_owned();
        }
    }
    let wanted = users(&kubeconfig);
    for (whose, at) in &tokens {
        assert_eq!(wanted.get(whose), Some(at), "{place}: {name}: the token of {whose}");
    }
    let gates = tokens.contains_key("gate");
    assert_eq!(kubeconfig, if gates { GATING } else { MEASURING }, "{place}: {name}");
    (name, tokens.into_keys().collect())
}

const GATING: &str = "gating.kubeconfig";
const MEASURING: &str = "measuring.kubeconfig";

/// The place where a kubeconfig has an account's token, or the program that requests it.
fn users(file: &str) -> BTreeMap<String, String> {
    let read = documents(&deploy().join("base").join(file)).remove(0);
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let users = read["users"].as_array().expect("users").iter();
    let of = |user: &Value| match user.get("exec") {
        Some(exec) => text(&exec["command"]),
        None => text(&user["tokenFile"]),
    };
    users.map(|user| (text(&user["name"]), of(&user["user"]))).collect()
}

/// The program of the kubeconfig is fabricgate: its arguments are accepted, it authenticates with
/// the pod's own account, and its file is writable for the container that uses it.
#[test]
fn the_kubeconfig_of_the_measuring_gate_requests_the_probers_token_with_its_own() {
    let read = documents(&deploy().join("base").join(GATING)).remove(0);
    let list = read["users"].as_array().expect("users");
    let exec = list.iter().find_map(|it| it["user"].get("exec")).expect("a program");
    assert_eq!(exec["command"], "/usr/local/bin/fabricgate");
    let texts = |value: &Value| -> Vec<String> {
        let list = value.as_array().expect("a list").iter();
        list.map(|it| it.as_str().expect("a text").to_owned()).collect()
    };
    let words = texts(&exec["args"]);
    let after = |word: &str| {
        let at = words.iter().position(|it| it == word).expect(word);
        words[at + 1].clone()
    };
    assert_eq!(after("--context"), "gate");
    let folder = tempfile::tempdir().expect("a folder");
    let mut given = words.clone();
    for (from, to) in [("--kubeconfig", "kubeconfig"), ("--keep", "kept")] {
        let at = words.iter().position(|it| it == from).expect(from);
        given[at + 1] = folder.path().join(to).display().to_string();
    }
    let text = fs::read_to_string(deploy().join("base").join(GATING)).expect("a file");
    fs::write(folder.path().join("kubeconfig"), text).expect("written");
    let asked = Command::new(env!("CARGO_BIN_EXE_fabricgate")).args(&given).output();
    let asked = asked.expect("the program");
    let stderr = String::from_utf8_lossy(&asked.stderr);
    // Unknown arguments would give exit code 2. Only the files that a pod mounts are missing
    // here.
    assert_eq!(asked.status.code(), Some(5), "{stderr}");
    assert!(asked.stdout.is_empty(), "{stderr}");
    let watch = documents(&deploy().join("components/watch/deployment.yaml")).remove(0);
    let container = &watch["spec"]["template"]["spec"]["containers"][0];
    let mounts = container["volumeMounts"].as_array().expect("mounts");
    let under = |word: &str| {
        let at = after(word);
        let is_there = |it: &&Value| at.starts_with(it["mountPath"].as_str().expect("a path"));
        mounts.iter().find(is_there).unwrap_or_else(|| panic!("{at} is on no volume")).clone()
    };
    assert_ne!(under("--keep")["readOnly"], true);
    assert_eq!(under("--kubeconfig")["name"], "configuration");
}

#[test]
fn both_kubeconfigs_serve_one_configuration() {
    for (file, gate) in [(MEASURING, "prober"), (GATING, "gate")] {
        let read = documents(&deploy().join("base").join(file)).remove(0);
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let contexts: BTreeMap<String, String> = read["contexts"]
            .as_array()
            .expect("contexts")
            .iter()
            .map(|it| (text(&it["name"]), text(&it["context"]["user"])))
            .collect();
        let expected = [("gate", gate), ("prober", "prober")];
        let expected = expected.map(|(name, user)| (name.to_owned(), user.to_owned()));
        assert_eq!(contexts, BTreeMap::from(expected), "{file}");
        let used: BTreeSet<String> = contexts.into_values().collect();
        assert!(used.iter().eq(users(file).keys()), "{file}");
    }
}

#[test]
fn the_program_accepts_the_configuration_with_either_kubeconfig() {
    for kubeconfig in [MEASURING, GATING] {
        let folder = tempfile::tempdir().expect("a folder");
        let base = deploy().join("base");
        let at = |name: &str| folder.path().join(name);
        fs::copy(base.join("fabricgate.toml"), at("fabricgate.toml")).expect("copied");
        fs::copy(base.join(kubeconfig), at("kubeconfig")).expect("copied");
        let mut claims = Command::new(env!("CARGO_BIN_EXE_fabricgate"));
        let asked = claims.args(["claims", "--config"]).arg(at("fabricgate.toml")).output();
        let asked = asked.expect("the program");
        let stdout = String::from_utf8_lossy(&asked.stdout);
        // An unknown key would give exit code 2. Only the files that a pod mounts are missing
        // here.
        assert_eq!(
            asked.status.code(),
            Some(5),
            "{stdout}{}",
            String::from_utf8_lossy(&asked.stderr)
        );
        let is_missing = |what: &str| stdout.contains(what);
        assert!(is_missing("/var/run/secrets/") || is_missing("program for tokens"), "{stdout}");
    }
    // The pod's own policy: the program listens on the port of the liveness probe.
    let configuration = fs::read_to_string(deploy().join("base/fabricgate.toml")).expect("a file");
    let watch = documents(&deploy().join("components/watch/deployment.yaml")).remove(0);
    let container = &watch["spec"]["template"]["spec"]["containers"][0];
    let port = &container["ports"][0]["containerPort"];
    assert!(configuration.contains(&format!("listen = \"0.0.0.0:{port}\"")), "{port}");
    for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
        assert_eq!(container[probe]["httpGet"]["path"], path);
        assert_eq!(container[probe]["httpGet"]["port"], container["ports"][0]["name"]);
    }
}

#[test]
fn the_names_in_the_policy_are_the_programs() {
    use model::kubernetes_node;
    let policy =
        fs::read_to_string(deploy().join("components/admission/policy.yaml")).expect("a policy");
    assert!(policy.contains(&format!("\"'{}'\"", kubernetes_node::FABRICGATE_PREFIX)));
    assert!(policy.contains(&format!("c.type == '{}'", kubernetes_node::CONDITION)));
    let account = "system:serviceaccount:fabricgate:fabricgate-gate";
    assert!(policy.contains(account));
    let integrations = deploy().join("integrations");
    let rule = documents(&integrations.join("node-readiness-rule.yaml")).remove(0);
    assert_eq!(rule["spec"]["conditions"][0]["type"], kubernetes_node::CONDITION);
    let check = documents(&integrations.join("node-health-check.yaml")).remove(0);
    let conditions = check["spec"]["unhealthyConditions"].as_array().expect("a list");
    assert!(!conditions.is_empty());
    // An unknown state is not a reason to reboot.
    assert!(
        conditions
            .iter()
            .all(|it| it["type"] == kubernetes_node::CONDITION && it["status"] == "False")
    );
    let [kubelet, karpenter, _] = &documents(&integrations.join("start-up-taint.yaml"))[..] else {
        panic!("three")
    };
    for taint in [
        &kubelet["registerWithTaints"][0],
        &karpenter["spec"]["template"]["spec"]["startupTaints"][0],
    ] {
        assert_eq!(taint["key"], kubernetes_node::UNVERIFIED);
        assert_eq!(taint["effect"], kubernetes_node::NO_SCHEDULE);
    }
}

#[test]
fn a_policy_bounds_the_actuators_cluster_wide_changes() {
    let all = everything();
    let of = |kind: &str| all.values().filter(move |it| it["kind"] == kind).collect::<Vec<_>>();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let reads = ["get", "list", "watch"];
    let mut bounded = 0;
    for role in of("ClusterRole") {
        let name = role["metadata"]["name"].as_str().expect("a name");
        if !name.starts_with("fabricgate-gate") {
            continue;
        }
        for rule in list(&role["rules"]) {
            let changes =
                list(&rule["verbs"]).iter().any(|verb| !reads.iter().any(|it| verb == it));
            let resources = list(&rule["resources"]);
            for resource in resources.iter().filter(|_| changes) {
                let bounds = |policy: &&&Value| {
                    let spec = &policy["spec"];
                    let rules = list(&spec["matchConstraints"]["resourceRules"]);
                    rules.iter().any(|it| list(&it["resources"]).contains(resource))
                        && spec["failurePolicy"] == "Fail"
                        && !list(&spec["validations"]).is_empty()
                };
                let policies = of("ValidatingAdmissionPolicy");
                let policy = policies.iter().find(bounds);
                let policy = policy.unwrap_or_else(|| panic!("{name}: nothing bounds {resource}"));
                let expression = &policy["spec"]["matchConditions"][0]["expression"];
                let account = "'system:serviceaccount:fabricgate:fabricgate-gate'";
                assert!(expression.as_str().expect("a text").ends_with(account), "{expression}");
                let denies = |it: &&&Value| {
                    it["spec"]["policyName"] == policy["metadata"]["name"]
                        && list(&it["spec"]["validationActions"]).contains(&json!("Deny"))
                };
                let bindings = of("ValidatingAdmissionPolicyBinding");
                assert!(bindings.iter().any(|it| denies(&it)), "{name}: {resource}");
                bounded += 1;
            }
        }
    }
    assert_eq!(bounded, 2);
}

#[test]
fn the_program_runs_with_only_the_libraries_of_its_image() {
    let run = Command::new(deploy().join("needs"))
        .arg(env!("CARGO_BIN_EXE_fabricgate"))
        .output()
        .expect("a shell");
    let stderr =
        format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    println!("{stderr}");
    assert!(run.status.success(), "{stderr}");
    assert!(stderr.contains("nothing else\n") || stderr.contains("SKIPPED"), "{stderr}");
}
