//! The server: serves one session with one client, then ends.

use std::collections::BTreeMap;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};
use std::{io, thread};

use super::control_connection::{TcpControlConnection, describe_error, is_time_out};
use super::pattern::TcpPattern;
use super::wire::{MAGIC, PROTOCOL, TcpControlLine, TcpGreeting, TcpSessionTerms};
use super::{DRAIN_TIMEOUT, REPLY_TIMEOUT, TICK, TcpBinding, TcpError, flow, latency, socket};

/// Time limit for a connection's greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum connections with a pending greeting. Further ones are closed.
const MAX_PENDING: usize = 256;

/// A connection with a valid greeting.
type GreetedConnection = (TcpControlLine, TcpControlConnection);

/// Serves one session. `announce` receives the port; no client within `wait` is an error.
pub fn serve(
    local: &TcpBinding,
    wait: Duration,
    announce: impl FnOnce(u16) -> io::Result<()>,
) -> Result<(), TcpError> {
    let listener = socket::listen(local)?;
    let port = listener
        .local_addr()
        .and_then(|address| {
            socket2::SockRef::from(&listener).set_read_timeout(Some(TICK))?;
            announce(address.port()).map(|()| address.port())
        })
        .map_err(|error| TcpError::Broken(format!("the port is unknown: {error}")))?;
    let admission = Arc::new(SessionAdmission::default());
    let (admitted, greeted) = mpsc::channel();
    let acceptor = Arc::clone(&admission);
    thread::spawn(move || acceptor.accept_connections(&listener, &admitted));
    let served = serve_session(local, wait, port, &greeted, &admission);
    // The thread notices it within a tick; nothing waits for it.
    admission.closed.store(true, Ordering::Relaxed);
    served
}

fn serve_session(
    local: &TcpBinding,
    wait: Duration,
    port: u16,
    greeted: &mpsc::Receiver<GreetedConnection>,
    admission: &SessionAdmission,
) -> Result<(), TcpError> {
    let deadline = Instant::now() + wait;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok((line, mut connection)) = greeted.recv_timeout(left) else {
            let why = format!("no client connected to port {port} within {} s", wait.as_secs_f64());
            return Err(TcpError::Broken(why));
        };
        let TcpControlLine::Open { greeting, terms } = line else { continue };
        if let Some(why) = terms.invalid_reason() {
            let _ = connection.send(&TcpControlLine::Refused { why }, REPLY_TIMEOUT);
            admission.lock_session().take();
            continue;
        }
        let opened =
            TcpControlLine::Opened { node: local.node.clone(), device: local.device.clone() };
        let mut session = TcpServerSession {
            pattern: TcpPattern::new(greeting.session),
            control: connection,
            terms,
            connections: greeted,
        };
        let result = session.send(&opened).and_then(|()| session.run_commands());
        if let Err(why) = &result {
            let _ = session.control.send(&TcpControlLine::Failed { why: why.clone() }, TICK);
        }
        return result.map_err(TcpError::Broken);
    }
}

#[derive(Debug, Default)]
struct SessionAdmission {
    closed: AtomicBool,
    pending: AtomicUsize,
    session: Mutex<Option<u64>>,
}

impl SessionAdmission {
    fn lock_session(&self) -> MutexGuard<'_, Option<u64>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts connections until the server closes.
    fn accept_connections(
        self: &Arc<Self>,
        listener: &TcpListener,
        admitted: &mpsc::Sender<GreetedConnection>,
    ) {
        while !self.closed.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, _)) => {
                    if MAX_PENDING <= self.pending.fetch_add(1, Ordering::Relaxed) {
                        self.pending.fetch_sub(1, Ordering::Relaxed);
                        continue;
                    }
                    let (admission, admitted) = (Arc::clone(self), admitted.clone());
                    // One thread each, so that a silent client blocks no other.
                    thread::spawn(move || {
                        admission.greet(stream, &admitted);
                        admission.pending.fetch_sub(1, Ordering::Relaxed);
                    });
                }
                Err(error) if is_time_out(&error) => {}
                // Errors of one connection (accept(2)) and a lack of descriptors are temporary.
                Err(_) => thread::sleep(TICK),
            }
        }
    }

    /// Receives a connection's greeting, and admits or refuses it.
    fn greet(&self, stream: TcpStream, greeted: &mpsc::Sender<GreetedConnection>) {
        let Ok(mut control) = TcpControlConnection::new(stream) else { return };
        let refusal = match control.receive(GREETING_TIMEOUT) {
            Ok(line) => match self.refusal_reason(&line) {
                None => {
                    let _ = greeted.send((line, control));
                    return;
                }
                Some(why) => why,
            },
            Err(_) => "expected a fabricgate client".to_owned(),
        };
        let _ = control.send(&TcpControlLine::Refused { why: refusal }, TICK);
    }

    fn refusal_reason(&self, line: &TcpControlLine) -> Option<String> {
        let (TcpControlLine::Open { greeting, .. } | TcpControlLine::Join { greeting, .. }) = line
        else {
            return Some("expected a greeting".to_owned());
        };
        let TcpGreeting { magic, protocol, session } = greeting;
        if magic != MAGIC || *protocol != PROTOCOL {
            return Some(format!("expected {MAGIC} {PROTOCOL}, got {magic} {protocol}"));
        }
        let mut current = self.lock_session();
        match (*current, line) {
            (None, TcpControlLine::Open { .. }) => {
                *current = Some(*session);
                None
            }
            (Some(current), TcpControlLine::Join { .. }) if current == *session => None,
            (Some(_), _) => Some("serves another client".to_owned()),
            (None, _) => Some("expected a client to open a session first".to_owned()),
        }
    }
}

