//! Reports of a run for readers and machines: a [`Run`] in, text out.
//!
//! One exporter per file, all pure: no I/O, no clock, no environment. Nothing here decides an
//! outcome; a report shows the judge's verdicts and counts what it leaves out. Text from outside
//! (node names, details) reaches a reader without control characters.
//!
//! [`Run`]: model::run::Run

pub mod acceptance;
pub mod actions;
pub mod bundle;
pub mod capacity;
mod capacity_levels;
pub mod capacity_plot;
pub mod certificate;
pub mod claims;
pub mod collective_probe;
pub mod comparison;
pub mod copy_probe;
pub mod csv;
pub mod explain;
pub mod fabric_probe;
pub mod gate;
pub mod gate_log;
pub mod html;
pub mod json;
pub mod junit;
pub mod metrics;
pub mod node_facts;
pub mod notice;
pub mod terminal;
pub mod tool_output;
pub mod trend;
pub mod trend_plot;
pub mod watch;

mod blame_marks;
mod chart;
mod class_text;
mod colour_scale;
mod grid;
mod headline;
mod network;
mod output_facts;
mod overview;
mod path_explanation;
pub mod plain_text;
mod probe_table;
pub mod reason_groups;
mod reference_text;
mod svg_heatmap;
mod terminal_page;
mod text_heatmap;
mod xml;

pub use terminal_page::TerminalStyle;

#[cfg(test)]
mod fixture;

/// Why a page could not be rendered. Either is a bug of this crate, never of the run: every run has
/// a page.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The template and its data do not match.
    #[error("the report template cannot be rendered")]
    Template(#[from] minijinja::Error),
    /// A figure could not be drawn.
    #[error("a figure cannot be drawn: {0}")]
    Figure(String),
}
