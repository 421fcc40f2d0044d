//! The manifests of `ci/deploy`, built as their kustomizations define.
//!
//! Supports only the features in use: resources, components, generated ConfigMaps and images. The
//! lab compares it with kustomize itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

pub(crate) fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("ci/deploy")
}

/// The overlays, by name.
pub(crate) const OVERLAYS: [&str; 3] = ["nightly", "observing", "standing"];

pub(crate) fn documents(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let read = serde_saphyr::from_multiple::<Value>(&text);
    read.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All objects of an overlay.
pub(crate) fn overlay(name: &str) -> Vec<Value> {
    let mut built = Built::default();
    built.add(&deploy().join("overlays").join(name));
    for (name, new) in &built.images {
        for object in &mut built.objects {
            rename_image(object, name, new);
        }
    }
    built.objects
}

#[derive(Default)]
struct Built {
    objects: Vec<Value>,
    images: BTreeMap<String, String>,
    seen: BTreeSet<PathBuf>,
}

impl Built {
    fn add(&mut self, folder: &Path) {
        let folder = folder.canonicalize().unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        assert!(self.seen.insert(folder.clone()), "{} is named twice", folder.display());
        let mut read = documents(&folder.join("kustomization.yaml"));
        let Value::Object(map) = read.remove(0) else { panic!("{}: a map", folder.display()) };
        for (key, value) in map {
            match key.as_str() {
                "apiVersion" | "kind" | "generatorOptions" => {}
                "resources" | "components" => {
                    for name in texts(&value) {
                        assert!(!name.contains("://"), "{}: {name} is remote", folder.display());
                        let at = folder.join(name);
                        if at.is_dir() {
                            self.add(&at);
                        } else {
                            self.objects.extend(documents(&at));
                        }
                    }
                }
                "configMapGenerator" => {
                    for map in value.as_array().expect("a list") {
                        self.objects.push(config_map(&folder, map));
                    }
                }
                "images" => {
                    for image in value.as_array().expect("a list") {
                        let text = |key: &str| image[key].as_str().expect("a text").to_owned();
                        let new = format!("{}:{}", text("newName"), text("newTag"));
                        self.images.insert(text("name"), new);
                    }
                }
                other => panic!("{}: {other} is not known to this test", folder.display()),
            }
        }
    }
}

fn texts(value: &Value) -> impl Iterator<Item = &str> {
    value.as_array().expect("a list").iter().map(|it| it.as_str().expect("a text"))
}

fn config_map(folder: &Path, map: &Value) -> Value {
    let data: BTreeMap<&str, String> = texts(&map["files"])
        .map(|file| (file, fs::read_to_string(folder.join(file)).expect("a readable file")))
        .collect();
    json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": map["name"], "namespace": map["namespace"]}, "data": data})
}

fn rename_image(value: &mut Value, name: &str, new: &str) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                if key == "image" && value.as_str() == Some(name) {
                    *value = new.into();
                } else {
                    rename_image(value, name, new);
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|it| rename_image(it, name, new)),
        _ => {}
    }
}

/// `kind namespace/name` of an object.
pub(crate) fn called(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &object["metadata"];
    format!(
        "{} {}/{}",
        text(&object["kind"]),
        text(&metadata["namespace"]),
        text(&metadata["name"])
    )
}

/// The pod template of an object, if it has one.
pub(crate) fn pod_template(object: &Value) -> Option<&Value> {
    match object["kind"].as_str()? {
        "Deployment" | "Job" => Some(&object["spec"]["template"]),
        "CronJob" => Some(&object["spec"]["jobTemplate"]["spec"]["template"]),
        _ => None,
    }
}

/// A right of an account.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Right {
    pub(crate) who: String,
    /// The namespace; empty for all of them.
    pub(crate) within: String,
    /// The API group; empty for the core.
    pub(crate) group: String,
    /// The resource, with its subresource.
    pub(crate) resource: String,
    /// The name of the only object; empty for all.
    pub(crate) name: String,
    pub(crate) verb: String,
}

/// Every right that these objects give to accounts, one by one.
pub(crate) fn rights(objects: &[Value]) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for binding in objects {
        let kind = binding["kind"].as_str().unwrap_or_default();
        if !["ClusterRoleBinding", "RoleBinding"].contains(&kind) {
            continue;
        }
        let within = binding["metadata"]["namespace"].as_str().unwrap_or_default();
        let role = objects.iter().find(|object| {
            object["kind"] == binding["roleRef"]["kind"]
                && object["metadata"]["name"] == binding["roleRef"]["name"]
                && (object["kind"] == "ClusterRole" || object["metadata"]["namespace"] == within)
        });
        let role = role.unwrap_or_else(|| panic!("{}: no such role", called(binding)));
        for subject in binding["subjects"].as_array().expect("subjects") {
            assert_eq!(subject["kind"], "ServiceAccount", "{}", called(binding));
            let who = subject["name"].as_str().expect("a name");
            for rule in role["rules"].as_array().expect("rules") {
                let names: Vec<&str> =
                    rule.get("resourceNames").map_or(vec![""], |names| texts(names).collect());
                for group in texts(&rule["apiGroups"]) {
                    for resource in texts(&rule["resources"]) {
                        for verb in texts(&rule["verbs"]) {
                            for name in &names {
                                rights.insert(Right {
                                    who: who.to_owned(),
                                    within: within.to_owned(),
                                    group: group.to_owned(),
                                    resource: resource.to_owned(),
                                    name: (*name).to_owned(),
                                    verb: verb.to_owned(),
                                });
                            }
                        }
                    }
                }
            }
        }
    }
    rights
}