/// The server side of a session.
struct TcpServerSession<'a> {
    control: TcpControlConnection,
    terms: TcpSessionTerms,
    pattern: TcpPattern,
    connections: &'a mpsc::Receiver<GreetedConnection>,
}

impl TcpServerSession<'_> {
    fn send(&mut self, line: &TcpControlLine) -> Result<(), String> {
        self.control
            .send(line, REPLY_TIMEOUT)
            .map_err(|error| format!("the client is gone: {error}"))
    }

    fn receive(&mut self, limit: Duration) -> Result<TcpControlLine, String> {
        self.control
            .receive(limit)
            .map_err(|error| format!("the client: {}", describe_error(&error)))
    }

    /// Executes the client's commands until it closes the session.
    fn run_commands(&mut self) -> Result<(), String> {
        loop {
            match self.receive(REPLY_TIMEOUT)? {
                TcpControlLine::Echo => {
                    // Before this line the client sends no latency message that the line reader
                    // could swallow.
                    self.send(&TcpControlLine::Go)?;
                    latency::echo(self.control.stream())
                        .map_err(|e| format!("small messages were lost: {}", describe_error(&e)))?;
                }
                TcpControlLine::Begin { phase, forward } => self.run_phase(phase, forward)?,
                TcpControlLine::Close => return Ok(()),
                TcpControlLine::Failed { why } => return Err(format!("the client gave up: {why}")),
                other => return Err(format!("the client sent an unexpected {other:?}")),
            }
        }
    }

    fn run_phase(&mut self, phase: u32, forward: bool) -> Result<(), String> {
        let streams = self.collect_streams(phase)?;
        self.send(&TcpControlLine::Go)?;
        let problems = if forward {
            let (arrived, problems) = flow::receive_streams(&streams, &self.terms, &self.pattern);
            match self.receive(REPLY_TIMEOUT)? {
                // The client compares; here this only ends the phase.
                TcpControlLine::Sent { .. } => self.send(&TcpControlLine::Received { arrived })?,
                other => return Err(format!("expected the sent totals, got {other:?}")),
            }
            problems
        } else {
            let (bytes, problems) = flow::send_streams(&streams, &self.terms, &self.pattern);
            self.send(&TcpControlLine::Sent { bytes })?;
            problems
        };
        // Connections stay open until the other side has read them to the end.
        let done = self.receive(DRAIN_TIMEOUT)?;
        match (problems.into_iter().next(), done) {
            (Some(problem), _) => Err(problem),
            (None, TcpControlLine::Go) => Ok(()),
            (None, TcpControlLine::Failed { why }) => Err(format!("the client gave up: {why}")),
            (None, other) => Err(format!("expected the end of a phase, got {other:?}")),
        }
    }

    /// Waits for all data connections of a phase.
    fn collect_streams(&self, phase: u32) -> Result<Vec<TcpStream>, String> {
        let deadline = Instant::now() + REPLY_TIMEOUT;
        let mut streams = BTreeMap::new();
        let wanted = usize::try_from(self.terms.streams).unwrap_or(usize::MAX);
        while streams.len() < wanted {
            let left = deadline.saturating_duration_since(Instant::now());
            let (line, control) = self
                .connections
                .recv_timeout(left)
                .map_err(|_| format!("{} of {wanted} data connections arrived", streams.len()))?;
            match line {
                TcpControlLine::Join { phase: of, stream, .. }
                    if of == phase && stream < self.terms.streams =>
                {
                    let data = control.into_stream();
                    data.set_nodelay(false).map_err(|error| error.to_string())?;
                    streams.insert(stream, data);
                }
                // A late connection of a failed phase.
                _ => {}
            }
        }
        Ok(streams.into_values().collect())
    }
}
