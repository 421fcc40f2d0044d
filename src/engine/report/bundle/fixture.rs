//! A made-up case for the tests of bundles: a run without its context.

use super::BundleCase;
use model::id::NodeName;
use model::run::Run;

pub(super) fn build_case(run: Run, node: &str) -> BundleCase {
    BundleCase {
        node: NodeName::from(node),
        run,
        judged: true,
        state: String::new(),
        ended: None,
        results: Vec::new(),
        machines: Vec::new(),
        recordings: Vec::new(),
        facts: None,
        trends: Vec::new(),
        missing: Vec::new(),
        redact: false,
    }
}
