//! `iperf3 -J`: the JSON document of a client.

use serde_json::{Value, json};

use super::{SimToolOutput, json_count};

/// A run from the client's view.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimIperfRun<'a> {
    /// The client's node.
    pub node: &'a str,
    /// The server's node.
    pub peer: &'a str,
    /// The server's port.
    pub port: u16,
    /// Parallel streams.
    pub streams: u32,
    /// Requested seconds.
    pub seconds: f64,
    /// Whether the server sends (`-R`).
    pub reverse: bool,
    /// Rate of the requested direction in GB/s.
    pub rate: f64,
    /// Rate of the other direction in GB/s, if both were requested (`--bidir`).
    pub other: Option<f64>,
    /// Share of the path's packets that arrive.
    pub loss: f64,
}

/// Bytes of one frame's payload with timestamps.
const SEGMENT_BYTES: f64 = 1448.0;

/// First socket number, after the control connection.
const FIRST_SOCKET: u32 = 5;

/// Renders the whole document.
pub fn render_json(run: &SimIperfRun<'_>) -> SimToolOutput {
    let (reverse, bidir) = (u8::from(run.reverse), u8::from(run.other.is_some()));
    let connected: Vec<Value> = (0..run.streams)
        .map(|stream| {
            json!({ "socket": FIRST_SOCKET + stream, "local_host": run.node,
                "local_port": 45_000 + stream, "remote_host": run.peer, "remote_port": run.port })
        })
        .collect();
    let start = json!({
        "connected": connected,
        "version": "iperf 3.16",
        "system_info": format!("Linux {} 6.8.0 simulated", run.node),
        "timestamp": { "time": "Thu, 15 Jan 2026 08:00:00 GMT", "timesecs": 1_768_464_000 },
        "connecting_to": { "host": run.peer, "port": run.port },
        "cookie": "simulated",
        "tcp_mss_default": SEGMENT_BYTES, "target_bitrate": 0, "fq_rate": 0,
        "sock_bufsize": 0, "sndbuf_actual": 16384, "rcvbuf_actual": 131_072,
        "test_start": { "protocol": "TCP", "num_streams": run.streams, "blksize": 131_072,
            "omit": 0, "duration": run.seconds, "bytes": 0, "blocks": 0, "reverse": reverse,
            "tos": 0, "target_bitrate": 0, "bidir": bidir, "fqrate": 0, "interval": 1 }
    });
    // The client sends unless -R reverses the direction.
    let main = SimIperfFlow { rate: run.rate, sends: !run.reverse, run };
    let back = run.other.map(|rate| SimIperfFlow { rate, sends: run.reverse, run });
    let mut interval = json!({ "streams": main.stream_fields(), "sum": main.sum_fields(1.0) });
    let mut end = json!({
        "streams": main.end_fields(),
        "sum_sent": main.sum_fields(1.0), "sum_received": main.sum_fields(RECEIVED_SHARE),
        "cpu_utilization_percent": { "host_total": 41.5, "host_user": 0.9, "host_system": 40.6,
            "remote_total": 38.2, "remote_user": 1.1, "remote_system": 37.1 },
        "sender_tcp_congestion": "cubic", "receiver_tcp_congestion": "cubic"
    });
    if let Some(back) = back {
        interval["sum_bidir_reverse"] = back.sum_fields(1.0);
        end["sum_sent_bidir_reverse"] = back.sum_fields(1.0);
        end["sum_received_bidir_reverse"] = back.sum_fields(RECEIVED_SHARE);
    }
    let document = json!({ "start": start, "intervals": [interval], "end": end });
    SimToolOutput::success(format!("{document:#}\n"))
}

/// The document of a failed run: a message, and exit code 1.
pub fn render_failure(why: &str) -> SimToolOutput {
    let start = json!({ "connected": [], "version": "iperf 3.16" });
    let document = json!({ "start": start, "intervals": [], "end": {}, "error": why });
    SimToolOutput::with_exit_code(format!("{document:#}\n"), String::new(), 1)
}

/// The receiver counts data that arrived before the end; the rest is in flight.
const RECEIVED_SHARE: f64 = 0.9998;

struct SimIperfFlow<'a> {
    rate: f64,
    /// Whether the client sends.
    sends: bool,
    run: &'a SimIperfRun<'a>,
}

impl SimIperfFlow<'_> {
    fn count_fields(&self, share: f64) -> Value {
        let seconds = self.run.seconds;
        let bytes = (self.rate * 1e9 * seconds * share).round();
        json!({ "start": 0, "end": seconds, "seconds": seconds,
            "bytes": json_count(bytes), "bits_per_second": bytes * 8.0 / seconds })
    }

    /// About one packet in ten thousand is retransmitted on a path with almost total loss; none on
    /// a path without loss.
    fn retransmits(&self) -> f64 {
        let packets = self.rate * 1e9 * self.run.seconds / SEGMENT_BYTES;
        (packets * (1.0 - self.run.loss) * 1e-4).round()
    }

    fn sum_fields(&self, share: f64) -> Value {
        let mut sum = self.count_fields(share);
        // Only the sender knows the retransmits, and a receiving client does not get them during
        // the run.
        if share == 1.0 {
            sum["retransmits"] = json_count(self.retransmits());
        }
        sum["omitted"] = json!(false);
        sum["sender"] = json!(self.sends);
        sum
    }

    fn stream_fields(&self) -> Vec<Value> {
        let share = 1.0 / f64::from(self.run.streams.max(1));
        (0..self.run.streams)
            .map(|stream| {
                let mut counts = self.count_fields(share);
                counts["socket"] = json!(FIRST_SOCKET + stream);
                counts["omitted"] = json!(false);
                counts["sender"] = json!(self.sends);
                counts
            })
            .collect()
    }

    fn end_fields(&self) -> Vec<Value> {
        let streams = self.stream_fields();
        streams.into_iter().map(|s| json!({ "sender": s.clone(), "receiver": s })).collect()
    }
}
