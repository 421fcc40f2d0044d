//! `verdicts.json` and `actions.json`.
//!
//! Their schemas are the files in `reports/schema`, which are generated from the types
//! (`cli/schemas`).

use serde::Serialize;

use model::action::ActionPlan;
use model::verdict::Verdicts;

/// The bytes of `verdicts.json`.
pub fn render_verdicts(verdicts: &Verdicts) -> Vec<u8> {
    to_pretty_json(verdicts)
}

/// The bytes of `actions.json`.
pub fn render_actions(actions: &ActionPlan) -> Vec<u8> {
    to_pretty_json(actions)
}

/// One indented document with a trailing line break.
fn to_pretty_json<T: Serialize>(document: &T) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(document)
        .expect("documents are structs, lists and numbers, all of which JSON has");
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn documents_read_back_as_they_were() {
        for run in fixture::all() {
            let read: Verdicts =
                serde_json::from_slice(&render_verdicts(&run.verdicts)).expect("json");
            assert_eq!(read, run.verdicts);
        }
    }

    #[test]
    fn verdicts_and_actions_are_rendered() {
        let run = fixture::rack();
        let text = |bytes| String::from_utf8(bytes).expect("utf-8");
        insta::assert_snapshot!("verdicts", text(render_verdicts(&run.verdicts)));
        insta::assert_snapshot!(
            "actions",
            text(render_actions(run.actions.as_ref().expect("a plan")))
        );
    }
}
