//! Detects relevant changes of a node between a reading and a write.
//!
//! Pure. Heartbeats, pods and other owners' taints change all the time and are
//! irrelevant: a patch leaves them as they are.

use model::kubernetes_node::{FABRICGATE_PREFIX, KubernetesNode, Taint};
use model::scheduler_snapshot::SchedulerNode;
use model::text::clean;
use readers::claims::kubernetes::live_node;

/// Why a decision based on `seen` must not be applied to `now`.
pub(super) fn explain_conflict(seen: &SchedulerNode, now: &SchedulerNode) -> Option<String> {
    if let Some(why) = explain_replacement(seen, now) {
        return Some(why);
    }
    let (Some(was), Some(is)) = (&seen.kubernetes, &now.kubernetes) else {
        return Some("it was not read from Kubernetes".to_owned());
    };
    if seen.boot_id != now.boot_id {
        return Some("it has booted since".to_owned());
    }
    if seen.instance != now.instance {
        return Some("it is another machine now".to_owned());
    }
    let (before, after) = (live_node::own_states(seen), live_node::own_states(now));
    if before != after {
        let join = |words: &[&str]| match words {
            [] => "in service".to_owned(),
            words => clean(&words.join("+")),
        };
        return Some(format!("it was {}, now it is {}", join(&before), join(&after)));
    }
    if was.left_alone != is.left_alone {
        let now = is.left_alone.first().map(|it| clean(it));
        let now = now.unwrap_or_else(|| "none".to_owned());
        return Some(format!("the reason to leave it alone has changed: {now}"));
    }
    changed_gate_field(was, is).map(|what| format!("another writer changed fabricgate's {what}"))
}

/// Detects another node with the same name.
pub(super) fn explain_replacement(seen: &SchedulerNode, now: &SchedulerNode) -> Option<String> {
    let uid = |node: &SchedulerNode| node.kubernetes.as_ref().map(|it| it.uid.clone());
    (uid(seen) != uid(now)).then(|| "another node has its name".to_owned())
}

/// The kind of fabricgate field that changed on the node.
fn changed_gate_field(was: &KubernetesNode, is: &KubernetesNode) -> Option<&'static str> {
    let taints = |node: &KubernetesNode| -> Vec<Taint> {
        let mut own: Vec<Taint> = node
            .taints
            .iter()
            .filter(|it| it.key.starts_with(FABRICGATE_PREFIX))
            .cloned()
            .collect();
        own.sort();
        own
    };
    if taints(was) != taints(is) {
        return Some("taints");
    }
    if was.annotations != is.annotations {
        return Some("annotations");
    }
    if was.labels != is.labels {
        return Some("labels");
    }
    (was.condition != is.condition).then_some("condition")
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::kubernetes_node::DEGRADED;

    fn node() -> SchedulerNode {
        let kubernetes = KubernetesNode { uid: "u1".to_owned(), ..KubernetesNode::default() };
        SchedulerNode {
            boot_id: Some("b1".to_owned()),
            kubernetes: Some(Box::new(kubernetes)),
            ..SchedulerNode::new("n1", &["IDLE"])
        }
    }

    fn conflict_after(
        change: impl FnOnce(&mut SchedulerNode, &mut KubernetesNode),
    ) -> Option<String> {
        let mut now = node();
        let mut kubernetes = now.kubernetes.take().expect("a Kubernetes node");
        change(&mut now, &mut kubernetes);
        now.kubernetes = Some(kubernetes);
        explain_conflict(&node(), &now)
    }

    fn taint(key: &str) -> Taint {
        Taint { key: key.to_owned(), value: String::new(), effect: "NoSchedule".to_owned() }
    }

    #[test]
    fn transient_fields_do_not_conflict() {
        assert_eq!(conflict_after(|_, _| {}), None);
        assert_eq!(conflict_after(|_, it| it.version = "9".to_owned()), None);
        assert_eq!(conflict_after(|now, _| now.state = vec!["ALLOCATED".to_owned()]), None);
        assert_eq!(conflict_after(|_, it| it.taints.push(taint("dedicated"))), None);
        assert_eq!(conflict_after(|_, it| it.gangs.extend(["g".to_owned()])), None);
    }

    #[test]
    fn fields_that_a_decision_depends_on_conflict() {
        type NodeConflictEdit = fn(&mut SchedulerNode, &mut KubernetesNode);
        let all: [(&str, NodeConflictEdit); 9] = [
            ("another node", |_, it| it.uid = "u2".to_owned()),
            ("booted", |now, _| now.boot_id = Some("b2".to_owned())),
            ("another machine", |now, _| now.instance = Some("i2".to_owned())),
            ("is CORDONED", |now, _| now.state.push("CORDONED".to_owned())),
            ("is NOT_READY", |now, _| now.state = vec!["NOT_READY".to_owned()]),
            ("at work", |_, it| it.left_alone.push("medik8s is at work".to_owned())),
            ("fabricgate's taints", |_, it| it.taints.push(taint(DEGRADED))),
            ("fabricgate's annotations", |_, it| {
                it.annotations.insert("fabricgate.io/reason".to_owned(), "x".to_owned());
            }),
            ("fabricgate's labels", |_, it| {
                it.labels.insert("fabricgate.io/verdict".to_owned(), "pass".to_owned());
            }),
        ];
        for (words, change) in all {
            let why = conflict_after(change).unwrap_or_else(|| panic!("{words}"));
            assert!(why.contains(words), "{words}: {why}");
        }
    }
}
