//! What the native TCP probe measures on a simulated network.
//!
//! The client's document is made from the physics. The server only has to be
//! there: its client connects once and so lets it end, as a real one does.

use std::io;
use std::io::Write;
use std::net::Ipv4Addr;
use std::net::TcpListener;
use std::net::TcpStream;

use serde_json::Value;
use serde_json::json;

use super::fabric::Fabric;
use super::network;
use super::noise::Key;
use super::render;
use super::scenario::Scenario;

/// Streams each way.
const STREAMS: u32 = 4;

/// Seconds that are not counted.
const WARM_UP: f64 = 0.2;

/// Round trips that are timed.
const ROUND_TRIPS: u64 = 200;

/// Waits at a free port for one connection. Says `listening PORT` first.
pub fn serve(out: &mut dyn Write) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    writeln!(out, "listening {}", listener.local_addr()?.port())?;
    out.flush()?;
    listener.accept().map(|_| ())
}

/// Waits at this port for one connection.
pub fn serve_at(port: u16) -> io::Result<()> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))?.accept().map(|_| ())
}

/// Connects once to a server at this port, which then ends.
pub fn knock(port: u16) -> io::Result<()> {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map(|_| ())
}

/// The client's document, `fabricgate.tcp/1`. The rail is a name or a device;
/// the first one when absent. `step` is the plan's `STEP.READING`.
pub fn client(
    scenario: &Scenario,
    node: &str,
    peer: &str,
    rail: Option<&str>,
    readings: u32,
    seconds: f64,
    step: Option<&str>,
) -> String {
    let mut document = unmeasured(scenario, node, peer, rail, seconds);
    let measured = Fabric::build(scenario).and_then(|fabric| {
        let (from, to) = (fabric.node(node)?, fabric.node(peer)?);
        let rail = rail.map_or(Some(0), network::rail_of).unwrap_or(0);
        let up = [from, to].iter().all(|end| fabric.network.is_up(*end, rail));
        if !up || !fabric.nodes[to].reachable {
            return Err(format!("connect to {peer}: No route to host"));
        }
        let key = Key::of(scenario.seed).named("tcp").named(step.unwrap_or_default());
        let key = key.with(from as u64).with(to as u64).with(rail as u64);
        let way = |from: usize, to: usize, key: Key| {
            let power = fabric.nodes[from].power.min(fabric.nodes[to].power);
            let truth = fabric.network.tcp(from, to, rail) * power;
            flow(truth * scenario.noise.factor(key), seconds, fabric.network.loss(from, to))
        };
        let all: Vec<Value> = (0..readings)
            .map(|reading| {
                let key = key.with(u64::from(reading));
                json!({ "reading": reading, "forward": way(from, to, key.with(1)),
                    "reverse": way(to, from, key.with(2)) })
            })
            .collect();
        Ok((all, latency(fabric.network.round_trip(from, to), key.with(3))))
    });
    match measured {
        Ok((readings, latency)) => {
            document["complete"] = json!(true);
            document["readings"] = json!(readings);
            document["latency"] = latency;
        }
        Err(why) => document["problems"] = json!([why]),
    }
    format!("{document}\n")
}

/// The document of a client that nobody answered.
pub fn unanswered(
    scenario: &Scenario,
    node: &str,
    peer: &str,
    rail: Option<&str>,
    seconds: f64,
) -> String {
    let mut document = unmeasured(scenario, node, peer, rail, seconds);
    document["problems"] = json!([format!("connect to {peer}: Connection refused")]);
    format!("{document}\n")
}

/// A document without readings.
fn unmeasured(
    scenario: &Scenario,
    node: &str,
    peer: &str,
    rail: Option<&str>,
    seconds: f64,
) -> Value {
    let fabric = Fabric::build(scenario).ok();
    let end = |name: &str| {
        let place = fabric.as_ref().and_then(|fabric| fabric.node(name).ok());
        json!({ "node": name, "address": place.map(render::address), "device": null })
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

/// One direction of a reading. Warm-up is sent too and counts for no rate.
fn flow(rate: f64, seconds: f64, loss: f64) -> Value {
    let sent = (rate * 1e9 * (seconds + WARM_UP)).round();
    // About one segment in ten thousand, at a loss of everything.
    let again = (sent / 1448.0 * (1.0 - loss) * 1e-4).round();
    json!({ "sent_bytes": render::count(sent), "received_bytes": render::count(sent), "seconds": seconds,
        "rate": rate, "retransmits": render::count(again) })
}

/// Round trips: the shortest is what the path takes, and queues add to some.
fn latency(truth: f64, key: Key) -> Value {
    let mut all: Vec<f64> = (0..ROUND_TRIPS)
        .map(|number| {
            let wait = key.with(number).fraction();
            truth * (1.0 + 0.03 * wait + 0.6 * wait.powi(40))
        })
        .collect();
    all.sort_by(f64::total_cmp);
    let at = |share: usize| all[(all.len() - 1) * share / 100];
    json!({ "samples": ROUND_TRIPS, "min_us": at(0), "median_us": at(50), "p99_us": at(99) })
}
