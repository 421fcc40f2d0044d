//! The client: connects, measures, and reports the results.

use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::control_connection::{TcpControlConnection, describe_error};
use super::pattern::TcpPattern;
use super::wire::{TcpControlLine, TcpGreeting, TcpReceiveTotals, TcpSessionTerms};
use super::{
    DRAIN_TIMEOUT, REPLY_TIMEOUT, TICK, TcpBinding, TcpError, TcpTask, flow, latency, socket,
};
use model::tcp::{TCP_FORMAT, TcpDocument, TcpEndpoint, TcpFlow, TcpReading};

/// Time limit of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

const GIGA: f64 = 1e9;

/// Resolves `ADDRESS:PORT`: with or without brackets around an IPv6 address, or with a host name.
pub fn resolve(text: &str) -> Result<SocketAddr, TcpError> {
    let unusable = |source| TcpError::Unreachable { peer: text.to_owned(), source };
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let invalid = || std::io::Error::new(std::io::ErrorKind::InvalidInput, "not ADDRESS:PORT");
    let (host, port) = text.rsplit_once(':').ok_or_else(|| unusable(invalid()))?;
    let port: u16 = port.parse().map_err(|_| unusable(invalid()))?;
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    let mut found = (host, port).to_socket_addrs().map_err(unusable)?;
    found.next().ok_or_else(|| unusable(std::io::ErrorKind::NotFound.into()))
}

/// Measures against a server. An error means that nothing began; a later failure returns an
/// incomplete document.
pub fn measure(
    local: &TcpBinding,
    peer: SocketAddr,
    task: &TcpTask,
) -> Result<TcpDocument, TcpError> {
    let name = peer.to_string();
    let refused = |why: String| TcpError::Refused { peer: name.clone(), why };
    let terms = TcpSessionTerms::from_task(task);
    if let Some(why) = terms.invalid_reason() {
        return Err(refused(why));
    }
    let stream = socket::connect(local, peer, CONNECT_TIMEOUT)?;
    let own = stream.local_addr().map_or_else(|_| String::new(), |own| address_text(own.ip()));
    let mut connection =
        TcpControlConnection::new(stream).map_err(|error| refused(describe_error(&error)))?;
    let open = TcpControlLine::Open { greeting: TcpGreeting::new(task.session), terms };
    let answer =
        connection.send(&open, REPLY_TIMEOUT).and_then(|()| connection.receive(REPLY_TIMEOUT));
    let (node, device) = match answer.map_err(|error| refused(describe_error(&error)))? {
        TcpControlLine::Opened { node, device } => (node, device),
        TcpControlLine::Refused { why } => return Err(refused(why)),
        other => return Err(refused(format!("it answers {other:?}"))),
    };
    let mut document = TcpDocument {
        format: TCP_FORMAT.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        source: TcpEndpoint {
            node: local.node.clone(),
            address: own,
            device: local.device.clone(),
        },
        destination: TcpEndpoint {
            node: if task.peer.is_empty() { node.clone() } else { task.peer.clone() },
            address: address_text(peer.ip()),
            device,
        },
        rail: task.rail.clone(),
        streams: task.streams,
        seconds: terms.seconds,
        warmup_s: terms.warmup_s,
        unit: "GB/s".to_owned(),
        complete: false,
        readings: Vec::new(),
        latency: None,
        problems: Vec::new(),
    };
    // Two nodes share an address, or address translation swaps them.
    if !node.is_empty() && !task.peer.is_empty() && node != task.peer {
        document.problems.push(format!("connected to node {}, but {node} answered", task.peer));
    }
    let pattern = TcpPattern::new(task.session);
    let mut session =
        TcpClientSession { local, peer, task, terms, control: connection, pattern, phases: 0 };
    match session.measure_all(&mut document) {
        Ok(equal) => document.complete = equal,
        Err(why) => {
            let _ = session.control.send(&TcpControlLine::Failed { why: why.clone() }, TICK);
            document.problems.push(why);
        }
    }
    Ok(document)
}

/// Text of an address; an IPv4-mapped IPv6 address appears as IPv4.
fn address_text(ip: IpAddr) -> String {
    ip.to_canonical().to_string()
}

/// The client side of a session.
struct TcpClientSession<'a> {
    local: &'a TcpBinding,
    peer: SocketAddr,
    task: &'a TcpTask,
    terms: TcpSessionTerms,
    control: TcpControlConnection,
    pattern: TcpPattern,
    phases: u32,
}

