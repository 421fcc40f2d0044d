//! `fabricgate parse`: what tool outputs say. Judges nothing.

use std::io::Write;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::Serialize;

use super::exit;
use super::input;
use crate::measure;
use crate::model::facts::Facts;
use crate::model::measurement::Measurement;
use crate::model::parsed::Parsed;
use crate::model::parsed::Problem;
use crate::model::parsed::ProblemKind;
use crate::model::parsed::Tool;

/// The format of one line of `parse --json`.
pub const PARSE_FORMAT: &str = "fabricgate.parse/1";

/// Read tool outputs and print what they say; judge nothing.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files to read: text or JSON of any supported tool.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// One line of `parse --json`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct ParseDocument {
    /// `fabricgate.parse/1`.
    pub format: String,
    /// The file as it was named.
    pub file: String,
    /// The tool that wrote it, when it can be told.
    pub tool: Option<Tool>,
    /// The tool's version, without a leading v.
    pub tool_version: Option<String>,
    /// The tool's own end was seen and nothing is missing.
    pub complete: bool,
    /// What was measured.
    pub measurements: Vec<Measurement>,
    /// What the output tells about the machine.
    pub facts: Facts,
    /// What is wrong.
    pub problems: Vec<Problem>,
}

impl ParseDocument {
    /// What was read from this file.
    pub fn new(file: String, parsed: Parsed) -> Self {
        Self {
            format: PARSE_FORMAT.to_owned(),
            file,
            tool: parsed.tool,
            tool_version: parsed.tool_version,
            complete: parsed.complete,
            measurements: parsed.measurements,
            facts: parsed.facts,
            problems: parsed.problems,
        }
    }
}

/// Runs the command.
pub fn run(args: &Args, json: bool) -> anyhow::Result<u8> {
    let mut out = anstream::stdout().lock();
    let mut code = exit::PASS;
    for path in &args.files {
        let file = path.display().to_string();
        let parsed = match input::read(path) {
            Ok(bytes) => {
                let parsed = measure::read(&bytes);
                if !parsed.is_sound() {
                    code = code.max(exit::INCONCLUSIVE);
                }
                parsed
            }
            Err(error) => {
                anstream::eprintln!("fabricgate: {error}");
                code = exit::ENVIRONMENT;
                let problem =
                    Problem::new(ProblemKind::Unrecognised, format!("cannot be read: {error}"));
                Parsed { problems: vec![problem], ..Parsed::default() }
            }
        };
        if json {
            serde_json::to_writer(&mut out, &ParseDocument::new(file, parsed))?;
            writeln!(out)?;
        } else {
            writeln!(out, "{file}: {parsed:?}")?;
        }
    }
    Ok(code)
}
