//! `fabricgate parse`: what tool outputs say. Judges nothing.

use std::path::PathBuf;

use super::exit;
use super::show;
use super::stdout;
use super::stdout::note;
use control::sources::input;
use engine::report::parsed::render;
use model::parsed::ParseDocument;
use model::parsed::Parsed;
use model::parsed::Problem;
use model::parsed::ProblemKind;
use readers::outputs;

/// Read tool outputs and print what they say; judge nothing.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files to read: text or JSON of any supported tool.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Runs the command.
pub fn run(args: &Args, json: bool) -> anyhow::Result<u8> {
    let style = show::style();
    let mut code = exit::PASS;
    for (at, path) in args.files.iter().enumerate() {
        let file = path.display().to_string();
        let parsed = match input::read(path) {
            Ok(bytes) => {
                let parsed = outputs::read(&bytes);
                if !parsed.is_sound() {
                    code = code.max(exit::INCONCLUSIVE);
                }
                parsed
            }
            Err(error) => {
                note(&error.to_string());
                code = exit::ENVIRONMENT;
                let problem =
                    Problem::new(ProblemKind::Unrecognised, format!("cannot be read: {error}"));
                Parsed { problems: vec![problem], ..Parsed::default() }
            }
        };
        let document = ParseDocument::new(file, parsed);
        if json {
            let mut line = serde_json::to_vec(&document)?;
            line.push(b'\n');
            stdout::document(&line)?;
        } else {
            let gap = if at == 0 { "" } else { "\n" };
            stdout::text(&format!("{gap}{}", render(&document, &style)))?;
        }
    }
    Ok(code)
}
