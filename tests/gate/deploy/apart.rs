//! Separation of measuring and gating: users, volumes, tokens, and the network of pods. Each rule
//! holds for every container of every overlay, and between any two of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::{Value, json};

use super::containers;
use super::manifests::{OVERLAYS, called, deploy, overlay, pod_template};

/// The parts of a pod's container that matter here.
#[derive(Debug)]
struct Container {
    name: String,
    /// True if it may change nodes.
    gates: bool,
    user: i64,
    /// Volumes that outlive the pod, or that containers of a pod share: true if it may write.
    volumes: BTreeMap<String, bool>,
}

/// The account whose token a volume provides, if any.
fn account<'a>(volume: &'a Value, spec: &'a Value) -> Option<&'a str> {
    let sources = volume.pointer("/projected/sources")?.as_array()?;
    let has_token = sources.iter().any(|it| it.get("serviceAccountToken").is_some());
    spec["serviceAccountName"].as_str().filter(|_| has_token)
}

/// All containers of all overlays.
fn all() -> Vec<Container> {
    let mut all: BTreeMap<String, Container> = BTreeMap::new();
    for object in OVERLAYS.iter().flat_map(|name| overlay(name)) {
        let Some(template) = pod_template(&object) else { continue };
        let (pod, spec) = (called(&object), &template["spec"]);
        // A container cannot see another container's processes.
        for shared in ["shareProcessNamespace", "hostPID", "hostIPC", "hostNetwork"] {
            assert!(spec.get(shared).is_none_or(|it| it == false), "{pod}: {shared}");
        }
        let volumes = spec["volumes"].as_array().expect("volumes");
        for it in containers(spec) {
            let name = format!("{pod} {}", it["name"].as_str().expect("a name"));
            let user = it.pointer("/securityContext/runAsUser");
            let user = user.unwrap_or(&spec["securityContext"]["runAsUser"]);
            let mut container = Container {
                name: name.clone(),
                gates: false,
                user: user.as_i64().unwrap_or_else(|| panic!("{name}: as which user?")),
                volumes: BTreeMap::new(),
            };
            for mount in it["volumeMounts"].as_array().expect("mounts") {
                let volume = volumes.iter().find(|it| it["name"] == mount["name"]).expect("one");
                container.gates |= account(volume, spec) == Some("fabricgate-gate");
                assert!(volume.get("hostPath").is_none(), "{name}: a folder of the node");
                let claim = volume.pointer("/persistentVolumeClaim/claimName");
                let shared = match claim.and_then(Value::as_str) {
                    Some(claim) => claim.to_owned(),
                    None if volume.get("emptyDir").is_some() => format!("{pod} {}", mount["name"]),
                    None => continue,
                };
                let is_read = mount["readOnly"] == true;
                // As the kubelet does: it does not change owners on such a volume either.
                let at_source = volume.pointer("/persistentVolumeClaim/readOnly");
                assert!(!is_read || at_source == Some(&json!(true)), "{name}: {shared}");
                *container.volumes.entry(shared).or_default() |= !is_read;
            }
            all.insert(name, container);
        }
    }
    all.into_values().collect()
}

#[test]
fn no_two_containers_that_measure_and_that_gate_share_a_user_or_a_volume_to_write_to() {
    let all = all();
    let (gates, measures): (Vec<&Container>, Vec<&Container>) = all.iter().partition(|it| it.gates);
    assert!(!gates.is_empty() && 2 < measures.len(), "{all:?}");
    for gate in &gates {
        for measure in &measures {
            let both = format!("{} and {}", gate.name, measure.name);
            assert_ne!(gate.user, measure.user, "{both}");
            for (volume, writes) in &gate.volumes {
                let Some(other) = measure.volumes.get(volume) else { continue };
                assert!(!writes, "{both}: what the gate writes is in {volume}");
                assert!(*other, "{both}: {volume} is written by neither");
            }
        }
    }
    // Measurements pass between them by reading only.
    let read = |it: &&Container| it.volumes.values().any(|writes| !writes);
    assert_eq!(measures.iter().filter(|it| read(it)).count(), 0);
    assert!(gates.iter().any(read), "nothing passes between them");
}

#[test]
fn the_user_of_the_worker_image_is_neither_the_gates_nor_the_probers() {
    let text = fs::read_to_string(deploy().join("Dockerfile")).expect("a Dockerfile");
    let worker = text.split("AS worker").nth(1).expect("a worker");
    let user = worker.lines().find_map(|line| line.strip_prefix("USER ")).expect("a user");
    let users: BTreeSet<String> = all().iter().map(|it| format!("{0}:{0}", it.user)).collect();
    assert!(!users.contains(user) && user != "0:0", "{user} of {users:?}");
}

