//! Asks the nodes themselves: `fabricgate node facts` through a launcher.

use std::time::Duration;

use crate::launch::Launcher;
use crate::model::id::NodeName;
use crate::model::said::Said;

/// How nodes are reached.
#[derive(Debug)]
pub struct Nodes<'n> {
    /// Through what.
    pub launcher: &'n Launcher,
    /// What nodes call fabricgate.
    pub worker: &'n str,
    /// How many are asked at the same time.
    pub parallel: usize,
    /// How long one may take.
    pub limit: Duration,
}

/// Asks all of them; one answer holds what every node says.
pub async fn ask(nodes: &Nodes<'_>, names: &[NodeName]) -> Said {
    let _ = (nodes, names);
    Said::nothing(crate::model::said::SourceKind::NodeFacts, "fabricgate node facts")
}
