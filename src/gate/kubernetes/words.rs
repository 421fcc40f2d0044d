//! A change in the words of `kubectl`, as a person could type them.
//!
//! Pure. What they do not have is the comparison with what was seen before.

use serde_json::json;

use super::patch::Edits;
use crate::act::words;
use crate::model::id::NodeName;
use crate::model::kubernetes_node::CONDITION;
use crate::model::kubernetes_node::TaintEdit;
use crate::sources::kubernetes::Kubernetes as Server;

/// The commands, one for each kind of thing that is written.
pub(super) fn words(server: &Server, nodes: &[NodeName], edits: &Edits) -> Vec<Vec<String>> {
    if nodes.is_empty() {
        return Vec::new();
    }
    let command = |verb: &[&str], rest: Vec<String>| {
        let mut words = vec!["kubectl".to_owned()];
        if let Some(file) = &server.kubeconfig {
            words.extend(["--kubeconfig".to_owned(), file.display().to_string()]);
        }
        if let Some(context) = &server.context {
            words.extend(["--context".to_owned(), context.clone()]);
        }
        words.extend(verb.iter().map(|word| (*word).to_owned()));
        words.extend(nodes.iter().map(|node| node.as_str().to_owned()));
        words.extend(rest);
        words
    };
    let with_overwrite = |mut rest: Vec<String>| {
        rest.push("--overwrite".to_owned());
        rest
    };
    let mut commands = Vec::new();
    for (verb, pairs) in [("annotate", &edits.annotations), ("label", &edits.labels)] {
        let pair = |(key, value): (&String, &Option<String>)| match value {
            Some(value) => format!("{key}={value}"),
            None => format!("{key}-"),
        };
        if !pairs.is_empty() {
            let rest = with_overwrite(pairs.iter().map(pair).collect());
            commands.push(command(&[verb, "node"], rest));
        }
    }
    if !edits.taints.is_empty() {
        let taint = |it: &TaintEdit| match it.value.as_deref() {
            None => format!("{}:{}-", it.key, it.effect),
            Some("") => format!("{}:{}", it.key, it.effect),
            Some(value) => format!("{}={value}:{}", it.key, it.effect),
        };
        let rest = with_overwrite(edits.taints.iter().map(taint).collect());
        commands.push(command(&["taint", "node"], rest));
    }
    if let Some((mark, is_out)) = &edits.device {
        commands.extend(nodes.iter().map(|node| words::device_words(node, mark, *is_out)));
    }
    if let Some(it) = &edits.condition {
        let patch = json!({ "status": { "conditions": [{
            "type": CONDITION, "status": it.status, "reason": it.reason, "message": it.message,
        }] } });
        let options = ["--subresource=status", "--type=strategic"].map(str::to_owned);
        let rest = options.into_iter().chain(["--patch".to_owned(), patch.to_string()]);
        commands.push(command(&["patch", "node"], rest.collect()));
    }
    commands
}
