//! `fabricgate node probe all`: every measurement that needs only this node.

use crate::cli::commands::node::probe::collective::CollectiveArgs;
use crate::cli::commands::node::probe::common::{GpuProbeOptions, ProbeProgress};
use crate::cli::commands::node::probe::copy::CopyArgs;
use crate::cli::commands::node::probe::fabric::FabricArgs;
use crate::cli::commands::node::probe::{collective, common, copy, fabric};
use crate::cli::simulated_node;
use crate::cli::stdout;
use crate::exit;

/// Measure everything that needs only this node: all copies, the ways of sharing memory, all
/// collectives.
///
/// Prints one table after the other, or with --json one document per line. What cannot be measured
/// is reported with its reason; the other measurements still run.
///
/// The exit code is the worst of the parts: 0, 3 for wrong data, 4 when not everything could be
/// measured, 5 when nothing could start.
#[derive(Debug, clap::Args)]
pub struct AllArgs {
    #[command(flatten)]
    common: GpuProbeOptions,
    /// The NCCL library, if it is not the one that is found.
    #[arg(long, value_name = "PATH", env = "FABRICGATE_NCCL")]
    nccl: Option<String>,
    /// Readings of each cell and size.
    #[arg(long, value_name = "K", default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    readings: u32,
    /// Size of one copy, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 512,
        value_parser = clap::value_parser!(u64).range(1..=65_536))]
    buffer: u64,
    /// The largest message of the collectives.
    #[arg(long, value_name = "BYTES", default_value = "8G", value_parser = common::parse_bytes)]
    max: u64,
}

/// Parses the options of one probe.
#[derive(clap::Parser)]
#[command(no_binary_name = true)]
struct ProbeOptionsParser<A: clap::Args> {
    #[command(flatten)]
    options: A,
}

/// Options of one probe from arguments; the others have their defaults.
fn parse_options<A: clap::Args>(words: &[String]) -> anyhow::Result<A> {
    Ok(<ProbeOptionsParser<A> as clap::Parser>::try_parse_from(words)?.options)
}

/// Measures and prints.
pub fn run(args: &AllArgs, json: bool, progress: &mut ProbeProgress) -> anyhow::Result<u8> {
    let readings = format!("--readings={}", args.readings);
    let buffer = format!("--buffer={}", args.buffer);
    let mut copies: CopyArgs = parse_options(&["--set=full".to_owned(), readings.clone(), buffer])?;
    let mut fabrics: FabricArgs = parse_options(&[])?;
    let max = format!("--max={}", args.max);
    let mut collective_args = vec!["--tests=all".to_owned(), readings, max];
    collective_args.extend(args.nccl.as_ref().map(|path| format!("--nccl={path}")));
    let mut collectives: CollectiveArgs = parse_options(&collective_args)?;
    let common = GpuProbeOptions { on_all_nodes: false, ..args.common.clone() };
    copies.common = common.clone();
    fabrics.common = common.clone();
    collectives.common = common;

    let mut codes = Vec::new();
    print_heading(json, "Copies", true)?;
    codes.push(copy::run(&copies, json, progress)?);
    if !simulated_node::is_simulated() && !progress.was_interrupted() {
        print_heading(json, "Sharing of memory", false)?;
        codes.push(fabric::run(&fabrics, json, progress)?);
    }
    if !progress.was_interrupted() {
        print_heading(json, "Collectives", false)?;
        codes.push(collective::run(&collectives, json, progress)?);
    }
    Ok(worst_exit_code(&codes))
}

fn print_heading(json: bool, title: &str, is_first: bool) -> anyhow::Result<()> {
    if json {
        return Ok(());
    }
    let above = if is_first { "" } else { "\n" };
    stdout::write_text(&format!("{above}== {title}\n"))
}

/// The exit code of all parts: wrong data first, then incomplete data. The environment is at fault
/// only if no part could start.
fn worst_exit_code(codes: &[u8]) -> u8 {
    if codes.contains(&exit::GATE_CLOSED) {
        exit::GATE_CLOSED
    } else if codes.iter().all(|code| *code == exit::PASS) {
        exit::PASS
    } else if codes.iter().all(|code| *code == exit::ENVIRONMENT) {
        exit::ENVIRONMENT
    } else {
        exit::INCONCLUSIVE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_part_decides() {
        assert_eq!(worst_exit_code(&[0, 0]), exit::PASS);
        assert_eq!(worst_exit_code(&[0, 5]), exit::INCONCLUSIVE);
        assert_eq!(worst_exit_code(&[5, 5]), exit::ENVIRONMENT);
        assert_eq!(worst_exit_code(&[4, 3, 5]), exit::GATE_CLOSED);
    }
}