/// The accounts of overlays do not mount a token by default, and the tokens of pods expire.
#[test]
fn every_token_expires_within_the_hour_and_none_is_mounted_unasked() {
    let mut tokens = 0;
    for object in OVERLAYS.iter().flat_map(|name| overlay(name)) {
        let place = called(&object);
        if object["kind"] == "ServiceAccount" {
            assert_eq!(object["automountServiceAccountToken"], false, "{place}");
        }
        // Its token would not expire.
        assert_ne!(object["kind"], "Secret", "{place}");
        let Some(template) = pod_template(&object) else { continue };
        let spec = &template["spec"];
        assert_eq!(spec["automountServiceAccountToken"], false, "{place}");
        for volume in spec["volumes"].as_array().expect("volumes") {
            let sources = volume.pointer("/projected/sources").and_then(Value::as_array);
            for token in sources.into_iter().flatten() {
                let Some(token) = token.get("serviceAccountToken") else { continue };
                let lasts = token["expirationSeconds"].as_i64().expect("an end");
                assert!((600..=3_600).contains(&lasts), "{place}: {lasts} s");
                tokens += 1;
            }
        }
    }
    assert!(4 <= tokens, "{tokens}");
}

/// The policies that let this pod's labels through.
fn selects(policy: &Value, labels: &Value) -> bool {
    let wanted = policy["spec"]["podSelector"]["matchLabels"].as_object();
    wanted.into_iter().flatten().all(|(key, value)| labels[key] == *value)
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

#[test]
fn every_pod_is_closed_to_the_network_except_for_its_needs() {
    for name in OVERLAYS {
        let objects = overlay(name);
        let policies: Vec<&Value> =
            objects.iter().filter(|it| it["kind"] == "NetworkPolicy").collect();
        let within = |namespace: &str| -> Vec<&Value> {
            let here = |it: &&&Value| it["metadata"]["namespace"] == namespace;
            policies.iter().filter(here).copied().collect()
        };
        // In each of fabricgate's namespaces only traffic that a policy names passes: also for
        // pods that are not in these manifests.
        let namespaces = objects.iter().filter(|it| it["kind"] == "Namespace");
        for namespace in namespaces {
            let namespace = namespace["metadata"]["name"].as_str().expect("a name");
            let closes = |it: &&Value| {
                let spec = &it["spec"];
                spec["podSelector"] == json!({})
                    && list(&spec["policyTypes"]) == [json!("Ingress"), json!("Egress")]
                    && spec.get("ingress").is_none()
                    && spec.get("egress").is_none()
            };
            assert!(within(namespace).iter().any(closes), "{name}: {namespace}");
        }
        for policy in &policies {
            let (place, spec) = (called(policy), &policy["spec"]);
            for rule in list(&spec["ingress"]) {
                let from = list(&rule["from"]);
                assert!(!from.is_empty(), "{place}: from anywhere");
                let is_unrestricted = |it: &Value| it.get("namespaceSelector") == Some(&json!({}));
                assert!(!from.iter().any(is_unrestricted), "{place}: from every namespace");
            }
            for rule in list(&spec["egress"]) {
                let ports: Vec<i64> =
                    list(&rule["ports"]).iter().filter_map(|it| it["port"].as_i64()).collect();
                // The API server has no labels: only ports identify it.
                let is_server = rule.get("to").is_none() && ports == [443, 6443];
                let is_names = !list(&rule["to"]).is_empty() && ports == [53, 53];
                let is_own = list(&rule["to"]) == [json!({"podSelector": {}})];
                assert!(is_server || is_names || is_own, "{place}: {rule}");
                let is_probes = policy["metadata"]["namespace"] == "fabricgate-probes";
                assert!(!(is_server && is_probes), "{place}: workers ask no server");
                assert!(!is_own || is_probes, "{place}: only workers measure between them");
            }
        }
        for object in &objects {
            let Some(template) = pod_template(object) else { continue };
            let labels = &template["metadata"]["labels"];
            let namespace = object["metadata"]["namespace"].as_str().expect("a namespace");
            let ours: Vec<&Value> =
                within(namespace).into_iter().filter(|it| selects(it, labels)).collect();
            let all = |way: &str| -> Vec<Value> {
                ours.iter().flat_map(|it| list(&it["spec"][way])).collect()
            };
            let goes = |port: i64| {
                all("egress").iter().any(|rule| {
                    list(&rule["ports"]).iter().any(|it| it["port"].as_i64() == Some(port))
                })
            };
            assert!(goes(443) && goes(6443) && goes(53), "{}", called(object));
            // Only ports that a container listens on are open.
            let opened: BTreeSet<i64> = all("ingress")
                .iter()
                .flat_map(|rule| list(&rule["ports"]))
                .filter_map(|it| it["port"].as_i64())
                .collect();
            let listens: BTreeSet<i64> = containers(&template["spec"])
                .flat_map(|it| list(&it["ports"]))
                .filter_map(|it| it["containerPort"].as_i64())
                .collect();
            assert_eq!(opened, listens, "{}", called(object));
        }
    }
}
