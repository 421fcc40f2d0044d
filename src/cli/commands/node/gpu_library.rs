//! The process that loads one of the NVIDIA libraries for `fabricgate doctor`. There is no need to
//! start it by hand.

use std::path::PathBuf;

use crate::exit;
use node::doctor::library_check;
use node::doctor::library_check::ProbeLibrary;

/// Print what is known about a library; each line repeats and extends the previous one.
#[derive(Debug, clap::Args)]
pub struct LibraryArgs {
    /// The kind of library.
    #[arg(value_parser = parse_library)]
    library: ProbeLibrary,
    /// Path of the library, if it is not the one that the system finds.
    path: Option<PathBuf>,
}

fn parse_library(word: &str) -> Result<ProbeLibrary, String> {
    ProbeLibrary::from_name(word)
        .ok_or_else(|| "expected a library that the native probes use".to_owned())
}

/// Loads the library and prints its properties.
pub fn run(args: &LibraryArgs) -> anyhow::Result<u8> {
    let (mut out, mut progress) = (std::io::stdout().lock(), std::io::stderr());
    library_check::write_library_report(
        args.library,
        args.path.as_deref(),
        &mut out,
        &mut progress,
    )?;
    Ok(exit::PASS)
}
