//! DeviceTaintRules for faulty GPUs (`resource.k8s.io/v1beta2`): by default with the effect `None`,
//! which changes nothing and shows the result of a real effect. `policy::device` decides when a
//! GPU is at fault instead of its node.
//!
//! A rule names a device as its driver publishes it, which only the cluster's ResourceSlices show:
//! a GPU is found in them by its UUID. A GPU in none of them, or in several, gets no rule.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{
    ExportFile, ExportOptions, ExportOutput, ExportRefusal, ExportTarget, refuse, select_members,
    yaml,
};
use crate::place::map::VerifiedMap;
use crate::policy::kubernetes_label;
use model::finding_class::FindingClass;
use model::kubernetes_node::DEGRADED;
use model::text::clean;

/// The label with the run of an exported rule. Rules that the gate of earlier versions made carry
/// another label.
const EXPORTED_RUN_LABEL: &str = "fabricgate.io/exported-run";

pub(super) const TARGET: ExportTarget = ExportTarget {
    name: "device-taint-rules",
    about: "DeviceTaintRules for faulty GPUs, found in the cluster's ResourceSlices",
    takes: &["nodes", "domain", "slices", "effect"],
    write,
};

/// A device as its driver publishes it.
type DriverDevice = [String; 3];

fn write(map: &VerifiedMap, options: &ExportOptions) -> Result<ExportOutput, ExportRefusal> {
    let Some(slices) = &options.slices else {
        return refuse(
            "--slices is missing, expected the file that `kubectl get resourceslices -o json` \
             writes: a rule names a device as its driver publishes it",
        );
    };
    let devices = index_devices(slices)?;
    let effect = options.effect.as_deref().unwrap_or("None");
    let mut rules = Vec::new();
    let mut remarks = Vec::new();
    for (node, member) in select_members(map, options)? {
        let of = clean(node.as_str());
        let (index, uuid) = match &member.device {
            Ok(None) => continue,
            Ok(Some(device)) => device,
            Err(why) => {
                remarks.push(format!("no rule for {of}: {why}"));
                continue;
            }
        };
        match find_device(uuid, &devices) {
            Ok(found) => {
                let classes = member.gpus.get(index).map(|gpu| &gpu.classes);
                rules.push(build_rule(map, classes, uuid, found, effect));
            }
            Err(why) => remarks.push(format!("no rule for GPU {index} of {of}: {why}")),
        }
    }
    let count = rules.len();
    let mut comment = format!("{}# {count} rules, effect {effect}\n", map.comment_lines("#"));
    for remark in &remarks {
        comment.push_str(&format!("# {remark}\n"));
    }
    if effect == "None" && 0 < count {
        remarks.push("effect None changes nothing; --effect NoSchedule keeps pods away".to_owned());
    }
    let file =
        ExportFile::text("device-taint-rules.yaml", yaml::render_documents(&comment, &rules));
    Ok(ExportOutput { files: vec![file], remarks })
}

/// The device of this UUID, or why it has no rule.
fn find_device<'a>(
    uuid: &str,
    devices: &'a BTreeMap<String, BTreeSet<DriverDevice>>,
) -> Result<&'a DriverDevice, String> {
    let found = devices.get(uuid).ok_or_else(|| format!("no slice has a device {uuid}"))?;
    match Vec::from_iter(found).as_slice() {
        [one] => Ok(one),
        many => Err(format!("{} devices have the UUID {uuid}", many.len())),
    }
}

fn build_rule(
    map: &VerifiedMap,
    classes: Option<&BTreeSet<FindingClass>>,
    uuid: &str,
    device: &DriverDevice,
    effect: &str,
) -> Value {
    let [driver, pool, name] = device;
    let classes: Vec<String> = classes.into_iter().flatten().map(|it| clean(it.as_str())).collect();
    let class = classes.first().map_or("", String::as_str);
    json!({
        "apiVersion": "resource.k8s.io/v1beta2",
        "kind": "DeviceTaintRule",
        "metadata": {
            "name": format!("fabricgate-export-{}", uuid.to_ascii_lowercase()),
            "labels": { EXPORTED_RUN_LABEL: kubernetes_label::label_value(&map.run.id) },
            "annotations": {
                "fabricgate.io/exported": map.header_lines().join("; "),
                "fabricgate.io/classes": classes.join(","),
            },
        },
        "spec": {
            "deviceSelector": { "driver": driver, "pool": pool, "device": name },
            "taint": { "key": DEGRADED, "value": kubernetes_label::label_value(class), "effect": effect },
        },
    })
}

/// Whole devices by UUID, from a list of ResourceSlices or a single one; a GPU that is offered in
/// parts (MIG) is not included.
fn index_devices(text: &str) -> Result<BTreeMap<String, BTreeSet<DriverDevice>>, ExportRefusal> {
    let wrong =
        |why: String| ExportRefusal(format!("--slices: {why}, expected a list of ResourceSlices"));
    let read: Value = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    let slices = match read["items"].as_array() {
        Some(items) => items.as_slice(),
        None if read["kind"] == "ResourceSlice" => std::slice::from_ref(&read),
        None => return Err(wrong("it has no items".to_owned())),
    };
    let mut devices: BTreeMap<String, BTreeSet<DriverDevice>> = BTreeMap::new();
    let mut parted = BTreeSet::new();
    for slice in slices {
        if slice["kind"].as_str().is_some_and(|kind| kind != "ResourceSlice") {
            return Err(wrong(format!("a {}", slice["kind"])));
        }
        let spec = &slice["spec"];
        for device in spec["devices"].as_array().into_iter().flatten() {
            parted.extend(read_attribute(device, "parentUUID").map(str::to_owned));
            let names = [&spec["driver"], &spec["pool"]["name"], &device["name"]];
            let names = names.map(|it| it.as_str().unwrap_or_default().to_owned());
            let uuid = read_attribute(device, "uuid");
            if let Some(uuid) = uuid.filter(|_| names.iter().all(|it| !it.is_empty())) {
                devices.entry(uuid.to_owned()).or_default().insert(names);
            }
        }
    }
    devices.retain(|uuid, _| !parted.contains(uuid));
    Ok(devices)
}

/// An attribute of a device, with or without its driver's domain; `v1beta1` nests attributes one
/// level deeper.
fn read_attribute<'a>(device: &'a Value, name: &str) -> Option<&'a str> {
    let all =
        device["attributes"].as_object().or_else(|| device["basic"]["attributes"].as_object())?;
    let is_it = |key: &str| key.rsplit('/').next() == Some(name);
    all.iter().find(|(key, _)| is_it(key)).and_then(|(_, value)| value["string"].as_str())
}
