//! One GPU of a node that is kept from new pods by a `DeviceTaintRule` of dynamic
//! resource allocation.
//!
//! A rule has a name that follows from node and GPU, our label and our reason, and
//! its node as owner: it goes when the node is deleted. A rule without our label,
//! or with another reason, is somebody else's and is neither changed nor deleted.
//! No slice, class or claim is written. Shape and versions are those of
//! `k8s.io/api` 0.36: the kind is in `v1beta2`, earlier in `v1alpha3`, and off by
//! default in both.

use serde_json::{Value, json};

use super::client::{ApiRequestFailure, KubernetesApiClient};
use engine::policy::{drain_reason, kubernetes_label};
use model::kubernetes_node::{DEGRADED, GpuCordon, GpuCordonMethod, NO_SCHEDULE, REASON, RUN};
use model::scheduler_snapshot::SchedulerNode;
use model::source_report::SourceProblemKind;
use model::text::clean;

/// The group of the kinds of dynamic resource allocation.
const API_GROUP_PATH: &str = "/apis/resource.k8s.io";

/// Versions that may have rules, the newest first.
const RULE_VERSIONS: [&str; 3] = ["v1", "v1beta2", "v1alpha3"];

/// Versions that have slices, the newest first.
const SLICE_VERSIONS: [&str; 3] = ["v1", "v1beta2", "v1beta1"];

const RULES: &str = "devicetaintrules";
const SLICES: &str = "resourceslices";

/// What a state is called in which nobody knows whether a GPU is out.
const UNREAD_STATE: &str = "DEVICE_UNREAD";

/// One device as its driver offers it, and where rules about it are made.
pub(super) struct DraDevice {
    rules: String,
    driver: String,
    pool: String,
    device: String,
}

/// Takes back what a node only claims: that a rule keeps one of its GPUs from
/// pods. Asks nothing about any other node. What could not be read is told.
pub(super) async fn confirm_rule(
    desk: &KubernetesApiClient,
    node: &mut SchedulerNode,
) -> Option<String> {
    let seen = node.kubernetes.as_deref()?;
    let mark = seen.cordoned_gpu().filter(|mark| mark.way == GpuCordonMethod::TaintRule)?;
    let is_whole = seen.has_drain_taint();
    let uid = seen.uid.clone();
    match read_rule(desk, &uid, &mark).await {
        Ok(Some((_, rule))) if is_own_rule(&rule) && is_blocking_pods(&rule) => None,
        Ok(_) => {
            if !is_whole {
                node.state.retain(|word| word != "DRAIN");
                node.reason = None;
            }
            None
        }
        Err(refused) => {
            node.state.push(UNREAD_STATE.to_owned());
            Some(format!("{}: its DeviceTaintRule: {}", clean(node.name.as_str()), refused.message))
        }
    }
}

/// Where the device is that has this UUID; an error of the kind `Missing` without a
/// status where the cluster has no such rules, or no such device.
pub(super) async fn find_device(
    desk: &KubernetesApiClient,
    node: &str,
    mark: &GpuCordon,
) -> Result<DraDevice, ApiRequestFailure> {
    let rules = find_served_path(desk, &RULE_VERSIONS, RULES).await?.ok_or_else(|| {
        missing_failure(
            "the cluster does not serve DeviceTaintRule; its GPU stays in service".to_owned(),
        )
    })?;
    let slices = find_served_path(desk, &SLICE_VERSIONS, SLICES).await?.ok_or_else(|| {
        missing_failure(
            "the cluster does not serve ResourceSlice; its GPU stays in service".to_owned(),
        )
    })?;
    let mut found: Vec<[String; 3]> = Vec::new();
    let mut is_parted = false;
    desk.read_objects_by_field(&slices, &format!("spec.nodeName={node}"), |page| {
        for slice in &page {
            let spec = &slice["spec"];
            for device in spec["devices"].as_array().into_iter().flatten() {
                is_parted |= device_attribute(device, "parentUUID") == Some(&mark.uuid);
                if device_attribute(device, "uuid") == Some(&mark.uuid) {
                    let names = [&spec["driver"], &spec["pool"]["name"], &device["name"]];
                    found.push(names.map(|it| it.as_str().unwrap_or_default().to_owned()));
                }
            }
        }
    })
    .await?;
    found.sort();
    // Slices of two generations of a pool may stand side by side for a moment.
    found.dedup();
    let uuid = &mark.uuid;
    if is_parted {
        let why = format!("{uuid} is offered in parts (MIG), which one rule does not name");
        return Err(missing_failure(why));
    }
    match <[_; 1]>::try_from(found) {
        Ok([[driver, pool, device]]) if !device.is_empty() => {
            Ok(DraDevice { rules, driver, pool, device })
        }
        Ok(_) => Err(missing_failure(format!("the device with UUID {uuid} has no name"))),
        Err(found) if found.is_empty() => Err(missing_failure(format!(
            "no ResourceSlice of the node has a device with UUID {uuid}"
        ))),
        Err(_) => Err(missing_failure(format!("several devices of the node have the UUID {uuid}"))),
    }
}

