//! One `Claims` value from what all sources say, with their disagreements.

use crate::model::claims::Claims;
use crate::model::said::Family;
use crate::model::said::Said;

/// Tells the platform (a name in `thresholds/`) from a product name and the
/// number of GPUs.
pub type PlatformOf<'p> = dyn Fn(&str, Option<u32>) -> Option<String> + 'p;

/// How sources are weighed, and what a person expects of every node.
#[expect(missing_debug_implementations, reason = "holds a function")]
pub struct Rules<'r> {
    /// Whose domains are measured: the first family that says any.
    pub order: Vec<Family>,
    /// GPUs every node must have, where a person said.
    pub gpus_per_node: Option<u32>,
    /// NICs of the compute network every node must have, where a person said.
    pub nics_per_node: Option<u32>,
    /// Tells the platform from a product name.
    pub platform_of: &'r PlatformOf<'r>,
}

/// Weighs what the sources say.
pub fn reconcile(said: Vec<Said>, rules: &Rules<'_>) -> Claims {
    let _ = (said, rules);
    Claims::default()
}
