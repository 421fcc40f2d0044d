//! Simulated tools with a server on one node and a client on another.
//!
//! The device selects the rail; the peer's name selects the other node.

use super::invocation::ToolInvocation;
use super::render::{SimToolOutput, perftest};
use super::tool_dispatch::{SimToolReply, parse_size};
use super::{network, render};

/// Default ports of the servers.
const PERFTEST_PORT: u16 = 18_515;
const IPERF_PORT: u16 = 5201;

/// perftest's options with a value (`ib_write_bw --help`).
const PERFTEST_VALUES: &str = "cdDfImMnopqQrsStTuwxyliL";

/// Its long options with a value, without those of other transports.
const PERFTEST_LONG: &[&str] = &[
    "ib-dev",
    "port",
    "size",
    "iters",
    "duration",
    "qp",
    "gid-index",
    "mtu",
    "ib-port",
    "sl",
    "tx-depth",
    "rx-depth",
    "margin",
    "cq-mod",
    "inline_size",
    "connection",
    "post_list",
    "tclass",
    "rate_limit",
    "rate_units",
    "burst_size",
    "limit_bw",
    "limit_msgrate",
    "out_json_file",
    "bind_source_ip",
];

/// iperf3's options with a value (`iperf3 --help`).
const IPERF_VALUES: &str = "pfiFABctnklPbwMOTCSL";

/// Its long options with a value.
const IPERF_LONG: &[&str] = &[
    "port",
    "format",
    "interval",
    "file",
    "affinity",
    "bind",
    "bind-dev",
    "client",
    "time",
    "bytes",
    "length",
    "parallel",
    "bitrate",
    "window",
    "set-mss",
    "omit",
    "title",
    "congestion",
    "cport",
    "tos",
    "dscp",
    "connect-timeout",
    "rcv-timeout",
    "snd-timeout",
    "logfile",
    "pidfile",
];

/// Parsed options, and the positional arguments.
struct PairToolOptions<'a> {
    named: Vec<(&'a str, &'a str)>,
    positional: Vec<&'a str>,
}

impl<'a> PairToolOptions<'a> {
    fn parse(args: &'a [String], short: &str, long: &[&str]) -> Self {
        let (mut named, mut positional) = (Vec::new(), Vec::new());
        let mut words = args.iter().map(String::as_str);
        while let Some(word) = words.next() {
            if let Some(name) = word.strip_prefix("--") {
                match name.split_once('=') {
                    Some(pair) => named.push(pair),
                    None if long.contains(&name) => {
                        named.push((name, words.next().unwrap_or_default()));
                    }
                    None => named.push((name, "")),
                }
            } else if let Some(flags) = word.strip_prefix('-').filter(|flags| !flags.is_empty()) {
                let (name, glued) = flags.split_at(flags.chars().next().map_or(0, char::len_utf8));
                match (short.contains(name), glued) {
                    (true, "") => named.push((name, words.next().unwrap_or_default())),
                    (true, value) => named.push((name, value)),
                    // Several flags in one argument.
                    (false, _) => {
                        let each = flags.split("").filter(|flag| !flag.is_empty());
                        named.extend(each.map(|flag| (flag, "")));
                    }
                }
            } else {
                positional.push(word);
            }
        }
        Self { named, positional }
    }

    fn get(&self, names: &[&str]) -> Option<&'a str> {
        self.named.iter().find(|(name, _)| names.contains(name)).map(|(_, value)| *value)
    }

    fn number(&self, names: &[&str]) -> Option<f64> {
        self.get(names)?.parse().ok()
    }

    fn port(&self, usual: u16) -> u16 {
        self.get(&["p", "port"]).and_then(|port| port.parse().ok()).unwrap_or(usual)
    }
}

