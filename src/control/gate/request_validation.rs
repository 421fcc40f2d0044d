//! Validates requests to Slurm before they are sent, and splits node lists to fit into
//! one call; shared by `scontrol` and slurmrestd.
//!
//! Slurm accepts and stores any text. A two-line reason breaks `sinfo -R` and hides its
//! author, a control sequence reaches the terminal of a reader, and a node named `ALL`
//! means every node. None of these is sent.

use super::scheduler::SchedulerError;
use model::hostlist;
use model::id::NodeName;
use model::node_update::{NodeStateChange, NodeUpdate};
use model::source_report::SourceProblemKind;
use model::text::clean;

/// Maximum length of a node list in one call, in bytes. Linux limits one argument to 128
/// KiB (`MAX_ARG_STRLEN`), and over ssh the whole command is a single argument.
const MAX_HOST_LIST_BYTES: usize = 64 * 1024;

/// Host lists for these nodes; more than one only if the list would be too long.
pub(super) fn fold_host_lists(nodes: &[NodeName]) -> Vec<String> {
    if nodes.is_empty() {
        return Vec::new();
    }
    let list = hostlist::fold(nodes.iter().map(NodeName::as_str));
    if list.len() <= MAX_HOST_LIST_BYTES || nodes.len() == 1 {
        return vec![list];
    }
    let (first, second) = nodes.split_at(nodes.len() / 2);
    [fold_host_lists(first), fold_host_lists(second)].concat()
}

/// Checks that each name is a single node, not a list or keyword.
pub(super) fn check_node_names(nodes: &[NodeName]) -> Result<(), SchedulerError> {
    match nodes.iter().find(|name| !hostlist::is_name(name.as_str())) {
        None => Ok(()),
        Some(name) => reject(format!(
            "{:?} is not the name of one node: Slurm would read it as something else",
            clean(name.as_str())
        )),
    }
}

/// Checks that Slurm would return the written values unchanged.
pub(super) fn check_update(change: &NodeUpdate) -> Result<(), SchedulerError> {
    if let Some(NodeStateChange::Drain { reason }) = &change.state {
        if reason.trim().is_empty() {
            return reject("a drain needs a reason; slurmrestd would accept an empty one");
        }
        check_one_line("the reason", reason)?;
    }
    for (what, text) in [("extra", &change.extra), ("comment", &change.comment)] {
        check_one_line(what, text.as_deref().unwrap_or_default())?;
    }
    let features = [&change.available_features, &change.active_features];
    for feature in features.into_iter().flatten().flatten() {
        let separates = |c: char| c == ',' || c.is_whitespace() || c.is_control();
        if feature.is_empty() || feature.contains(separates) {
            return reject(format!("{:?} is not the name of one feature", clean(feature)));
        }
    }
    Ok(())
}

fn check_one_line(what: &str, text: &str) -> Result<(), SchedulerError> {
    if text.contains(char::is_control) {
        return reject(format!(
            "{what} {:?} contains control characters; it must be one plain line",
            clean(text)
        ));
    }
    Ok(())
}

fn reject(message: impl Into<String>) -> Result<(), SchedulerError> {
    Err(SchedulerError::new(
        SourceProblemKind::Malformed,
        format!("nothing was sent: {}", message.into()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_plain_line() {
        for good in ["fabricgate:nvlink-low:r1 e7", "it's \"é\" 🙂 a=b; $(x)", &"x".repeat(300)]
        {
            assert_eq!(check_update(&NodeUpdate::drain(good)), Ok(()), "{good}");
        }
        for bad in ["", " ", "a\nb", "a\tb", "\u{1b}[31mred", "a\u{0}b", "a\u{85}b"] {
            let error = check_update(&NodeUpdate::drain(bad)).expect_err(bad);
            assert_eq!(error.kind, SourceProblemKind::Malformed);
            assert!(error.message.starts_with("nothing was sent"), "{error}");
            assert!(!error.message.contains(char::is_control), "{error:?}");
        }
    }

    #[test]
    fn features_are_single_words_and_free_fields_single_lines() {
        let with = |feature: &str| NodeUpdate {
            active_features: Some(vec!["gb200".to_owned(), feature.to_owned()]),
            ..NodeUpdate::default()
        };
        assert_eq!(check_update(&with("fabric_verified")), Ok(()));
        for bad in ["", "a,b", "a b", "a\n"] {
            assert!(check_update(&with(bad)).is_err(), "{bad:?}");
        }
        let empty = NodeUpdate { extra: Some(String::new()), ..NodeUpdate::default() };
        assert_eq!(check_update(&empty), Ok(()), "empty clears it");
        let comment = NodeUpdate { comment: Some("a\nb".to_owned()), ..NodeUpdate::default() };
        assert!(check_update(&comment).is_err());
    }

    #[test]
    fn only_single_nodes_may_be_named() {
        let named = |name: &str| check_node_names(&[NodeName::from("n1"), NodeName::from(name)]);
        assert_eq!(named("node0001"), Ok(()));
        for bad in ["ALL", "all", "node[1-2]", "a,b", "block{b1}", "-f", "n1 State=DOWN", ""] {
            assert!(named(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_list_that_is_too_long_for_one_call_is_several() {
        let alike: Vec<NodeName> =
            (1..=10_000).map(|i| NodeName::from(format!("node{i:05}"))).collect();
        assert_eq!(fold_host_lists(&alike), ["node[00001-10000]"]);
        let unlike: Vec<NodeName> = (1..=10_000)
            .map(|i| NodeName::from(format!("rack{i}x-of-the-long-row-{i}n")))
            .collect();
        let many = fold_host_lists(&unlike);
        assert!(many.len() > 1 && many.iter().all(|list| list.len() <= MAX_HOST_LIST_BYTES));
        let back: Vec<String> =
            many.iter().flat_map(|list| hostlist::expand(list).expect("good")).collect();
        assert_eq!(back.len(), unlike.len());
        assert!(fold_host_lists(&[]).is_empty());
    }
}
