//! `fabricgate parse`: prints the parsed output of tools. Judges nothing.

use std::path::PathBuf;

use crate::cli::stdout::note;
use crate::cli::{report_output, stdout};
use crate::exit;
use control::sources::input_file;
use engine::report::tool_output::render;
use model::parse_output::{OutputProblem, OutputProblemKind, ParseDocument, ParseOutput};
use readers::outputs;

/// Parse tool outputs and print the result; judge nothing.
#[derive(Debug, clap::Args)]
pub struct ParseArgs {
    /// Files to read: text or JSON of any supported tool.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Runs the command.
pub fn run(args: &ParseArgs, json: bool) -> anyhow::Result<u8> {
    let style = report_output::terminal_style();
    let mut code = exit::PASS;
    for (at, path) in args.files.iter().enumerate() {
        let file = path.display().to_string();
        let parsed = match input_file::read(path) {
            Ok(bytes) => {
                let parsed = outputs::parse_output(&bytes);
                if !parsed.is_sound() {
                    code = code.max(exit::INCONCLUSIVE);
                }
                parsed
            }
            Err(error) => {
                note(&error.to_string());
                code = exit::ENVIRONMENT;
                let problem = OutputProblem::new(
                    OutputProblemKind::Unrecognised,
                    format!("cannot be read: {error}"),
                );
                ParseOutput { problems: vec![problem], ..ParseOutput::default() }
            }
        };
        let document = ParseDocument::new(file, parsed);
        if json {
            let mut line = serde_json::to_vec(&document)?;
            line.push(b'\n');
            stdout::write_document(&line)?;
        } else {
            let gap = if at == 0 { "" } else { "\n" };
            stdout::write_text(&format!("{gap}{}", render(&document, &style)))?;
        }
    }
    Ok(code)
}