impl TcpClientSession<'_> {
    /// Takes all measurements; returns whether every byte arrived.
    fn measure_all(&mut self, document: &mut TcpDocument) -> Result<bool, String> {
        if self.task.latency {
            self.send(&TcpControlLine::Echo)?;
            self.expect_go()?;
            let timed = latency::time_round_trips(self.control.stream());
            let timed =
                timed.map_err(|e| format!("small messages were lost: {}", describe_error(&e)))?;
            document.latency = Some(timed);
        }
        let mut equal = true;
        for reading in 0..self.task.readings {
            let (forward, all) = self.run_phase(true, reading, &mut document.problems)?;
            equal &= all;
            let (reverse, all) = self.run_phase(false, reading, &mut document.problems)?;
            equal &= all;
            document.readings.push(TcpReading { reading, forward, reverse });
        }
        self.send(&TcpControlLine::Close)?;
        Ok(equal)
    }

    fn send(&mut self, line: &TcpControlLine) -> Result<(), String> {
        self.control.send(line, REPLY_TIMEOUT).map_err(|error| self.connection_lost(&error))
    }

    /// Receives the next line; an error if the server reports a failure.
    fn receive(&mut self, limit: Duration) -> Result<TcpControlLine, String> {
        match self.control.receive(limit).map_err(|error| self.connection_lost(&error))? {
            TcpControlLine::Failed { why } => Err(format!("{} gave up: {why}", self.peer)),
            line => Ok(line),
        }
    }

    fn connection_lost(&self, error: &std::io::Error) -> String {
        format!("{} was lost: {}", self.peer, describe_error(error))
    }

    /// Runs one direction; returns the result and whether every byte arrived.
    fn run_phase(
        &mut self,
        forward: bool,
        reading: u32,
        problems: &mut Vec<String>,
    ) -> Result<(TcpFlow, bool), String> {
        let phase = self.phases;
        self.phases += 1;
        self.send(&TcpControlLine::Begin { phase, forward })?;
        let streams = self.open_streams(phase)?;
        self.expect_go()?;
        let (sent, arrived, complaints) = if forward {
            let (sent, mut complaints) = flow::send_streams(&streams, &self.terms, &self.pattern);
            self.send(&TcpControlLine::Sent { bytes: sent.clone() })?;
            // The server may still be reading data in flight.
            match self.receive(DRAIN_TIMEOUT)? {
                TcpControlLine::Received { arrived } => (sent, arrived, complaints),
                other => {
                    complaints.push(format!("expected the received totals, got {other:?}"));
                    return Err(complaints.join("; "));
                }
            }
        } else {
            let (arrived, complaints) = flow::receive_streams(&streams, &self.terms, &self.pattern);
            match self.receive(REPLY_TIMEOUT)? {
                TcpControlLine::Sent { bytes } => (bytes, arrived, complaints),
                other => return Err(format!("expected the sent totals, got {other:?}")),
            }
        };
        if !complaints.is_empty() {
            return Err(complaints.join("; "));
        }
        self.send(&TcpControlLine::Go)?;
        let way = if forward { "forward" } else { "reverse" };
        Ok(sum_up(&sent, &arrived, &format!("reading {reading}, {way}"), problems))
    }

    fn expect_go(&mut self) -> Result<(), String> {
        match self.receive(DRAIN_TIMEOUT)? {
            TcpControlLine::Go => Ok(()),
            other => Err(format!("expected the start, got {other:?}")),
        }
    }

    /// Opens the data connections of a phase.
    fn open_streams(&self, phase: u32) -> Result<Vec<TcpStream>, String> {
        let one = |stream| {
            let connected = socket::connect(self.local, self.peer, CONNECT_TIMEOUT);
            let mut control = connected
                .and_then(|it| {
                    TcpControlConnection::new(it)
                        .map_err(|error| TcpError::Broken(error.to_string()))
                })
                .map_err(|error| format!("data connection {stream}: {}", error.to_line()))?;
            let greeting = TcpGreeting::new(self.task.session);
            control
                .send(&TcpControlLine::Join { greeting, phase, stream }, REPLY_TIMEOUT)
                .map_err(|error| self.connection_lost(&error))?;
            let stream = control.into_stream();
            // The kernel's default segmentation applies to data.
            stream.set_nodelay(false).map_err(|error| self.connection_lost(&error))?;
            Ok(stream)
        };
        (0..self.terms.streams).map(one).collect()
    }
}

/// The result of one direction, and whether all sent data arrived.
fn sum_up(
    sent: &[u64],
    arrived: &TcpReceiveTotals,
    what: &str,
    problems: &mut Vec<String>,
) -> (TcpFlow, bool) {
    let (sent_bytes, received_bytes) = (sent.iter().sum(), arrived.bytes.iter().sum());
    let equal = sent == arrived.bytes;
    if !equal {
        problems.push(format!("{what}: {sent_bytes} bytes were sent and {received_bytes} arrived"));
    }
    if arrived.corrupt != 0 {
        problems.push(format!(
            "{what}: {} of {} compared pieces differ from the data sent",
            arrived.corrupt, arrived.checked
        ));
    }
    let measured = 0.0 < arrived.seconds && arrived.seconds.is_finite();
    if !measured {
        problems.push(format!("{what}: nothing arrived after the warm-up"));
    }
    let rate = if measured { arrived.counted as f64 / arrived.seconds / GIGA } else { 0.0 };
    // The kernel reports it in TCP_INFO, which std and socket2 do not read.
    let retransmits = None;
    let flow = TcpFlow { sent_bytes, received_bytes, seconds: arrived.seconds, rate, retransmits };
    (flow, equal && measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_and_without_brackets() {
        let parsed = |text| resolve(text).map(|address| address.to_string()).ok();
        assert_eq!(parsed("10.0.0.2:5001").as_deref(), Some("10.0.0.2:5001"));
        assert_eq!(parsed("[fd00::1]:5001").as_deref(), Some("[fd00::1]:5001"));
        assert_eq!(parsed("fd00::1:5001").as_deref(), Some("[fd00::1]:5001"));
        assert_eq!(parsed("10.0.0.2"), None);
        assert_eq!(parsed("10.0.0.2:port"), None);
    }

    #[test]
    fn a_lost_byte_and_a_wrong_one_are_problems() {
        let mut arrived = TcpReceiveTotals {
            bytes: vec![600, 400],
            counted: 500,
            seconds: 0.5,
            checked: 10,
            corrupt: 0,
        };
        let mut problems = Vec::new();
        let (flow, equal) = sum_up(&[600, 400], &arrived, "reading 0, forward", &mut problems);
        assert!(equal && problems.is_empty());
        assert_eq!((flow.sent_bytes, flow.received_bytes, flow.rate), (1000, 1000, 1e-6));
        // The same total over other streams does not count as equal.
        arrived.corrupt = 2;
        let (_, equal) = sum_up(&[500, 500], &arrived, "reading 0, forward", &mut problems);
        assert!(!equal);
        assert_eq!(problems.len(), 2, "{problems:?}");
    }
}
