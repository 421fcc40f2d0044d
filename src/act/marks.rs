//! What we say on a node: two features and one entry in its field for programs,
//! beside whatever others say there.
//!
//! Pure. Others' features and others' words are kept; what cannot be kept is
//! not written over.

use schemars::JsonSchema;
use serde::Deserialize;
use serde::Serialize;

use crate::model::action::Mark;
use crate::model::change::Change;
use crate::model::live::LiveNode;

/// The site's names for what we say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MarkNames {
    /// The feature of a node that passed.
    pub verified: String,
    /// The feature of a node that works below what it must deliver.
    pub degraded: String,
    /// Whether features are written at all.
    pub features: bool,
    /// Whether the field for programs is written at all.
    pub extra: bool,
}

impl Default for MarkNames {
    fn default() -> Self {
        Self {
            verified: "fabric_verified".to_owned(),
            degraded: "fabric_degraded".to_owned(),
            features: true,
            extra: true,
        }
    }
}

/// What is to be written so that the node says this, on top of what it says.
/// Nothing where it does already.
pub fn change(node: &LiveNode, mark: &Mark, names: &MarkNames) -> Change {
    let _ = (node, mark, names);
    Change::default()
}

/// Whether the node still says this: Slurm forgets features at a reconfigure.
pub fn says(node: &LiveNode, mark: &Mark, names: &MarkNames) -> bool {
    change(node, mark, names).is_nothing()
}
