//! `[metrics]` of the configuration: the metrics and their textfile.
//!
//! Checks the text of the section and opens nothing.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use crate::config::ConfigMistake;

/// Nodes with series of their own: ten series each make 20,000, which every Prometheus accepts from
/// one target.
const DEFAULT_NODES: u32 = 2_000;

/// Runs that are searched for the newest verdict of each node.
const DEFAULT_RUNS: u32 = 500;

/// The metrics of nodes, runs and the gate.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsSection {
    /// The file for node-exporter's textfile collector, written after every run; its name must end
    /// with `.prom`. Without it, none is written.
    #[schemars(with = "Option<PathBuf>")]
    textfile: Option<Spanned<PathBuf>>,
    /// Nodes that may have series of their own, default 2000. If more are known, healthy nodes have
    /// none, and `fabricgate_nodes_left_out` counts them.
    #[schemars(with = "Option<u32>")]
    nodes: Option<Spanned<u32>>,
    /// Newest runs that are searched for the verdict of each node, default 500. A node that none of
    /// them judged is unknown.
    #[schemars(with = "Option<u32>")]
    runs: Option<Spanned<u32>>,
}

/// The settings of metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsConfig {
    /// The textfile.
    pub textfile: Option<PathBuf>,
    /// Most nodes with series of their own.
    pub nodes: usize,
    /// Most runs that are searched.
    pub runs: usize,
}

impl Default for MetricsConfig {
    fn default() -> Self {
        Self { textfile: None, nodes: DEFAULT_NODES as usize, runs: DEFAULT_RUNS as usize }
    }
}

/// Reads `[metrics]`.
pub fn parse_metrics(section: MetricsSection, base: &Path) -> Result<MetricsConfig, ConfigMistake> {
    let usual = MetricsConfig::default();
    let number = |key: &str, value: Option<Spanned<u32>>, usual: usize, most: u32| match value {
        None => Ok(usual),
        Some(value) if (1..=most).contains(value.get_ref()) => Ok(*value.get_ref() as usize),
        Some(value) => {
            let text = format!("{key} {}, expected 1 to {most}", value.get_ref());
            Err((value.span().start, text))
        }
    };
    let textfile = match section.textfile {
        None => None,
        Some(file) => {
            check_textfile(file.get_ref()).map_err(|why| (file.span().start, why))?;
            Some(base.join(file.into_inner()))
        }
    };
    Ok(MetricsConfig {
        textfile,
        nodes: number("nodes", section.nodes, usual.nodes, 100_000)?,
        runs: number("runs", section.runs, usual.runs, 100_000)?,
    })
}

/// Whether node-exporter would read a file of this name.
pub fn check_textfile(file: &Path) -> Result<(), String> {
    match file.extension() {
        Some(end) if end == "prom" => Ok(()),
        _ => Err(format!(
            "textfile {:?}, expected a name that ends with .prom: node-exporter reads no other",
            file.display().to_string()
        )),
    }
}
