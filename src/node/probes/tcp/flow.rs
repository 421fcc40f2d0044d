//! Data in one direction over several connections: timed sending, and receiving to the end. One
//! thread per connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use super::control_connection::is_time_out;
use super::pattern::TcpPattern;
use super::wire::{TcpReceiveTotals, TcpSessionTerms};
use super::{REPLY_TIMEOUT, TICK};

/// Senders continue this much longer than the measured time, because receivers start to measure
/// when the first byte arrives.
const MARGIN: Duration = Duration::from_millis(50);

/// Bytes per read.
const CHUNK_BYTES: usize = 128 * 1024;

/// Sends over all streams for the agreed time, then closes them for writing. Returns the bytes sent
/// per stream, and the problems.
pub(super) fn send_streams(
    streams: &[TcpStream],
    terms: &TcpSessionTerms,
    pattern: &TcpPattern,
) -> (Vec<u64>, Vec<String>) {
    let end = Instant::now() + terms.warmup() + terms.seconds() + MARGIN;
    let sent: Vec<(u64, Option<String>)> = thread::scope(|scope| {
        let threads: Vec<_> = streams
            .iter()
            .enumerate()
            .map(|(at, stream)| scope.spawn(move || send_stream(stream, at, end, pattern)))
            .collect();
        threads.into_iter().map(|it| it.join().unwrap_or((0, None))).collect()
    });
    let problems = sent.iter().filter_map(|(_, problem)| problem.clone()).collect();
    (sent.iter().map(|(bytes, _)| *bytes).collect(), problems)
}

fn send_stream(
    mut stream: &TcpStream,
    at: usize,
    end: Instant,
    pattern: &TcpPattern,
) -> (u64, Option<String>) {
    let mut sent = 0;
    let mut problem = stream.set_write_timeout(Some(TICK)).err();
    while problem.is_none() && Instant::now() < end {
        match stream.write(pattern.bytes_from(TcpPattern::position(at, sent))) {
            Ok(count) => sent += count as u64,
            Err(error) if is_time_out(&error) || error.kind() == ErrorKind::Interrupted => {}
            Err(error) => problem = Some(error),
        }
    }
    // A lost connection cannot be closed; the receiver reports it.
    let _ = stream.shutdown(Shutdown::Write);
    (sent, problem.map(|error| format!("stream {at} stopped sending: {error}")))
}

/// Data received on one stream.
#[derive(Debug, Default)]
struct StreamReceipt {
    bytes: u64,
    counted: u64,
    last: Option<Instant>,
    checked: u64,
    corrupt: u64,
    problem: Option<String>,
}

/// Receives from all streams until they end or time out.
pub(super) fn receive_streams(
    streams: &[TcpStream],
    terms: &TcpSessionTerms,
    pattern: &TcpPattern,
) -> (TcpReceiveTotals, Vec<String>) {
    let first = OnceLock::new();
    let deadline = Instant::now() + terms.warmup() + terms.seconds() + MARGIN + REPLY_TIMEOUT;
    let received: Vec<StreamReceipt> = thread::scope(|scope| {
        let first = &first;
        let threads: Vec<_> = streams
            .iter()
            .enumerate()
            .map(|(at, stream)| {
                scope.spawn(move || receive_stream(stream, at, terms, pattern, first, deadline))
            })
            .collect();
        threads.into_iter().map(|it| it.join().unwrap_or_default()).collect()
    });
    // The rate covers the time from the end of the warm-up to the end of the agreed time, or to the
    // last byte if a slow path made the sender stop earlier.
    let over = first.get().map_or(Duration::ZERO, |first| {
        let begin = *first + terms.warmup();
        let last = received.iter().filter_map(|it| it.last).max().unwrap_or(begin);
        last.min(begin + terms.seconds()).saturating_duration_since(begin)
    });
    let sum = |of: fn(&StreamReceipt) -> u64| received.iter().map(of).sum();
    let arrived = TcpReceiveTotals {
        bytes: received.iter().map(|it| it.bytes).collect(),
        counted: sum(|it| it.counted),
        seconds: over.as_secs_f64(),
        checked: sum(|it| it.checked),
        corrupt: sum(|it| it.corrupt),
    };
    (arrived, received.into_iter().filter_map(|it| it.problem).collect())
}

fn receive_stream(
    mut stream: &TcpStream,
    at: usize,
    terms: &TcpSessionTerms,
    pattern: &TcpPattern,
    first: &OnceLock<Instant>,
    deadline: Instant,
) -> StreamReceipt {
    let mut got = StreamReceipt::default();
    let mut buffer = vec![0u8; CHUNK_BYTES];
    let (warmup, seconds) = (terms.warmup(), terms.seconds());
    if let Err(error) = stream.set_read_timeout(Some(TICK)) {
        got.problem = Some(format!("stream {at} cannot be read: {error}"));
        return got;
    }
    loop {
        let count = match stream.read(&mut buffer) {
            Ok(0) => return got,
            Ok(count) => count,
            Err(error) if is_time_out(&error) || error.kind() == ErrorKind::Interrupted => 0,
            Err(error) => {
                got.problem = Some(format!("stream {at} failed: {error}"));
                return got;
            }
        };
        let now = Instant::now();
        if deadline <= now {
            got.problem = Some(format!("stream {at} did not end in time"));
            return got;
        }
        if count == 0 {
            continue;
        }
        let begin = *first.get_or_init(|| now) + warmup;
        if begin < now && now <= begin + seconds {
            got.counted += count as u64;
        }
        got.checked += 1;
        if !pattern.matches(TcpPattern::position(at, got.bytes), &buffer[..count]) {
            got.corrupt += 1;
        }
        got.bytes += count as u64;
        got.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let one = TcpStream::connect(address).expect("connected");
        (one, listener.accept().expect("accepted").0)
    }

    const TERMS: TcpSessionTerms =
        TcpSessionTerms { streams: 2, seconds: 0.1, warmup_s: 0.05, readings: 1 };

    #[test]
    fn every_sent_byte_arrives_unchanged() {
        let ((a, b), (c, d)) = (pair(), pair());
        let (from, to) = ([a, c], [b, d]);
        let pattern = TcpPattern::new(3);
        let (sent, got) = thread::scope(|scope| {
            let got = scope.spawn(|| receive_streams(&to, &TERMS, &pattern));
            (send_streams(&from, &TERMS, &pattern), got.join().expect("received"))
        });
        assert_eq!(sent.0, got.0.bytes);
        assert!(sent.1.is_empty() && got.1.is_empty(), "{:?} {:?}", sent.1, got.1);
        assert_eq!(got.0.corrupt, 0);
        assert!(0 < got.0.counted && got.0.counted < got.0.bytes.iter().sum());
        assert!(got.0.seconds <= 0.1 && 0.0 < got.0.seconds, "{}", got.0.seconds);
    }

    #[test]
    fn bytes_that_differ_from_the_pattern_are_detected() {
        let (from, to) = pair();
        let (other, own) = (TcpPattern::new(4), TcpPattern::new(5));
        let (from, to) = ([from], [to]);
        let got = thread::scope(|scope| {
            let got = scope.spawn(|| receive_streams(&to, &TERMS, &own));
            send_streams(&from, &TERMS, &other);
            got.join().expect("received")
        });
        assert_eq!(got.0.corrupt, got.0.checked);
        assert!(0 < got.0.checked);
    }
}