/// Runs either side of `ib_write_bw` or, with `reads`, of `ib_read_bw`.
pub fn run_perftest(bench: &ToolInvocation<'_>, args: &[String], reads: bool) -> SimToolReply {
    let options = PairToolOptions::parse(args, PERFTEST_VALUES, PERFTEST_LONG);
    let fabric = bench.fabric;
    let rail = options.get(&["d", "ib-dev"]).map_or(Some(0), network::parse_rail);
    let here = fabric.node(bench.scope).ok();
    let (Some(rail), Some(here)) = (rail, here) else {
        return SimToolReply::Prints(SimToolOutput::with_exit_code(
            String::new(),
            "IB device not found\n".to_owned(),
            1,
        ));
    };
    if rail < fabric.network.rail_count(here) && !fabric.network.is_up(here, rail) {
        return SimToolReply::Prints(perftest::link_down());
    }
    let port = options.port(PERFTEST_PORT);
    let has = |name: &str| options.get(&[name]).is_some();
    let one =
        options.get(&["s", "size"]).and_then(parse_size).unwrap_or(1 << 16).max(2).ilog2().min(23);
    let mut run = perftest::SimPerftestRun {
        rail,
        peer: None,
        gbits: has("report_gbits"),
        reads,
        pairs: options.get(&["q", "qp"]).and_then(|pairs| pairs.parse().ok()).unwrap_or(1),
        bidirectional: has("b") || has("bidirectional"),
        sizes: if has("a") || has("all") { [1, 23] } else { [one, one] },
        iterations: options
            .get(&["n", "iters"])
            .and_then(|count| count.parse().ok())
            .unwrap_or(perftest::ITERATIONS),
        seconds: options
            .get(&["D", "duration"])
            .and_then(|seconds| seconds.parse().ok())
            .filter(|seconds| 0 < *seconds),
    };
    let Some(peer) = options.positional.first() else {
        // The server of a one-sided write prints no rates.
        run.sizes = [1, 0];
        let output = perftest::render_bandwidth(bench, &run);
        if output.code != 0 {
            return SimToolReply::Prints(output);
        }
        return SimToolReply::Serves { port, before: perftest::waiting_text(), answer: output };
    };
    let refused = perftest::server_not_found(peer, port);
    let Some(there) = fabric.node(peer).ok().filter(|at| fabric.nodes[*at].reachable) else {
        return SimToolReply::Prints(refused);
    };
    run.peer = Some(there);
    SimToolReply::Connects { port, answer: perftest::render_bandwidth(bench, &run), refused }
}

