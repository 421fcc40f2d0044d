//! The process that asks one library of the driver's family what it is, for
//! `fabricgate doctor`. Nobody has to start it by hand.

use std::path::PathBuf;

use crate::exit;
use node::doctor::library_check;
use node::doctor::library_check::ProbeLibrary;

/// Say what a library of the driver is, all that is known so far in each line.
#[derive(Debug, clap::Args)]
pub struct LibraryArgs {
    /// Which.
    #[arg(value_parser = parse_library)]
    library: ProbeLibrary,
    /// The library, where it is not the one that the system finds.
    path: Option<PathBuf>,
}

fn parse_library(word: &str) -> Result<ProbeLibrary, String> {
    ProbeLibrary::from_name(word).ok_or_else(|| "no library that our probes use".to_owned())
}

/// Asks it.
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
