//! `fabricgate node probe tcp`: throughput and latency between two nodes over TCP, without other
//! programs.

use std::io::Write;
use std::net::IpAddr;
use std::time::Duration;

use crate::cli::runtime::random_number;
use crate::cli::simulated_node;
use crate::cli::stdout;
use crate::exit;
use crate::exit::CommandError;
use node::probes::tcp;

/// Measure throughput both ways and latency between two nodes over TCP.
///
/// One node serves and prints `listening PORT`, the other connects and prints one JSON document
/// (fabricgate.tcp/1). Addresses and devices select rails; `-` stands for none. The exit code is 5
/// when nothing could start, and 4 when not everything could be measured.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("side").required(true).args(["serve", "connect"]))]
pub struct TcpArgs {
    /// Wait for one client at any free port and serve it.
    #[arg(long)]
    serve: bool,
    /// Measure against the server at this address.
    #[arg(long, value_name = "ADDRESS:PORT")]
    connect: Option<String>,
    /// The local address to use.
    #[arg(long, value_name = "ADDRESS", default_value = "-")]
    bind: String,
    /// The local network device to use.
    #[arg(long, value_name = "DEVICE", default_value = "-")]
    device: String,
    /// Name of this node.
    #[arg(long, value_name = "NAME", default_value = "-")]
    node: String,
    /// Expected name of the other node; a different one is reported.
    #[arg(long, value_name = "NAME", default_value = "-")]
    peer: String,
    /// Name of the rail.
    #[arg(long, value_name = "NAME", default_value = "-")]
    rail: String,
    /// Connections that carry data at the same time.
    #[arg(long, value_name = "N", default_value_t = 4,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(tcp::MOST_STREAMS)))]
    streams: u32,
    /// Seconds of each rate measurement.
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = parse_positive_seconds)]
    seconds: f64,
    /// Seconds of warm-up traffic before it.
    #[arg(long, value_name = "S", default_value_t = 0.2, value_parser = parse_seconds)]
    warmup: f64,
    /// Number of measurements.
    #[arg(long, value_name = "K", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(tcp::MOST_READINGS)))]
    readings: u32,
    /// Do not measure latency.
    #[arg(long)]
    no_latency: bool,
    /// Seconds to wait for a client with --serve.
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = parse_positive_seconds)]
    wait: f64,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=tcp::MOST_SECONDS).contains(&value) => Ok(value),
        _ => Err(format!("expected seconds from 0 to {}", tcp::MOST_SECONDS)),
    }
}

fn parse_positive_seconds(text: &str) -> Result<f64, String> {
    match parse_seconds(text)? {
        0.0 => Err("expected more than 0 seconds".to_owned()),
        value => Ok(value),
    }
}

/// An argument; `-` stands for none.
fn parse_optional(word: &str) -> Option<String> {
    (!matches!(word, "" | "-")).then(|| word.to_owned())
}

/// Serves or measures.
pub fn run(args: &TcpArgs) -> anyhow::Result<u8> {
    if let Some(answer) = answer_simulated(args) {
        return answer;
    }
    let address = match parse_optional(&args.bind) {
        None => None,
        Some(text) => Some(text.parse::<IpAddr>().map_err(|_| {
            CommandError::usage(format!("--bind {text}: expected an IP address or `-`"))
        })?),
    };
    let local = tcp::TcpBinding {
        node: parse_optional(&args.node).unwrap_or_default(),
        address,
        device: parse_optional(&args.device),
    };
    if args.serve {
        let announce = |port| {
            let mut out = std::io::stdout().lock();
            writeln!(out, "listening {port}").and_then(|()| out.flush())
        };
        return match tcp::serve(&local, Duration::from_secs_f64(args.wait), announce) {
            Ok(()) => Ok(exit::PASS),
            Err(error) => Ok(report_failure(&error)),
        };
    }
    let task = tcp::TcpTask {
        peer: parse_optional(&args.peer).unwrap_or_default(),
        rail: parse_optional(&args.rail),
        streams: args.streams,
        seconds: Duration::from_secs_f64(args.seconds),
        warmup: Duration::from_secs_f64(args.warmup),
        readings: args.readings,
        latency: !args.no_latency,
        session: random_number(),
    };
    let peer = args.connect.as_deref().unwrap_or_default();
    match tcp::resolve(peer).and_then(|peer| tcp::measure(&local, peer, &task)) {
        Ok(document) => {
            stdout::write_json(&document)?;
            for problem in &document.problems {
                stdout::note(problem);
            }
            Ok(if document.complete { exit::PASS } else { exit::INCONCLUSIVE })
        }
        Err(error) => Ok(report_failure(&error)),
    }
}

/// Prints why nothing was measured, and returns the exit code.
fn report_failure(error: &tcp::TcpError) -> u8 {
    stdout::note(&error.to_line());
    if error.had_begun() { exit::INCONCLUSIVE } else { exit::ENVIRONMENT }
}

/// The simulated fabric's result, if this process plays a simulated node.
fn answer_simulated(args: &TcpArgs) -> Option<anyhow::Result<u8>> {
    let (peer, rail) = (parse_optional(&args.peer), parse_optional(&args.rail));
    simulated_node::answer_tcp_probe(&simulated_node::SimTcpRequest {
        connect: args.connect.as_deref(),
        peer: peer.as_deref(),
        rail: rail.as_deref(),
        readings: args.readings,
        seconds: args.seconds,
    })
}
