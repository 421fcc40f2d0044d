//! The native TCP probe on a simulated network.
//!
//! The client's document is computed from the physics. The server only has to listen: its client
//! connects once and thereby ends it, like a real one.

use std::io;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use serde_json::{Value, json};

use super::fabric::SimFabric;
use super::noise::NoiseKey;
use super::scenario::Scenario;
use super::{network, render};

const STREAMS: u32 = 4;

/// Warm-up seconds, which are not counted.
const WARM_UP: f64 = 0.2;

const ROUND_TRIPS: u64 = 200;

/// Waits on a free port for one connection. Prints `listening PORT` first.
pub fn serve(out: &mut dyn Write) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    writeln!(out, "listening {}", listener.local_addr()?.port())?;
    out.flush()?;
    listener.accept().map(|_| ())
}

/// Waits on this port for one connection.
pub fn serve_at(port: u16) -> io::Result<()> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))?.accept().map(|_| ())
}

/// Connects once to a server on this port, which then ends.
pub fn connect_once(port: u16) -> io::Result<()> {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map(|_| ())
}

/// The client's document, `fabricgate.tcp/1`. The rail is a name or a device; by default the first
/// one. `step` is the plan's `STEP.READING`.
pub fn build_document(
    scenario: &Scenario,
    node: &str,
    peer: &str,
    rail: Option<&str>,
    readings: u32,
    seconds: f64,
    step: Option<&str>,
) -> Value {
    let mut document = empty_document(scenario, node, peer, rail, seconds);
    let measured = SimFabric::build(scenario).and_then(|fabric| {
        let (from, to) = (fabric.node(node)?, fabric.node(peer)?);
        let rail = rail.map_or(Some(0), network::parse_rail).unwrap_or(0);
        let up = [from, to].iter().all(|end| fabric.network.is_up(*end, rail));
        if !up || !fabric.nodes[to].reachable {
            return Err(format!("connect to {peer}: No route to host"));
        }
        let key =
            NoiseKey::from_seed(scenario.seed).with_name("tcp").with_name(step.unwrap_or_default());
        let key = key.with_part(from as u64).with_part(to as u64).with_part(rail as u64);
        let way = |from: usize, to: usize, key: NoiseKey| {
            let power = fabric.nodes[from].power.min(fabric.nodes[to].power);
            let truth = fabric.network.tcp_rate(from, to, rail) * power;
            flow_json(truth * scenario.noise.factor(key), seconds, fabric.network.loss(from, to))
        };
        let all: Vec<Value> = (0..readings)
            .map(|reading| {
                let key = key.with_part(u64::from(reading));
                json!({ "reading": reading, "forward": way(from, to, key.with_part(1)),
                    "reverse": way(to, from, key.with_part(2)) })
            })
            .collect();
        Ok((all, latency_json(fabric.network.round_trip_us(from, to), key.with_part(3))))
    });
    match measured {
        Ok((readings, latency)) => {
            document["complete"] = json!(true);
            document["readings"] = json!(readings);
            document["latency"] = latency;
        }
        Err(why) => document["problems"] = json!([why]),
    }
    document
}

/// The document of a client without a server.
pub fn unanswered_document(
    scenario: &Scenario,
    node: &str,
    peer: &str,
    rail: Option<&str>,
    seconds: f64,
) -> Value {
    let mut document = empty_document(scenario, node, peer, rail, seconds);
    document["problems"] = json!([format!("connect to {peer}: Connection refused")]);
    document
}

fn empty_document(
    scenario: &Scenario,
    node: &str,
    peer: &str,
    rail: Option<&str>,
    seconds: f64,
) -> Value {
    let fabric = SimFabric::build(scenario).ok();
    let end = |name: &str| {
        let place = fabric.as_ref().and_then(|fabric| fabric.node(name).ok());
        json!({ "node": name, "address": place.map(render::node_address), "device": null })
    };
    json!({
        "format": "fabricgate.tcp/1",
        "version": env!("CARGO_PKG_VERSION"),
        "source": end(node),
        "destination": end(peer),
        "rail": rail.filter(|name| *name != "-"),
        "streams": STREAMS,
        "seconds": seconds,
        "warmup_s": WARM_UP,
        "unit": "GB/s",
        "complete": false,
        "readings": [],
        "latency": null,
        "problems": []
    })
}

/// One direction of a reading. Warm-up data is sent too and not counted.
fn flow_json(rate: f64, seconds: f64, loss: f64) -> Value {
    let sent = (rate * 1e9 * (seconds + WARM_UP)).round();
    // About one segment in ten thousand, multiplied by the loss.
    let again = (sent / 1448.0 * (1.0 - loss) * 1e-4).round();
    json!({ "sent_bytes": render::json_count(sent), "received_bytes": render::json_count(sent), "seconds": seconds,
        "rate": rate, "retransmits": render::json_count(again) })
}

