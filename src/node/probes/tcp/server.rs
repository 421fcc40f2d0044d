//! The side that serves: one session with one client, then it is over.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use super::DRAINED;
use super::Local;
use super::PATIENCE;
use super::TICK;
use super::TcpError;
use super::flow;
use super::latency;
use super::pattern::Pattern;
use super::socket;
use super::talk::Talk;
use super::talk::is_time_out;
use super::talk::told;
use super::wire::Greeting;
use super::wire::Line;
use super::wire::MAGIC;
use super::wire::PROTOCOL;
use super::wire::Terms;

/// How long somebody who connects may take to say who it is.
const INTRODUCTION: Duration = Duration::from_secs(5);

/// Connections that may be about to say who they are at the same time. More
/// are closed, since they are no client of ours.
const NEWCOMERS: usize = 256;

/// Somebody who connected and is one of us.
type Visitor = (Line, Talk);

/// Serves one session. `announce` is told the port; nobody within `wait` is an
/// error.
pub fn serve(
    local: &Local,
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
        .map_err(|error| TcpError::Broken(format!("the port cannot be told: {error}")))?;
    let door = Arc::new(Door::default());
    let (visitors, inside) = mpsc::channel();
    let keeper = Arc::clone(&door);
    thread::spawn(move || keeper.keep(&listener, &visitors));
    let served = one_session(local, wait, port, &inside, &door);
    // It notices within a tick, which nobody has to wait for.
    door.closed.store(true, Ordering::Relaxed);
    served
}

fn one_session(
    local: &Local,
    wait: Duration,
    port: u16,
    inside: &mpsc::Receiver<Visitor>,
    door: &Door,
) -> Result<(), TcpError> {
    let deadline = Instant::now() + wait;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok((line, mut talk)) = inside.recv_timeout(left) else {
            let why = format!("nobody came to port {port} within {} s", wait.as_secs_f64());
            return Err(TcpError::Broken(why));
        };
        let Line::Open { greeting, terms } = line else { continue };
        if let Some(why) = terms.fault() {
            let _ = talk.say(&Line::Refused { why }, PATIENCE);
            door.session().take();
            continue;
        }
        let opened = Line::Opened { node: local.node.clone(), device: local.device.clone() };
        let mut host = Host { pattern: Pattern::new(greeting.session), talk, terms, inside };
        let result = host.say(&opened).and_then(|()| host.follow());
        if let Err(why) = &result {
            let _ = host.talk.say(&Line::Failed { why: why.clone() }, TICK);
        }
        return result.map_err(TcpError::Broken);
    }
}

/// Who is let in.
#[derive(Debug, Default)]
struct Door {
    closed: AtomicBool,
    newcomers: AtomicUsize,
    /// The session that is served.
    session: Mutex<Option<u64>>,
}

impl Door {
    fn session(&self) -> MutexGuard<'_, Option<u64>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts connections until it is closed.
    fn keep(self: &Arc<Self>, listener: &TcpListener, visitors: &mpsc::Sender<Visitor>) {
        while !self.closed.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, _)) => {
                    if NEWCOMERS <= self.newcomers.fetch_add(1, Ordering::Relaxed) {
                        self.newcomers.fetch_sub(1, Ordering::Relaxed);
                        continue;
                    }
                    let (door, visitors) = (Arc::clone(self), visitors.clone());
                    // Each on its own, so that silence keeps nobody waiting.
                    thread::spawn(move || {
                        door.meet(stream, &visitors);
                        door.newcomers.fetch_sub(1, Ordering::Relaxed);
                    });
                }
                Err(error) if is_time_out(&error) => {}
                // What goes wrong with one connection (accept(2)) or for want
                // of descriptors passes.
                Err(_) => thread::sleep(TICK),
            }
        }
    }

    /// Hears who somebody is, and lets them in or says why not.
    fn meet(&self, stream: TcpStream, visitors: &mpsc::Sender<Visitor>) {
        let Ok(mut talk) = Talk::new(stream) else { return };
        let refusal = match talk.hear(INTRODUCTION) {
            Ok(line) => match self.refusal(&line) {
                None => {
                    let _ = visitors.send((line, talk));
                    return;
                }
                Some(why) => why,
            },
            Err(_) => "expected a client of fabricgate".to_owned(),
        };
        let _ = talk.say(&Line::Refused { why: refusal }, TICK);
    }

    fn refusal(&self, line: &Line) -> Option<String> {
        let (Line::Open { greeting, .. } | Line::Join { greeting, .. }) = line else {
            return Some("expected a greeting".to_owned());
        };
        let Greeting { magic, protocol, session } = greeting;
        if magic != MAGIC || *protocol != PROTOCOL {
            return Some(format!("expected {MAGIC} {PROTOCOL}, got {magic} {protocol}"));
        }
        let mut current = self.session();
        match (*current, line) {
            (None, Line::Open { .. }) => {
                *current = Some(*session);
                None
            }
            (Some(current), Line::Join { .. }) if current == *session => None,
            (Some(_), _) => Some("serves another client".to_owned()),
            (None, _) => Some("expected somebody to open a session first".to_owned()),
        }
    }
}