/// Makes the rule. One of its name that has our label and this very reason was made
/// by an attempt that was not answered.
pub(super) async fn create_rule(
    desk: &KubernetesApiClient,
    node: &Value,
    mark: &GpuCordon,
    place: &DraDevice,
    reason: &str,
) -> Result<(), ApiRequestFailure> {
    let meta = &node["metadata"];
    let uid = meta["uid"].as_str().unwrap_or_default();
    let name =
        rule_name(uid, mark).ok_or_else(|| malformed_failure("the node has no uid".to_owned()))?;
    let own = drain_reason::parse_reason(reason);
    let (run, class) = own.map(|own| (own.run, own.class)).unwrap_or_default();
    let version = place.rules.split('/').nth(3).unwrap_or_default();
    let rule = json!({
        "apiVersion": format!("resource.k8s.io/{version}"),
        "kind": "DeviceTaintRule",
        "metadata": {
            "name": name,
            "labels": { RUN: kubernetes_label::label_value(&run) },
            "annotations": { REASON: reason },
            "ownerReferences": [
                { "apiVersion": "v1", "kind": "Node", "name": meta["name"], "uid": uid },
            ],
        },
        "spec": {
            "deviceSelector": {
                "driver": place.driver, "pool": place.pool, "device": place.device,
            },
            "taint": { "key": DEGRADED, "value": kubernetes_label::label_value(&class), "effect": NO_SCHEDULE },
        },
    });
    match desk.create_object(&place.rules, &rule).await {
        Ok(_) => Ok(()),
        Err(refused) if refused.status == Some(409) => {
            let there = desk.read_object(&place.rules, &name).await?;
            let is_same = |rule: &Value| {
                is_own_rule(rule) && rule["metadata"]["annotations"][REASON] == reason
            };
            match there {
                Some(rule) if is_same(&rule) => Ok(()),
                Some(_) => Err(malformed_failure(format!(
                    "a DeviceTaintRule {name} is there with other words; it is left alone"
                ))),
                // It went in between: another attempt makes it.
                None => Err(refused),
            }
        }
        Err(refused) => Err(refused),
    }
}

/// Takes our rule away, where there is one. One that is not ours stays.
pub(super) async fn delete_rule(
    desk: &KubernetesApiClient,
    node: &SchedulerNode,
    mark: &GpuCordon,
) -> Result<(), ApiRequestFailure> {
    let uid = node.kubernetes.as_deref().map(|it| it.uid.clone()).unwrap_or_default();
    let Some((rules, rule)) = read_rule(desk, &uid, mark).await? else { return Ok(()) };
    if !is_own_rule(&rule) {
        return Ok(());
    }
    let text = |key: &str| rule["metadata"][key].as_str().unwrap_or_default().to_owned();
    match desk.delete_object(&rules, &text("name"), &text("uid")).await {
        Err(refused) if refused.status == Some(404) => Ok(()),
        done => done,
    }
}

/// The rule about this GPU, whoever made it, and where it is.
async fn read_rule(
    desk: &KubernetesApiClient,
    uid: &str,
    mark: &GpuCordon,
) -> Result<Option<(String, Value)>, ApiRequestFailure> {
    let Some(name) = rule_name(uid, mark) else { return Ok(None) };
    let Some(rules) = find_served_path(desk, &RULE_VERSIONS, RULES).await? else { return Ok(None) };
    Ok(desk.read_object(&rules, &name).await?.map(|rule| (rules, rule)))
}

/// The path of a kind in the newest of these versions that has it.
async fn find_served_path(
    desk: &KubernetesApiClient,
    versions: &[&str],
    kind: &str,
) -> Result<Option<String>, ApiRequestFailure> {
    for version in versions {
        let Some(said) = desk.read_object(API_GROUP_PATH, version).await? else { continue };
        let kinds = said["resources"].as_array().map_or(&[][..], Vec::as_slice);
        if kinds.iter().any(|it| it["name"] == kind) {
            return Ok(Some(format!("{API_GROUP_PATH}/{version}/{kind}")));
        }
    }
    Ok(None)
}

/// The name of the rule about a GPU of the node with this uid: another node of the
/// same name has another. None where one of the two cannot be a part of a name.
fn rule_name(uid: &str, mark: &GpuCordon) -> Option<String> {
    const LONGEST: usize = 64;
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_uid = !uid.is_empty() && uid.len() <= LONGEST && uid.chars().all(fits);
    is_uid.then(|| format!("fabricgate-{uid}-{}", mark.uuid.to_ascii_lowercase()))
}

fn is_own_rule(rule: &Value) -> bool {
    let meta = &rule["metadata"];
    let own = meta["annotations"][REASON].as_str().and_then(drain_reason::parse_reason);
    meta["labels"][RUN].is_string() && own.is_some()
}

/// Whether the rule keeps pods away now.
fn is_blocking_pods(rule: &Value) -> bool {
    let effect = rule["spec"]["taint"]["effect"].as_str();
    effect.is_some_and(|effect| [NO_SCHEDULE, "NoExecute"].contains(&effect))
        && rule["metadata"]["deletionTimestamp"].is_null()
}

/// An attribute of a device, with or without its driver's domain; `v1beta1` has them
/// one level lower.
fn device_attribute<'a>(device: &'a Value, name: &str) -> Option<&'a str> {
    let all =
        device["attributes"].as_object().or_else(|| device["basic"]["attributes"].as_object())?;
    let is_it = |key: &str| key == name || key.rsplit('/').next() == Some(name);
    all.iter().find(|(key, _)| is_it(key)).and_then(|(_, value)| value["string"].as_str())
}

fn missing_failure(why: String) -> ApiRequestFailure {
    ApiRequestFailure { kind: SourceProblemKind::Missing, ..malformed_failure(why) }
}

fn malformed_failure(message: String) -> ApiRequestFailure {
    ApiRequestFailure {
        kind: SourceProblemKind::Contradictory,
        message,
        status: None,
        retry_after: None,
    }
}
