//! The side that connects, measures, and says what came of it.

use std::net::IpAddr;
use std::net::SocketAddr;
use std::net::TcpStream;
use std::net::ToSocketAddrs;
use std::time::Duration;

use super::DRAINED;
use super::Local;
use super::PATIENCE;
use super::TICK;
use super::Task;
use super::TcpError;
use super::flow;
use super::latency;
use super::pattern::Pattern;
use super::socket;
use super::talk::Talk;
use super::talk::told;
use super::wire::Arrived;
use super::wire::Greeting;
use super::wire::Line;
use super::wire::Terms;
use model::tcp::End;
use model::tcp::TCP_FORMAT;
use model::tcp::TcpDocument;
use model::tcp::TcpFlow;
use model::tcp::TcpReading;

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(5);

/// Bytes in a gigabyte.
const GIGA: f64 = 1e9;

/// The socket address that `ADDRESS:PORT` names: with or without brackets
/// around an IPv6 address, or a host name.
pub fn resolve(text: &str) -> Result<SocketAddr, TcpError> {
    let unusable = |source| TcpError::Unreachable { peer: text.to_owned(), source };
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let nonsense = || std::io::Error::new(std::io::ErrorKind::InvalidInput, "not ADDRESS:PORT");
    let (host, port) = text.rsplit_once(':').ok_or_else(|| unusable(nonsense()))?;
    let port: u16 = port.parse().map_err(|_| unusable(nonsense()))?;
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    let mut found = (host, port).to_socket_addrs().map_err(unusable)?;
    found.next().ok_or_else(|| unusable(std::io::ErrorKind::NotFound.into()))
}

/// Measures against a server. An error says that nothing was begun; what
/// breaks later leaves a document that is not complete.
pub fn measure(local: &Local, peer: SocketAddr, task: &Task) -> Result<TcpDocument, TcpError> {
    let name = peer.to_string();
    let refused = |why: String| TcpError::Refused { peer: name.clone(), why };
    let terms = Terms::of(task);
    if let Some(why) = terms.fault() {
        return Err(refused(why));
    }
    let stream = socket::connect(local, peer, CONNECT)?;
    let own = stream.local_addr().map_or_else(|_| String::new(), |own| plain(own.ip()));
    let mut talk = Talk::new(stream).map_err(|error| refused(told(&error)))?;
    let open = Line::Open { greeting: Greeting::new(task.session), terms };
    let answer = talk.say(&open, PATIENCE).and_then(|()| talk.hear(PATIENCE));
    let (node, device) = match answer.map_err(|error| refused(told(&error)))? {
        Line::Opened { node, device } => (node, device),
        Line::Refused { why } => return Err(refused(why)),
        other => return Err(refused(format!("it answers {other:?}"))),
    };
    let mut document = TcpDocument {
        format: TCP_FORMAT.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        source: End { node: local.node.clone(), address: own, device: local.device.clone() },
        destination: End {
            node: if task.peer.is_empty() { node.clone() } else { task.peer.clone() },
            address: plain(peer.ip()),
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
    // Two nodes with one address, or a table that swaps them.
    if !node.is_empty() && !task.peer.is_empty() && node != task.peer {
        document.problems.push(format!("asked for node {}, and {node} answered", task.peer));
    }
    let pattern = Pattern::new(task.session);
    let mut guest = Guest { local, peer, task, terms, talk, pattern, phases: 0 };
    match guest.all(&mut document) {
        Ok(equal) => document.complete = equal,
        Err(why) => {
            let _ = guest.talk.say(&Line::Failed { why: why.clone() }, TICK);
            document.problems.push(why);
        }
    }
    Ok(document)
}

/// An address as people write it: an IPv4 one in IPv6 clothes without them.
fn plain(ip: IpAddr) -> String {
    ip.to_canonical().to_string()
}

/// The connecting side of a session.
struct Guest<'a> {
    local: &'a Local,
    peer: SocketAddr,
    task: &'a Task,
    terms: Terms,
    talk: Talk,
    pattern: Pattern,
    phases: u32,
}

impl Guest<'_> {
    /// Takes everything there is to take; whether every byte arrived.
    fn all(&mut self, document: &mut TcpDocument) -> Result<bool, String> {
        if self.task.latency {
            self.say(&Line::Echo)?;
            self.expect_go()?;
            let timed = latency::time(self.talk.stream());
            let timed = timed.map_err(|e| format!("small messages were lost: {}", told(&e)))?;
            document.latency = Some(timed);
        }
        let mut equal = true;
        for reading in 0..self.task.readings {
            let (forward, all) = self.phase(true, reading, &mut document.problems)?;
            equal &= all;
            let (reverse, all) = self.phase(false, reading, &mut document.problems)?;
            equal &= all;
            document.readings.push(TcpReading { reading, forward, reverse });
        }
        self.say(&Line::Close)?;
        Ok(equal)
    }

    fn say(&mut self, line: &Line) -> Result<(), String> {
        self.talk.say(line, PATIENCE).map_err(|error| self.lost(&error))
    }

    /// The next line, which is not that the other side gave up.
    fn hear(&mut self, limit: Duration) -> Result<Line, String> {
        match self.talk.hear(limit).map_err(|error| self.lost(&error))? {
            Line::Failed { why } => Err(format!("{} gave up: {why}", self.peer)),
            line => Ok(line),
        }
    }

    fn lost(&self, error: &std::io::Error) -> String {
        format!("{} was lost: {}", self.peer, told(error))
    }

    /// Lets data flow one way; what flowed, and whether every byte arrived.
    fn phase(
        &mut self,
        forward: bool,
        reading: u32,
        problems: &mut Vec<String>,
    ) -> Result<(TcpFlow, bool), String> {
        let phase = self.phases;
        self.phases += 1;
        self.say(&Line::Begin { phase, forward })?;
        let streams = self.join(phase)?;
        self.expect_go()?;
        let (sent, arrived, complaints) = if forward {
            let (sent, mut complaints) = flow::send(&streams, &self.terms, &self.pattern);
            self.say(&Line::Sent { bytes: sent.clone() })?;
            // The server may still be reading what was under way.
            match self.hear(DRAINED)? {
                Line::Received { arrived } => (sent, arrived, complaints),
                other => {
                    complaints.push(format!("expected what arrived, and heard {other:?}"));
                    return Err(complaints.join("; "));
                }
            }
        } else {
            let (arrived, complaints) = flow::receive(&streams, &self.terms, &self.pattern);
            match self.hear(PATIENCE)? {
                Line::Sent { bytes } => (bytes, arrived, complaints),
                other => return Err(format!("expected what was sent, and heard {other:?}")),
            }
        };
        if !complaints.is_empty() {
            return Err(complaints.join("; "));
        }
        self.say(&Line::Go)?;
        let way = if forward { "forward" } else { "reverse" };
        Ok(sum_up(&sent, &arrived, &format!("reading {reading}, {way}"), problems))
    }

    fn expect_go(&mut self) -> Result<(), String> {
        match self.hear(DRAINED)? {
            Line::Go => Ok(()),
            other => Err(format!("expected the start, and heard {other:?}")),
        }
    }

    /// Opens the data connections of a phase.
    fn join(&self, phase: u32) -> Result<Vec<TcpStream>, String> {
        let one = |stream| {
            let connected = socket::connect(self.local, self.peer, CONNECT);
            let mut talk = connected
                .and_then(|it| Talk::new(it).map_err(|error| TcpError::Broken(error.to_string())))
                .map_err(|error| format!("connection {stream} for data: {}", error.told()))?;
            let greeting = Greeting::new(self.task.session);
            talk.say(&Line::Join { greeting, phase, stream }, PATIENCE)
                .map_err(|error| self.lost(&error))?;
            let stream = talk.into_stream();
            // Data is left to the kernel's own way of filling segments.
            stream.set_nodelay(false).map_err(|error| self.lost(&error))?;
            Ok(stream)
        };
        (0..self.terms.streams).map(one).collect()
    }
}

