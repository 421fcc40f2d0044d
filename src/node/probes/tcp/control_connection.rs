//! The control connection between the two sides: lines, each with a deadline.

use std::io;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::wire::{MAX_LINE_BYTES, TcpControlLine};

#[derive(Debug)]
pub(super) struct TcpControlConnection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl TcpControlConnection {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        // Lines are small, and the sender waits for each answer.
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    /// The underlying stream, for latency messages, which are not lines.
    pub(super) fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    pub(super) fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Sends a line, or fails after this time.
    pub(super) fn send(&mut self, line: &TcpControlLine, limit: Duration) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        self.stream.set_write_timeout(Some(limit))?;
        self.stream.write_all(&bytes).map_err(normalize_error)
    }

    /// Receives a line, or fails after this time. The end of the connection, too long a line and a
    /// foreign line are errors.
    pub(super) fn receive(&mut self, limit: Duration) -> io::Result<TcpControlLine> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(|_| unknown_line_error(&line));
            }
            if MAX_LINE_BYTES < self.buffer.len() {
                return Err(unknown_line_error(&self.buffer));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() && self.buffer.is_empty() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if left.is_zero() {
                return Err(unknown_line_error(&self.buffer));
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut piece = [0u8; 1024];
            match self.stream.read(&mut piece) {
                Ok(0) if self.buffer.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(0) => return Err(unknown_line_error(&self.buffer)),
                Ok(count) => self.buffer.extend_from_slice(&piece[..count]),
                Err(error) if is_time_out(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// The error for a foreign line, with its start.
fn unknown_line_error(bytes: &[u8]) -> io::Error {
    let begin = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
    let why = format!("it sent {begin:?}, which is not a fabricgate message");
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Linux returns "would block" when a socket's time limit expires (socket(7)).
pub(super) fn is_time_out(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn normalize_error(error: io::Error) -> io::Error {
    if is_time_out(&error) { io::ErrorKind::TimedOut.into() } else { error }
}

pub(super) fn describe_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "it does not answer".to_owned(),
        _ => error.to_string(),
    }
}
