//! `[metrics]` of the configuration: the metrics and their textfile.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{Deserializer, Error};

use crate::config::bounded::BoundedCount;

/// The metrics of nodes, runs and the gate.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsConfig {
    /// The file for node-exporter's textfile collector, written after every run; its name must end
    /// with `.prom`. Without it, none is written.
    #[serde(deserialize_with = "read_textfile")]
    pub textfile: Option<PathBuf>,
    /// Nodes that may have series of their own, default 2000. If more are known, healthy nodes have
    /// none, and `fabricgate_nodes_left_out` counts them.
    pub nodes: BoundedCount<1, 100_000>,
    /// Newest runs that are searched for the verdict of each node, default 500. A node that none of
    /// them judged is unknown.
    pub runs: BoundedCount<1, 100_000>,
}

impl Default for MetricsConfig {
    fn default() -> Self {
        // Ten series for each of 2,000 nodes make 20,000, which every Prometheus takes from one
        // target.
        Self { textfile: None, nodes: 2_000.into(), runs: 500.into() }
    }
}

impl MetricsConfig {
    /// With relative paths in this folder.
    pub fn resolve_paths(self, base: &Path) -> Self {
        Self { textfile: self.textfile.map(|file| base.join(file)), ..self }
    }
}

fn read_textfile<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
    let file = PathBuf::deserialize(from)?;
    check_textfile(&file).map_err(D::Error::custom)?;
    Ok(Some(file))
}

/// Checks that node-exporter reads a file of this name.
pub fn check_textfile(file: &Path) -> Result<(), String> {
    match file.extension() {
        Some(end) if end == "prom" => Ok(()),
        _ => Err(format!(
            "{:?}, expected a name that ends with .prom: node-exporter reads no other",
            file.display().to_string()
        )),
    }
}