/// Runs either side of `iperf3`.
pub fn run_iperf3(bench: &ToolInvocation<'_>, args: &[String]) -> SimToolReply {
    let options = PairToolOptions::parse(args, IPERF_VALUES, IPERF_LONG);
    let fabric = bench.fabric;
    let port = options.port(IPERF_PORT);
    let Some(peer) = options.get(&["c", "client"]) else {
        return SimToolReply::Serves {
            port,
            before: String::new(),
            answer: SimToolOutput::default(),
        };
    };
    let variable = bench.job.and_then(|job| job.environment.get("FABRICGATE_SIM_RAIL"));
    let bound = options
        .get(&["bind-dev"])
        .or_else(|| Some(options.get(&["B", "bind"])?.split_once('%')?.1));
    let rail = bound.or(variable.map(String::as_str)).and_then(network::parse_rail).unwrap_or(0);
    let failed =
        |why: &str| render::iperf::render_failure(&format!("unable to connect to server: {why}"));
    let Ok(here) = fabric.node(bench.scope) else {
        return SimToolReply::Prints(failed("No such device"));
    };
    let there = match fabric.node(peer) {
        Ok(there) if fabric.nodes[there].reachable => there,
        Ok(_) => return SimToolReply::Prints(failed("No route to host")),
        Err(_) => return SimToolReply::Prints(failed("Name or service not known")),
    };
    if !fabric.network.is_up(here, rail) || !fabric.network.is_up(there, rail) {
        return SimToolReply::Prints(failed("No route to host"));
    }
    let has = |name: &str| options.get(&[name]).is_some();
    let reverse = has("R") || has("reverse");
    let key = bench.key("iperf3").with_part(there as u64).with_part(rail as u64);
    let rate = |from: usize, to: usize, way: u64| {
        let power = fabric.nodes[from].power.min(fabric.nodes[to].power);
        let noise = bench.scenario.noise.factor(key.with_part(way));
        fabric.network.tcp_rate(from, to, rail) * power * noise
    };
    let (forward, back) = (rate(here, there, 1), rate(there, here, 2));
    let (first, second) = if reverse { (back, forward) } else { (forward, back) };
    let run = render::iperf::SimIperfRun {
        node: bench.scope,
        peer,
        port,
        streams: options
            .get(&["P", "parallel"])
            .and_then(|n| n.parse().ok())
            .unwrap_or(1)
            .clamp(1, 128),
        seconds: options.number(&["t", "time"]).filter(|t| 0.0 < *t).unwrap_or(10.0),
        reverse,
        rate: first,
        other: has("bidir").then_some(second),
        loss: fabric.network.loss(here, there),
    };
    SimToolReply::Connects {
        port,
        answer: render::iperf::render_json(&run),
        refused: failed("Connection refused"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::fabric::SimFabric;
    use crate::scenario::Scenario;
    use crate::tool_dispatch;
    use model::measurement::Measurement;
    use readers::outputs;

    const NODES: &str = "title=\"t\"\n[noise]\nsigma=0.0\n\
        [[domain]]\nnodes=\"n[1-3]\"\nplatform=\"hgx-h100\"\nper_node=true\n\
        [[fault]]\nkind=\"rail-rate\"\nnode=\"n2\"\nrail=5\nshare=0.5\ndirection=\"rx\"\n\
        [[fault]]\nkind=\"rail-down\"\nnode=\"n3\"\nrail=1\n";

    fn call(node: &str, line: &str) -> SimToolReply {
        let scenario = Scenario::parse(NODES).expect("good");
        let fabric = SimFabric::build(&scenario).expect("a fabric");
        let (name, args) = line.split_once(' ').expect("arguments");
        let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
        let bench = ToolInvocation {
            scenario: &scenario,
            fabric: &fabric,
            scope: node,
            spans_domain: false,
            seed: 1,
            reading: 0,
            prior_readings: 0,
            job: None,
        };
        tool_dispatch::call_tool(&bench, name, &args, &Default::default()).expect("a known tool")
    }

    /// The average rate that a client prints, in Gb/s.
    fn rate(node: &str, line: &str) -> f64 {
        let SimToolReply::Connects { answer, .. } = call(node, line) else { panic!("no client") };
        let parsed = outputs::parse_output(answer.combined().as_bytes());
        assert!(parsed.complete, "{:?}", parsed.problems);
        let [Measurement::Series(series)] = parsed.measurements.as_slice() else {
            panic!("{:?}", parsed.measurements)
        };
        series.points.last().and_then(|point| point.algbw).expect("a rate")
    }

    #[test]
    fn a_write_is_as_fast_as_both_ends_of_its_rail() {
        let line = |peer: &str| format!("ib_write_bw -d mlx5_5 -q 4 -D 2 --report_gbits -F {peer}");
        assert!((rate("n1", &line("n2")) / (48.6 * 8.0 / 2.0) - 1.0).abs() < 0.01);
        assert!((rate("n2", &line("n1")) / (48.6 * 8.0) - 1.0).abs() < 0.01);
        assert!((rate("n1", &line("n3")) / (48.6 * 8.0) - 1.0).abs() < 0.01);
        // A read moves the data in the other direction.
        let read = rate("n2", "ib_read_bw -d mlx5_5 --report_gbits n1");
        assert!((read / (48.6 * 4.0) - 1.0).abs() < 0.01, "{read}");
        let both = rate("n2", "ib_write_bw --ib-dev=mlx5_5 -b --report_gbits n1");
        assert!((both / (48.6 * 8.0 * 1.5) - 1.0).abs() < 0.01, "{both}");
    }

    #[test]
    fn a_run_of_some_time_has_no_peak_and_counts_what_it_sent() {
        let row = |line: &str| -> Vec<f64> {
            let SimToolReply::Connects { answer, .. } = call("n1", line) else {
                panic!("no client")
            };
            let row = answer.stdout.lines().find(|line| line.starts_with(" 65536")).expect("a row");
            row.split_whitespace().map(|word| word.parse().expect("a number")).collect()
        };
        let timed = row("ib_write_bw -d mlx5_0 -D 2 --report_gbits n2");
        assert_eq!(timed[2], 0.0, "{timed:?}");
        // Gb/s for two seconds, in messages of 64 KiB.
        let sent = timed[3] / 8.0 * 1e9 * 2.0 / 65536.0;
        assert!((timed[1] / sent - 1.0).abs() < 1e-4, "{timed:?} {sent}");
        // The first two and the last two of ten seconds are not counted.
        let long = row("ib_write_bw -d mlx5_0 -D 10 --report_gbits n2");
        assert!((long[1] / timed[1] - 3.0).abs() < 1e-3, "{long:?}");
        // With both directions, each side counts its own messages.
        let both = row("ib_write_bw -d mlx5_0 -b --duration=2 --report_gbits n2");
        assert!((both[3] / timed[3] - 2.0).abs() < 0.01 && (both[1] / sent - 1.0).abs() < 0.01);
        let counted = row("ib_write_bw -d mlx5_0 --report_gbits n2");
        assert!(counted[1] == 5000.0 && counted[3] < counted[2], "{counted:?}");
        assert_eq!(row("ib_write_bw -d mlx5_0 -n 1000 --report_gbits n2")[1], 1000.0);
    }

    #[test]
    fn a_call_without_a_peer_is_the_server() {
        let ports =
            ["ib_write_bw -d mlx5_0 -p 7001", "iperf3 -s -1 -p 7001"].map(|line| {
                match call("n1", line) {
                    SimToolReply::Serves { port, .. } => port,
                    other => panic!("{other:?}"),
                }
            });
        assert_eq!(ports, [7001, 7001]);
        let SimToolReply::Connects { port, .. } = call("n1", "ib_write_bw n2") else {
            panic!("no client")
        };
        assert_eq!(port, PERFTEST_PORT);
    }

    #[test]
    fn a_rail_without_link_ends_the_tools_as_it_does() {
        let SimToolReply::Prints(answer) = call("n3", "ib_write_bw -d mlx5_1") else {
            panic!("it starts")
        };
        let parsed = outputs::parse_output(answer.combined().as_bytes());
        assert!(answer.code == 1 && !parsed.problems.is_empty(), "{answer:?}");
        let SimToolReply::Prints(answer) = call("n1", "iperf3 -J -c n3 --bind-dev eth1") else {
            panic!("it starts")
        };
        let value: Value = serde_json::from_str(&answer.stdout).expect("JSON");
        assert_eq!(value["error"], "unable to connect to server: No route to host");
        assert_eq!(answer.code, 1);
    }

    #[test]
    fn iperf3_tells_both_directions_apart() {
        let sums = |line: &str| {
            let SimToolReply::Connects { answer, .. } = call("n1", line) else {
                panic!("no client")
            };
            let value: Value = serde_json::from_str(&answer.stdout).expect("JSON");
            let rate = value["end"]["sum_received"]["bits_per_second"].as_f64().expect("a rate");
            (rate / 8e9, value)
        };
        let line = 50.0 * 1448.0 / 1538.0;
        let (forward, document) = sums("iperf3 -c n2 -p 7000 -J -P 4 -t 2 --bind-dev eth5");
        assert!((forward / (line / 2.0) - 1.0).abs() < 0.01, "{forward}");
        assert_eq!(document["start"]["test_start"]["num_streams"], 4);
        assert_eq!(document["start"]["connecting_to"]["port"], 7000);
        assert_eq!(document["end"]["sum_sent"]["retransmits"], 0);
        assert!(document["end"]["sum_sent"]["bytes"].is_u64());
        let (back, document) = sums("iperf3 -c n2 -J -R -B n1%eth5");
        assert!((back / line - 1.0).abs() < 0.01, "{back}");
        assert_eq!(document["start"]["test_start"]["reverse"], 1);
        assert_eq!(document["end"]["sum_sent"]["sender"], false);
        let (_, document) = sums("iperf3 -c n2 -J --bidir --bind-dev eth5");
        assert!(document["end"]["sum_received_bidir_reverse"]["bits_per_second"].is_f64());
    }
}
