//! Tools of two sides: a server on one node, its client on another.
//!
//! Which rail is meant is told by the device; the peer is told by its name.

use super::bench::Bench;
use super::network;
use super::render;
use super::render::Answer;
use super::render::perftest;
use super::tool::Reply;
use super::tool::bytes;

/// Ports of servers that are not told any.
const PERFTEST_PORT: u16 = 18_515;
const IPERF_PORT: u16 = 5201;

/// Options of perftest that have a value (`ib_write_bw --help`).
const PERFTEST_VALUES: &str = "cdDfImMnopqQrsStTuwxyliL";

/// Its long ones, without those of other transports.
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

/// Options of iperf3 that have a value (`iperf3 --help`).
const IPERF_VALUES: &str = "pfiFABctnklPbwMOTCSL";

/// Its long ones.
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

/// Options with their values, and the words that belong to none.
struct Options<'a> {
    named: Vec<(&'a str, &'a str)>,
    free: Vec<&'a str>,
}

impl<'a> Options<'a> {
    fn read(args: &'a [String], short: &str, long: &[&str]) -> Self {
        let (mut named, mut free) = (Vec::new(), Vec::new());
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
                    // Several flags in one word.
                    (false, _) => {
                        let each = flags.split("").filter(|flag| !flag.is_empty());
                        named.extend(each.map(|flag| (flag, "")));
                    }
                }
            } else {
                free.push(word);
            }
        }
        Self { named, free }
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

/// `ib_write_bw`, either side of it.
pub fn ib_write_bw(bench: &Bench<'_>, args: &[String]) -> Reply {
    let options = Options::read(args, PERFTEST_VALUES, PERFTEST_LONG);
    let fabric = bench.fabric;
    let rail = options.get(&["d", "ib-dev"]).map_or(Some(0), network::rail_of);
    let here = fabric.node(bench.scope).ok();
    let (Some(rail), Some(here)) = (rail, here) else {
        return Reply::Says(Answer::ended(String::new(), "IB device not found\n".to_owned(), 1));
    };
    if rail < fabric.network.rails(here) && !fabric.network.is_up(here, rail) {
        return Reply::Says(perftest::no_link());
    }
    let port = options.port(PERFTEST_PORT);
    let has = |name: &str| options.get(&[name]).is_some();
    let one = options.get(&["s", "size"]).and_then(bytes).unwrap_or(1 << 16).max(2).ilog2().min(23);
    let mut run = perftest::Run {
        rail,
        peer: None,
        gbits: has("report_gbits"),
        both: has("b") || has("bidirectional"),
        sizes: if has("a") || has("all") { [1, 23] } else { [one, one] },
    };
    let Some(peer) = options.free.first() else {
        // The side that serves prints no rates of a one-sided write.
        run.sizes = [1, 0];
        let answer = perftest::write_bandwidth(bench, &run);
        if answer.code != 0 {
            return Reply::Says(answer);
        }
        return Reply::Serves { port, before: perftest::waiting(), answer };
    };
    let refused = perftest::no_server(peer, port);
    let Some(there) = fabric.node(peer).ok().filter(|at| fabric.nodes[*at].reachable) else {
        return Reply::Says(refused);
    };
    run.peer = Some(there);
    Reply::Calls { port, answer: perftest::write_bandwidth(bench, &run), refused }
}

/// `iperf3`, either side of it.
pub fn iperf3(bench: &Bench<'_>, args: &[String]) -> Reply {
    let options = Options::read(args, IPERF_VALUES, IPERF_LONG);
    let fabric = bench.fabric;
    let port = options.port(IPERF_PORT);
    let Some(peer) = options.get(&["c", "client"]) else {
        return Reply::Serves { port, before: String::new(), answer: Answer::default() };
    };
    let told = bench.job.and_then(|job| job.environment.get("FABRICGATE_SIM_RAIL"));
    let bound = options
        .get(&["bind-dev"])
        .or_else(|| Some(options.get(&["B", "bind"])?.split_once('%')?.1));
    let rail = bound.or(told.map(String::as_str)).and_then(network::rail_of).unwrap_or(0);
    let failed = |why: &str| render::iperf::failure(&format!("unable to connect to server: {why}"));
    let Ok(here) = fabric.node(bench.scope) else { return Reply::Says(failed("No such device")) };
    let there = match fabric.node(peer) {
        Ok(there) if fabric.nodes[there].reachable => there,
        Ok(_) => return Reply::Says(failed("No route to host")),
        Err(_) => return Reply::Says(failed("Name or service not known")),
    };
    if !fabric.network.is_up(here, rail) || !fabric.network.is_up(there, rail) {
        return Reply::Says(failed("No route to host"));
    }
    let has = |name: &str| options.get(&[name]).is_some();
    let reverse = has("R") || has("reverse");
    let key = bench.key("iperf3").with(there as u64).with(rail as u64);
    let rate = |from: usize, to: usize, way: u64| {
        let power = fabric.nodes[from].power.min(fabric.nodes[to].power);
        let noise = bench.scenario.noise.factor(key.with(way));
        fabric.network.tcp(from, to, rail) * power * noise
    };
    let (forward, back) = (rate(here, there, 1), rate(there, here, 2));
    let (first, second) = if reverse { (back, forward) } else { (forward, back) };
    let run = render::iperf::Run {
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
    Reply::Calls { port, answer: render::iperf::json(&run), refused: failed("Connection refused") }
}
