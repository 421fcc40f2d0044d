//! A change as the commands that a person would type to make it, for either
//! plane.
//!
//! Pure. Shown, written into the journal, never run. What a backend really
//! sends may be one request where people need several commands.

use serde_json::json;

use super::label;
use super::plane::Plane;
use super::reason;
use crate::model::change::Change;
use crate::model::change::StateChange;
use crate::model::id::NodeName;
use crate::model::kubernetes_node::CONDITION;
use crate::model::kubernetes_node::Condition;
use crate::model::kubernetes_node::DEGRADED;
use crate::model::kubernetes_node::NO_SCHEDULE;
use crate::model::kubernetes_node::REASON;
use crate::model::kubernetes_node::Taint;

/// What stands between two commands in one line of words.
const AND: &str = "&&";

/// The commands that make this change on this node, each word by word; none
/// where nothing is changed.
pub fn words(node: &NodeName, change: &Change, plane: Plane) -> Vec<Vec<String>> {
    match plane {
        Plane::Slurm => scontrol(node, change).into_iter().collect(),
        Plane::Kubernetes => kubectl(std::slice::from_ref(node), change, &[]),
    }
}

/// The same as one line.
pub fn line(node: &NodeName, change: &Change, plane: Plane) -> Vec<String> {
    words(node, change, plane).join(&AND.to_owned())
}

/// The taint of a drain with this reason: its value is the class that the
/// reason names, so that whoever reads one knows the other.
pub fn taint_of(reason: &str) -> Taint {
    let class = reason::read(reason).map(|own| own.class);
    Taint {
        key: DEGRADED.to_owned(),
        value: label::value(class.as_deref().unwrap_or("fault")),
        effect: NO_SCHEDULE.to_owned(),
    }
}

fn scontrol(node: &NodeName, change: &Change) -> Option<Vec<String>> {
    let list = |features: &Vec<String>| features.join(",");
    let (state, reason) = match &change.state {
        Some(StateChange::Drain { reason }) => (Some("DRAIN".to_owned()), Some(reason.clone())),
        Some(StateChange::Resume) => (Some("RESUME".to_owned()), None),
        None => (None, None),
    };
    let fields = [
        ("State", state),
        ("Reason", reason),
        ("AvailableFeatures", change.available_features.as_ref().map(list)),
        ("ActiveFeatures", change.active_features.as_ref().map(list)),
        ("Extra", change.extra.clone()),
        ("Comment", change.comment.clone()),
    ];
    let said: Vec<String> =
        fields.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?))).collect();
    let head = ["scontrol".to_owned(), "update".to_owned(), format!("NodeName={node}")];
    (!said.is_empty()).then(|| head.into_iter().chain(said).collect())
}

/// The commands for these nodes, each with these options; none without a node. A
/// taint without our annotation is not ours, so the annotation comes before the
/// taint, and goes after it.
pub fn kubectl(nodes: &[NodeName], change: &Change, options: &[String]) -> Vec<Vec<String>> {
    if nodes.is_empty() {
        return Vec::new();
    }
    let head = |verb: &[&str], kind: &[&str]| -> Vec<String> {
        let words = |words: &[&str]| words.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let mut head = words(&["kubectl"]);
        head.extend_from_slice(options);
        head.extend(words(verb).into_iter().chain(words(kind)));
        head.extend(nodes.iter().map(|node| node.as_str().to_owned()));
        head
    };
    let marks = change.kubernetes.clone().unwrap_or_default();
    let mut taints: Vec<String> = Vec::new();
    let mut before: Vec<String> = Vec::new();
    let mut after: Vec<String> = Vec::new();
    match &change.state {
        Some(StateChange::Drain { reason }) => {
            let Taint { key, value, effect } = taint_of(reason);
            taints.push(format!("{key}={value}:{effect}"));
            before.push(format!("{REASON}={reason}"));
        }
        Some(StateChange::Resume) => {
            taints.push(format!("{DEGRADED}:{NO_SCHEDULE}-"));
            after.push(format!("{REASON}-"));
        }
        None => {}
    }
    taints.extend(marks.taints.iter().map(|edit| match &edit.value {
        Some(value) if value.is_empty() => format!("{}:{}", edit.key, edit.effect),
        Some(value) => format!("{}={value}:{}", edit.key, edit.effect),
        None => format!("{}:{}-", edit.key, edit.effect),
    }));
    let edit = |(key, value): (&String, &Option<String>)| match value {
        Some(value) => format!("{key}={value}"),
        None => format!("{key}-"),
    };
    let labels: Vec<String> = marks.labels.iter().map(edit).collect();
    after.extend(marks.annotations.iter().map(edit));
    let mut calls: Vec<Vec<String>> = Vec::new();
    for (verb, edits) in
        [("annotate", before), ("taint", taints), ("label", labels), ("annotate", after)]
    {
        if edits.is_empty() {
            continue;
        }
        calls.push(head(&[verb, "--overwrite"], &["node"]).into_iter().chain(edits).collect());
    }
    let patch = |condition| head(&["patch"], &["node"]).into_iter().chain(patched(condition));
    calls.extend(marks.condition.as_ref().map(|condition| patch(condition).collect()));
    calls
}