/// What flowed one way, and whether all that was sent arrived.
fn sum_up(
    sent: &[u64],
    arrived: &Arrived,
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
            "{what}: {} of {} pieces that were compared arrived with other content than was sent",
            arrived.corrupt, arrived.checked
        ));
    }
    let measured = 0.0 < arrived.seconds && arrived.seconds.is_finite();
    if !measured {
        problems.push(format!("{what}: nothing arrived after the warm-up"));
    }
    let rate = if measured { arrived.counted as f64 / arrived.seconds / GIGA } else { 0.0 };
    // The kernel tells it through TCP_INFO, which std and socket2 do not read.
    let retransmits = None;
    let flow = TcpFlow { sent_bytes, received_bytes, seconds: arrived.seconds, rate, retransmits };
    (flow, equal && measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_and_without_brackets() {
        let told = |text| resolve(text).map(|address| address.to_string()).ok();
        assert_eq!(told("10.0.0.2:5001").as_deref(), Some("10.0.0.2:5001"));
        assert_eq!(told("[fd00::1]:5001").as_deref(), Some("[fd00::1]:5001"));
        assert_eq!(told("fd00::1:5001").as_deref(), Some("[fd00::1]:5001"));
        assert_eq!(told("10.0.0.2"), None);
        assert_eq!(told("10.0.0.2:port"), None);
    }

    #[test]
    fn a_lost_byte_and_a_wrong_one_are_problems() {
        let mut arrived =
            Arrived { bytes: vec![600, 400], counted: 500, seconds: 0.5, checked: 10, corrupt: 0 };
        let mut problems = Vec::new();
        let (flow, equal) = sum_up(&[600, 400], &arrived, "reading 0, forward", &mut problems);
        assert!(equal && problems.is_empty());
        assert_eq!((flow.sent_bytes, flow.received_bytes, flow.rate), (1000, 1000, 1e-6));
        // The same sum over other streams is no equality.
        arrived.corrupt = 2;
        let (_, equal) = sum_up(&[500, 500], &arrived, "reading 0, forward", &mut problems);
        assert!(!equal);
        assert_eq!(problems.len(), 2, "{problems:?}");
    }
}