/// Round trips: the minimum is the path's latency, and queues add to some.
fn latency_json(truth: f64, key: NoiseKey) -> Value {
    let mut all: Vec<f64> = (0..ROUND_TRIPS)
        .map(|number| {
            let wait = key.with_part(number).fraction();
            truth * (1.0 + 0.03 * wait + 0.6 * wait.powi(40))
        })
        .collect();
    all.sort_by(f64::total_cmp);
    let at = |share: usize| all[(all.len() - 1) * share / 100];
    json!({ "samples": ROUND_TRIPS, "min_us": at(0), "median_us": at(50), "p99_us": at(99) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(more: &str, peer: &str, rail: Option<&str>, step: &str) -> Value {
        let text = format!(
            "title=\"t\"\n[network]\nrails=2\nrate=1.25\nleaf_nodes=2\n\
             [[domain]]\nnodes=\"n[1-4]\"\nplatform=\"hgx-h100\"\nper_node=true\n{more}"
        );
        let scenario = Scenario::parse(&text).expect("good");
        build_document(&scenario, "n1", peer, rail, 3, 1.0, Some(step))
    }

    fn rate(document: &Value, reading: usize, way: &str) -> f64 {
        document["readings"][reading][way]["rate"].as_f64().expect("a rate")
    }

    #[test]
    fn a_healthy_pair_shows_what_tcp_gets_of_the_line_both_ways() {
        let got = asked("", "n2", Some("rail1"), "5.0");
        assert_eq!(got["format"], "fabricgate.tcp/1");
        assert_eq!(got["complete"], true);
        assert_eq!(got["rail"], "rail1");
        assert_eq!(got["readings"].as_array().map(Vec::len), Some(3));
        for way in ["forward", "reverse"] {
            assert!((rate(&got, 0, way) / (1.25 * 1448.0 / 1538.0) - 1.0).abs() < 0.01);
            let flow = &got["readings"][0][way];
            assert_eq!(flow["sent_bytes"], flow["received_bytes"]);
            assert!(flow["sent_bytes"].is_u64() && flow["retransmits"] == 0);
        }
    }

    #[test]
    fn readings_and_steps_have_their_own_noise() {
        let got = asked("", "n2", None, "5.0");
        assert_ne!(rate(&got, 0, "forward"), rate(&got, 1, "forward"));
        assert_ne!(rate(&got, 0, "forward"), rate(&asked("", "n2", None, "6.0"), 0, "forward"));
        assert_eq!(got, asked("", "n2", None, "5.0"));
    }

    #[test]
    fn another_leaf_is_farther_away() {
        let median = |peer| asked("", peer, None, "1.0")["latency"]["median_us"].as_f64();
        let (near, far) = (median("n2").expect("near"), median("n3").expect("far"));
        assert!((10.0..12.0).contains(&near) && (14.0..16.0).contains(&far), "{near} {far}");
    }

    #[test]
    fn faults_of_the_network_show_in_the_document() {
        let slow =
            "[[fault]]\nkind=\"rail-rate\"\nnode=\"n2\"\nrail=1\nshare=0.5\ndirection=\"rx\"\n";
        let got = asked(slow, "n2", Some("rail1"), "1.0");
        assert!((rate(&got, 0, "forward") / rate(&got, 0, "reverse") - 0.5).abs() < 0.01);
        let lossy = "[[fault]]\nkind=\"pair-loss\"\na=\"n1\"\nb=\"n2\"\nshare=0.2\n";
        let got = asked(lossy, "n2", None, "1.0");
        assert!(0 < got["readings"][0]["forward"]["retransmits"].as_u64().expect("a count"));
        let down = "[[fault]]\nkind=\"rail-down\"\nnode=\"n2\"\nrail=0\n";
        let got = asked(down, "n2", None, "1.0");
        assert_eq!(got["complete"], false);
        assert_eq!(got["problems"][0], "connect to n2: No route to host");
    }

    #[test]
    fn a_server_prints_its_port_and_ends_after_one_client() {
        use std::io::BufRead;
        let (reader, mut writer) = io::pipe().expect("a pipe");
        let server = std::thread::spawn(move || serve(&mut writer));
        let mut line = String::new();
        io::BufReader::new(reader).read_line(&mut line).expect("a line");
        let port = line.trim().strip_prefix("listening ").expect("its words").parse();
        connect_once(port.expect("a port")).expect("it listens");
        server.join().expect("no panic").expect("it ended");
    }

    #[test]
    fn a_port_without_a_listener_is_a_problem_without_a_reading() {
        let text =
            "title=\"t\"\n[[domain]]\nnodes=\"n[1-2]\"\nplatform=\"hgx-h100\"\nper_node=true\n";
        let scenario = Scenario::parse(text).expect("good");
        let got = unanswered_document(&scenario, "n1", "n2", Some("rail0"), 1.0);
        assert_eq!(got["complete"], false);
        assert_eq!(got["readings"], json!([]));
        assert_eq!(got["problems"][0], "connect to n2: Connection refused");
    }
}