/// The moments of a condition are left to the server and to whoever types.
fn patched(Condition { status, reason, message }: &Condition) -> [String; 6] {
    let condition =
        json!({ "type": CONDITION, "status": status, "reason": reason, "message": message });
    let patch = json!({ "status": { "conditions": [condition] } }).to_string();
    ["--subresource", "status", "--type", "strategic", "-p", &patch].map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::kubernetes_node::KubernetesMarks;
    use crate::model::kubernetes_node::PREFER_NO_SCHEDULE;
    use crate::model::kubernetes_node::TaintEdit;
    use crate::model::kubernetes_node::UNVERIFIED;
    use crate::model::kubernetes_node::VERDICT;
    use crate::model::kubernetes_node::VERIFIED_DOMAIN;
    use crate::model::words as shell;

    fn shown(change: &Change, plane: Plane) -> Vec<String> {
        words(&"n1".into(), change, plane).iter().map(|call| shell::line(call)).collect()
    }

    fn drain() -> Change {
        Change::drain("fabricgate:nvlink-low:r1 e7")
    }

    #[test]
    fn each_plane_has_its_own_words_for_a_drain_and_its_end() {
        assert_eq!(
            shown(&drain(), Plane::Slurm),
            [r#"scontrol update NodeName=n1 State=DRAIN Reason="fabricgate:nvlink-low:r1 e7""#]
        );
        assert_eq!(
            shown(&drain(), Plane::Kubernetes),
            [
                r#"kubectl annotate --overwrite node n1 "fabricgate.io/reason=fabricgate:nvlink-low:r1 e7""#,
                r#"kubectl taint --overwrite node n1 "fabricgate.io/degraded=nvlink-low:NoSchedule""#,
            ]
        );
        let back = Change { state: Some(StateChange::Resume), ..Change::default() };
        assert_eq!(shown(&back, Plane::Slurm), ["scontrol update NodeName=n1 State=RESUME"]);
        assert_eq!(
            shown(&back, Plane::Kubernetes),
            [
                r#"kubectl taint --overwrite node n1 "fabricgate.io/degraded:NoSchedule-""#,
                "kubectl annotate --overwrite node n1 fabricgate.io/reason-",
            ]
        );
        for plane in [Plane::Slurm, Plane::Kubernetes] {
            assert!(shown(&Change::default(), plane).is_empty());
        }
    }

    #[test]
    fn marks_are_set_and_taken_away_by_key() {
        let edit = |key: &str, effect: &str, value: Option<&str>| TaintEdit {
            key: key.to_owned(),
            effect: effect.to_owned(),
            value: value.map(str::to_owned),
        };
        let marks = KubernetesMarks {
            taints: vec![
                edit(UNVERIFIED, NO_SCHEDULE, None),
                edit(DEGRADED, PREFER_NO_SCHEDULE, Some("nvlink-low")),
            ],
            labels: [
                (VERDICT.to_owned(), Some("degraded".to_owned())),
                (VERIFIED_DOMAIN.to_owned(), None),
            ]
            .into(),
            condition: Some(Condition {
                status: "False".to_owned(),
                reason: "NvlinkLow".to_owned(),
                message: "it's slow".to_owned(),
            }),
            ..KubernetesMarks::default()
        };
        let change = Change { kubernetes: Some(marks), ..Change::default() };
        assert_eq!(
            shown(&change, Plane::Kubernetes),
            [
                "kubectl taint --overwrite node n1 \"fabricgate.io/unverified:NoSchedule-\" \
                 \"fabricgate.io/degraded=nvlink-low:PreferNoSchedule\"",
                "kubectl label --overwrite node n1 \"fabricgate.io/verdict=degraded\" \
                 fabricgate.io/verified-domain-",
                "kubectl patch node n1 --subresource status --type strategic -p \
                 '{\"status\":{\"conditions\":[{\"type\":\"GpuFabricVerified\",\"status\":\"False\",\
                 \"reason\":\"NvlinkLow\",\"message\":\"it'\\''s slow\"}]}}'",
            ]
        );
    }

    #[test]
    fn the_value_of_a_drain_s_taint_is_legal_whatever_the_class() {
        assert_eq!(taint_of("fabricgate:nvlink-low:r1 e7").value, "nvlink-low");
        assert_eq!(taint_of("nobody's").value, "fault");
        let odd = taint_of(&reason::write("r", "--odd class--", 1)).value;
        assert!(odd.starts_with("odd-class") && odd.len() <= label::LONGEST, "{odd}");
    }

    #[test]
    fn several_commands_become_one_line() {
        let line = line(&"n1".into(), &drain(), Plane::Kubernetes);
        assert_eq!(line.iter().filter(|word| *word == AND).count(), 1);
    }
}
