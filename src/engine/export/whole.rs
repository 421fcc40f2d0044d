//! The whole map as one JSON document, for programs that no target is written for.

use schemars::JsonSchema;
use serde::Serialize;

use super::Export;
use super::Exported;
use super::Options;
use super::Refused;
use super::Target;
use crate::place::map::Verified;

/// The format of the document.
pub const MAP_FORMAT: &str = "fabricgate.map/1";

/// `--to map`.
pub(super) const TARGET: Target =
    Target { name: "map", about: "the whole verified map as one JSON document", takes: &[], write };

/// The map as a document (`fabricgate.map/1`).
#[derive(Debug, Serialize, JsonSchema)]
pub struct MapDocument<'a> {
    /// `fabricgate.map/1`.
    format: &'static str,
    /// Who made it from which run, and what must be known before it is used.
    note: Vec<String>,
    #[serde(flatten)]
    map: &'a Verified,
}

fn write(map: &Verified, _options: &Options) -> Result<Export, Refused> {
    let document = MapDocument { format: MAP_FORMAT, note: map.header(), map };
    let mut bytes = serde_json::to_vec_pretty(&document).expect("values of the map are plain data");
    bytes.push(b'\n');
    Ok(Export::of(Exported { name: "map.json".to_owned(), bytes }))
}