/// The serving side of a session.
struct Host<'a> {
    talk: Talk,
    terms: Terms,
    pattern: Pattern,
    inside: &'a mpsc::Receiver<Visitor>,
}

impl Host<'_> {
    fn say(&mut self, line: &Line) -> Result<(), String> {
        self.talk.say(line, PATIENCE).map_err(|error| format!("the client is gone: {error}"))
    }

    fn hear(&mut self, limit: Duration) -> Result<Line, String> {
        self.talk.hear(limit).map_err(|error| format!("the client: {}", told(&error)))
    }

    /// Does what the client says until it is content.
    fn follow(&mut self) -> Result<(), String> {
        loop {
            match self.hear(PATIENCE)? {
                Line::Echo => {
                    // Until it hears this, the client sends nothing that the
                    // reader of lines could swallow.
                    self.say(&Line::Go)?;
                    latency::echo(self.talk.stream())
                        .map_err(|e| format!("small messages were lost: {}", told(&e)))?;
                }
                Line::Begin { phase, forward } => self.phase(phase, forward)?,
                Line::Close => return Ok(()),
                Line::Failed { why } => return Err(format!("the client gave up: {why}")),
                other => return Err(format!("the client says {other:?} out of place")),
            }
        }
    }

    fn phase(&mut self, phase: u32, forward: bool) -> Result<(), String> {
        let streams = self.gather(phase)?;
        self.say(&Line::Go)?;
        let problems = if forward {
            let (arrived, problems) = flow::receive(&streams, &self.terms, &self.pattern);
            match self.hear(PATIENCE)? {
                // The client compares; here it only ends the phase.
                Line::Sent { .. } => self.say(&Line::Received { arrived })?,
                other => return Err(format!("expected what was sent, and heard {other:?}")),
            }
            problems
        } else {
            let (bytes, problems) = flow::send(&streams, &self.terms, &self.pattern);
            self.say(&Line::Sent { bytes })?;
            problems
        };
        // Connections stay open until the other side has read them to the end.
        let done = self.hear(DRAINED)?;
        match (problems.into_iter().next(), done) {
            (Some(problem), _) => Err(problem),
            (None, Line::Go) => Ok(()),
            (None, Line::Failed { why }) => Err(format!("the client gave up: {why}")),
            (None, other) => Err(format!("expected the end of a phase, and heard {other:?}")),
        }
    }

    /// Waits for all data connections of a phase.
    fn gather(&self, phase: u32) -> Result<Vec<TcpStream>, String> {
        let deadline = Instant::now() + PATIENCE;
        let mut streams = BTreeMap::new();
        let wanted = usize::try_from(self.terms.streams).unwrap_or(usize::MAX);
        while streams.len() < wanted {
            let left = deadline.saturating_duration_since(Instant::now());
            let (line, talk) = self
                .inside
                .recv_timeout(left)
                .map_err(|_| format!("{} of {wanted} connections for data came", streams.len()))?;
            match line {
                Line::Join { phase: of, stream, .. }
                    if of == phase && stream < self.terms.streams =>
                {
                    let data = talk.into_stream();
                    data.set_nodelay(false).map_err(|error| error.to_string())?;
                    streams.insert(stream, data);
                }
                // Of a phase that failed: nobody waits for it any more.
                _ => {}
            }
        }
        Ok(streams.into_values().collect())
    }
}
