//! Carrying out one order: check, start, wait, and say what came of it.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::mpsc;
use tokio::sync::watch;
use tokio::time::sleep;

use super::busy;
use super::environment;
use super::port;
use super::setup::Setup;
use crate::exec;
use crate::exec::ExecError;
use crate::exec::Finished;
use crate::exec::Request;
use crate::exec::Seen;
use crate::exec::Setting;
use crate::model::probe::Ready;
use crate::model::probe::placeholder;
use crate::model::raw::Ending;
use crate::model::worker::Done;
use crate::model::worker::FromWorker;
use crate::model::worker::Order;
use crate::model::worker::Stream;
use crate::model::worker::Waiting;

/// Bytes of output in a line: two thirds of the longest line, in base64.
const PIECE: usize = 512 * 1024;

/// How often the kernel is asked whether a port is served.
const GLANCE: Duration = Duration::from_millis(10);

/// The longest first line that can say `listening PORT`.
const FIRST_LINE: usize = 256;

/// The longest time limit, in seconds: a year. Clocks cannot add much more.
const LONGEST: f64 = 31_536_000.0;

/// Carries out an order; answers with exactly one of done and refused.
pub(super) async fn carry_out(
    order: Order,
    setup: &Setup,
    stop: watch::Receiver<bool>,
    say: &mpsc::UnboundedSender<FromWorker>,
    started: &mpsc::UnboundedSender<i32>,
) {
    let id = order.id;
    let tell = |word| {
        let _ = say.send(word);
    };
    if order.idle_gpus
        && !setup.even_if_busy
        && let Some(why) = busy::reason(setup).await
    {
        return tell(FromWorker::Refused { id, why });
    }
    let done = |ending| Done {
        id,
        ending,
        duration_s: 0.0,
        stdout_dropped: 0,
        stderr_dropped: 0,
        load: environment::load(setup),
        gpus: Vec::new(),
    };
    let ran = match run(&order, setup, stop, say, started).await {
        Ok(ran) => ran,
        Err(ending) => return tell(FromWorker::Done(Box::new(done(ending)))),
    };
    for (stream, printed) in [(Stream::Stdout, &ran.stdout), (Stream::Stderr, &ran.stderr)] {
        for piece in printed.bytes.chunks(PIECE) {
            tell(FromWorker::Output { id, stream, data: STANDARD.encode(piece) });
        }
    }
    let gpus = match order.idle_gpus {
        true => environment::gpus(setup).await,
        false => Vec::new(),
    };
    tell(FromWorker::Done(Box::new(Done {
        duration_s: ran.duration.as_secs_f64(),
        stdout_dropped: ran.stdout.dropped,
        stderr_dropped: ran.stderr.dropped,
        gpus,
        ..done(ran.ending)
    })));
}

/// Runs the order's process and says when it is ready; an error is an ending
/// without a process.
async fn run(
    order: &Order,
    setup: &Setup,
    stop: watch::Receiver<bool>,
    say: &mpsc::UnboundedSender<FromWorker>,
    started: &mpsc::UnboundedSender<i32>,
) -> Result<Finished, Ending> {
    let own = setup.executable.display().to_string();
    let fill = |word: &String| word.replace(placeholder::SELF, &own);
    let limit = if order.limit_s.is_finite() { order.limit_s.clamp(0.0, LONGEST) } else { LONGEST };
    let request = Request {
        argv: order.argv.iter().map(fill).collect(),
        limit: Duration::from_secs_f64(limit),
        capture: order.capture.min(exec::CAPTURE),
    };
    let setting = Setting { env: order.env.clone(), guard: Some(setup.executable.clone()) };
    let at_port = match order.ready {
        Some(Waiting { how: Ready::Port, port }) => Some(port),
        _ => None,
    };
    if let Some(port) = at_port.filter(|port| port::listens(&setup.proc, *port)) {
        let why = format!("port {port} is served by somebody else already");
        return Err(Ending::NotStarted { why });
    }
    let by_line = matches!(order.ready, Some(Waiting { how: Ready::Line, .. }));
    let mut first = by_line.then(FirstLine::default);
    let mut group = None;
    let mut seen = |seen: Seen<'_>| match seen {
        Seen::Started { group: number } => {
            group = Some(number);
            let _ = started.send(number);
        }
        Seen::Stdout(bytes) => {
            if let Some(port) = first.as_mut().and_then(|line| line.add(bytes)) {
                let _ = say.send(FromWorker::Ready { id: order.id, port });
            }
        }
    };
    let running = exec::watched(&request, &setting, stop, &mut seen);
    let ran = match at_port {
        None => running.await,
        Some(port) => {
            tokio::pin!(running);
            tokio::select! {
                ran = &mut running => ran,
                () = served(setup, port) => {
                    let _ = say.send(FromWorker::Ready { id: order.id, port });
                    running.await
                }
            }
        }
    };
    if let Some(group) = group {
        let _ = started.send(-group);
    }
    ran.map_err(|error| match error {
        ExecError::Missing { program } => Ending::Missing { program },
        ExecError::Empty => Ending::NotStarted { why: error.to_string() },
        ExecError::Refused { program, source } => {
            Ending::NotStarted { why: format!("{program} cannot be started: {source}") }
        }
    })
}

/// Waits until somebody listens at this port.
async fn served(setup: &Setup, port: u16) {
    while !port::listens(&setup.proc, port) {
        sleep(GLANCE).await;
    }
}

/// The first line of a serving process, as it arrives in pieces.
#[derive(Debug, Default)]
struct FirstLine {
    bytes: Vec<u8>,
    over: bool,
}

impl FirstLine {
    /// The port, once the line is whole and if it says one.
    fn add(&mut self, bytes: &[u8]) -> Option<u16> {
        if self.over {
            return None;
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        self.bytes.extend_from_slice(&bytes[..end.unwrap_or(bytes.len()).min(FIRST_LINE)]);
        self.over = end.is_some() || FIRST_LINE < self.bytes.len();
        end?;
        let line = std::str::from_utf8(&self.bytes).ok()?;
        line.trim().strip_prefix("listening ")?.trim().parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_line_in_pieces_is_read_when_it_is_whole() {
        let mut line = FirstLine::default();
        assert_eq!(line.add(b"listen"), None);
        assert_eq!(line.add(b"ing 500"), None);
        assert_eq!(line.add(b"1\nlistening 7\n"), Some(5001));
        assert_eq!(line.add(b"listening 8\n"), None, "there is one first line");
    }

    #[test]
    fn another_first_line_names_no_port() {
        assert_eq!(FirstLine::default().add(b"warning: x\nlistening 7\n"), None);
        assert_eq!(FirstLine::default().add(b"listening 70000\n"), None);
        let mut flood = FirstLine::default();
        assert_eq!(flood.add(&[b'x'; 100_000]), None);
        assert!(flood.bytes.len() <= FIRST_LINE && flood.add(b"\n").is_none());
    }
}
