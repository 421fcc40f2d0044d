//! The binary: calls the command line and does nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    fabricgate::cli::main()
}
