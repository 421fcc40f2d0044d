//! A change as the commands that a user would type to make it, for either control plane.
//!
//! Pure. The commands are displayed and written to the journal, never run. A backend may send
//! one request where a user needs several commands.

use serde_json::json;

use super::situation::SchedulerKind;
use super::{drain_reason, kubernetes_label};
use model::id::NodeName;
use model::kubernetes_node::{
    CONDITION, DEGRADED, FabricNodeCondition, NO_SCHEDULE, REASON, Taint,
};
use model::node_update::{NodeStateChange, NodeUpdate};

/// Separates two commands in one command line.
const COMMAND_SEPARATOR: &str = "&&";

/// The commands that make this change on this node, each as a list of arguments; empty if
/// nothing changes.
pub fn to_commands(node: &NodeName, change: &NodeUpdate, plane: SchedulerKind) -> Vec<Vec<String>> {
    match plane {
        SchedulerKind::Slurm => scontrol_command(node, change).into_iter().collect(),
        SchedulerKind::Kubernetes => kubectl_commands(std::slice::from_ref(node), change, &[]),
    }
}

/// The commands as one line.
pub fn to_command_line(node: &NodeName, change: &NodeUpdate, plane: SchedulerKind) -> Vec<String> {
    to_commands(node, change, plane).join(&COMMAND_SEPARATOR.to_owned())
}

/// The taint of a drain with this reason. Its value is the class in the reason, so that both
/// can be matched.
pub fn drain_taint(reason: &str) -> Taint {
    let class = drain_reason::parse_reason(reason).map(|own| own.class);
    Taint {
        key: DEGRADED.to_owned(),
        value: kubernetes_label::label_value(class.as_deref().unwrap_or("fault")),
        effect: NO_SCHEDULE.to_owned(),
    }
}

fn scontrol_command(node: &NodeName, change: &NodeUpdate) -> Option<Vec<String>> {
    let list = |features: &Vec<String>| features.join(",");
    let (state, reason) = match &change.state {
        Some(NodeStateChange::Drain { reason }) => (Some("DRAIN".to_owned()), Some(reason.clone())),
        Some(NodeStateChange::Resume) => (Some("RESUME".to_owned()), None),
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
    let quoted: Vec<String> =
        fields.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?))).collect();
    let head = ["scontrol".to_owned(), "update".to_owned(), format!("NodeName={node}")];
    (!quoted.is_empty()).then(|| head.into_iter().chain(quoted).collect())
}

/// The commands for these nodes, each with these options; empty without a node. A taint counts
/// as fabricgate's only with the annotation, so the annotation is set before the taint and
/// removed after it.
pub fn kubectl_commands(
    nodes: &[NodeName],
    change: &NodeUpdate,
    options: &[String],
) -> Vec<Vec<String>> {
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
        Some(NodeStateChange::Drain { reason }) => {
            let Taint { key, value, effect } = drain_taint(reason);
            taints.push(format!("{key}={value}:{effect}"));
            before.push(format!("{REASON}={reason}"));
        }
        Some(NodeStateChange::Resume) => {
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
    let patch =
        |condition| head(&["patch"], &["node"]).into_iter().chain(patch_arguments(condition));
    calls.extend(marks.condition.as_ref().map(|condition| patch(condition).collect()));
    calls
}

/// The condition's times are left to the server and the user.
fn patch_arguments(
    FabricNodeCondition { status, reason, message }: &FabricNodeCondition,
) -> [String; 6] {
    let condition =
        json!({ "type": CONDITION, "status": status, "reason": reason, "message": message });
    let patch = json!({ "status": { "conditions": [condition] } }).to_string();
    ["--subresource", "status", "--type", "strategic", "-p", &patch].map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::kubernetes_node::{
        KubernetesNodeUpdate, PREFER_NO_SCHEDULE, TaintEdit, UNVERIFIED, VERDICT, VERIFIED_DOMAIN,
    };
    use model::shell_quote as shell;

    fn render(change: &NodeUpdate, plane: SchedulerKind) -> Vec<String> {
        to_commands(&"n1".into(), change, plane)
            .iter()
            .map(|call| shell::join_quoted(call))
            .collect()
    }

    fn drain() -> NodeUpdate {
        NodeUpdate::drain("fabricgate:nvlink-low:r1 e7")
    }

    #[test]
    fn each_plane_has_its_own_commands_for_a_drain_and_its_release() {
        assert_eq!(
            render(&drain(), SchedulerKind::Slurm),
            [r#"scontrol update NodeName=n1 State=DRAIN Reason="fabricgate:nvlink-low:r1 e7""#]
        );
        assert_eq!(
            render(&drain(), SchedulerKind::Kubernetes),
            [
                r#"kubectl annotate --overwrite node n1 "fabricgate.io/reason=fabricgate:nvlink-low:r1 e7""#,
                r#"kubectl taint --overwrite node n1 "fabricgate.io/degraded=nvlink-low:NoSchedule""#,
            ]
        );
        let back = NodeUpdate { state: Some(NodeStateChange::Resume), ..NodeUpdate::default() };
        assert_eq!(
            render(&back, SchedulerKind::Slurm),
            ["scontrol update NodeName=n1 State=RESUME"]
        );
        assert_eq!(
            render(&back, SchedulerKind::Kubernetes),
            [
                r#"kubectl taint --overwrite node n1 "fabricgate.io/degraded:NoSchedule-""#,
                "kubectl annotate --overwrite node n1 fabricgate.io/reason-",
            ]
        );
        for plane in [SchedulerKind::Slurm, SchedulerKind::Kubernetes] {
            assert!(render(&NodeUpdate::default(), plane).is_empty());
        }
    }

    #[test]
    fn marks_are_set_and_taken_away_by_key() {
        let edit = |key: &str, effect: &str, value: Option<&str>| TaintEdit {
            key: key.to_owned(),
            effect: effect.to_owned(),
            value: value.map(str::to_owned),
        };
        let marks = KubernetesNodeUpdate {
            taints: vec![
                edit(UNVERIFIED, NO_SCHEDULE, None),
                edit(DEGRADED, PREFER_NO_SCHEDULE, Some("nvlink-low")),
            ],
            labels: [
                (VERDICT.to_owned(), Some("degraded".to_owned())),
                (VERIFIED_DOMAIN.to_owned(), None),
            ]
            .into(),
            condition: Some(FabricNodeCondition {
                status: "False".to_owned(),
                reason: "NvlinkLow".to_owned(),
                message: "it's slow".to_owned(),
            }),
            ..KubernetesNodeUpdate::default()
        };
        let change = NodeUpdate { kubernetes: Some(marks), ..NodeUpdate::default() };
        assert_eq!(
            render(&change, SchedulerKind::Kubernetes),
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
    fn the_value_of_a_drain_s_taint_is_legal_for_any_class() {
        assert_eq!(drain_taint("fabricgate:nvlink-low:r1 e7").value, "nvlink-low");
        assert_eq!(drain_taint("another's").value, "fault");
        let odd = drain_taint(&drain_reason::format_reason("r", "--odd class--", 1)).value;
        assert!(odd.starts_with("odd-class") && odd.len() <= kubernetes_label::LONGEST, "{odd}");
    }

    #[test]
    fn several_commands_become_one_line() {
        let line = to_command_line(&"n1".into(), &drain(), SchedulerKind::Kubernetes);
        assert_eq!(line.iter().filter(|word| *word == COMMAND_SEPARATOR).count(), 1);
    }
}
