//! `fabricgate node probe all`: everything that this node can measure by itself.

use crate::cli::commands::node::probe::collective::CollectiveArgs;
use crate::cli::commands::node::probe::common::{GpuProbeOptions, ProbeProgress};
use crate::cli::commands::node::probe::copy::CopyArgs;
use crate::cli::commands::node::probe::fabric::FabricArgs;
use crate::cli::commands::node::probe::{collective, common, copy, fabric};
use crate::cli::commands::sim;
use crate::cli::stdout;
use crate::exit;

/// Measure everything that this node can measure by itself: all copies, ways of
/// sharing memory, all collectives.
///
/// One table after the other, or with --json one document a line. What cannot be
/// measured is told with its reason and keeps nothing else from being measured.
///
/// Ends with the worst of its parts: 0, 3 for wrong data, 4 when not everything
/// could be measured, 5 when nothing could be begun.
#[derive(Debug, clap::Args)]
pub struct AllArgs {
    #[command(flatten)]
    common: GpuProbeOptions,
    /// NCCL, where it is not the one that is found.
    #[arg(long, value_name = "PATH", env = "FABRICGATE_NCCL")]
    nccl: Option<String>,
    /// Numbers taken of each cell and size.
    #[arg(long, value_name = "K", default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    readings: u32,
    /// Size of one copy, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 512,
        value_parser = clap::value_parser!(u64).range(1..=65_536))]
    buffer: u64,
    /// The largest message of collectives.
    #[arg(long, value_name = "BYTES", default_value = "8G", value_parser = common::parse_bytes)]
    max: u64,
}

/// Options of one probe, by themselves.
#[derive(clap::Parser)]
#[command(no_binary_name = true)]
struct ProbeOptionsParser<A: clap::Args> {
    #[command(flatten)]
    options: A,
}

/// Options of one probe from words, with its defaults for all else.
fn parse_options<A: clap::Args>(words: &[String]) -> anyhow::Result<A> {
    Ok(<ProbeOptionsParser<A> as clap::Parser>::try_parse_from(words)?.options)
}

/// Measures and prints.
pub fn run(args: &AllArgs, json: bool, telling: &mut ProbeProgress) -> anyhow::Result<u8> {
    let readings = format!("--readings={}", args.readings);
    let buffer = format!("--buffer={}", args.buffer);
    let mut copies: CopyArgs = parse_options(&["--set=full".to_owned(), readings.clone(), buffer])?;
    let mut fabrics: FabricArgs = parse_options(&[])?;
    let max = format!("--max={}", args.max);
    let mut words = vec!["--tests=all".to_owned(), readings, max];
    words.extend(args.nccl.as_ref().map(|path| format!("--nccl={path}")));
    let mut collectives: CollectiveArgs = parse_options(&words)?;
    let common = GpuProbeOptions { on_all_nodes: false, ..args.common.clone() };
    copies.common = common.clone();
    fabrics.common = common.clone();
    collectives.common = common;

    let mut codes = Vec::new();
    print_heading(json, "Copies", true)?;
    codes.push(copy::run(&copies, json, telling)?);
    if !sim::is_simulated() && !telling.was_interrupted() {
        print_heading(json, "Sharing of memory", false)?;
        codes.push(fabric::run(&fabrics, json, telling)?);
    }
    if !telling.was_interrupted() {
        print_heading(json, "Collectives", false)?;
        codes.push(collective::run(&collectives, json, telling)?);
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

/// The exit code of all: wrong data first, then what could not be measured. That
/// nothing could be begun is so only where it was so everywhere.
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
