//! The whole map as one JSON document, for programs without a dedicated target.

use schemars::JsonSchema;
use serde::Serialize;

use super::{ExportFile, ExportOptions, ExportOutput, ExportRefusal, ExportTarget};
use crate::place::map::VerifiedMap;

/// The format of the document.
pub const MAP_FORMAT: &str = "fabricgate.map/1";

/// Target `--to map`.
pub(super) const TARGET: ExportTarget = ExportTarget {
    name: "map",
    about: "the whole verified map as one JSON document",
    takes: &[],
    write,
};

/// The map as a document (`fabricgate.map/1`).
#[derive(Debug, Serialize, JsonSchema)]
pub struct MapDocument<'a> {
    /// `fabricgate.map/1`.
    format: &'static str,
    /// The tool version and run behind it, and warnings before use.
    note: Vec<String>,
    #[serde(flatten)]
    map: &'a VerifiedMap,
}

fn write(map: &VerifiedMap, _options: &ExportOptions) -> Result<ExportOutput, ExportRefusal> {
    let document = MapDocument { format: MAP_FORMAT, note: map.header_lines(), map };
    let mut bytes = serde_json::to_vec_pretty(&document).expect("values of the map are plain data");
    bytes.push(b'\n');
    Ok(ExportOutput::from_file(ExportFile { name: "map.json".to_owned(), bytes }))
}
